//! Topics, subscriptions, rules, transactions and requests in the document.

use serde_json::{Value, json};

use super::Body::{Json, None, Raw};
use super::schemas::{list, maybe_text, object, text, whole, words};
use super::{Operation, metadata, metadata_headers, schema};
use crate::ops::metadata::TIMEOUT;

/// What each of these operations takes and answers.
pub(super) fn describe(name: &str) -> Option<Operation> {
    let op = |tag, summary, request, answers| {
        let (query, headers) = (Vec::new(), Vec::new());
        Operation { tag, summary, query, headers, request, answers }
    };
    let ok = |name| vec![(200, "Done", Json(name))];
    let done = || vec![(204, "Done", None)];
    let made = |name| {
        vec![(201, "It is new", Json(name)), (200, "It was there, just as asked", Json(name))]
    };
    let names = || {
        vec![
            ("prefix", "string", "Only names that begin so"),
            ("after", "string", "From after this name; `next` of the page before"),
            ("max", "integer", "At most so many; all if absent"),
        ]
    };
    let page = || {
        vec![
            ("queue", "string", "Only rules of this queue"),
            (
                "after_queue",
                "string",
                "From after the rule of this queue; `next` of the page before …",
            ),
            ("after_rule", "string", "… and its name"),
            ("max", "integer", "At most so many, 1 to 1024; 100 if absent"),
        ]
    };
    Some(match name {
        "list_topics" => Operation {
            query: names(),
            ..op("topics", "Every topic that the caller may see", None, ok("Topics"))
        },
        "declare_topic" => op(
            "topics",
            "Make a topic, or find it just as asked; a different one is refused with 409, naming the field",
            Json("TopicSpec"),
            made("Topic"),
        ),
        "update_topic" => op(
            "topics",
            "Change only what is given; the kind is fixed",
            Json("TopicSpec"),
            ok("Topic"),
        ),
        "get_topic" => op("topics", "What a topic is and does", None, ok("Topic")),
        "delete_topic" => op(
            "topics",
            "Remove a topic and its subscriptions; queues that were only bound stay",
            None,
            done(),
        ),
        "send_to_topic" => Operation {
            query: metadata(Option::None),
            headers: metadata_headers(),
            ..op(
                "topics",
                "Send one message to a topic: the body is the body; `copies` tells how many were made",
                Raw,
                vec![(201, "Durable", Json("Sent"))],
            )
        },
        "send_batch_to_topic" => op(
            "topics",
            "Send all or none to one topic",
            Json("Batch"),
            vec![(201, "Durable", Json("SentAll"))],
        ),
        "cancel_scheduled_of_topic" => op(
            "topics",
            "Take back messages that are scheduled at a topic",
            Json("Cancel"),
            ok("Cancelled"),
        ),
        "list_subscriptions" => Operation {
            query: names(),
            ..op(
                "topics",
                "Every subscription of a topic that the caller may see",
                None,
                ok("Subscriptions"),
            )
        },
        "declare_subscription" => op(
            "topics",
            "Make a subscription and its rules at once, or find them just as asked",
            Json("Subscribe"),
            made("Subscription"),
        ),
        "get_subscription" => op(
            "topics",
            "What a subscription is and holds, and its rules",
            None,
            ok("Subscription"),
        ),
        "delete_subscription" => {
            op("topics", "Remove a subscription and all it holds", None, done())
        }
        "list_rules" => Operation {
            query: page(),
            ..op("topics", "Rules of a topic over all its queues", None, ok("Rules"))
        },
        "list_rules_of_subscription" => Operation {
            query: page().split_off(1),
            ..op("topics", "Rules of a subscription", None, ok("Rules"))
        },
        "put_rule" => op(
            "topics",
            "Let a queue have copies by a rule; another of the same name is refused with 409",
            Json("RuleBody"),
            made("Rule"),
        ),
        "put_rule_of_subscription" => op(
            "topics",
            "Add a rule to a subscription; another of the same name is refused with 409",
            Json("RuleBody"),
            made("Rule"),
        ),
        "delete_rule" | "delete_rule_of_subscription" => {
            op("topics", "Take a rule away", None, done())
        }
        "test_rule" => op(
            "topics",
            "Whether a filter takes a message, and what its action makes of it; nothing is stored",
            Json("RuleTest"),
            ok("RuleTested"),
        ),
        "transact" => op(
            "messages",
            "Send, settle and set session states: all of it or nothing",
            Json("Transaction"),
            ok("SentAll"),
        ),
        "request" => Operation {
            query: metadata(Some(TIMEOUT)),
            headers: metadata_headers(),
            ..op(
                "messages",
                "Send a message and wait for its answer: 504 no_reply when none comes in time. The responder sends it to \
                 the queue in `reply_to` with the request's `correlation_id`",
                Raw,
                vec![(200, "The answer", Json("Message"))],
            )
        },
        _ => return Option::None,
    })
}

/// Their schemas.
pub(super) fn schemas(dedup: Value) -> Value {
    let spec = json!({
        "kind": words(&["filter", "direct", "fanout", "topic", "headers"]),
        "auto_delete": {"type": "boolean", "description": "gone with its last rule"},
        "internal": {"type": "boolean", "description": "takes messages from other topics and queues only"},
        "dedup": dedup,
        "status": words(&["active", "send_disabled", "receive_disabled", "disabled"]),
    });
    let sql = || {
        json!({"oneOf": [text(), object(&["text"], json!({
            "text": text(), "parameters": schema("Properties"),
        }))]})
    };
    let texts = [
        "id",
        "correlation_id",
        "to",
        "reply_to",
        "subject",
        "session",
        "reply_to_session",
        "content_type",
        "key",
    ];
    let mut correlation: serde_json::Map<String, Value> =
        texts.iter().map(|name| ((*name).to_owned(), maybe_text())).collect();
    correlation.insert("properties".into(), schema("Properties"));
    let one = |name: &str, inner: Value| object(&[name], json!({name: inner}));
    let filter = json!({"oneOf": [
        words(&["all", "none"]),
        one("key", text()),
        one("pattern", json!({"type": "string", "description": "* is one word between dots, # any number of words"})),
        one("headers", object(&[], json!({
            "match": words(&["all", "any", "all_with_x", "any_with_x"]),
            "values": {"type": "object", "description": "properties; null: being there is enough"},
        }))),
        one("correlation", object(&[], Value::Object(correlation))),
        one("sql", sql()),
    ]});
    let next = || {
        json!({"oneOf": [
            {"type": "null"},
            object(&["queue", "rule"], json!({"queue": text(), "rule": text()})),
        ]})
    };
    let action = || sql();
    json!({
        "TopicSpec": object(&[], spec.clone()),
        "Topic": object(
            &["name", "created_at", "spec", "queues", "rules", "scheduled", "waiting", "totals"],
            json!({
                "name": text(), "created_at": whole(),
                "spec": object(&["kind", "auto_delete", "internal", "dedup", "status"], spec),
                "queues": whole(), "rules": whole(), "scheduled": whole(), "waiting": whole(),
                "totals": object(&["copies"], json!({"copies": whole()})),
            }),
        ),
        "Topics": object(&["topics", "next"], json!({"topics": list(schema("Topic")), "next": maybe_text()})),
        "Filter": filter,
        "RuleBody": object(&[], json!({"filter": schema("Filter"), "action": action()})),
        "Rule": object(&["name", "filter"], json!({
            "name": text(), "filter": schema("Filter"), "action": action(),
        })),
        "NewRule": object(&["name"], json!({
            "name": text(), "filter": schema("Filter"), "action": action(),
        })),
        "Rules": object(&["rules", "next"], json!({
            "rules": list(object(&["queue", "name", "filter"], json!({
                "queue": text(), "name": text(), "filter": schema("Filter"), "action": action(),
            }))),
            "next": next(),
        })),
        "Subscribe": object(&[], json!({
            "spec": schema("Spec"),
            "rules": {"type": ["array", "null"], "items": schema("NewRule"),
                "description": "absent: everything, on a filter or fanout topic; else nothing"},
        })),
        "Subscription": object(&["topic", "name", "queue"], json!({
            "topic": text(), "name": text(), "queue": schema("Queue"), "rules": list(schema("Rule")), "next": next(),
        })),
        "Subscriptions": object(&["subscriptions", "next"], json!({
            "subscriptions": list(schema("Subscription")), "next": maybe_text(),
        })),
        "RuleTest": object(&[], json!({
            "filter": schema("Filter"), "action": action(), "message": schema("NewMessage"),
        })),
        "RuleTested": object(&["matches"], json!({"matches": {"type": "boolean"}, "message": schema("Message")})),
        "Transaction": object(&[], json!({
            "send": list(schema("NewMessage")),
            "settle": list(object(&["queue", "items"], json!({"queue": text(), "items": list(schema("Settle"))}))),
            "state": list(object(&["queue", "change"], json!({"queue": text(), "change": schema("StateChange")}))),
        })),
    })
}
