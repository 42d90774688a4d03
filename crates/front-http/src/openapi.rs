//! The OpenAPI 3.1 document. Its paths come from the table of routes; a test holds every request and answer of the
//! suite against it, so it cannot drift from what the code does.

mod schemas;
mod topics;

use serde_json::{Map, Value, json};

use crate::ops::metadata::{CREATE, NAMES, TIMEOUT};
use crate::ops::sessions::TOKEN_HEADER;
use crate::routes::ROUTES;

/// The whole document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let operation = operation(route.name, route.path);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Malote",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "The native HTTP API of Malote, a durable message broker. Percent-encode names in paths: \
                a slash in a queue's name is %2F, and orders%2F$deadletterqueue names the dead letters of orders. \
                Times are milliseconds since 1970. Errors are RFC 9457 problems with a stable `code` and a `fix`. \
                GET /api/v1/connect opens the native WebSocket connection, whose frames are the schemas \
                ClientFrame and ServerFrame.",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"basic": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    })
}

/// A reference to a schema.
fn schema(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// What a body is.
enum Body {
    None,
    Json(&'static str),
    Text(&'static str),
    Raw,
}

impl Body {
    fn content(&self) -> Option<Value> {
        match self {
            Self::None => None,
            Self::Json(name) => Some(json!({"application/json": {"schema": schema(name)}})),
            Self::Text(kind) => Some(json!({*kind: {"schema": {"type": "string"}}})),
            Self::Raw => Some(json!({"*/*": {"schema": {}}})),
        }
    }
}

type Query = (&'static str, &'static str, &'static str);

struct Operation {
    tag: &'static str,
    summary: &'static str,
    query: Vec<Query>,
    headers: Vec<Query>,
    request: Body,
    answers: Vec<(u16, &'static str, Body)>,
}

fn operation(name: &str, path: &str) -> Value {
    let Operation { tag, summary, query, headers, request, answers } = describe(name);
    let mut parameters: Vec<Value> = path
        .split('/')
        .filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| {
            let kind = if name == "seq" { "integer" } else { "string" };
            json!({"name": name, "in": "path", "required": true, "schema": {"type": kind}})
        })
        .collect();
    for (place, list) in [("query", query), ("header", headers)] {
        parameters.extend(list.into_iter().map(|(name, kind, text)| {
            let required = name == "key" && path.ends_with("/partition");
            json!({"name": name, "in": place, "required": required, "description": text, "schema": {"type": kind}})
        }));
    }
    let mut responses = Map::new();
    for (status, description, body) in answers {
        let mut response = json!({"description": description});
        if let Some(content) = body.content() {
            response["content"] = content;
        }
        responses.insert(status.to_string(), response);
    }
    responses.insert(
        "default".into(),
        json!({"description": "A problem", "content": {"application/problem+json": {"schema": schema("Problem")}}}),
    );
    let mut operation = json!({
        "operationId": name, "tags": [tag], "summary": summary, "parameters": parameters, "responses": responses,
    });
    if let Some(content) = request.content() {
        let required = matches!(
            name,
            "send_batch"
                | "send_batch_to_topic"
                | "send_many"
                | "settle"
                | "renew"
                | "resend"
                | "transact"
        );
        operation["requestBody"] = json!({"required": required, "content": content});
    }
    operation
}

/// What each operation takes and answers.
fn describe(name: &str) -> Operation {
    let op = |tag, summary, request, answers| {
        let (query, headers) = (Vec::new(), Vec::new());
        Operation { tag, summary, query, headers, request, answers }
    };
    let ok = |name| vec![(200, "Done", Body::Json(name))];
    let done = || vec![(204, "Done", Body::None)];
    let exposition = || {
        let text =
            "The text format 0.0.4, or OpenMetrics if `Accept` names application/openmetrics-text";
        vec![(200, text, Body::Text("text/plain"))]
    };
    let page = || {
        vec![
            ("from", "integer", "From this sequence on; `next` of the page before"),
            ("max", "integer", "At most so many, 1 to 1024; 100 if absent"),
            ("session", "string", "Only of this session"),
            ("state", "string", "Only ready, locked, delayed, scheduled or deferred"),
        ]
    };
    use Body::{Json, None, Raw, Text};
    match name {
        "list_queues" => Operation {
            query: vec![
                ("prefix", "string", "Only names that begin so"),
                ("after", "string", "From after this name; `next` of the page before"),
                ("max", "integer", "At most so many; all if absent"),
            ],
            ..op("queues", "Every queue that the caller may see", None, ok("Queues"))
        },
        "declare_queue" => op(
            "queues",
            "Make a queue, or find it just as asked; a different one is refused with 409, naming the field",
            Json("Spec"),
            vec![
                (201, "It is new", Json("Queue")),
                (200, "It was there, just as asked", Json("Queue")),
            ],
        ),
        "update_queue" => op("queues", "Change only what is given", Json("Spec"), ok("Queue")),
        "get_queue" => op("queues", "What a queue is and holds", None, ok("Queue")),
        "delete_queue" => {
            op("queues", "Remove a queue, its dead letters and all they hold", None, done())
        }
        "purge_queue" => {
            op("queues", "Drop every message that is not out to a receiver", None, ok("Removed"))
        }
        "pause_queue" => op("queues", "Stop delivery; sending and settling go on", None, done()),
        "resume_queue" => op("queues", "Resume delivery", None, done()),
        "send" => Operation {
            query: metadata(Some(CREATE)),
            headers: metadata_headers(),
            ..op(
                "messages",
                "Send one message: the body is the body, its content-type is kept",
                Raw,
                vec![(201, "Durable", Json("Sent"))],
            )
        },
        "send_batch" => op(
            "messages",
            "Send all or none to one queue",
            Json("Batch"),
            vec![(201, "Durable", Json("SentAll"))],
        ),
        "send_many" => op(
            "messages",
            "Send all or none to several queues and topics; each message names its `queue` or `topic`",
            Json("Batch"),
            vec![(201, "Durable", Json("SentAll"))],
        ),
        "receive" => op(
            "messages",
            "Wait for messages and lease or take them",
            Json("Receive"),
            ok("Received"),
        ),
        "receive_deferred" => op(
            "messages",
            "Deferred messages by their sequences",
            Json("ReceiveDeferred"),
            ok("Received"),
        ),
        "cancel_scheduled" => {
            op("messages", "Take back scheduled messages", Json("Cancel"), ok("Cancelled"))
        }
        "settle" => {
            op("messages", "End leases, each on its own outcome", Json("Settle"), ok("Results"))
        }
        "renew" => op(
            "messages",
            "Prolong leases or session tokens from now",
            Json("Renew"),
            ok("Results"),
        ),
        "peek" => Operation {
            query: page(),
            ..op("messages", "Look without touching", None, ok("Peeked"))
        },
        "list_sessions" => Operation {
            query: vec![
                ("after", "string", "Only ever `next` of the page before"),
                ("max", "integer", "At most so many, 1 to 1024; 100 if absent"),
            ],
            ..op("sessions", "Sessions of a queue, by id", None, ok("Sessions"))
        },
        "list_sagas" => Operation {
            query: vec![
                ("after", "string", "Only ever `next` of the page before"),
                ("max", "integer", "At most so many, 1 to 1024; 100 if absent"),
            ],
            ..op("sagas", "Sagas of a name: sessions of the queue `saga.<name>`", None, ok("Sagas"))
        },
        "get_saga" => op("sagas", "One saga, with its steps and data", None, ok("SagaInFull")),
        "accept_session" => op(
            "sessions",
            "Hold a session by name, or the next that is ready",
            Json("Accept"),
            vec![(200, "Held", Json("Held")), (204, "None was ready in time", None)],
        ),
        "get_session" => op("sessions", "One session", None, ok("Session")),
        "release_session" => op("sessions", "Let go of a session", Json("Token"), done()),
        "renew_session" => op("sessions", "Prolong a hold from now", Json("Token"), ok("Until")),
        "break_session" => op("sessions", "Take a session from its holder", None, done()),
        "get_session_state" => Operation {
            headers: vec![(
                TOKEN_HEADER,
                "string",
                "Proof of the hold; without it the grant `manage` is needed",
            )],
            ..op(
                "sessions",
                "The state of a session",
                None,
                vec![
                    (200, "As it was set", Text("application/octet-stream")),
                    (204, "It has none", None),
                ],
            )
        },
        "set_session_state" => Operation {
            headers: vec![(TOKEN_HEADER, "string", "Proof of the hold, required")],
            ..op(
                "sessions",
                "Set the state of a held session: the body, at most 256 KiB",
                Raw,
                done(),
            )
        },
        "clear_session_state" => Operation {
            headers: vec![(TOKEN_HEADER, "string", "Proof of the hold, required")],
            ..op("sessions", "Clear the state of a held session", None, done())
        },
        "list_dead_letters" => Operation {
            query: page(),
            ..op("dead letters", "Look at dead letters", None, ok("Peeked"))
        },
        "purge_dead_letters" => op("dead letters", "Drop all dead letters", None, ok("Removed")),
        "redrive" => op(
            "dead letters",
            "Move dead letters back to where they came from, or elsewhere",
            Json("Redrive"),
            ok("Redriven"),
        ),
        "resend" => op(
            "dead letters",
            "Replace a dead letter by a corrected message, at once or not at all",
            Json("Resend"),
            vec![(201, "Durable", Json("Sent"))],
        ),
        "partition" => Operation {
            query: vec![("key", "string", "Any text")],
            ..op(
                "queues",
                "Where a key belongs on the fixed list of sessions",
                None,
                ok("Partition"),
            )
        },
        "history" => {
            op("observe", "One hour of a queue, a point every ten seconds", None, ok("History"))
        }
        "scale" => op("observe", "What a scaler looks at", None, ok("Scale")),
        "openapi" => op("about", "This document", None, ok("Any")),
        "version" => op("about", "Who answers", None, ok("Version")),
        "problem" => op("about", "What a problem's `type` points at", None, ok("ProblemKind")),
        "disk" => op(
            "operate",
            "What is on the broker's disk, and what housekeeping did since the start",
            None,
            ok("Disk"),
        ),
        "audit" => Operation {
            query: vec![
                (
                    "after",
                    "integer",
                    "Records after this number, oldest first; the newest ones if absent",
                ),
                ("max", "integer", "At most this number of records, 1 to 1024; 100 if absent"),
                ("caller", "string", "Only of callers with this name"),
                ("action", "string", "Only with this action, such as login, declare or delete"),
                ("outcome", "string", "Only done, refused or unknown"),
            ],
            ..op(
                "operate",
                "The audit log: logins and administrative operations, for callers who may manage everything",
                None,
                ok("AuditRecords"),
            )
        },
        "backup" => op(
            "operate",
            "Everything that is durable now, as one file for `malote restore`; needs manage and receive on every queue",
            None,
            vec![(200, "The backup", Text("application/octet-stream"))],
        ),
        "connect" => op(
            "native connection",
            "Open a WebSocket with sub-protocol malote.v1.json or malote.v1.msgpack; frames: ClientFrame, ServerFrame",
            None,
            vec![(101, "Frames follow", None)],
        ),
        "livez" => op(
            "observe",
            "The process lives",
            None,
            vec![
                (200, "It does", Text("text/plain")),
                (
                    503,
                    "The disk or the broker itself failed: it must be restarted",
                    Text("text/plain"),
                ),
            ],
        ),
        "readyz" => Operation {
            query: vec![("verbose", "string", "List the checks")],
            ..op(
                "observe",
                "The process is ready for work",
                None,
                vec![(200, "It is", Text("text/plain")), (503, "It is not", Text("text/plain"))],
            )
        },
        "health_all" | "health_queue" => op(
            "observe",
            if name == "health_all" {
                "The worst of all queues"
            } else {
                "Whether a queue piles up"
            },
            None,
            vec![(200, "OK", Json("Health")), (503, "Warning or error", Json("Health"))],
        ),
        "metrics" => op("observe", "Prometheus, summed over queues", None, exposition()),
        "metrics_per_object" => Operation {
            query: vec![
                ("prefix", "string", "Only queues and topics whose names begin so"),
                ("after", "string", "From after this name"),
                ("max", "integer", "At most so many queues, and as many topics; up to 5000"),
            ],
            ..op("observe", "Prometheus, by queue and topic", None, exposition())
        },
        "metrics_queues" => op("observe", "Every queue in five numbers", None, ok("QueueMetrics")),
        other => topics::describe(other)
            .unwrap_or_else(|| unreachable!("route {other} is not described")),
    }
}

/// What the query of a raw message may say.
fn metadata(also: Option<&'static str>) -> Vec<Query> {
    let names = NAMES.into_iter().chain(also);
    names.map(|name| (name, metadata_type(name), metadata_text(name))).collect()
}

fn metadata_headers() -> Vec<Query> {
    vec![
        ("malote-property-{name}", "string", "A property of that name, as text"),
        ("malote-{parameter}", "string", "Any query parameter, with dashes, as a header instead"),
        ("traceparent", "string", "Kept as a property"),
        ("tracestate", "string", "Kept as a property"),
    ]
}

fn metadata_type(name: &str) -> &'static str {
    match name {
        "delay_ms" | "ttl_ms" | "priority" | TIMEOUT => "integer",
        "session_from_key" => "boolean",
        _ => "string",
    }
}

fn metadata_text(name: &str) -> &'static str {
    match name {
        "session" => "The FIFO session it belongs to, 1 to 128 characters",
        "session_from_key" => "Take the session from the queue's fixed list by `key`",
        "id" => "The sender's id; a UUID v7 is given if absent",
        "dedup_id" => "Key for de-duplication",
        "key" => "Partition or routing key",
        "subject" => "What it is about",
        "to" => "Where the sender meant it to go",
        "reply_to" => "Where answers go",
        "reply_to_session" => "The session that answers belong to",
        "correlation_id" => "The request that this answers",
        "user_id" => "Who sent it, by the sender's word",
        "app_id" => "Which application sent it",
        "delay_ms" => "Delivered after so long, in its place",
        "at" => "Sent at that time: milliseconds since 1970 or RFC 3339",
        "ttl_ms" => "Expires so long after it was enqueued",
        "priority" => "0 to 255, higher first",
        TIMEOUT => "How long to wait for the answer, 1 to 300000; 30000 if absent",
        _ => {
            "true: make a missing queue, with sessions if the message has one; sessions: always with sessions"
        }
    }
}
