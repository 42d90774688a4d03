package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"

	. "malote.test/servicebus/harness"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// Administration of a server with keys and a certificate. The client only uses HTTPS.
var administration = []Case{
	{Name: "create, change and delete queues", Run: queuesAreAdministered},
	{Name: "create, change and delete topics and subscriptions", Run: topicsAreAdministered},
	{Name: "create, change and delete rules", Run: rulesAreAdministered},
	{Name: "administration over plain HTTP", Run: administrationByPlainHTTP},
	{Name: "administration needs a key", Run: administrationNeedsAKey},
}

// overHTTP is a transport for a server without a certificate.
type overHTTP struct{}

func (overHTTP) Do(request *http.Request) (*http.Response, error) {
	request.URL.Scheme = "http"
	return http.DefaultClient.Do(request)
}

func administrator(name, key string, transport policy.Transporter) *admin.Client {
	text := fmt.Sprintf("Endpoint=sb://%s;SharedAccessKeyName=%s;SharedAccessKey=%s", os.Getenv("MALOTE_ADMIN_AT"), name, key)
	once := policy.RetryOptions{MaxRetries: -1}
	options := &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: transport, Retry: once}}
	return Must(admin.NewClientFromConnectionString(text, options))
}

func overTLS() *admin.Client {
	trusted := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting()}}
	return administrator("Root", root(), trusted)
}

// status checks that the error is a refusal with this status.
func status(what string, err error, wanted int) {
	var described *azcore.ResponseError
	That(errors.As(err, &described), "%s: expected a refusal, got %v", what, err)
	Same(what, described.StatusCode, wanted)
}

func queuesAreAdministered() {
	ctx, done := Soon()
	defer done()
	client := overTLS()
	That(Must(client.GetQueue(ctx, "no-such-queue", nil)) == nil, "a missing queue was found")
	properties := &admin.QueueProperties{
		LockDuration:     To("PT20S"),
		MaxDeliveryCount: To(int32(4)),
		UserMetadata:     To("<m> & more"),
		RequiresSession:  To(true),
	}
	name := fmt.Sprintf("go-%d", os.Getpid())
	Must(client.CreateQueue(ctx, name, &admin.CreateQueueOptions{Properties: properties}))
	_, err := client.CreateQueue(ctx, name, nil)
	status("made again", err, http.StatusConflict)
	described := Must(client.GetQueue(ctx, name, nil))
	Same("lock", *described.LockDuration, "PT20S")
	Same("deliveries", *described.MaxDeliveryCount, 4)
	Same("metadata", *described.UserMetadata, "<m> & more")
	Same("sessions", *described.RequiresSession, true)
	described.MaxDeliveryCount = To(int32(5))
	changed := Must(client.UpdateQueue(ctx, name, described.QueueProperties, nil))
	Same("changed", *changed.MaxDeliveryCount, 5)
	described.RequiresSession = To(false)
	_, err = client.UpdateQueue(ctx, name, described.QueueProperties, nil)
	status("sessions later", err, http.StatusBadRequest)
	facts := Must(client.GetQueueRuntimeProperties(ctx, name, nil))
	Same("messages", facts.TotalMessageCount, 0)
	found := false
	for pager := client.NewListQueuesPager(&admin.ListQueuesOptions{MaxPageSize: 2}); pager.More(); {
		for _, queue := range Must(pager.NextPage(ctx)).Queues {
			found = found || queue.QueueName == name
		}
	}
	That(found, "the queue is not listed")
	Must(client.DeleteQueue(ctx, name, nil))
	_, err = client.DeleteQueue(ctx, name, nil)
	status("deleted again", err, http.StatusNotFound)
	Same("name", Must(client.GetNamespaceProperties(ctx, nil)).Name, "localhost")
}

func topicsAreAdministered() {
	ctx, done := Soon()
	defer done()
	client, name := overTLS(), fmt.Sprintf("go-topic-%d", os.Getpid())
	properties := &admin.TopicProperties{UserMetadata: To("t"), DefaultMessageTimeToLive: To("PT1H")}
	Must(client.CreateTopic(ctx, name, &admin.CreateTopicOptions{Properties: properties}))
	described := Must(client.GetTopic(ctx, name, nil))
	Same("metadata", *described.UserMetadata, "t")
	described.UserMetadata = To("u")
	Same("changed", *Must(client.UpdateTopic(ctx, name, described.TopicProperties, nil)).UserMetadata, "u")
	options := &admin.CreateSubscriptionOptions{Properties: &admin.SubscriptionProperties{LockDuration: To("PT15S")}}
	Must(client.CreateSubscription(ctx, name, "s", options))
	subscription := Must(client.GetSubscription(ctx, name, "s", nil))
	Same("lock", *subscription.LockDuration, "PT15S")
	That(Must(client.GetSubscription(ctx, name, "none", nil)) == nil, "a missing subscription was found")
	Same("subscriptions", Must(client.GetTopicRuntimeProperties(ctx, name, nil)).SubscriptionCount, 1)
	Same("messages", Must(client.GetSubscriptionRuntimeProperties(ctx, name, "s", nil)).TotalMessageCount, 0)
	Must(client.DeleteSubscription(ctx, name, "s", nil))
	Must(client.DeleteTopic(ctx, name, nil))
	That(Must(client.GetTopic(ctx, name, nil)) == nil, "a deleted topic was found")
}

func rulesAreAdministered() {
	ctx, done := Soon()
	defer done()
	client, name := overTLS(), fmt.Sprintf("go-rules-%d", os.Getpid())
	Must(client.CreateTopic(ctx, name, nil))
	sql := &admin.SQLFilter{Expression: "a = @x", Parameters: map[string]any{"@x": 1.5}}
	first := &admin.RuleProperties{Name: "first", Filter: sql, Action: &admin.SQLAction{Expression: "SET b = 1"}}
	options := &admin.CreateSubscriptionOptions{Properties: &admin.SubscriptionProperties{DefaultRule: first}}
	Must(client.CreateSubscription(ctx, name, "s", options))
	described := Must(client.GetRule(ctx, name, "s", "first", nil))
	Same("filter", described.Filter, admin.RuleFilter(sql))
	Same("action", described.Action, admin.RuleAction(first.Action))
	values := map[string]any{"text": "a<b", "number": 1.5, "yes": true}
	correlation := &admin.CorrelationFilter{Subject: To("news"), ApplicationProperties: values}
	Must(client.CreateRule(ctx, name, "s", &admin.CreateRuleOptions{Name: To("second"), Filter: correlation}))
	second := Must(client.GetRule(ctx, name, "s", "second", nil))
	Same("correlation", second.Filter, admin.RuleFilter(correlation))
	second.Filter = &admin.FalseFilter{}
	Must(client.UpdateRule(ctx, name, "s", second.RuleProperties))
	changed := Must(client.GetRule(ctx, name, "s", "second", nil))
	Same("changed", changed.Filter, admin.RuleFilter(&admin.FalseFilter{}))
	rules := 0
	for pager := client.NewListRulesPager(name, "s", nil); pager.More(); {
		rules += len(Must(pager.NextPage(ctx)).Rules)
	}
	Same("rules", rules, 2)
	Must(client.DeleteRule(ctx, name, "s", "second", nil))
	That(Must(client.GetRule(ctx, name, "s", "second", nil)) == nil, "a deleted rule was found")
	Must(client.DeleteTopic(ctx, name, nil))
}

func administrationByPlainHTTP() {
	ctx, done := Soon()
	defer done()
	client := administrator("Root", root(), overHTTP{})
	Same("deliveries", *Must(client.GetQueue(ctx, "configured", nil)).MaxDeliveryCount, 3)
}

func administrationNeedsAKey() {
	ctx, done := Soon()
	defer done()
	for _, pair := range [][2]string{{"Root", "wrong"}, {"nobody", root()}} {
		_, err := administrator(pair[0], pair[1], overHTTP{}).GetQueue(ctx, "configured", nil)
		status(pair[0], err, http.StatusUnauthorized)
	}
	_, err := administrator("Reader", os.Getenv("MALOTE_READER"), overHTTP{}).GetQueue(ctx, "configured", nil)
	status("Reader", err, http.StatusForbidden)
}
