"""RabbitMQ's own command line, rabbitmqadmin. Usage: rabbitmqadmin.py API VHOST PROGRAM"""

import json
import subprocess
import sys
import tempfile

import pika

from api import Api, check, eventually, main


class Admin:
    def __init__(self, api, program):
        self.api, self.program = api, program

    def run(self, *arguments, refused=False):
        """The output of a command."""
        api = self.api
        command = [sys.executable, self.program, "-H", api.host, "-P", str(api.port), "-u", api.user]
        command += ["-p", api.password, "-V", api.vhost, "-f", "raw_json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode != 0) == refused, (arguments, done.stdout, done.stderr)
        return done.stderr + done.stdout if refused else done.stdout

    def list(self, *arguments):
        return json.loads(self.run("list", *arguments))


@check
def declares_lists_and_deletes_a_queue(admin):
    text = admin.run("declare", "queue", "name=ra.q", "durable=true", 'arguments={"x-max-length": 10}')
    assert "declared" in text, text
    [queue] = [one for one in admin.list("queues") if one["name"] == "ra.q"]
    assert queue["durable"] is True and queue["arguments"] == {"x-max-length": 10}, queue
    # The same settings are no error, others are.
    admin.run("declare", "queue", "name=ra.q", "durable=true", 'arguments={"x-max-length": 10}')
    refusal = admin.run("declare", "queue", "name=ra.q", "durable=true", refused=True)
    assert "inequivalent arg 'x-max-length'" in refusal, refusal
    admin.run("delete", "queue", "name=ra.q")
    assert "ra.q" not in [one["name"] for one in admin.list("queues", "name")]
    assert "Not found" in admin.run("delete", "queue", "name=ra.q", refused=True)


@check
def declares_lists_and_deletes_an_exchange_with_bindings(admin):
    admin.run("declare", "exchange", "name=ra.x", "type=topic", "durable=true")
    admin.run("declare", "exchange", "name=ra.y", "type=fanout", "auto_delete=false")
    admin.run("declare", "queue", "name=ra.b", "durable=true")
    admin.run("declare", "binding", "source=ra.x", "destination=ra.b", "routing_key=a.#")
    admin.run(
        "declare", "binding", "source=ra.x", "destination=ra.y", "destination_type=exchange", "routing_key=b.*"
    )
    [exchange] = [one for one in admin.list("exchanges") if one["name"] == "ra.x"]
    assert exchange["type"] == "topic" and exchange["durable"] is True, exchange
    bindings = [one for one in admin.list("bindings") if one["source"] == "ra.x"]
    kinds = sorted((one["destination_type"], one["routing_key"]) for one in bindings)
    assert kinds == [("exchange", "b.*"), ("queue", "a.#")], bindings
    [key] = [one["properties_key"] for one in bindings if one["destination"] == "ra.b"]
    admin.run(
        "delete", "binding", "source=ra.x", "destination_type=queue", "destination=ra.b", f"properties_key={key}"
    )
    left = [one["destination"] for one in admin.list("bindings") if one["source"] == "ra.x"]
    assert left == ["ra.y"], left
    for name in ["ra.x", "ra.y"]:
        admin.run("delete", "exchange", f"name={name}")
    admin.run("delete", "queue", "name=ra.b")


@check
def publishes_gets_and_purges(admin):
    admin.run("declare", "queue", "name=ra.m", "durable=true")
    said = admin.run("publish", "exchange=amq.default", "routing_key=ra.m", "payload=hello", 'properties={"priority": 3}')
    assert "Message published" in said and "NOT routed" not in said, said
    said = admin.run("publish", "exchange=amq.default", "routing_key=ra.none", "payload=hello")
    assert "NOT routed" in said, said
    admin.run("publish", "exchange=amq.default", "routing_key=ra.m", "payload=again")
    [first] = json.loads(admin.run("get", "queue=ra.m", "ackmode=ack_requeue_true"))
    assert first["payload"] == "hello" and first["properties"]["priority"] == 3, first
    [first] = json.loads(admin.run("get", "queue=ra.m", "ackmode=ack_requeue_false", "count=1"))
    assert first["payload"] == "hello" and first["redelivered"] is True, first
    admin.run("purge", "queue", "name=ra.m")
    assert json.loads(admin.run("get", "queue=ra.m", "ackmode=ack_requeue_true")) == []
    admin.run("delete", "queue", "name=ra.m")


@check
def lists_and_closes_connections(admin):
    api = admin.api
    name = "ra.connection"
    parameters = pika.ConnectionParameters(
        api.host, api.amqp_port, api.vhost, pika.PlainCredentials(api.user, api.password),
        client_properties={"connection_name": name},
    )
    connection = pika.BlockingConnection(parameters)
    connection.channel()

    def listed():
        found = admin.list("connections")
        return [one for one in found if one.get("client_properties", {}).get("connection_name") == name]

    [one] = eventually(listed)
    assert one["user"] == api.user and one["vhost"] == api.vhost, one
    assert eventually(lambda: [c for c in admin.list("channels") if c["connection_details"]["name"] == one["name"]])
    admin.run("close", "connection", f"name={one['name']}")
    try:
        connection.process_data_events(time_limit=30)
        raise AssertionError("the connection is open")
    except pika.exceptions.ConnectionClosedByBroker as closed:
        assert closed.reply_code == 320, closed
        assert closed.reply_text == "CONNECTION_FORCED - Closed via management plugin", closed


@check
def shows_the_broker(admin):
    [overview] = json.loads(admin.run("show", "overview"))
    assert overview["rabbitmq_version"] and overview["cluster_name"], overview
    [node] = admin.list("nodes", "name", "type", "running")
    assert node["running"] is True and node["type"] == "disc", node


@check
def exports_definitions(admin):
    admin.run("declare", "queue", "name=ra.e", "durable=true")
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        admin.run("export", file.name)
        definitions = json.load(open(file.name))
    assert "ra.e" in [queue["name"] for queue in definitions["queues"]], definitions
    admin.run("delete", "queue", "name=ra.e")


if __name__ == "__main__":
    url, vhost, program, amqp_port = sys.argv[1:]
    api = Api(url, vhost)
    api.amqp_port = int(amqp_port)
    main(Admin(api, program))
