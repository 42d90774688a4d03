// Command worker is a typical session worker, and checks what it relies on. There are 100 sessions with 10 messages
// and 50 workers. It checks strict order in each session, one holder at a time, release of idle sessions, renewal of
// locks, and a stop by signal that loses no message and counts no delivery.
//
// WORKER_COUNT, SESSION_COUNT and MESSAGE_COUNT change the numbers.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	. "malote.test/servicebus/harness"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// lock is the queue's lock time, much shorter than the handling of the slow message.
const lock = 8 * time.Second

func main() {
	workers, sessions, each := number("WORKER_COUNT", 50), number("SESSION_COUNT", 100), number("MESSAGE_COUNT", 10)
	queue := Sessions(map[string]any{"lock_ms": lock.Milliseconds()})
	client := Client()
	slow := name(0)
	began := time.Now()
	book := newLedger()
	pool := &Pool{
		Client: client, Queue: queue, Workers: workers,
		AcceptWait: 5 * time.Second, ReceiveWait: 300 * time.Millisecond, IdleMax: 3, Renew: lock / 4,
		Taken: book.taken, Released: book.released,
		Handle: func(worker int, message *bus.ReceivedMessage) error {
			if *message.SessionID == slow && string(message.Body) == "1" {
				time.Sleep(lock + lock/2)
			}
			time.Sleep(2 * time.Millisecond)
			book.message(worker, message)
			return nil
		},
	}
	Run([]Case{
		{Name: "sessions are handled in order by one holder each", Run: func() {
			produce(client, queue, sessions, 1, each)
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() { pool.Run(ctx); close(ended) }()
			await(book, "everything is handled and released", func(handled, held int) bool {
				return handled == sessions*each && held == 0
			})
			That(book.most > 1 || workers == 1, "sessions were not handled concurrently")
			That(book.holds >= sessions, "%d sessions in %d holds", sessions, book.holds)
			// Released sessions are accepted again when there are new messages.
			produce(client, queue, sessions, each+1, 1)
			await(book, "later messages are handled", func(handled, held int) bool {
				return handled == sessions*(each+1) && held == 0
			})
			stop()
			<-ended
			book.nothingIsWrong()
			fmt.Fprintf(os.Stderr, "%d messages of %d sessions by %d workers in %d holds, %d concurrently, %.1f s\n",
				book.handled, sessions, workers, book.holds, book.most, time.Since(began).Seconds())
		}},
		{Name: "a signal stops it without lost messages or counted deliveries", Run: func() {
			produce(client, queue, sessions, each+2, each)
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			ended := make(chan struct{})
			go func() { pool.Run(ctx); close(ended) }()
			before := sessions * (each + 1)
			await(book, "some messages are handled", func(handled, _ int) bool { return handled >= before+sessions*each/4 })
			Check(syscall.Kill(os.Getpid(), syscall.SIGTERM))
			select {
			case <-ended:
			case <-time.After(Patience):
				panic("the pool did not stop")
			}
			handled, held := book.count()
			Same("held after the stop", held, 0)
			That(handled < before+sessions*each, "it stopped after all messages were handled")
			// Another pool continues: order and counts show that nothing was lost.
			again, stop := context.WithCancel(context.Background())
			ended = make(chan struct{})
			go func() { pool.Run(again); close(ended) }()
			await(book, "the remaining messages are handled", func(handled, held int) bool {
				return handled == before+sessions*each && held == 0
			})
			stop()
			<-ended
			book.nothingIsWrong()
		}},
	})
}

func number(variable string, usual int) int {
	if text := os.Getenv(variable); text != "" {
		return Must(strconv.Atoi(text))
	}
	return usual
}

func name(session int) string { return fmt.Sprintf("session-%03d", session) }

// produce sends messages with increasing numbers to every session, in batches of one message per session.
func produce(client *bus.Client, queue string, sessions, from, count int) {
	ctx, done := Soon()
	defer done()
	sender := Must(client.NewSender(queue, nil))
	defer Close(sender)
	for number := from; number < from+count; number++ {
		batch := Must(sender.NewMessageBatch(ctx, nil))
		for session := range sessions {
			message := &bus.Message{Body: []byte(strconv.Itoa(number)), SessionID: To(name(session))}
			Check(batch.AddMessage(message, nil))
		}
		Check(sender.SendMessageBatch(ctx, batch, nil))
	}
}

// await waits for a condition as long as there is progress.
func await(book *ledger, what string, is func(handled, held int) bool) {
	for {
		handled, held := book.count()
		if is(handled, held) {
			return
		}
		That(book.quiet() < Patience, "%s: %d handled, %d held", what, handled, held)
		time.Sleep(20 * time.Millisecond)
	}
}

func (l *ledger) nothingIsWrong() {
	l.lock.Lock()
	defer l.lock.Unlock()
	That(len(l.wrong) == 0, "%d violations, the first: %v", len(l.wrong), l.wrong[:min(5, len(l.wrong))])
}
