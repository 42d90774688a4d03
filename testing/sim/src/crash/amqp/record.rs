//! What the history of other protocols does not know: the flag `redelivered`, and the order of first deliveries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::count;
use crate::crash::history::History;

#[derive(Default)]
pub(super) struct Record {
    messages: Mutex<Messages>,
    pub publications: AtomicU64,
    pub flagged: AtomicU64,
    /// With the flag, although no client saw them before.
    pub unseen: AtomicU64,
    pub requeued: AtomicU64,
    pub rejected: AtomicU64,
    pub multiple: AtomicU64,
    pub commits: AtomicU64,
    pub rollbacks: AtomicU64,
    pub channels_left: AtomicU64,
    pub connections_left: AtomicU64,
}

#[derive(Default)]
struct Messages {
    /// By name: when it was published, and whether a client saw it.
    known: BTreeMap<String, (Instant, bool)>,
    /// The last time that a server was killed, or that a consumer left or requeued. Messages that were published
    /// later cannot have been delivered in vain.
    lost: Option<Instant>,
    /// Consumers that are leaving now: until they have left, messages may come back at any time.
    leaving: u64,
    kills: u64,
}

/// The first deliveries that one consumer got on one connection, from each publisher.
#[derive(Default)]
pub(super) struct FirstDeliveries {
    last: BTreeMap<u64, u64>,
}

impl Record {
    fn messages(&self) -> std::sync::MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn published(&self, names: impl IntoIterator<Item = String>) {
        let mut messages = self.messages();
        let now = Instant::now();
        messages.known.extend(names.into_iter().map(|name| (name, (now, false))));
    }

    /// From now on, messages may come back that no client saw.
    pub(super) fn losing(&self) {
        self.messages().lost = Some(Instant::now());
    }

    /// A consumer begins to leave. Its messages come back before it hears that it has left.
    pub(super) fn leaving(&self) {
        self.messages().leaving += 1;
    }

    /// That consumer has left.
    pub(super) fn left(&self) {
        let mut messages = self.messages();
        messages.leaving -= 1;
        messages.lost = Some(Instant::now());
    }

    /// Checks the flag of a delivery.
    pub(super) fn delivered(&self, history: &mut History, name: &str, redelivered: bool) {
        let mut messages = self.messages();
        if messages.kills != history.kills {
            (messages.kills, messages.lost) = (history.kills, Some(Instant::now()));
        }
        let lost = match messages.leaving {
            0 => messages.lost,
            _ => Some(Instant::now()),
        };
        // The history reports names that it does not know.
        let Some((published, seen)) = messages.known.get_mut(name) else { return };
        match (*seen, redelivered) {
            (true, false) => {
                let how = format!("{name} was delivered before, without `redelivered` now");
                history.violation("wrong flag", how);
            }
            (false, true) if lost.is_none_or(|lost| lost < *published) => {
                let how = format!(
                    "{name} has `redelivered`, although no consumer can have received it before"
                );
                history.violation("wrong flag", how);
            }
            (false, true) => count(&self.unseen),
            (true, true) => count(&self.flagged),
            (false, false) => {}
        }
        *seen = true;
    }

    fn counters(&self) -> [(&'static str, &AtomicU64); 10] {
        [
            ("publications", &self.publications),
            ("redelivered and seen before", &self.flagged),
            ("redelivered and not seen before", &self.unseen),
            ("requeued", &self.requeued),
            ("rejected", &self.rejected),
            ("acknowledgements of several", &self.multiple),
            ("commits", &self.commits),
            ("rollbacks", &self.rollbacks),
            ("channels closed with messages", &self.channels_left),
            ("connections closed with messages", &self.connections_left),
        ]
    }

    pub(super) fn print(&self) {
        let counts =
            self.counters().map(|(what, n)| format!("{what} {}", n.load(Ordering::Relaxed)));
        println!("{}", counts.join(", "));
    }

    /// What the run must contain and does not.
    pub(super) fn unused(&self) -> Vec<&'static str> {
        let unused = self.counters().into_iter().filter(|(_, n)| n.load(Ordering::Relaxed) == 0);
        unused.map(|(what, _)| what).collect()
    }
}

impl FirstDeliveries {
    /// Checks that messages of one publisher are delivered in its order, as long as none was requeued.
    pub(super) fn check(&mut self, history: &mut History, name: &str, publisher: u64, number: u64) {
        let last = self.last.insert(publisher, number).unwrap_or(0);
        if number <= last {
            let how = format!("{name} is number {number} of its publisher, delivered after {last}");
            history.violation("out of order", how);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> (Record, History) {
        let record = Record::default();
        record.published([name.to_owned()]);
        (record, History::default())
    }

    #[test]
    fn a_message_seen_before_needs_the_flag() {
        let (record, mut history) = record("a");
        record.delivered(&mut history, "a", false);
        assert!(history.violations.is_empty());
        record.delivered(&mut history, "a", true);
        assert!(history.violations.is_empty());
        record.delivered(&mut history, "a", false);
        assert!(history.violations.contains_key("wrong flag"));
    }

    #[test]
    fn a_new_message_has_no_flag_unless_something_was_lost() {
        let (record, mut history) = record("a");
        record.losing();
        record.delivered(&mut history, "a", true);
        assert!(history.violations.is_empty());
        record.published(["b".to_owned()]);
        record.delivered(&mut history, "b", true);
        assert!(history.violations.contains_key("wrong flag"));
    }

    #[test]
    fn first_deliveries_follow_their_publisher() {
        let (mut first, mut history) = (FirstDeliveries::default(), History::default());
        for (publisher, number) in [(1, 1), (2, 5), (1, 3)] {
            first.check(&mut history, "m", publisher, number);
        }
        assert!(history.violations.is_empty());
        first.check(&mut history, "m", 2, 4);
        assert!(history.violations.contains_key("out of order"));
    }
}
