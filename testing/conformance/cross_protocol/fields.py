"""Every field of a message, in both directions."""

import datetime
import hashlib
import json
import uuid

from azure.servicebus import ServiceBusMessageState
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader

from both import Both, attributes, check, properties

CHECKS = []


def ms(when):
    return int(when.timestamp() * 1000)


@check(CHECKS)
def the_message_id_is_the_same(broker, bus):
    q = Both(broker, bus)
    given = q.sqs_send()["MessageId"]
    with q.bus_one() as got:
        assert got.message_id == given, got
    q.bus_send(message_id="mine-7")
    assert q.sqs_one()["MessageId"] == "mine-7"


@check(CHECKS)
def a_group_is_a_session(broker, bus):
    q = Both(broker, bus, fifo=True, ContentBasedDeduplication="true")
    q.sqs_send(MessageGroupId="ana")
    with q.bus_one("ana") as got:
        assert got.session_id == "ana", got
    q.bus_send("y", session="bob")
    got = q.sqs_one()
    assert got["Attributes"]["MessageGroupId"] == "bob", got


@check(CHECKS)
def duplicates_are_detected_across_protocols(broker, bus):
    q = Both(broker, bus, fifo=True)
    q.sqs_send("first", MessageGroupId="g", MessageDeduplicationId="once")
    q.bus_send("second", session="g", message_id="once")
    q.bus_send("third", session="g", message_id="twice")
    q.sqs_send("fourth", MessageGroupId="g", MessageDeduplicationId="twice")
    got = q.sqs_receive(MaxNumberOfMessages=10)
    assert [m["Body"] for m in got] == ["first", "third"], got
    assert [m["Attributes"]["MessageDeduplicationId"] for m in got] == ["once", "twice"], got


@check(CHECKS)
def content_based_deduplication_works_across_protocols(broker, bus):
    q = Both(broker, bus, fifo=True, ContentBasedDeduplication="true")
    q.sqs_send("same", MessageGroupId="g")
    q.bus_send("same", session="g", message_id=hashlib.sha256(b"same").hexdigest())
    assert len(q.sqs_receive(MaxNumberOfMessages=10)) == 1
    assert q.count() == 0


@check(CHECKS)
def a_delay_is_a_delay(broker, bus):
    q = Both(broker, bus)
    q.sqs_send("late", DelaySeconds=900)
    with q.bus_receiver() as receiver:
        assert receiver.receive_messages(max_wait_time=1) == []
        (seen,) = receiver.peek_messages()
        assert seen.state == ServiceBusMessageState.SCHEDULED, seen.state
        ahead = seen.scheduled_enqueue_time_utc - datetime.datetime.now(datetime.timezone.utc)
        assert 700 < ahead.total_seconds() <= 900, ahead
    when = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2)
    q.bus_send("scheduled", scheduled_enqueue_time_utc=when)
    assert q.count("ApproximateNumberOfMessagesDelayed") == 2
    got = q.sqs_one()
    assert got["Body"] == "scheduled" and int(got["Attributes"]["SentTimestamp"]) >= ms(when), got


@check(CHECKS)
def retention_is_time_to_live(broker, bus):
    q = Both(broker, bus, MessageRetentionPeriod="600")
    q.sqs_send("kept for ten minutes")
    with q.bus_one() as got:
        assert got.expires_at_utc - got.enqueued_time_utc == datetime.timedelta(seconds=600), got
    q.bus_send("short", time_to_live=datetime.timedelta(milliseconds=300))
    q.bus_send("long")
    with q.bus_receiver() as receiver:
        # Once its short time to live is over, it is not received.
        while len(receiver.peek_messages(max_message_count=10)) > 1:
            pass
    assert q.sqs_one()["Body"] == "long"
    assert q.count() == 0


@check(CHECKS)
def priority_orders_messages_for_sqs(broker, bus):
    q = Both(broker, bus)
    name = f"p-{uuid.uuid4().hex[:8]}"
    broker.api("PUT", f"/queues/{name}", {"priority_max": 9})
    q.url, q.name = q.url.rsplit("/", 1)[0] + "/" + name, name
    for priority in (1, 9, 5):
        header = AmqpMessageHeader(priority=priority)
        q.bus_send(AmqpAnnotatedMessage(data_body=str(priority), header=header))
    bodies = [q.sqs_one(MaxNumberOfMessages=1)["Body"] for _ in range(3)]
    assert bodies == ["9", "5", "1"], bodies


NAMED = {"subject": "sub", "correlation_id": "cor", "reply_to": "back", "content_type": "text/plain"}


@check(CHECKS)
def named_attributes_are_properties(broker, bus):
    q = Both(broker, bus)
    said = {name: {"DataType": "String", "StringValue": value} for name, value in NAMED.items()}
    q.sqs_send(MessageAttributes=said)
    with q.bus_one() as got:
        assert {name: getattr(got, name) for name in NAMED} == NAMED, got
        assert not got.application_properties, got.application_properties
    q.bus_send(**NAMED)
    assert attributes(q.sqs_one()) == {name: ("String", value) for name, value in NAMED.items()}


@check(CHECKS)
def properties_keep_their_types_towards_sqs(broker, bus):
    q = Both(broker, bus)
    # This client converts bytes to text, so bytes are tested only in the other direction.
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    sent = {"text": "t", "whole": 7, "half": 0.5, "yes": True, "uuid": uuid.UUID(int=5)}
    q.bus_send(application_properties={**sent, "when": when})
    got = attributes(q.sqs_one())
    assert got["text"] == ("String", "t") and got["whole"] == ("Number", "7"), got
    assert got["half"] == ("Number", "0.5") and got["yes"] == ("String.bool", "true"), got
    assert got["when"] == ("Number.ms", str(ms(when))), got
    assert got["uuid"] == ("String.json", json.dumps(str(uuid.UUID(int=5)))), got


@check(CHECKS)
def properties_keep_their_types_towards_service_bus(broker, bus):
    q = Both(broker, bus)
    sent = {
        "text": ("String", "t"),
        "whole": ("Number", "7"),
        "half": ("Number", "0.5"),
        "yes": ("String.bool", "true"),
        "when": ("Number.ms", "1767323045000"),
        "raw": ("Binary", b"\x00\xff"),
    }
    said = {
        name: {"DataType": kind, ("BinaryValue" if kind == "Binary" else "StringValue"): value}
        for name, (kind, value) in sent.items()
    }
    q.sqs_send(MessageAttributes=said)
    with q.bus_one() as got:
        # The client returns text as bytes; what is not text must not be decoded.
        raw = {name.decode(): value for name, value in got.application_properties.items()}
        assert raw.pop("raw") == b"\x00\xff" and raw.pop("text") == b"t", raw
        when = raw.pop("when")
        assert ms(when) if hasattr(when, "timestamp") else when == 1767323045000, when
        assert raw == {"whole": 7, "half": 0.5, "yes": True} and raw["yes"] is True, raw
    # Received with SQS, they are exactly what was sent.
    q.sqs_send(MessageAttributes=said)
    assert attributes(q.sqs_one()) == sent


@check(CHECKS)
def the_times_are_the_same(broker, bus):
    q = Both(broker, bus)
    q.bus_send()
    with q.bus_receiver() as receiver:
        (seen,) = receiver.peek_messages()
    assert ms(seen.enqueued_time_utc) == int(q.sqs_one()["Attributes"]["SentTimestamp"])


@check(CHECKS)
def receives_and_failures_are_counted_separately(broker, bus):
    q = Both(broker, bus, VisibilityTimeout="60")
    q.sqs_send()
    with q.bus_receiver() as receiver:
        for failed in range(2):
            (got,) = receiver.receive_messages(max_wait_time=10)
            assert got.delivery_count == failed, got
            receiver.abandon_message(got)
    got = q.sqs_one()
    assert got["Attributes"]["ApproximateReceiveCount"] == "3", got
    q.sqs.change_message_visibility(QueueUrl=q.url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    with q.bus_one() as again:
        assert again.delivery_count == 3, again


@check(CHECKS)
def bodies_are_preserved(broker, bus):
    q = Both(broker, bus)
    q.sqs_send("grüße")
    with q.bus_one() as got:
        assert b"".join(got.body).decode() == "grüße"
    for sent, shown in [
        (AmqpAnnotatedMessage(value_body="text"), "text"),
        (AmqpAnnotatedMessage(value_body={"k": [1, True, "v"]}), {"k": [1, True, "v"]}),
        # Sections of a sequence are parts of one sequence.
        (AmqpAnnotatedMessage(sequence_body=[[1, 2], ["x"]]), [1, 2, "x"]),
    ]:
        q.bus_send(sent)
        got = q.sqs_one()
        body = got["Body"] if isinstance(shown, str) else json.loads(got["Body"])
        assert body == shown, got
        q.sqs_delete(got)
    for raw in (b"\xff\xfe", b"a\x00b"):
        q.bus_send(raw)
        got = q.sqs_one()
        assert attributes(got)["malote-body-encoding"] == ("String", "base64"), got
        q.sqs_delete(got)
