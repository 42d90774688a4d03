// RabbitMQ's behaviour as amqp091-go sees it. Usage: rabbitmq URL
package main

import (
	"fmt"
	"net/url"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	run([]check{
		{"a wrong password is refused", wrongPassword},
		{"an unknown virtual host is refused", unknownVirtualHost},
		{"limits are negotiated", limits},
		{"many channels at the same time", manyChannels},
		{"errors have a code and a text", errorsOfChannels},
		{"exchanges of every kind", exchanges},
		{"confirms arrive for everything", confirms},
		{"a return comes before its confirm", returns},
		{"deferred confirms tell of a refusal", refusals},
		{"get, acknowledge, requeue", getting},
		{"prefetch", prefetch},
		{"a cancelled consumer's channel is closed", cancelling},
		{"a deleted queue notifies its consumer", notified},
		{"transactions", transactions},
		{"headers of every type", headers},
		{"dead letters", deadLetters},
		{"time to live", timeToLive},
		{"priorities", priorities},
		{"one active consumer", singleActive},
		{"a quorum queue limits deliveries", quorum},
		{"calls are answered directly", calls},
		{"large messages", large},
		{"a closed connection notifies", closing},
		{"a shared work queue", workQueue},
	})
}

func wrongPassword() {
	address := must(url.Parse(address))
	address.User = url.UserPassword(address.User.Username(), "wrong")
	_, err := amqp.Dial(address.String())
	refused(err, 403, "username or password not allowed")
}

func unknownVirtualHost() {
	_, err := amqp.DialConfig(address, amqp.Config{Vhost: "nope"})
	refused(err, 530, "NOT_ALLOWED - vhost nope not found")
}

func limits() {
	connection := must(amqp.DialConfig(address, amqp.Config{FrameSize: 8192, ChannelMax: 20, Heartbeat: time.Second, Vhost: vhost()}))
	defer connection.Close()
	same("frame size", connection.Config.FrameSize, 8192)
	channel := must(connection.Channel())
	q := queue(channel, nil)
	publish(channel, "", q, amqp.Publishing{Body: make([]byte, 100_000)})
	same("length", len(get(channel, q).Body), 100_000)
	// Heartbeats keep it.
	time.Sleep(3 * time.Second)
	same("depth", depth(channel, q), 0)
}

func manyChannels() {
	with(func(connection *amqp.Connection, channel *amqp.Channel) {
		q := queue(channel, nil)
		var group sync.WaitGroup
		failures := make(chan any, 50)
		for n := range 50 {
			group.Add(1)
			go func() {
				defer group.Done()
				defer func() {
					if why := recover(); why != nil {
						failures <- why
					}
				}()
				other := must(connection.Channel())
				noError(other.Confirm(false))
				publishConfirmed(other, "", q, amqp.Publishing{Body: []byte(fmt.Sprint(n))})
				noError(other.Close())
			}()
		}
		group.Wait()
		that(len(failures) == 0, "a channel failed")
		same("depth", depth(channel, q), 50)
	})
}

func errorsOfChannels() {
	with(func(connection *amqp.Connection, channel *amqp.Channel) {
		q := name("q")
		_, err := channel.QueueDeclarePassive(q, false, false, false, false, nil)
		refused(err, 404, "NOT_FOUND - no queue '"+q+"' in vhost '"+vhost()+"'")
		channel = must(connection.Channel())
		must(channel.QueueDeclare(q, false, true, false, false, nil))
		_, err = channel.QueueDeclare(q, true, true, false, false, nil)
		refused(err, 406, "inequivalent arg 'durable' for queue '"+q+"'")
		channel = must(connection.Channel())
		closed := channel.NotifyClose(make(chan *amqp.Error, 1))
		noError(channel.Ack(99, false))
		err = receive(closed)
		refused(err, 406, "PRECONDITION_FAILED - unknown delivery tag 99")
		that(!connection.IsClosed(), "the connection must live on")
		channel = must(connection.Channel())
		must(channel.QueueDelete(q, false, false, false))
	})
}

func exchanges() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		for kind, binding := range map[string]struct {
			pattern, key string
			arguments    amqp.Table
		}{
			"direct":  {"k", "k", nil},
			"fanout":  {"", "whatever", nil},
			"topic":   {"a.*.#", "a.b.c.d", nil},
			"headers": {"", "", amqp.Table{"x-match": "all", "a": int32(1), "b": "x"}},
		} {
			x, q := exchange(channel, kind, nil), queue(channel, nil)
			noError(channel.QueueBind(q, binding.pattern, x, false, binding.arguments))
			headers := amqp.Table{"a": int32(1), "b": "x", "c": true}
			publish(channel, x, binding.key, amqp.Publishing{Body: []byte(kind), Headers: headers})
			publish(channel, x, "a", amqp.Publishing{Body: []byte("other"), Headers: amqp.Table{"a": int32(1)}})
			got := get(channel, q)
			same(kind, string(got.Body), kind)
			same("exchange", got.Exchange, x)
		}
		source, target := exchange(channel, "direct", nil), exchange(channel, "fanout", nil)
		q := queue(channel, nil)
		noError(channel.QueueBind(q, "", target, false, nil))
		noError(channel.ExchangeBind(target, "k", source, false, nil))
		publish(channel, source, "k", amqp.Publishing{Body: []byte("bound")})
		same("bound", string(get(channel, q).Body), "bound")
		noError(channel.ExchangeUnbind(target, "k", source, false, nil))
		first := exchange(channel, "direct", amqp.Table{"alternate-exchange": target})
		publish(channel, first, "nowhere", amqp.Publishing{Body: []byte("lost")})
		same("alternate", string(get(channel, q).Body), "lost")
	})
}

func confirms() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		q := queue(channel, nil)
		noError(channel.Confirm(false))
		all := channel.NotifyPublish(make(chan amqp.Confirmation, 1000))
		for n := range 1000 {
			publish(channel, "", q, amqp.Publishing{Body: []byte(fmt.Sprint(n)), DeliveryMode: uint8(1 + n%2)})
		}
		for n := range 1000 {
			one := receive(all)
			that(one.Ack && one.DeliveryTag == uint64(n+1), "confirm %d is %v", n+1, one)
		}
		same("depth", depth(channel, q), 1000)
	})
}

func returns() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		noError(channel.Confirm(false))
		returned := channel.NotifyReturn(make(chan amqp.Return, 1))
		confirmed := channel.NotifyPublish(make(chan amqp.Confirmation, 1))
		key := name("q")
		ctx, done := soon()
		defer done()
		noError(channel.PublishWithContext(ctx, "", key, true, false, amqp.Publishing{Body: []byte("x"), MessageId: "m"}))
		that(receive(confirmed).Ack, "it is confirmed")
		// The confirm was sent after it, so it must be here.
		select {
		case one := <-returned:
			same("code", one.ReplyCode, uint16(312))
			same("text", one.ReplyText, "NO_ROUTE")
			same("key", one.RoutingKey, key)
			same("id", one.MessageId, "m")
		default:
			panic("the confirm came before the return")
		}
	})
}

func refusals() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		q := queue(channel, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
		noError(channel.Confirm(false))
		same("first", confirmed(channel, "", q, amqp.Publishing{}), true)
		same("second", confirmed(channel, "", q, amqp.Publishing{}), false)
	})
}

func getting() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		q := filled(channel, nil, 4)
		var got []amqp.Delivery
		for n := range 3 {
			one := must2(channel.Get(q, false))
			same("tag", one.DeliveryTag, uint64(n+1))
			same("remaining", one.MessageCount, uint32(3-n))
			got = append(got, one)
		}
		noError(got[1].Nack(false, true))
		noError(got[0].Reject(true))
		noError(got[2].Ack(false))
		for _, wanted := range []struct {
			body        string
			redelivered bool
		}{{"0", true}, {"1", true}, {"3", false}} {
			one := get(channel, q)
			same("body", string(one.Body), wanted.body)
			same("redelivered", one.Redelivered, wanted.redelivered)
		}
		_, found, err := channel.Get(q, true)
		noError(err)
		same("found", found, false)
	})
}

func prefetch() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		q := filled(channel, nil, 5)
		noError(channel.Qos(2, 0, false))
		deliveries := must(channel.Consume(q, "", false, false, false, false, nil))
		first := receive(deliveries)
		receive(deliveries)
		silent(deliveries)
		noError(first.Ack(false))
		same("third", string(receive(deliveries).Body), "2")
		silent(deliveries)
	})
}

func cancelling() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		q := filled(channel, nil, 3)
		noError(channel.Qos(1, 0, false))
		deliveries := must(channel.Consume(q, "mine", false, false, false, false, nil))
		one := receive(deliveries)
		same("tag", one.ConsumerTag, "mine")
		noError(channel.Cancel("mine", false))
		_, open := <-deliveries
		same("open", open, false)
		noError(one.Nack(false, true))
		same("first", string(get(channel, q).Body), "0")
	})
}

func notified() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		q := queue(channel, nil)
		cancelled := channel.NotifyCancel(make(chan string, 1))
		must(channel.Consume(q, "mine", false, false, false, false, nil))
		must(channel.QueueDelete(q, false, false, false))
		same("tag", receive(cancelled), "mine")
	})
}

func transactions() {
	with(func(connection *amqp.Connection, channel *amqp.Channel) {
		q := queue(channel, nil)
		other := must(connection.Channel())
		noError(channel.Tx())
		publish(channel, "", q, amqp.Publishing{Body: []byte("kept")})
		same("before", depth(other, q), 0)
		noError(channel.TxCommit())
		same("after", depth(other, q), 1)
		publish(channel, "", q, amqp.Publishing{Body: []byte("dropped")})
		noError(channel.TxRollback())
		same("still", depth(other, q), 1)
	})
}

func headers() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		q := queue(channel, nil)
		now := time.Unix(1_700_000_000, 0)
		sent := amqp.Table{
			"bool": true, "byte": byte(200), "int8": int8(-5), "int16": int16(-300), "int32": int32(-70_000), "int64": int64(1) << 40,
			"float32": float32(1.5), "float64": 2.5, "string": "é", "bytes": []byte{0, 255}, "time": now, "nil": nil,
			"decimal": amqp.Decimal{Scale: 2, Value: 314}, "list": []any{int32(1), "two"}, "table": amqp.Table{"n": int32(1)},
		}
		publish(channel, "", q, amqp.Publishing{Headers: sent, Timestamp: now, Type: "t", AppId: "a", Priority: 3, Expiration: "600000"})
		got := get(channel, q)
		same("headers", fmt.Sprint(got.Headers), fmt.Sprint(sent))
		same("time", got.Timestamp.Unix(), now.Unix())
		same("the rest", got.Type+got.AppId+fmt.Sprint(got.Priority)+got.Expiration, "ta3600000")
	})
}

func deadLetters() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		work, retry := name("work"), name("retry")
		to := func(key string, ttl ...int32) amqp.Table {
			arguments := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": key}
			if len(ttl) > 0 {
				arguments["x-message-ttl"] = ttl[0]
			}
			return arguments
		}
		must(channel.QueueDeclare(work, false, false, true, false, to(retry)))
		must(channel.QueueDeclare(retry, false, false, true, false, to(work, 50)))
		publish(channel, "", work, amqp.Publishing{Body: []byte("x")})
		for attempt := range 4 {
			got := getUnacked(channel, work)
			if attempt > 0 {
				deaths := got.Headers["x-death"].([]any)
				same("deaths", len(deaths), 2)
				newest, oldest := deaths[0].(amqp.Table), deaths[1].(amqp.Table)
				same("newest", fmt.Sprint(newest["queue"], newest["reason"], newest["count"]), fmt.Sprint(retry, "expired", attempt))
				same("oldest", fmt.Sprint(oldest["queue"], oldest["reason"], oldest["count"]), fmt.Sprint(work, "rejected", attempt))
				_, isTime := newest["time"].(time.Time)
				that(isTime, "time is %T", newest["time"])
				_, isLong := newest["count"].(int64)
				that(isLong, "count is %T", newest["count"])
				same("first", got.Headers["x-first-death-queue"], any(work))
			}
			noError(got.Nack(false, false))
		}
	})
}

func timeToLive() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		q := queue(channel, amqp.Table{"x-message-ttl": int32(100)})
		publish(channel, "", q, amqp.Publishing{})
		eventually(func() bool { return depth(channel, q) == 0 })
		q = queue(channel, nil)
		noError(channel.Confirm(false))
		publishConfirmed(channel, "", q, amqp.Publishing{Expiration: "100"})
		publishConfirmed(channel, "", q, amqp.Publishing{Body: []byte("stays")})
		eventually(func() bool { return depth(channel, q) == 1 })
		same("rest", string(get(channel, q).Body), "stays")
	})
}

func priorities() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		q := queue(channel, amqp.Table{"x-max-priority": int32(5)})
		noError(channel.Confirm(false))
		for _, priority := range []uint8{0, 3, 9, 3} {
			publishConfirmed(channel, "", q, amqp.Publishing{Priority: priority, Body: []byte(fmt.Sprint(priority))})
		}
		for _, wanted := range []string{"9", "3", "3", "0"} {
			same("next", string(get(channel, q).Body), wanted)
		}
	})
}

func singleActive() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		q := queue(channel, amqp.Table{"x-single-active-consumer": true})
		first := must(channel.Consume(q, "first", true, false, false, false, nil))
		second := must(channel.Consume(q, "second", true, false, false, false, nil))
		publish(channel, "", q, amqp.Publishing{Body: []byte("a")})
		same("first", string(receive(first).Body), "a")
		silent(second)
		noError(channel.Cancel("first", false))
		publish(channel, "", q, amqp.Publishing{Body: []byte("b")})
		same("second", string(receive(second).Body), "b")
	})
}

func quorum() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		graves := queue(channel, nil)
		arguments := amqp.Table{
			"x-queue-type": "quorum", "x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": graves,
		}
		q := name("quorum")
		must(channel.QueueDeclare(q, true, false, false, false, arguments))
		publish(channel, "", q, amqp.Publishing{Body: []byte("x"), DeliveryMode: amqp.Persistent})
		deliveries := must(channel.Consume(q, "", false, false, false, false, nil))
		for n := range 2 {
			one := receive(deliveries)
			count, _ := one.Headers["x-delivery-count"].(int64)
			same("count", count, int64(n))
			noError(one.Nack(false, true))
		}
		death := get(channel, graves).Headers["x-death"].([]any)[0].(amqp.Table)
		same("reason", death["reason"], any("delivery_limit"))
		must(channel.QueueDelete(q, false, false, false))
	})
}

func calls() {
	with(func(connection *amqp.Connection, client *amqp.Channel) {
		server := must(connection.Channel())
		q := queue(server, nil)
		requests := must(server.Consume(q, "", true, false, false, false, nil))
		answers := must(client.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil))
		publish(client, "", q, amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to", CorrelationId: "c", Body: []byte("ping")})
		request := receive(requests)
		publish(server, "", request.ReplyTo, amqp.Publishing{CorrelationId: request.CorrelationId, Body: []byte("pong")})
		answer := receive(answers)
		same("answer", answer.CorrelationId+string(answer.Body), "cpong")
	})
}

func large() {
	with(func(_ *amqp.Connection, channel *amqp.Channel) {
		q := queue(channel, nil)
		body := make([]byte, 4<<20)
		for n := range body {
			body[n] = byte(n * 7)
		}
		publish(channel, "", q, amqp.Publishing{Body: body})
		that(string(get(channel, q).Body) == string(body), "the body differs")
	})
}

func closing() {
	connection := must(amqp.Dial(address))
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	channel := must(connection.Channel())
	err := channel.Publish("", name("q"), false, true, amqp.Publishing{})
	noError(err)
	// `immediate` is not implemented: the connection is closed.
	why := receive(closed)
	refused(why, 540, "NOT_IMPLEMENTED - immediate=true")
}

func workQueue() {
	with(func(connection *amqp.Connection, channel *amqp.Channel) {
		q := name("work")
		must(channel.QueueDeclare(q, true, false, false, false, nil))
		done := make(chan string, 100)
		for range 3 {
			worker := must(connection.Channel())
			noError(worker.Qos(1, 0, false))
			jobs := must(worker.Consume(q, "", false, false, false, false, nil))
			go func() {
				for job := range jobs {
					done <- string(job.Body)
					_ = job.Ack(false)
				}
			}()
		}
		noError(channel.Confirm(false))
		for n := range 100 {
			publishConfirmed(channel, "", q, amqp.Publishing{Body: []byte(fmt.Sprint(n)), DeliveryMode: amqp.Persistent})
		}
		seen := map[string]bool{}
		for range 100 {
			seen[receive(done)] = true
		}
		same("jobs", len(seen), 100)
		must(channel.QueueDelete(q, false, false, false))
	})
}
