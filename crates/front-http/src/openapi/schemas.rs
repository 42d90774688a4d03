//! The schemas of requests and answers. Requests refuse fields that they do not know, and so do their schemas.

use malote_engine::Totals;
use malote_model::{AuditAction, AuditProtocol, CallerKind};
use serde_json::{Map, Value, json};

use super::schema;
use crate::problem::Code;

/// An object with these properties, of which these are always there, and no others.
pub(super) fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
}

pub(super) fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

pub(super) fn whole() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn maybe(of: &str) -> Value {
    json!({"type": [of, "null"]})
}

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

pub(super) fn maybe_text() -> Value {
    maybe("string")
}

fn maybe_whole() -> Value {
    json!({"type": ["integer", "null"], "minimum": 0})
}

pub(super) fn words(words: &[&str]) -> Value {
    json!({"type": "string", "enum": words})
}

fn with(mut base: Value, more: Value) -> Value {
    if let (Some(base), Value::Object(more)) = (base.as_object_mut(), more) {
        base.extend(more);
    }
    base
}

/// Every schema by its name.
pub(super) fn all() -> Value {
    let mut all = Map::new();
    let topics = super::topics::schemas(dedup());
    for group in [queues(), topics, messages(), sessions(), sagas(), about(), frames()] {
        if let Value::Object(group) = group {
            all.extend(group);
        }
    }
    Value::Object(all)
}

fn dedup() -> Value {
    json!({"oneOf": [{"type": "null"}, object(&["window_ms"], json!({
        "window_ms": {"type": "integer", "minimum": 1, "maximum": 604_800_000},
        "per_session": {"type": "boolean"},
        "content": {"type": "boolean", "description": "a message without a key is known by its body"},
    }))]})
}

fn queues() -> Value {
    let spec = json!({
        "sessions": {"oneOf": [words(&["none", "dynamic"]), list(text())]},
        "lock_ms": {"type": "integer", "minimum": 1, "maximum": 43_200_000},
        "failed_max": {"type": ["integer", "null"], "minimum": 1, "description": "null: no limit"},
        "receives_max": {"type": ["integer", "null"], "minimum": 1, "description": "null: no limit"},
        "dead_letter": {"oneOf": [
            words(&["own", "drop"]),
            object(&["queue"], json!({"queue": text()})),
            object(&["topic"], json!({"topic": text(), "key": text()})),
        ]},
        "forward_to": {"oneOf": [
            {"type": "null"},
            object(&["queue"], json!({"queue": text()})),
            object(&["topic"], json!({"topic": text()})),
        ]},
        "durability": words(&["fsync", "relaxed"]),
        "retry": words(&["hold", "skip"]),
        "delay_ms": whole(),
        "message_bytes_max": {"type": "integer", "minimum": 1},
        "backlog_warning": whole(),
        "ttl_ms": {"type": ["integer", "null"], "minimum": 1, "description": "null: messages do not expire"},
        "dead_letters_keep_age": {"type": "boolean", "description": "dead letters live from when they came into this queue"},
        "fair": {"type": "boolean", "description": "a session id names a tenant where there are no sessions; a noisy one is passed"},
        "status": words(&["active", "send_disabled", "receive_disabled", "disabled"]),
        "on_expiry": words(&["drop", "dead_letter"]),
        "priority_max": {"type": "integer", "minimum": 0, "maximum": 255, "description": "0: no priorities"},
        "dedup": dedup(),
        "length_max": {"type": ["integer", "null"], "minimum": 1, "description": "ready messages; null: no limit"},
        "bytes_max": {"type": ["integer", "null"], "minimum": 1, "description": "bytes of ready messages; null: no limit"},
        "overflow": words(&["reject", "drop_oldest", "dead_letter_oldest"]),
        "auto_delete": {"type": "boolean"},
        "idle_ms_max": {"type": ["integer", "null"], "minimum": 1, "description": "null: it stays"},
        "exclusive": {"type": "boolean", "description": "only over a native connection"},
    });
    let names: Vec<&str> =
        spec.as_object().map(|o| o.keys().map(String::as_str).collect()).unwrap_or_default();
    let counts = [
        "ready",
        "locked",
        "delayed",
        "scheduled",
        "deferred",
        "dead_lettered",
        "bytes",
        "consumers",
        "sessions",
        "sessions_held",
        "sessions_ready",
    ];
    let numbers = |names: &[&str]| -> Value {
        Value::Object(names.iter().map(|name| ((*name).to_owned(), whole())).collect())
    };
    let full = object(&names, spec.clone());
    json!({
        "Spec": object(&[], spec),
        "FullSpec": full,
        "Counts": object(&counts, with(numbers(&counts), json!({"oldest_at": maybe_whole()}))),
        "Totals": object(Totals::NAMES, numbers(Totals::NAMES)),
        "Queue": object(&["name", "created_at", "paused", "spec", "counts", "totals"], json!({
            "name": text(), "created_at": whole(), "paused": {"type": "boolean"},
            "spec": schema("FullSpec"), "counts": schema("Counts"), "totals": schema("Totals"),
        })),
        "Queues": object(&["queues", "next"], json!({"queues": list(schema("Queue")), "next": maybe_text()})),
        "Removed": object(&["removed"], json!({"removed": whole()})),
        "Partition": object(&["session", "index", "of"], json!({"session": text(), "index": whole(), "of": whole()})),
    })
}

/// What a sender says and a receiver gets, under the same names.
fn common() -> Value {
    json!({
        "body": {"description": "Text; when sending, any JSON value, sent as its JSON text"},
        "body_base64": maybe_text(),
        "session": maybe_text(),
        "id": maybe_text(),
        "dedup_id": maybe_text(),
        "key": maybe_text(),
        "subject": maybe_text(),
        "to": maybe_text(),
        "reply_to": maybe_text(),
        "reply_to_session": maybe_text(),
        "correlation_id": maybe_text(),
        "content_type": maybe_text(),
        "content_encoding": maybe_text(),
        "user_id": maybe_text(),
        "app_id": maybe_text(),
        "ttl_ms": maybe_whole(),
        "priority": {"type": ["integer", "null"], "minimum": 0, "maximum": 255},
        "properties": {"anyOf": [schema("Properties"), {"type": "null"}]},
    })
}

fn messages() -> Value {
    let tokens = || list(text());
    let mode = || words(&["lock", "delete"]);
    json!({
        "Properties": {"type": "object", "description":
            "Names and values. Plain JSON values stand for themselves; other types are {\"$type\": …, \"value\": …} \
             with i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 bytes (base64) timestamp (ms or RFC 3339) uuid map."},
        "NewMessage": object(&[], with(common(), json!({
            "queue": maybe_text(),
            "topic": maybe_text(),
            "session_from_key": {"type": "boolean"},
            "delay_ms": maybe_whole(),
            "at": {"type": ["integer", "string", "null"], "description": "ms since 1970 or RFC 3339"},
        }))),
        "Batch": object(&["messages"], json!({"messages": list(schema("NewMessage"))})),
        "Sent": object(&["seq", "id"], json!({"seq": whole(), "id": text(),
            "duplicate": {"type": "boolean", "description": "sent before: that is its place"},
            "copies": {"type": "integer", "minimum": 0, "description": "of a topic: how many queues have it"}})),
        "SentAll": object(&["messages"], json!({"messages": list(schema("Sent"))})),
        "Receive": object(&[], json!({
            "max": {"type": "integer", "minimum": 1, "maximum": 1024},
            "wait_ms": {"type": "integer", "minimum": 0, "maximum": 20_000},
            "lock_ms": maybe_whole(), "mode": mode(), "session_token": maybe_text(),
            "per_session": {"type": "integer", "minimum": 1, "maximum": 1024},
        })),
        "ReceiveDeferred": object(&["seqs"], json!({
            "seqs": list(whole()), "session_token": maybe_text(), "lock_ms": maybe_whole(), "mode": mode(),
        })),
        "Cancel": object(&["seqs"], json!({"seqs": list(whole())})),
        "Cancelled": object(&["cancelled"], json!({"cancelled": whole()})),
        "DeadLetter": object(&["reason", "text", "at", "from", "from_seq", "receives", "failed"], json!({
            "reason": text(), "text": text(), "at": whole(), "from": text(), "from_seq": whole(),
            "receives": whole(), "failed": whole(),
        })),
        "Death": object(&["reason", "text", "at", "from", "count"], json!({
            "reason": text(), "text": text(), "at": whole(), "from": text(), "count": whole(),
        })),
        "Message": object(&["seq", "receives", "failed"], with(common(), json!({
            "seq": whole(), "origin_id": text(), "enqueued_at": whole(), "receives": whole(), "failed": whole(),
            "body_kind": words(&["amqp-value", "amqp-sequence"]),
            "last": {"type": "boolean"}, "lease": text(), "until": whole(), "due": whole(), "damaged": {"type": "boolean"}, "problem": text(),
            "state": words(&["ready", "locked", "delayed", "scheduled", "deferred"]),
            "dead_letter": schema("DeadLetter"), "deaths": list(schema("Death")),
        }))),
        "Received": object(&["messages"], json!({"messages": list(schema("Message"))})),
        "Peeked": object(&["messages", "next"], json!({"messages": list(schema("Message")), "next": maybe_whole()})),
        "Settle": object(&["leases", "outcome"], json!({
            "leases": tokens(), "outcome": words(&["complete", "abandon", "release", "defer", "dead_letter"]),
            "delay_ms": maybe_whole(), "reason": maybe_text(), "text": maybe_text(),
            "properties": {"anyOf": [schema("Properties"), {"type": "null"}]},
            "session_state": {"anyOf": [schema("StateChange"), {"type": "null"}]},
        })),
        "StateChange": object(&["token"], json!({"token": text(), "state_base64": maybe_text(), "state": {}})),
        "Renew": object(&["leases"], json!({"leases": tokens(), "lock_ms": maybe_whole()})),
        "Result": object(&["lease", "ok"], json!({
            "lease": text(), "ok": {"type": "boolean"}, "until": whole(), "problem": schema("Problem"),
        })),
        "Results": object(&["results"], json!({"results": list(schema("Result"))})),
        "Redrive": object(&[], json!({
            "seqs": {"type": ["array", "null"], "items": whole()}, "to": maybe_text(), "limit": maybe_whole(),
            "dry_run": {"type": "boolean"},
        })),
        "Redriven": object(&["moved", "left"], json!({"moved": whole(), "left": whole()})),
        "Resend": object(&["message"], json!({"message": schema("NewMessage"), "to": maybe_text()})),
    })
}

fn sessions() -> Value {
    json!({
        "Accept": object(&[], json!({
            "session": maybe_text(), "wait_ms": {"type": "integer", "minimum": 0, "maximum": 20_000},
            "lock_ms": maybe_whole(),
        })),
        "Held": object(&["session", "token", "until"], json!({"session": text(), "token": text(), "until": whole()})),
        "Token": object(&["token"], json!({"token": text(), "lock_ms": maybe_whole()})),
        "Until": object(&["until"], json!({"until": whole()})),
        "Session": object(
            &["session", "messages", "locked", "held_until", "state_bytes", "first", "delayed_until"],
            json!({
                "session": text(), "messages": whole(), "locked": whole(), "held_until": maybe_whole(),
                "state_bytes": whole(), "first": maybe_whole(), "delayed_until": maybe_whole(),
            }),
        ),
        "Sessions": object(&["sessions", "next"], json!({"sessions": list(schema("Session")), "next": maybe_text()})),
    })
}

fn sagas() -> Value {
    let short = [
        "id",
        "status",
        "version",
        "step",
        "attempts",
        "error",
        "started_at",
        "changed_at",
        "deadline",
        "held_until",
        "delayed_until",
    ];
    let saga = json!({
        "id": text(),
        "status": words(&["waiting", "running", "compensating", "done", "compensated"]),
        "version": whole(), "step": maybe_text(), "attempts": whole(), "error": maybe_text(),
        "started_at": maybe_whole(), "changed_at": maybe_whole(), "deadline": maybe_whole(),
        "held_until": maybe_whole(), "delayed_until": maybe_whole(),
    });
    let full: Vec<&str> = short.into_iter().chain(["steps", "data"]).collect();
    let more = json!({"steps": list(schema("SagaStep")), "data": {}});
    json!({
        "Saga": object(&short, saga.clone()),
        "SagaInFull": object(&full, with(saga, more)),
        "SagaStep": object(&["name", "status", "undo", "pivot", "attempts", "lost", "in_doubt"], json!({
            "name": text(), "status": words(&["waiting", "done", "failed", "unsure", "compensated"]),
            "undo": {"type": "boolean"}, "pivot": {"type": "boolean"}, "in_doubt": {"type": "boolean"},
            "attempts": whole(), "lost": whole(), "error": text(), "deadline": whole(), "at": whole(),
        })),
        "Sagas": object(&["sagas", "next"], json!({"sagas": list(schema("Saga")), "next": maybe_text()})),
    })
}

fn about() -> Value {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let disk = [
        "journal_bytes",
        "live_bytes",
        "spare_bytes",
        "snapshot_bytes",
        "free_bytes",
        "publish_allowed",
        "copied",
        "recycled",
        "scrubbed_bytes",
        "damaged",
        "diverged",
    ];
    let point = [
        "at",
        "ready",
        "locked",
        "delayed",
        "scheduled",
        "deferred",
        "dead_lettered",
        "oldest_age_ms",
        "in_per_s",
        "out_per_s",
    ];
    json!({
        "Any": {},
        "Problem": object(&["type", "title", "status", "code", "detail", "fix"], json!({
            "type": text(), "title": text(), "status": whole(), "code": words(&codes), "detail": text(),
            "fix": text(), "field": text(), "is": text(), "asked": text(), "retry_after_s": whole(),
        })),
        "ProblemKind": object(&["code", "status", "title", "fix"], json!({
            "code": words(&codes), "status": whole(), "title": text(), "fix": text(),
        })),
        "Scale": object(&["backlog", "in_flight", "sessions"], json!({
            "backlog": whole(), "in_flight": whole(), "sessions": whole(),
        })),
        "Disk": object(&disk, json!({
            "journal_bytes": whole(), "live_bytes": whole(), "spare_bytes": whole(), "snapshot_bytes": whole(),
            "free_bytes": whole(), "publish_allowed": {"type": "boolean"}, "copied": whole(), "recycled": whole(),
            "scrubbed_bytes": whole(), "damaged": whole(), "diverged": whole(),
        })),
        "AuditRecords": object(&["records", "last"], json!({
            "records": list(schema("AuditRecord")), "last": whole(), "next": whole(),
        })),
        "AuditRecord": object(&["seq", "at", "caller", "kind", "protocol", "action", "outcome"], json!({
            "seq": whole(), "at": whole(), "count": whole(), "caller": text(),
            "kind": words(&CallerKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>()),
            "credential": text(), "address": text(),
            "protocol": words(&AuditProtocol::ALL.iter().map(|one| one.as_str()).collect::<Vec<_>>()),
            "action": words(&AuditAction::ALL.iter().map(|one| one.as_str()).collect::<Vec<_>>()),
            "object": text(), "detail": text(), "outcome": words(&["done", "refused", "unknown"]), "reason": text(),
        })),
        "Version": object(&["name", "version", "api"], json!({"name": text(), "version": text(), "api": text()})),
        "History": object(&["step_ms", "points"], json!({"step_ms": whole(), "points": list(object(&point, json!({
            "at": whole(), "ready": whole(), "locked": whole(), "delayed": whole(), "scheduled": whole(),
            "deferred": whole(), "dead_lettered": whole(), "oldest_age_ms": maybe_whole(),
            "in_per_s": {"type": "number"}, "out_per_s": {"type": "number"},
        })))})),
        "Health": object(&["status"], json!({
            "status": words(&["OK", "Warning", "Error"]), "message": text(), "messageCount": whole(),
        })),
        "QueueMetrics": list(object(&["queue", "waiting", "active", "completed", "failed", "delayed"], json!({
            "queue": text(), "waiting": whole(), "active": whole(), "completed": whole(), "failed": whole(),
            "delayed": whole(),
        }))),
    })
}

/// The frames of the native connection.
fn frames() -> Value {
    let frame = |name: &str, required: &[&str], more: Value| {
        let required: Vec<&str> = ["id"].into_iter().chain(required.iter().copied()).collect();
        let inner = object(&required, with(json!({"id": whole()}), more));
        object(&[name], json!({name: inner}))
    };
    let mode = || words(&["lock", "delete"]);
    let client = [
        frame(
            "send",
            &["messages"],
            json!({"messages": list(schema("NewMessage")), "transaction": maybe_whole()}),
        ),
        frame("declare", &[], json!({"queue": maybe_text(), "spec": schema("Spec")})),
        frame("begin", &["transaction"], json!({"transaction": whole()})),
        frame("commit", &["transaction"], json!({"transaction": whole()})),
        frame("rollback", &["transaction"], json!({"transaction": whole()})),
        frame(
            "attach",
            &["consumer", "queue", "credit"],
            json!({
                "consumer": whole(), "queue": text(), "credit": whole(), "mode": mode(), "lock_ms": maybe_whole(),
                "session_token": maybe_text(), "per_session": whole(),
            }),
        ),
        frame(
            "credit",
            &["consumer", "credit"],
            json!({
                "consumer": whole(), "credit": whole(), "replace": {"type": "boolean"},
            }),
        ),
        frame("detach", &["consumer"], json!({"consumer": whole()})),
        frame(
            "receive_deferred",
            &["queue", "seqs"],
            json!({
                "queue": text(), "seqs": list(whole()), "session_token": maybe_text(), "mode": mode(),
            }),
        ),
        frame(
            "settle",
            &["queue", "items"],
            json!({
                "queue": text(), "items": list(schema("Settle")), "transaction": maybe_whole(),
            }),
        ),
        frame(
            "renew",
            &["queue", "leases"],
            json!({
                "queue": text(), "leases": list(text()), "lock_ms": maybe_whole(),
            }),
        ),
        frame(
            "accept",
            &["queue"],
            json!({
                "queue": text(), "session": maybe_text(), "wait_ms": whole(), "lock_ms": maybe_whole(),
            }),
        ),
        frame("release", &["queue", "token"], json!({"queue": text(), "token": text()})),
        frame(
            "get_state",
            &["queue", "session"],
            json!({"queue": text(), "session": text(), "token": maybe_text()}),
        ),
        frame(
            "set_state",
            &["queue", "change"],
            json!({
                "queue": text(), "change": schema("StateChange"), "transaction": maybe_whole(),
            }),
        ),
        frame(
            "list_sessions",
            &["queue"],
            json!({"queue": text(), "after": maybe_text(), "max": maybe_whole()}),
        ),
        frame(
            "resume",
            &["connection", "secret"],
            json!({
                "connection": whole(), "secret": text(), "leases": {"type": ["array", "null"], "items": text()},
            }),
        ),
        frame("depth", &["queue"], json!({"queue": text()})),
        frame("ping", &[], json!({})),
    ];
    let limits = [
        "frame_bytes_max",
        "frames_max",
        "requests_max",
        "sends_max",
        "send_bytes_max",
        "consumers_max",
        "transactions_max",
        "staged_bytes_max",
        "ping_every_ms",
        "silence_max_ms",
    ];
    let numbers: Value =
        Value::Object(limits.iter().map(|name| ((*name).to_owned(), whole())).collect());
    let one = |name: &str, inner: Value| object(&[name], json!({name: inner}));
    let server = [
        one(
            "welcome",
            object(
                &["connection", "secret", "reconnect_grace_ms", "limits"],
                json!({
                    "connection": whole(), "secret": text(), "reconnect_grace_ms": whole(), "limits": object(&limits, numbers),
                }),
            ),
        ),
        one(
            "reply",
            object(&["id"], json!({"id": maybe_whole(), "ok": {}, "problem": schema("Problem")})),
        ),
        one(
            "deliver",
            object(
                &["consumer", "messages"],
                json!({
                    "consumer": whole(), "messages": list(schema("Message")),
                }),
            ),
        ),
        one(
            "ended",
            object(
                &["consumer", "problem"],
                json!({"consumer": whole(), "problem": schema("Problem")}),
            ),
        ),
    ];
    json!({"ClientFrame": {"oneOf": client}, "ServerFrame": {"oneOf": server}})
}
