//! Arguments of queues and exchanges ↔ settings of the engine.
//!
//! The arguments of a queue are stored with it as they came: a later declaration must match those that have a meaning, by
//! value, and the text of an error shows their types.

use data_encoding::BASE64;
use malote_model::{
    DeadLetterTarget, Dedup, Durability, HashOn, OnExpiry, Overflow, QueueSpec, SessionFrom,
    Sessions, TopicKind, TopicSpec,
};

use crate::limits;
use crate::names::VirtualHost;
use crate::refusal::precondition;
use crate::wire::error::{Exception, ReplyCode};
use crate::wire::method::{exchange, queue};
use crate::wire::table::{FieldTable, FieldValue};

/// The label with the arguments of a queue.
const ARGUMENTS_LABEL: &str = "amqp091.arguments";
const TYPE: &str = "x-queue-type";
const TYPE_CLASSIC: &str = "classic";
pub(crate) const TYPE_QUORUM: &str = "quorum";
const EXPIRES: &str = "x-expires";
const MESSAGE_TTL: &str = "x-message-ttl";
const DLX: &str = "x-dead-letter-exchange";
const DLX_KEY: &str = "x-dead-letter-routing-key";
const MAX_LENGTH: &str = "x-max-length";
const MAX_BYTES: &str = "x-max-length-bytes";
const MAX_PRIORITY: &str = "x-max-priority";
const OVERFLOW: &str = "x-overflow";
const SINGLE_ACTIVE: &str = "x-single-active-consumer";
const DELIVERY_LIMIT: &str = "x-delivery-limit";
const SESSIONS: &str = "x-sessions";
const SESSION_FROM: &str = "x-session-from";
const DEDUPLICATION: &str = "x-message-deduplication";
const CACHE_TTL: &str = "x-cache-ttl";

/// Arguments that a declaration must repeat.
const COMPARED: [&str; 21] = [
    EXPIRES,
    MESSAGE_TTL,
    DLX,
    DLX_KEY,
    "x-dead-letter-strategy",
    MAX_LENGTH,
    MAX_BYTES,
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    MAX_PRIORITY,
    OVERFLOW,
    "x-queue-mode",
    "x-queue-version",
    SINGLE_ACTIVE,
    TYPE,
    "x-quorum-initial-group-size",
    "x-max-age",
    DELIVERY_LIMIT,
    SESSIONS,
    SESSION_FROM,
    DEDUPLICATION,
];

/// `x-queue-type` of a queue; queues of other protocols are classic.
pub(crate) fn queue_type(arguments: &FieldTable) -> &str {
    arguments.get(TYPE).and_then(FieldValue::as_str).unwrap_or(TYPE_CLASSIC)
}

/// Whether deliveries of a queue have the header `x-delivery-count`.
pub(crate) fn counts_deliveries(spec: &QueueSpec) -> bool {
    stored(spec).is_some_and(|arguments| queue_type(&arguments) == TYPE_QUORUM)
}

/// Reads the arguments of one queue.
struct Arguments<'a> {
    table: &'a FieldTable,
    queue: &'a str,
    host: &'a VirtualHost,
}

impl<'a> Arguments<'a> {
    fn bad(&self, name: &str, why: impl std::fmt::Display) -> Exception {
        let (queue, host) = (self.queue, self.host.name());
        precondition(format!("invalid arg '{name}' for queue '{queue}' in vhost '{host}': {why}"))
    }

    fn number(&self, name: &str, least: i64, most: i64) -> Result<Option<u64>, Exception> {
        let Some(value) = self.table.get(name) else { return Ok(None) };
        let unacceptable =
            || self.bad(name, format!("{{unacceptable_type,{}}}", value.type_name()));
        let number = value.as_integer().ok_or_else(unacceptable)?;
        if number < 0 && number < least {
            return Err(self.bad(name, format!("{{value_negative,{number}}}")));
        }
        if number < least {
            return Err(self.bad(name, format!("{{value_zero,{number}}}")));
        }
        if number > most {
            return Err(self.bad(name, format!("{{value_too_large,{number}}}")));
        }
        Ok(u64::try_from(number).ok())
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, Exception> {
        let Some(value) = self.table.get(name) else { return Ok(None) };
        let unacceptable =
            || self.bad(name, format!("{{unacceptable_type,{}}}", value.type_name()));
        value.as_str().map(Some).ok_or_else(unacceptable)
    }

    fn flag(&self, name: &str) -> Result<bool, Exception> {
        let Some(value) = self.table.get(name) else { return Ok(false) };
        let unacceptable =
            || self.bad(name, format!("{{unacceptable_type,{}}}", value.type_name()));
        value.as_bool().ok_or_else(unacceptable)
    }
}

/// The settings of a new queue.
pub(crate) fn queue_spec(
    host: &VirtualHost,
    name: &str,
    declare: &queue::Declare,
) -> Result<QueueSpec, Exception> {
    let table = &declare.arguments;
    let arguments = Arguments { table, queue: name, host };
    if table.as_bytes().len() > limits::ARGUMENTS_BYTES_MAX {
        let most = limits::ARGUMENTS_BYTES_MAX;
        return Err(precondition(format!("the arguments of a queue must not exceed {most} bytes")));
    }
    let quorum = match arguments.text(TYPE)?.unwrap_or(TYPE_CLASSIC) {
        TYPE_CLASSIC => false,
        TYPE_QUORUM => true,
        other => return Err(arguments.bad(TYPE, format!("unsupported queue type '{other}'"))),
    };
    if quorum {
        check_quorum(host, name, declare)?;
    }
    let dead_letter = dead_letter(&arguments)?;
    let has_target = dead_letter != DeadLetterTarget::Drop;
    let limit = match table.get(DELIVERY_LIMIT).and_then(FieldValue::as_integer) {
        Some(-1) => None,
        _ => match arguments.number(DELIVERY_LIMIT, 0, i64::from(u32::MAX))? {
            Some(limit) if quorum => Some(u32::try_from(limit).unwrap_or(u32::MAX)),
            _ => quorum.then_some(limits::QUORUM_DELIVERY_LIMIT),
        },
    };
    let failed_most = malote_model::limits::FAILED_MAX_MAX;
    let sessions = match arguments.flag(SESSIONS)? {
        true => Sessions::Dynamic,
        false => Sessions::None,
    };
    let session_from = session_from(&arguments)?;
    if session_from.is_some() && !sessions.required() {
        return Err(arguments.bad(SESSION_FROM, format!("needs the argument '{SESSIONS}' = true")));
    }
    let dedup = match arguments.flag(DEDUPLICATION)? {
        true => {
            let window_ms = arguments.number(CACHE_TTL, 1, limits::DURATION_MS_MAX)?;
            let window_ms = window_ms.unwrap_or(limits::DEDUP_WINDOW_MS);
            let window_ms = window_ms.min(malote_model::limits::DEDUP_WINDOW_MS_MAX);
            Some(Dedup { window_ms, per_session: false, content: false })
        }
        false => None,
    };
    let durable = declare.durable && !declare.exclusive;
    let mut spec = QueueSpec {
        sessions,
        session_from,
        // The number of redeliveries, not of deliveries.
        failed_max: limit.map(|limit| limit.saturating_add(1).min(failed_most)),
        dead_letter,
        discard_unroutable: true,
        durability: if durable { Durability::Fsync } else { Durability::Relaxed },
        message_bytes_max: malote_model::limits::MESSAGE_BYTES_MAX,
        // A time to live of zero means: deliver at once, or expire.
        ttl_ms: arguments.number(MESSAGE_TTL, 0, limits::DURATION_MS_MAX)?.map(|ms| ms.max(1)),
        on_expiry: if has_target { OnExpiry::DeadLetter } else { OnExpiry::Drop },
        priority_max: arguments.number(MAX_PRIORITY, 1, 255)?.unwrap_or(0) as u8,
        dedup,
        length_max: arguments.number(MAX_LENGTH, 0, i64::MAX)?,
        bytes_max: arguments.number(MAX_BYTES, 0, i64::MAX)?,
        overflow: overflow(&arguments, has_target)?,
        auto_delete: declare.auto_delete,
        idle_ms_max: arguments.number(EXPIRES, 1, limits::DURATION_MS_MAX)?,
        exclusive: declare.exclusive,
        single_active: arguments.flag(SINGLE_ACTIVE)?,
        transient: !declare.durable,
        ..QueueSpec::default()
    };
    if spec.sessions.required() && spec.priority_max > 0 {
        return Err(arguments.bad(SESSIONS, "sessions and priorities exclude each other"));
    }
    // The engine has no limit of zero: such a queue never keeps a message that it cannot deliver at once.
    spec.length_max = spec.length_max.map(|most| most.max(1));
    spec.bytes_max = spec.bytes_max.map(|most| most.max(1));
    spec.labels.insert(ARGUMENTS_LABEL.to_owned(), BASE64.encode(table.as_bytes()));
    Ok(spec)
}

/// `header:NAME`, `routing-key` or `correlation-id`.
fn session_from(arguments: &Arguments<'_>) -> Result<Option<SessionFrom>, Exception> {
    let from = match arguments.text(SESSION_FROM)? {
        None => return Ok(None),
        Some("routing-key") => SessionFrom::Key,
        Some("correlation-id") => SessionFrom::CorrelationId,
        Some(text) => match text.strip_prefix("header:") {
            Some(name) => SessionFrom::Property(name.to_owned()),
            None => {
                let why = "expected 'header:NAME', 'routing-key' or 'correlation-id'";
                return Err(arguments.bad(SESSION_FROM, why));
            }
        },
    };
    from.check().map_err(|refusal| arguments.bad(SESSION_FROM, refusal))?;
    Ok(Some(from))
}

fn check_quorum(host: &VirtualHost, name: &str, declare: &queue::Declare) -> Result<(), Exception> {
    let properties = [
        ("non-durable", !declare.durable),
        ("exclusive-owner", declare.exclusive),
        ("auto-delete", declare.auto_delete),
        ("server-named", declare.queue.is_empty()),
    ];
    match properties.into_iter().find(|(_, has)| *has) {
        None => Ok(()),
        Some((property, _)) => Err(precondition(format!(
            "invalid property '{property}' for queue '{name}' in vhost '{}'",
            host.name()
        ))),
    }
}

fn dead_letter(arguments: &Arguments<'_>) -> Result<DeadLetterTarget, Exception> {
    let key = arguments.text(DLX_KEY)?.map(str::to_owned);
    match arguments.text(DLX)? {
        None if key.is_some() => Err(arguments.bad(DLX_KEY, "routing_key_but_no_dlx_defined")),
        None => Ok(DeadLetterTarget::Drop),
        Some(exchange) => {
            let topic = arguments.host.topic(exchange)?;
            Ok(DeadLetterTarget::Topic { topic, key })
        }
    }
}

fn overflow(arguments: &Arguments<'_>, has_target: bool) -> Result<Overflow, Exception> {
    Ok(match arguments.text(OVERFLOW)?.unwrap_or("drop-head") {
        "drop-head" if has_target => Overflow::DeadLetterOldest,
        "drop-head" => Overflow::DropOldest,
        "reject-publish" => Overflow::Reject,
        "reject-publish-dlx" => Overflow::DeadLetterNewest,
        other => {
            return Err(arguments.bad(OVERFLOW, format!("{{invalid_overflow,<<\"{other}\">>}}")));
        }
    })
}

/// The arguments that a queue was declared with; `None` for a queue of another protocol.
pub(crate) fn stored(spec: &QueueSpec) -> Option<FieldTable> {
    let label = spec.labels.get(ARGUMENTS_LABEL)?;
    FieldTable::parse(BASE64.decode(label.as_bytes()).ok()?.into()).ok()
}

/// The arguments of any queue: as declared, or derived from its settings.
pub(crate) fn shown_arguments(spec: &QueueSpec) -> FieldTable {
    stored(spec).unwrap_or_else(|| derived(spec))
}

/// The arguments that describe a queue of another protocol.
fn derived(spec: &QueueSpec) -> FieldTable {
    let mut table = FieldTable::builder();
    let numbers = [
        (MESSAGE_TTL, spec.ttl_ms),
        (EXPIRES, spec.idle_ms_max),
        (MAX_LENGTH, spec.length_max),
        (MAX_BYTES, spec.bytes_max),
        (MAX_PRIORITY, Some(u64::from(spec.priority_max)).filter(|&most| most > 0)),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            table.put(name, i64::try_from(number).unwrap_or(i64::MAX));
        }
    }
    if spec.single_active {
        table.put(SINGLE_ACTIVE, true);
    }
    if spec.sessions.required() {
        table.put(SESSIONS, true);
    }
    table.build()
}

/// Checks that a declaration matches an existing queue.
pub(crate) fn check_equivalent(
    host: &VirtualHost,
    name: &str,
    current: &QueueSpec,
    declare: &queue::Declare,
) -> Result<(), Exception> {
    let inequivalent = |arg: &str, received: String, is: String| {
        let host = host.name();
        precondition(format!(
            "inequivalent arg '{arg}' for queue '{name}' in vhost '{host}': received {received} but current is {is}"
        ))
    };
    let flags = [
        ("durable", declare.durable, !current.transient),
        ("auto_delete", declare.auto_delete, current.auto_delete),
    ];
    if let Some((arg, received, is)) = flags.into_iter().find(|(_, received, is)| received != is) {
        return Err(inequivalent(arg, format!("'{received}'"), format!("'{is}'")));
    }
    let have = shown_arguments(current);
    for arg in COMPARED {
        let (received, is) = (declare.arguments.get(arg), have.get(arg));
        if !same(arg, received, is) {
            return Err(inequivalent(arg, described(received), described(is)));
        }
    }
    Ok(())
}

fn same(arg: &str, received: Option<FieldValue<'_>>, is: Option<FieldValue<'_>>) -> bool {
    match (received, is) {
        (None, None) => true,
        (Some(a), Some(b)) => match (a.as_integer(), b.as_integer()) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        },
        // A queue without a type is classic.
        (Some(one), None) | (None, Some(one)) => arg == TYPE && one.as_str() == Some(TYPE_CLASSIC),
    }
}

fn described(value: Option<FieldValue<'_>>) -> String {
    let Some(value) = value else { return "none".to_owned() };
    let shown = match (value.as_integer(), value.as_str(), value.as_bool()) {
        (Some(number), ..) => number.to_string(),
        (_, Some(text), _) => text.to_owned(),
        (_, _, Some(flag)) => flag.to_string(),
        _ => format!("{value:?}"),
    };
    format!("the value '{shown}' of type '{}'", value.type_name())
}

/// The settings of a new exchange.
pub(crate) fn topic_spec(
    host: &VirtualHost,
    declare: &exchange::Declare,
) -> Result<TopicSpec, Exception> {
    let arguments = &declare.arguments;
    let text = |name: &str| arguments.get(name).and_then(FieldValue::as_str);
    let kind = match declare.kind.as_str() {
        // Every exchange delays messages with the header `x-delay`.
        "x-delayed-message" => text("x-delayed-type").ok_or_else(|| {
            let name = &declare.exchange;
            precondition(format!(
                "invalid argument, 'x-delayed-type' must be an existing exchange type for exchange '{name}' in vhost '{}'",
                host.name()
            ))
        })?,
        kind => kind,
    };
    let kind = match kind {
        "direct" => TopicKind::Direct,
        "fanout" => TopicKind::Fanout,
        "topic" => TopicKind::Topic,
        "headers" => TopicKind::Headers,
        "x-consistent-hash" => TopicKind::Hash,
        // RabbitMQ 3 closes the connection.
        other => {
            let detail = format!("unknown exchange type '{other}'");
            return Err(Exception::new(ReplyCode::CommandInvalid, detail));
        }
    };
    let alternate = match arguments.get("alternate-exchange") {
        None => None,
        Some(value) => Some(host.topic(value.as_str().ok_or_else(|| {
            let (name, host) = (&declare.exchange, host.name());
            let found = value.type_name();
            precondition(format!(
                "invalid arg 'alternate-exchange' for exchange '{name}' in vhost '{host}': {{unacceptable_type,{found}}}"
            ))
        })?)?),
    };
    let hash_on = match (text("hash-header"), text("hash-property")) {
        _ if kind != TopicKind::Hash => HashOn::Key,
        (Some(header), _) => HashOn::Property(header.to_owned()),
        (None, Some("message_id")) => HashOn::MessageId,
        (None, Some("correlation_id")) => HashOn::CorrelationId,
        (None, Some(other)) => {
            return Err(precondition(format!("Unsupported property {other}")));
        }
        (None, None) => HashOn::Key,
    };
    Ok(TopicSpec {
        kind,
        auto_delete: declare.auto_delete,
        internal: declare.internal,
        transient: !declare.durable,
        alternate,
        hash_on,
        ..TopicSpec::default()
    })
}
