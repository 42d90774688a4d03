//! Subscriptions: queues that a topic copies its messages to.

use axum::response::Response;
use malote_engine::{QueueFacts, TopicFacts};
use malote_model::{Action, OnExpiry, QueueName, QueueSpec, Resource, TopicName};

use super::atom::{self, Entry};
use super::description::{Given, Labels, Telling, label, shown_failed_max, touch, updated_at};
use super::error::{AdminError, Answer, Wish};
use super::queue::{messages, tell_counts, tell_times};
use super::{Call, Found, forward, none_if_missing, rule, topic};
use crate::entity;
use crate::wire::duration::{format_ms, parse_ms};
use crate::wire::xml::Element;

const TTL: &str = "DefaultMessageTimeToLive";
/// Properties that mean something here.
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

/// A subscription by its name; in another case if there is only one.
pub(super) async fn find(
    call: &Call<'_>,
    wish: Wish,
    topic: &str,
    name: &str,
) -> Answer<Option<Box<QueueFacts>>> {
    // A name that cannot be is not there.
    let named = TopicName::new(topic).and_then(|topic| QueueName::subscription(&topic, name));
    let Ok(queue) = named else { return Ok(None) };
    match call.find(wish, queue.as_str()).await? {
        Some(Found::Queue(facts)) => Ok(Some(facts)),
        _ => Ok(None),
    }
}

pub(super) async fn get(call: &Call<'_>, topic: &str, name: &str) -> Answer<Entry> {
    let found = find(call, Wish::Below("GetSubscription"), topic, name).await?;
    let found = found.ok_or_else(|| missing(topic, name))?;
    Ok(entry(call, &found))
}

/// What is said of a subscription that is not there.
pub(super) fn missing(topic: &str, name: &str) -> AdminError {
    AdminError::not_found(format_args!("{topic}/Subscriptions/{name}"))
}

/// The topic under which the caller may manage a subscription of this name.
async fn topic_of(call: &Call<'_>, wish: Wish, topic: &str, name: &str) -> Answer<TopicFacts> {
    let access = &call.admin.front.access;
    let may = |on: Resource<'_>| {
        let topic = on.name().and_then(|topic| TopicName::new(topic).ok());
        let queue = topic.and_then(|topic| QueueName::subscription(&topic, name).ok());
        // A name that cannot be is refused before this.
        let on = queue.as_ref().map_or(on, Resource::from);
        access.check(&call.who, Action::Manage, on)
    };
    match call.find_if(wish, topic, may).await? {
        Some(Found::Topic(facts)) => Ok(*facts),
        _ => Err(AdminError::not_found(topic)),
    }
}

pub(super) async fn put(
    call: &Call<'_>,
    topic: &str,
    name: &str,
    element: &Element,
) -> Answer<Entry> {
    let engine = &call.admin.front.engine;
    QueueName::subscription(&TopicName::new(topic)?, name)?;
    let wish = Wish::Below("CreateOrUpdateSubscription");
    let topic = topic_of(call, wish, topic, name).await?;
    call.found(QueueName::subscription(&topic.name, name)?.as_str());
    let ttl_ms = topic::ttl_ms(&topic.labels);
    let queue = match find(call, wish, topic.name.as_str(), name).await? {
        None if call.update => return Err(AdminError::not_found(name)),
        Some(facts) if call.update => {
            let QueueFacts { name, mut spec, .. } = *facts;
            change(call, &Given::new(element, false), &mut spec, ttl_ms).await?;
            touch(&mut spec.labels, call.now());
            engine.update(name.clone(), spec).await?;
            name
        }
        Some(_) => return Err(AdminError::exists(name)),
        None => {
            let queue = QueueName::subscription(&topic.name, name)?;
            let mut spec = entity::queue_spec();
            change(call, &Given::new(element, true), &mut spec, ttl_ms).await?;
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
    call: &Call<'_>,
    given: &Given<'_>,
    spec: &mut QueueSpec,
    topic_ttl_ms: Option<u64>,
) -> Answer<()> {
    given.change_spec(spec)?;
    let own = given.ttl(own_ttl_ms(spec))?;
    set_ttl(spec, own, topic_ttl_ms);
    forward::change(call, given, spec).await?;
    given.keep(KNOWN, &mut spec.labels)
}

/// How long its messages would live if its topic said nothing.
fn own_ttl_ms(spec: &QueueSpec) -> Option<u64> {
    match spec.labels.get(&label(TTL)).and_then(|text| parse_ms(text)) {
        Some(own) => own,
        None => spec.ttl_ms,
    }
}

/// The shorter counts. What it has itself is kept where the topic's is shorter.
fn set_ttl(spec: &mut QueueSpec, own: Option<u64>, of_topic: Option<u64>) {
    spec.ttl_ms = [own, of_topic].into_iter().flatten().min();
    match spec.ttl_ms == own {
        true => spec.labels.remove(&label(TTL)),
        false => spec.labels.insert(label(TTL), format_ms(own)),
    };
}

/// Messages of a topic live no longer than it says, in whichever subscription.
pub(super) async fn inherit(call: &Call<'_>, topic: &TopicName, ttl_ms: Option<u64>) -> Answer<()> {
    let engine = &call.admin.front.engine;
    let queues = engine.list().await?;
    for facts in topic::subscriptions(topic, &queues) {
        let mut spec = facts.spec.clone();
        let own = own_ttl_ms(&spec);
        set_ttl(&mut spec, own, ttl_ms);
        if spec != facts.spec {
            match engine.update(facts.name.clone(), spec).await {
                Ok(()) => {}
                // It went meanwhile.
                Err(error) => drop(none_if_missing::<()>(error)?),
            }
        }
    }
    Ok(())
}

pub(super) async fn list(call: &Call<'_>, topic: &str) -> Answer<Response> {
    let topic = match call.find(Wish::Below("EnumerateSubscriptions"), topic).await? {
        Some(Found::Topic(facts)) => *facts,
        _ => return Err(AdminError::not_found(topic)),
    };
    let queues = call.admin.front.engine.list().await?;
    let (page, more) = call.page.cut(topic::subscriptions(&topic.name, &queues));
    let entries = page.into_iter().map(|facts| entry(call, facts)).collect();
    let path = format!("{}/Subscriptions", topic.name);
    Ok(atom::feed(&call.place, &path, "Subscriptions", call.now(), call.page, (entries, more)))
}

fn entry(call: &Call<'_>, facts: &QueueFacts) -> Entry {
    let spec = &facts.spec;
    let labels: &Labels = &spec.labels;
    let mut t = Telling::new(labels);
    t.span("LockDuration", Some(spec.lock_ms));
    t.value("RequiresSession", spec.sessions.required());
    t.span(TTL, own_ttl_ms(spec));
    t.value("DeadLetteringOnMessageExpiration", spec.on_expiry == OnExpiry::DeadLetter);
    t.kept("DeadLetteringOnFilterEvaluationExceptions", "true");
    t.value("MessageCount", messages(facts));
    t.value("MaxDeliveryCount", shown_failed_max(spec));
    t.kept("EnableBatchedOperations", "true");
    t.text("Status", entity::status_word(spec.status));
    tell_times(call, facts, &mut t);
    tell_counts(facts, &mut t);
    forward::tell(&call.place, spec, &mut t);
    t.span("AutoDeleteOnIdle", spec.idle_ms_max);
    t.text("EntityAvailabilityStatus", "Available");
    let title = facts.name.subscription_of().map_or(facts.name.as_str(), |(_, name)| name);
    Entry {
        path: facts.name.as_str().to_owned(),
        title: title.to_owned(),
        created_at: facts.created_at,
        updated_at: updated_at(labels).unwrap_or(facts.created_at),
        kind: "SubscriptionDescription",
        description: t.done(),
    }
}
