//! Query parameters and headers.

use crate::ops::metadata::{NAMES, TIMEOUT};

/// Name, JSON type and description.
pub(super) type Parameter = (&'static str, &'static str, &'static str);

/// Names with a prefix, page by page.
pub(super) fn names_page() -> Vec<Parameter> {
    vec![
        ("prefix", "string", "Only names with this prefix"),
        ("after", "string", "Only names after this one: `next` of the previous page"),
        ("max", "integer", "Maximum number of results; no limit if absent"),
    ]
}

/// A sorted page of queues.
pub(super) fn overview_page() -> Vec<Parameter> {
    vec![
        ("queue", "string", "Only this queue"),
        (
            "search",
            "string",
            "Only names that match this pattern: `*` stands for any text; without `*`, names that contain the text",
        ),
        (
            "sort",
            "string",
            "name, ready, locked, later, deferred, dead_lettered, sessions, consumers, in, out or oldest",
        ),
        ("descending", "boolean", "Largest values first"),
        ("offset", "integer", "Number of queues to skip"),
        ("max", "integer", "Maximum number of queues, 0 to 500 (default 100)"),
    ]
}

/// Messages from a sequence number on.
pub(super) fn messages_page() -> Vec<Parameter> {
    vec![
        ("from", "integer", "The first sequence number: `next` of the previous page"),
        ("max", "integer", "Maximum number of messages, 1 to 1024 (default 100)"),
        ("session", "string", "Only messages of this session"),
        (
            "state",
            "string",
            "Only messages in this state: ready, locked, delayed, scheduled or deferred",
        ),
    ]
}

/// Sessions or sagas, page by page.
pub(super) fn sessions_page() -> Vec<Parameter> {
    vec![
        ("after", "string", "`next` of the previous page"),
        ("max", "integer", "Maximum number of results, 1 to 1024 (default 100)"),
    ]
}

/// Rules, page by page.
pub(super) fn rules_page() -> Vec<Parameter> {
    vec![
        ("queue", "string", "Only rules of this queue"),
        (
            "after_queue",
            "string",
            "Only rules after `after_rule` of this queue: `next` of the previous page",
        ),
        ("after_topic", "string", "Like `after_queue`, for rules that lead to a topic"),
        ("after_rule", "string", "Only rules after this one"),
        ("max", "integer", "Maximum number of rules, 1 to 1024 (default 100)"),
    ]
}

/// Metadata of a message whose body is the request body.
pub(super) fn metadata(also: Option<&'static str>) -> Vec<Parameter> {
    let names = NAMES.into_iter().chain(also);
    names.map(|name| (name, metadata_type(name), metadata_text(name))).collect()
}

/// Metadata of a message whose body is the request body, as headers.
pub(super) fn metadata_headers() -> Vec<Parameter> {
    vec![
        ("malote-property-{name}", "string", "A property with this name, as text"),
        ("malote-{parameter}", "string", "Any query parameter, with dashes, as a header"),
        ("traceparent", "string", "Stored as a property"),
        ("tracestate", "string", "Stored as a property"),
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
        "session" => "The FIFO session of the message, 1 to 128 characters",
        "session_from_key" => "Choose the session from the queue's fixed list by `key`",
        "id" => "The sender's id; the server assigns a UUID v7 if absent",
        "dedup_id" => "The key for de-duplication",
        "key" => "Partition or routing key",
        "subject" => "What the message is about",
        "to" => "Destination, as the sender names it",
        "reply_to" => "Where to send replies",
        "reply_to_session" => "The session of replies",
        "correlation_id" => "The request that this message answers",
        "user_id" => "The user, as the sender names it",
        "app_id" => "The application that sent the message",
        "delay_ms" => {
            "Deliver after this number of milliseconds; the message keeps its place in the queue"
        }
        "at" => "Send at this time: milliseconds since 1970 or RFC 3339",
        "ttl_ms" => "Time to live in milliseconds, from when the message is enqueued",
        "priority" => "0 to 255; messages with a higher priority are delivered first",
        TIMEOUT => "How long to wait for the reply in milliseconds, 1 to 300000 (default 30000)",
        _ => {
            "true: create a missing queue, with sessions if the message has one; sessions: always with sessions"
        }
    }
}
