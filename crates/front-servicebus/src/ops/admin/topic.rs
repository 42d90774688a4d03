//! Topics. What they keep stands in their labels; how long messages live is told to their subscriptions.

use axum::response::Response;
use malote_engine::{QueueFacts, TopicFacts};
use malote_model::{TopicName, TopicSpec};

use super::atom::{self, Entry, time};
use super::description::{Given, Labels, Telling, WINDOW, label, touch, updated_at};
use super::error::{AdminError, Answer, Wish};
use super::{Call, Found, subscription};
use crate::entity;
use crate::wire::duration::{format_ms, parse_ms};
use crate::wire::xml::Element;

const KNOWN: &[&str] = &["RequiresDuplicateDetection", WINDOW, TTL, "Status"];
const TTL: &str = "DefaultMessageTimeToLive";

/// How long messages of this topic live at most.
pub(super) fn ttl_ms(labels: &Labels) -> Option<u64> {
    labels.get(&label(TTL)).and_then(|text| parse_ms(text)).flatten()
}

pub(super) async fn put(call: &Call<'_>, name: &str, element: &Element) -> Answer<Entry> {
    let engine = &call.admin.front.engine;
    let name = match call.find(Wish::Write, name).await? {
        None if call.update => return Err(AdminError::not_found(name)),
        Some(Found::Queue(_)) if call.update => return Err(AdminError::not_found(name)),
        Some(Found::Topic(facts)) if call.update => {
            let TopicFacts { name, spec, mut labels, .. } = *facts;
            let given = Given::new(element, false);
            let changed = change(&given, &spec, &mut labels)?;
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
            call.check_free(name).await?;
            let topic = TopicName::new(name)?;
            let mut labels = Labels::new();
            let spec = change(&Given::new(element, true), &TopicSpec::default(), &mut labels)?;
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

fn change(given: &Given<'_>, spec: &TopicSpec, labels: &mut Labels) -> Answer<TopicSpec> {
    let (dedup, status) = (given.dedup(spec.dedup, labels)?, given.status(spec.status)?);
    let spec = TopicSpec { dedup, status, ..spec.clone() };
    match given.ttl(ttl_ms(labels))? {
        Some(ms) => labels.insert(label(TTL), format_ms(Some(ms))),
        None => labels.remove(&label(TTL)),
    };
    given.keep(KNOWN, labels)?;
    Ok(spec)
}

pub(super) async fn list(call: &Call<'_>) -> Answer<Response> {
    let engine = &call.admin.front.engine;
    let all = engine.topics().await?;
    let mine = call.mine(&all, |facts| (&facts.name).into());
    let (page, more) = call.page.cut(mine);
    let queues = if page.is_empty() { Vec::new() } else { engine.list().await? };
    let entries = page.into_iter().map(|facts| told(call, facts, &queues)).collect();
    let now = call.now();
    Ok(atom::feed(&call.place, "$Resources/Topics", "Topics", now, call.page, (entries, more)))
}

pub(super) async fn entry(call: &Call<'_>, facts: &TopicFacts) -> Answer<Entry> {
    let queues = call.admin.front.engine.list().await?;
    Ok(told(call, facts, &queues))
}

/// Those of its subscriptions, in order of their names.
pub(super) fn subscriptions<'a>(
    name: &TopicName,
    queues: &'a [QueueFacts],
) -> impl Iterator<Item = &'a QueueFacts> {
    let name = name.clone();
    // Names stand in order: those that begin alike stand together.
    let from = queues.partition_point(|facts| facts.name.as_str() < name.as_str());
    let prefix = name.clone();
    let near = queues[from..]
        .iter()
        .take_while(move |facts| facts.name.as_str().starts_with(prefix.as_str()));
    near.filter(move |facts| facts.name.subscription_of().is_some_and(|(of, _)| of == name))
}

fn told(call: &Call<'_>, facts: &TopicFacts, queues: &[QueueFacts]) -> Entry {
    let TopicFacts { name, spec, labels, .. } = facts;
    // Its own are those that are scheduled.
    let (mut count, mut bytes) = (0_u64, facts.bytes);
    for subscription in subscriptions(name, queues) {
        count += 1;
        bytes += subscription.bytes;
    }
    let updated_at = updated_at(labels).unwrap_or(facts.created_at);
    let used = facts.totals.copies > 0 || facts.scheduled > 0;
    let accessed = if used { call.now() } else { facts.created_at };
    let mut t = Telling::new(labels);
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
    // A filter that takes everything, or nothing, is one of SQL.
    t.value("SqlFilterCount", facts.rules - facts.correlations);
    t.value("CorrelationFilterCount", facts.correlations);
    t.kept("AutoDeleteOnIdle", &format_ms(None));
    t.kept("EnablePartitioning", "false");
    t.text("EntityAvailabilityStatus", "Available");
    t.kept("EnableSubscriptionPartitioning", "false");
    t.kept("EnableExpress", "false");
    t.kept("MaxMessageSizeInKilobytes", "1024");
    Entry {
        path: name.as_str().to_owned(),
        title: name.as_str().to_owned(),
        created_at: facts.created_at,
        updated_at,
        kind: "TopicDescription",
        description: t.done(),
    }
}
