"""Declaring, binding and deleting queues and exchanges, and the errors of it."""

import re
import time

import pika

from harness import (
    VHOST,
    bodies,
    channel,
    channel_error,
    channel_error_with,
    check,
    connected,
    connection_error,
    depth,
    eventually,
    exchange,
    exists,
    get,
    is_empty,
    name,
    publish,
    queue,
    raises,
    same,
)

IN = f"in vhost '{VHOST}'"


@check
def a_queue_gets_a_name():
    with channel() as opened:
        declared = opened.queue_declare("", exclusive=True).method
        assert re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", declared.queue), declared.queue
        same((declared.message_count, declared.consumer_count), (0, 0))
        # "" is the queue that this channel declared last.
        publish(opened, declared.queue, "x")
        same(get(opened, "")[2], "x")


@check
def without_a_queue_the_empty_name_is_none():
    channel_error(404, "NOT_FOUND - no previously declared queue", lambda opened: opened.queue_purge(""))


@check
def counts_are_of_ready_messages():
    with channel(confirms=True) as opened:
        q = queue(opened)
        for body in "abc":
            publish(opened, q, body)
        get(opened, q, auto_ack=False)
        declared = opened.queue_declare(q, passive=True).method
        same((declared.message_count, declared.consumer_count), (2, 0))
        opened.basic_consume(q, lambda *_: None)
        same(opened.queue_declare(q, passive=True).method.consumer_count, 1)


@check
def a_missing_queue_is_not_found():
    q = name()
    text = f"NOT_FOUND - no queue '{q}' {IN}"
    for do in (
        lambda opened: opened.queue_declare(q, passive=True),
        lambda opened: opened.basic_get(q),
        lambda opened: opened.basic_consume(q, print),
        lambda opened: opened.queue_purge(q),
        lambda opened: opened.queue_bind(q, "amq.direct", "k"),
    ):
        channel_error(404, text, do)


@check
def a_missing_exchange_is_not_found():
    x = name("x")
    text = f"NOT_FOUND - no exchange '{x}' {IN}"
    channel_error(404, text, lambda opened: opened.exchange_declare(x, passive=True))
    channel_error(404, text, lambda opened: opened.queue_bind(queue(opened), x, "k"))
    channel_error(404, text, lambda opened: publish(opened, "k", "x", exchange=x), confirms=True)
    channel_error(404, text, lambda opened: opened.exchange_bind("amq.fanout", x))


@check
def deleting_what_is_not_there_is_fine():
    with channel() as opened:
        same(opened.queue_delete(name()).method.message_count, 0)
        opened.exchange_delete(name("x"))
        q = queue(opened)
        opened.queue_unbind(q, "amq.direct", "never")
        opened.basic_cancel("never")


@check
def a_queue_is_declared_again_only_with_the_same_flags():
    q = name()
    with channel() as opened:
        opened.queue_declare(q, durable=False, auto_delete=False, exclusive=False)
        opened.queue_declare(q, durable=False, auto_delete=False, exclusive=False)
        text = f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{q}' {IN}: received 'true' but current is 'false'"
        channel_error(406, text, lambda other: other.queue_declare(q, durable=True))
        text = text.replace("durable", "auto_delete")
        channel_error(406, text, lambda other: other.queue_declare(q, auto_delete=True))
        opened.queue_delete(q)


@check
def a_queue_is_declared_again_only_with_the_same_arguments():
    q = name()
    with channel() as opened:
        opened.queue_declare(q, arguments={"x-message-ttl": 1000})
        text = f"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '{q}' {IN}: "
        for ttl, kind in ((2000, "signedint"), (1 << 31, "long")):
            texts = [
                f"{text}received '{ttl}' but current is '1000'",
                f"{text}received the value '{ttl}' of type '{kind}' but current is the value '1000' of type 'signedint'",
            ]
            channel_error(406, texts, lambda other, ttl=ttl: other.queue_declare(q, arguments={"x-message-ttl": ttl}))
        text = (
            f"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '{q}' {IN}: "
            "received none but current is the value '1000' of type 'signedint'"
        )
        channel_error(406, text, lambda other: other.queue_declare(q))
        text = (
            f"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '{q}' {IN}: "
            "received the value '5' of type 'signedint' but current is none"
        )
        arguments = {"x-message-ttl": 1000, "x-max-length": 5}
        channel_error(406, text, lambda other: other.queue_declare(q, arguments=arguments))
        # Unknown arguments are not compared.
        opened.queue_declare(q, arguments={"x-message-ttl": 1000, "x-mine": "a"})
        opened.queue_delete(q)


@check
def arguments_of_queues_are_checked():
    for arguments in (
        {"x-message-ttl": -1},
        {"x-message-ttl": "soon"},
        {"x-expires": 0},
        {"x-max-length": -1},
        {"x-max-priority": 256},
        {"x-max-priority": -1},
        {"x-overflow": "nope"},
        {"x-dead-letter-exchange": 5},
        {"x-dead-letter-routing-key": "k"},
        {"x-single-active-consumer": "yes"},
        {"x-queue-type": "nope"},
    ):

        def declare(opened, arguments=arguments):
            opened.queue_declare(name(), durable=True, auto_delete=True, arguments=arguments)

        (argument,) = arguments
        channel_error_with(406, argument, declare)


@check
def reserved_names_are_refused():
    text = "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"
    channel_error(403, text, lambda opened: opened.queue_declare("amq.mine"))
    text = "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"
    channel_error(403, text, lambda opened: opened.exchange_declare("amq.mine", "direct"))
    text = f"ACCESS_REFUSED - deletion of system exchange 'amq.direct' {IN} not allowed"
    channel_error(403, text, lambda opened: opened.exchange_delete("amq.direct"))


@check
def the_default_exchange_cannot_be_changed():
    text = "ACCESS_REFUSED - operation not permitted on the default exchange"
    channel_error(403, text, lambda opened: opened.exchange_declare("", "direct"))
    channel_error(403, text, lambda opened: opened.exchange_delete(""))
    channel_error(403, text, lambda opened: opened.queue_bind(queue(opened), "", "k"))
    channel_error(403, text, lambda opened: opened.queue_unbind(queue(opened), "", "k"))


@check
def exchanges_are_there_from_the_beginning():
    kinds = {"amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic", "amq.headers": "headers"}
    kinds["amq.match"] = "headers"
    with channel() as opened:
        for x, kind in kinds.items():
            opened.exchange_declare(x, kind, durable=True)


@check
def an_exchange_is_declared_again_only_as_it_is():
    x = name("x")
    with channel() as opened:
        opened.exchange_declare(x, "direct")
        opened.exchange_declare(x, "direct")
        opened.exchange_declare(x, passive=True)
        text = f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{x}' {IN}: received 'fanout' but current is 'direct'"
        channel_error(406, text, lambda other: other.exchange_declare(x, "fanout"))
        text = f"PRECONDITION_FAILED - inequivalent arg 'durable' for exchange '{x}' {IN}: received 'true' but current is 'false'"
        channel_error(406, text, lambda other: other.exchange_declare(x, "direct", durable=True))
        text = text.replace("'durable'", "'auto_delete'")
        channel_error(406, text, lambda other: other.exchange_declare(x, "direct", auto_delete=True))
        text = text.replace("'auto_delete'", "'internal'")
        channel_error(406, text, lambda other: other.exchange_declare(x, "direct", internal=True))
        arguments = {"alternate-exchange": "amq.fanout"}
        text = (
            f"PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange '{x}' {IN}: "
            "received the value 'amq.fanout' of type 'longstr' but current is none"
        )
        channel_error(406, text, lambda other: other.exchange_declare(x, "direct", arguments=arguments))
        opened.exchange_delete(x)


@check
def an_unknown_kind_of_exchange_is_refused():
    def declare(opened):
        opened.exchange_declare(name("x"), "nope")

    with connected() as connection:
        opened = connection.channel()
        error = raises(pika.exceptions.AMQPError, lambda: declare(opened))
        # 3.x closes the connection, 4.x the channel.
        assert error.reply_code in (406, 503), error
        assert "unknown exchange type 'nope'" in error.reply_text or "invalid exchange type 'nope'" in error.reply_text, error


@check
def an_internal_exchange_takes_no_publications():
    with channel() as opened:
        x = exchange(opened, "fanout", internal=True)
        text = f"ACCESS_REFUSED - cannot publish to internal exchange '{x}' {IN}"
        channel_error(403, text, lambda other: publish(other, "", "x", exchange=x), confirms=True)
        opened.exchange_delete(x)


@check
def an_exclusive_queue_belongs_to_its_connection():
    with channel() as opened:
        q = queue(opened, exclusive=True)
        text = (
            f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{q}' {IN}. It could be originally "
            "declared on another connection or the exclusive property value does not match that of the original declaration."
        )
        for do in (
            lambda other: other.queue_declare(q, exclusive=True),
            lambda other: other.queue_declare(q, passive=True),
            lambda other: other.basic_get(q),
            lambda other: other.basic_consume(q, print),
            lambda other: other.queue_purge(q),
            lambda other: other.queue_delete(q),
        ):
            channel_error(405, text, do)
        # Publishing is open to all.
        with channel(confirms=True) as other:
            publish(other, q, "x")
        same(get(opened, q)[2], "x")
    eventually(lambda: not exists("queue", q))


@check
def an_auto_delete_queue_ends_with_its_last_consumer():
    with channel() as opened:
        q = queue(opened, exclusive=False, auto_delete=True)
        publish(opened, q, "x")
        get(opened, q)
        first = opened.basic_consume(q, lambda *_: None)
        second = opened.basic_consume(q, lambda *_: None)
        opened.basic_cancel(first)
        assert exists("queue", q)
        opened.basic_cancel(second)
        eventually(lambda: not exists("queue", q))


@check
def an_auto_delete_exchange_ends_with_its_last_binding():
    with channel() as opened:
        x = exchange(opened, "direct", auto_delete=True)
        first, second = queue(opened), queue(opened)
        opened.queue_bind(first, x, "k")
        opened.queue_bind(second, x, "k")
        opened.queue_unbind(first, x, "k")
        assert exists("exchange", x)
        opened.queue_delete(second)
        eventually(lambda: not exists("exchange", x))


@check
def an_unused_queue_expires():
    with channel() as opened:
        q = queue(opened, {"x-expires": 500}, exclusive=False)
        used = queue(opened, {"x-expires": 500}, exclusive=False)
        opened.basic_consume(used, lambda *_: None)

        def look():
            # To ask for a queue is to use it.
            time.sleep(1.5)
            return not exists("queue", q)

        eventually(look)
        assert exists("queue", used)
        opened.queue_delete(used)


@check
def a_queue_in_use_is_not_deleted_by_accident():
    with channel(confirms=True) as opened:
        q = queue(opened, exclusive=False, auto_delete=False)
        publish(opened, q, "x")
        text = f"PRECONDITION_FAILED - queue '{q}' {IN} not empty"
        channel_error(406, text, lambda other: other.queue_delete(q, if_empty=True))
        opened.basic_consume(q, lambda *_: None)
        text = f"PRECONDITION_FAILED - queue '{q}' {IN} in use"
        channel_error(406, text, lambda other: other.queue_delete(q, if_unused=True))
        with channel() as other:
            other.queue_delete(q)


@check
def an_exchange_in_use_is_not_deleted_by_accident():
    with channel() as opened:
        x = exchange(opened, "direct", auto_delete=False)
        opened.queue_bind(queue(opened), x, "k")
        text = f"PRECONDITION_FAILED - exchange '{x}' {IN} in use"
        channel_error(406, text, lambda other: other.exchange_delete(x, if_unused=True))
        opened.exchange_delete(x)


@check
def purging_leaves_what_is_out():
    with channel(confirms=True) as opened:
        q = queue(opened)
        for body in "abc":
            publish(opened, q, body)
        method, _, _ = get(opened, q, auto_ack=False)
        same(opened.queue_purge(q).method.message_count, 2)
        opened.basic_nack(method.delivery_tag, requeue=True)
        same(bodies(opened, q, 1), ["a"])
        assert is_empty(opened, q)


@check
def deleting_tells_how_many_were_ready():
    with channel(confirms=True) as opened:
        q = queue(opened)
        publish(opened, q, "a")
        publish(opened, q, "b")
        same(opened.queue_delete(q).method.message_count, 2)
        # And takes its bindings with it.
        q = opened.queue_declare(q, exclusive=True).method.queue
        same(depth(opened, q), 0)


@check
def a_reused_consumer_tag_closes_the_connection():
    def twice(opened):
        q = queue(opened)
        opened.basic_consume(q, print, consumer_tag="t")
        # The library refuses a tag that it knows: below it, the second is sent.
        opened._impl._consumers.clear()
        opened._consumer_infos.clear()
        opened.basic_consume(q, print, consumer_tag="t")

    connection_error(530, "NOT_ALLOWED - attempt to reuse consumer tag 't'", twice)
