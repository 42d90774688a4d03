package main

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// ledger records the holders of sessions, the handled messages and all violations.
type ledger struct {
	lock    sync.Mutex
	holders map[string]int
	// last is the number of the last handled message of each session.
	last    map[string]int
	handled int
	holds   int
	most    int
	wrong   []string
	changed time.Time
}

func newLedger() *ledger {
	return &ledger{holders: map[string]int{}, last: map[string]int{}, changed: time.Now()}
}

func (l *ledger) tell(format string, args ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

func (l *ledger) taken(worker int, session string) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if other, held := l.holders[session]; held {
		l.tell("session %s was accepted by %d while %d held it", session, worker, other)
	}
	l.holders[session] = worker
	l.holds++
	l.most = max(l.most, len(l.holders))
	l.changed = time.Now()
}

func (l *ledger) released(worker int, session string) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if holder, held := l.holders[session]; !held || holder != worker {
		l.tell("session %s was released by %d, but %d holds it", session, worker, holder)
	}
	delete(l.holders, session)
	l.changed = time.Now()
}

func (l *ledger) message(worker int, message *bus.ReceivedMessage) {
	l.lock.Lock()
	defer l.lock.Unlock()
	session := *message.SessionID
	number, err := strconv.Atoi(string(message.Body))
	if err != nil {
		l.tell("session %s: %q is not a number", session, message.Body)
	}
	if holder, held := l.holders[session]; !held || holder != worker {
		l.tell("session %s: %d was delivered to %d, which does not hold it", session, number, worker)
	}
	if number != l.last[session]+1 {
		l.tell("session %s: %d was delivered after %d", session, number, l.last[session])
	}
	if message.DeliveryCount != 1 { // this client counts from one
		l.tell("session %s: %d was delivered %d times", session, number, message.DeliveryCount)
	}
	l.last[session] = number
	l.handled++
	l.changed = time.Now()
}

// count returns the number of handled messages and of held sessions.
func (l *ledger) count() (handled, held int) {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.handled, len(l.holders)
}

// quiet returns the time since the last event.
func (l *ledger) quiet() time.Duration {
	l.lock.Lock()
	defer l.lock.Unlock()
	return time.Since(l.changed)
}
