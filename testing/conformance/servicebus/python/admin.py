"""Administration: creates, changes, lists and deletes queues, topics, subscriptions and rules.

The client always uses HTTPS, so the server has a certificate.
"""

import datetime
import os
import uuid

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from harness import AMQP, main, raises

ADMIN = os.environ["MALOTE_ADMIN_AT"]
ROOT = ("Root", os.environ["MALOTE_ROOT"])
READER = ("Reader", os.environ["MALOTE_READER"])


def connection(at, name, key):
    return f"Endpoint=sb://{at};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true;"


def admin(at=ADMIN, key=ROOT, **options):
    options.setdefault("connection_verify", os.environ["MALOTE_CA"])
    options.setdefault("retry_total", 0)
    return ServiceBusAdministrationClient.from_connection_string(connection(at, *key), **options)


def bus():
    return ServiceBusClient.from_connection_string(connection(AMQP, *ROOT), retry_total=0)


class OverHttp(RequestsTransport):
    """A transport for a server without a certificate."""

    def send(self, request, **options):
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


def name(kind="q"):
    return f"{kind}-{uuid.uuid4().hex[:12]}"


def is_missing(do):
    raises(ResourceNotFoundError, do)


def a_queue_has_the_defaults_of_the_service():
    with admin() as a:
        queue = name()
        made = a.create_queue(queue)
        again = a.get_queue(queue)
        for q in (made, again):
            assert q.name == queue
            assert q.lock_duration == datetime.timedelta(minutes=1), q.lock_duration
            assert q.max_delivery_count == 10 and q.max_size_in_megabytes == 1024
            assert q.requires_session is False and q.requires_duplicate_detection is False
            assert q.default_message_time_to_live.days == 10675199, q.default_message_time_to_live
            assert q.duplicate_detection_history_time_window == datetime.timedelta(minutes=10)
            assert q.auto_delete_on_idle.days == 10675199
            assert q.status == "Active" and q.availability_status == "Available"
            assert q.forward_to is None and q.user_metadata is None
        a.delete_queue(queue)
        is_missing(lambda: a.get_queue(queue))


def every_property_of_a_queue_is_returned():
    with admin() as a:
        target, queue = name("target"), name()
        a.create_queue(target)
        rule = AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=[AccessRights.SEND, AccessRights.LISTEN],
            key_name="key",
            primary_key="p" * 43 + "=",
            secondary_key="s" * 43 + "=",
        )
        a.create_queue(
            queue,
            authorization_rules=[rule],
            auto_delete_on_idle=datetime.timedelta(minutes=30),
            dead_lettering_on_message_expiration=True,
            default_message_time_to_live="P2D",
            duplicate_detection_history_time_window=datetime.timedelta(minutes=3),
            enable_batched_operations=False,
            lock_duration=datetime.timedelta(seconds=13),
            max_delivery_count=14,
            max_size_in_megabytes=3072,
            requires_duplicate_detection=True,
            forward_to=target,
            forward_dead_lettered_messages_to=target,
            user_metadata="<metadata> & more",
            max_message_size_in_kilobytes=2048,
        )
        q = a.get_queue(queue)
        assert q.auto_delete_on_idle == datetime.timedelta(minutes=30)
        assert q.dead_lettering_on_message_expiration is True
        assert q.default_message_time_to_live == datetime.timedelta(days=2)
        assert q.duplicate_detection_history_time_window == datetime.timedelta(minutes=3)
        assert q.enable_batched_operations is False and q.requires_duplicate_detection is True
        assert q.lock_duration == datetime.timedelta(seconds=13) and q.max_delivery_count == 14
        assert q.max_size_in_megabytes == 3072 and q.max_message_size_in_kilobytes == 2048
        assert q.forward_to.endswith("/" + target) and q.forward_to.startswith("sb://"), q.forward_to
        assert q.forward_dead_lettered_messages_to.endswith("/" + target)
        assert q.user_metadata == "<metadata> & more", q.user_metadata
        [kept] = q.authorization_rules
        assert kept.key_name == "key" and kept.rights == ["Send", "Listen"], (kept.key_name, kept.rights)

        # Unchanged except for these properties; a missing property removes forwarding.
        q.forward_to = None
        q.max_delivery_count = 5
        a.update_queue(q)
        a.update_queue(q, lock_duration=datetime.timedelta(seconds=20), user_metadata=None)
        q = a.get_queue(queue)
        assert q.forward_to is None and q.forward_dead_lettered_messages_to.endswith("/" + target)
        assert q.max_delivery_count == 5 and q.lock_duration == datetime.timedelta(seconds=20)
        assert q.user_metadata is None and q.max_size_in_megabytes == 3072


def refusals_map_to_client_errors():
    with admin() as a:
        queue = name()
        made = a.create_queue(queue)
        raises(ResourceExistsError, lambda: a.create_queue(queue))
        raises(ResourceExistsError, lambda: a.create_queue(queue.upper()))
        raises(ResourceExistsError, lambda: a.create_topic(queue))
        for do in (a.get_queue, a.get_queue_runtime_properties, a.get_topic, a.delete_queue, a.delete_topic):
            is_missing(lambda: do("no-such-entity"))
        is_missing(lambda: a.get_subscription("no-such-topic", "s"))
        is_missing(lambda: a.create_subscription("no-such-topic", "s"))
        made.name = "no-such-queue"
        is_missing(lambda: a.update_queue(made))
        made.name = queue
        made.requires_session = True
        error = raises(HttpResponseError, lambda: a.update_queue(made))
        assert error.status_code == 400 and "RequiresSession" in str(error), error
        error = raises(HttpResponseError, lambda: a.create_queue(name(), lock_duration=datetime.timedelta(minutes=6)))
        assert error.status_code == 400 and "LockDuration" in str(error), error
        error = raises(HttpResponseError, lambda: a.create_queue(name(), forward_to="no-such-queue"))
        assert error.status_code == 400 and "ForwardTo" in str(error), error


def names_may_have_slashes_and_dots():
    with admin() as a:
        queue = f"{name()}/with.dots/and-more_1"
        a.create_queue(queue, requires_session=True)
        assert a.get_queue(queue).requires_session is True
        assert queue in [q.name for q in a.list_queues()]
        with bus() as b, b.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="s"))
        assert a.get_queue_runtime_properties(queue).active_message_count == 1
        a.delete_queue(queue)
        assert queue not in [q.name for q in a.list_queues()]


def lists_are_paged():
    with admin() as a:
        base = name("page")
        mine = sorted(f"{base}-{i:03}" for i in range(12))
        for queue in mine:
            a.create_queue(queue)
        listed = [q.name for q in a.list_queues(max_page_size=5) if q.name.startswith(base)]
        assert listed == mine, listed
        listed = [q.name for q in a.list_queues_runtime_properties(max_page_size=5) if q.name.startswith(base)]
        assert listed == mine, listed
        later = [q.name for q in a.list_queues(start_index=1, max_page_size=100)]
        everything = [q.name for q in a.list_queues()]
        assert later == everything[1:]
        for queue in mine:
            a.delete_queue(queue)


def counts_and_times_are_returned():
    with admin() as a, bus() as b:
        queue = name()
        a.create_queue(queue)
        with b.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(b"x" * 100) for _ in range(5)])
            later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
            sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], later)
        with b.get_queue_receiver(queue) as receiver:
            first, second = receiver.receive_messages(max_message_count=2, max_wait_time=10)
            receiver.dead_letter_message(first, reason="no good")
            receiver.defer_message(second)
        described = a.get_queue_runtime_properties(queue)
        assert (described.active_message_count, described.scheduled_message_count) == (4, 2), described.__dict__
        assert (described.dead_letter_message_count, described.total_message_count) == (1, 7)
        assert described.transfer_message_count == 0 and described.transfer_dead_letter_message_count == 0
        assert described.size_in_bytes >= 500, described.size_in_bytes
        now = datetime.datetime.now(datetime.timezone.utc)
        for at in (described.created_at_utc, described.updated_at_utc, described.accessed_at_utc):
            assert abs(now - at) < datetime.timedelta(minutes=5), at


def topics_and_subscriptions():
    with admin() as a, bus() as b:
        topic = name("t")
        made = a.create_topic(
            topic,
            default_message_time_to_live="PT1H",
            max_size_in_megabytes=2048,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window="PT30S",
            user_metadata="a topic",
            support_ordering=True,
        )
        assert made.name == topic and made.user_metadata == "a topic" and made.max_size_in_megabytes == 2048
        t = a.get_topic(topic)
        assert t.requires_duplicate_detection is True
        assert t.default_message_time_to_live == datetime.timedelta(hours=1)
        assert t.duplicate_detection_history_time_window == datetime.timedelta(seconds=30)
        t.user_metadata = "changed"
        a.update_topic(t)
        assert a.get_topic(topic).user_metadata == "changed"
        assert topic in [x.name for x in a.list_topics()]

        a.create_subscription(topic, "plain")
        a.create_subscription(
            topic,
            "full",
            lock_duration="PT15S",
            requires_session=True,
            default_message_time_to_live="PT5M",
            dead_lettering_on_message_expiration=True,
            dead_lettering_on_filter_evaluation_exceptions=False,
            max_delivery_count=3,
            enable_batched_operations=False,
            user_metadata="a subscription",
            auto_delete_on_idle="PT1H",
        )
        s = a.get_subscription(topic, "full")
        assert s.name == "full" and s.requires_session is True and s.max_delivery_count == 3
        assert s.lock_duration == datetime.timedelta(seconds=15)
        assert s.default_message_time_to_live == datetime.timedelta(minutes=5)
        assert s.dead_lettering_on_filter_evaluation_exceptions is False
        assert s.user_metadata == "a subscription" and s.auto_delete_on_idle == datetime.timedelta(hours=1)
        raises(ResourceExistsError, lambda: a.create_subscription(topic, "full"))
        s.max_delivery_count = 4
        a.update_subscription(topic, s)
        assert a.get_subscription(topic, "full").max_delivery_count == 4
        assert [x.name for x in a.list_subscriptions(topic)] == ["full", "plain"]

        with b.get_topic_sender(topic) as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="s"))
        described = a.get_subscription_runtime_properties(topic, "plain")
        assert described.active_message_count == 1 and described.total_message_count == 1
        assert a.get_topic_runtime_properties(topic).subscription_count == 2
        [described] = [x for x in a.list_topics_runtime_properties() if x.name == topic]
        assert described.subscription_count == 2
        assert len(list(a.list_subscriptions_runtime_properties(topic))) == 2

        a.delete_subscription(topic, "plain")
        is_missing(lambda: a.get_subscription(topic, "plain"))
        is_missing(lambda: a.delete_subscription(topic, "plain"))
        a.delete_topic(topic)
        is_missing(lambda: a.get_topic(topic))
        is_missing(lambda: a.get_subscription(topic, "full"))


def rules_of_every_kind():
    with admin() as a, bus() as b:
        topic, sub = name("t"), "s"
        a.create_topic(topic)
        a.create_subscription(topic, sub)
        [default] = a.list_rules(topic, sub)
        assert default.name == "$Default" and isinstance(default.filter, TrueRuleFilter), default.filter
        a.delete_rule(topic, sub, "$Default")
        assert list(a.list_rules(topic, sub)) == []

        at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
        properties = {"n": 7, "f": 1.5, "yes": True, "text": "a<b", "at": at}
        a.create_rule(topic, sub, "correlation", filter=CorrelationRuleFilter(label="news", properties=properties))
        rule = a.get_rule(topic, sub, "correlation")
        assert rule.filter.label == "news" and rule.filter.properties == properties, rule.filter.properties

        # A number that the messaging client cannot send.
        a.create_rule(topic, sub, "long", filter=CorrelationRuleFilter(properties={"big": 5_000_000_000}))
        assert a.get_rule(topic, sub, "long").filter.properties == {"big": 5_000_000_000}
        a.delete_rule(topic, sub, "long")

        sql = SqlRuleFilter("price > @limit AND color = @color", parameters={"@limit": 10, "@color": "blue"})
        a.create_rule(topic, sub, "sql", filter=sql, action=SqlRuleAction("SET seen = 'yes'"))
        rule = a.get_rule(topic, sub, "sql")
        assert rule.filter.sql_expression == sql.sql_expression
        assert rule.filter.parameters == {"@limit": 10, "@color": "blue"}, rule.filter.parameters
        assert rule.action.sql_expression == "SET seen = 'yes'"
        a.create_rule(topic, sub, "never", filter=FalseRuleFilter())
        assert isinstance(a.get_rule(topic, sub, "never").filter, FalseRuleFilter)
        assert [r.name for r in a.list_rules(topic, sub)] == ["correlation", "never", "sql"]
        raises(ResourceExistsError, lambda: a.create_rule(topic, sub, "sql", filter=FalseRuleFilter()))
        error = raises(HttpResponseError, lambda: a.create_rule(topic, sub, "bad", filter=SqlRuleFilter("price >")))
        assert error.status_code == 400, error
        is_missing(lambda: a.get_rule(topic, sub, "bad"))
        is_missing(lambda: a.delete_rule(topic, sub, "bad"))

        def received():
            with b.get_subscription_receiver(topic, sub) as receiver:
                some = receiver.receive_messages(max_message_count=10, max_wait_time=2)
                for message in some:
                    receiver.complete_message(message)
            return [(str(message), (message.application_properties or {}).get(b"seen")) for message in some]

        with b.get_topic_sender(topic) as sender:
            sender.send_messages(ServiceBusMessage("cheap", application_properties={"price": 1, "color": "blue"}))
            sender.send_messages(ServiceBusMessage("dear", application_properties={"price": 11, "color": "blue"}))
            sender.send_messages(ServiceBusMessage("news", subject="news", application_properties=properties))
            sender.send_messages(ServiceBusMessage("old news", subject="news"))
            assert received() == [("dear", b"yes"), ("news", None)]

            rule = a.get_rule(topic, sub, "sql")
            rule.filter = SqlRuleFilter("price <= 10")
            rule.action = None
            a.update_rule(topic, sub, rule)
            assert a.get_rule(topic, sub, "sql").filter.sql_expression == "price <= 10"
            sender.send_messages(ServiceBusMessage("cheap", application_properties={"price": 1}))
            sender.send_messages(ServiceBusMessage("dear", application_properties={"price": 11}))
            assert received() == [("cheap", None)]
        rule.name = "no-such-rule"
        is_missing(lambda: a.update_rule(topic, sub, rule))


def the_namespace_describes_itself():
    with admin() as a:
        described = a.get_namespace_properties()
        assert described.name == "localhost" and described.messaging_sku == "Standard", described.__dict__
        assert described.created_at_utc is not None


def keys_and_grants_are_checked():
    for key in (("Root", "wrong"), ("nobody", ROOT[1])):
        with admin(key=key) as a:
            raises(ClientAuthenticationError, lambda: a.get_queue("configured"))
            raises(ClientAuthenticationError, lambda: a.create_queue(name()))
            raises(ClientAuthenticationError, a.get_namespace_properties)
    with admin(key=READER) as a:
        for denied in (
            lambda: a.get_queue("configured"),
            lambda: a.delete_queue("configured"),
            lambda: a.get_queue("no-such-queue"),
        ):
            assert raises(HttpResponseError, denied).status_code == 403
        assert list(a.list_queues()) == []
        assert a.get_namespace_properties().name == "localhost"


def the_amqp_port_and_plain_http_work():
    with admin(at=AMQP) as a:
        assert a.get_queue("configured").max_delivery_count == 3
    for at in (ADMIN, AMQP):
        with admin(at=at, transport=OverHttp()) as a:
            assert a.get_queue("configured").max_delivery_count == 3


main(
    [
        a_queue_has_the_defaults_of_the_service,
        every_property_of_a_queue_is_returned,
        refusals_map_to_client_errors,
        names_may_have_slashes_and_dots,
        lists_are_paged,
        counts_and_times_are_returned,
        topics_and_subscriptions,
        rules_of_every_kind,
        the_namespace_describes_itself,
        keys_and_grants_are_checked,
        the_amqp_port_and_plain_http_work,
    ]
)
