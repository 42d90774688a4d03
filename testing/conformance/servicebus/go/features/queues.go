package main

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	. "malote.test/servicebus/harness"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

var queues = []Case{
	{Name: "send and receive a message", Run: aMessageGoesRound},
	{Name: "bodies of every kind are preserved", Run: bodiesOfEveryKindSurvive},
	{Name: "batches keep their order", Run: batchesAreInOrder},
	{Name: "large messages use several frames", Run: largeMessagesTakeManyFrames},
	{Name: "too large messages are refused", Run: tooLargeIsRefused},
	{Name: "receive and delete", Run: receiveAndDeleteTakes},
	{Name: "abandoned messages are redelivered, then dead-lettered", Run: abandonedComesBackCounted},
	{Name: "a dead letter has a reason", Run: aDeadLetterTellsWhy},
	{Name: "deferred messages are received by sequence number", Run: deferredIsFoundByItsNumber},
	{Name: "locks are renewed and expire", Run: locksAreRenewedAndLost},
	{Name: "a lock outlives its receiver", Run: aLockOutlivesItsReceiver},
	{Name: "peek changes nothing", Run: peekLooksWithoutTouching},
	{Name: "scheduled messages are delivered when due", Run: scheduledComesWhenItIsDue},
	{Name: "expired messages are dead-lettered", Run: expiredIsDead},
	{Name: "duplicates are accepted and dropped", Run: duplicatesAreDropped},
	{Name: "deliveries that were not received are not counted", Run: whatNobodyTookIsNotCounted},
	{Name: "a message wakes a waiting receiver", Run: aMessageComesToWhoWaits},
	{Name: "a cancelled receive loses no message", Run: aReceiverThatGivesUpTakesNothing},
	{Name: "unknown entities are not found", Run: unknownEntitiesAreNotFound},
	{Name: "names are case-insensitive", Run: namesAreFoundInAnyCase},
	{Name: "many links on one connection", Run: manyLinksOnOneConnection},
	{Name: "messages of other protocols are received", Run: messagesOfOtherProtocols},
}

func aMessageGoesRound() {
	ctx, done := Soon()
	defer done()
	queue := Queue(nil)
	client := Client()
	defer Close(client)
	when := time.UnixMilli(time.Now().UnixMilli()).UTC()
	properties := map[string]any{"n": int64(1), "t": "x", "b": true, "f": 1.5, "u8": uint8(7), "when": when}
	send(client, queue, &bus.Message{
		Body: []byte("hello"), Subject: To("label"), MessageID: To("m1"), CorrelationID: To("c1"),
		ContentType: To("text/plain"), To: To("there"), ReplyTo: To("back"), ReplyToSessionID: To("rs"),
		SessionID: To("s"), PartitionKey: To("s"), TimeToLive: To(100 * time.Second), ApplicationProperties: properties,
	})
	receiver := receiverOf(client, queue)
	got := one(receiver)
	Same("body", string(got.Body), "hello")
	Same("properties", fmt.Sprintf("%T %[1]v", got.ApplicationProperties), fmt.Sprintf("%T %[1]v", properties))
	Same("id", got.MessageID, "m1")
	for name, pair := range map[string][2]any{
		"subject": {got.Subject, "label"}, "correlation": {got.CorrelationID, "c1"}, "type": {got.ContentType, "text/plain"},
		"to": {got.To, "there"}, "reply": {got.ReplyTo, "back"}, "reply session": {got.ReplyToSessionID, "rs"},
		"session": {got.SessionID, "s"}, "partition": {got.PartitionKey, "s"},
	} {
		is, _ := pair[0].(*string)
		That(is != nil, "%s is missing", name)
		Same(name, *is, pair[1].(string))
	}
	Same("time to live", *got.TimeToLive, 100*time.Second)
	Same("count", got.DeliveryCount, 1)
	Same("number", *got.SequenceNumber, 1)
	That(got.EnqueuedSequenceNumber == nil, "a message that was not forwarded has an enqueued sequence number")
	Same("state", got.State, bus.MessageStateActive)
	That(got.LockToken != [16]byte{}, "the lock token is missing")
	That(got.LockedUntil.After(time.Now()) && got.EnqueuedTime != nil, "the times are missing")
	Same("expiry", got.ExpiresAt.Sub(*got.EnqueuedTime), 100*time.Second)
	Check(receiver.CompleteMessage(ctx, got, nil))
	nothing(receiver)
}

func bodiesOfEveryKindSurvive() {
	ctx, done := Soon()
	defer done()
	queue := Queue(nil)
	client := Client()
	defer Close(client)
	sender := Must(client.NewSender(queue, nil))
	kinds := []bus.AMQPAnnotatedMessageBody{
		{Data: [][]byte{[]byte("one"), []byte("two")}},
		{Value: map[string]any{"k": []any{int64(1), "v"}}},
		{Sequence: [][]any{{int64(1), int64(2)}, {"x"}}},
		{Data: [][]byte{{}}},
	}
	for _, body := range kinds {
		footer := map[any]any{"f": "oot"}
		Check(sender.SendAMQPAnnotatedMessage(ctx, &bus.AMQPAnnotatedMessage{Body: body, Footer: footer}, nil))
	}
	receiver := receiverOf(client, queue)
	for i, got := range receive(receiver, len(kinds)) {
		body := got.RawAMQPMessage.Body
		Same(fmt.Sprint("data of ", i), fmt.Sprintf("%q", body.Data), fmt.Sprintf("%q", kinds[i].Data))
		Same(fmt.Sprint("value of ", i), body.Value, kinds[i].Value)
		Same(fmt.Sprint("sequence of ", i), body.Sequence, kinds[i].Sequence)
		Same(fmt.Sprint("footer of ", i), got.RawAMQPMessage.Footer, map[any]any{"f": "oot"})
		That(got.MessageID != "", "a message without an id got none")
		complete(receiver, got)
	}
}

func batchesAreInOrder() {
	ctx, done := Soon()
	defer done()
	queue := Queue(nil)
	client := Client()
	defer Close(client)
	sender := Must(client.NewSender(queue, nil))
	var wanted []string
	for from := range 3 {
		batch := Must(sender.NewMessageBatch(ctx, nil))
		for i := range 20 {
			body := fmt.Sprint(from*20 + i)
			wanted = append(wanted, body)
			Check(batch.AddMessage(text(body), nil))
		}
		Check(sender.SendMessageBatch(ctx, batch, nil))
	}
	receiver := receiverOf(client, queue)
	got := receive(receiver, 60)
	Same("order", bodies(got), wanted)
	complete(receiver, got...)
	nothing(receiver)

	full := Must(sender.NewMessageBatch(ctx, &bus.MessageBatchOptions{MaxBytes: 1000}))
	var err error
	for err == nil {
		err = full.AddMessage(text("some text that fills it"), nil)
	}
	That(errors.Is(err, bus.ErrMessageTooLarge), "adding to a full batch: %v", err)
	Check(sender.SendMessageBatch(ctx, full, nil))
	Same("messages of the batch", len(receive(receiver, int(full.NumMessages()))), int(full.NumMessages()))
}

func largeMessagesTakeManyFrames() {
	queue := Queue(map[string]any{"message_bytes_max": 4 << 20})
	client := Client()
	defer Close(client)
	payload := bytes.Repeat([]byte{0, 1, 2, 3, 254, 255}, 2<<20/6)
	send(client, queue, &bus.Message{Body: payload}, text("small"))
	receiver := receiverOf(client, queue)
	got := receive(receiver, 2)
	That(bytes.Equal(got[0].Body, payload), "%d bytes were returned as %d", len(payload), len(got[0].Body))
	Same("the next", string(got[1].Body), "small")
	complete(receiver, got...)
}

func tooLargeIsRefused() {
	ctx, done := Soon()
	defer done()
	queue := Queue(map[string]any{"message_bytes_max": 100_000})
	client := Client()
	defer Close(client)
	sender := Must(client.NewSender(queue, nil))
	err := sender.SendMessage(ctx, &bus.Message{Body: make([]byte, 200_000)}, nil)
	That(errors.Is(err, bus.ErrMessageTooLarge), "too large: %v", err)
	Check(sender.SendMessage(ctx, text("x"), nil))
}

func receiveAndDeleteTakes() {
	ctx, done := Soon()
	defer done()
	queue := Queue(nil)
	client := Client()
	defer Close(client)
	send(client, queue, text("0"), text("1"), text("2"))
	taker := takerOf(client, queue)
	got := receive(taker, 3)
	Same("order", bodies(got), []string{"0", "1", "2"})
	That(taker.CompleteMessage(ctx, got[0], nil) != nil, "a deleted message was completed")
	Close(taker)
	nothing(receiverOf(client, queue))
}

func abandonedComesBackCounted() {
	ctx, done := Soon()
	defer done()
	queue := Queue(map[string]any{"failed_max": 3})
	client := Client()
	defer Close(client)
	message := text("x")
	message.ApplicationProperties = map[string]any{"own": int64(1), "changed": "no"}
	send(client, queue, message)
	receiver := receiverOf(client, queue)
	for count := range uint32(3) {
		got := one(receiver)
		Same("count", got.DeliveryCount, count+1) // this client counts from one
		changed := map[string]any{"changed": fmt.Sprint("by ", count)}
		Check(receiver.AbandonMessage(ctx, got, &bus.AbandonMessageOptions{PropertiesToModify: changed}))
	}
	nothing(receiver)
	dead := graveOf(client, queue)
	got := one(dead)
	Same("reason", *got.DeadLetterReason, "MaxDeliveryCountExceeded")
	Same("own property", got.ApplicationProperties["own"], any(int64(1)))
	Same("changed property", got.ApplicationProperties["changed"], any("by 2"))
	complete(dead, got)
}

func aDeadLetterTellsWhy() {
	ctx, done := Soon()
	defer done()
	queue := Queue(nil)
	client := Client()
	defer Close(client)
	send(client, queue, &bus.Message{Body: []byte("x"), MessageID: To("m")})
	receiver := receiverOf(client, queue)
	options := &bus.DeadLetterOptions{
		Reason: To("bad"), ErrorDescription: To("very bad"), PropertiesToModify: map[string]any{"more": "changed"},
	}
	Check(receiver.DeadLetterMessage(ctx, one(receiver), options))
	dead := graveOf(client, queue)
	got := one(dead)
	Same("why", []string{*got.DeadLetterReason, *got.DeadLetterErrorDescription, got.MessageID}, []string{"bad", "very bad", "m"})
	Same("property", got.ApplicationProperties["more"], any("changed"))
	for range 12 { // dead letters have no limit
		Check(dead.AbandonMessage(ctx, got, nil))
		got = one(dead)
	}
	complete(dead, got)
}

func deferredIsFoundByItsNumber() {
	ctx, done := Soon()
	defer done()
	queue := Queue(nil)
	client := Client()
	defer Close(client)
	send(client, queue, text("0"), text("1"), text("2"), text("3"))
	receiver := receiverOf(client, queue)
	var numbers []int64
	for _, got := range receive(receiver, 4) {
		Check(receiver.DeferMessage(ctx, got, &bus.DeferMessageOptions{PropertiesToModify: map[string]any{"put": "by"}}))
		numbers = append(numbers, *got.SequenceNumber)
	}
	nothing(receiver)
	for _, seen := range Must(receiver.PeekMessages(ctx, 10, nil)) {
		Same("state", seen.State, bus.MessageStateDeferred)
		Same("property", seen.ApplicationProperties["put"], any("by"))
	}
	first := Must(receiver.ReceiveDeferredMessages(ctx, numbers[:2], nil))
	Same("found", bodies(first), []string{"0", "1"})
	Check(receiver.RenewMessageLock(ctx, first[0], nil))
	complete(receiver, first[0])
	Check(receiver.AbandonMessage(ctx, first[1], nil))
	again := Must(receiver.ReceiveDeferredMessages(ctx, numbers[1:2], nil))
	Same("count", again[0].DeliveryCount, 2)
	Check(receiver.DeadLetterMessage(ctx, again[0], &bus.DeadLetterOptions{Reason: To("r")}))
	_, err := receiver.ReceiveDeferredMessages(ctx, numbers[:1], nil)
	Refused("a completed deferred message", err, bus.CodeNotFound)
	taken := Must(takerOf(client, queue).ReceiveDeferredMessages(ctx, numbers[2:3], nil))
	Same("taken", bodies(taken), []string{"2"})
	_, err = receiver.ReceiveDeferredMessages(ctx, numbers[2:3], nil)
	Refused("a deleted message", err, bus.CodeNotFound)
}

func locksAreRenewedAndLost() {
	ctx, done := Soon()
	defer done()
	queue := Queue(map[string]any{"lock_ms": 6_000})
	client := Client()
	defer Close(client)
	send(client, queue, text("x"))
	receiver := receiverOf(client, queue)
	got := one(receiver)
	before := *got.LockedUntil
	time.Sleep(50 * time.Millisecond)
	Check(receiver.RenewMessageLock(ctx, got, nil))
	That(got.LockedUntil.After(before), "renewed until %v, before %v", got.LockedUntil, before)
	again := one(receiver) // arrives when the lock has expired
	Same("count", again.DeliveryCount, 2)
	Refused("renewing", receiver.RenewMessageLock(ctx, got, nil), bus.CodeLockLost)
	Refused("completing", receiver.CompleteMessage(ctx, got, nil), bus.CodeLockLost)
	complete(receiver, again)
}

func aLockOutlivesItsReceiver() {
	ctx, done := Soon()
	defer done()
	queue := Queue(nil)
	client := Client()
	send(client, queue, text("x"))
	got := one(receiverOf(client, queue))
	Close(client)
	other := Client()
	defer Close(other)
	receiver := receiverOf(other, queue)
	nothing(receiver)
	// Over `$management`, because the link is closed.
	Check(receiver.CompleteMessage(ctx, got, nil))
	Same("left", len(Must(receiver.PeekMessages(ctx, 1, nil))), 0)
}

func peekLooksWithoutTouching() {
	ctx, done := Soon()
	defer done()
	queue := Queue(nil)
	client := Client()
	defer Close(client)
	receiver := receiverOf(client, queue)
	Same("nothing", len(Must(receiver.PeekMessages(ctx, 1, nil))), 0)
	sender := Must(client.NewSender(queue, nil))
	batch := Must(sender.NewMessageBatch(ctx, nil))
	for i := range 120 {
		Check(batch.AddMessage(text(fmt.Sprint(i)), nil))
	}
	Check(sender.SendMessageBatch(ctx, batch, nil))
	var seen []*bus.ReceivedMessage
	for len(seen) < 120 { // the receiver continues where it stopped
		more := Must(receiver.PeekMessages(ctx, 50, nil))
		That(len(more) > 0, "%d of 120 messages were peeked", len(seen))
		seen = append(seen, more...)
	}
	for i, message := range seen {
		Same("body", string(message.Body), fmt.Sprint(i))
		That(message.LockedUntil == nil, "a peeked message is locked")
	}
	got := one(receiver)
	Same("count", got.DeliveryCount, 1)
	from := bus.PeekMessagesOptions{FromSequenceNumber: To(int64(1))}
	Same("a locked message", string(Must(receiver.PeekMessages(ctx, 1, &from))[0].Body), "0")
	complete(receiver, got)
	Same("after a completed message", string(Must(receiver.PeekMessages(ctx, 1, &from))[0].Body), "1")
}

func scheduledComesWhenItIsDue() {
	ctx, done := Soon()
	defer done()
	queue := Queue(nil)
	client := Client()
	defer Close(client)
	sender, receiver := Must(client.NewSender(queue, nil)), receiverOf(client, queue)
	soon, later := time.Now().Add(2*time.Second), time.Now().Add(time.Hour)
	first := Must(sender.ScheduleMessages(ctx, []*bus.Message{text("soon")}, soon, nil))
	numbers := Must(sender.ScheduleMessages(ctx, []*bus.Message{text("a"), text("b")}, later, nil))
	That(len(first) == 1 && len(numbers) == 2, "numbers are %v and %v", first, numbers)
	seen := Must(receiver.PeekMessages(ctx, 10, nil))
	Same("seen", bodies(seen), []string{"soon", "a", "b"})
	for _, message := range seen {
		Same("state", message.State, bus.MessageStateScheduled)
		That(message.ScheduledEnqueueTime != nil, "the scheduled time is missing")
	}
	Check(sender.CancelScheduledMessages(ctx, numbers, nil))
	That(sender.CancelScheduledMessages(ctx, numbers, nil) != nil, "cancelled messages were cancelled again")
	got := one(receiver)
	Same("body", string(got.Body), "soon")
	That(!got.EnqueuedTime.Before(soon.Truncate(time.Second)), "enqueued at %v, due at %v", got.EnqueuedTime, soon)
	complete(receiver, got)
	Check(sender.SendMessage(ctx, &bus.Message{Body: []byte("by annotation"), ScheduledEnqueueTime: &later}, nil))
	nothing(receiver)
}

func expiredIsDead() {
	queue := Queue(map[string]any{"on_expiry": "dead_letter"})
	client := Client()
	defer Close(client)
	send(client, queue, &bus.Message{Body: []byte("x"), TimeToLive: To(200 * time.Millisecond)})
	got := one(graveOf(client, queue)) // arrives when the message has expired
	Same("reason", *got.DeadLetterReason, "TTLExpiredException")
}

func duplicatesAreDropped() {
	queue := Queue(map[string]any{"dedup": map[string]any{"window_ms": 60_000}})
	client := Client()
	defer Close(client)
	for range 3 {
		send(client, queue, &bus.Message{Body: []byte("x"), MessageID: To("same")})
	}
	receiver := receiverOf(client, queue)
	complete(receiver, one(receiver))
	nothing(receiver)
}

func whatNobodyTookIsNotCounted() {
	ctx, done := Soon()
	defer done()
	queue := Queue(nil)
	client := Client()
	defer Close(client)
	receiver := receiverOf(client, queue)
	nothing(receiver) // leaves credit at the server
	var wanted []string
	for i := range 10 {
		wanted = append(wanted, fmt.Sprint(i))
		send(client, queue, text(fmt.Sprint(i)))
	}
	// The first message goes to the link that no longer waits, and is returned.
	Close(receiver)
	receiver = receiverOf(client, queue)
	seen := map[string]bool{}
	for _, got := range receive(receiver, 10) {
		Same("count", got.DeliveryCount, 1)
		seen[string(got.Body)] = true
		Check(receiver.CompleteMessage(ctx, got, nil))
	}
	Same("seen", len(seen), len(wanted))
}

func aMessageComesToWhoWaits() {
	queue := Queue(nil)
	client := Client()
	defer Close(client)
	receiver := receiverOf(client, queue)
	came := make(chan string)
	go func() { came <- string(one(receiver).Body) }()
	time.Sleep(300 * time.Millisecond)
	send(client, queue, text("now"))
	select {
	case body := <-came:
		Same("body", body, "now")
	case <-time.After(Patience):
		panic("nothing came")
	}
}

func aReceiverThatGivesUpTakesNothing() {
	queue := Queue(nil)
	client := Client()
	defer Close(client)
	for range 5 {
		receiver := receiverOf(client, queue)
		nothing(receiver)
		Close(receiver)
	}
	send(client, queue, text("x"))
	receiver := receiverOf(client, queue)
	got := one(receiver)
	Same("count", got.DeliveryCount, 1)
	complete(receiver, got)
}

func unknownEntitiesAreNotFound() {
	ctx, done := Soon()
	defer done()
	client := Client()
	defer Close(client)
	Refused("sending", Must(client.NewSender("nobody", nil)).SendMessage(ctx, text("x"), nil), bus.CodeNotFound)
	receiver := receiverOf(client, "nobody")
	_, err := receiver.ReceiveMessages(ctx, 1, nil)
	Refused("receiving", err, bus.CodeNotFound)
	_, err = receiver.PeekMessages(ctx, 1, nil)
	Refused("peeking", err, bus.CodeNotFound)
	_, err = client.AcceptSessionForQueue(ctx, "nobody", "s", nil)
	Refused("accepting", err, bus.CodeNotFound)
	other := Must(client.NewReceiverForSubscription("nobody", "sub", nil))
	_, err = other.ReceiveMessages(ctx, 1, nil)
	Refused("a subscription", err, bus.CodeNotFound)
}

func namesAreFoundInAnyCase() {
	client := Client()
	defer Close(client)
	queue := Queue(nil)
	send(client, string(bytes.ToUpper([]byte(queue))), text("x"))
	receiver := receiverOf(client, queue)
	complete(receiver, one(receiver))
}

func manyLinksOnOneConnection() {
	ctx, done := Soon()
	defer done()
	client := Client()
	defer Close(client)
	for range 25 {
		queue := Queue(nil)
		sender, receiver := Must(client.NewSender(queue, nil)), receiverOf(client, queue)
		Check(sender.SendMessage(ctx, text("x"), nil))
		Same("seen", len(Must(receiver.PeekMessages(ctx, 1, nil))), 1)
		complete(receiver, one(receiver))
	}
}

func messagesOfOtherProtocols() {
	queue := Queue(nil)
	message := map[string]any{"body": "from http", "subject": "s", "properties": map[string]any{"a": "b"}}
	API("POST", "/queues/"+queue+"/messages/batch", map[string]any{"messages": []any{message}})
	client := Client()
	defer Close(client)
	receiver := receiverOf(client, queue)
	got := one(receiver)
	Same("body", string(got.Body), "from http")
	Same("subject", *got.Subject, "s")
	Same("property", got.ApplicationProperties["a"], any("b"))
	complete(receiver, got)
}
