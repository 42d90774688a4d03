// Command crash is the clients of the kill -9 loop: senders and receivers that go on whatever happens to the server.
//
// The client connects again by itself; programs only see errors. Everything that happens is written to standard output
// as a line of JSON, in the order in which it happened; who runs this checks it. It reads `quiet` (senders stop) and
// `done` (everything stops) from standard input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"sync"
	"sync/atomic"
	"time"

	. "malote.test/servicebus/harness"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// The queues are declared by who runs this; both drop duplicates, because the client sends again what it does not
// know the fate of.
const plain, ordered = "plain", "ordered"

const senders, plainReceivers, workers = 3, 2, 5

// world is what all have in common.
type world struct {
	quiet   atomic.Bool
	done    context.Context
	holders atomic.Int64
	lock    sync.Mutex
	out     *json.Encoder
	flush   func() error
}

func main() {
	done, stop := context.WithCancel(context.Background())
	out := bufio.NewWriter(os.Stdout)
	w := &world{done: done, out: json.NewEncoder(out), flush: out.Flush}
	var all sync.WaitGroup
	for n := range senders {
		all.Go(func() { w.send(n) })
	}
	for n := range plainReceivers {
		all.Go(func() { w.receive(uint64(n)) })
	}
	for n := range workers {
		all.Go(func() { w.work(uint64(n)) })
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == "quiet" {
			w.quiet.Store(true)
		} else {
			break
		}
	}
	stop()
	all.Wait()
}

// event is one thing that happened.
type event struct {
	What     string   `json:"what"`
	Messages []note   `json:"messages,omitempty"`
	IDs      []string `json:"ids,omitempty"`
	Holder   int64    `json:"holder,omitempty"`
	Bound    bool     `json:"bound,omitempty"`
	Asked    int64    `json:"asked,omitempty"`
	Now      int64    `json:"now,omitempty"`
	Yes      bool     `json:"yes,omitempty"`
}

// note is a message as it was sent or received.
type note struct {
	ID      string `json:"id"`
	Session string `json:"session,omitempty"`
	Number  int64  `json:"number"`
	Seq     int64  `json:"seq,omitempty"`
	Lease   string `json:"lease,omitempty"`
	Until   int64  `json:"until,omitempty"`
}

func (w *world) tell(it event) {
	w.lock.Lock()
	defer w.lock.Unlock()
	it.Now = time.Now().UnixMilli()
	Check(w.out.Encode(it))
	Check(w.flush())
}

// client tries again soon: the server is not gone for long.
func client() *bus.Client {
	retry := bus.RetryOptions{MaxRetries: 4, RetryDelay: 30 * time.Millisecond, MaxRetryDelay: 200 * time.Millisecond}
	text := ConnectionString("RootManageSharedAccessKey", "SAS_KEY_VALUE", true)
	return Must(bus.NewClientFromConnectionString(text, &bus.ClientOptions{RetryOptions: retry}))
}

// within is a context that ends with everything else, or after a while.
func (w *world) within(most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.done, most)
}
