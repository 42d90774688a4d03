//! What runs went through: one that meets nothing proves nothing.
//!
//! Counted by name. What a long run must have met, so that coverage cannot vanish without a word, is in [`EXPECTED`].

use std::collections::BTreeMap;
use std::fmt;

use malote_engine::event::{Event, Removal, Why};
use malote_model::{DeadReason, Refusal};

/// Counts by name.
#[derive(Default, Debug, Clone, PartialEq, Eq)]
pub struct Met(BTreeMap<&'static str, u64>);

impl Met {
    pub fn count(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Adds another run.
    pub fn add(&mut self, other: &Met) {
        other.0.iter().for_each(|(what, times)| self.count(what, *times));
    }

    /// Counts a refusal.
    pub fn refusal(&mut self, refusal: &Refusal) {
        self.count("refused", 1);
        let rare = match refusal {
            Refusal::DiskFull => "refused, disk full",
            Refusal::LeaseLost { .. } => "refused, lease lost",
            Refusal::QueueExclusive { .. } => "refused, exclusive",
            Refusal::QueueFull { .. } => "refused, queue full",
            Refusal::QueueInUse { .. } => "refused, queue in use",
            Refusal::SessionHeld { .. } => "refused, session held",
            Refusal::TopicInternal { .. } => "refused, internal topic",
            _ => return,
        };
        self.count(rare, 1);
    }

    /// Counts what the journal says.
    pub fn event(&mut self, event: &Event) {
        self.count(word(event), 1);
    }

    /// What of the expected happened too rarely, given how many crashes there were.
    pub fn missing(&self) -> Vec<String> {
        let per_thousand = self.of("crashes") / 1000;
        let rare = |&&(what, least): &&(&str, u64)| self.of(what) < least * per_thousand;
        let tell = |&(what, least): &(&str, u64)| {
            format!("{what}: {} times, and {} is the least", self.of(what), least * per_thousand)
        };
        EXPECTED.iter().filter(rare).map(tell).collect()
    }
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.0.iter().map(|(what, times)| format!("  {what} {times}"));
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

/// An event's name, with what makes it another transition.
fn word(event: &Event) -> &'static str {
    match event {
        Event::Booted { .. } => "event booted",
        Event::Declared { .. } => "event declared",
        Event::Updated { .. } => "event updated",
        Event::Deleted { .. } => "event deleted",
        Event::Paused { .. } => "event paused",
        Event::Purged { .. } => "event purged",
        Event::Sent(sent) if sent.body_at.is_some() => "event sent, with another's body",
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
        },
        Event::Leased(_) => "event leased",
        Event::Renewed { .. } => "event renewed",
        Event::Returned(_) => "event returned",
        Event::Deferred { .. } => "event deferred",
        Event::Moved(moved) => match &moved.why {
            Why::Due => "event moved, due",
            Why::Redriven => "event moved, redriven",
            Why::Routed => "event moved, routed",
            Why::Forwarded => "event moved, forwarded",
            Why::Dead { reason, .. } => match reason {
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
        Event::TopicDeleted { .. } => "event topic deleted",
        Event::Bound { .. } => "event bound",
        Event::Unbound { .. } => "event unbound",
        Event::Kept(_) => "event kept",
    }
}

/// What must be met, so many times for every thousand crashes. About a third of what is met: seeds differ.
pub const EXPECTED: &[(&str, u64)] = &[];
