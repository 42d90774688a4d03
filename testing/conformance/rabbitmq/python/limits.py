"""Queues with limits: of time, of length, of priorities. Where messages go that exceed them."""

import datetime
import time

from pika.exceptions import NackError

from harness import (
    bodies,
    channel,
    check,
    depth,
    eventually,
    exchange,
    get,
    is_empty,
    name,
    publish,
    queue,
    raises,
    same,
)


def dead(opened, **more):
    """A queue for dead letters, and the arguments that send them there."""
    graves = queue(opened)
    return graves, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": graves, **more}


def deaths(properties):
    return [(death["queue"], death["reason"], death["count"]) for death in properties.headers["x-death"]]


@check
def messages_expire_after_the_time_of_the_queue():
    with channel(confirms=True) as opened:
        q = queue(opened, {"x-message-ttl": 200})
        publish(opened, q, "x")
        publish(opened, q, "y", expiration="600000")
        same(depth(opened, q), 2)
        eventually(lambda: depth(opened, q) == 0)


@check
def messages_expire_after_their_own_time():
    with channel(confirms=True) as opened:
        q = queue(opened, {"x-message-ttl": 600000})
        publish(opened, q, "short", expiration="200")
        publish(opened, q, "long")
        eventually(lambda: depth(opened, q) == 1)
        same(get(opened, q)[2], "long")


@check
def a_time_of_zero_needs_a_waiting_consumer():
    with channel(confirms=True) as opened:
        q = queue(opened, {"x-message-ttl": 0})
        publish(opened, q, "lost")
        # Malote needs up to a millisecond.
        eventually(lambda: depth(opened, q) == 0)
        got = []
        opened.basic_consume(q, lambda *message: got.append(message[3]), auto_ack=True)
        publish(opened, q, "found")

        def look():
            opened.connection.process_data_events(time_limit=0.05)
            return got

        same(eventually(look), [b"found"])


@check
def expired_messages_go_to_the_dead_letter_exchange():
    with channel(confirms=True) as opened:
        graves, arguments = dead(opened)
        q = queue(opened, arguments)
        sent = int(time.time())
        publish(opened, q, "x", expiration="100", message_id="m", headers={"mine": 1})
        method, properties, body = get(opened, graves)
        same((method.exchange, method.routing_key, method.redelivered, body), ("", graves, False, "x"))
        same((properties.message_id, properties.expiration), ("m", None))
        headers = properties.headers
        (death,) = headers["x-death"]
        assert isinstance(death["time"], datetime.datetime), death
        when = death.pop("time").replace(tzinfo=datetime.timezone.utc).timestamp()
        assert sent - 2 <= when <= time.time() + 2, when
        expected = {
            "count": 1,
            "reason": "expired",
            "queue": q,
            "exchange": "",
            "routing-keys": [q],
            "original-expiration": "100",
        }
        same(death, expected)
        same(headers["mine"], 1)
        first = {key: headers[f"x-first-death-{key}"] for key in ("reason", "queue", "exchange")}
        same(first, {"reason": "expired", "queue": q, "exchange": ""})


@check
def rejected_messages_go_to_the_dead_letter_exchange():
    with channel(confirms=True) as opened:
        graves = exchange(opened, "fanout")
        buried = queue(opened)
        opened.queue_bind(buried, graves, "")
        x = exchange(opened, "topic")
        q = queue(opened, {"x-dead-letter-exchange": graves})
        opened.queue_bind(q, x, "#")
        publish(opened, "a.b", "x", exchange=x, headers={"CC": ["c.d"], "BCC": ["e"]})
        opened.basic_reject(get(opened, q, auto_ack=False)[0].delivery_tag, requeue=False)
        method, properties, _ = get(opened, buried)
        # Without a key of its own it keeps the key that it had.
        same((method.exchange, method.routing_key), (graves, "a.b"))
        (death,) = properties.headers["x-death"]
        same((death["reason"], death["exchange"], death["routing-keys"]), ("rejected", x, ["a.b", "c.d"]))
        assert "original-expiration" not in death


@check
def without_a_dead_letter_exchange_rejected_messages_are_gone():
    with channel(confirms=True) as opened:
        q = queue(opened)
        publish(opened, q, "x")
        opened.basic_nack(get(opened, q, auto_ack=False)[0].delivery_tag, requeue=False)
        assert is_empty(opened, q)
        q = queue(opened, {"x-dead-letter-exchange": name("missing")})
        publish(opened, q, "x")
        opened.basic_nack(get(opened, q, auto_ack=False)[0].delivery_tag, requeue=False)
        assert is_empty(opened, q)


@check
def the_oldest_is_dropped_from_a_full_queue():
    with channel(confirms=True) as opened:
        graves, arguments = dead(opened)
        q = queue(opened, {"x-max-length": 3, **arguments})
        for index in range(5):
            publish(opened, q, str(index))
        same(bodies(opened, q, 3), ["2", "3", "4"])
        got = [get(opened, graves) for _ in range(2)]
        same([body for _, _, body in got], ["0", "1"])
        same(deaths(got[0][1]), [(q, "maxlen", 1)])


@check
def only_ready_messages_fill_a_queue():
    with channel(confirms=True) as opened:
        q = queue(opened, {"x-max-length": 1})
        publish(opened, q, "a")
        get(opened, q, auto_ack=False)
        publish(opened, q, "b")
        same(bodies(opened, q, 1), ["b"])


@check
def a_queue_may_be_full_by_bytes():
    with channel(confirms=True) as opened:
        # Malote counts headers and properties too, so the bodies are much larger than these.
        q = queue(opened, {"x-max-length-bytes": 10_000})
        for body in ("aaaa", "bbbb", "cccc"):
            publish(opened, q, body * 1_000)
        same(bodies(opened, q, 2), ["bbbb" * 1_000, "cccc" * 1_000])
        publish(opened, q, "x" * 10_001)
        eventually(lambda: is_empty(opened, q))


@check
def a_full_queue_may_refuse_and_bury():
    with channel(confirms=True) as opened:
        graves, arguments = dead(opened)
        q = queue(opened, {"x-max-length": 1, "x-overflow": "reject-publish-dlx", **arguments})
        publish(opened, q, "a")
        raises(NackError, lambda: publish(opened, q, "b"))
        _, properties, body = get(opened, graves)
        same((body, deaths(properties)), ("b", [(q, "maxlen", 1)]))


@check
def repeated_deaths_are_counted_newest_first():
    """Rejected from `work` to `retry`, which expires back to `work`: the usual retry with a delay."""
    with channel(confirms=True) as opened:
        work, retry = name("work"), name("retry")
        opened.queue_declare(work, exclusive=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": retry})
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work, "x-message-ttl": 50}
        opened.queue_declare(retry, exclusive=True, arguments=back)
        publish(opened, work, "x")
        for attempt in range(4):
            method, properties, _ = get(opened, work, auto_ack=False)
            expected = [(retry, "expired", attempt), (work, "rejected", attempt)] if attempt else []
            same(deaths(properties) if attempt else [], expected)
            if attempt:
                same(properties.headers["x-first-death-reason"], "rejected")
                same(properties.headers["x-first-death-queue"], work)
            opened.basic_reject(method.delivery_tag, requeue=False)


@check
def a_message_does_not_circulate_by_itself():
    with channel(confirms=True) as opened:
        q = name()
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": q, "x-message-ttl": 50}
        opened.queue_declare(q, exclusive=True, arguments=arguments)
        publish(opened, q, "x")
        eventually(lambda: depth(opened, q) == 0)
        time.sleep(0.3)
        same(depth(opened, q), 0)


@check
def deleting_and_purging_bury_nothing():
    with channel(confirms=True) as opened:
        graves, arguments = dead(opened)
        q = queue(opened, arguments)
        publish(opened, q, "x")
        opened.queue_purge(q)
        publish(opened, q, "y")
        opened.queue_delete(q)
        time.sleep(0.2)
        same(depth(opened, graves), 0)


@check
def higher_priorities_come_first():
    with channel(confirms=True) as opened:
        q = queue(opened, {"x-max-priority": 5})
        for body, priority in (("a", None), ("b", 1), ("c", 5), ("d", 9), ("e", 1), ("f", 0)):
            publish(opened, q, body, **({} if priority is None else {"priority": priority}))
        same(bodies(opened, q, 6), ["c", "d", "b", "e", "a", "f"])


@check
def priorities_are_ignored_without_the_argument():
    with channel(confirms=True) as opened:
        q = queue(opened)
        publish(opened, q, "a", priority=0)
        publish(opened, q, "b", priority=9)
        same(bodies(opened, q, 2), ["a", "b"])
