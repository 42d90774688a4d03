"""A queue used by two SDKs at the same time."""

import contextlib

from azure.servicebus import ServiceBusClient, ServiceBusMessage

import harness


class Both:
    """One queue: `url` for boto3's client `sqs`, `name` for the Service Bus client `bus`."""

    def __init__(self, broker, bus, fifo=False, **attributes):
        self.sqs = broker.client()
        self.bus = bus
        self.url = harness.queue(self.sqs, fifo, **attributes)
        self.name = self.url.rsplit("/", 1)[1]

    def sqs_send(self, body="x", **more):
        return self.sqs.send_message(QueueUrl=self.url, MessageBody=body, **more)

    def sqs_receive(self, **more):
        more.setdefault("WaitTimeSeconds", 10)
        return self.sqs.receive_message(
            QueueUrl=self.url, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"], **more
        ).get("Messages", [])

    def sqs_one(self, **more):
        (got,) = self.sqs_receive(**more)
        return got

    def sqs_delete(self, message):
        self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])

    def count(self, which="ApproximateNumberOfMessages"):
        return int(harness.attribute(self.sqs, self.url, which))

    def bus_send(self, body="x", session=None, **more):
        message = body if not isinstance(body, (str, bytes)) else ServiceBusMessage(body, session_id=session, **more)
        with self.bus.get_queue_sender(self.name) as sender:
            sender.send_messages(message)

    @contextlib.contextmanager
    def bus_receiver(self, session=None, **more):
        with self.bus.get_queue_receiver(self.name, session_id=session, **more) as receiver:
            yield receiver

    @contextlib.contextmanager
    def bus_one(self, session=None):
        """Receives a message, and completes it afterwards."""
        with self.bus_receiver(session) as receiver:
            (got,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
            yield got
            receiver.complete_message(got)


@contextlib.contextmanager
def namespace(broker):
    text = (
        f"Endpoint=sb://{broker.amqp};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true;"
    )
    with ServiceBusClient.from_connection_string(text, retry_total=0) as bus:
        yield bus


def check(checks):
    """Adds a check, which gets the broker and a new Service Bus client."""

    def add(function):
        def run(broker):
            with namespace(broker) as bus:
                function(broker, bus)

        run.__name__, run.__module__ = function.__name__, function.__module__
        checks.append(run)
        return function

    return add


def attributes(message):
    """Attributes as SQS returns them: name to (type, value)."""
    found = message.get("MessageAttributes", {})
    return {name: (a["DataType"], a.get("StringValue", a.get("BinaryValue"))) for name, a in found.items()}


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def properties(message):
    return {text(name): text(value) for name, value in (message.application_properties or {}).items()}
