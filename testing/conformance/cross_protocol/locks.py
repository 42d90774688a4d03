"""Locks and sessions exclude receivers of both protocols."""

import uuid

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
)

from both import Both, check

CHECKS = []


def raises(kind, do):
    try:
        result = do()
    except kind as error:
        return error
    raise AssertionError(f"{kind} expected, not {result!r}")


@check(CHECKS)
def sqs_does_not_get_messages_locked_by_service_bus(broker, bus):
    q = Both(broker, bus)
    q.sqs_send()
    with q.bus_one():
        assert q.sqs_receive(WaitTimeSeconds=1) == []
        assert q.count("ApproximateNumberOfMessagesNotVisible") == 1
    assert q.count("ApproximateNumberOfMessagesNotVisible") == 0


@check(CHECKS)
def service_bus_does_not_get_messages_locked_by_sqs(broker, bus):
    q = Both(broker, bus, VisibilityTimeout="600")
    q.bus_send()
    held = q.sqs_one()
    with q.bus_receiver() as receiver:
        assert receiver.receive_messages(max_wait_time=1) == []
        q.sqs.change_message_visibility(QueueUrl=q.url, ReceiptHandle=held["ReceiptHandle"], VisibilityTimeout=0)
        (got,) = receiver.receive_messages(max_wait_time=10)
        receiver.complete_message(got)
    assert q.count() == 0


@check(CHECKS)
def an_expired_lock_is_expired_for_both(broker, bus):
    q = Both(broker, bus, VisibilityTimeout="1")
    q.sqs_send()
    with q.bus_receiver() as receiver:
        (lost,) = receiver.receive_messages(max_wait_time=10)
        got = q.sqs_one()
        assert got["Attributes"]["ApproximateReceiveCount"] == "2", got
        raises(MessageLockLostError, lambda: receiver.complete_message(lost))
    q.sqs.change_message_visibility(QueueUrl=q.url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=60)
    q.sqs_delete(got)
    assert q.count() == 0 and q.count("ApproximateNumberOfMessagesNotVisible") == 0


@check(CHECKS)
def a_held_session_locks_its_group_for_sqs(broker, bus):
    q = Both(broker, bus, fifo=True, ContentBasedDeduplication="true")
    for n in range(4):
        q.sqs_send(f"{n}", MessageGroupId="busy")
    with q.bus_receiver("busy") as receiver:
        assert q.sqs_receive(WaitTimeSeconds=1) == []
        q.sqs_send("free", MessageGroupId="other")
        other = q.sqs_one()
        assert other["Body"] == "free", other
        q.sqs_delete(other)
        for n in range(2):
            (got,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
            assert str(got) == str(n), got
            receiver.complete_message(got)
    # After the release, the remaining messages arrive in order.
    rest = q.sqs_receive(MaxNumberOfMessages=10)
    assert [m["Body"] for m in rest] == ["2", "3"], rest


@check(CHECKS)
def a_group_in_flight_locks_its_session_for_service_bus(broker, bus):
    q = Both(broker, bus, fifo=True, ContentBasedDeduplication="true", VisibilityTimeout="600")
    for session in ("taken", "free"):
        for n in range(2):
            q.bus_send(f"{session} {n}", session=session, message_id=uuid.uuid4().hex)
    held = q.sqs_one(MaxNumberOfMessages=1)
    assert held["Body"] == "taken 0", held
    raises(SessionCannotBeLockedError, lambda: bus.get_queue_receiver(q.name, session_id="taken").__enter__())
    with q.bus_receiver(NEXT_AVAILABLE_SESSION) as receiver:
        assert receiver.session.session_id == "free"
        got = receiver.receive_messages(max_message_count=2, max_wait_time=10)
        assert [str(m) for m in got] == ["free 0", "free 1"], got
        for message in got:
            receiver.complete_message(message)
    none = bus.get_queue_receiver(q.name, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
    raises(OperationTimeoutError, none.__enter__)
    q.sqs_delete(held)
    with q.bus_one("taken") as got:
        assert str(got) == "taken 1", got


@check(CHECKS)
def a_session_queue_of_service_bus_is_a_fifo_queue(broker, bus):
    name = f"s-{uuid.uuid4().hex[:8]}"
    broker.api("PUT", f"/queues/{name}", {"sessions": "dynamic"})
    sqs = broker.client()
    urls = [sqs.get_queue_url(QueueName=queue)["QueueUrl"] for queue in (name, f"{name}.fifo")]
    for n, url in enumerate(urls):
        group = {"MessageGroupId": "g", "MessageDeduplicationId": f"{n}"}
        sqs.send_message(QueueUrl=url, MessageBody=f"{n}", **group)
    with bus.get_queue_receiver(name, session_id="g") as receiver:
        got = receiver.receive_messages(max_message_count=2, max_wait_time=10)
        assert [str(m) for m in got] == ["0", "1"], got
        receiver.session.set_state("seen")
    plain = bus.get_queue_receiver(name)
    raises(ServiceBusError, lambda: plain.receive_messages(max_wait_time=1))


@check(CHECKS)
def receive_and_delete_removes_for_both(broker, bus):
    q = Both(broker, bus)
    q.sqs_send()
    with q.bus_receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        assert len(receiver.receive_messages(max_wait_time=10)) == 1
    assert q.count() == 0 and q.count("ApproximateNumberOfMessagesNotVisible") == 0


@check(CHECKS)
def sqs_does_not_get_deferred_messages(broker, bus):
    q = Both(broker, bus)
    q.sqs_send("set aside")
    with q.bus_receiver() as receiver:
        (got,) = receiver.receive_messages(max_wait_time=10)
        receiver.defer_message(got)
        assert q.sqs_receive(WaitTimeSeconds=1) == []
        (again,) = receiver.receive_deferred_messages(got.sequence_number)
        receiver.complete_message(again)
