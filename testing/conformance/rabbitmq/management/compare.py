"""Asks a real RabbitMQ and Malote the same requests, and reports every field that only RabbitMQ has.

Usage: compare.py RABBITMQ_API VHOST AMQP_PORT MALOTE_API VHOST AMQP_PORT

Fields that Malote leaves out are listed in ACCEPTED with the reason; docs/protocols/rabbitmq.md explains them.
"""

import sys

import pika

from api import Api, check, eventually, main, quote

ERLANG = "facts about the Erlang VM"
PAGED = "Malote keeps messages on disk and has no copy in memory to count"
KINDS = "Malote counts deliveries and not which method asked for them"
AUTHOR = "Malote records who did something in its audit log, not in the object"
MIRRORS = "there are no mirrored queues"
RATE = "the history has no samples of this counter"
TLS = "Malote does not keep the parameters of a TLS session"
UI = "for RabbitMQ's own web page"

# The last segment of a field's path, or the whole path, and why Malote has no such field.
ACCEPTED = {
    "garbage_collection": ERLANG,
    "reductions": ERLANG,
    "reductions_details": ERLANG,
    "memory": ERLANG,
    "backing_queue_status": ERLANG,
    "pending_raft_commands": ERLANG,
    "send_pend": ERLANG,
    "erlang_version": ERLANG,
    "erlang_full_version": ERLANG,
    "statistics_db_event_queue": ERLANG,
    "socket_opts": ERLANG,
    "cowboy_opts": ERLANG,
    "ssl_opts": ERLANG,
    "messages_paged_out": PAGED,
    "messages_persistent": PAGED,
    "messages_ram": PAGED,
    "messages_ready_ram": PAGED,
    "messages_unacknowledged_ram": PAGED,
    "message_bytes_paged_out": PAGED,
    "message_bytes_persistent": PAGED,
    "message_bytes_ram": PAGED,
    "message_bytes_ready": PAGED,
    "message_bytes_unacknowledged": PAGED,
    "deliver": KINDS,
    "deliver_details": KINDS,
    "deliver_no_ack": KINDS,
    "deliver_no_ack_details": KINDS,
    "get": KINDS,
    "get_details": KINDS,
    "get_empty": KINDS,
    "get_empty_details": KINDS,
    "get_no_ack": KINDS,
    "get_no_ack_details": KINDS,
    "confirm": KINDS,
    "confirm_details": KINDS,
    "return_unroutable": KINDS,
    "return_unroutable_details": KINDS,
    "drop_unroutable": KINDS,
    "drop_unroutable_details": KINDS,
    "disk_reads": KINDS,
    "disk_reads_details": KINDS,
    "disk_writes": KINDS,
    "disk_writes_details": KINDS,
    "publish_in": KINDS,
    "publish_in_details": KINDS,
    "publish_out_details": RATE,
    "redeliver_details": RATE,
    "recv_oct_details": RATE,
    "send_oct_details": RATE,
    "idle_since": "Malote does not remember when an object was last used",
    "consumer_utilisation": "Malote does not measure how long consumers wait",
    "consumer_capacity": "Malote does not measure how long consumers wait",
    "exclusive_consumer_tag": "shown as `exclusive` of the consumer",
    "single_active_consumer_tag": "only the engine knows the active consumer, and it has no tags",
    "recoverable_slaves": MIRRORS,
    "slave_nodes": MIRRORS,
    "synchronised_slave_nodes": MIRRORS,
    "user_who_performed_action": AUTHOR,
    "incoming": "statistics by pairs of exchange and queue are not kept",
    "outgoing": "statistics by pairs of exchange and queue are not kept",
    "deliveries": "statistics by pairs of channel and queue are not kept",
    "publishes": "statistics by pairs of channel and exchange are not kept",
    "peer_cert_issuer": TLS,
    "peer_cert_subject": TLS,
    "peer_cert_validity": TLS,
    "ssl_cipher": TLS,
    "ssl_hash": TLS,
    "ssl_key_exchange": TLS,
    "ssl_protocol": TLS,
    "sample_retention_policies": UI,
    "enable_queue_totals": UI,
    "release_series_support_status": UI,
    "javascript": UI,
    "churn_rates": "Malote does not count objects that were created or closed",
    "/channels.message_stats": "Malote keeps no statistics of channels",
}

# Fields of a node that Malote has; RabbitMQ has over a hundred, nearly all about Erlang.
NODE = {
    "name", "type", "running", "being_drained", "partitions", "os_pid", "uptime", "rates_mode", "exchange_types",
    "auth_mechanisms", "applications", "contexts", "mem_alarm", "disk_free_alarm", "disk_free", "sockets_used",
    "processors", "enabled_plugins",
}

# Their names are the client's, not the broker's.
OPAQUE = {"arguments", "client_properties", "headers"}


class Side:
    """A broker with a queue, an exchange, a binding, messages and a consumer."""

    def __init__(self, url, vhost, amqp_port):
        self.api = api = Api(url, vhost)
        credentials = pika.PlainCredentials(api.user, api.password)
        parameters = pika.ConnectionParameters(api.host, int(amqp_port), vhost, credentials)
        self.connection = pika.BlockingConnection(parameters)
        channel = self.connection.channel()
        channel.exchange_declare("cmp.x", "topic", durable=True)
        channel.queue_declare("cmp.q", durable=True, arguments={"x-max-length": 1000})
        channel.queue_bind("cmp.q", "cmp.x", "a.#")
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume("cmp.q", lambda *_: None, consumer_tag="cmp.tag")
        self.channel = channel

    def work(self):
        """Publishes and takes some messages, so that there are statistics."""
        for _ in range(10):
            self.channel.basic_publish("cmp.x", "a.b", b"x")
        self.connection.process_data_events(time_limit=0.2)
        queue = self.api.get(self.api.of("queues", "cmp.q"))
        open_ = [self.api.get(path) for path in ["/connections", "/channels", "/consumers"]]
        return all(open_) and "rate" in queue.get("message_stats", {}).get("publish_details", {})


def fields(value, path=""):
    """The paths of all fields."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{path}.{name}"
            if name not in OPAQUE:
                yield from fields(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner, f"{path}[]")


def accepted(request, path):
    name = request + path
    # A field inside one that is left out as a whole.
    segments = path.replace("[]", "").strip(".").split(".")
    if request.startswith("/nodes"):
        return segments[0] not in NODE or len(segments) > 1
    if "/channels" in request and segments[0] == "message_stats":
        return "/channels.message_stats" in ACCEPTED
    return name in ACCEPTED or any(segment in ACCEPTED for segment in segments)


def requests(side):
    """Requests by their names: the names of objects differ."""
    api = side.api
    connection = api.get("/connections")[0]["name"]
    channel = api.get("/channels")[0]["name"]
    node = api.get("/nodes")[0]["name"]
    vhost = quote(api.vhost)
    return {
        "/overview": "/overview",
        "/nodes": "/nodes",
        "/nodes/NODE": f"/nodes/{quote(node)}",
        "/connections": "/connections",
        "/connections/NAME": f"/connections/{quote(connection)}",
        "/connections/NAME/channels": f"/connections/{quote(connection)}/channels",
        "/vhosts/VHOST/connections": f"/vhosts/{vhost}/connections",
        "/channels": "/channels",
        "/channels/NAME": f"/channels/{quote(channel)}",
        "/consumers": "/consumers",
        "/consumers/VHOST": f"/consumers/{vhost}",
        "/exchanges": "/exchanges",
        "/exchanges/VHOST": f"/exchanges/{vhost}",
        "/exchanges/VHOST/NAME": api.of("exchanges", "cmp.x"),
        "/exchanges/VHOST/NAME/bindings/source": api.of("exchanges", "cmp.x", "/bindings/source"),
        "/exchanges/VHOST/NAME/bindings/destination": api.of("exchanges", "cmp.x", "/bindings/destination"),
        "/queues": "/queues",
        "/queues/VHOST": f"/queues/{vhost}",
        "/queues/VHOST/NAME": api.of("queues", "cmp.q"),
        "/queues/VHOST/NAME/bindings": api.of("queues", "cmp.q", "/bindings"),
        "/queues?page": "/queues?page=1&page_size=10",
        "/queues?disable_stats": "/queues?disable_stats=true",
        "/bindings": "/bindings",
        "/bindings/VHOST": f"/bindings/{vhost}",
        "/bindings/VHOST/e/X/q/Q": f"/bindings/{vhost}/e/cmp.x/q/cmp.q",
        "/bindings/VHOST/e/X/q/Q/KEY": f"/bindings/{vhost}/e/cmp.x/q/cmp.q/{quote('a.%23')}",
        "/health/checks/alarms": "/health/checks/alarms",
        "/health/checks/local-alarms": "/health/checks/local-alarms",
        "/health/checks/virtual-hosts": "/health/checks/virtual-hosts",
        "/health/checks/protocol-listener/amqp": "/health/checks/protocol-listener/amqp",
        "/health/checks/node-is-quorum-critical": "/health/checks/node-is-quorum-critical",
        "/aliveness-test/VHOST": f"/aliveness-test/{vhost}",
        "/healthchecks/node": "/healthchecks/node",
        "/feature-flags": "/feature-flags",
        "/extensions": "/extensions",
        "/cluster-name": "/cluster-name",
        "/auth": "/auth",
        "/whoami": "/whoami",
    }


@check
def every_field_is_there_or_explained(real, ours):
    theirs, mine = requests(real), requests(ours)
    missing = []
    for request in theirs:
        expected = set(fields(real.api.get(theirs[request])))
        found = set(fields(ours.api.get(mine[request])))
        missing += [request + path for path in sorted(expected - found) if not accepted(request, path)]
    assert not missing, "only RabbitMQ has:\n" + "\n".join(missing)


# Requests that fail, with a body: both brokers answer the same.
REFUSED = [
    ("GET", "/nope", None),
    ("GET", "/queues/{v}/none", None),
    ("GET", "/queues/none", None),
    ("GET", "/exchanges/{v}/none", None),
    ("GET", "/connections/none", None),
    ("GET", "/consumers/none", None),
    ("GET", "/aliveness-test/none", None),
    ("GET", "/queues?page=0", None),
    ("GET", "/queues?page=1&page_size=900", None),
    ("GET", "/queues?page=1&name=%5B&use_regex=true", None),
    ("GET", "/health/checks/port-listener/x", None),
    ("POST", "/overview", {}),
    ("PUT", "/queues/{v}/cmp.q", {"durable": True}),
    ("PUT", "/queues/{v}/cmp.q", {"durable": "x"}),
    ("PUT", "/queues/{v}/cmp.n", {"durable": True, "arguments": {"x-message-ttl": None}}),
    ("PUT", "/exchanges/{v}/cmp.x", {"type": "fanout", "durable": True}),
    ("PUT", "/exchanges/{v}/cmp.n", {"type": "cmp-no-such-type"}),
    ("DELETE", "/queues/{v}/none", None),
    ("DELETE", "/queues/{v}/none/contents", None),
    ("DELETE", "/exchanges/{v}/none", None),
    ("DELETE", "/connections/none", None),
    ("DELETE", "/bindings/{v}/e/cmp.x/q/cmp.q/none", None),
    ("POST", "/bindings/{v}/e/none/q/cmp.q", {}),
    ("POST", "/queues/{v}/none/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
    ("POST", "/queues/{v}/cmp.q/get", {"count": 1}),
    ("POST", "/queues/{v}/cmp.q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "x"}),
    ("POST", "/exchanges/{v}/cmp.x/publish", {"routing_key": "a"}),
]


@check
def refusals_are_the_same(real, ours):
    differing = []
    for method, path, body in REFUSED:
        answers = []
        for side in [real, ours]:
            vhost = side.api.vhost
            status, said, _ = side.api.ask(method, path.format(v=quote(vhost)), body)
            # A text names the virtual host, and Erlang breaks long lines.
            text = repr(said).replace(f"vhost '{vhost}'", "vhost 'V'").replace("\\n", "")
            answers.append((status, text.replace(" ", "")))
        if answers[0] != answers[1]:
            differing.append(f"{method} {path} {body}: {answers[0]} but {answers[1]}")
    assert not differing, "\n".join(differing)


if __name__ == "__main__":
    sides = Side(*sys.argv[1:4]), Side(*sys.argv[4:7])
    for side in sides:
        eventually(side.work)
    main(*sides)
