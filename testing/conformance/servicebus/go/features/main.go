// Command features tests the front end with the official client: queues, sessions, topics, access and administration.
//
// `features open` needs a server without credentials, `features secured` one with keys and TLS.
package main

import (
	"context"
	"os"
	"slices"

	"malote.test/servicebus/harness"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

func main() {
	kind := "open"
	if len(os.Args) > 1 {
		kind = os.Args[1]
		os.Args = slices.Delete(os.Args, 1, 2)
	}
	if kind == "secured" {
		harness.Run(slices.Concat(access, administration))
		return
	}
	harness.Run(slices.Concat(queues, sessions, topics))
}

// receiver is implemented by plain and session receivers.
type receiver interface {
	ReceiveMessages(context.Context, int, *bus.ReceiveMessagesOptions) ([]*bus.ReceivedMessage, error)
	PeekMessages(context.Context, int, *bus.PeekMessagesOptions) ([]*bus.ReceivedMessage, error)
	ReceiveDeferredMessages(context.Context, []int64, *bus.ReceiveDeferredMessagesOptions) ([]*bus.ReceivedMessage, error)
	CompleteMessage(context.Context, *bus.ReceivedMessage, *bus.CompleteMessageOptions) error
	AbandonMessage(context.Context, *bus.ReceivedMessage, *bus.AbandonMessageOptions) error
	DeferMessage(context.Context, *bus.ReceivedMessage, *bus.DeferMessageOptions) error
	DeadLetterMessage(context.Context, *bus.ReceivedMessage, *bus.DeadLetterOptions) error
	Close(context.Context) error
}

// receive waits until this number of messages has arrived.
func receive(from receiver, count int) []*bus.ReceivedMessage {
	ctx, done := harness.Soon()
	defer done()
	var got []*bus.ReceivedMessage
	for len(got) < count {
		// All in one call: the client returns messages that arrive between two calls, so that a later one could overtake
		// them.
		options := &bus.ReceiveMessagesOptions{TimeAfterFirstMessage: harness.Patience}
		more, err := from.ReceiveMessages(ctx, count-len(got), options)
		harness.That(err == nil, "%d of %d messages arrived: %v", len(got), count, err)
		got = append(got, more...)
	}
	return got
}

func one(from receiver) *bus.ReceivedMessage { return receive(from, 1)[0] }

// nothing checks that no message arrives.
func nothing(from receiver) {
	ctx, done := context.WithTimeout(context.Background(), harness.Silence)
	defer done()
	got, err := from.ReceiveMessages(ctx, 1, nil)
	harness.That(len(got) == 0 && ctx.Err() != nil, "expected no message, got %v, %v", bodies(got), err)
}

// drain receives and completes all messages.
func drain(from receiver) []*bus.ReceivedMessage {
	var all []*bus.ReceivedMessage
	for {
		ctx, done := context.WithTimeout(context.Background(), harness.Silence)
		got, err := from.ReceiveMessages(ctx, 50, nil)
		over := ctx.Err() != nil
		done()
		for _, message := range got {
			complete(from, message)
		}
		all = append(all, got...)
		if len(got) == 0 {
			harness.That(over, "draining: %v", err)
			return all
		}
	}
}

func complete(from receiver, messages ...*bus.ReceivedMessage) {
	ctx, done := harness.Soon()
	defer done()
	for _, message := range messages {
		harness.Check(from.CompleteMessage(ctx, message, nil))
	}
}

func bodies(messages []*bus.ReceivedMessage) []string {
	texts := make([]string, 0, len(messages))
	for _, message := range messages {
		texts = append(texts, string(message.Body))
	}
	return texts
}

// send sends the messages one by one.
func send(client *bus.Client, to string, messages ...*bus.Message) {
	ctx, done := harness.Soon()
	defer done()
	sender := harness.Must(client.NewSender(to, nil))
	defer harness.Close(sender)
	for _, message := range messages {
		harness.Check(sender.SendMessage(ctx, message, nil))
	}
}

func text(body string) *bus.Message { return &bus.Message{Body: []byte(body)} }

// of makes a message with a session.
func of(session, body string) *bus.Message {
	return &bus.Message{Body: []byte(body), SessionID: &session}
}

func receiverOf(client *bus.Client, queue string) *bus.Receiver {
	return harness.Must(client.NewReceiverForQueue(queue, nil))
}

func takerOf(client *bus.Client, queue string) *bus.Receiver {
	return harness.Must(client.NewReceiverForQueue(queue, &bus.ReceiverOptions{ReceiveMode: bus.ReceiveModeReceiveAndDelete}))
}

func graveOf(client *bus.Client, queue string) *bus.Receiver {
	return harness.Must(client.NewReceiverForQueue(queue, &bus.ReceiverOptions{SubQueue: bus.SubQueueDeadLetter}))
}
