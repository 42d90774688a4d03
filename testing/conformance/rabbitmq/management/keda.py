"""The requests of KEDA's RabbitMQ scaler. Usage: keda.py API VHOST"""

import sys
import urllib.parse

from api import Api, check, eventually, main, quote

QUEUE = "keda.orders"


def publish(api, queue, count):
    message = {"properties": {}, "routing_key": queue, "payload": "x", "payload_encoding": "string"}
    for _ in range(count):
        status, said, _ = api.ask("POST", api.of("exchanges", "amq.default", "/publish"), message)
        assert (status, said) == (200, {"routed": True}), (status, said)


def fresh(api, queue):
    api.ask("DELETE", api.of("queues", queue))
    assert api.ask("PUT", api.of("queues", queue), {"durable": True})[0] == 201


@check
def length_and_rate_of_a_queue(api):
    fresh(api, QUEUE)
    publish(api, QUEUE, 5)

    def read():
        queue = api.get(api.of("queues", QUEUE))
        counted = queue.get("messages") == 5 and queue.get("messages_unacknowledged") == 0
        return queue if counted and "message_stats" in queue else None

    eventually(read)

    # The rate is that of the last interval: publish until one has been measured.
    def rated():
        publish(api, QUEUE, 20)
        stats = api.get(api.of("queues", QUEUE)).get("message_stats", {})
        return stats.get("publish_details", {}).get("rate", 0) > 0

    eventually(rated)
    assert isinstance(api.get(api.of("queues", QUEUE))["message_stats"]["publish_details"]["rate"], (int, float))


@check
def queues_by_regular_expression(api):
    for name in ["keda.a1", "keda.a2", "keda.b1"]:
        fresh(api, name)
    publish(api, "keda.a1", 1)
    publish(api, "keda.a2", 2)
    expression = urllib.parse.quote_plus("^keda\\.a.*$")
    path = f"/queues/{quote(api.vhost)}?page=1&use_regex=true&pagination=false&name={expression}&page_size=100"

    def read():
        page = api.get(path)
        sums = [sum(one.get(field, -1) for one in page["items"]) for field in ["messages", "messages_unacknowledged"]]
        return page if sums == [3, 0] else None

    page = eventually(read)
    assert page["page_count"] == 1, page
    assert sorted(one["name"] for one in page["items"]) == ["keda.a1", "keda.a2"], page


@check
def a_missing_queue_is_an_error(api):
    status, said, _ = api.ask("GET", api.of("queues", "keda.none"))
    assert (status, said) == (404, {"error": "Object Not Found", "reason": "Not Found"}), (status, said)


@check
def a_wrong_password_is_refused(api):
    other = Api(f"http://{api.user}:wrong@{api.host}:{api.port}", api.vhost)
    status, _, headers = other.ask("GET", api.of("queues", QUEUE))
    assert status == 401 and headers["WWW-Authenticate"].startswith("Basic"), (status, headers)


if __name__ == "__main__":
    main(Api(*sys.argv[1:]))
