"""A new broker for every run, and what the checks share."""

import atexit
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
import urllib.request
import uuid

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

REGION = "eu-west-1"


class Broker:
    """The built binary on ports that the system chooses, with data in a temporary directory."""

    def __init__(self, binary, *, environment=None, data=None, amqp=False):
        self.binary = binary
        self.wanted = {"SQS", "HTTP API"} | ({"AMQP"} if amqp else set())
        self.data = data or tempfile.TemporaryDirectory()
        self.environment = environment or {}
        self.start()
        atexit.register(self.stop)

    def start(self):
        amqp = "127.0.0.1:0" if "AMQP" in self.wanted else "off"
        ports = ["--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--amqp", amqp, "--servicebus-admin", "off"]
        command = [self.binary, "serve", "--data", self.data.name, *ports]
        log = open(os.path.join(self.data.name, "log"), "a")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **self.environment}
        )
        self.urls = {}
        for line in self.process.stdout:
            found = re.match(r"\s+(SQS|HTTP API|AMQP)\s+((?:http://)?[0-9.:]+)", line)
            if found:
                self.urls[found[1]] = found[2]
            if self.wanted <= self.urls.keys():
                return
        raise AssertionError(f"the broker did not start: see {self.data.name}/log")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)

    def kill(self):
        self.process.kill()
        self.process.wait(30)

    @property
    def sqs_url(self):
        return self.urls["SQS"]

    @property
    def http_url(self):
        return self.urls["HTTP API"]

    @property
    def amqp(self):
        return self.urls["AMQP"]

    def api(self, method, path, body=None):
        """Calls the broker's native HTTP API, for what SDKs cannot do."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.http_url}/api/v1{path}", data=data, method=method)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def client(self, service="sqs", url=None, key="made", secret="up", **more):
        return boto3.client(
            service,
            endpoint_url=url or self.sqs_url,
            region_name=REGION,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            config=Config(retries={"max_attempts": 0}, read_timeout=60),
            **more,
        )


def name(fifo=False):
    return f"q-{uuid.uuid4().hex[:12]}" + (".fifo" if fifo else "")


def queue(sqs, fifo=False, **attributes):
    if fifo:
        attributes["FifoQueue"] = "true"
    return sqs.create_queue(QueueName=name(fifo), Attributes=attributes)["QueueUrl"]


def arn(sqs, url):
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


def attribute(sqs, url, which):
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[which]).get("Attributes", {}).get(which)


def receive(sqs, url, **more):
    more.setdefault("WaitTimeSeconds", 5)
    return sqs.receive_message(QueueUrl=url, **more).get("Messages", [])


def refused(code, call, *arguments, status=400, says="", **more):
    """Checks that the call fails with this code."""
    try:
        call(*arguments, **more)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error.response
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == status, error.response
        assert says in error.response["Error"]["Message"], error.response
        return error
    raise AssertionError(f"{code} was expected, but the call succeeded")


def run(checks, broker):
    """Runs every check on the broker. Prints the numbers of passed and failed checks."""
    passed, failed = 0, 0
    for check in checks:
        try:
            check(broker)
            passed += 1
        except Exception:
            failed += 1
            print(f"FAILED {check.__module__}.{check.__name__}", file=sys.stderr)
            traceback.print_exc()
    print(f"{passed} passed, {failed} failed")
    return failed == 0
