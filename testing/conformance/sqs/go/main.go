// Tests the Go SDK (version 2) against the broker at MALOTE_SQS_AT: all actions, the errors that programs compare,
// and FIFO queues. The last line counts the passed and failed checks.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
)

var ctx = context.Background()
var names int

func name(suffix string) string {
	names++
	return fmt.Sprintf("go-%d-%d%s", os.Getpid(), names, suffix)
}

// check ends the current check with an error, which run reports.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

func equal[T comparable](got, want T) {
	if got != want {
		panic(fmt.Errorf("got %v, want %v", got, want))
	}
}

// refused checks the type and the code of an error, because programs compare either of them.
func refused[E error](err error, code string) E {
	var shape E
	if !errors.As(err, &shape) {
		panic(fmt.Errorf("got %v, want a %T", err, shape))
	}
	coded(err, code)
	return shape
}

func coded(err error, code string) {
	var of smithy.APIError
	if !errors.As(err, &of) {
		panic(fmt.Errorf("got %v, want %s", err, code))
	}
	equal(of.ErrorCode(), code)
}

func queue(client *sqs.Client, suffix string, attributes map[string]string) string {
	made, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String(name(suffix)), Attributes: attributes})
	check(err)
	return *made.QueueUrl
}

func attribute(client *sqs.Client, url string, which types.QueueAttributeName) string {
	got, err := client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &url, AttributeNames: []types.QueueAttributeName{which},
	})
	check(err)
	return got.Attributes[string(which)]
}

func receive(client *sqs.Client, url string, visibility int32) []types.Message {
	got, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &url, MaxNumberOfMessages: 10, WaitTimeSeconds: 10, VisibilityTimeout: visibility,
		MessageAttributeNames:       []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	check(err)
	return got.Messages
}

func queues(client *sqs.Client) {
	called := name("")
	create := &sqs.CreateQueueInput{
		QueueName: &called, Attributes: map[string]string{"VisibilityTimeout": "60"}, Tags: map[string]string{"team": "a"},
	}
	made, err := client.CreateQueue(ctx, create)
	check(err)
	url := made.QueueUrl
	again, err := client.CreateQueue(ctx, create)
	check(err)
	equal(*again.QueueUrl, *url)
	create.Attributes = map[string]string{"VisibilityTimeout": "61"}
	_, err = client.CreateQueue(ctx, create)
	refused[*types.QueueNameExists](err, "QueueAlreadyExists")

	found, err := client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &called})
	check(err)
	equal(*found.QueueUrl, *url)
	prefix := called + "-p"
	for n := range 3 {
		_, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String(fmt.Sprintf("%s%d", prefix, n))})
		check(err)
	}
	pages := sqs.NewListQueuesPaginator(client, &sqs.ListQueuesInput{QueueNamePrefix: &prefix, MaxResults: aws.Int32(2)})
	var all []string
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		check(err)
		all = append(all, page.QueueUrls...)
	}
	equal(len(all), 3)

	_, err = client.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
		QueueUrl: url, Attributes: map[string]string{"MaximumMessageSize": "2048", "DelaySeconds": "0"},
	})
	check(err)
	equal(attribute(client, *url, types.QueueAttributeNameMaximumMessageSize), "2048")
	_, err = client.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
		QueueUrl: url, Attributes: map[string]string{"VisibilityTimeoutSeconds": "1"},
	})
	refused[*types.InvalidAttributeName](err, "InvalidAttributeName")
	_, err = client.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
		QueueUrl: url, Attributes: map[string]string{"DelaySeconds": "901"},
	})
	refused[*types.InvalidAttributeValue](err, "InvalidAttributeValue")

	_, err = client.TagQueue(ctx, &sqs.TagQueueInput{QueueUrl: url, Tags: map[string]string{"stage": "test"}})
	check(err)
	_, err = client.UntagQueue(ctx, &sqs.UntagQueueInput{QueueUrl: url, TagKeys: []string{"team"}})
	check(err)
	tags, err := client.ListQueueTags(ctx, &sqs.ListQueueTagsInput{QueueUrl: url})
	check(err)
	equal(fmt.Sprint(tags.Tags), "map[stage:test]")

	_, err = client.AddPermission(ctx, &sqs.AddPermissionInput{
		QueueUrl: url, Label: aws.String("one"), AWSAccountIds: []string{"123456789012"}, Actions: []string{"SendMessage"},
	})
	check(err)
	equal(strings.Contains(attribute(client, *url, types.QueueAttributeNamePolicy), "SQS:SendMessage"), true)
	_, err = client.RemovePermission(ctx, &sqs.RemovePermissionInput{QueueUrl: url, Label: aws.String("one")})
	check(err)

	_, err = client.PurgeQueue(ctx, &sqs.PurgeQueueInput{QueueUrl: url})
	check(err)
	_, err = client.PurgeQueue(ctx, &sqs.PurgeQueueInput{QueueUrl: url})
	refused[*types.PurgeQueueInProgress](err, "AWS.SimpleQueueService.PurgeQueueInProgress")
	_, err = client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: url})
	check(err)
	_, err = client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &called})
	refused[*types.QueueDoesNotExist](err, "AWS.SimpleQueueService.NonExistentQueue")
}

// The SDK verifies the MD5s of bodies.
func messages(client *sqs.Client) {
	url := queue(client, "", nil)
	body := "olá <&>\r\n"
	binary := []byte{0, 255, 10}
	sent, err := client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: &url, MessageBody: &body,
		MessageAttributes: map[string]types.MessageAttributeValue{
			"kind":  {DataType: aws.String("String"), StringValue: aws.String("email")},
			"price": {DataType: aws.String("Number.eur"), StringValue: aws.String("007.10")},
			"raw":   {DataType: aws.String("Binary"), BinaryValue: binary},
		},
	})
	check(err)
	entries := []types.SendMessageBatchRequestEntry{{Id: aws.String("late"), MessageBody: aws.String("x"), DelaySeconds: 901}}
	for n := range 9 {
		id := fmt.Sprint("e", n)
		entries = append(entries, types.SendMessageBatchRequestEntry{Id: &id, MessageBody: &id})
	}
	batch, err := client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: entries})
	check(err)
	equal(len(batch.Successful), 9)
	equal(len(batch.Failed), 1)
	equal(*batch.Failed[0].Id+" "+*batch.Failed[0].Code, "late InvalidParameterValue")
	equal(batch.Failed[0].SenderFault, true)

	got := receive(client, url, 60)
	equal(len(got), 10)
	first := got[0]
	equal(*first.Body, body)
	equal(*first.MessageId, *sent.MessageId)
	equal(*first.MD5OfMessageAttributes, *sent.MD5OfMessageAttributes)
	equal(*first.MessageAttributes["price"].StringValue, "007.10")
	equal(bytes.Equal(first.MessageAttributes["raw"].BinaryValue, binary), true)
	equal(first.Attributes["ApproximateReceiveCount"], "1")
	equal(attribute(client, url, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible), "10")

	_, err = client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &url, ReceiptHandle: first.ReceiptHandle, VisibilityTimeout: 120,
	})
	check(err)
	changed, err := client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{
		QueueUrl: &url,
		Entries: []types.ChangeMessageVisibilityBatchRequestEntry{
			{Id: aws.String("a"), ReceiptHandle: got[1].ReceiptHandle, VisibilityTimeout: 0},
			{Id: aws.String("b"), ReceiptHandle: aws.String("nonsense"), VisibilityTimeout: 0},
		},
	})
	check(err)
	equal(len(changed.Successful), 1)
	equal(*changed.Failed[0].Code, "ReceiptHandleIsInvalid")
	back := receive(client, url, 60)
	equal(len(back), 1)
	equal(back[0].Attributes["ApproximateReceiveCount"], "2")

	_, err = client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: first.ReceiptHandle})
	check(err)
	gone := []types.DeleteMessageBatchRequestEntry{{Id: aws.String("back"), ReceiptHandle: back[0].ReceiptHandle}}
	for n, message := range got[2:] {
		gone = append(gone, types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(n)), ReceiptHandle: message.ReceiptHandle})
	}
	deleted, err := client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: gone})
	check(err)
	equal(len(deleted.Successful), 9)
	equal(attribute(client, url, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible), "0")
}

func refusals(client *sqs.Client) {
	url := queue(client, "", nil)
	send := func(body string) error {
		_, err := client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body})
		return err
	}
	refused[*types.InvalidMessageContents](send("\x01"), "InvalidMessageContents")
	coded(send(strings.Repeat("x", 1<<20+1)), "InvalidParameterValue")
	batch := func(ids ...string) error {
		entries := []types.SendMessageBatchRequestEntry{}
		for _, id := range ids {
			entries = append(entries, types.SendMessageBatchRequestEntry{Id: &id, MessageBody: aws.String("x")})
		}
		_, err := client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: entries})
		return err
	}
	start := "AWS.SimpleQueueService."
	refused[*types.EmptyBatchRequest](batch(), start+"EmptyBatchRequest")
	refused[*types.BatchEntryIdsNotDistinct](batch("a", "a"), start+"BatchEntryIdsNotDistinct")
	refused[*types.InvalidBatchEntryId](batch("a b"), start+"InvalidBatchEntryId")
	refused[*types.TooManyEntriesInBatchRequest](
		batch(strings.Split("abcdefghijk", "")...), start+"TooManyEntriesInBatchRequest")
	_, err := client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: aws.String("nonsense")})
	refused[*types.ReceiptHandleIsInvalid](err, "ReceiptHandleIsInvalid")
	_, err = client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &url, MaxNumberOfMessages: 11})
	coded(err, "InvalidParameterValue")
}

func fifo(client *sqs.Client) {
	url := queue(client, ".fifo", map[string]string{"FifoQueue": "true"})
	send := func(body, group, dedup string) *sqs.SendMessageOutput {
		sent, err := client.SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: &url, MessageBody: &body, MessageGroupId: &group, MessageDeduplicationId: &dedup,
		})
		check(err)
		return sent
	}
	first := send("a1", "a", "1")
	equal(*send("again", "a", "1").MessageId, *first.MessageId)
	second := send("a2", "a", "2")
	equal(*second.SequenceNumber > *first.SequenceNumber, true)
	send("b1", "b", "3")
	_, err := client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("x")})
	coded(err, "MissingParameter")

	took := func(max int32) []types.Message {
		got, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &url, MaxNumberOfMessages: max})
		check(err)
		return got.Messages
	}
	a := took(1)
	equal(*a[0].Body, "a1")
	// The group is locked, so the next message is of another group.
	b := took(10)
	equal(len(b), 1)
	equal(*b[0].Body, "b1")
	equal(len(took(10)), 0)
	_, err = client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{QueueUrl: &url, ReceiptHandle: a[0].ReceiptHandle})
	check(err)
	a = took(10)
	equal(len(a), 2)
	equal(*a[0].Body+*a[1].Body, "a1a2")
}

func deadLetters(client *sqs.Client) {
	dead := queue(client, "", nil)
	arn := attribute(client, dead, types.QueueAttributeNameQueueArn)
	policy := fmt.Sprintf(`{"deadLetterTargetArn":"%s","maxReceiveCount":"1"}`, arn)
	url := queue(client, "", map[string]string{"RedrivePolicy": policy})
	sources, err := client.ListDeadLetterSourceQueues(ctx, &sqs.ListDeadLetterSourceQueuesInput{QueueUrl: &dead})
	check(err)
	equal(fmt.Sprint(sources.QueueUrls), fmt.Sprint([]string{url}))
	_, err = client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("poison")})
	check(err)
	got := receive(client, url, 60)
	_, err = client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{QueueUrl: &url, ReceiptHandle: got[0].ReceiptHandle})
	check(err)
	got = receive(client, dead, 60)
	equal(*got[0].Body, "poison")
	equal(got[0].Attributes["DeadLetterQueueSourceArn"], attribute(client, url, types.QueueAttributeNameQueueArn))
	_, err = client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{QueueUrl: &dead, ReceiptHandle: got[0].ReceiptHandle})
	check(err)

	_, err = client.StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{SourceArn: &arn})
	check(err)
	equal(*receive(client, url, 60)[0].Body, "poison")
	tasks, err := client.ListMessageMoveTasks(ctx, &sqs.ListMessageMoveTasksInput{SourceArn: &arn})
	check(err)
	equal(len(tasks.Results), 1)
	_, err = client.CancelMessageMoveTask(ctx, &sqs.CancelMessageMoveTaskInput{TaskHandle: aws.String("nonsense")})
	coded(err, "InvalidParameterValue")
	_, err = client.StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{SourceArn: aws.String(arn + "-other")})
	refused[*types.ResourceNotFoundException](err, "ResourceNotFoundException")
}

func main() {
	client := sqs.New(sqs.Options{
		BaseEndpoint:     aws.String(os.Getenv("MALOTE_SQS_AT")),
		Region:           "eu-west-1",
		Credentials:      credentials.NewStaticCredentialsProvider("made", "up", ""),
		RetryMaxAttempts: 1,
	})
	passed, failed := 0, 0
	run := func(called string, check func(*sqs.Client)) {
		defer func() {
			if why := recover(); why != nil {
				failed++
				fmt.Fprintf(os.Stderr, "FAILED go %s: %v\n", called, why)
				return
			}
			passed++
		}()
		check(client)
	}
	run("queues", queues)
	run("messages", messages)
	run("refusals", refusals)
	run("fifo", fifo)
	run("dead letters", deadLetters)
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}
