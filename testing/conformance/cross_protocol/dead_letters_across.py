"""Dead letters of one protocol, received with the other."""

import json
import uuid

from azure.servicebus import ServiceBusSubQueue

import harness
from both import Both, check, properties

CHECKS = []


def with_dead_letter_queue(broker, bus, received_max, fifo=False):
    """A queue with a redrive policy, and its dead-letter queue."""
    grave = Both(broker, bus, fifo)
    arn = harness.arn(grave.sqs, grave.url)
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": received_max})
    return Both(broker, bus, fifo, RedrivePolicy=policy), grave


@check(CHECKS)
def a_dead_letter_of_service_bus_is_received_with_sqs(broker, bus):
    q, grave = with_dead_letter_queue(broker, bus, 5)
    q.sqs_send("poison")
    with q.bus_receiver() as receiver:
        (got,) = receiver.receive_messages(max_wait_time=10)
        receiver.dead_letter_message(got, reason="bad", error_description="cannot be read")
    dead = grave.sqs_one()
    assert dead["Body"] == "poison", dead
    assert dead["Attributes"]["DeadLetterQueueSourceArn"] == harness.arn(q.sqs, q.url), dead
    assert dead["MessageId"] == got.message_id, dead


@check(CHECKS)
def a_dead_letter_of_sqs_has_a_reason_for_service_bus(broker, bus):
    q, grave = with_dead_letter_queue(broker, bus, 2)
    q.bus_send("poison", application_properties={"k": "v"})
    for _ in range(2):
        got = q.sqs_one()
        q.sqs.change_message_visibility(QueueUrl=q.url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    assert q.sqs_receive(WaitTimeSeconds=1) == []
    with grave.bus_one() as dead:
        assert str(dead) == "poison" and dead.dead_letter_source == q.name, dead
        assert dead.dead_letter_reason and dead.dead_letter_error_description, dead
        assert properties(dead)["k"] == "v", dead


@check(CHECKS)
def both_count_against_the_same_limit(broker, bus):
    q, grave = with_dead_letter_queue(broker, bus, 2)
    q.sqs_send("poison")
    got = q.sqs_one()
    q.sqs.change_message_visibility(QueueUrl=q.url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    with q.bus_receiver() as receiver:
        (got,) = receiver.receive_messages(max_wait_time=10)
        receiver.abandon_message(got)
        assert receiver.receive_messages(max_wait_time=1) == []
    assert grave.sqs_one()["Body"] == "poison"


@check(CHECKS)
def messages_resent_from_the_own_set_are_received_with_sqs(broker, bus):
    """A queue without a policy has its own dead-letter set; resent messages are received with SQS."""
    name = f"s-{uuid.uuid4().hex[:8]}"
    broker.api("PUT", f"/queues/{name}", {})
    sqs = broker.client()
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="poison")
    with bus.get_queue_receiver(name) as receiver:
        (got,) = receiver.receive_messages(max_wait_time=10)
        receiver.dead_letter_message(got, reason="bad")
    assert harness.receive(sqs, url, WaitTimeSeconds=1) == []
    with bus.get_queue_receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = receiver.receive_messages(max_wait_time=10)
        assert dead.dead_letter_reason == "bad" and dead.message_id == got.message_id, dead
        receiver.abandon_message(dead)
    broker.api("POST", f"/queues/{name}/dead-letters/redrive", {})
    (back,) = harness.receive(sqs, url, WaitTimeSeconds=10)
    assert back["MessageId"] == got.message_id, back


@check(CHECKS)
def a_move_task_returns_a_session_in_order(broker, bus):
    q, grave = with_dead_letter_queue(broker, bus, 1, fifo=True)
    for n in range(3):
        q.bus_send(f"{n}", session="g", message_id=f"m{n}")
    with q.bus_receiver("g") as receiver:
        for _ in range(3):
            (got,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
            receiver.dead_letter_message(got, reason="bad")
    assert grave.count() == 3
    q.sqs.start_message_move_task(SourceArn=harness.arn(q.sqs, grave.url))
    with q.bus_receiver("g") as receiver:
        for n in range(3):
            (got,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
            assert str(got) == f"{n}", got
            receiver.complete_message(got)
