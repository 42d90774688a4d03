"""The resource manager of a namespace that already exists.

Queues, topics and subscriptions are created with the SDK's administration client. An authorization rule is mapped to the
key with the same rights with which the server was started.
"""

import os
from types import SimpleNamespace

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.management import ServiceBusAdministrationClient

# The tests expect the standard tier, with messages of up to 256 KiB.
STANDARD_KILOBYTES = 256


class ServiceBusManagementClient:
    def __init__(self):
        admin = ServiceBusAdministrationClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"])
        self.namespaces = _Namespaces()
        self.queues = _Queues(admin)
        self.topics = _Topics(admin)
        self.subscriptions = _Subscriptions(admin)


def _key(variable, entity=None):
    text = os.environ[variable]
    parts = dict(part.split("=", 1) for part in text.split(";") if part)
    if entity:
        text = f"{text};EntityPath={entity}"
    return SimpleNamespace(
        primary_connection_string=text,
        key_name=parts["SharedAccessKeyName"],
        primary_key=parts["SharedAccessKey"],
    )


def _variable(rights):
    """The key that has these rights; the right to manage includes all others."""
    rights = {str(right.value) for right in rights}
    if "Manage" in rights:
        return "SERVICEBUS_CONNECTION_STRING"
    return {
        frozenset({"Send"}): "SERVICEBUS_CONNECTION_STRING_SEND_ONLY",
        frozenset({"Listen"}): "SERVICEBUS_CONNECTION_STRING_LISTEN_ONLY",
    }[frozenset(rights)]


class _Namespaces:
    def __init__(self):
        self.rules = {}

    def begin_create_or_update(self, _group, _name, _properties):
        return SimpleNamespace(result=lambda: SimpleNamespace(name=os.environ["SERVICEBUS_ENDPOINT"]))

    def delete(self, _group, _name):
        pass

    def create_or_update_authorization_rule(self, _group, _namespace, name, rule):
        self.rules[name] = _variable(rule.rights)
        return SimpleNamespace(name=name)

    def delete_authorization_rule(self, *_names):
        pass

    def list_keys(self, _group, _namespace, name):
        return _key(self.rules.get(name, "SERVICEBUS_CONNECTION_STRING"))


class _Queues:
    def __init__(self, admin):
        self.admin, self.rules = admin, {}

    def create_or_update(self, _group, _namespace, name, queue):
        return self.admin.create_queue(name, max_message_size_in_kilobytes=STANDARD_KILOBYTES, **queue.properties)

    def delete(self, _group, _namespace, name):
        _gone(lambda: self.admin.delete_queue(name))

    def create_or_update_authorization_rule(self, _group, _namespace, _queue, name, rule):
        self.rules[name] = _variable(rule.rights)
        return SimpleNamespace(name=name)

    def delete_authorization_rule(self, *_names):
        pass

    def list_keys(self, _group, _namespace, queue, name):
        return _key(self.rules[name], entity=queue)


class _Topics:
    def __init__(self, admin):
        self.admin = admin

    def create_or_update(self, _group, _namespace, name, _properties):
        return self.admin.create_topic(name)

    def delete(self, _group, _namespace, name):
        _gone(lambda: self.admin.delete_topic(name))


class _Subscriptions:
    def __init__(self, admin):
        self.admin = admin

    def create_or_update(self, _group, _namespace, topic, name, subscription):
        return self.admin.create_subscription(topic, name, **subscription.properties)

    def delete(self, _group, _namespace, topic, name):
        _gone(lambda: self.admin.delete_subscription(topic, name))


def _gone(delete):
    try:
        delete()
    except ResourceNotFoundError:
        pass
