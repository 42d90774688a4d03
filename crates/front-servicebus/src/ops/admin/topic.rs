//! Topics. Properties are stored as labels; the time-to-live is applied to the subscriptions.

use axum::response::Response;
use malote_engine::{QueueFacts, TopicFacts};
use malote_model::{TopicName, TopicSpec};

use super::atom::{self, AtomEntry, time};
use super::description::{
    DescriptionReader, DescriptionWriter, Labels, WINDOW, label, touch, updated_at,
};
use super::error::{AdminAction, AdminError, AdminResult};
use super::{AdminCall, QueueOrTopic, subscription};
use crate::entity;
use crate::wire::duration::{format_ms, parse_ms};
use crate::wire::xml::Element;

const KNOWN: &[&str] = &["RequiresDuplicateDetection", WINDOW, TTL, "Status"];
const TTL: &str = "DefaultMessageTimeToLive";

/// Time-to-live of the topic's messages.
pub(super) fn ttl_ms(labels: &Labels) -> Option<u64> {
    labels.get(&label(TTL)).and_then(|text| parse_ms(text)).flatten()
}

pub(super) async fn put(
    call: &AdminCall<'_>,
    name: &str,
    element: &Element,
) -> AdminResult<AtomEntry> {
    let engine = &call.admin.front.engine;
    let name = match call.find(AdminAction::Write, name).await? {
        None if call.update => return Err(AdminError::not_found(name)),
        Some(QueueOrTopic::Queue(_)) if call.update => return Err(AdminError::not_found(name)),
        Some(QueueOrTopic::Topic(facts)) if call.update => {
            let TopicFacts { name, spec, mut labels, .. } = *facts;
            let reader = DescriptionReader::new(element, false);
            let changed = change(&reader, &spec, &mut labels)?;
            if changed != spec {
                engine.update_topic(name.clone(), changed).await?;
            }
            touch(&mut labels, call.now());
            let ttl_ms = ttl_ms(&labels);
            engine.label_topic(name.clone(), labels).await?;
            subscription::inherit(call, &name, ttl_ms).await?;
            name
        }
        Some(_) => return Err(AdminError::exists(name)),
        None => {
            call.check_name_is_free(name).await?;
            let topic = TopicName::new(name)?;
            let mut labels = Labels::new();
            let spec =
                change(&DescriptionReader::new(element, true), &TopicSpec::default(), &mut labels)?;
            if !engine.declare_topic(topic.clone(), spec).await? {
                return Err(AdminError::exists(name));
            }
            if !labels.is_empty() {
                engine.label_topic(topic.clone(), labels).await?;
            }
            topic
        }
    };
    entry(call, &engine.topic(name).await?).await
}

fn change(
    reader: &DescriptionReader<'_>,
    spec: &TopicSpec,
    labels: &mut Labels,
) -> AdminResult<TopicSpec> {
    let (dedup, status) = (reader.dedup(spec.dedup, labels)?, reader.status(spec.status)?);
    let spec = TopicSpec { dedup, status, ..spec.clone() };
    match reader.ttl(ttl_ms(labels))? {
        Some(ms) => labels.insert(label(TTL), format_ms(Some(ms))),
        None => labels.remove(&label(TTL)),
    };
    reader.keep(KNOWN, labels)?;
    Ok(spec)
}

pub(super) async fn list(call: &AdminCall<'_>) -> AdminResult<Response> {
    let engine = &call.admin.front.engine;
    let all = engine.topics().await?;
    let manageable = call.manageable(&all, |facts| (&facts.name).into());
    let (page, more) = call.page.cut(manageable);
    let queues = if page.is_empty() { Vec::new() } else { engine.list().await? };
    let entries = page.into_iter().map(|facts| build_entry(call, facts, &queues)).collect();
    let now = call.now();
    Ok(atom::feed(&call.base_url, "$Resources/Topics", "Topics", now, call.page, (entries, more)))
}

pub(super) async fn entry(call: &AdminCall<'_>, facts: &TopicFacts) -> AdminResult<AtomEntry> {
    let queues = call.admin.front.engine.list().await?;
    Ok(build_entry(call, facts, &queues))
}

/// Subscriptions of a topic, in order of their names.
pub(super) fn subscriptions<'a>(
    name: &TopicName,
    queues: &'a [QueueFacts],
) -> impl Iterator<Item = &'a QueueFacts> {
    let name = name.clone();
    // The list is sorted, so names with the same prefix are adjacent.
    let from = queues.partition_point(|facts| facts.name.as_str() < name.as_str());
    let prefix = name.clone();
    let near = queues[from..]
        .iter()
        .take_while(move |facts| facts.name.as_str().starts_with(prefix.as_str()));
    near.filter(move |facts| facts.name.subscription_of().is_some_and(|(of, _)| of == name))
}

fn build_entry(call: &AdminCall<'_>, facts: &TopicFacts, queues: &[QueueFacts]) -> AtomEntry {
    let TopicFacts { name, spec, labels, .. } = facts;
    // `facts.bytes` are those of scheduled messages.
    let (mut count, mut bytes) = (0_u64, facts.bytes);
    for subscription in subscriptions(name, queues) {
        count += 1;
        bytes += subscription.bytes;
    }
    let updated_at = updated_at(labels).unwrap_or(facts.created_at);
    let used = facts.totals.copies > 0 || facts.scheduled > 0;
    let accessed = if used { call.now() } else { facts.created_at };
    let mut t = DescriptionWriter::new(labels);
    t.kept(TTL, &format_ms(None));
    t.kept("MaxSizeInMegabytes", "1024");
    t.value("RequiresDuplicateDetection", spec.dedup.is_some());
    t.window(spec.dedup);
    t.kept("EnableBatchedOperations", "true");
    t.value("SizeInBytes", bytes);
    t.kept("FilteringMessagesBeforePublishing", "false");
    t.value("IsAnonymousAccessible", false);
    t.kept("AuthorizationRules", "");
    t.text("Status", entity::status_word(spec.status));
    t.text("CreatedAt", &time(facts.created_at));
    t.text("UpdatedAt", &time(updated_at));
    t.text("AccessedAt", &time(accessed));
    t.kept("SupportOrdering", "true");
    t.counts(facts.waiting, 0, facts.scheduled);
    t.value("SubscriptionCount", count);
    // Filters that match everything or nothing count as SQL filters.
    t.value("SqlFilterCount", facts.rules - facts.correlations);
    t.value("CorrelationFilterCount", facts.correlations);
    t.kept("AutoDeleteOnIdle", &format_ms(None));
    t.kept("EnablePartitioning", "false");
    t.text("EntityAvailabilityStatus", "Available");
    t.kept("EnableSubscriptionPartitioning", "false");
    t.kept("EnableExpress", "false");
    t.kept("MaxMessageSizeInKilobytes", "1024");
    AtomEntry {
        path: name.as_str().to_owned(),
        title: name.as_str().to_owned(),
        created_at: facts.created_at,
        updated_at,
        kind: "TopicDescription",
        description: t.done(),
    }
}
