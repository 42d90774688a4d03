package main

import (
	"context"
	"errors"
	"log"
	"sync"
	"time"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// Pool handles sessions concurrently. Each worker holds one session at a time, handles its messages one by one, and
// releases it when no message has arrived for a while.
//
// It receives one message at a time: the client returns messages that arrive between two calls, and with several in
// flight a later one may overtake them.
type Pool struct {
	Client  *bus.Client
	Queue   string
	Workers int
	// AcceptWait is how long a worker waits for a session before it retries.
	AcceptWait time.Duration
	// ReceiveWait is the timeout of one receive.
	ReceiveWait time.Duration
	// IdleMax is the number of empty receives after which a session is released.
	IdleMax int
	// Renew is the interval of lock renewals.
	Renew time.Duration
	// Handle is called for every message of a session, in order.
	Handle func(worker int, message *bus.ReceivedMessage) error
	// Taken and Released are called with the holder. Released is called before the session is released.
	Taken, Released func(worker int, session string)
}

// settling is the timeout for completing a handled message, also while the pool stops.
const settling = 30 * time.Second

// Run works until the context ends. Then workers finish their current message and release their session.
func (p *Pool) Run(ctx context.Context) {
	var workers sync.WaitGroup
	for worker := range p.Workers {
		workers.Go(func() {
			for ctx.Err() == nil {
				p.one(ctx, worker)
			}
		})
	}
	workers.Wait()
}

// one accepts the next session, if any, and handles it.
func (p *Pool) one(ctx context.Context, worker int) {
	accepting, done := context.WithTimeout(ctx, p.AcceptWait)
	receiver, err := p.Client.AcceptNextSessionForQueue(accepting, p.Queue, nil)
	done()
	if err != nil {
		p.logUnlessEmpty("accepting", err)
		return
	}
	session := receiver.SessionID()
	p.Taken(worker, session)
	renewing, stop := context.WithCancel(ctx)
	var renewer sync.WaitGroup
	renewer.Go(func() { p.renew(renewing, receiver) })
	p.work(ctx, worker, receiver)
	stop()
	renewer.Wait()
	p.Released(worker, session)
	closing, done := context.WithTimeout(context.Background(), settling)
	defer done()
	if err := receiver.Close(closing); err != nil {
		log.Printf("closing %s: %v", session, err)
	}
}

func (p *Pool) work(ctx context.Context, worker int, receiver *bus.SessionReceiver) {
	for idle := 0; idle < p.IdleMax; {
		receiving, done := context.WithTimeout(ctx, p.ReceiveWait)
		messages, err := receiver.ReceiveMessages(receiving, 1, nil)
		done()
		if ctx.Err() != nil {
			return // unhandled messages return with the session
		}
		if len(messages) == 0 {
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				p.logUnlessEmpty("receiving", err)
				return
			}
			idle++
			continue
		}
		idle = 0
		for _, message := range messages {
			if ctx.Err() != nil {
				return
			}
			if err := p.settle(worker, receiver, message); err != nil {
				p.logUnlessEmpty("settling", err)
				return
			}
		}
	}
}

func (p *Pool) settle(worker int, receiver *bus.SessionReceiver, message *bus.ReceivedMessage) error {
	ctx, done := context.WithTimeout(context.Background(), settling)
	defer done()
	if err := p.Handle(worker, message); err != nil {
		return errors.Join(err, receiver.AbandonMessage(ctx, message, nil))
	}
	return receiver.CompleteMessage(ctx, message, nil)
}

func (p *Pool) renew(ctx context.Context, receiver *bus.SessionReceiver) {
	ticks := time.NewTicker(p.Renew)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			if err := receiver.RenewSessionLock(ctx, nil); err != nil && ctx.Err() == nil {
				log.Printf("renewing %s: %v", receiver.SessionID(), err)
			}
		}
	}
}

// logUnlessEmpty ignores errors that only mean that there was no message.
func (p *Pool) logUnlessEmpty(what string, err error) {
	var known *bus.Error
	none := errors.As(err, &known) && known.Code == bus.CodeTimeout
	if !none && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		log.Printf("%s: %v", what, err)
	}
}
