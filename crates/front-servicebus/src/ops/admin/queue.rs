//! Queues.

use axum::response::Response;
use malote_engine::QueueFacts;
use malote_model::{OnExpiry, QueueName, QueueSpec, Timestamp, limits};

use super::atom::{self, AtomEntry, time};
use super::description::{
    DescriptionReader, DescriptionWriter, WINDOW, shown_failed_max, touch, updated_at,
};
use super::error::{AdminAction, AdminError, AdminResult};
use super::{AdminCall, QueueOrTopic, forward};
use crate::entity;
use crate::wire::xml::Element;

/// Properties that Malote implements.
const KNOWN: &[&str] = &[
    "LockDuration",
    "RequiresDuplicateDetection",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    WINDOW,
    "MaxDeliveryCount",
    "AutoDeleteOnIdle",
    "Status",
    "ForwardTo",
    "ForwardDeadLetteredMessagesTo",
    "MaxMessageSizeInKilobytes",
];

pub(super) async fn put(
    call: &AdminCall<'_>,
    name: &str,
    element: &Element,
) -> AdminResult<AtomEntry> {
    let engine = &call.admin.front.engine;
    let name = match call.find(AdminAction::Write, name).await? {
        None if call.update => return Err(AdminError::not_found(name)),
        Some(QueueOrTopic::Topic(_)) if call.update => return Err(AdminError::not_found(name)),
        Some(QueueOrTopic::Queue(facts)) if call.update => {
            let QueueFacts { name, mut spec, .. } = *facts;
            change(call, &DescriptionReader::new(element, false), &mut spec).await?;
            touch(&mut spec.labels, call.now());
            engine.update(name.clone(), spec).await?;
            name
        }
        Some(_) => return Err(AdminError::exists(name)),
        None => {
            call.check_name_is_free(name).await?;
            let queue = QueueName::new(name)?;
            let mut spec = entity::queue_spec();
            change(call, &DescriptionReader::new(element, true), &mut spec).await?;
            if !engine.declare(queue.clone(), spec).await? {
                return Err(AdminError::exists(name));
            }
            queue
        }
    };
    Ok(entry(call, &engine.describe(name).await?))
}

async fn change(
    call: &AdminCall<'_>,
    reader: &DescriptionReader<'_>,
    spec: &mut QueueSpec,
) -> AdminResult<()> {
    const SIZE: &str = "MaxMessageSizeInKilobytes";
    reader.change_spec(spec)?;
    spec.ttl_ms = reader.ttl(spec.ttl_ms)?;
    spec.dedup = reader.dedup(spec.dedup, &mut spec.labels)?;
    if let Some(kilobytes) = reader.number(SIZE)?.filter(|kb| *kb != kilobytes(spec)) {
        let most = limits::MESSAGE_BYTES_MAX >> 10;
        if !(1..=most).contains(&kilobytes) {
            let must = format!("from 1 to {most}");
            return Err(AdminError::property(SIZE, &kilobytes.to_string(), &must));
        }
        spec.message_bytes_max = kilobytes << 10;
    }
    forward::change(call, reader, spec).await?;
    reader.keep(KNOWN, &mut spec.labels)
}

fn kilobytes(spec: &QueueSpec) -> u64 {
    spec.message_bytes_max.div_ceil(1024)
}

pub(super) async fn list(call: &AdminCall<'_>) -> AdminResult<Response> {
    let mut all = call.admin.front.engine.list().await?;
    all.retain(|facts| facts.name.subscription_of().is_none());
    let manageable = call.manageable(&all, |facts| (&facts.name).into());
    let (page, more) = call.page.cut(manageable);
    let entries = page.into_iter().map(|facts| entry(call, facts)).collect();
    let now = call.now();
    Ok(atom::feed(&call.base_url, "$Resources/Queues", "Queues", now, call.page, (entries, more)))
}

pub(super) fn entry(call: &AdminCall<'_>, facts: &QueueFacts) -> AtomEntry {
    let spec = &facts.spec;
    let mut t = DescriptionWriter::new(&spec.labels);
    t.span("LockDuration", Some(spec.lock_ms));
    t.kept("MaxSizeInMegabytes", "1024");
    t.value("RequiresDuplicateDetection", spec.dedup.is_some());
    t.value("RequiresSession", spec.sessions.required());
    t.span("DefaultMessageTimeToLive", spec.ttl_ms);
    t.value("DeadLetteringOnMessageExpiration", spec.on_expiry == OnExpiry::DeadLetter);
    t.window(spec.dedup);
    t.value("MaxDeliveryCount", shown_failed_max(spec));
    t.kept("EnableBatchedOperations", "true");
    t.value("SizeInBytes", facts.bytes);
    t.value("MessageCount", messages(facts));
    t.value("IsAnonymousAccessible", false);
    t.kept("AuthorizationRules", "");
    t.text("Status", entity::status_word(spec.status));
    write_times(call, facts, &mut t);
    t.kept("SupportOrdering", "true");
    write_counts(facts, &mut t);
    t.span("AutoDeleteOnIdle", spec.idle_ms_max);
    t.kept("EnablePartitioning", "false");
    t.text("EntityAvailabilityStatus", "Available");
    t.kept("EnableExpress", "false");
    forward::write(&call.base_url, spec, &mut t);
    t.value("MaxMessageSizeInKilobytes", kilobytes(spec));
    let name = facts.name.as_str().to_owned();
    AtomEntry {
        path: name.clone(),
        title: name,
        created_at: facts.created_at,
        updated_at: updated_at(&spec.labels).unwrap_or(facts.created_at),
        kind: "QueueDescription",
        description: t.done(),
    }
}

/// As in the service, locked and deferred messages count as active.
fn active(facts: &QueueFacts) -> u64 {
    facts.ready + facts.locked + facts.deferred
}

pub(super) fn messages(facts: &QueueFacts) -> u64 {
    active(facts) + facts.delayed + facts.scheduled + facts.dead_lettered
}

pub(super) fn write_counts(facts: &QueueFacts, t: &mut DescriptionWriter<'_>) {
    t.counts(active(facts), facts.dead_lettered, facts.delayed + facts.scheduled);
}

/// The time of the last access is not stored: a queue that was ever used counts as being used now.
pub(super) fn write_times(call: &AdminCall<'_>, facts: &QueueFacts, t: &mut DescriptionWriter<'_>) {
    let updated = updated_at(&facts.spec.labels).unwrap_or(facts.created_at);
    let totals = &facts.totals;
    let used = totals.sent + totals.delivered > 0 || facts.consumers > 0;
    let accessed: Timestamp = if used { call.now() } else { facts.created_at };
    t.text("CreatedAt", &time(facts.created_at));
    t.text("UpdatedAt", &time(updated));
    t.text("AccessedAt", &time(accessed));
}
