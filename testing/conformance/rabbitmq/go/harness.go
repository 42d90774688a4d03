package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// How long something may take that must happen, and how long is waited for something that must not.
const (
	patience = 60 * time.Second
	silence  = 300 * time.Millisecond
)

var address = os.Args[1]

type check struct {
	name string
	run  func()
}

// run runs the checks and says how each ended.
func run(checks []check) {
	passed, failed := 0, 0
	for _, one := range checks {
		if why := attempt(one); why == nil {
			fmt.Printf("ok %s\n", one.name)
			passed++
		} else {
			fmt.Printf("FAILED %s: %v\n", one.name, why)
			fmt.Fprintf(os.Stderr, "FAILED %s: %v\n", one.name, why)
			failed++
		}
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

func attempt(one check) (why any) {
	defer func() { why = recover() }()
	one.run()
	return nil
}

func that(holds bool, format string, arguments ...any) {
	if !holds {
		panic(fmt.Sprintf(format, arguments...))
	}
}

func same[T any](what string, is, wanted T) {
	that(reflect.DeepEqual(is, wanted), "%s is %v, not %v", what, is, wanted)
}

func noError(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	noError(err)
	return value
}

func must2(value amqp.Delivery, found bool, err error) amqp.Delivery {
	noError(err)
	that(found, "the queue is empty")
	return value
}

// refused must be an error of the broker with this code and a text that has this part.
func refused(err error, code int, text string) {
	var amqpError *amqp.Error
	that(errors.As(err, &amqpError) && amqpError != nil, "an error %d expected, not %v", code, err)
	same("code", amqpError.Code, code)
	that(strings.Contains(amqpError.Reason, text), "%q is not in %q", text, amqpError.Reason)
}

func vhost() string {
	path := strings.TrimPrefix(must(url.Parse(address)).EscapedPath(), "/")
	if path == "" {
		return "/"
	}
	return must(url.PathUnescape(path))
}

func soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func with(do func(*amqp.Connection, *amqp.Channel)) {
	connection := must(amqp.Dial(address))
	defer connection.Close()
	do(connection, must(connection.Channel()))
}

func name(kind string) string {
	var salt [6]byte
	must(rand.Read(salt[:]))
	return kind + "-" + hex.EncodeToString(salt[:])
}

func queue(channel *amqp.Channel, arguments amqp.Table) string {
	return must(channel.QueueDeclare(name("q"), false, false, true, false, arguments)).Name
}

func exchange(channel *amqp.Channel, kind string, arguments amqp.Table) string {
	x := name("x")
	noError(channel.ExchangeDeclare(x, kind, false, true, false, false, arguments))
	return x
}

func publish(channel *amqp.Channel, x, key string, message amqp.Publishing) {
	ctx, done := soon()
	defer done()
	noError(channel.PublishWithContext(ctx, x, key, false, false, message))
}

// confirmed publishes and says whether the broker took it.
func confirmed(channel *amqp.Channel, x, key string, message amqp.Publishing) bool {
	ctx, done := soon()
	defer done()
	return must(must(channel.PublishWithDeferredConfirmWithContext(ctx, x, key, false, false, message)).WaitContext(ctx))
}

func publishConfirmed(channel *amqp.Channel, x, key string, message amqp.Publishing) {
	that(confirmed(channel, x, key, message), "the message was refused")
}

func filled(channel *amqp.Channel, arguments amqp.Table, count int) string {
	q := queue(channel, arguments)
	for n := range count {
		publish(channel, "", q, amqp.Publishing{Body: []byte(fmt.Sprint(n))})
	}
	eventually(func() bool { return depth(channel, q) == count })
	return q
}

func depth(channel *amqp.Channel, q string) int {
	return must(channel.QueueDeclarePassive(q, false, false, false, false, nil)).Messages
}

func eventually(look func() bool) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if look() {
			return
		}
	}
	panic("nothing happened")
}

func get(channel *amqp.Channel, q string) amqp.Delivery { return getAs(channel, q, true) }

func getUnacked(channel *amqp.Channel, q string) amqp.Delivery { return getAs(channel, q, false) }

func getAs(channel *amqp.Channel, q string, acknowledged bool) (got amqp.Delivery) {
	eventually(func() bool {
		one, found, err := channel.Get(q, acknowledged)
		noError(err)
		got = one
		return found
	})
	return got
}

// receive is the next value, which must come.
func receive[T any](from <-chan T) T {
	select {
	case one, open := <-from:
		that(open, "it was closed")
		return one
	case <-time.After(patience):
		panic("nothing came")
	}
}

func silent[T any](from <-chan T) {
	select {
	case one := <-from:
		panic(fmt.Sprintf("nothing should come, not %v", one))
	case <-time.After(silence):
	}
}
