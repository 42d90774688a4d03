//! `exchange.declare`, `exchange.delete`, `exchange.bind`, `exchange.unbind`, and bindings as rules.

use data_encoding::BASE64URL_NOPAD;
use malote_engine::EngineError;
use malote_model::{
    Action, Address, AuditAction, Filter, Headers, HeadersMatch, Refusal, Rule, TopicKind,
};
use xxhash_rust::xxh3::xxh3_64;

use super::queue_declare::RESERVED;
use crate::arguments::topic_spec;
use crate::conn::completion::Done;
use crate::conn::{Conn, allow_key};
use crate::message::{model_value, with_field_value};
use crate::names::VirtualHost;
use crate::policy::declared_alternate;
use crate::refusal::{failed, no_exchange, precondition};
use crate::wire::error::{Exception, ReplyCode};
use crate::wire::method::{DecodeMethod as _, exchange};
use crate::wire::table::{FieldTable, FieldValue};

fn refused(detail: impl Into<String>) -> Exception {
    Exception::new(ReplyCode::AccessRefused, detail.into())
}

/// Nothing can be changed at the default exchange.
pub(crate) fn not_on_default(exchange: &str) -> Result<(), Exception> {
    match exchange {
        "" => Err(refused("operation not permitted on the default exchange")),
        _ => Ok(()),
    }
}

/// The rule of a binding is named after its key and arguments: both identify it. Arguments that are too long for a name
/// are represented by a hash.
pub(crate) fn rule_name(key: &str, arguments: &FieldTable) -> String {
    if arguments.is_empty() {
        let plain = !key.is_empty() && !key.contains('~');
        return if plain { key.to_owned() } else { format!("{key}~") };
    }
    let encoded = BASE64URL_NOPAD.encode(arguments.as_bytes());
    match key.len() + encoded.len() + 2 <= malote_model::limits::RULE_NAME_BYTES_MAX {
        true => format!("{key}~={encoded}"),
        false => format!("{key}~{:016x}", xxh3_64(arguments.as_bytes())),
    }
}

/// The routing key and the arguments of a binding. Arguments that were too long for the name of the rule are known only
/// for a headers exchange.
pub(crate) fn binding_parts(rule: &Rule) -> (String, FieldTable) {
    let (named_key, suffix) = rule.name.rsplit_once('~').unwrap_or((&rule.name, ""));
    let stored = suffix.strip_prefix('=').and_then(|encoded| {
        let bytes = BASE64URL_NOPAD.decode(encoded.as_bytes()).ok()?;
        FieldTable::parse(bytes.into()).ok()
    });
    let (key, derived) = match &rule.filter {
        Filter::Key(key) | Filter::Pattern(key) => (key.clone(), FieldTable::default()),
        Filter::Weight(weight) => (weight.to_string(), FieldTable::default()),
        Filter::Headers(headers) => (named_key.to_owned(), headers_table(headers)),
        _ => (named_key.to_owned(), FieldTable::default()),
    };
    (key, stored.unwrap_or(derived))
}

fn headers_table(headers: &Headers) -> FieldTable {
    let mode = match headers.mode {
        HeadersMatch::All => "all",
        HeadersMatch::Any => "any",
        HeadersMatch::AllWithX => "all-with-x",
        HeadersMatch::AnyWithX => "any-with-x",
    };
    let mut table = FieldTable::builder().with("x-match", mode);
    for (name, value) in &headers.values {
        match value {
            Some(value) => with_field_value(value, &mut |value| table.put(name, value)),
            None => table.put(name, FieldValue::Void),
        }
    }
    table.build()
}

/// A binding as a rule.
pub(crate) fn binding_rule(
    kind: TopicKind,
    key: &str,
    arguments: &FieldTable,
) -> Result<Rule, Exception> {
    let filter = match kind {
        TopicKind::Direct => Filter::Key(key.to_owned()),
        TopicKind::Fanout => Filter::All,
        TopicKind::Topic | TopicKind::Filter => Filter::Pattern(key.to_owned()),
        TopicKind::Headers => Filter::Headers(headers(arguments)?),
        TopicKind::Hash => Filter::Weight(key.parse().map_err(|_| {
            precondition(format!(
                "The binding key must be an integer: {key} for an x-consistent-hash exchange"
            ))
        })?),
        TopicKind::Queue => return Err(refused("operation not permitted on the default exchange")),
    };
    Ok(Rule { name: rule_name(key, arguments), filter, action: None })
}

fn headers(arguments: &FieldTable) -> Result<Headers, Exception> {
    const MATCH: &str = "x-match";
    let mode = match arguments.get(MATCH) {
        None => HeadersMatch::All,
        Some(value) => match value.as_str() {
            Some("all") => HeadersMatch::All,
            Some("any") => HeadersMatch::Any,
            Some("all-with-x") => HeadersMatch::AllWithX,
            Some("any-with-x") => HeadersMatch::AnyWithX,
            Some(other) => {
                return Err(precondition(format!(
                    "Invalid x-match field value <<\"{other}\">>; expected all, any, all-with-x, or any-with-x"
                )));
            }
            None => {
                return Err(precondition(format!(
                    "Invalid x-match field type {} (value {value:?}); expected longstr",
                    value.type_name()
                )));
            }
        },
    };
    let mut values: Vec<(String, Option<malote_model::Value>)> = Vec::new();
    for field in arguments.fields().filter(|field| field.name != MATCH) {
        // A header without a value only has to exist.
        let value = match field.value {
            FieldValue::Void => None,
            value => Some(model_value(value)),
        };
        values.retain(|(name, _)| name != field.name);
        values.push((field.name.to_owned(), value));
    }
    Ok(Headers { mode, values })
}

/// RabbitMQ's name for a setting of a topic, and for its value.
pub(crate) fn inequivalent(host: &VirtualHost, name: &str, refusal: &Refusal) -> Option<Exception> {
    let Refusal::TopicDiffers { field, is, asked, .. } = refusal else { return None };
    let words = |value: &str| match (*field, value) {
        ("kind", "hash") => "x-consistent-hash".to_owned(),
        ("transient", "true") => "false".to_owned(),
        ("transient", _) => "true".to_owned(),
        (_, value) => value.to_owned(),
    };
    let arg = match *field {
        "kind" => "type",
        "transient" => "durable",
        "alternate" => "alternate-exchange",
        other => other,
    };
    let host_name = host.name();
    let detail = match *field {
        "alternate" => {
            let shown = |value: &str| match value {
                "none" => "none".to_owned(),
                topic => format!("the value '{}' of type 'longstr'", host.shown_exchange(topic)),
            };
            format!("received {} but current is {}", shown(asked), shown(is))
        }
        _ => format!("received '{}' but current is '{}'", words(asked), words(is)),
    };
    Some(precondition(format!(
        "inequivalent arg '{arg}' for exchange '{name}' in vhost '{host_name}': {detail}"
    )))
}

impl Conn {
    pub(crate) fn declare_exchange(
        &mut self,
        number: u16,
        declare: exchange::Declare,
    ) -> Result<(), Exception> {
        let (front, session) = (self.front.clone(), self.session.clone());
        let reply = (!declare.no_wait).then(|| exchange::DeclareOk {}.into());
        if declare.passive {
            if declare.exchange.is_empty() {
                self.reply(number, reply);
                return Ok(());
            }
            let topic = session.host.topic(&declare.exchange);
            let topic = topic.map_err(|_| no_exchange(&session.host, &declare.exchange))?;
            let any = [Action::Manage, Action::Receive, Action::Send];
            let allow = |action| self.allow(action, &topic, "exchange", &declare.exchange);
            if !self.sees_names() && !any.into_iter().any(|action| allow(action).is_ok()) {
                allow(Action::Manage)?;
            }
            self.start_request(number, exchange::Declare::ID, async move {
                let found = front.engine.topic(topic).await;
                found.map_err(|error| failed(&session.host, &error))?;
                Ok(Done::Reply(reply))
            });
            return Ok(());
        }
        not_on_default(&declare.exchange)?;
        let spec = topic_spec(&session.host, &declare)?;
        let topic = session.host.topic(&declare.exchange)?;
        self.allow(Action::Manage, &topic, "exchange", &declare.exchange)?;
        // A new exchange needs these, an existing one does not.
        let may_create = match &spec.alternate {
            Some(alternate) => {
                self.allow(Action::Receive, &topic, "exchange", &declare.exchange).and_then(|()| {
                    let shown = session.host.shown(alternate.as_str());
                    self.allow(Action::Send, alternate, "exchange", &shown)
                })
            }
            None => Ok(()),
        };
        let entry = self.audit(AuditAction::Declare, topic.as_str());
        self.start_request(number, exchange::Declare::ID, async move {
            let host = &session.host;
            let name = &declare.exchange;
            if (name.starts_with(RESERVED) || may_create.is_err())
                && front.engine.topic(topic.clone()).await.is_err()
            {
                may_create?;
                let detail = format!("exchange name '{name}' contains reserved prefix 'amq.*'");
                return Err(refused(detail));
            }
            match front.engine.declare_topic(topic.clone(), spec.clone()).await {
                Ok(created) => {
                    if created {
                        front.access.audit().record(entry);
                        let applied = front.reapply_to_exchange(topic).await;
                        applied.map_err(|error| failed(host, &error))?;
                    }
                    Ok(Done::Reply(reply))
                }
                Err(EngineError::Refused(refusal)) => {
                    // A policy may have set the alternate exchange; a declaration is compared with the declared one.
                    if let (Refusal::TopicDiffers { field: "alternate", .. }, Ok(facts)) =
                        (&refusal, front.engine.topic(topic).await)
                        && declared_alternate(host, &facts) == spec
                    {
                        return Ok(Done::Reply(reply));
                    }
                    let known = inequivalent(host, name, &refusal);
                    Err(known.unwrap_or_else(|| crate::refusal::refused(host, &refusal)))
                }
                Err(error) => Err(failed(host, &error)),
            }
        });
        Ok(())
    }

    pub(crate) fn delete_exchange(
        &mut self,
        number: u16,
        delete: exchange::Delete,
    ) -> Result<(), Exception> {
        not_on_default(&delete.exchange)?;
        let (front, session) = (self.front.clone(), self.session.clone());
        if delete.exchange.starts_with(RESERVED) {
            let (name, host) = (&delete.exchange, session.host.name());
            return Err(refused(format!(
                "deletion of system exchange '{name}' in vhost '{host}' not allowed"
            )));
        }
        let topic = session.host.topic(&delete.exchange)?;
        self.allow(Action::Manage, &topic, "exchange", &delete.exchange)?;
        let entry = self.audit(AuditAction::Delete, topic.as_str());
        self.start_request(number, exchange::Delete::ID, async move {
            let host = &session.host;
            let reply = (!delete.no_wait).then(|| exchange::DeleteOk {}.into());
            let facts = match front.engine.topic(topic.clone()).await {
                Ok(facts) => facts,
                Err(EngineError::Refused(Refusal::TopicNotFound { .. })) => {
                    return Ok(Done::Reply(reply));
                }
                Err(error) => return Err(failed(host, &error)),
            };
            if delete.if_unused && facts.rules > 0 {
                let (name, host) = (&delete.exchange, host.name());
                return Err(precondition(format!("exchange '{name}' in vhost '{host}' in use")));
            }
            match front.engine.delete_topic(topic).await {
                Ok(()) => front.access.audit().record(entry),
                Err(EngineError::Refused(Refusal::TopicNotFound { .. })) => {}
                Err(error) => return Err(failed(host, &error)),
            }
            Ok(Done::Reply(reply))
        });
        Ok(())
    }

    pub(crate) fn bind_exchange(
        &mut self,
        number: u16,
        bind: exchange::Bind,
    ) -> Result<(), Exception> {
        not_on_default(&bind.destination)?;
        not_on_default(&bind.source)?;
        let (front, session) = (self.front.clone(), self.session.clone());
        let source = session.host.topic(&bind.source)?;
        let target = session.host.topic(&bind.destination)?;
        self.allow(Action::Send, &target, "exchange", &bind.destination)?;
        self.allow(Action::Receive, &source, "exchange", &bind.source)?;
        allow_key(&front, &session, Action::Receive, &bind.source, &bind.routing_key)?;
        let entry = self.audit(AuditAction::Bind, source.as_str()).detail(target.as_str());
        self.start_request(number, exchange::Bind::ID, async move {
            let failed = |error: EngineError| failed(&session.host, &error);
            let kind = front.engine.topic(source.clone()).await.map_err(failed)?.spec.kind;
            let rule = binding_rule(kind, &bind.routing_key, &bind.arguments)?;
            front.engine.bind(source, Address::Topic(target), rule).await.map_err(failed)?;
            front.access.audit().record(entry);
            Ok(Done::Reply((!bind.no_wait).then(|| exchange::BindOk {}.into())))
        });
        Ok(())
    }

    pub(crate) fn unbind_exchange(
        &mut self,
        number: u16,
        unbind: exchange::Unbind,
    ) -> Result<(), Exception> {
        not_on_default(&unbind.destination)?;
        not_on_default(&unbind.source)?;
        let (front, session) = (self.front.clone(), self.session.clone());
        let source = session.host.topic(&unbind.source)?;
        let target = session.host.topic(&unbind.destination)?;
        self.allow(Action::Send, &target, "exchange", &unbind.destination)?;
        self.allow(Action::Receive, &source, "exchange", &unbind.source)?;
        allow_key(&front, &session, Action::Receive, &unbind.source, &unbind.routing_key)?;
        let entry = self.audit(AuditAction::Unbind, source.as_str()).detail(target.as_str());
        self.start_request(number, exchange::Unbind::ID, async move {
            let rule = rule_name(&unbind.routing_key, &unbind.arguments);
            match front.engine.unbind(source, Address::Topic(target), rule).await {
                Ok(()) => front.access.audit().record(entry),
                // Nothing to remove.
                Err(EngineError::Refused(
                    Refusal::RuleNotFound { .. } | Refusal::TopicNotFound { .. },
                )) => {}
                Err(error) => return Err(failed(&session.host, &error)),
            }
            Ok(Done::Reply((!unbind.no_wait).then(|| exchange::UnbindOk {}.into())))
        });
        Ok(())
    }
}
