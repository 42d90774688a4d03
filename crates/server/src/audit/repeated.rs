//! Logins and refusals: identical ones within a second become one record with a count.
//!
//! A peer that makes up names would still fill the log. The number of different records of a window is bounded; beyond
//! it they are counted by protocol, action and outcome only, and the windows get longer while that lasts.

use malote_model::{AuditEntry, AuditOutcome, CallerKind, Timestamp};

use super::writer::Counted;

/// Different records of one window.
pub(super) const DIFFERENT_MAX: usize = 64;
/// The shortest window.
pub(super) const WINDOW_MS: u64 = 1000;
/// The longest window, under a flood.
const WINDOW_MS_MAX: u64 = 60_000;

/// The name of the caller in a record that stands for many.
pub(super) const SEVERAL: &str = "(several)";

/// Logins and refusals of the current window.
#[derive(Default)]
pub(super) struct Repeated {
    since: Option<Timestamp>,
    different: Vec<Counted>,
    /// By protocol, action and outcome: bounded by how many of those there are.
    rest: Vec<Counted>,
    /// How often the window was doubled.
    doubled: u32,
}

impl Repeated {
    pub fn add(&mut self, at: Timestamp, entry: AuditEntry) {
        self.since.get_or_insert(at);
        let (list, entry) = if self.different.iter().any(|one| one.entry == entry) {
            (&mut self.different, entry)
        } else if self.different.len() < DIFFERENT_MAX {
            return self.different.push(Counted { at, count: 1, entry });
        } else {
            let several = AuditEntry::new(entry.protocol, entry.action)
                .claimed(SEVERAL, CallerKind::Anonymous);
            let several = match entry.outcome {
                AuditOutcome::Refused(_) => several.refused("too_many_to_list"),
                AuditOutcome::Done | AuditOutcome::Unknown(_) => several,
            };
            (&mut self.rest, several)
        };
        match list.iter_mut().find(|one| one.entry == entry) {
            Some(one) => one.count += 1,
            None => list.push(Counted { at, count: 1, entry }),
        }
    }

    /// The records of a window that is over; `force` ends it now.
    pub fn take(&mut self, now: Timestamp, force: bool) -> Vec<Counted> {
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

    fn shown(counted: Vec<Counted>) -> Vec<(String, u64)> {
        counted.into_iter().map(|one| (one.entry.caller.name, one.count)).collect()
    }

    #[test]
    fn identical_refusals_of_a_second_are_one_record() {
        let mut repeated = Repeated::default();
        assert_eq!(repeated.take(Timestamp(0), true).len(), 0);
        for n in 0..500 {
            repeated.add(Timestamp(100 + n), login(if n % 5 == 0 { "bob" } else { "ana" }));
        }
        assert_eq!(repeated.take(Timestamp(1099), false).len(), 0);
        let taken = repeated.take(Timestamp(1100), false);
        assert_eq!(taken[0].at, Timestamp(100), "the first time");
        assert_eq!(shown(taken), [("bob".to_owned(), 100), ("ana".to_owned(), 400)]);
        assert_eq!(repeated.take(Timestamp(9000), true).len(), 0);
    }

    #[test]
    fn made_up_names_are_a_few_records_and_ever_fewer() {
        let mut repeated = Repeated::default();
        let (mut records, mut count) = (0, 0);
        for ms in 0..120_000 {
            repeated.add(Timestamp(ms), login(&format!("u{ms}")));
            for one in repeated.take(Timestamp(ms), false) {
                records += 1;
                count += one.count;
            }
        }
        count += repeated.take(Timestamp(120_000), true).iter().map(|one| one.count).sum::<u64>();
        assert_eq!(count, 120_000, "each is counted once");
        assert!(records <= 7 * (DIFFERENT_MAX + 1), "{records}");
        // The window is short again once it is quiet.
        repeated.add(Timestamp(500_000), login("ana"));
        repeated.take(Timestamp(560_000), false);
        repeated.add(Timestamp(600_000), login("ana"));
        assert_eq!(shown(repeated.take(Timestamp(601_000), false)), [("ana".to_owned(), 1)]);
    }
}
