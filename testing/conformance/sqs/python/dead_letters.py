"""Dead letters: redrive policies, redrive permissions, move tasks."""

import json
import time

from harness import arn, attribute, name, queue, receive, refused


def with_dead_letters(sqs, fifo=False, receives=2, **attributes):
    dead = queue(sqs, fifo=fifo)
    policy = {"deadLetterTargetArn": arn(sqs, dead), "maxReceiveCount": receives}
    return queue(sqs, fifo=fifo, RedrivePolicy=json.dumps(policy), **attributes), dead


def fail(sqs, url, times):
    for _ in range(times):
        [got] = receive(sqs, url, AttributeNames=["All"])
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)


def a_message_is_dead_lettered_after_its_last_receive(broker):
    sqs = broker.client()
    url, dead = with_dead_letters(sqs)
    policy = json.loads(attribute(sqs, url, "RedrivePolicy"))
    assert policy == {"deadLetterTargetArn": arn(sqs, dead), "maxReceiveCount": 2}
    sent = sqs.send_message(
        QueueUrl=url, MessageBody="x", MessageAttributes={"a": {"DataType": "Number.own", "StringValue": "01"}}
    )
    [first] = receive(sqs, url, AttributeNames=["All"], VisibilityTimeout=0)
    fail(sqs, url, 1)
    assert receive(sqs, url, WaitTimeSeconds=0) == []
    [got] = receive(sqs, dead, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert (got["MessageId"], got["Body"]) == (sent["MessageId"], "x")
    assert got["MessageAttributes"]["a"] == {"DataType": "Number.own", "StringValue": "01"}
    assert got["Attributes"]["DeadLetterQueueSourceArn"] == arn(sqs, url)
    assert got["Attributes"]["ApproximateReceiveCount"] == "3", "earlier receives count"
    assert got["Attributes"]["SentTimestamp"] == first["Attributes"]["SentTimestamp"], "retention counts from the first send"


def an_expired_visibility_timeout_counts(broker):
    sqs = broker.client()
    url, dead = with_dead_letters(sqs, receives=1, VisibilityTimeout="1")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert receive(sqs, url)[0]["Body"] == "x"
    # The message is moved although the source is not received from again.
    assert receive(sqs, dead, WaitTimeSeconds=10)[0]["Body"] == "x"


def fifo_dead_letters_keep_their_group(broker):
    sqs = broker.client()
    url, dead = with_dead_letters(sqs, fifo=True, ContentBasedDeduplication="true")
    for body in ("1", "2"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
    fail(sqs, url, 2)
    [got] = receive(sqs, dead, AttributeNames=["All"])
    assert (got["Body"], got["Attributes"]["MessageGroupId"]) == ("1", "g")
    assert got["Attributes"]["MessageDeduplicationId"] == got["MessageId"]
    assert receive(sqs, url)[0]["Body"] == "2", "the group continues"


def policies_are_checked(broker):
    sqs = broker.client()
    url, fifo = queue(sqs), queue(sqs, fifo=True)
    good = arn(sqs, queue(sqs))
    put = lambda policy: lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    policy = lambda to=good, count=3: json.dumps({"deadLetterTargetArn": to, "maxReceiveCount": count})
    refused("InvalidParameterValue", put("{"), says="not a valid JSON map")
    refused("InvalidParameterValue", put('{"maxReceiveCount":1}'), says="deadLetterTargetArn")
    refused("InvalidParameterValue", put(json.dumps({"deadLetterTargetArn": good})), says="maxReceiveCount")
    refused("InvalidParameterValue", put(policy(count=0)))
    refused("InvalidParameterValue", put(policy(count=1001)))
    refused("InvalidParameterValue", put(policy(to=good + "-never")), says="does not exist")
    refused("InvalidParameterValue", put(policy(to=arn(sqs, fifo))), says="same type")
    put(policy(count="7"))()
    assert json.loads(attribute(sqs, url, "RedrivePolicy"))["maxReceiveCount"] == 7
    put("")()
    assert attribute(sqs, url, "RedrivePolicy") is None
    # A queue may name itself; then nothing is moved.
    put(policy(to=arn(sqs, url)))()
    assert json.loads(attribute(sqs, url, "RedrivePolicy"))["deadLetterTargetArn"] == arn(sqs, url)
    put("")()
    assert attribute(sqs, url, "RedrivePolicy") is None
    # The dead-letter queue controls which sources may use it.
    allow = lambda value: sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(value)})
    dead = queue(sqs)
    allow({"redrivePermission": "denyAll"})
    refused("InvalidParameterValue", put(policy(to=arn(sqs, dead))))
    allow({"redrivePermission": "byQueue", "sourceQueueArns": [arn(sqs, url)]})
    put(policy(to=arn(sqs, dead)))()


def sources_are_listed_and_a_target_may_be_deleted(broker):
    sqs = broker.client()
    url, dead = with_dead_letters(sqs)
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    sqs.delete_queue(QueueUrl=dead)
    sqs.send_message(QueueUrl=url, MessageBody="still works")
    assert receive(sqs, url)[0]["Body"] == "still works"


def bury(sqs, url, dead, many):
    ids = [sqs.send_message(QueueUrl=url, MessageBody=str(n))["MessageId"] for n in range(many)]
    for _ in range(many):
        fail(sqs, url, 1)
    assert attribute(sqs, dead, "ApproximateNumberOfMessages") == str(many)
    return ids


def ended(sqs, source):
    for _ in range(200):
        [task] = sqs.list_message_move_tasks(SourceArn=source)["Results"]
        if task["Status"] not in ("RUNNING", "CANCELLING"):
            return task
        time.sleep(0.05)
    raise AssertionError(f"the task did not end: {task}")


def a_task_moves_dead_letters_back(broker):
    sqs = broker.client()
    url, dead = with_dead_letters(sqs, receives=1)
    buried = bury(sqs, url, dead, 5)
    source = arn(sqs, dead)
    assert sqs.start_message_move_task(SourceArn=source)["TaskHandle"]
    task = ended(sqs, source)
    assert (task["Status"], task["SourceArn"]) == ("COMPLETED", source), task
    assert (task["ApproximateNumberOfMessagesMoved"], task["ApproximateNumberOfMessagesToMove"]) == (5, 5)
    assert not {"TaskHandle", "DestinationArn", "FailureReason"} & set(task), task
    got = receive(sqs, url, MaxNumberOfMessages=10, AttributeNames=["All"])
    assert sorted(message["Body"] for message in got) == list("01234")
    assert {message["Attributes"]["ApproximateReceiveCount"] for message in got} == {"1"}
    assert "DeadLetterQueueSourceArn" not in got[0]["Attributes"]
    ids = {message["MessageId"] for message in got}
    assert len(ids) == 5 and not ids & set(buried), "moved messages have new ids"


def a_slow_task_to_another_queue_is_cancelled(broker):
    sqs = broker.client()
    url, dead = with_dead_letters(sqs, receives=1)
    bury(sqs, url, dead, 6)
    source, other = arn(sqs, dead), queue(sqs)
    start = dict(SourceArn=source, DestinationArn=arn(sqs, other), MaxNumberOfMessagesPerSecond=1)
    handle = sqs.start_message_move_task(**start)["TaskHandle"]
    refused("InvalidParameterValue", sqs.start_message_move_task, says="There is already a task running.", **start)
    [task] = sqs.list_message_move_tasks(SourceArn=source)["Results"]
    assert (task["Status"], task["TaskHandle"]) == ("RUNNING", handle), task
    assert (task["DestinationArn"], task["MaxNumberOfMessagesPerSecond"]) == (start["DestinationArn"], 1)
    sqs.cancel_message_move_task(TaskHandle=handle)
    task = ended(sqs, source)
    assert task["Status"] == "CANCELLED" and task["ApproximateNumberOfMessagesMoved"] < 6, task
    left = [int(attribute(sqs, where, "ApproximateNumberOfMessages")) for where in (dead, other)]
    assert sum(left) == 6 and left[1] == task["ApproximateNumberOfMessagesMoved"], left
    refused("InvalidParameterValue", sqs.cancel_message_move_task, TaskHandle=handle)


def tasks_are_checked(broker):
    sqs = broker.client()
    plain = arn(sqs, queue(sqs))
    refused("InvalidParameterValue", sqs.start_message_move_task, SourceArn=plain, says="must be configured as a Dead")
    missing = plain + name()
    refused("ResourceNotFoundException", sqs.start_message_move_task, SourceArn=missing, status=404, says="SourceArn")
    refused("ResourceNotFoundException", sqs.list_message_move_tasks, SourceArn=missing, status=404)
    refused("InvalidParameterValue", sqs.cancel_message_move_task, TaskHandle="garbage", says="TaskHandle")


CHECKS = [
    a_message_is_dead_lettered_after_its_last_receive,
    an_expired_visibility_timeout_counts,
    fifo_dead_letters_keep_their_group,
    policies_are_checked,
    sources_are_listed_and_a_target_may_be_deleted,
    a_task_moves_dead_letters_back,
    a_slow_task_to_another_queue_is_cancelled,
    tasks_are_checked,
]
