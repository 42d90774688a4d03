// Package harness is what the programs share: where the server is, queues of their own, and how a case fails.
//
// A case is a function that panics when something is not as it should be; [Run] tells of each and counts.
package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// Patience is how long something may take that must happen.
const Patience = 60 * time.Second

// Silence is how long is waited for something that must not happen.
const Silence = time.Second

// AMQP is where the server speaks AMQP.
func AMQP() string { return os.Getenv("MALOTE_AMQP_AT") }

// ConnectionString of a key.
func ConnectionString(name, key string, emulator bool) string {
	text := fmt.Sprintf("Endpoint=sb://%s;SharedAccessKeyName=%s;SharedAccessKey=%s", AMQP(), name, key)
	if emulator {
		text += ";UseDevelopmentEmulator=true"
	}
	return text
}

// Client connects as anybody, and tries everything once only.
func Client() *bus.Client {
	options := &bus.ClientOptions{RetryOptions: bus.RetryOptions{MaxRetries: -1}}
	return Must(bus.NewClientFromConnectionString(ConnectionString("RootManageSharedAccessKey", "SAS_KEY_VALUE", true), options))
}

// Close ends something that must end well.
func Close(what interface{ Close(context.Context) error }) {
	ctx, done := Soon()
	defer done()
	Check(what.Close(ctx))
}

// Soon is a context for what must happen.
func Soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), Patience)
}

// API asks the native HTTP interface.
func API(method, path string, body any) map[string]any {
	text := Must(json.Marshal(body))
	request := Must(http.NewRequest(method, "http://"+os.Getenv("MALOTE_HTTP_AT")+"/api/v1"+path, bytes.NewReader(text)))
	request.Header.Set("content-type", "application/json")
	answer := Must(http.DefaultClient.Do(request))
	defer func() { _ = answer.Body.Close() }()
	text = Must(io.ReadAll(answer.Body))
	That(answer.StatusCode < 300, "%s %s: %d %s", method, path, answer.StatusCode, text)
	told := map[string]any{}
	if len(text) > 0 {
		Check(json.Unmarshal(text, &told))
	}
	return told
}

var queues atomic.Int64

// Queue declares a queue with a name of its own.
func Queue(spec map[string]any) string {
	name := fmt.Sprintf("q-%d-%d", os.Getpid(), queues.Add(1))
	all := map[string]any{"lock_ms": 60_000}
	for key, value := range spec {
		all[key] = value
	}
	API("PUT", "/queues/"+name, all)
	return name
}

// Sessions declares a queue with sessions.
func Sessions(spec map[string]any) string {
	all := map[string]any{"sessions": "dynamic"}
	for key, value := range spec {
		all[key] = value
	}
	return Queue(all)
}

// That must hold.
func That(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Sprintf(format, args...))
	}
}

// Same must be equal.
func Same[T any](what string, is, wanted T) {
	That(reflect.DeepEqual(is, wanted), "%s is %v, not %v", what, is, wanted)
}

// Check that nothing went wrong.
func Check(err error) {
	if err != nil {
		panic(err)
	}
}

// Must have gone well.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Refused must have failed, with this code.
func Refused(what string, err error, code bus.Code) {
	var told *bus.Error
	That(errors.As(err, &told), "%s: an error of the client expected, not %v", what, err)
	Same(what+": code", told.Code, code)
}

// RefusedAs must have failed, and the text tells this.
func RefusedAs(what string, err error, text string) {
	That(err != nil && strings.Contains(err.Error(), text), "%s: %q expected, not %v", what, text, err)
}

// To makes a pointer of a value.
func To[T any](value T) *T { return &value }

// Case is one thing that must work.
type Case struct {
	Name string
	Run  func()
}

// Run runs the cases that were asked for, tells of each, and says how many passed in its last line.
func Run(cases []Case) {
	wanted := os.Args[1:]
	passed, failed := 0, 0
	for _, it := range cases {
		if len(wanted) > 0 && !slices.Contains(wanted, it.Name) {
			continue
		}
		begun := time.Now()
		outcome := "ok"
		if attempt(it) {
			passed++
		} else {
			outcome = "FAILED"
			failed++
		}
		fmt.Fprintf(os.Stderr, "%-7s %s (%.1f s)\n", outcome, it.Name, time.Since(begun).Seconds())
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 || passed == 0 {
		os.Exit(1)
	}
}

func attempt(it Case) (well bool) {
	defer func() {
		if why := recover(); why != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n%s", it.Name, why, debug.Stack())
			well = false
		}
	}()
	it.Run()
	return true
}
