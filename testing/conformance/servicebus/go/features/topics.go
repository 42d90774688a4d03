package main

import (
	"fmt"
	"time"

	. "malote.test/servicebus/harness"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// The entities are declared in ../../entities.json.
var topics = []Case{
	{Name: "subscriptions get the messages that match their rules", Run: everySubscriptionGetsWhatItsRulesSay},
	{Name: "a subscription has its own dead letters", Run: aSubscriptionHasDeadLetters},
	{Name: "a topic drops duplicates", Run: aTopicDropsDuplicates},
	{Name: "a topic accepts batches and scheduled messages", Run: aTopicTakesBatchesAndSchedules},
	{Name: "sessions of a subscription", Run: sessionsOfASubscription},
	{Name: "messages are forwarded to queues and topics", Run: forwardingGoesOn},
	{Name: "receiving from topics and sending to subscriptions is refused", Run: wrongEndsAreRefused},
}

func subscription(client *bus.Client, topic, name string) *bus.Receiver {
	return Must(client.NewReceiverForSubscription(topic, name, nil))
}

// clean removes the messages of other cases.
func clean(client *bus.Client, names ...string) {
	for _, name := range names {
		receiver := subscription(client, "news", name)
		drain(receiver)
		Close(receiver)
	}
}

func everySubscriptionGetsWhatItsRulesSay() {
	client := Client()
	defer Close(client)
	clean(client, "all", "sport", "large")
	message := func(body, subject string, size int64) *bus.Message {
		properties := map[string]any{"size": size}
		return &bus.Message{Body: []byte(body), Subject: &subject, SessionID: To("s"), ApplicationProperties: properties}
	}
	send(client, "news", message("1", "sport", 99), message("2", "art", 11), message("3", "art", 1))
	Same("all", bodies(drain(subscription(client, "news", "all"))), []string{"1", "2", "3"})
	Same("sport", bodies(drain(subscription(client, "News", "SPORT"))), []string{"1"})
	large := drain(subscription(client, "news", "large"))
	Same("large", bodies(large), []string{"2"})
	Same("subject", *large[0].Subject, "large")
	Same("set by the action", large[0].ApplicationProperties["seen"], any("yes"))
	Same("rule", large[0].ApplicationProperties["RuleName"], any("by-size"))
}

func aSubscriptionHasDeadLetters() {
	ctx, done := Soon()
	defer done()
	client := Client()
	defer Close(client)
	clean(client, "sport")
	send(client, "news", &bus.Message{Body: []byte("x"), Subject: To("sport"), SessionID: To("s")})
	receiver := subscription(client, "news", "sport")
	Check(receiver.DeadLetterMessage(ctx, one(receiver), &bus.DeadLetterOptions{Reason: To("r")}))
	options := &bus.ReceiverOptions{SubQueue: bus.SubQueueDeadLetter}
	dead := Must(client.NewReceiverForSubscription("news", "sport", options))
	got := one(dead)
	Same("reason", *got.DeadLetterReason, "r")
	complete(dead, got)
}

func aTopicDropsDuplicates() {
	client := Client()
	defer Close(client)
	id := fmt.Sprint(time.Now().UnixNano())
	for range 2 {
		send(client, "once", &bus.Message{Body: []byte("x"), MessageID: &id})
	}
	Same("came", len(drain(subscription(client, "once", "s"))), 1)
}

func aTopicTakesBatchesAndSchedules() {
	ctx, done := Soon()
	defer done()
	client := Client()
	defer Close(client)
	clean(client, "all")
	sender := Must(client.NewSender("news", nil))
	batch := Must(sender.NewMessageBatch(ctx, nil))
	for _, body := range []string{"0", "1", "2"} {
		Check(batch.AddMessage(of("s", body), nil))
	}
	Check(sender.SendMessageBatch(ctx, batch, nil))
	receiver := subscription(client, "news", "all")
	got := receive(receiver, 3)
	Same("order", bodies(got), []string{"0", "1", "2"})
	complete(receiver, got...)
	later := time.Now().Add(time.Hour)
	numbers := Must(sender.ScheduleMessages(ctx, []*bus.Message{of("s", "never")}, later, nil))
	Check(sender.CancelScheduledMessages(ctx, numbers, nil))
	Must(sender.ScheduleMessages(ctx, []*bus.Message{of("s", "due")}, time.Now().Add(time.Second), nil))
	got = receive(receiver, 1)
	Same("body", string(got[0].Body), "due")
	complete(receiver, got...)
	nothing(receiver)
}

func sessionsOfASubscription() {
	ctx, done := Soon()
	defer done()
	client := Client()
	defer Close(client)
	session := fmt.Sprint(time.Now().UnixNano())
	send(client, "news", of(session, "0"), of(session, "1"))
	receiver := Must(client.AcceptSessionForSubscription(ctx, "news", "by-session", session, nil))
	Same("order", bodies(drain(receiver)), []string{"0", "1"})
	Close(receiver)
	receiver = Must(client.AcceptNextSessionForSubscription(ctx, "news", "by-session", nil))
	drain(receiver)
	Close(receiver)
}

func forwardingGoesOn() {
	ctx, done := Soon()
	defer done()
	client := Client()
	defer Close(client)
	clean(client, "all")
	send(client, "in", &bus.Message{Body: []byte("on"), MessageID: To("f")})
	receiver := receiverOf(client, "out")
	got := one(receiver)
	Same("id", got.MessageID, "f")
	Check(receiver.AbandonMessage(ctx, got, nil))
	graves := receiverOf(client, "graves")
	got = one(graves)
	Same("source", *got.DeadLetterSource, "out")
	Same("reason", *got.DeadLetterReason, "MaxDeliveryCountExceeded")
	complete(graves, got)
	send(client, "in-to-topic", of("s", "to all"))
	all := subscription(client, "news", "all")
	got = one(all)
	Same("body", string(got.Body), "to all")
	complete(all, got)
}

func wrongEndsAreRefused() {
	ctx, done := Soon()
	defer done()
	client := Client()
	defer Close(client)
	_, err := receiverOf(client, "news").ReceiveMessages(ctx, 1, nil)
	RefusedAs("receiving from a topic", err, "amqp:not-allowed")
	sender := Must(client.NewSender("news/Subscriptions/all", nil))
	RefusedAs("sending to a subscription", sender.SendMessage(ctx, text("x"), nil), "amqp:not-allowed")
	_, err = subscription(client, "news", "nobody").ReceiveMessages(ctx, 1, nil)
	Refused("an unknown subscription", err, bus.CodeNotFound)
}
