"""Signatures: without credentials any is accepted; with credentials only valid ones, in the header or the query string."""

import json
import subprocess
import tempfile
import urllib.error
import urllib.request

import botocore.session
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest

from harness import REGION, Broker, queue, receive, refused


def key(binary, data, *grants):
    command = [binary, "key", "add", "aws", "--data", data.name, "-o", "json", *grants]
    made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    made = made[0] if isinstance(made, list) else made
    return dict(key=made["id"], secret=made["secret"])


def locked(broker):
    """A broker that starts with two keys."""
    binary, data = broker.binary, tempfile.TemporaryDirectory()
    admin, sender = key(binary, data, "--admin"), key(binary, data, "--grant", "send q-*")
    return Broker(binary, data=data), admin, sender


def only_valid_keys_are_accepted(broker):
    other, admin, sender = locked(broker)
    try:
        sqs = other.client(**admin)
        url = queue(sqs)
        sqs.send_message(QueueUrl=url, MessageBody="signed " + "x" * 5000)
        assert receive(sqs, url)[0]["Body"].startswith("signed")
        assert sqs.list_queues()["QueueUrls"] == [url]
        refused("InvalidClientTokenId", other.client(key="nobody", secret="x").list_queues, status=403)
        wrong = other.client(key=admin["key"], secret="wrong")
        refused("SignatureDoesNotMatch", wrong.list_queues, status=403)
        limited = other.client(**sender)
        limited.send_message(QueueUrl=url, MessageBody="x")
        refused("AccessDenied", limited.receive_message, QueueUrl=url, status=403, says="may not receive")
        refused("AccessDenied", limited.delete_queue, QueueUrl=url, status=403)
        unsigned = f"{other.sqs_url}/?Action=GetQueueUrl&QueueName=q-x"
        status, body = fetch(unsigned)
        assert (status, "<Code>MissingAuthenticationToken</Code>" in body) == (403, True), body
        presigned(other, admin, url)
    finally:
        other.stop()


def fetch(url):
    try:
        answer = urllib.request.urlopen(url)
        return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def presigned(other, admin, queue_url):
    session = botocore.session.get_session()
    session.set_credentials(admin["key"], admin["secret"])
    ask = AWSRequest("GET", queue_url, params={"Action": "GetQueueAttributes", "AttributeName.1": "QueueArn"})
    SigV4QueryAuth(session.get_credentials(), "sqs", REGION, expires=60).add_auth(ask)
    signed = ask.prepare().url
    status, body = fetch(signed)
    assert status == 200 and "<Name>QueueArn</Name>" in body, body
    status, body = fetch(signed.replace("QueueArn", "DelaySeconds"))
    assert status == 403 and "SignatureDoesNotMatch" in body, body


def without_credentials_any_signature_is_accepted(broker):
    for more in (dict(key="a", secret="b"), dict(key="c", secret="d")):
        broker.client(**more).list_queues()


CHECKS = [only_valid_keys_are_accepted, without_credentials_any_signature_is_accepted]
