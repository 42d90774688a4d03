"""FIFO queues: groups, order, de-duplication, repeated receives."""

from harness import attribute, queue, receive, refused


def send(sqs, url, group, body, key=None):
    more = {"MessageDeduplicationId": key} if key else {}
    return sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **more)


def take(sqs, url, most=10, **more):
    more.setdefault("WaitTimeSeconds", 0)
    return receive(sqs, url, MaxNumberOfMessages=most, AttributeNames=["All"], **more)


def bodies(got):
    return [message["Body"] for message in got]


def a_group_is_ordered_and_locked_while_in_flight(broker):
    sqs = broker.client()
    url = queue(sqs, fifo=True, ContentBasedDeduplication="true")
    sent = [send(sqs, url, "a", f"a{n}") for n in range(4)]
    numbers = [answer["SequenceNumber"] for answer in sent]
    assert numbers == sorted(numbers) and all(len(number) == 20 for number in numbers), numbers
    first = take(sqs, url, 2)
    assert bodies(first) == ["a0", "a1"]
    system = first[0]["Attributes"]
    assert (system["MessageGroupId"], system["SequenceNumber"]) == ("a", numbers[0])
    assert len(system["MessageDeduplicationId"]) == 64
    assert take(sqs, url) == [], "the group is locked"
    send(sqs, url, "a", "a4")
    send(sqs, url, "b", "b0")
    assert bodies(take(sqs, url)) == ["b0"], "another group is not locked, and a new message unlocks nothing"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first[1]["ReceiptHandle"])
    assert take(sqs, url) == [], "one message is still in flight"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first[0]["ReceiptHandle"])
    assert bodies(take(sqs, url)) == ["a2", "a3", "a4"]


def a_visible_message_keeps_its_place(broker):
    sqs = broker.client()
    url = queue(sqs, fifo=True, ContentBasedDeduplication="true")
    for n in range(3):
        send(sqs, url, "a", str(n))
    got = take(sqs, url, 2)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got[1]["ReceiptHandle"], VisibilityTimeout=0)
    assert take(sqs, url) == [], "its predecessor is still in flight"
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got[0]["ReceiptHandle"], VisibilityTimeout=0)
    assert bodies(take(sqs, url)) == ["0", "1", "2"]


def duplicates_succeed_and_store_nothing(broker):
    sqs = broker.client()
    url = queue(sqs, fifo=True)
    first = send(sqs, url, "a", "one", "key")
    again = send(sqs, url, "b", "two", "key")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    [got] = take(sqs, url)
    assert (got["Body"], got["MessageId"]) == ("one", first["MessageId"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    after = send(sqs, url, "a", "three", "key")
    assert after["MessageId"] == first["MessageId"] and take(sqs, url) == [], "a delete does not end the window"
    refused(
        "InvalidParameterValue", send, sqs, url, "a", "x",
        says="ContentBasedDeduplication enabled or MessageDeduplicationId provided",
    )
    # By content: only the body counts, and an explicit id has precedence.
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"ContentBasedDeduplication": "true"})
    same = [send(sqs, url, "c", "same")["MessageId"] for _ in range(2)]
    assert same[0] == same[1] != send(sqs, url, "c", "same", "other")["MessageId"]
    # Per group, if the queue is configured so.
    scoped = queue(sqs, fifo=True, DeduplicationScope="messageGroup")
    assert send(sqs, scoped, "a", "x", "k")["MessageId"] != send(sqs, scoped, "b", "x", "k")["MessageId"]


def duplicates_are_known_after_a_crash(broker):
    sqs = broker.client()
    url = queue(sqs, fifo=True)
    first = send(sqs, url, "a", "one", "key")
    broker.kill()
    broker.start()
    sqs = broker.client()
    url = sqs.get_queue_url(QueueName=url.rsplit("/", 1)[1])["QueueUrl"]
    assert send(sqs, url, "a", "two", "key")["MessageId"] == first["MessageId"]
    assert attribute(sqs, url, "ApproximateNumberOfMessages") == "1"
    # Also for a message that was deleted long ago.
    [got] = take(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    broker.kill()
    broker.start()
    sqs = broker.client()
    url = sqs.get_queue_url(QueueName=url.rsplit("/", 1)[1])["QueueUrl"]
    again = send(sqs, url, "a", "three", "key")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])


def a_purge_unlocks_groups(broker):
    sqs = broker.client()
    url = queue(sqs, fifo=True, ContentBasedDeduplication="true")
    for body in ("one", "two"):
        send(sqs, url, "a", body)
    assert bodies(take(sqs, url, 1)) == ["one"]
    sqs.purge_queue(QueueUrl=url)
    send(sqs, url, "a", "three")
    assert bodies(take(sqs, url)) == ["three"]
    # De-duplication ids of purged messages are forgotten, too.
    send(sqs, url, "b", "one")
    assert bodies(take(sqs, url)) == ["one"]


def fifo_requests_are_checked(broker):
    sqs = broker.client()
    url = queue(sqs, fifo=True, ContentBasedDeduplication="true")
    refused("MissingParameter", sqs.send_message, QueueUrl=url, MessageBody="x", says="MessageGroupId")
    refused("InvalidParameterValue", send, sqs, url, "a b", "x", says="alphanumeric and punctuation")
    refused("InvalidParameterValue", send, sqs, url, "a" * 129, "x")
    refused("InvalidParameterValue", send, sqs, url, "a", "x", "é")
    refused(
        "InvalidParameterValue", sqs.send_message, QueueUrl=url, MessageBody="x", MessageGroupId="a", DelaySeconds=2,
        says="Value 2 for parameter DelaySeconds is invalid.",
    )
    entries = [{"Id": "a", "MessageBody": "x", "MessageGroupId": "g"}, {"Id": "b", "MessageBody": "y"}]
    refused("InvalidParameterValue", sqs.send_message_batch, QueueUrl=url, Entries=entries, says="MessageGroupId")
    assert attribute(sqs, url, "ApproximateNumberOfMessages") == "0", "the whole batch failed"


def an_expired_handle_is_refused(broker):
    sqs = broker.client()
    url = queue(sqs, fifo=True, ContentBasedDeduplication="true")
    send(sqs, url, "a", "x")
    [old] = take(sqs, url, VisibilityTimeout=1)
    [new] = take(sqs, url, WaitTimeSeconds=10)
    refused(
        "InvalidParameterValue", sqs.delete_message, QueueUrl=url, ReceiptHandle=old["ReceiptHandle"],
        says="The receipt handle has expired.",
    )
    sqs.delete_message(QueueUrl=url, ReceiptHandle=new["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=new["ReceiptHandle"])


def a_receive_is_repeated(broker):
    sqs = broker.client()
    url = queue(sqs, fifo=True, ContentBasedDeduplication="true")
    assert take(sqs, url, ReceiveRequestAttemptId="try") == []
    for n in range(3):
        send(sqs, url, "a", str(n))
    first = take(sqs, url, 2, ReceiveRequestAttemptId="try")
    again = take(sqs, url, 2, ReceiveRequestAttemptId="try")
    assert bodies(first) == bodies(again) == ["0", "1"]
    handles = lambda got: [message["ReceiptHandle"] for message in got]
    assert handles(first) == handles(again)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=again[0]["ReceiptHandle"])
    assert take(sqs, url, 2, ReceiveRequestAttemptId="try") == [], "a message was deleted, so this is a new receive"


def batches_keep_their_order(broker):
    sqs = broker.client()
    url = queue(sqs, fifo=True)
    for start in range(0, 30, 10):
        entries = [
            {"Id": str(n), "MessageBody": str(n), "MessageGroupId": f"g{n % 3}", "MessageDeduplicationId": str(n)}
            for n in range(start, start + 10)
        ]
        answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
        assert all(entry["SequenceNumber"] for entry in answer["Successful"])
    seen = {}
    while got := take(sqs, url):
        for message in got:
            seen.setdefault(message["Attributes"]["MessageGroupId"], []).append(int(message["Body"]))
        entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(got)]
        assert len(sqs.delete_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == len(got)
    assert seen == {f"g{n}": list(range(n, 30, 3)) for n in range(3)}, seen


CHECKS = [
    a_group_is_ordered_and_locked_while_in_flight,
    a_visible_message_keeps_its_place,
    duplicates_succeed_and_store_nothing,
    duplicates_are_known_after_a_crash,
    a_purge_unlocks_groups,
    fifo_requests_are_checked,
    an_expired_handle_is_refused,
    a_receive_is_repeated,
    batches_keep_their_order,
]
