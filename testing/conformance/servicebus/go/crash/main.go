// Command crash contains the clients of the kill -9 loop: senders and receivers that continue while the server is
// killed and restarted.
//
// The client library reconnects by itself, so the programs only see errors. Every event is written to standard output
// as a line of JSON, in order; the caller checks them. The command reads `pause` (senders stop) and `stop`
// (everything stops) from standard input.
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

// The caller declares the queues. Both drop duplicates, because the client repeats sends whose result is unknown.
const plain, ordered = "plain", "ordered"

const senders, plainReceivers, workers = 3, 2, 5

// world is the state shared by all clients.
type world struct {
	paused  atomic.Bool
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
		if lines.Text() == "pause" {
			w.paused.Store(true)
		} else {
			break
		}
	}
	stop()
	all.Wait()
}

// event is one line of the output.
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

// note is a message that was sent or received.
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

// client retries soon, because the server restarts quickly.
func client() *bus.Client {
	retry := bus.RetryOptions{MaxRetries: 4, RetryDelay: 30 * time.Millisecond, MaxRetryDelay: 200 * time.Millisecond}
	text := ConnectionString("RootManageSharedAccessKey", "SAS_KEY_VALUE", true)
	return Must(bus.NewClientFromConnectionString(text, &bus.ClientOptions{RetryOptions: retry}))
}

// within returns a context that ends with the program or after a timeout.
func (w *world) within(most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.done, most)
}
