"""Consuming, getting, acknowledging, prefetching."""

import time

from harness import (
    PATIENCE,
    VHOST,
    Consumer,
    bodies,
    channel,
    channel_error,
    channel_error_with,
    check,
    connected,
    connection_error,
    depth,
    eventually,
    get,
    is_empty,
    name,
    publish,
    queue,
    same,
)


def filled(opened, count, arguments=None, **options):
    q = queue(opened, arguments, **options)
    for index in range(count):
        publish(opened, q, str(index))
    return q


def expected(*numbers):
    return [str(number) for number in numbers]


@check
def getting_counts_what_remains():
    with channel(confirms=True) as opened:
        q = filled(opened, 3)
        got = [get(opened, q, auto_ack=False)[0] for _ in range(3)]
        same([method.delivery_tag for method in got], [1, 2, 3])
        same([method.message_count for method in got], [2, 1, 0])
        same([method.redelivered for method in got], [False] * 3)
        assert is_empty(opened, q)


@check
def consumers_take_turns():
    with channel(confirms=True) as opened:
        q = queue(opened)
        first, second = Consumer(opened, q), Consumer(opened, q)
        for index in range(10):
            publish(opened, q, str(index))
        first.wait(5), second.wait(5)
        same(sorted(map(int, first.bodies(5) + second.bodies(5))), list(range(10)))
        same(len(first.received), 5)


@check
def delivery_tags_are_shared_by_the_channel():
    with channel(confirms=True) as opened:
        one, two = filled(opened, 2), filled(opened, 2)
        first = Consumer(opened, one)
        first.wait(2)
        same(get(opened, two, auto_ack=False)[0].delivery_tag, 3)
        second = Consumer(opened, two)
        same(second.wait(1)[0][0].delivery_tag, 4)


@check
def prefetch_limits_each_consumer():
    with channel(confirms=True) as opened:
        q = filled(opened, 10)
        opened.basic_qos(prefetch_count=2)
        first = Consumer(opened, q)
        opened.basic_qos(prefetch_count=3)
        second = Consumer(opened, q)
        first.wait(2), second.wait(3)
        first.settled()
        same((len(first.received), len(second.received)), (2, 3))
        opened.basic_ack(first.received[0][0].delivery_tag)
        first.wait(3)
        second.settled()
        same((len(first.received), len(second.received)), (3, 3))


@check
def prefetch_may_limit_the_channel():
    with channel(confirms=True) as opened:
        q = filled(opened, 10)
        opened.basic_qos(prefetch_count=3, global_qos=True)
        first, second = Consumer(opened, q), Consumer(opened, q)
        eventually(lambda: (first.settled(), len(first.received) + len(second.received) >= 3)[1])
        first.settled()
        total = len(first.received) + len(second.received)
        # 4.3 may treat it as a limit for each consumer that follows.
        assert total in (3, 6), total


@check
def prefetch_does_not_limit_what_is_not_acknowledged():
    with channel(confirms=True) as opened:
        q = filled(opened, 10)
        opened.basic_qos(prefetch_count=1)
        same(Consumer(opened, q, auto_ack=True).bodies(10), expected(*range(10)))
        q = filled(opened, 3)
        for _ in range(3):
            get(opened, q, auto_ack=False)


@check
def acknowledging_many_at_once():
    with channel(confirms=True) as opened:
        q = filled(opened, 5)
        consumer = Consumer(opened, q)
        tags = [method.delivery_tag for method, _, _ in consumer.wait(5)]
        opened.basic_ack(tags[2], multiple=True)
        opened.basic_recover(requeue=True)
        again = consumer.wait(7)[5:]
        same([body for _, _, body in again], expected(3, 4))
        same([method.redelivered for method, _, _ in again], [True, True])
        opened.basic_ack(0, multiple=True)
        opened.basic_cancel(consumer.tag)
        same(depth(opened, q), 0)
        # Zero is everything so far, even if that is nothing.
        opened.basic_ack(0, multiple=True)
        opened.basic_qos(prefetch_count=1)


@check
def unknown_delivery_tags_close_the_channel():
    def text(tag):
        return f"PRECONDITION_FAILED - unknown delivery tag {tag}"

    def twice(opened):
        q = filled(opened, 1)
        tag = get(opened, q, auto_ack=False)[0].delivery_tag
        opened.basic_ack(tag)
        opened.basic_ack(tag)
        opened.basic_qos(prefetch_count=1)

    def not_needed(opened):
        q = filled(opened, 1)
        opened.basic_ack(get(opened, q)[0].delivery_tag)
        opened.basic_qos(prefetch_count=1)

    channel_error(406, text(1), twice)
    channel_error(406, text(1), not_needed)
    for settle in (
        lambda opened: opened.basic_ack(99),
        lambda opened: opened.basic_nack(99),
        lambda opened: opened.basic_reject(99),
    ):
        channel_error(406, text(99), lambda opened, settle=settle: (settle(opened), opened.basic_qos(prefetch_count=1)))
    channel_error(406, text(0), lambda opened: (opened.basic_ack(0), opened.basic_qos(prefetch_count=1)))


@check
def requeueing_keeps_the_order():
    with channel(confirms=True) as opened:
        q = filled(opened, 5)
        tags = [get(opened, q, auto_ack=False)[0].delivery_tag for _ in range(4)]
        for index in (2, 0, 3, 1):
            opened.basic_nack(tags[index], requeue=True)
        got = [get(opened, q) for _ in range(5)]
        same([body for _, _, body in got], expected(*range(5)))
        same([method.redelivered for method, _, _ in got], [True] * 4 + [False])


@check
def rejecting_several_at_once():
    with channel(confirms=True) as opened:
        q = filled(opened, 4)
        tags = [get(opened, q, auto_ack=False)[0].delivery_tag for _ in range(4)]
        opened.basic_nack(tags[1], multiple=True, requeue=True)
        opened.basic_reject(tags[2], requeue=False)
        opened.basic_reject(tags[3], requeue=True)
        same(bodies(opened, q, 3), expected(0, 1, 3))
        assert is_empty(opened, q)


@check
def recovering_without_requeueing_is_not_implemented():
    connection_error(540, "NOT_IMPLEMENTED - requeue=false", lambda opened: opened.basic_recover(requeue=False))


@check
def a_closed_channel_returns_its_messages():
    with connected() as connection:
        first, second = connection.channel(), connection.channel()
        q = filled(first, 3)
        consumer = Consumer(second, q)
        consumer.wait(3)
        second.close()
        got = [get(first, q) for _ in range(3)]
        same([body for _, _, body in got], expected(0, 1, 2))
        same([method.redelivered for method, _, _ in got], [True] * 3)


@check
def cancelling_keeps_what_is_out():
    with channel(confirms=True) as opened:
        q = filled(opened, 2)
        opened.basic_qos(prefetch_count=1)
        consumer = Consumer(opened, q)
        (method, _, _) = consumer.wait(1)[0]
        opened.basic_cancel(consumer.tag)
        same(depth(opened, q), 1)
        opened.basic_nack(method.delivery_tag, requeue=True)
        same(bodies(opened, q, 2), expected(0, 1))


@check
def an_exclusive_consumer_is_alone():
    with channel() as opened:
        q = queue(opened, exclusive=False, auto_delete=True)
        text = f"ACCESS_REFUSED - queue '{q}' in vhost '{VHOST}' in exclusive use"
        only = opened.basic_consume(q, lambda *_: None, exclusive=True)
        channel_error(403, text, lambda other: other.basic_consume(q, print))
        channel_error(403, text, lambda other: other.basic_consume(q, print, exclusive=True))
        shared = queue(opened, exclusive=False, auto_delete=True)
        opened.basic_consume(shared, lambda *_: None)
        text = f"ACCESS_REFUSED - queue '{shared}' in vhost '{VHOST}' in exclusive use"
        channel_error(403, text, lambda other: other.basic_consume(shared, print, exclusive=True))
        opened.basic_cancel(only)


@check
def a_deleted_queue_cancels_its_consumers():
    with channel() as opened, channel() as other:
        q = queue(opened, exclusive=False)
        cancelled = []
        opened.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        tag = opened.basic_consume(q, lambda *_: None)
        other.queue_delete(q)

        def look():
            opened.connection.process_data_events(time_limit=0.05)
            return cancelled

        same(eventually(look), [tag])
        assert opened.is_open


@check
def higher_priority_consumers_come_first():
    with channel(confirms=True) as opened:
        q = queue(opened)
        opened.basic_qos(prefetch_count=2)
        low = Consumer(opened, q, arguments={"x-priority": -1})
        high = Consumer(opened, q, arguments={"x-priority": 10})
        usual = Consumer(opened, q)
        for index in range(5):
            publish(opened, q, str(index))
        same(high.bodies(2), expected(0, 1))
        same(usual.bodies(2), expected(2, 3))
        same(low.bodies(1), expected(4))


@check
def one_consumer_is_active():
    with channel(confirms=True) as opened:
        q = queue(opened, {"x-single-active-consumer": True})
        first, second, third = Consumer(opened, q), Consumer(opened, q), Consumer(opened, q)
        for index in range(4):
            publish(opened, q, str(index))
        same(first.bodies(4), expected(*range(4)))
        same((second.settled(), third.settled()), ([], []))
        opened.basic_ack(0, multiple=True)
        opened.basic_cancel(first.tag)
        publish(opened, q, "4")
        same(second.bodies(1), ["4"])
        same(third.settled(), [])


@check
def one_active_consumer_cannot_be_exclusive():
    def consume(opened):
        opened.basic_consume(queue(opened, {"x-single-active-consumer": True}), print, exclusive=True)

    channel_error_with(403, "in exclusive use", consume)


@check
def a_quorum_queue_counts_deliveries():
    with channel(confirms=True) as opened:
        graves = queue(opened)
        arguments = {
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": graves,
        }
        q = name()
        opened.queue_declare(q, durable=True, arguments=arguments)
        publish(opened, q, "x")
        consumer = Consumer(opened, q)
        counts = []
        for index in range(3):
            method, properties, _ = consumer.wait(index + 1)[index]
            counts.append(((properties.headers or {}).get("x-delivery-count", 0), method.redelivered))
            opened.basic_nack(method.delivery_tag, requeue=True)
        same(counts, [(0, False), (1, True), (2, True)])
        _, properties, body = get(opened, graves)
        same(body, "x")
        death = properties.headers["x-death"][0]
        same((death["reason"], death["queue"], death["count"]), ("delivery_limit", q, 1))
        opened.queue_delete(q)


@check
def a_quorum_queue_is_durable_and_shared():
    for options in ({"durable": False}, {"durable": True, "exclusive": True}):

        def declare(opened, options=options):
            opened.queue_declare(name(), arguments={"x-queue-type": "quorum"}, **options)

        channel_error_with(406, "", declare)


@check
def many_messages_arrive_in_order():
    with channel() as opened:
        q = queue(opened)
        for index in range(5000):
            publish(opened, q, str(index))
        begun = time.monotonic()
        consumer = Consumer(opened, q)
        same(consumer.bodies(5000), expected(*range(5000)))
        opened.basic_ack(0, multiple=True)
        assert time.monotonic() - begun < PATIENCE
