"""Queues: create, find, list, attributes, tags, permissions, purge."""

import json
import urllib.parse
import urllib.request

from harness import Broker, arn, attribute, name, queue, receive, refused


def a_queue_is_created_once_and_found(broker):
    sqs = broker.client()
    called = name()
    made = sqs.create_queue(QueueName=called, Attributes={"VisibilityTimeout": "45"})["QueueUrl"]
    assert made == f"{broker.sqs_url}/000000000000/{called}", made
    assert sqs.create_queue(QueueName=called)["QueueUrl"] == made
    assert sqs.create_queue(QueueName=called, Attributes={"VisibilityTimeout": "45"})["QueueUrl"] == made
    assert sqs.get_queue_url(QueueName=called)["QueueUrl"] == made
    refused(
        "QueueAlreadyExists", sqs.create_queue, QueueName=called, Attributes={"VisibilityTimeout": "46"},
        says="different value for attribute VisibilityTimeout",
    )
    sqs.delete_queue(QueueUrl=made)
    missing = "AWS.SimpleQueueService.NonExistentQueue"
    error = refused(missing, sqs.get_queue_url, QueueName=called, says="The specified queue does not exist")
    assert isinstance(error, sqs.exceptions.QueueDoesNotExist), type(error)
    refused(missing, sqs.delete_queue, QueueUrl=made)


def urls_contain_the_requested_host(broker):
    sqs = broker.client(url=broker.sqs_url.replace("127.0.0.1", "localhost"))
    made = queue(sqs)
    assert made.startswith("http://localhost:"), made
    elsewhere = "https://sqs.eu-west-1.amazonaws.com/123456789012/" + made.rsplit("/", 1)[1]
    assert sqs.send_message(QueueUrl=elsewhere, MessageBody="x")["MessageId"]
    # The main HTTP port accepts it as well, and its own paths still work.
    other = broker.client(url=broker.http_url)
    assert receive(other, made)[0]["Body"] == "x"
    assert urllib.request.urlopen(broker.http_url + "/livez").status == 200
    assert b"malote" in urllib.request.urlopen(broker.http_url + "/metrics").read()


def bad_names_are_refused(broker):
    sqs = broker.client()
    for bad in ["a b", "a.b", "x" * 81, "a/b", "é"]:
        refused("InvalidParameterValue", sqs.create_queue, QueueName=bad)
    refused("InvalidParameterValue", sqs.create_queue, QueueName="a.fifo")
    refused("InvalidParameterValue", sqs.create_queue, QueueName="a", Attributes={"FifoQueue": "true"})


def queues_are_listed_by_prefix_and_page(broker):
    sqs = broker.client()
    prefix = name()
    made = [sqs.create_queue(QueueName=f"{prefix}-{n}")["QueueUrl"] for n in range(5)]
    assert sqs.list_queues(QueueNamePrefix=prefix)["QueueUrls"] == made
    pages, token = [], None
    while True:
        more = {"NextToken": token} if token else {}
        page = sqs.list_queues(QueueNamePrefix=prefix, MaxResults=2, **more)
        pages.append(page["QueueUrls"])
        token = page.get("NextToken")
        if not token:
            break
    assert pages == [made[0:2], made[2:4], made[4:5]], pages
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=prefix + "-none")
    refused("InvalidParameterValue", sqs.list_queues, MaxResults=1001)


DEFAULTS = {
    "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
    "VisibilityTimeout": "30",
}


def attributes_have_their_defaults(broker):
    sqs = broker.client()
    url = queue(sqs)
    have = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    called = url.rsplit("/", 1)[1]
    assert have.pop("QueueArn") == f"arn:aws:sqs:eu-west-1:000000000000:{called}"
    assert have.pop("CreatedTimestamp").isdigit() and have.pop("LastModifiedTimestamp").isdigit()
    assert have == DEFAULTS, have
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)
    some = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["DelaySeconds", "QueueArn"])["Attributes"]
    assert set(some) == {"DelaySeconds", "QueueArn"}
    fifo = sqs.get_queue_attributes(QueueUrl=queue(sqs, fifo=True), AttributeNames=["All"])["Attributes"]
    assert (fifo["FifoQueue"], fifo["ContentBasedDeduplication"]) == ("true", "false")
    assert (fifo["DeduplicationScope"], fifo["FifoThroughputLimit"]) == ("queue", "perQueue")


def attributes_are_set_and_kept_over_a_crash(broker):
    sqs = broker.client()
    url = queue(sqs)
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})
    asked = {
        "DelaySeconds": "900", "MaximumMessageSize": "1024", "MessageRetentionPeriod": "60",
        "ReceiveMessageWaitTimeSeconds": "20", "VisibilityTimeout": "0", "Policy": policy,
        "KmsMasterKeyId": "alias/x", "KmsDataKeyReusePeriodSeconds": "60", "SqsManagedSseEnabled": "false",
        "RedriveAllowPolicy": '{"redrivePermission":"denyAll"}',
    }
    sqs.set_queue_attributes(QueueUrl=url, Attributes=asked)
    sqs.tag_queue(QueueUrl=url, Tags={"team": "a", "cost": "b"})
    called = url.rsplit("/", 1)[1]
    broker.kill()
    broker.start()
    sqs = broker.client()
    url = sqs.get_queue_url(QueueName=called)["QueueUrl"]
    have = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert {key: have[key] for key in asked} == asked, have
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a", "cost": "b"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    assert attribute(sqs, url, "Policy") is None


def invalid_attributes_are_refused(broker):
    sqs = broker.client()
    url = queue(sqs)
    for wrong in [
        {"DelaySeconds": "901"}, {"DelaySeconds": "x"}, {"MaximumMessageSize": "1023"},
        {"MaximumMessageSize": "1048577"}, {"MessageRetentionPeriod": "59"}, {"VisibilityTimeout": "43201"},
        {"ReceiveMessageWaitTimeSeconds": "21"}, {"KmsDataKeyReusePeriodSeconds": "59"}, {"Policy": "{"},
        {"RedriveAllowPolicy": '{"redrivePermission":"never"}'}, {"SqsManagedSseEnabled": "perhaps"},
    ]:
        refused("InvalidAttributeValue", sqs.set_queue_attributes, QueueUrl=url, Attributes=wrong)
    refused(
        "InvalidAttributeName", sqs.set_queue_attributes, QueueUrl=url, Attributes={"VisibilityTimeoutSeconds": "1"},
        says="Did you mean VisibilityTimeout?",
    )
    refused("InvalidAttributeName", sqs.set_queue_attributes, QueueUrl=url, Attributes={"FifoQueue": "true"})
    refused("InvalidAttributeName", sqs.create_queue, QueueName=name(), Attributes={"FifoQueue": "false"})
    scope = {"DeduplicationScope": "queue"}
    refused("InvalidAttributeName", sqs.create_queue, QueueName=name(), Attributes=scope, says="only when FifoQueue")
    refused("InvalidAttributeName", sqs.get_queue_attributes, QueueUrl=url, AttributeNames=["Nothing"])
    refused(
        "InvalidAttributeName", sqs.set_queue_attributes, QueueUrl=url,
        Attributes={"ContentBasedDeduplication": "true"},
    )
    assert attribute(sqs, url, "DelaySeconds") == "0"
    fifo = queue(sqs, fifo=True)
    refused(
        "InvalidAttributeValue", sqs.set_queue_attributes, QueueUrl=fifo,
        Attributes={"FifoThroughputLimit": "perMessageGroupId"},
    )
    high = {"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"}
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes=high)
    assert {key: attribute(sqs, fifo, key) for key in high} == high


def tags_are_added_and_removed(broker):
    sqs = broker.client()
    url = sqs.create_queue(QueueName=name(), tags={"a": "1"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"a": "2", "b": ""})
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "2", "b": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["a", "b", "never"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)
    too_many = {f"k{n}": "v" for n in range(51)}
    refused("InvalidParameterValue", sqs.tag_queue, QueueUrl=url, Tags=too_many, says="Too many tags added for queue q-")


def permissions_are_statements_of_the_policy(broker):
    sqs = broker.client()
    url = queue(sqs)
    sqs.add_permission(QueueUrl=url, Label="one", AWSAccountIds=["123456789012"], Actions=["SendMessage"])
    policy = json.loads(attribute(sqs, url, "Policy"))
    assert policy["Version"] == "2008-10-17" and policy["Id"] == arn(sqs, url) + "/SQSDefaultPolicy"
    [statement] = policy["Statement"]
    assert (statement["Sid"], statement["Action"]) == ("one", "SQS:SendMessage"), statement
    again = dict(QueueUrl=url, Label="one", AWSAccountIds=["123456789012"], Actions=["SendMessage"])
    refused("InvalidParameterValue", sqs.add_permission, says="Already exists.", **again)
    refused("InvalidParameterValue", sqs.remove_permission, QueueUrl=url, Label="two", says="can't find label.")
    sqs.remove_permission(QueueUrl=url, Label="one")
    assert attribute(sqs, url, "Policy") is None
    own = dict(again, Actions=["RemovePermission"])
    refused("InvalidParameterValue", sqs.add_permission, says="Only the queue owner is allowed", **own)
    many = dict(again, Actions=["SendMessage"] * 8)
    refused("OverLimit", sqs.add_permission, says="8 Actions were found, maximum allowed is 7.", status=403, **many)


def a_purge_empties_and_is_limited_to_one_a_minute(broker):
    sqs = broker.client()
    url = queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=900)
    sqs.send_message(QueueUrl=url, MessageBody="in flight")
    [out] = receive(sqs, url, MaxNumberOfMessages=1)
    sqs.purge_queue(QueueUrl=url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=out["ReceiptHandle"])
    counts = [attribute(sqs, url, f"ApproximateNumberOfMessages{end}") for end in ("", "Delayed", "NotVisible")]
    assert counts == ["0", "0", "0"], counts
    progress = "AWS.SimpleQueueService.PurgeQueueInProgress"
    refused(progress, sqs.purge_queue, QueueUrl=url, status=403, says="every 60 seconds")


def url_account_and_purge_interval_are_settings(broker):
    chosen = {
        "MALOTE_PUBLIC_URL": "https://queues.example.com/sqs/",
        "MALOTE_SQS_ACCOUNT": "123456789012",
        "MALOTE_SQS_PURGE_PAUSE": "off",
    }
    own = Broker(broker.binary, environment=chosen)
    sqs = own.client()
    called = name()
    url = sqs.create_queue(QueueName=called)["QueueUrl"]
    assert url == f"https://queues.example.com/sqs/123456789012/{called}", url
    assert arn(sqs, url) == f"arn:aws:sqs:eu-west-1:123456789012:{called}"
    for _ in range(2):
        sqs.purge_queue(QueueUrl=url)
    own.stop()


def invalid_requests_are_refused_in_their_protocol(broker):
    def ask(body, **headers):
        request = urllib.request.Request(broker.sqs_url, data=body, headers=headers)
        try:
            urllib.request.urlopen(request)
            raise AssertionError("the request succeeded")
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read().decode()

    status, headers, body = ask(b"{", **{"X-Amz-Target": "AmazonSQS.ListQueues"})
    assert status == 400 and "SerializationException" in body, body
    status, headers, body = ask(b"{}", **{"X-Amz-Target": "AmazonSQS.Nonsense"})
    assert status == 400 and headers["x-amzn-query-error"] == "InvalidAction;Sender", headers
    status, headers, body = ask(b"Action=Nonsense")
    assert status == 400 and "<Code>InvalidAction</Code>" in body and headers["x-amzn-requestid"], body
    status, _, body = ask(b"Action=SendMessage&QueueUrl=http://h/0/never&MessageBody=x")
    assert "for this wsdl version." in body, body
    status, _, body = ask(b"x=1")
    assert status == 404 and "<UnknownOperationException/>" in body, body
    status, _, body = ask(b"Action=ListQueues", Origin="https://evil.example")
    assert status == 403 and "AccessDenied" in body, body
    # A GET with everything in the query string is accepted.
    get = broker.sqs_url + "/?" + urllib.parse.urlencode({"Action": "ListQueues", "Version": "2012-11-05"})
    assert b"<ListQueuesResponse" in urllib.request.urlopen(get).read()


CHECKS = [
    a_queue_is_created_once_and_found,
    urls_contain_the_requested_host,
    bad_names_are_refused,
    queues_are_listed_by_prefix_and_page,
    attributes_have_their_defaults,
    attributes_are_set_and_kept_over_a_crash,
    invalid_attributes_are_refused,
    tags_are_added_and_removed,
    permissions_are_statements_of_the_policy,
    a_purge_empties_and_is_limited_to_one_a_minute,
    url_account_and_purge_interval_are_settings,
    invalid_requests_are_refused_in_their_protocol,
]
