"""Whole programs as users write them: work queues, publish and subscribe, calls, retries with a poison pill."""

import json
import threading

import pika
from pika.exceptions import UnroutableError

from harness import (
    Consumer,
    channel,
    channel_error,
    check,
    connected,
    exchange,
    get,
    is_empty,
    name,
    publish,
    queue,
    raises,
    same,
)

REPLY_TO = "amq.rabbitmq.reply-to"


def answering(q, stop):
    """A server for calls: it answers every request with twice its number."""
    with connected() as connection:
        opened = connection.channel()
        opened.queue_declare(q, auto_delete=True)
        opened.basic_qos(prefetch_count=1)

        def on_request(served, method, properties, body):
            answer = pika.BasicProperties(correlation_id=properties.correlation_id)
            served.basic_publish("", properties.reply_to, str(2 * int(body)).encode(), answer)
            served.basic_ack(method.delivery_tag)

        opened.basic_consume(q, on_request)
        while not stop.is_set():
            connection.process_data_events(time_limit=0.05)


@check
def a_call_is_answered_directly():
    q, stop = name("calls"), threading.Event()
    server = threading.Thread(target=answering, args=(q, stop))
    server.start()
    try:
        with channel() as opened:
            opened.queue_declare(q, auto_delete=True)
            answers = Consumer(opened, REPLY_TO, auto_ack=True)
            for index in range(3):
                publish(opened, q, str(index), reply_to=REPLY_TO, correlation_id=f"call-{index}")
            got = answers.wait(3)
            same([(properties.correlation_id, body) for _, properties, body in got], [("call-0", "0"), ("call-1", "2"), ("call-2", "4")])
    finally:
        stop.set()
        server.join()


@check
def a_call_is_answered_through_a_queue():
    q, stop = name("calls"), threading.Event()
    server = threading.Thread(target=answering, args=(q, stop))
    server.start()
    try:
        with channel() as opened:
            opened.queue_declare(q, auto_delete=True)
            answers = queue(opened)
            publish(opened, q, "21", reply_to=answers, correlation_id="c")
            _, properties, body = get(opened, answers)
            same((properties.correlation_id, body), ("c", "42"))
    finally:
        stop.set()
        server.join()


@check
def the_address_for_answers_is_opaque():
    with channel() as opened, channel() as server:
        q = queue(server, exclusive=False, auto_delete=True)
        answers = Consumer(opened, REPLY_TO, auto_ack=True)
        publish(opened, q, "x", reply_to=REPLY_TO)
        _, properties, _ = get(server, q)
        address = properties.reply_to
        assert address.startswith(REPLY_TO + "."), address
        same(server.queue_declare(address, passive=True).method.queue, address)
        publish(server, address, "answer", mandatory=True)
        same(answers.bodies(1), ["answer"])
        server.queue_delete(q)


@check
def answers_need_a_consumer_that_does_not_acknowledge():
    text = "PRECONDITION_FAILED - reply consumer cannot acknowledge"
    channel_error(406, text, lambda opened: opened.basic_consume(REPLY_TO, print))
    text = "PRECONDITION_FAILED - fast reply consumer does not exist"
    channel_error(406, text, lambda opened: publish(opened, name(), "x", reply_to=REPLY_TO), confirms=True)

    def twice(opened):
        opened.basic_consume(REPLY_TO, print, auto_ack=True)
        opened.basic_consume(REPLY_TO, print, auto_ack=True)

    channel_error(406, "PRECONDITION_FAILED - reply consumer already set", twice)


@check
def an_answer_for_nobody_is_returned():
    with channel(confirms=True) as server:
        q = queue(server, exclusive=False, auto_delete=True)
        with channel() as opened:
            Consumer(opened, REPLY_TO, auto_ack=True)
            publish(opened, q, "x", reply_to=REPLY_TO)
            address = get(server, q)[1].reply_to
        raises(UnroutableError, lambda: publish(server, address, "answer", mandatory=True))


@check
def work_is_shared_fairly():
    q = name("work")
    with channel(confirms=True) as producer, channel() as one, channel() as two:
        producer.queue_declare(q, durable=True)
        workers = []
        for opened in (one, two):
            opened.basic_qos(prefetch_count=1)
            workers.append(Consumer(opened, q))
        for index in range(10):
            publish(producer, q, f"job {index}", delivery_mode=2)
        done = []
        while len(done) < 10:
            for worker in workers:
                worker.channel.connection.process_data_events(time_limit=0.02)
                for method, _, body in worker.received:
                    worker.channel.basic_ack(method.delivery_tag)
                    done.append(body)
                worker.received.clear()
        same(sorted(done), sorted(f"job {index}" for index in range(10)))
        assert is_empty(producer, q)
        producer.queue_delete(q)


@check
def every_subscriber_gets_every_event():
    with channel(confirms=True) as opened:
        logs = exchange(opened, "fanout")
        subscribers = []
        for _ in range(3):
            q = opened.queue_declare("", exclusive=True).method.queue
            opened.queue_bind(q, logs, "")
            subscribers.append(Consumer(opened, q, auto_ack=True))
        for index in range(5):
            publish(opened, "", f"event {index}", exchange=logs)
        for subscriber in subscribers:
            same(subscriber.bodies(5), [f"event {index}" for index in range(5)])


@check
def a_poison_pill_is_buried_after_three_attempts():
    """A consumer counts its own rejections in `x-death`, and gives up after the third."""
    with channel(confirms=True) as opened:
        retries = exchange(opened, "direct")
        work, graves = name("orders"), queue(opened)
        delay = name("orders.retry")
        opened.queue_declare(work, exclusive=True, arguments={"x-dead-letter-exchange": retries, "x-dead-letter-routing-key": "retry"})
        arguments = {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}
        opened.queue_declare(delay, exclusive=True, arguments=arguments)
        opened.queue_bind(delay, retries, "retry")
        publish(opened, work, json.dumps({"order": 7}), content_type="application/json", delivery_mode=2)
        publish(opened, work, "not json", delivery_mode=2)
        handled, attempts = [], 0
        while not (handled and attempts == 4):
            method, properties, body = get(opened, work, auto_ack=False)
            history = (properties.headers or {}).get("x-death", [])
            rejected = sum(death["count"] for death in history if death["queue"] == work and death["reason"] == "rejected")
            try:
                handled.append(json.loads(body))
                opened.basic_ack(method.delivery_tag)
            except ValueError:
                attempts += 1
                same(rejected, attempts - 1)
                if rejected >= 3:
                    publish(opened, graves, body, headers=properties.headers)
                    opened.basic_ack(method.delivery_tag)
                else:
                    opened.basic_nack(method.delivery_tag, requeue=False)
        same(handled, [{"order": 7}])
        _, properties, body = get(opened, graves)
        same(body, "not json")
        assert is_empty(opened, work) and is_empty(opened, delay)


@check
def a_delayed_message_by_expiry():
    with channel(confirms=True) as opened:
        due = queue(opened)
        waiting = queue(opened, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": due})
        publish(opened, waiting, "later", expiration="300")
        assert is_empty(opened, due)
        same(get(opened, due)[2], "later")


@check
def durable_things_are_declared_once_and_found_again():
    q, x = name("durable"), name("x")
    with channel(confirms=True) as opened:
        opened.exchange_declare(x, "topic", durable=True)
        opened.queue_declare(q, durable=True)
        opened.queue_bind(q, x, "order.*")
        publish(opened, "order.created", "1", exchange=x, delivery_mode=2)
    with channel(confirms=True) as opened:
        opened.exchange_declare(x, "topic", durable=True)
        opened.queue_declare(q, durable=True)
        publish(opened, "order.paid", "2", exchange=x, delivery_mode=2)
        same([get(opened, q)[2] for _ in range(2)], ["1", "2"])
        opened.queue_delete(q)
        opened.exchange_delete(x)
