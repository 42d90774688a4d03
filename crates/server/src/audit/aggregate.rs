//! Aggregates logins and refusals: identical ones within a second become one record with a count.
//!
//! A peer that invents names could still fill the log. Therefore, the number of distinct records per window is limited.
//! Beyond the limit, entries are counted by protocol, action and outcome only, and the windows get longer.

use malote_model::{AuditEntry, AuditOutcome, CallerKind, Timestamp};

use super::writer::CountedEntry;

/// Distinct records per window.
pub(super) const DIFFERENT_MAX: usize = 64;
pub(super) const WINDOW_MS: u64 = 1000;
const WINDOW_MS_MAX: u64 = 60_000;

/// The caller in a record that stands for several.
pub(super) const SEVERAL_CALLERS: &str = "(several)";

/// Logins and refusals of the current window.
#[derive(Default)]
pub(super) struct RefusalAggregator {
    since: Option<Timestamp>,
    different: Vec<CountedEntry>,
    /// By protocol, action and outcome.
    rest: Vec<CountedEntry>,
    /// How often the window was doubled.
    doubled: u32,
}

impl RefusalAggregator {
    pub fn add(&mut self, at: Timestamp, entry: AuditEntry) {
        self.since.get_or_insert(at);
        let (list, entry) = if self.different.iter().any(|one| one.entry == entry) {
            (&mut self.different, entry)
        } else if self.different.len() < DIFFERENT_MAX {
            return self.different.push(CountedEntry { at, count: 1, entry });
        } else {
            let several = AuditEntry::new(entry.protocol, entry.action)
                .claimed(SEVERAL_CALLERS, CallerKind::Anonymous);
            let several = match entry.outcome {
                AuditOutcome::Refused(_) => several.refused("too_many_to_list"),
                AuditOutcome::Done | AuditOutcome::Unknown(_) => several,
            };
            (&mut self.rest, several)
        };
        match list.iter_mut().find(|one| one.entry == entry) {
            Some(one) => one.count += 1,
            None => list.push(CountedEntry { at, count: 1, entry }),
        }
    }

    /// The records of a window that has ended; `force` ends it now.
    pub fn take(&mut self, now: Timestamp, force: bool) -> Vec<CountedEntry> {
        let window_ms = (WINDOW_MS << self.doubled).min(WINDOW_MS_MAX);
        let over = self.since.is_some_and(|since| now.0 >= since.0.saturating_add(window_ms));
        if self.since.is_none() || !(over || force) {
            return Vec::new();
        }
        self.since = None;
        self.doubled = match self.rest.is_empty() {
            true => 0,
            false => (self.doubled + 1).min(WINDOW_MS_MAX.ilog2() - WINDOW_MS.ilog2() + 1),
        };
        let mut all = std::mem::take(&mut self.different);
        all.append(&mut self.rest);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_model::{AuditAction, AuditProtocol};

    fn login(name: &str) -> AuditEntry {
        AuditEntry::new(AuditProtocol::Http, AuditAction::Login)
            .claimed(name, CallerKind::User)
            .refused("unauthenticated")
    }

    fn shown(counted: Vec<CountedEntry>) -> Vec<(String, u64)> {
        counted.into_iter().map(|one| (one.entry.caller.name, one.count)).collect()
    }

    #[test]
    fn identical_refusals_of_a_second_are_one_record() {
        let mut aggregator = RefusalAggregator::default();
        assert_eq!(aggregator.take(Timestamp(0), true).len(), 0);
        for n in 0..500 {
            aggregator.add(Timestamp(100 + n), login(if n % 5 == 0 { "bob" } else { "ana" }));
        }
        assert_eq!(aggregator.take(Timestamp(1099), false).len(), 0);
        let taken = aggregator.take(Timestamp(1100), false);
        assert_eq!(taken[0].at, Timestamp(100), "the first time");
        assert_eq!(shown(taken), [("bob".to_owned(), 100), ("ana".to_owned(), 400)]);
        assert_eq!(aggregator.take(Timestamp(9000), true).len(), 0);
    }

    #[test]
    fn invented_names_become_a_few_records() {
        let mut aggregator = RefusalAggregator::default();
        let (mut records, mut count) = (0, 0);
        for ms in 0..120_000 {
            aggregator.add(Timestamp(ms), login(&format!("u{ms}")));
            for one in aggregator.take(Timestamp(ms), false) {
                records += 1;
                count += one.count;
            }
        }
        count += aggregator.take(Timestamp(120_000), true).iter().map(|one| one.count).sum::<u64>();
        assert_eq!(count, 120_000, "each is counted once");
        assert!(records <= 7 * (DIFFERENT_MAX + 1), "{records}");
        // The window is short again after a quiet time.
        aggregator.add(Timestamp(500_000), login("ana"));
        aggregator.take(Timestamp(560_000), false);
        aggregator.add(Timestamp(600_000), login("ana"));
        assert_eq!(shown(aggregator.take(Timestamp(601_000), false)), [("ana".to_owned(), 1)]);
    }
}
