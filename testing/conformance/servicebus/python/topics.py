"""Topics, subscriptions, rules and forwarding. The entities are declared in ../entities.json."""

import uuid

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusError

from harness import api, body, client, main, raises


def drain(receiver):
    """Receives and completes all messages."""
    got = []
    while more := receiver.receive_messages(max_message_count=50, max_wait_time=1):
        for message in more:
            receiver.complete_message(message)
        got += more
    return got


def publish(bus, topic, *messages):
    with bus.get_topic_sender(topic) as sender:
        sender.send_messages(list(messages))


def subscription(bus, name, topic="news"):
    return bus.get_subscription_receiver(topic, name)


def clean(bus, *names):
    for name in names:
        with subscription(bus, name) as receiver:
            drain(receiver)


def subscriptions_get_matching_messages():
    with client() as bus:
        clean(bus, "all", "sport", "large")
        publish(
            bus,
            "news",
            ServiceBusMessage("1", subject="sport", application_properties={"size": 99}, session_id="s"),
            ServiceBusMessage("2", subject="art", application_properties={"size": 11}, session_id="s"),
            ServiceBusMessage("3", subject="art", application_properties={"size": 1}, session_id="s"),
        )
        with subscription(bus, "all") as receiver:
            assert [body(m) for m in drain(receiver)] == [b"1", b"2", b"3"]
        with subscription(bus, "sport") as receiver:
            assert [body(m) for m in drain(receiver)] == [b"1"]
        with subscription(bus, "large") as receiver:
            (got,) = drain(receiver)
            assert body(got) == b"2" and got.subject == "large", got
            names = got.application_properties
            assert names[b"seen"] == b"yes" and names[b"size"] == 11 and names[b"RuleName"] == b"by-size", names
        with bus.get_subscription_receiver("news", "by-session", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as r:
            assert r.session.session_id == "s"
            assert [body(m) for m in drain(r)] == [b"1", b"2", b"3"]


def names_of_subscriptions_are_case_insensitive():
    with client() as bus:
        clean(bus, "sport")
        publish(bus, "NEWS", ServiceBusMessage("x", subject="sport", session_id="s"))
        with bus.get_subscription_receiver("News", "SPORT") as receiver:
            assert len(drain(receiver)) == 1


def a_subscription_has_its_own_dead_letters():
    with client() as bus:
        clean(bus, "sport")
        publish(bus, "news", ServiceBusMessage("x", subject="sport", session_id="s"))
        with subscription(bus, "sport") as receiver:
            (got,) = receiver.receive_messages(max_wait_time=5)
            receiver.dead_letter_message(got, reason="r")
        with bus.get_subscription_receiver("news", "sport", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            (got,) = drain(dead)
            assert got.dead_letter_reason == "r"


def a_topic_drops_duplicates():
    with client() as bus:
        identity = uuid.uuid4().hex
        for _ in range(2):
            publish(bus, "once", ServiceBusMessage("x", message_id=identity))
        with subscription(bus, "s", "once") as receiver:
            assert [m.message_id for m in drain(receiver)] == [identity]


def messages_are_forwarded_to_queues_and_topics():
    with client() as bus:
        clean(bus, "all")
        with bus.get_queue_sender("in") as sender:
            sender.send_messages(ServiceBusMessage("on", message_id="f"))
        with bus.get_queue_receiver("out") as receiver:
            (got,) = receiver.receive_messages(max_wait_time=5)
            assert body(got) == b"on" and got.message_id == "f"
            receiver.abandon_message(got)
        with bus.get_queue_receiver("graves") as receiver:
            (got,) = drain(receiver)
            assert got.dead_letter_source == "out", got.dead_letter_source
            assert got.dead_letter_reason == "MaxDeliveryCountExceeded", got.dead_letter_reason
        with bus.get_queue_sender("in-to-topic") as sender:
            sender.send_messages(ServiceBusMessage("to all", session_id="s"))
        with subscription(bus, "all") as receiver:
            assert [body(m) for m in drain(receiver)] == [b"to all"]


def the_configured_queue_matches_the_file():
    spec = api("GET", "/queues/configured")
    spec = spec.get("spec", spec)
    assert spec["lock_ms"] == 30_000 and spec["failed_max"] == 3 and spec["ttl_ms"] == 3_600_000, spec
    with client() as bus, bus.get_queue_sender("configured") as sender:
        for _ in range(2):
            sender.send_messages(ServiceBusMessage("x", message_id="same"))
        with bus.get_queue_receiver("configured") as receiver:
            assert len(drain(receiver)) == 1


def ask(receiver, operation, request):
    def parse(status, message, description, amqp_transport):
        return status, message.value, description

    return receiver._mgmt_request_response_with_retry(operation, request, parse)


def rules_are_managed():
    with client() as bus:
        clean(bus, "ruled")
        with subscription(bus, "ruled") as receiver:
            status, value, _ = ask(receiver, b"com.microsoft:enumerate-rules", {"top": 100, "skip": 0})
            assert status == 200 and len(value[b"rules"]) == 1, (status, value)
            rule = {
                "rule-name": "mine",
                "rule-description": {
                    "sql-filter": {"expression": "n > 1"},
                    "sql-rule-action": {"expression": "SET touched = 1"},
                },
            }
            assert ask(receiver, b"com.microsoft:add-rule", rule)[0] == 200
            assert ask(receiver, b"com.microsoft:add-rule", rule)[0] == 409
            assert ask(receiver, b"com.microsoft:remove-rule", {"rule-name": "$Default"})[0] == 200
            assert ask(receiver, b"com.microsoft:remove-rule", {"rule-name": "nobody"})[0] == 404
            bad = {"rule-name": "bad", "rule-description": {"sql-filter": {"expression": "n >"}}}
            assert ask(receiver, b"com.microsoft:add-rule", bad)[0] == 400
            assert ask(receiver, b"com.microsoft:no-such-thing", {})[0] == 501
            publish(
                bus,
                "news",
                ServiceBusMessage("no", application_properties={"n": 1}, session_id="s"),
                ServiceBusMessage("yes", application_properties={"n": 2}, session_id="s"),
            )
            (got,) = drain(receiver)
            assert body(got) == b"yes" and got.application_properties[b"touched"] == 1
            status, value, _ = ask(receiver, b"com.microsoft:enumerate-rules", {"top": 100, "skip": 0})
            assert status == 200 and len(value[b"rules"]) == 1, (status, value)
            everything = {"rule-name": "$Default", "rule-description": {"sql-filter": {"expression": "1=1"}}}
            assert ask(receiver, b"com.microsoft:add-rule", everything)[0] == 200
            assert ask(receiver, b"com.microsoft:remove-rule", {"rule-name": "mine"})[0] == 200


def sessions_are_listed():
    with client() as bus:
        publish(bus, "news", *[ServiceBusMessage("x", session_id=f"listed-{i:03}") for i in range(150)])
        with bus.get_subscription_receiver("news", "by-session", session_id="listed-000") as receiver:
            found, skip = [], 0
            while True:
                request = {"last-updated-time": {"TYPE": "TIMESTAMP", "VALUE": 253402300799999}, "skip": skip, "top": 100}
                status, value, _ = ask(receiver, b"com.microsoft:get-message-sessions", request)
                if status == 204:
                    break
                assert status == 200 and len(value[b"sessions-ids"]) <= 100
                found += [name.decode() for name in value[b"sessions-ids"]]
                skip = value[b"skip"]
        assert {f"listed-{i:03}" for i in range(150)} <= set(found), len(found)


def receiving_from_topics_and_sending_to_subscriptions_is_refused():
    with client() as bus:
        receiver = bus.get_queue_receiver("news")
        error = raises(ServiceBusError, lambda: receiver.receive_messages(max_wait_time=1))
        assert "subscription" in str(error), error
        sender = bus.get_queue_sender("news/Subscriptions/all")
        error = raises(ServiceBusError, lambda: sender.send_messages(ServiceBusMessage("x")))
        assert "topic" in str(error), error
        missing = bus.get_subscription_receiver("news", "nobody")
        raises(MessagingEntityNotFoundError, lambda: missing.receive_messages(max_wait_time=1))


main(
    [
        subscriptions_get_matching_messages,
        names_of_subscriptions_are_case_insensitive,
        a_subscription_has_its_own_dead_letters,
        a_topic_drops_duplicates,
        messages_are_forwarded_to_queues_and_topics,
        the_configured_queue_matches_the_file,
        rules_are_managed,
        sessions_are_listed,
        receiving_from_topics_and_sending_to_subscriptions_is_refused,
    ]
)
