package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	. "malote.test/servicebus/harness"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

var sessions = []Case{
	{Name: "accept a session by name", Run: aNamedSessionIsInOrder},
	{Name: "the next session is the one that has waited longest", Run: theNextSessionWaitsLongest},
	{Name: "accepting without a session times out", Run: noSessionIsATimeOut},
	{Name: "a ready session wakes a waiting accept", Run: aReadySessionIsGivenToWhoWaits},
	{Name: "a cancelled accept holds no session", Run: anAcceptThatIsGivenUpTakesNothing},
	{Name: "a session has one holder", Run: oneHolderAtATime},
	{Name: "session state is stored and cleared", Run: stateIsKeptAndCleared},
	{Name: "a session lock is renewed and expires", Run: aSessionLockIsRenewedAndLost},
	{Name: "closing returns messages in order, without counting a delivery", Run: closingGivesBackInOrder},
	{Name: "a lost connection frees its sessions", Run: aLostConnectionFreesItsSessions},
	{Name: "receive and delete in a session", Run: receiveAndDeleteInASession},
	{Name: "deferred messages in a session", Run: deferredInASession},
	{Name: "peek in a session", Run: sessionsArePeeked},
	{Name: "scheduled messages in a session", Run: sessionsAreScheduled},
	{Name: "wrong kinds of receivers are refused", Run: wrongKindsAreRefused},
	{Name: "sessions are listed", Run: sessionsAreListed},
	{Name: "many sessions on one connection", Run: manySessionsOnOneConnection},
}

func accept(client *bus.Client, queue, session string) *bus.SessionReceiver {
	ctx, done := Soon()
	defer done()
	return Must(client.AcceptSessionForQueue(ctx, queue, session, nil))
}

func acceptNext(client *bus.Client, queue string) *bus.SessionReceiver {
	ctx, done := Soon()
	defer done()
	return Must(client.AcceptNextSessionForQueue(ctx, queue, nil))
}

func aNamedSessionIsInOrder() {
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	var wanted []string
	for i := range 10 {
		wanted = append(wanted, fmt.Sprint(i))
		send(client, queue, of("a", fmt.Sprint(i)), of("b", "other"))
	}
	receiver := accept(client, queue, "a")
	Same("session", receiver.SessionID(), "a")
	That(receiver.LockedUntil().After(time.Now()), "the session is not locked")
	got := receive(receiver, 10)
	Same("order", bodies(got), wanted)
	for _, message := range got {
		Same("session", *message.SessionID, "a")
	}
	complete(receiver, got...)
	nothing(receiver)
}

func theNextSessionWaitsLongest() {
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	send(client, queue, of("x", "x"), of("y", "y"), of("z", "z"))
	var seen []string
	for range 3 {
		receiver := acceptNext(client, queue)
		seen = append(seen, receiver.SessionID())
		complete(receiver, one(receiver))
		Close(receiver)
	}
	Same("order", seen, []string{"x", "y", "z"})
}

func noSessionIsATimeOut() {
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	ctx, done := context.WithTimeout(context.Background(), 2*time.Second)
	defer done()
	_, err := client.AcceptNextSessionForQueue(ctx, queue, nil)
	That(err != nil, "a missing session was accepted")
}

func aReadySessionIsGivenToWhoWaits() {
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	found := make(chan string)
	go func() {
		receiver := acceptNext(client, queue)
		found <- receiver.SessionID()
	}()
	time.Sleep(300 * time.Millisecond)
	// On the same connection: a waiting link does not block another.
	send(client, queue, of("late", "x"))
	select {
	case session := <-found:
		Same("session", session, "late")
	case <-time.After(Patience):
		panic("the session was not accepted")
	}
}

func anAcceptThatIsGivenUpTakesNothing() {
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	for range 3 {
		ctx, done := context.WithTimeout(context.Background(), 300*time.Millisecond)
		_, err := client.AcceptNextSessionForQueue(ctx, queue, nil)
		done()
		That(err != nil, "a missing session was accepted")
	}
	send(client, queue, of("s", "x"))
	receiver := acceptNext(client, queue)
	got := one(receiver)
	Same("count", got.DeliveryCount, 1)
	complete(receiver, got)
}

func oneHolderAtATime() {
	ctx, done := Soon()
	defer done()
	queue := Sessions(nil)
	client, other := Client(), Client()
	defer Close(client)
	defer Close(other)
	send(client, queue, of("a", "x"))
	receiver := accept(client, queue, "a")
	for _, it := range []*bus.Client{client, other} {
		_, err := it.AcceptSessionForQueue(ctx, queue, "a", nil)
		RefusedAs("a session that is held", err, "session-cannot-be-locked")
	}
	Close(receiver)
	Same("body", string(one(accept(other, queue, "a")).Body), "x")
}

func stateIsKeptAndCleared() {
	ctx, done := Soon()
	defer done()
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	receiver := accept(client, queue, "s")
	Same("no state", len(Must(receiver.GetSessionState(ctx, nil))), 0)
	Check(receiver.SetSessionState(ctx, []byte("\x00state"), nil))
	Close(receiver)
	receiver = accept(client, queue, "s")
	Same("state", string(Must(receiver.GetSessionState(ctx, nil))), "\x00state")
	Check(receiver.SetSessionState(ctx, nil, nil))
	Same("cleared", len(Must(receiver.GetSessionState(ctx, nil))), 0)
}

func aSessionLockIsRenewedAndLost() {
	ctx, done := Soon()
	defer done()
	queue := Sessions(map[string]any{"lock_ms": 6_000})
	client := Client()
	defer Close(client)
	send(client, queue, of("s", "x"))
	receiver := accept(client, queue, "s")
	got := one(receiver)
	before := receiver.LockedUntil()
	time.Sleep(50 * time.Millisecond)
	Check(receiver.RenewSessionLock(ctx, nil))
	That(receiver.LockedUntil().After(before), "renewed until %v, before %v", receiver.LockedUntil(), before)
	other := Client()
	defer Close(other)
	// A waiting accept gets the session when the lock expires, and keeps it.
	next := acceptNext(other, queue)
	Same("session", next.SessionID(), "s")
	keeping, kept := context.WithCancel(context.Background())
	defer kept()
	go func() {
		for keeping.Err() == nil {
			_ = next.RenewSessionLock(keeping, nil)
			time.Sleep(200 * time.Millisecond)
		}
	}()
	again := one(next)
	Same("count", again.DeliveryCount, 2)
	// This client tries to accept a lost session again, which fails.
	const held = "session-cannot-be-locked"
	That(receiver.CompleteMessage(ctx, got, nil) != nil, "a message was completed without the lock")
	RefusedAs("renewing", receiver.RenewSessionLock(ctx, nil), held)
	_, err := receiver.GetSessionState(ctx, nil)
	RefusedAs("reading the state", err, held)
	_, err = receiver.ReceiveMessages(ctx, 1, nil)
	RefusedAs("receiving", err, held)
	complete(next, again)
}

func closingGivesBackInOrder() {
	ctx, done := Soon()
	defer done()
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	send(client, queue, of("s", "0"), of("s", "1"), of("s", "2"))
	receiver := accept(client, queue, "s")
	receive(receiver, 3)
	Close(receiver)
	receiver = accept(client, queue, "s")
	got := receive(receiver, 3)
	Same("order", bodies(got), []string{"0", "1", "2"})
	for _, message := range got {
		Same("count", message.DeliveryCount, 1)
	}
	Check(receiver.AbandonMessage(ctx, got[0], nil))
	again := one(receiver)
	Same("abandoned", string(again.Body), "0")
	Same("count", again.DeliveryCount, 2)
	complete(receiver, again, got[1], got[2])
	nothing(receiver)
}

func aLostConnectionFreesItsSessions() {
	queue := Sessions(nil)
	client, other := Client(), Client()
	defer Close(other)
	send(client, queue, of("s", "x"))
	one(accept(client, queue, "s"))
	Close(client)
	receiver := acceptNext(other, queue)
	got := one(receiver)
	Same("session", receiver.SessionID(), "s")
	complete(receiver, got)
}

func receiveAndDeleteInASession() {
	ctx, done := Soon()
	defer done()
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	send(client, queue, of("s", "0"), of("s", "1"))
	options := &bus.SessionReceiverOptions{ReceiveMode: bus.ReceiveModeReceiveAndDelete}
	taker := Must(client.AcceptSessionForQueue(ctx, queue, "s", options))
	Same("order", bodies(receive(taker, 2)), []string{"0", "1"})
	Close(taker)
	nothing(accept(client, queue, "s"))
}

func deferredInASession() {
	ctx, done := Soon()
	defer done()
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	send(client, queue, of("s", "0"), of("s", "1"))
	receiver := accept(client, queue, "s")
	got := receive(receiver, 2)
	Check(receiver.DeferMessage(ctx, got[0], nil))
	complete(receiver, got[1])
	found := Must(receiver.ReceiveDeferredMessages(ctx, []int64{*got[0].SequenceNumber}, nil))
	Same("found", bodies(found), []string{"0"})
	complete(receiver, found...)
	_, err := receiver.ReceiveDeferredMessages(ctx, []int64{*got[0].SequenceNumber}, nil)
	Refused("a completed message", err, bus.CodeNotFound)
}

func sessionsArePeeked() {
	ctx, done := Soon()
	defer done()
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	send(client, queue, of("a", "a0"), of("b", "b0"), of("a", "a1"))
	Same("messages of one session", bodies(Must(accept(client, queue, "a").PeekMessages(ctx, 10, nil))), []string{"a0", "a1"})
}

func sessionsAreScheduled() {
	ctx, done := Soon()
	defer done()
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	sender := Must(client.NewSender(queue, nil))
	Must(sender.ScheduleMessages(ctx, []*bus.Message{of("s", "soon")}, time.Now().Add(time.Second), nil))
	receiver := acceptNext(client, queue) // arrives when the message is due
	Same("session", receiver.SessionID(), "s")
	complete(receiver, one(receiver))
}

func wrongKindsAreRefused() {
	ctx, done := Soon()
	defer done()
	plain, with := Queue(nil), Sessions(nil)
	client := Client()
	defer Close(client)
	_, err := client.AcceptSessionForQueue(ctx, plain, "a", nil)
	RefusedAs("a session of a queue without sessions", err, "amqp:not-allowed")
	_, err = receiverOf(client, with).ReceiveMessages(ctx, 1, nil)
	RefusedAs("a plain receiver of a queue with sessions", err, "amqp:not-allowed")
	sender := Must(client.NewSender(with, nil))
	RefusedAs("a message without a session", sender.SendMessage(ctx, text("x"), nil), "SessionId was not set")
	Check(sender.SendMessage(ctx, of("s", "x"), nil))
	Same("body", string(one(accept(client, with, "s")).Body), "x")
}

func sessionsAreListed() {
	ctx, done := Soon()
	defer done()
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	sender := Must(client.NewSender(queue, nil))
	var wanted []string
	for i := range 120 {
		wanted = append(wanted, fmt.Sprintf("listed-%03d", i))
		Check(sender.SendMessage(ctx, of(wanted[i], "x"), nil))
	}
	receiver := accept(client, queue, "only state")
	Check(receiver.SetSessionState(ctx, []byte("s"), nil))
	Close(receiver)
	wanted = append(wanted, "only state")
	var found []string
	pages := client.NewListSessionsForQueuePager(queue, nil)
	for pages.More() {
		found = append(found, Must(pages.NextPage(ctx)).Sessions...)
	}
	slices.Sort(found)
	Same("sessions", found, wanted)
}

func manySessionsOnOneConnection() {
	const count, each = 40, 5
	queue := Sessions(nil)
	client := Client()
	defer Close(client)
	ctx, done := Soon()
	defer done()
	sender := Must(client.NewSender(queue, nil))
	for i := range each {
		for n := range count {
			Check(sender.SendMessage(ctx, of(fmt.Sprint("s", n), fmt.Sprint(i)), nil))
		}
	}
	var workers sync.WaitGroup
	seen, lock := map[string][]string{}, sync.Mutex{}
	for range count {
		workers.Go(func() {
			receiver := acceptNext(client, queue)
			got := receive(receiver, each)
			lock.Lock()
			seen[receiver.SessionID()] = bodies(got)
			lock.Unlock()
			complete(receiver, got...)
		})
	}
	workers.Wait()
	Same("sessions", len(seen), count)
	for session, order := range seen {
		Same("order of "+session, order, []string{"0", "1", "2", "3", "4"})
	}
}
