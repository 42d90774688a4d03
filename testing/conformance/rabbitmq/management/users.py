"""Users, permissions, virtual hosts and policies, over the API and over AMQP. Usage: users.py API VHOST AMQP_PORT"""

import sys

import pika
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from api import Api, check, eventually, main, quote

USER = "conf.user"


class Broker:
    def __init__(self, api, port):
        self.api, self.port = api, port

    def put(self, path, body, statuses=(201, 204)):
        status, said, _ = self.api.ask("PUT", path, body)
        assert status in statuses, (path, status, said)
        return said

    def delete(self, path):
        status, said, _ = self.api.ask("DELETE", path)
        assert status in (204, 404), (path, status, said)

    def permit(self, configure, write, read, user=USER):
        body = {"configure": configure, "write": write, "read": read}
        self.put(self.api.of("permissions", user), body)

    def connect(self, vhost=None, user=USER, password="secret"):
        vhost = self.api.vhost if vhost is None else vhost
        credentials = pika.PlainCredentials(user, password)
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, vhost, credentials))

    def refusal(self, use, user=USER):
        """The code and text that close the channel; None if the broker accepts."""
        connection = self.connect(user=user)
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            use(channel)
            return None
        except ChannelClosedByBroker as closed:
            return closed.reply_code, closed.reply_text
        finally:
            connection.close()


def prepare(broker):
    # A broker without users has only guest, until the first user exists.
    broker.put("/users/guest", {"password": "guest", "tags": "administrator"})
    broker.permit(".*", ".*", ".*", "guest")
    broker.put(f"/users/{USER}", {"password": "secret", "tags": ""})
    broker.permit("^c", "^(c|w)", "^(c|r)")


def denied(broker, what):
    return 403, f"ACCESS_REFUSED - access to {what} in vhost '{broker.api.vhost}' refused for user '{USER}'"


@check
def each_method_needs_its_permission(broker):
    broker.put(broker.api.of("queues", "other"), {"durable": True})
    assert broker.refusal(lambda channel: channel.queue_declare("cq", durable=True)) is None
    assert broker.refusal(lambda channel: channel.exchange_declare("cx", "topic", durable=True)) is None
    cases = [
        (lambda channel: channel.queue_declare("xq"), "queue 'xq'"),
        (lambda channel: channel.queue_delete("other"), "queue 'other'"),
        (lambda channel: channel.queue_purge("other"), "queue 'other'"),
        (lambda channel: channel.basic_get("other"), "queue 'other'"),
        (lambda channel: channel.basic_consume("other", print), "queue 'other'"),
        (lambda channel: channel.queue_bind("cq", "amq.topic", "k"), "exchange 'amq.topic'"),
        (lambda channel: channel.queue_bind("other", "cx", "k"), "queue 'other'"),
        (lambda channel: channel.exchange_delete("zx"), "exchange 'zx'"),
        (lambda channel: channel.basic_publish("", "cq", b"x"), "exchange 'amq.default'"),
        (lambda channel: channel.basic_publish("amq.topic", "k", b"x"), "exchange 'amq.topic'"),
        (lambda channel: channel.queue_declare("cd", arguments={"x-dead-letter-exchange": ""}), "exchange 'amq.default'"),
        (lambda channel: channel.exchange_declare("ca", arguments={"alternate-exchange": "zz"}), "exchange 'zz'"),
    ]
    for use, what in cases:
        assert broker.refusal(use) == denied(broker, what), (what, broker.refusal(use))
    for use in [
        lambda channel: channel.queue_declare("other", passive=True),
        lambda channel: channel.exchange_declare("amq.topic", passive=True),
        lambda channel: channel.queue_bind("cq", "cx", "k"),
        lambda channel: channel.basic_publish("cx", "k", b"x"),
        lambda channel: channel.basic_get("cq"),
    ]:
        assert broker.refusal(use) is None


@check
def topic_permissions_limit_routing_keys(broker):
    path = broker.api.of("topic-permissions", USER)
    broker.put(path, {"exchange": "cx", "write": "^k", "read": "^k"})
    assert broker.refusal(lambda channel: channel.basic_publish("cx", "k.1", b"x")) is None
    expected = denied(broker, "topic 'z.1' in exchange 'cx'")
    assert broker.refusal(lambda channel: channel.basic_publish("cx", "z.1", b"x")) == expected
    assert broker.refusal(lambda channel: channel.queue_bind("cq", "cx", "z.1")) == expected
    broker.delete(path)
    assert broker.refusal(lambda channel: channel.basic_publish("cx", "z.1", b"x")) is None


@check
def a_virtual_host_needs_permissions(broker):
    broker.put("/vhosts/conf.dev", {"description": "a test", "tags": "x,y"})
    assert broker.api.get("/vhosts/conf.dev")["tags"] == ["x", "y"]
    try:
        broker.connect("conf.dev")
        raise AssertionError("accepted")
    except AMQPConnectionError as error:
        assert f"access to vhost 'conf.dev' refused for user '{USER}'" in str(error), error
    # The creator has all permissions.
    connection = broker.connect("conf.dev", "guest", "guest")
    connection.channel().queue_declare("q", durable=True)
    broker.delete("/vhosts/conf.dev")
    try:
        connection.process_data_events(30)
        raise AssertionError("the connection stays")
    except AMQPConnectionError as error:
        assert "vhost 'conf.dev' is deleted" in str(error), error
    assert broker.api.ask("GET", "/vhosts/conf.dev")[0] == 404
    broker.put("/vhosts/conf.dev", {})
    assert broker.api.get("/queues/conf.dev") == []
    broker.delete("/vhosts/conf.dev")


@check
def an_impersonator_may_set_the_user_id(broker):
    def publish(channel):
        channel.basic_publish("cx", "k", b"x", pika.BasicProperties(user_id="somebody"))

    assert broker.refusal(publish)[0] == 406
    broker.put(f"/users/{USER}", {"password": "secret", "tags": "impersonator"})
    assert broker.refusal(publish) is None


@check
def a_policy_limits_queues_while_it_exists(broker):
    api = broker.api
    broker.put(api.of("queues", "pol.q"), {"durable": True, "arguments": {"x-max-length": 7}})
    limit = {"pattern": "^pol", "apply-to": "queues", "priority": 1, "definition": {"max-length": 3}}
    broker.put(api.of("policies", "conf"), limit)
    broker.put(api.of("operator-policies", "conf"), {"pattern": "^pol", "definition": {"max-length": 2}})

    def shown():
        queue = api.get(api.of("queues", "pol.q"))
        effective = queue.get("effective_policy_definition")
        return (queue.get("policy"), queue.get("operator_policy"), effective) == ("conf", "conf", {"max-length": 2})

    eventually(shown)

    def length_after_ten():
        connection = broker.connect(user="guest", password="guest")
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_purge("pol.q")
        for _ in range(10):
            channel.basic_publish("", "pol.q", b"x")
        count = channel.queue_declare("pol.q", passive=True).method.message_count
        connection.close()
        return count

    eventually(lambda: length_after_ten() == 2)
    # The declared arguments still count for a declaration.
    broker.put(api.of("queues", "pol.q"), {"durable": True, "arguments": {"x-max-length": 7}}, [204])
    broker.delete(api.of("policies", "conf"))
    broker.delete(api.of("operator-policies", "conf"))
    eventually(lambda: length_after_ten() == 7)
    broker.delete(api.of("queues", "pol.q"))


@check
def mistakes_have_the_same_answers(broker):
    api = broker.api
    cases = [
        ("/users/conf.x", {"password": "x"}, 400),
        (f"/permissions/conf.none/{USER}", {"configure": "", "write": "", "read": ""}, 400),
        (api.of("permissions", USER), {"configure": "(", "write": "", "read": ""}, 400),
        (api.of("policies", "p"), {"pattern": "(", "definition": {"max-length": 1}}, 400),
        (api.of("policies", "p"), {"pattern": "a", "definition": {"unknown": 1}}, 400),
        (api.of("policies", "p"), {"pattern": "a", "definition": {"max-length": -1}}, 400),
        ("/policies/conf.none/p", {"pattern": "a", "definition": {"max-length": 1}}, 404),
        (f"/parameters/conf.none/{quote(api.vhost)}/x", {"value": 1}, 400),
    ]
    for path, body, expected in cases:
        status, said, _ = api.ask("PUT", path, body)
        assert status == expected, (path, status, said)
    for path in ["/users/conf.x", api.of("permissions", "conf.x"), api.of("policies", "p"), "/global-parameters/conf.x"]:
        assert api.ask("GET", path)[0] == 404 and api.ask("DELETE", path)[0] == 404, path


if __name__ == "__main__":
    broker = Broker(Api(*sys.argv[1:3]), int(sys.argv[3]))
    prepare(broker)
    main(broker)
