"""Messages of standard queues: send, receive, delete, visibility, limits, checksums."""

import concurrent.futures
import hashlib
import socket
import struct
import time
import urllib.request

from harness import attribute, queue, receive, refused


def md5(text):
    return hashlib.md5(text.encode()).hexdigest()


def md5_of_attributes(attributes):
    """Computes the checksum as the SDKs do."""
    out = b""
    part = lambda data: struct.pack(">I", len(data)) + data
    for key in sorted(attributes):
        value = attributes[key]
        binary = value["DataType"].startswith("Binary")
        data = value["BinaryValue"] if binary else value["StringValue"].encode()
        out += part(key.encode()) + part(value["DataType"].encode()) + (b"\2" if binary else b"\1") + part(data)
    return hashlib.md5(out).hexdigest()


ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "<a&b>"},
    "own.kind": {"DataType": "String.custom", "StringValue": "x"},
    "number": {"DataType": "Number", "StringValue": "007.50"},
    "large": {"DataType": "Number", "StringValue": "9" * 38},
    "bytes": {"DataType": "Binary", "BinaryValue": b"\0\xff\r\n"},
    "subject": {"DataType": "String", "StringValue": "about"},
}


def send_and_receive_a_message(broker):
    sqs = broker.client()
    url = queue(sqs)
    body = "héllo <&> \t\r\n \U0001f600 \"quoted\""
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    sent = sqs.send_message(
        QueueUrl=url, MessageBody=body, MessageAttributes=ATTRIBUTES, MessageSystemAttributes=trace
    )
    assert sent["MD5OfMessageBody"] == md5(body)
    assert sent["MD5OfMessageAttributes"] == md5_of_attributes(ATTRIBUTES)
    assert sent["MD5OfMessageSystemAttributes"] == md5_of_attributes(trace)
    assert "SequenceNumber" not in sent
    [got] = receive(sqs, url, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert (got["MessageId"], got["Body"], got["MD5OfBody"]) == (sent["MessageId"], body, md5(body))
    assert got["MessageAttributes"] == ATTRIBUTES, got["MessageAttributes"]
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    system = got["Attributes"]
    assert system["ApproximateReceiveCount"] == "1"
    assert system["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]
    assert system["SenderId"] and abs(int(system["SentTimestamp"]) / 1000 - time.time()) < 60
    assert int(system["ApproximateFirstReceiveTimestamp"]) >= int(system["SentTimestamp"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert receive(sqs, url, WaitTimeSeconds=0) == []


def attributes_are_chosen_by_name(broker):
    sqs = broker.client()
    url = queue(sqs, VisibilityTimeout="0")
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=ATTRIBUTES)
    [got] = receive(sqs, url)
    assert not {"Attributes", "MessageAttributes", "MD5OfMessageAttributes"} & set(got), got
    [got] = receive(sqs, url, MessageAttributeNames=["own.*", "text"], AttributeNames=["SentTimestamp"])
    some = {key: ATTRIBUTES[key] for key in ("own.kind", "text")}
    assert got["MessageAttributes"] == some and got["MD5OfMessageAttributes"] == md5_of_attributes(some)
    assert set(got["Attributes"]) == {"SentTimestamp"}
    # A prefix works with or without a final period.
    [got] = receive(sqs, url, MessageAttributeNames=["t.*", "AWS.", "..x"])
    assert set(got["MessageAttributes"]) == {"text"}
    for every in ("All", "*", ".*"):
        assert receive(sqs, url, MessageAttributeNames=[every])[0]["MessageAttributes"] == ATTRIBUTES
    refused("InvalidAttributeName", sqs.receive_message, QueueUrl=url, AttributeNames=["Nothing"])


def attribute_names_may_be_unicode(broker):
    sqs = broker.client()
    url = queue(sqs)
    attributes = {"preço.ä": {"DataType": "String", "StringValue": "x"}}
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    assert receive(sqs, url, MessageAttributeNames=["All"])[0]["MessageAttributes"] == attributes
    wrong = {"§": attributes["preço.ä"]}
    refused("InvalidParameterValue", sqs.send_message, QueueUrl=url, MessageBody="x", MessageAttributes=wrong)


def a_trace_header_becomes_an_attribute(broker):
    sqs = broker.client()
    trace = "Root=1-3152b799-8954dae64eda91bc9a23a7e8;Sampled=1"
    add = lambda request, **_: request.headers.__setitem__("X-Amzn-Trace-Id", trace)
    sqs.meta.events.register("before-send.sqs.SendMessage", add)
    url = queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert receive(sqs, url, AttributeNames=["AWSTraceHeader"])[0]["Attributes"] == {"AWSTraceHeader": trace}


def a_batch_has_one_result_per_entry(broker):
    sqs = broker.client()
    url = queue(sqs, MaximumMessageSize="1024")
    entries = [{"Id": str(n), "MessageBody": f"m{n}"} for n in range(9)]
    entries.append({"Id": "large", "MessageBody": "x" * 1025})
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == [str(n) for n in range(9)]
    [failed] = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("large", "InvalidParameterValue", True)
    assert "Message must be shorter than 1024 bytes" in failed["Message"]
    got = receive(sqs, url, MaxNumberOfMessages=10)
    assert [message["Body"] for message in got] == [f"m{n}" for n in range(9)]
    handles = [{"Id": f"i{n}", "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(got)]
    handles.append({"Id": "none", "ReceiptHandle": "garbage"})
    changes = [{**entry, "VisibilityTimeout": 60} for entry in handles]
    for answer in (
        sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes),
        sqs.delete_message_batch(QueueUrl=url, Entries=handles),
    ):
        assert len(answer["Successful"]) == 9, answer
        [failed] = answer["Failed"]
        assert (failed["Id"], failed["Code"]) == ("none", "ReceiptHandleIsInvalid"), failed
    assert attribute(sqs, url, "ApproximateNumberOfMessagesNotVisible") == "0"


def invalid_batches_are_refused(broker):
    sqs = broker.client()
    url = queue(sqs)
    start = "AWS.SimpleQueueService."
    entry = lambda key, body="x": {"Id": key, "MessageBody": body}
    send = lambda entries: lambda: sqs.send_message_batch(QueueUrl=url, Entries=entries)
    refused(start + "EmptyBatchRequest", send([]))
    many = [entry(str(n)) for n in range(11)]
    refused(start + "TooManyEntriesInBatchRequest", send(many), says="You have sent 11.")
    refused(start + "InvalidBatchEntryId", send([entry("a b")]))
    refused(start + "InvalidBatchEntryId", send([entry("x" * 81)]))
    refused(start + "BatchEntryIdsNotDistinct", send([entry("a"), entry("a")]))
    half = "x" * (1 << 19)
    refused(start + "BatchRequestTooLong", send([entry("a", half), entry("b", half + "x")]), says="1048577 bytes")
    assert len(send([entry("a", half), entry("b", half)])()["Successful"]) == 2


def invalid_messages_are_refused(broker):
    sqs = broker.client()
    url = queue(sqs)
    send = lambda **more: lambda: sqs.send_message(QueueUrl=url, **{"MessageBody": "x", **more})
    refused("MissingParameter", send(MessageBody=""), says="MessageBody")
    refused("InvalidMessageContents", send(MessageBody="a\u0001"))
    refused("InvalidMessageContents", send(MessageBody="\uffff"))
    refused("InvalidParameterValue", send(MessageBody="x" * ((1 << 20) + 1)), says="shorter than 1048576 bytes")
    refused("InvalidParameterValue", send(DelaySeconds=901))
    refused("InvalidParameterValue", send(DelaySeconds=-1))
    refused("InvalidParameterValue", send(MessageDeduplicationId="d"), says="not valid for this queue type")
    own = lambda name="a", **value: {name: {"DataType": "String", "StringValue": "x", **value}}
    for attributes in [
        own(DataType="Float"), own("AWS.x"), own("a..b"), own("a b"), own(DataType="Number"), own(StringValue=""),
        {f"n{n}": own()["a"] for n in range(11)},
    ]:
        refused("InvalidParameterValue", send(MessageAttributes=attributes))
    # Attributes count.
    text = {"a": {"DataType": "String", "StringValue": "y" * 100}}
    refused("InvalidParameterValue", send(MessageBody="x" * ((1 << 20) - 100), MessageAttributes=text))
    assert send(MessageBody="x" * ((1 << 20) - 107), MessageAttributes=text)()["MessageId"]
    [got] = receive(sqs, url)
    assert len(got["Body"]) == (1 << 20) - 107


def invalid_receives_are_refused(broker):
    sqs = broker.client()
    url = queue(sqs)
    ask = lambda **more: lambda: sqs.receive_message(QueueUrl=url, **more)
    refused("InvalidParameterValue", ask(MaxNumberOfMessages=11), says="Must be between 1 and 10, if provided.")
    refused("InvalidParameterValue", ask(MaxNumberOfMessages=0))
    refused("InvalidParameterValue", ask(WaitTimeSeconds=21), says="Must be >= 0 and <= 20, if provided.")
    refused("InvalidParameterValue", ask(VisibilityTimeout=43201))
    refused("InvalidParameterValue", ask(ReceiveRequestAttemptId="a"))
    for call in (sqs.delete_message, lambda **more: sqs.change_message_visibility(VisibilityTimeout=1, **more)):
        error = refused("ReceiptHandleIsInvalid", call, QueueUrl=url, ReceiptHandle="garbage")
        assert isinstance(error, sqs.exceptions.ReceiptHandleIsInvalid)
    # A handle is valid only for its queue.
    other = queue(sqs)
    sqs.send_message(QueueUrl=other, MessageBody="x")
    [got] = receive(sqs, other)
    refused("ReceiptHandleIsInvalid", sqs.delete_message, QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])


def visibility_expires_is_extended_and_released(broker):
    sqs = broker.client()
    url = queue(sqs, VisibilityTimeout="1")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [first] = receive(sqs, url, AttributeNames=["All"])
    [second] = receive(sqs, url, AttributeNames=["All"])
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    times = [m["Attributes"]["ApproximateFirstReceiveTimestamp"] for m in (first, second)]
    assert times[0] == times[1], times
    change = lambda seconds, handle=second["ReceiptHandle"]: sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds
    )
    change(600)
    assert attribute(sqs, url, "ApproximateNumberOfMessagesNotVisible") == "1"
    assert receive(sqs, url, WaitTimeSeconds=2) == []
    change(0)
    [third] = receive(sqs, url, AttributeNames=["All"])
    assert third["Attributes"]["ApproximateReceiveCount"] == "3"
    # An expired handle changes nothing, and is not an error in a standard queue.
    change(600, first["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    refused("InvalidParameterValue", change, 43201)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=third["ReceiptHandle"])
    refused("InvalidParameterValue", change, 5, third["ReceiptHandle"], says="does not exist or is not available")
    entry = {"Id": "gone", "ReceiptHandle": third["ReceiptHandle"], "VisibilityTimeout": 5}
    [failed] = sqs.change_message_visibility_batch(QueueUrl=url, Entries=[entry])["Failed"]
    assert (failed["Code"], failed["SenderFault"]) == ("ReceiptHandleIsInvalid", True), failed


def a_late_delete_removes_a_visible_message(broker):
    sqs = broker.client()
    url = queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [late] = receive(sqs, url, VisibilityTimeout=0)
    [now] = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=late["ReceiptHandle"])
    assert attribute(sqs, url, "ApproximateNumberOfMessagesNotVisible") == "1", "another consumer holds the message"
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=now["ReceiptHandle"], VisibilityTimeout=0)
    entries = [{"Id": "late", "ReceiptHandle": late["ReceiptHandle"]}]
    assert sqs.delete_message_batch(QueueUrl=url, Entries=entries)["Successful"] == [{"Id": "late"}]
    counts = [attribute(sqs, url, f"ApproximateNumberOfMessages{end}") for end in ("", "NotVisible")]
    assert counts == ["0", "0"], counts


def the_first_receive_is_known_after_a_crash(broker):
    sqs = broker.client()
    url = queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    first = lambda message: message["Attributes"]["ApproximateFirstReceiveTimestamp"]
    [before] = receive(sqs, url, VisibilityTimeout=1, AttributeNames=["All"])
    broker.kill()
    broker.start()
    sqs = broker.client()
    url = sqs.get_queue_url(QueueName=url.rsplit("/", 1)[1])["QueueUrl"]
    [after] = receive(sqs, url, WaitTimeSeconds=20, AttributeNames=["All"])
    assert first(before) == first(after), (before, after)


def attributes_may_be_as_large_as_a_message(broker):
    sqs = broker.client()
    url = queue(sqs)
    large = {
        "text": {"DataType": "String.custom", "StringValue": "é" * 200_000},
        "bytes": {"DataType": "Binary.png", "BinaryValue": bytes(range(256)) * 2_000},
    }
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=large)
    [got] = receive(sqs, url, MessageAttributeNames=["All"])
    assert got["MessageAttributes"] == large
    large["text"]["StringValue"] = "x" * 600_000
    refused(
        "InvalidParameterValue", sqs.send_message, QueueUrl=url, MessageBody="x", MessageAttributes=large,
        says="Message must be shorter than 1048576 bytes.",
    )


def a_receive_with_zero_visibility_leaves_it_visible(broker):
    sqs = broker.client()
    url = queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    for count in ("1", "2", "3"):
        [got] = receive(sqs, url, VisibilityTimeout=0, AttributeNames=["All"])
        assert got["Attributes"]["ApproximateReceiveCount"] == count


def delays_hold_a_message_back(broker):
    sqs = broker.client()
    url = queue(sqs, DelaySeconds="600")
    sqs.send_message(QueueUrl=url, MessageBody="queue's delay")
    sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    sqs.send_message(QueueUrl=url, MessageBody="soon", DelaySeconds=1)
    assert attribute(sqs, url, "ApproximateNumberOfMessagesDelayed") == "2"
    assert [receive(sqs, url)[0]["Body"] for _ in range(2)] == ["now", "soon"]


def a_long_poll_wakes_at_once_and_loses_nothing_when_cancelled(broker):
    sqs = broker.client()
    url = queue(sqs)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        polls = [pool.submit(receive, broker.client(), url, WaitTimeSeconds=20) for _ in range(2)]
        time.sleep(0.3)
        for body in ("a", "b"):
            sqs.send_message(QueueUrl=url, MessageBody=body)
        bodies = sorted(poll.result(15)[0]["Body"] for poll in polls)
    assert bodies == ["a", "b"], bodies
    # A client that disconnects while it waits.
    host, port = broker.sqs_url.removeprefix("http://").split(":")
    body = f"Action=ReceiveMessage&WaitTimeSeconds=20&QueueUrl={url}".encode()
    head = f"POST / HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection((host, int(port))) as gone:
        gone.sendall(head.encode() + b"Content-Type: application/x-www-form-urlencoded\r\n\r\n" + body)
        time.sleep(0.3)
    time.sleep(0.3)
    sqs.send_message(QueueUrl=url, MessageBody="c")
    [got] = receive(sqs, url)
    assert got["Body"] == "c"


def fair_queues_accept_group_ids(broker):
    sqs = broker.client()
    url = queue(sqs)
    for n in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(n), MessageGroupId="tenant")
    got = [receive(sqs, url, AttributeNames=["MessageGroupId"])[0] for _ in range(3)]
    assert [message["Body"] for message in got] == ["0", "1", "2"], "groups are not locked"
    assert got[0]["Attributes"] == {"MessageGroupId": "tenant"}


def send_many(sqs, url, group, bodies):
    for at in range(0, len(bodies), 10):
        entries = [{"Id": body, "MessageBody": body, "MessageGroupId": group} for body in bodies[at : at + 10]]
        assert "Failed" not in sqs.send_message_batch(QueueUrl=url, Entries=entries)


def a_quiet_group_overtakes_a_noisy_one(broker):
    sqs = broker.client()
    url = queue(sqs, VisibilityTimeout="600")
    send_many(sqs, url, "noisy", [f"a{n}" for n in range(500)])
    held = [message for _ in range(6) for message in receive(sqs, url, MaxNumberOfMessages=10)]
    assert [message["Body"] for message in held] == [f"a{n}" for n in range(60)]
    take = lambda: [message["Body"] for message in receive(sqs, url, MaxNumberOfMessages=2)]
    sqs.send_message(QueueUrl=url, MessageBody="b0", MessageGroupId="quiet")
    sqs.send_message(QueueUrl=url, MessageBody="c0")
    assert take() == ["b0", "c0"], "others first, with a group or without"
    assert take() == ["a60", "a61"], "then the noisy group: it does not starve"
    # Messages in flight and their groups are known after a crash.
    broker.kill()
    broker.start()
    sqs = broker.client()
    url = sqs.get_queue_url(QueueName=url.rsplit("/", 1)[1])["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="b1", MessageGroupId="quiet")
    assert take() == ["b1", "a62"]
    for message in held[:50]:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sqs.send_message(QueueUrl=url, MessageBody="b2", MessageGroupId="quiet")
    assert take() == ["a63", "a64"], "with few messages in flight it is no longer noisy"


def leases_outlive_a_crash(broker):
    sqs = broker.client()
    url = queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="held")
    sqs.send_message(QueueUrl=url, MessageBody="waiting")
    [held] = receive(sqs, url, VisibilityTimeout=600)
    broker.kill()
    broker.start()
    sqs = broker.client()
    url = sqs.get_queue_url(QueueName=url.rsplit("/", 1)[1])["QueueUrl"]
    assert [message["Body"] for message in receive(sqs, url, MaxNumberOfMessages=10)] == ["waiting"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=held["ReceiptHandle"])
    assert attribute(sqs, url, "ApproximateNumberOfMessagesNotVisible") == "1"


def messages_of_the_native_api_are_received(broker):
    sqs = broker.client()
    url = queue(sqs)
    native = f"{broker.http_url}/api/v1/queues/{url.rsplit('/', 1)[1]}/messages"
    request = urllib.request.Request(native, data=b"\xff\x00 bytes", headers={"Content-Type": "application/octet-stream"})
    urllib.request.urlopen(request)
    [got] = receive(sqs, url, MessageAttributeNames=["All"])
    assert got["Body"] == "/wAgYnl0ZXM=", got
    assert got["MessageAttributes"]["malote-body-encoding"]["StringValue"] == "base64"


CHECKS = [
    send_and_receive_a_message,
    attributes_are_chosen_by_name,
    attribute_names_may_be_unicode,
    a_trace_header_becomes_an_attribute,
    a_batch_has_one_result_per_entry,
    invalid_batches_are_refused,
    invalid_messages_are_refused,
    invalid_receives_are_refused,
    visibility_expires_is_extended_and_released,
    a_late_delete_removes_a_visible_message,
    the_first_receive_is_known_after_a_crash,
    attributes_may_be_as_large_as_a_message,
    a_receive_with_zero_visibility_leaves_it_visible,
    delays_hold_a_message_back,
    a_long_poll_wakes_at_once_and_loses_nothing_when_cancelled,
    fair_queues_accept_group_ids,
    a_quiet_group_overtakes_a_noisy_one,
    leases_outlive_a_crash,
    messages_of_the_native_api_are_received,
]
