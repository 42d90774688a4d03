"""Keys, grants and TLS, on a server with credentials. The queue `configured` is declared in ../entities.json."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError, ServiceBusError

from harness import AMQP, main, raises


def connection(name, key, emulator=True):
    end = "UseDevelopmentEmulator=true;" if emulator else ""
    return f"Endpoint=sb://{AMQP};SharedAccessKeyName={name};SharedAccessKey={key};{end}"


def client(name, key, **options):
    return ServiceBusClient.from_connection_string(connection(name, key), retry_total=0, **options)


ROOT = ("Root", os.environ["MALOTE_ROOT"])
READER = ("Reader", os.environ["MALOTE_READER"])
REFUSED = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)


def send(bus):
    with bus.get_queue_sender("configured") as sender:
        sender.send_messages(ServiceBusMessage("x"))


def receive(bus):
    with bus.get_queue_receiver("configured") as receiver:
        for message in receiver.receive_messages(max_message_count=10, max_wait_time=2):
            receiver.complete_message(message)


def a_valid_key_is_accepted():
    with client(*ROOT) as bus:
        send(bus)
        receive(bus)
        with bus.get_queue_receiver("configured") as receiver:
            assert receiver.peek_messages() == []


def a_wrong_key_is_refused():
    for name, key in [("Root", "wrong"), ("nobody", ROOT[1]), ("Reader", ROOT[1])]:
        with client(name, key) as bus:
            error = raises(ServiceBusError, lambda: send(bus))
            assert isinstance(error, REFUSED), repr(error)


def a_key_has_only_its_granted_permissions():
    with client(*READER) as bus:
        receive(bus)
        raises(ServiceBusAuthorizationError, lambda: send(bus))
        # The error is the same whether or not the queue exists.
        raises(ServiceBusAuthorizationError, lambda: bus.get_queue_receiver("graves").peek_messages())
        raises(
            ServiceBusAuthorizationError,
            lambda: bus.get_queue_receiver("no-such-queue").receive_messages(max_wait_time=1),
        )


def tls_works_on_the_same_port():
    text = connection(*ROOT, emulator=False)
    with ServiceBusClient.from_connection_string(
        text,
        retry_total=0,
        transport_type=TransportType.Amqp,
        # Without the emulator's flag, the client always uses port 5671.
        custom_endpoint_address=f"sb://{AMQP}",
        connection_verify=os.environ["MALOTE_CA"],
    ) as bus:
        send(bus)
        receive(bus)


def amqp_works_over_a_websocket():
    text = connection(*ROOT, emulator=False)
    with ServiceBusClient.from_connection_string(
        text,
        retry_total=0,
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"https://{AMQP}",
        connection_verify=os.environ["MALOTE_CA"],
    ) as bus:
        send(bus)
        receive(bus)
        with bus.get_queue_sender("configured") as sender:
            sender.send_messages([ServiceBusMessage(b"x" * 10_000) for _ in range(50)])
        receive(bus)


main(
    [
        a_valid_key_is_accepted,
        a_wrong_key_is_refused,
        a_key_has_only_its_granted_permissions,
        tls_works_on_the_same_port,
        amqp_works_over_a_websocket,
    ]
)
