//! Subscriptions: queues that get a copy of each matching message of a topic.

use axum::response::Response;
use malote_engine::{QueueFacts, TopicFacts};
use malote_model::{Action, OnExpiry, QueueName, QueueSpec, Resource, TopicName};

use super::atom::{self, AtomEntry};
use super::description::{
    DescriptionReader, DescriptionWriter, Labels, label, shown_failed_max, touch, updated_at,
};
use super::error::{AdminAction, AdminError, AdminResult};
use super::queue::{messages, write_counts, write_times};
use super::{AdminCall, QueueOrTopic, forward, none_if_missing, rule, topic};
use crate::entity;
use crate::wire::duration::{format_ms, parse_ms};
use crate::wire::xml::Element;

const TTL: &str = "DefaultMessageTimeToLive";
/// Properties that Malote implements.
const KNOWN: &[&str] = &[
    "LockDuration",
    "RequiresSession",
    TTL,
    "DeadLetteringOnMessageExpiration",
    "MaxDeliveryCount",
    "AutoDeleteOnIdle",
    "Status",
    "ForwardTo",
    "ForwardDeadLetteredMessagesTo",
    "DefaultRuleDescription",
];

/// Finds a subscription by name; case-insensitive if the name is unambiguous.
pub(super) async fn find(
    call: &AdminCall<'_>,
    action: AdminAction,
    topic: &str,
    name: &str,
) -> AdminResult<Option<Box<QueueFacts>>> {
    // An invalid name cannot exist.
    let named = TopicName::new(topic).and_then(|topic| QueueName::subscription(&topic, name));
    let Ok(queue) = named else { return Ok(None) };
    match call.find(action, queue.as_str()).await? {
        Some(QueueOrTopic::Queue(facts)) => Ok(Some(facts)),
        _ => Ok(None),
    }
}

pub(super) async fn get(call: &AdminCall<'_>, topic: &str, name: &str) -> AdminResult<AtomEntry> {
    let found = find(call, AdminAction::Below("GetSubscription"), topic, name).await?;
    let found = found.ok_or_else(|| missing(topic, name))?;
    Ok(entry(call, &found))
}

pub(super) fn missing(topic: &str, name: &str) -> AdminError {
    AdminError::not_found(format_args!("{topic}/Subscriptions/{name}"))
}

/// The topic, if the caller may manage a subscription of this name.
async fn topic_of(
    call: &AdminCall<'_>,
    action: AdminAction,
    topic: &str,
    name: &str,
) -> AdminResult<TopicFacts> {
    let access = &call.admin.front.access;
    let may = |on: Resource<'_>| {
        let topic = on.name().and_then(|topic| TopicName::new(topic).ok());
        let queue = topic.and_then(|topic| QueueName::subscription(&topic, name).ok());
        // Invalid names were refused before.
        let on = queue.as_ref().map_or(on, Resource::from);
        access.check(&call.who, Action::Manage, on)
    };
    match call.find_if(action, topic, may).await? {
        Some(QueueOrTopic::Topic(facts)) => Ok(*facts),
        _ => Err(AdminError::not_found(topic)),
    }
}

pub(super) async fn put(
    call: &AdminCall<'_>,
    topic: &str,
    name: &str,
    element: &Element,
) -> AdminResult<AtomEntry> {
    let engine = &call.admin.front.engine;
    QueueName::subscription(&TopicName::new(topic)?, name)?;
    let action = AdminAction::Below("CreateOrUpdateSubscription");
    let topic = topic_of(call, action, topic, name).await?;
    call.found(QueueName::subscription(&topic.name, name)?.as_str());
    let ttl_ms = topic::ttl_ms(&topic.labels);
    let queue = match find(call, action, topic.name.as_str(), name).await? {
        None if call.update => return Err(AdminError::not_found(name)),
        Some(facts) if call.update => {
            let QueueFacts { name, mut spec, .. } = *facts;
            change(call, &DescriptionReader::new(element, false), &mut spec, ttl_ms).await?;
            touch(&mut spec.labels, call.now());
            engine.update(name.clone(), spec).await?;
            name
        }
        Some(_) => return Err(AdminError::exists(name)),
        None => {
            let queue = QueueName::subscription(&topic.name, name)?;
            let mut spec = entity::queue_spec();
            change(call, &DescriptionReader::new(element, true), &mut spec, ttl_ms).await?;
            let rules = element.child("DefaultRuleDescription").map(rule::read).transpose()?;
            let rules = rules.map(|rule| vec![rule]);
            if !engine.subscribe(queue.clone(), spec, rules).await? {
                return Err(AdminError::exists(name));
            }
            queue
        }
    };
    Ok(entry(call, &engine.describe(queue).await?))
}

async fn change(
    call: &AdminCall<'_>,
    reader: &DescriptionReader<'_>,
    spec: &mut QueueSpec,
    topic_ttl_ms: Option<u64>,
) -> AdminResult<()> {
    reader.change_spec(spec)?;
    let own = reader.ttl(own_ttl_ms(spec))?;
    set_ttl(spec, own, topic_ttl_ms);
    forward::change(call, reader, spec).await?;
    reader.keep(KNOWN, &mut spec.labels)
}

/// The subscription's own time-to-live, without that of its topic.
fn own_ttl_ms(spec: &QueueSpec) -> Option<u64> {
    match spec.labels.get(&label(TTL)).and_then(|text| parse_ms(text)) {
        Some(own) => own,
        None => spec.ttl_ms,
    }
}

/// Sets the shorter time-to-live. If the topic's is shorter, the subscription's own is stored as a label.
fn set_ttl(spec: &mut QueueSpec, own: Option<u64>, of_topic: Option<u64>) {
    spec.ttl_ms = [own, of_topic].into_iter().flatten().min();
    match spec.ttl_ms == own {
        true => spec.labels.remove(&label(TTL)),
        false => spec.labels.insert(label(TTL), format_ms(own)),
    };
}

/// Applies the topic's time-to-live to all its subscriptions.
pub(super) async fn inherit(
    call: &AdminCall<'_>,
    topic: &TopicName,
    ttl_ms: Option<u64>,
) -> AdminResult<()> {
    let engine = &call.admin.front.engine;
    let queues = engine.list().await?;
    for facts in topic::subscriptions(topic, &queues) {
        let mut spec = facts.spec.clone();
        let own = own_ttl_ms(&spec);
        set_ttl(&mut spec, own, ttl_ms);
        if spec != facts.spec {
            match engine.update(facts.name.clone(), spec).await {
                Ok(()) => {}
                // It was deleted in the meantime.
                Err(error) => drop(none_if_missing::<()>(error)?),
            }
        }
    }
    Ok(())
}

pub(super) async fn list(call: &AdminCall<'_>, topic: &str) -> AdminResult<Response> {
    let topic = match call.find(AdminAction::Below("EnumerateSubscriptions"), topic).await? {
        Some(QueueOrTopic::Topic(facts)) => *facts,
        _ => return Err(AdminError::not_found(topic)),
    };
    let queues = call.admin.front.engine.list().await?;
    let (page, more) = call.page.cut(topic::subscriptions(&topic.name, &queues));
    let entries = page.into_iter().map(|facts| entry(call, facts)).collect();
    let path = format!("{}/Subscriptions", topic.name);
    Ok(atom::feed(&call.base_url, &path, "Subscriptions", call.now(), call.page, (entries, more)))
}

fn entry(call: &AdminCall<'_>, facts: &QueueFacts) -> AtomEntry {
    let spec = &facts.spec;
    let labels: &Labels = &spec.labels;
    let mut t = DescriptionWriter::new(labels);
    t.span("LockDuration", Some(spec.lock_ms));
    t.value("RequiresSession", spec.sessions.required());
    t.span(TTL, own_ttl_ms(spec));
    t.value("DeadLetteringOnMessageExpiration", spec.on_expiry == OnExpiry::DeadLetter);
    t.kept("DeadLetteringOnFilterEvaluationExceptions", "true");
    t.value("MessageCount", messages(facts));
    t.value("MaxDeliveryCount", shown_failed_max(spec));
    t.kept("EnableBatchedOperations", "true");
    t.text("Status", entity::status_word(spec.status));
    write_times(call, facts, &mut t);
    write_counts(facts, &mut t);
    forward::write(&call.base_url, spec, &mut t);
    t.span("AutoDeleteOnIdle", spec.idle_ms_max);
    t.text("EntityAvailabilityStatus", "Available");
    let title = facts.name.subscription_of().map_or(facts.name.as_str(), |(_, name)| name);
    AtomEntry {
        path: facts.name.as_str().to_owned(),
        title: title.to_owned(),
        created_at: facts.created_at,
        updated_at: updated_at(labels).unwrap_or(facts.created_at),
        kind: "SubscriptionDescription",
        description: t.done(),
    }
}
