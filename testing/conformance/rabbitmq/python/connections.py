"""Logging in, tuning, many channels."""

import re

import pika
from pika.exceptions import ProbableAccessDeniedError, ProbableAuthenticationError

from harness import channel, check, connected, get, is_empty, name, publish, queue, raises, same, eventually

CAPABILITIES = [
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
]


@check
def the_server_names_itself_and_its_capabilities():
    with connected() as connection:
        properties = connection._impl.server_properties
        same({name: properties["capabilities"].get(name) for name in CAPABILITIES}, dict.fromkeys(CAPABILITIES, True))
        version = re.fullmatch(r"(\d+)\.(\d+)\.\d+.*", properties["version"])
        assert version and (int(version[1]), int(version[2])) >= (3, 8), properties["version"]
        for field in ("product", "platform", "information", "copyright", "cluster_name"):
            assert isinstance(properties[field], str), field


@check
def a_wrong_password_is_refused():
    credentials = pika.PlainCredentials("guest", "wrong")
    error = raises(ProbableAuthenticationError, lambda: connected(credentials=credentials).__enter__())
    text = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile."
    )
    assert text in str(error), error


@check
def an_unknown_virtual_host_is_refused():
    error = raises(ProbableAccessDeniedError, lambda: connected(virtual_host="nope").__enter__())
    assert "NOT_ALLOWED - vhost nope not found" in str(error), error


@check
def limits_may_be_lowered():
    with connected(frame_max=8192, channel_max=3, heartbeat=5) as connection:
        opened = connection.channel()
        q = queue(opened)
        publish(opened, q, "x" * 100_000)
        same(len(get(opened, q)[2]), 100_000)
        connection.channel()
        connection.channel()
        raises(Exception, connection.channel)


@check
def a_message_may_be_larger_than_a_frame():
    with channel(confirms=True) as opened:
        q = queue(opened)
        body = "".join(chr(32 + index % 90) for index in range(3_000_000))
        publish(opened, q, body)
        assert get(opened, q)[2] == body, "the body is not what was sent"
        publish(opened, q, "")
        same(get(opened, q)[2], "")


@check
def a_hundred_channels():
    with connected() as connection:
        opened = [connection.channel() for _ in range(100)]
        q = queue(opened[0])
        for index, each in enumerate(opened):
            publish(each, q, str(index))
        got = sorted(int(get(each, q)[2]) for each in opened)
        same(got, list(range(100)))
        for each in opened:
            each.close()
        number = connection.channel().channel_number
        same(number, 1)


@check
def an_idle_connection_is_kept_by_heartbeats():
    with connected(heartbeat=1) as connection:
        opened = connection.channel()
        connection.process_data_events(time_limit=4)
        assert opened.is_open
        q = queue(opened)
        assert is_empty(opened, q)


@check
def the_secret_can_be_replaced():
    with connected() as connection:
        connection.update_secret("another", "it was old")
        connection.channel().close()


@check
def a_closed_connection_returns_its_messages():
    q = name()
    with channel() as other:
        other.queue_declare(q, durable=True)
        publish(other, q, "a")
        with channel() as opened:
            method, _, _ = get(opened, q, auto_ack=False)
            same(method.redelivered, False)
        method = eventually(lambda: other.basic_get(q, auto_ack=True)[0])
        same(method.redelivered, True)
        other.queue_delete(q)
