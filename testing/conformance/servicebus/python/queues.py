"""Queues: send, receive in both modes, all settlements, locks, dead letters."""

import datetime
import time
import uuid

from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from harness import api, body, client, main, queue, raises


def receive(receiver, count=1, wait=5):
    got = []
    while len(got) < count:
        more = receiver.receive_messages(max_message_count=count - len(got), max_wait_time=wait)
        assert more, f"{len(got)} of {count} messages came"
        got += more
    return got


def send_and_receive_a_message():
    name = queue()
    with client() as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        sent = ServiceBusMessage(
            "hello",
            subject="label",
            message_id="m1",
            correlation_id="c1",
            content_type="text/plain",
            to="there",
            reply_to="back",
            reply_to_session_id="rs",
            session_id="s",
            partition_key="s",
            time_to_live=datetime.timedelta(seconds=100),
            application_properties={"n": 1, "t": "x", "b": True, "f": 1.5, "u": uuid.UUID(int=5)},
        )
        sender.send_messages(sent)
        (got,) = receive(receiver)
        assert body(got) == b"hello"
        assert got.subject == "label" and got.message_id == "m1" and got.correlation_id == "c1"
        assert got.content_type == "text/plain" and got.to == "there" and got.reply_to == "back"
        assert got.reply_to_session_id == "rs" and got.session_id == "s" and got.partition_key == "s"
        assert got.time_to_live == datetime.timedelta(seconds=100)
        names = {k.decode(): v for k, v in got.application_properties.items()}
        assert names == {"n": 1, "t": b"x", "b": True, "f": 1.5, "u": uuid.UUID(int=5)}, names
        assert got.delivery_count == 0 and got.sequence_number == 1 and got.enqueued_sequence_number is None
        assert got.lock_token and got.locked_until_utc > datetime.datetime.now(datetime.timezone.utc)
        assert got.enqueued_time_utc and got.expires_at_utc
        receiver.complete_message(got)
        assert receiver.receive_messages(max_wait_time=1) == []


def bodies_of_every_kind_are_preserved():
    name = queue()
    with client() as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        sender.send_messages(AmqpAnnotatedMessage(data_body=[b"one", b"two"]))
        sender.send_messages(AmqpAnnotatedMessage(value_body={b"k": [1, b"v"]}))
        sender.send_messages(AmqpAnnotatedMessage(sequence_body=[[1, 2], [b"x"]]))
        sender.send_messages(ServiceBusMessage(b""))
        data, value, sequence, empty = receive(receiver, 4)
        assert list(data.body) == [b"one", b"two"]
        assert value.body_type == AmqpMessageBodyType.VALUE and value.body == {b"k": [1, b"v"]}
        assert sequence.body_type == AmqpMessageBodyType.SEQUENCE
        assert [list(part) for part in sequence.body] == [[1, 2], [b"x"]]
        assert body(empty) == b""
        assert data.message_id, "a message without an id gets one"


def batches_are_in_order_and_all_or_nothing():
    name = queue(message_bytes_max=2000)
    with client() as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        sender.send_messages([ServiceBusMessage(str(i)) for i in range(20)])
        batch = sender.create_message_batch()
        for i in range(20, 25):
            batch.add_message(ServiceBusMessage(str(i)))
        sender.send_messages(batch)
        got = receive(receiver, 25)
        assert [int(body(m)) for m in got] == list(range(25))
        for message in got:
            receiver.complete_message(message)
        assert receiver.receive_messages(max_wait_time=1) == []


def large_messages_use_several_frames():
    name = queue(message_bytes_max=4 << 20)
    payload = bytes(range(256)) * (8 * 1024)  # 2 MiB, 32 frames
    with client() as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        sender.send_messages(ServiceBusMessage(payload))
        (got,) = receive(receiver)
        assert body(got) == payload
        receiver.complete_message(got)


def too_large_messages_are_refused():
    name = queue(message_bytes_max=100_000)
    with client() as bus, bus.get_queue_sender(name) as sender:
        raises(MessageSizeExceededError, lambda: sender.send_messages(ServiceBusMessage(b"x" * 200_000)))
        sender.send_messages(ServiceBusMessage(b"x" * 1000))


def receive_and_delete():
    name = queue()
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client() as bus, bus.get_queue_sender(name) as sender:
        sender.send_messages([ServiceBusMessage(str(i)) for i in range(10)])
        with bus.get_queue_receiver(name, receive_mode=mode) as receiver:
            got = receive(receiver, 10)
            assert [int(body(m)) for m in got] == list(range(10))
            raises(ValueError, lambda: receiver.complete_message(got[0]))
        with bus.get_queue_receiver(name) as receiver:
            assert receiver.receive_messages(max_wait_time=1) == []


def abandoned_messages_are_redelivered_then_dead_lettered():
    name = queue(failed_max=3)
    with client() as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        sender.send_messages(ServiceBusMessage("x", application_properties={"own": 1}))
        for count in range(3):
            (got,) = receive(receiver)
            assert got.delivery_count == count, got.delivery_count
            receiver.abandon_message(got)
        assert receiver.receive_messages(max_wait_time=1) == []
        with bus.get_queue_receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            (got,) = receive(dead)
            assert got.dead_letter_reason == "MaxDeliveryCountExceeded", got.dead_letter_reason
            assert got.application_properties[b"own"] == 1
            dead.complete_message(got)


def a_dead_letter_has_a_reason():
    name = queue()
    with client() as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        sender.send_messages(ServiceBusMessage("x", message_id="m"))
        (got,) = receive(receiver)
        receiver.dead_letter_message(got, reason="bad", error_description="very bad")
        with bus.get_queue_receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            (got,) = receive(dead)
            assert (got.dead_letter_reason, got.dead_letter_error_description) == ("bad", "very bad")
            assert got.message_id == "m" and body(got) == b"x"
            # Abandoned many times: dead letters have no delivery limit.
            for _ in range(12):
                dead.abandon_message(got)
                (got,) = receive(dead)
            dead.complete_message(got)


def deferred_messages_are_received_by_sequence_number():
    name = queue()
    with client() as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        sender.send_messages([ServiceBusMessage(str(i)) for i in range(4)])
        got = receive(receiver, 4)
        for message in got:
            receiver.defer_message(message)
        assert receiver.receive_messages(max_wait_time=1) == []
        peeked = receiver.peek_messages(max_message_count=10, sequence_number=1)
        assert [m.state for m in peeked] == [ServiceBusMessageState.DEFERRED] * 4
        numbers = [m.sequence_number for m in got]
        first = receiver.receive_deferred_messages(numbers[:2])
        assert [body(m) for m in first] == [b"0", b"1"] and all(m.lock_token for m in first)
        receiver.renew_message_lock(first[0])
        receiver.complete_message(first[0])
        receiver.abandon_message(first[1])
        (again,) = receiver.receive_deferred_messages(numbers[1])
        assert again.delivery_count == 1, again.delivery_count
        receiver.dead_letter_message(again, reason="r")
        raises(MessageNotFoundError, lambda: receiver.receive_deferred_messages(numbers[:2]))
        raises(MessageNotFoundError, lambda: receiver.receive_deferred_messages([99]))
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with bus.get_queue_receiver(name, receive_mode=mode) as taker:
            (taken,) = taker.receive_deferred_messages(numbers[2])
            assert body(taken) == b"2"
        raises(MessageNotFoundError, lambda: receiver.receive_deferred_messages(numbers[2]))


def locks_are_renewed_and_expire():
    name = queue(lock_ms=2000)
    with client() as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        sender.send_messages(ServiceBusMessage("x"))
        (got,) = receive(receiver)
        before = got.locked_until_utc
        time.sleep(0.2)
        assert receiver.renew_message_lock(got) > before
        assert got.locked_until_utc > before
        # The client refuses because of its own clock; the server must refuse as well.
        got._expiry = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
        (again,) = receive(receiver, wait=10)
        assert again.delivery_count == 1
        raises(MessageLockLostError, lambda: receiver.renew_message_lock(got))
        raises(MessageLockLostError, lambda: receiver.complete_message(got))
        receiver.complete_message(again)


def peek_changes_nothing():
    name = queue()
    with client() as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        assert receiver.peek_messages() == []
        sender.send_messages([ServiceBusMessage(str(i)) for i in range(120)])
        first = receiver.peek_messages(max_message_count=100)
        rest = receiver.peek_messages(max_message_count=100, sequence_number=first[-1].sequence_number + 1)
        assert [int(body(m)) for m in first + rest] == list(range(120))
        (got,) = receive(receiver)
        assert body(got) == b"0" and got.delivery_count == 0
        assert body(receiver.peek_messages(sequence_number=1)[0]) == b"0", "a locked message is peeked"
        receiver.complete_message(got)


def scheduled_messages_are_delivered_when_due():
    name = queue()
    with client() as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        now = datetime.datetime.now(datetime.timezone.utc)
        soon, later = now + datetime.timedelta(seconds=2), now + datetime.timedelta(hours=1)
        (first,) = sender.schedule_messages(ServiceBusMessage("soon"), soon)
        numbers = sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], later)
        assert len(numbers) == 2 and first not in numbers
        peeked = receiver.peek_messages(max_message_count=10)
        assert [m.state for m in peeked] == [ServiceBusMessageState.SCHEDULED] * 3
        assert peeked[1].scheduled_enqueue_time_utc is not None
        sender.cancel_scheduled_messages(numbers)
        raises(ServiceBusError, lambda: sender.cancel_scheduled_messages(numbers))
        (got,) = receive(receiver, wait=10)
        assert body(got) == b"soon"
        receiver.complete_message(got)
        sender.send_messages(ServiceBusMessage("by annotation", scheduled_enqueue_time_utc=later))
        assert receiver.receive_messages(max_wait_time=1) == []


def expired_messages_are_dropped_or_dead_lettered():
    name = queue(on_expiry="dead_letter")
    with client() as bus, bus.get_queue_sender(name) as sender:
        sender.send_messages(ServiceBusMessage("x", time_to_live=datetime.timedelta(milliseconds=300)))
        time.sleep(0.6)
        with bus.get_queue_receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            (got,) = receive(dead)
            assert got.dead_letter_reason == "TTLExpiredException", got.dead_letter_reason


def duplicates_are_accepted_and_dropped():
    name = queue(dedup={"window_ms": 60_000})
    with client() as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        for _ in range(3):
            sender.send_messages(ServiceBusMessage("x", message_id="same"))
        (got,) = receive(receiver)
        receiver.complete_message(got)
        assert receiver.receive_messages(max_wait_time=1) == []


def unread_deliveries_are_not_counted():
    name = queue()
    with client() as bus, bus.get_queue_sender(name) as sender:
        sender.send_messages([ServiceBusMessage(str(i)) for i in range(50)])
        with bus.get_queue_receiver(name, prefetch_count=20) as receiver:
            (got,) = receive(receiver)
            receiver.complete_message(got)
        with bus.get_queue_receiver(name) as receiver:
            rest = receive(receiver, 49)
            assert sorted(int(body(m)) for m in rest) == list(range(1, 50))
            assert all(m.delivery_count == 0 for m in rest)


def a_message_wakes_a_waiting_receiver():
    name = queue()
    with client() as bus, bus.get_queue_receiver(name) as receiver, bus.get_queue_sender(name) as sender:
        import threading

        got = []
        waiting = threading.Thread(target=lambda: got.extend(receiver.receive_messages(max_wait_time=20)))
        waiting.start()
        time.sleep(1)
        sender.send_messages(ServiceBusMessage("now"))
        waiting.join(10)
        assert [body(m) for m in got] == [b"now"]


def unknown_entities_are_not_found():
    with client() as bus:
        for address in ("nobody", "nobody/subscriptions/x"):
            sender = bus.get_queue_sender(address)
            raises(MessagingEntityNotFoundError, lambda: sender.send_messages(ServiceBusMessage("x")))
            receiver = bus.get_queue_receiver(address)
            raises(MessagingEntityNotFoundError, lambda: receiver.receive_messages(max_wait_time=1))
            raises(MessagingEntityNotFoundError, lambda: bus.get_queue_receiver(address).peek_messages())


def names_are_case_insensitive():
    name = queue()
    with client() as bus, bus.get_queue_sender(name.upper()) as sender, bus.get_queue_receiver(name) as receiver:
        sender.send_messages(ServiceBusMessage("x"))
        (got,) = receive(receiver)
        receiver.complete_message(got)


def messages_of_other_protocols_are_received():
    name = queue()
    message = {"body": "from http", "subject": "s", "properties": {"a": 1}}
    api("POST", f"/queues/{name}/messages/batch", {"messages": [message]})
    with client() as bus, bus.get_queue_receiver(name) as receiver:
        (got,) = receive(receiver)
        assert body(got) == b"from http" and got.subject == "s", got
        assert got.application_properties == {b"a": 1}, got.application_properties
        receiver.complete_message(got)


main(
    [
        send_and_receive_a_message,
        bodies_of_every_kind_are_preserved,
        batches_are_in_order_and_all_or_nothing,
        large_messages_use_several_frames,
        too_large_messages_are_refused,
        receive_and_delete,
        abandoned_messages_are_redelivered_then_dead_lettered,
        a_dead_letter_has_a_reason,
        deferred_messages_are_received_by_sequence_number,
        locks_are_renewed_and_expire,
        peek_changes_nothing,
        scheduled_messages_are_delivered_when_due,
        expired_messages_are_dropped_or_dead_lettered,
        duplicates_are_accepted_and_dropped,
        unread_deliveries_are_not_counted,
        a_message_wakes_a_waiting_receiver,
        unknown_entities_are_not_found,
        names_are_case_insensitive,
        messages_of_other_protocols_are_received,
    ]
)
