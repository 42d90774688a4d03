// Package harness contains what the programs share: the server's address, new queues, and checks.
//
// A case is a function that panics if a check fails; [Run] runs the cases and counts the results.
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

// Patience is the timeout for something that must happen.
const Patience = 60 * time.Second

// Silence is how long to wait for something that must not happen.
const Silence = time.Second

// AMQP is the address of the AMQP listener.
func AMQP() string { return os.Getenv("MALOTE_AMQP_AT") }

// ConnectionString returns the connection string of a key.
func ConnectionString(name, key string, emulator bool) string {
	text := fmt.Sprintf("Endpoint=sb://%s;SharedAccessKeyName=%s;SharedAccessKey=%s", AMQP(), name, key)
	if emulator {
		text += ";UseDevelopmentEmulator=true"
	}
	return text
}

// Client connects without credentials and without retries.
func Client() *bus.Client {
	options := &bus.ClientOptions{RetryOptions: bus.RetryOptions{MaxRetries: -1}}
	return Must(bus.NewClientFromConnectionString(ConnectionString("RootManageSharedAccessKey", "SAS_KEY_VALUE", true), options))
}

// Close closes something, and checks that this succeeds.
func Close(what interface{ Close(context.Context) error }) {
	ctx, done := Soon()
	defer done()
	Check(what.Close(ctx))
}

// Soon returns a context with the timeout [Patience].
func Soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), Patience)
}

// API calls the native HTTP API.
func API(method, path string, body any) map[string]any {
	text := Must(json.Marshal(body))
	request := Must(http.NewRequest(method, "http://"+os.Getenv("MALOTE_HTTP_AT")+"/api/v1"+path, bytes.NewReader(text)))
	request.Header.Set("content-type", "application/json")
	answer := Must(http.DefaultClient.Do(request))
	defer func() { _ = answer.Body.Close() }()
	text = Must(io.ReadAll(answer.Body))
	That(answer.StatusCode < 300, "%s %s: %d %s", method, path, answer.StatusCode, text)
	decoded := map[string]any{}
	if len(text) > 0 {
		Check(json.Unmarshal(text, &decoded))
	}
	return decoded
}

var queues atomic.Int64

// Queue declares a queue with a new name.
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

// That checks a condition.
func That(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Sprintf(format, args...))
	}
}

// Same checks that two values are equal.
func Same[T any](what string, is, wanted T) {
	That(reflect.DeepEqual(is, wanted), "%s is %v, expected %v", what, is, wanted)
}

// Check fails the case if there is an error.
func Check(err error) {
	if err != nil {
		panic(err)
	}
}

// Must returns the value, or fails the case if there is an error.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Refused checks that the error has this code.
func Refused(what string, err error, code bus.Code) {
	var clientError *bus.Error
	That(errors.As(err, &clientError), "%s: expected a client error, got %v", what, err)
	Same(what+": code", clientError.Code, code)
}

// RefusedAs checks that the error contains this text.
func RefusedAs(what string, err error, text string) {
	That(err != nil && strings.Contains(err.Error(), text), "%s: expected %q, got %v", what, text, err)
}

// To returns a pointer to a value.
func To[T any](value T) *T { return &value }

// Case is a named test.
type Case struct {
	Name string
	Run  func()
}

// Run runs the cases named in the arguments, or all, and prints the counts in its last line.
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
