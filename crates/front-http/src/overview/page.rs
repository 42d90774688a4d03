//! An overview for one caller: sums over the queues that it may see, and a sorted page of them.

use std::cmp::{Ordering, Reverse};

use malote_model::{Action, Principal, Status};
use malote_wire_native::overview::{Overview, OverviewQuery, OverviewRow, QueueRates, SortWord};
use malote_wire_native::queue::QueueCounts;

use super::attention::Attention;
use super::{Snapshot, WatchedQueue};
use crate::{Api, convert};

/// Queues of a page by default.
pub(crate) const PAGE_DEFAULT: usize = 100;
/// Queues of a page at most: about 250 KB.
pub(crate) const PAGE_MAX: usize = 500;

/// Builds the overview.
pub(crate) fn build(
    api: &Api,
    caller: &Principal,
    snapshot: &Snapshot,
    query: &OverviewQuery,
) -> Overview {
    let sees_all = api.allow_everywhere(caller, Action::Manage).is_ok();
    let visible: Vec<&WatchedQueue> = snapshot
        .queues
        .iter()
        .filter(|queue| sees_all || api.allow_view(caller, &queue.name).is_ok())
        .collect();
    let disk = api.engine.disk();
    let mut counts = QueueCounts::default();
    let mut rates = QueueRates::default();
    let mut attention = Attention::of_disk(&disk);
    for queue in &visible {
        add_counts(&mut counts, &queue.counts);
        add_rates(&mut rates, &queue.rates);
        attention.look_at(queue, snapshot.at);
    }
    let mut found: Vec<&WatchedQueue> =
        visible.iter().copied().filter(|queue| is_wanted(query, queue.name.as_str())).collect();
    let matched = found.len() as u64;
    let order = query.sort.unwrap_or_default();
    let descending = query.descending.unwrap_or(false);
    found.sort_by(|a, b| {
        let by = compare(order, a, b);
        let by = if descending { by.reverse() } else { by };
        by.then_with(|| a.name.cmp(&b.name))
    });
    let page = found.into_iter().skip(query.offset.unwrap_or(0));
    let rows = page.take(query.max.unwrap_or(PAGE_DEFAULT).min(PAGE_MAX)).map(row).collect();
    let (attention, attention_more) = attention.finish();
    let connections = api.metrics.open_connections();
    Overview {
        at: snapshot.at.0,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        open: caller.is_anonymous(),
        caller: (!caller.is_anonymous()).then(|| caller.to_string()),
        endpoints: api.endpoints.get().cloned().unwrap_or_default(),
        connections: connections.into_iter().map(|(name, count)| (name.into(), count)).collect(),
        disk: convert::disk_usage(disk),
        queues: visible.len() as u64,
        counts,
        rates,
        attention,
        attention_more,
        matched,
        rows,
    }
}

fn row(queue: &WatchedQueue) -> OverviewRow {
    OverviewRow {
        name: queue.name.as_str().to_owned(),
        paused: queue.paused,
        status: (queue.status != Status::Active).then(|| convert::status_word(queue.status)),
        with_sessions: queue.with_sessions,
        counts: queue.counts.clone(),
        rates: queue.rates,
    }
}

fn add_counts(sum: &mut QueueCounts, counts: &QueueCounts) {
    sum.ready += counts.ready;
    sum.locked += counts.locked;
    sum.delayed += counts.delayed;
    sum.scheduled += counts.scheduled;
    sum.deferred += counts.deferred;
    sum.dead_lettered += counts.dead_lettered;
    sum.bytes += counts.bytes;
    sum.oldest_at = match (sum.oldest_at, counts.oldest_at) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    sum.consumers += counts.consumers;
    sum.sessions += counts.sessions;
    sum.sessions_held += counts.sessions_held;
    sum.sessions_ready += counts.sessions_ready;
}

fn add_rates(sum: &mut QueueRates, rates: &QueueRates) {
    sum.sent += rates.sent;
    sum.delivered += rates.delivered;
    sum.completed += rates.completed;
    sum.dead_lettered += rates.dead_lettered;
}

fn is_wanted(query: &OverviewQuery, name: &str) -> bool {
    query.queue.as_deref().is_none_or(|queue| queue == name)
        && query.search.as_deref().is_none_or(|pattern| matches(pattern, name))
}

/// Whether a name matches a pattern, ignoring case. Without `*`, the name must contain the pattern.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_lowercase(), name.to_lowercase());
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first).filter(|_| pattern.contains('*')) else {
        return !pattern.contains('*') && name.contains(&pattern);
    };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        // The last part must be at the end; the others are found as early as possible.
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

fn compare(order: SortWord, a: &WatchedQueue, b: &WatchedQueue) -> Ordering {
    let counts = |count: fn(&QueueCounts) -> u64| count(&a.counts).cmp(&count(&b.counts));
    match order {
        SortWord::Name => a.name.cmp(&b.name),
        SortWord::Ready => counts(|counts| counts.ready),
        SortWord::Locked => counts(|counts| counts.locked),
        SortWord::Later => counts(|counts| counts.delayed + counts.scheduled),
        SortWord::Deferred => counts(|counts| counts.deferred),
        SortWord::DeadLettered => counts(|counts| counts.dead_lettered),
        SortWord::Sessions => counts(|counts| counts.sessions),
        SortWord::Consumers => counts(|counts| counts.consumers),
        SortWord::In => a.rates.sent.total_cmp(&b.rates.sent),
        SortWord::Out => a.rates.completed.total_cmp(&b.rates.completed),
        // By age: a queue without messages has the smallest.
        SortWord::Oldest => {
            let age = |queue: &WatchedQueue| queue.counts.oldest_at.map(Reverse);
            age(a).cmp(&age(b))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_people_expect() {
        for (pattern, name, is_match) in [
            ("", "orders", true),
            ("ord", "orders", true),
            ("DER", "orders", true),
            ("x", "orders", false),
            ("*", "orders", true),
            ("or*", "orders", true),
            ("*ers", "orders", true),
            ("o*e*s", "orders", true),
            ("o*s", "orders-eu", false),
            ("orders*orders", "orders", false),
            ("a*", "orders", false),
            ("*/sub*", "sales/Subscriptions/audit", true),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
    }
}
