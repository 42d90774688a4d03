"""Publishing, confirms, returns and transactions."""

import pika
from pika.exceptions import NackError, UnroutableError

from harness import (
    USER,
    bodies,
    channel,
    channel_error,
    channel_error_with,
    check,
    depth,
    eventually,
    get,
    is_empty,
    name,
    publish,
    queue,
    raises,
    same,
)

ALL = {
    "content_type": "application/json",
    "content_encoding": "identity",
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "600000",
    "message_id": "m",
    "timestamp": 1700000000,
    "type": "t",
    "user_id": USER,
    "app_id": "a",
    "cluster_id": "k",
}


@check
def properties_come_back_as_they_were_sent():
    headers = {
        "text": "é",
        "true": True,
        "small": -5,
        "large": 1 << 40,
        "none": None,
        "list": [1, "two", [3]],
        "table": {"inner": {"n": 1}},
        "bytes": b"\x00\xff",
    }
    with channel(confirms=True) as opened:
        q = queue(opened)
        publish(opened, q, "x", headers=headers, **ALL)
        _, properties, _ = get(opened, q)
        same({key: getattr(properties, key) for key in ALL}, ALL)
        same(properties.headers, headers)
        publish(opened, q, "y")
        _, properties, _ = get(opened, q)
        same(properties, pika.BasicProperties())


@check
def confirms_are_given_for_everything():
    with channel(confirms=True) as opened:
        q = queue(opened, durable=True, exclusive=False)
        for index in range(200):
            publish(opened, q, str(index), delivery_mode=1 + index % 2)
        same(bodies(opened, q, 200), [str(index) for index in range(200)])
        # What reaches no queue is confirmed too.
        publish(opened, name(), "x")
        opened.queue_delete(q)


@check
def what_cannot_be_routed_is_returned_before_its_confirm():
    with channel(confirms=True) as opened:
        q = name()
        error = raises(UnroutableError, lambda: publish(opened, q, "x", mandatory=True, message_id="m"))
        (returned,) = error.messages
        same((returned.method.reply_code, returned.method.reply_text), (312, "NO_ROUTE"))
        same((returned.method.exchange, returned.method.routing_key), ("", q))
        same((returned.body, returned.properties.message_id), (b"x", "m"))


@check
def what_cannot_be_routed_is_returned_without_confirms():
    with channel() as opened:
        returned = []
        opened.add_on_return_callback(lambda _channel, method, _properties, body: returned.append((method.routing_key, body)))
        q = name()
        publish(opened, q, "x", mandatory=True)
        publish(opened, q, "y")
        publish(opened, q, "z", mandatory=True)

        def look():
            opened.connection.process_data_events(time_limit=0.05)
            return len(returned) == 2

        eventually(look)
        same(returned, [(q, b"x"), (q, b"z")])


@check
def confirm_mode_may_be_selected_twice():
    with channel(confirms=True) as opened:
        opened._impl.confirm_delivery(lambda _: None)
        publish(opened, queue(opened), "x")


@check
def a_user_id_is_the_senders_own():
    text = f"PRECONDITION_FAILED - user_id property set to 'nobody' but authenticated user was '{USER}'"
    channel_error(406, text, lambda opened: publish(opened, name(), "x", user_id="nobody"), confirms=True)


@check
def an_expiration_is_a_number():
    for text in ("soon", "-1", "1.5", ""):

        def send(opened, text=text):
            publish(opened, queue(opened), "x", expiration=text)

        channel_error_with(406, f"PRECONDITION_FAILED - invalid expiration '{text}': ", send, confirms=True)


@check
def a_transaction_publishes_at_its_commit():
    with channel() as opened, channel() as other:
        q = queue(opened, exclusive=False, auto_delete=True)
        opened.tx_select()
        publish(opened, q, "a")
        publish(opened, q, "b")
        same(depth(other, q), 0)
        opened.tx_commit()
        same(depth(other, q), 2)
        publish(opened, q, "c")
        opened.tx_rollback()
        same(bodies(other, q, 2), ["a", "b"])
        assert is_empty(other, q)
        other.queue_delete(q)


@check
def a_transaction_acknowledges_at_its_commit():
    with channel() as opened:
        q = queue(opened)
        for body in "ab":
            publish(opened, q, body)
        opened.tx_select()
        first, _, _ = get(opened, q, auto_ack=False)
        opened.basic_ack(first.delivery_tag)
        opened.tx_rollback()
        # The delivery is still out, and can be acknowledged again.
        opened.basic_ack(first.delivery_tag)
        opened.tx_commit()
        second, _, _ = get(opened, q, auto_ack=False)
        opened.basic_reject(second.delivery_tag, requeue=True)
        assert is_empty(opened, q)
        opened.tx_commit()
        same(get(opened, q)[2], "b")


@check
def transactions_and_confirms_exclude_each_other():
    text = "PRECONDITION_FAILED - cannot switch from tx to confirm mode"
    channel_error(406, text, lambda opened: (opened.tx_select(), opened.confirm_delivery()))
    text = "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
    channel_error(406, text, lambda opened: opened.tx_select(), confirms=True)
    text = "PRECONDITION_FAILED - channel is not transactional"
    channel_error(406, text, lambda opened: opened.tx_commit())
    channel_error(406, text, lambda opened: opened.tx_rollback())


@check
def a_full_queue_may_refuse():
    with channel(confirms=True) as opened:
        q = queue(opened, {"x-max-length": 2, "x-overflow": "reject-publish"})
        publish(opened, q, "a")
        publish(opened, q, "b")
        raises(NackError, lambda: publish(opened, q, "c"))
        same(bodies(opened, q, 1), ["a"])
        publish(opened, q, "d")
        same(bodies(opened, q, 2), ["b", "d"])
