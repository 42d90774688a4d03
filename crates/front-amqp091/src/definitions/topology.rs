//! Queues, exchanges and bindings ↔ definitions.

use malote_engine::{Binding, EngineError, QueueFacts, TopicFacts};
use malote_model::{Address, HashOn, Refusal, TopicKind};
use serde_json::Map;

use super::{BindingDefinition, DestinationKind, ExchangeDefinition, QueueDefinition};
use crate::Front;
use crate::arguments::{check_equivalent, shown_arguments, topic_spec};
use crate::arguments_json::{to_json, to_table};
use crate::names::VirtualHost;
use crate::ops::exchange::{binding_parts, binding_rule};
use crate::policy::{declared_alternate, queue_spec_with};
use crate::refusal::failed;
use crate::wire::error::Exception;
use crate::wire::method::{exchange, queue};
use crate::wire::text::ShortString;

/// What happened to an object of the definitions.
pub(super) enum Imported {
    /// It was created, or existed with these settings.
    Done,
    /// It was left alone, as RabbitMQ does, for this reason.
    Skipped(&'static str),
}

const DIFFERS: &str = "exists with other settings";

fn short(what: &str, name: &str) -> Result<ShortString, String> {
    ShortString::try_from(name).map_err(|_| format!("the name of {what} '{name}' is too long"))
}

fn text(exception: Exception) -> String {
    exception.to_string()
}

impl Front {
    pub(super) async fn import_queue(
        &self,
        host: &VirtualHost,
        definition: &QueueDefinition,
    ) -> Result<Imported, String> {
        let failed = |error: EngineError| text(failed(host, &error));
        let shown = definition.name.as_str();
        let declare = queue::Declare {
            queue: short("queue", shown)?,
            durable: definition.durable,
            auto_delete: definition.auto_delete,
            arguments: to_table(&definition.arguments)?,
            ..Default::default()
        };
        let name = host.queue(shown).map_err(text)?;
        let metadata = self.metadata.current();
        let spec = queue_spec_with(&metadata, host, shown, &declare).map_err(text)?;
        match self.engine.describe(name.clone()).await {
            Ok(facts) => {
                return Ok(match check_equivalent(host, shown, &facts.spec, &declare) {
                    Ok(()) => Imported::Done,
                    Err(_) => Imported::Skipped(DIFFERS),
                });
            }
            Err(EngineError::Refused(Refusal::QueueNotFound { .. })) => {}
            Err(error) => return Err(failed(error)),
        }
        match self.engine.declare(name, spec).await {
            Ok(_) => Ok(Imported::Done),
            Err(EngineError::Refused(Refusal::QueueDiffers { .. })) => {
                Ok(Imported::Skipped(DIFFERS))
            }
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) async fn import_exchange(
        &self,
        host: &VirtualHost,
        definition: &ExchangeDefinition,
    ) -> Result<Imported, String> {
        if definition.name.is_empty() {
            return Ok(Imported::Done);
        }
        let declare = exchange::Declare {
            exchange: short("exchange", &definition.name)?,
            kind: short("exchange type", &definition.kind)?,
            durable: definition.durable,
            auto_delete: definition.auto_delete,
            internal: definition.internal,
            arguments: to_table(&definition.arguments)?,
            ..Default::default()
        };
        let topic = host.topic(&definition.name).map_err(text)?;
        let spec = topic_spec(host, &declare).map_err(text)?;
        match self.engine.declare_topic(topic.clone(), spec.clone()).await {
            Ok(true) => {
                let applied = self.reapply_to_exchange(topic).await;
                applied.map(|()| Imported::Done).map_err(|error| text(failed(host, &error)))
            }
            Ok(false) => Ok(Imported::Done),
            Err(EngineError::Refused(Refusal::TopicDiffers { .. })) => {
                let same = self.engine.topic(topic).await.is_ok_and(|facts| {
                    let declared = declared_alternate(host, &facts);
                    declared.difference(&spec).is_none()
                });
                Ok(if same { Imported::Done } else { Imported::Skipped(DIFFERS) })
            }
            Err(error) => Err(text(failed(host, &error))),
        }
    }

    pub(super) async fn import_binding(
        &self,
        host: &VirtualHost,
        definition: &BindingDefinition,
    ) -> Result<Imported, String> {
        const MISSING: &str = "source or destination does not exist";
        if definition.source.is_empty() {
            // Every queue is bound to the default exchange.
            return Ok(Imported::Done);
        }
        let source = host.topic(&definition.source).map_err(text)?;
        let target: Address = match definition.destination_type {
            DestinationKind::Queue => host.queue(&definition.destination).map_err(text)?.into(),
            DestinationKind::Exchange => host.topic(&definition.destination).map_err(text)?.into(),
        };
        let missing = |error: &EngineError| {
            matches!(
                error,
                EngineError::Refused(Refusal::TopicNotFound { .. } | Refusal::QueueNotFound { .. })
            )
        };
        let kind = match self.engine.topic(source.clone()).await {
            Ok(facts) => facts.spec.kind,
            Err(error) if missing(&error) => return Ok(Imported::Skipped(MISSING)),
            Err(error) => return Err(text(failed(host, &error))),
        };
        let arguments = to_table(&definition.arguments)?;
        let rule = binding_rule(kind, &definition.routing_key, &arguments).map_err(text)?;
        match self.engine.bind(source, target, rule).await {
            Ok(_) => Ok(Imported::Done),
            Err(error) if missing(&error) => Ok(Imported::Skipped(MISSING)),
            Err(error) => Err(text(failed(host, &error))),
        }
    }
}

/// A queue as a definition. Exclusive queues belong to their connection, subscriptions to their topic.
pub(super) fn queue_definition(facts: &QueueFacts) -> Option<QueueDefinition> {
    let name = &facts.name;
    if facts.spec.exclusive || name.owner().is_some() || name.subscription_of().is_some() {
        return None;
    }
    let host = VirtualHost::of(name.as_str());
    Some(QueueDefinition {
        name: host.shown(name.as_str()).into_owned(),
        vhost: Some(host.name().to_owned()),
        durable: !facts.spec.transient,
        auto_delete: facts.spec.auto_delete,
        arguments: to_json(shown_arguments(&facts.spec).as_table()),
    })
}

/// RabbitMQ's name of an exchange type; `None` for topics that AMQP 0-9-1 does not have.
pub(super) fn exchange_type(kind: TopicKind) -> Option<&'static str> {
    match kind {
        TopicKind::Direct => Some("direct"),
        TopicKind::Fanout => Some("fanout"),
        TopicKind::Topic => Some("topic"),
        TopicKind::Headers => Some("headers"),
        TopicKind::Hash => Some("x-consistent-hash"),
        TopicKind::Filter | TopicKind::Queue => None,
    }
}

/// An exchange as a definition. Predeclared ones need none.
pub(super) fn exchange_definition(facts: &TopicFacts) -> Option<ExchangeDefinition> {
    let host = VirtualHost::of(facts.name.as_str());
    let name = host.shown(facts.name.as_str()).into_owned();
    let spec = declared_alternate(&host, facts);
    if name.starts_with(crate::ops::queue_declare::RESERVED) {
        return None;
    }
    let mut arguments = Map::new();
    if let Some(alternate) = &spec.alternate {
        let alternate = host.shown_exchange(alternate.as_str()).into_owned();
        arguments.insert("alternate-exchange".into(), alternate.into());
    }
    match &spec.hash_on {
        HashOn::Key => None,
        HashOn::MessageId => arguments.insert("hash-property".into(), "message_id".into()),
        HashOn::CorrelationId => arguments.insert("hash-property".into(), "correlation_id".into()),
        HashOn::Property(name) => arguments.insert("hash-header".into(), name.as_str().into()),
    };
    Some(ExchangeDefinition {
        name,
        vhost: Some(host.name().to_owned()),
        kind: exchange_type(spec.kind)?.to_owned(),
        durable: !spec.transient,
        auto_delete: spec.auto_delete,
        internal: spec.internal,
        arguments,
    })
}

/// A binding as a definition.
pub(super) fn binding_definition(
    source: &TopicFacts,
    binding: &Binding,
) -> Option<BindingDefinition> {
    exchange_type(source.spec.kind)?;
    let host = VirtualHost::of(source.name.as_str());
    let (destination_type, destination) = match &binding.target {
        Address::Queue(queue) => (DestinationKind::Queue, queue.as_str()),
        Address::Topic(topic) => (DestinationKind::Exchange, topic.as_str()),
    };
    let (routing_key, arguments) = binding_parts(&binding.rule);
    Some(BindingDefinition {
        source: host.shown(source.name.as_str()).into_owned(),
        vhost: Some(host.name().to_owned()),
        destination: host.shown(destination).into_owned(),
        destination_type,
        routing_key,
        arguments: to_json(arguments.as_table()),
    })
}
