package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"time"

	. "malote.test/servicebus/harness"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// receiver is implemented by plain and session receivers.
type receiver interface {
	ReceiveMessages(context.Context, int, *bus.ReceiveMessagesOptions) ([]*bus.ReceivedMessage, error)
	CompleteMessage(context.Context, *bus.ReceivedMessage, *bus.CompleteMessageOptions) error
	Close(context.Context) error
}

// receive uses locks that outlive the connection and the server.
func (w *world) receive(n uint64) {
	chance := rand.New(rand.NewPCG(n, 0x7ece))
	it := client()
	for w.done.Err() == nil {
		holder, asked := w.holders.Add(1), time.Now().UnixMilli()
		from := Must(it.NewReceiverForQueue(plain, nil))
		for range 10 {
			if !w.once(from, chance, event{Holder: holder, Asked: asked}) {
				break
			}
		}
		w.close(from)
	}
}

// work holds sessions, which end with the connection.
func (w *world) work(n uint64) {
	chance := rand.New(rand.NewPCG(n, 0xc0de))
	it := client()
	for w.done.Err() == nil {
		holder, asked := w.holders.Add(1), time.Now().UnixMilli()
		ctx, done := w.within(time.Second)
		from, err := it.AcceptNextSessionForQueue(ctx, ordered, nil)
		done()
		if err != nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		for range 1 + chance.IntN(12) {
			if !w.once(from, chance, event{Holder: holder, Asked: asked, Bound: true}) {
				break
			}
		}
		w.tell(event{What: "released", Holder: holder})
		if chance.IntN(10) == 0 {
			// The connection is closed with all its links.
			ctx, done := context.WithTimeout(context.Background(), 5*time.Second)
			_ = it.Close(ctx)
			done()
			it = client()
		} else {
			w.close(from)
		}
	}
}

func (w *world) close(from receiver) {
	ctx, done := context.WithTimeout(context.Background(), 5*time.Second)
	defer done()
	_ = from.Close(ctx)
}

// once receives some messages and completes them one by one. It returns false if the receiver should be replaced.
func (w *world) once(from receiver, chance *rand.Rand, as event) bool {
	ctx, done := w.within(500 * time.Millisecond)
	most := 1 + chance.IntN(10)
	if as.Bound {
		most = 1 // the client returns messages that arrive between two calls, so that a later one could overtake them
	}
	messages, _ := from.ReceiveMessages(ctx, most, nil)
	over := ctx.Err() != nil
	done()
	var got []note
	now := time.Now()
	for _, message := range messages {
		one := note{ID: message.MessageID, Lease: hex.EncodeToString(message.LockToken[:]), Until: message.LockedUntil.UnixMilli()}
		if message.SequenceNumber != nil {
			one.Seq = *message.SequenceNumber
		}
		if message.SessionID != nil {
			one.Session = *message.SessionID
		}
		if _, err := fmt.Sscan(string(message.Body), &one.Number); err != nil {
			one.Number = -1
		}
		// Ignore a message whose lock has expired already.
		if message.LockedUntil.After(now) {
			got = append(got, one)
		}
	}
	if len(got) == 0 {
		return !over && len(messages) > 0
	}
	as.What, as.Messages = "received", got
	w.tell(as)
	if chance.IntN(100) < 4 && !w.paused.Load() {
		return false // a worker that disappears without settling
	}
	time.Sleep(time.Duration(chance.IntN(20)) * time.Millisecond)
	for _, message := range messages {
		if !message.LockedUntil.After(now) {
			continue
		}
		w.tell(event{What: "completing", IDs: []string{message.MessageID}})
		ctx, done := w.within(10 * time.Second)
		err := from.CompleteMessage(ctx, message, nil)
		done()
		w.tell(event{What: "completed", IDs: []string{message.MessageID}, Yes: err == nil})
		if err != nil && as.Bound {
			return false // the session is lost, so the remaining messages cannot be completed
		}
	}
	return true
}
