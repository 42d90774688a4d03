//! Counts the situations that runs reach, by name. A run that reaches nothing proves nothing.
//!
//! [`EXPECTED`] lists the situations that a long run must reach, so that lost coverage is noticed.

use std::collections::BTreeMap;
use std::fmt;

use malote_engine::event::{Event, MoveReason, Removal};
use malote_model::{DeadReason, Refusal};

/// Counts by name.
#[derive(Default, Debug, Clone, PartialEq, Eq)]
pub struct Situations(BTreeMap<&'static str, u64>);

impl Situations {
    pub fn count(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Situations) {
        other.0.iter().for_each(|(what, times)| self.count(what, *times));
    }

    pub fn refusal(&mut self, refusal: &Refusal) {
        self.count("refused", 1);
        let rare = match refusal {
            Refusal::Disabled { .. } => "refused, disabled",
            Refusal::BatchTooLarge { .. } => "refused, batch too large",
            Refusal::DiskFull => "refused, disk full",
            Refusal::NoSegment { .. } => "refused, no segment",
            Refusal::LeaseLost { .. } => "refused, lease lost",
            Refusal::ConsumerExclusive { .. } => "refused, exclusive consumer",
            Refusal::QueueExclusive { .. } => "refused, exclusive",
            Refusal::QueueFull { .. } => "refused, queue full",
            Refusal::QueueInUse { .. } => "refused, queue in use",
            Refusal::SessionHeld { .. } => "refused, session held",
            Refusal::TopicInternal { .. } => "refused, internal topic",
            _ => return,
        };
        self.count(rare, 1);
    }

    /// Counts an event of the journal.
    pub fn event(&mut self, event: &Event) {
        self.count(name_of(event), 1);
    }

    /// Expected situations that occurred too rarely for this number of crashes.
    pub fn missing(&self) -> Vec<String> {
        let crashes = self.of("crashes");
        let expected = EXPECTED.iter().map(|&(what, least)| (what, least * (crashes / 1000)));
        let missing = expected.filter(|&(what, least)| self.of(what) < least);
        let tell =
            |(what, least)| format!("{what}: {} times, at least {least} expected", self.of(what));
        missing.map(tell).collect()
    }
}

impl fmt::Display for Situations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.0.iter().map(|(what, times)| format!("  {what} {times}"));
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

/// The name of an event, with the variant that makes it a different transition.
fn name_of(event: &Event) -> &'static str {
    match event {
        Event::Booted { .. } => "event booted",
        Event::Declared { .. } => "event declared",
        Event::Updated { .. } => "event updated",
        Event::Deleted { .. } => "event deleted",
        Event::Paused { .. } => "event paused",
        Event::Purged { leased: true, .. } => "event purged, leased",
        Event::Purged { .. } => "event purged",
        Event::Sent(sent) if sent.body_at.is_some() => "event sent, shared body",
        Event::Sent(sent) if sent.scheduled => "event sent, scheduled",
        Event::Sent(sent) if sent.places.len() > 1 => "event sent, several copies",
        Event::Sent(_) => "event sent",
        Event::Removed { why, .. } => match why {
            Removal::Completed => "event removed, completed",
            Removal::Taken => "event removed, taken",
            Removal::Cancelled => "event removed, cancelled",
            Removal::Dropped(_) => "event removed, dropped",
            Removal::Replaced => "event removed, replaced",
            Removal::Expired => "event removed, expired",
            Removal::Overflowed => "event removed, overflowed",
            Removal::Unrouted => "event removed, unrouted",
            Removal::Purged => "event removed, purged",
        },
        Event::Leased(_) => "event leased",
        Event::Renewed { .. } => "event renewed",
        Event::Returned(_) => "event returned",
        Event::Deferred { .. } => "event deferred",
        Event::Moved(moved) => match &moved.why {
            MoveReason::Due => "event moved, due",
            MoveReason::Redriven => "event moved, redriven",
            MoveReason::Routed => "event moved, routed",
            MoveReason::Forwarded => "event moved, forwarded",
            MoveReason::DeadLettered { reason, .. } => match reason {
                DeadReason::MaxFailed { .. } => "event dead, failed",
                DeadReason::MaxReceives { .. } => "event dead, received",
                DeadReason::Asked { .. } => "event dead, asked",
                DeadReason::Expired => "event dead, expired",
                DeadReason::Overflowed => "event dead, overflowed",
                DeadReason::NoSession => "event dead, no session",
                DeadReason::TooManyHops => "event dead, too many hops",
                DeadReason::Cycle => "event dead, cycle",
                DeadReason::Unroutable => "event dead, unroutable",
                DeadReason::Damaged { .. } => "event dead, damaged",
            },
        },
        Event::Held { .. } => "event held",
        Event::Unheld { .. } => "event unheld",
        Event::State { .. } => "event state",
        Event::TopicDeclared { .. } => "event topic declared",
        Event::TopicUpdated { .. } => "event topic updated",
        Event::TopicDeleted { .. } => "event topic deleted",
        Event::Bound { .. } => "event bound",
        Event::Unbound { .. } => "event unbound",
        Event::Relocated(_) => "event relocated",
        Event::ClockStepped { .. } => "event clock stepped",
        Event::Digest(_) => "event digest",
    }
}

/// Situations that must occur at least this often in a thousand crashes: about a third of the usual count, because
/// seeds differ.
pub const EXPECTED: &[(&str, u64)] = &[
    ("asked accept", 300),
    ("asked attach", 3000),
    ("asked bind", 70),
    ("asked break session", 70),
    ("asked cancel", 100),
    ("asked cancel at topic", 20),
    ("asked commit", 400),
    ("asked complete late", 10),
    ("asked credit", 200),
    ("asked declare", 200),
    ("asked declare topic", 80),
    ("asked delete", 30),
    ("asked delete topic", 6),
    ("asked detach", 100),
    ("asked disconnect", 100),
    ("asked get state", 9),
    ("asked move", 100),
    ("asked pause", 30),
    ("asked purge", 30),
    ("asked purge these", 20),
    ("asked rebind", 10),
    ("asked receive deferred", 70),
    ("asked release session", 20),
    ("asked renew", 200),
    ("asked replace", 60),
    ("asked send", 3000),
    ("asked set state", 30),
    ("asked settle", 2000),
    ("asked subscribe", 100),
    ("asked unbind", 70),
    ("asked update", 50),
    ("asked update topic", 10),
    ("backups restored", 20),
    ("clock steps", 20),
    ("compactions", 100),
    ("consistency checks", 500),
    ("consumers ended by a status", 1),
    ("continued after damage", 10),
    ("copies changed by an action", 100),
    ("copies dead-lettered at once", 700),
    ("cycles", 10),
    ("dead letters that keep their age", 3),
    ("dead letters to topics", 500),
    ("delivered beside a noisy tenant", 300),
    ("digests compared", 1000),
    ("disk failures", 10),
    ("disk full", 20),
    ("duplicates", 100),
    ("event bound", 200),
    ("event dead, asked", 70),
    ("event dead, cycle", 10),
    ("event dead, expired", 900),
    ("event dead, failed", 200),
    ("event dead, no session", 800),
    ("event dead, overflowed", 100),
    ("event dead, received", 40),
    ("event dead, too many hops", 10),
    ("event dead, unroutable", 90),
    ("event declared", 300),
    ("event deferred", 100),
    ("event deleted", 90),
    ("event digest", 600),
    ("event held", 200),
    ("event leased", 1000),
    ("event moved, due", 400),
    ("event moved, forwarded", 900),
    ("event moved, redriven", 50),
    ("event moved, routed", 500),
    ("event paused", 30),
    ("event purged", 30),
    ("event relocated", 2000),
    ("event removed, cancelled", 9),
    ("event removed, completed", 200),
    ("event removed, dropped", 90),
    ("event removed, expired", 800),
    ("event removed, overflowed", 100),
    ("event removed, purged", 9),
    ("event removed, replaced", 60),
    ("event removed, taken", 100),
    ("event removed, unrouted", 100),
    ("event renewed", 200),
    ("event returned", 1000),
    ("event sent", 4000),
    ("event sent, scheduled", 600),
    ("event sent, several copies", 600),
    ("event sent, shared body", 100),
    ("event state", 80),
    ("event topic declared", 70),
    ("event topic deleted", 10),
    ("event topic updated", 10),
    ("event unbound", 70),
    ("event unheld", 100),
    ("event updated", 50),
    ("expired over several turns", 1),
    ("flipped bits", 20),
    ("forwarded", 1000),
    ("forwarded several times", 200),
    ("forwarded to topics", 400),
    ("free-standing on a connection", 300),
    ("largest settlement", 1),
    ("leases over a clock step", 200),
    ("matched a condition", 300),
    ("matched a key", 200),
    ("matched a pattern", 600),
    ("matched a share", 100),
    ("matched everything", 2000),
    ("matched fields", 100),
    ("matched headers", 800),
    ("moved under a new id", 20),
    ("overtook a noisy tenant", 70),
    ("passed to another topic", 100),
    ("queues deleted as idle", 20),
    ("queues deleted with their connection", 4),
    ("queues deleted with their last consumer", 6),
    ("refused, batch too large", 1),
    ("refused, disabled", 20),
    ("refused, disk full", 40),
    ("refused, exclusive", 10),
    ("refused, exclusive consumer", 40),
    ("refused, internal topic", 100),
    ("refused, lease lost", 900),
    ("refused, queue full", 100),
    ("refused, queue in use", 10),
    ("refused, session held", 10),
    ("rewritten", 1),
    ("routed", 700),
    ("routing blocked by a full disk", 4),
    ("scheduled for the same moment", 4),
    ("segments recycled", 100),
    ("snapshots", 200),
    ("topics deleted with their last rule", 10),
    ("torn tails", 20),
    ("worlds with many messages", 1),
];
