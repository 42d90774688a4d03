"""Definitions from a real RabbitMQ to Malote and back. Usage: definitions.py RABBITMQ_API VHOST MALOTE_API VHOST"""

import json
import sys

from api import Api, check, main

PARTS = [
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "parameters",
    "global_parameters",
    "policies",
    "queues",
    "exchanges",
    "bindings",
]
# Malote writes them in the form of RabbitMQ 3.13; RabbitMQ 3.10 has none. A limit is written only if there is one.
ADDED = ["metadata", "description", "tags", "default_queue_type", "limits", "malote_password_hash"]


def put(api, path, body):
    status, said, _ = api.ask("PUT", path, body)
    assert status in (201, 204), (path, status, said)


def load(api, definitions):
    status, said, _ = api.ask("POST", "/definitions", definitions)
    assert status == 204, (status, said)


def objects(definitions, part):
    added = ADDED if part == "vhosts" else ["malote_password_hash", "limits"] if part == "users" else []
    found = [{key: value for key, value in one.items() if key not in added} for one in definitions[part]]
    return sorted(json.dumps(one, sort_keys=True) for one in found)


def fill(api):
    """Some of everything."""
    put(api, "/vhosts/def", {"description": "a test"})
    put(api, "/users/def.user", {"password": "secret", "tags": "management,mine"})
    put(api, "/permissions/def/def.user", {"configure": "^a", "write": ".*", "read": ""})
    put(api, "/topic-permissions/def/def.user", {"exchange": "ev", "write": "^k", "read": ".*"})
    put(api, "/exchanges/def/ev", {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "alt"}})
    put(api, "/exchanges/def/alt", {"type": "fanout", "durable": True, "internal": True})
    put(api, "/exchanges/def/hd", {"type": "headers", "durable": True, "auto_delete": False})
    put(api, "/exchanges/def/hash", {"type": "x-consistent-hash", "durable": True, "arguments": {"hash-header": "h"}})
    quorum = {"x-queue-type": "quorum", "x-delivery-limit": 3, "x-dead-letter-exchange": "alt"}
    put(api, "/queues/def/q1", {"durable": True, "arguments": quorum})
    put(api, "/queues/def/q2", {"durable": True, "arguments": {"x-max-priority": 5, "x-message-ttl": 60000}})
    for path, body in [
        ("/bindings/def/e/ev/q/q1", {"routing_key": "a.*"}),
        ("/bindings/def/e/ev/e/alt", {"routing_key": "#"}),
        ("/bindings/def/e/hd/q/q2", {"routing_key": "", "arguments": {"x-match": "any", "n": 1, "s": "x"}}),
        ("/bindings/def/e/hash/q/q2", {"routing_key": "2"}),
    ]:
        status, said, _ = api.ask("POST", path, body)
        assert status == 201, (path, status, said)
    put(api, "/policies/def/p", {"pattern": "^q", "definition": {"max-length": 9}, "priority": 2, "apply-to": "queues"})
    put(api, "/operator-policies/def/o", {"pattern": "^q", "definition": {"max-length": 8}})
    put(api, "/parameters/vhost-limits/def/limits", {"value": {"max-connections": 10}})
    put(api, "/global-parameters/def.global", {"value": {"a": [1, "two"]}})


@check
def malote_imports_what_rabbitmq_exports(real, ours):
    fill(real)
    exported = real.get("/definitions")
    load(ours, exported)
    found = ours.get("/definitions")
    for part in PARTS:
        assert objects(found, part) == objects(exported, part), (part, objects(found, part), objects(exported, part))


@check
def the_users_sign_in_with_their_passwords(real, ours):
    for api in [real, ours]:
        user = Api(f"http://def.user:secret@{api.host}:{api.port}", "def")
        assert user.get("/whoami")["name"] == "def.user"
        wrong = Api(f"http://def.user:Secret@{api.host}:{api.port}", "def")
        assert wrong.ask("GET", "/whoami")[0] == 401


@check
def an_import_can_be_repeated(real, ours):
    before = ours.get("/definitions")
    load(ours, before)
    assert ours.get("/definitions") == before


@check
def rabbitmq_imports_what_malote_exports(real, ours):
    exported = ours.get("/definitions")
    before = real.get("/definitions")
    assert real.ask("DELETE", "/vhosts/def")[0] == 204
    assert real.ask("DELETE", "/users/def.user")[0] == 204
    load(real, exported)
    found = real.get("/definitions")
    for part in PARTS:
        assert objects(found, part) == objects(before, part), (part, objects(found, part), objects(before, part))


@check
def one_virtual_host_alone(real, ours):
    of_real, of_ours = real.get("/definitions/def"), ours.get("/definitions/def")
    for part in ["parameters", "policies", "queues", "exchanges", "bindings"]:
        assert objects(of_ours, part) == objects(of_real, part), part
    put(ours, "/vhosts/def2", {})
    status, said, _ = ours.ask("POST", "/definitions/def2", of_real)
    assert status == 204, (status, said)
    copied = ours.get("/definitions/def2")
    for part in ["policies", "queues", "exchanges", "bindings"]:
        rename = json.loads(json.dumps(copied).replace('"def2"', '"def"'))
        assert objects(rename, part) == objects(of_real, part), part


if __name__ == "__main__":
    real, ours = Api(*sys.argv[1:3]), Api(*sys.argv[3:5])
    main(real, ours)
