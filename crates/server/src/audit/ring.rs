//! The newest records, in memory.

use std::collections::VecDeque;
use std::iter::Peekable;

use malote_model::audit::{AuditPage, AuditQuery, AuditRecord};

use super::is_operation;

/// Records in memory: about 5 MB, or 15 MB with the longest names. The file has more.
pub(super) const RECORDS_MAX: usize = 10_000;
/// How many of them may be logins and refusals, which anyone can cause.
pub(super) const OTHERS_MAX: usize = RECORDS_MAX / 2;

/// Records by number. Logins and refusals are stored separately, so that they displace only each other.
#[derive(Default)]
pub(super) struct RecentRecords {
    operations: VecDeque<AuditRecord>,
    others: VecDeque<AuditRecord>,
    last: u64,
}

impl RecentRecords {
    /// The number of the last record.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Adds a record. Its number is increased if it is not greater than the last one.
    pub fn push(&mut self, mut record: AuditRecord) {
        record.seq = record.seq.max(self.last + 1);
        self.last = record.seq;
        let (list, max) = match is_operation(&record.entry) {
            true => (&mut self.operations, RECORDS_MAX - OTHERS_MAX),
            false => (&mut self.others, OTHERS_MAX),
        };
        if list.len() >= max {
            list.pop_front();
        }
        list.push_back(record);
    }

    /// The records that match a query.
    pub fn read(&self, query: &AuditQuery) -> AuditPage {
        match query.after {
            Some(after) => self.read_after(query, after),
            None => self.read_newest(query),
        }
    }

    fn read_after(&self, query: &AuditQuery, after: u64) -> AuditPage {
        let behind =
            |list: &'_ VecDeque<AuditRecord>| list.partition_point(|record| record.seq <= after);
        let operations = self.operations.range(behind(&self.operations)..);
        let others = self.others.range(behind(&self.others)..);
        let all = merge(operations, others, |one, other| one.seq < other.seq);
        let mut fitting = all.filter(|record| query.fits(&record.entry));
        let records: Vec<AuditRecord> = fitting.by_ref().take(query.max).cloned().collect();
        let more = fitting.next().is_some();
        let last = records.last().filter(|_| more).map_or(self.last, |record| record.seq);
        AuditPage { records, last, more }
    }

    fn read_newest(&self, query: &AuditQuery) -> AuditPage {
        let (operations, others) = (self.operations.iter().rev(), self.others.iter().rev());
        let all = merge(operations, others, |one, other| one.seq > other.seq);
        let fitting = all.filter(|record| query.fits(&record.entry));
        let mut records: Vec<AuditRecord> = fitting.take(query.max).cloned().collect();
        records.reverse();
        AuditPage { records, last: self.last, more: false }
    }
}

/// Merges two sorted lists.
fn merge<'a>(
    one: impl Iterator<Item = &'a AuditRecord>,
    other: impl Iterator<Item = &'a AuditRecord>,
    before: impl Fn(&AuditRecord, &AuditRecord) -> bool,
) -> impl Iterator<Item = &'a AuditRecord> {
    let (mut one, mut other): (Peekable<_>, Peekable<_>) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if before(first, second) => one.next(),
        (_, Some(_)) => other.next(),
        _ => one.next(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_model::{AuditAction, AuditEntry, AuditProtocol, CallerKind, Timestamp};

    fn record(seq: u64, refused: bool) -> AuditRecord {
        let name = if refused { "eve" } else { "ana" };
        let entry = AuditEntry::new(AuditProtocol::Http, AuditAction::Delete)
            .claimed(name, CallerKind::User);
        let entry = if refused { entry.refused("forbidden") } else { entry };
        AuditRecord { seq, at: Timestamp(seq), count: 1, entry }
    }

    fn numbers(page: &AuditPage) -> Vec<u64> {
        page.records.iter().map(|record| record.seq).collect()
    }

    #[test]
    fn logins_and_refusals_displace_only_each_other() {
        let mut ring = RecentRecords::default();
        ring.push(record(1, false));
        for seq in 2..50_000 {
            ring.push(record(seq, true));
        }
        for seq in 50_000..60_000 {
            let mut login = record(seq, false);
            login.entry.action = AuditAction::Login;
            ring.push(login);
        }
        let all = ring.read(&AuditQuery { max: RECORDS_MAX, ..AuditQuery::default() });
        assert_eq!(all.records.len(), 1 + OTHERS_MAX);
        assert_eq!(all.records[0].seq, 1);
    }

    #[test]
    fn pages_follow_each_other_and_the_newest_come_first_unasked() {
        let mut ring = RecentRecords::default();
        (1..=9).for_each(|seq| ring.push(record(seq, seq % 3 == 0)));
        let query = AuditQuery { max: 4, ..AuditQuery::default() };
        assert_eq!(numbers(&ring.read(&query)), [6, 7, 8, 9]);
        let page = ring.read(&AuditQuery { after: Some(0), ..query.clone() });
        assert_eq!((numbers(&page), page.last, page.more), (vec![1, 2, 3, 4], 4, true));
        let page = ring.read(&AuditQuery { after: Some(5), ..query.clone() });
        assert_eq!((numbers(&page), page.last, page.more), (vec![6, 7, 8, 9], 9, false));
        let refused = AuditQuery { outcome: Some("refused".to_owned()), ..query.clone() };
        assert_eq!(numbers(&ring.read(&refused)), [3, 6, 9]);
        let page = ring.read(&AuditQuery { after: Some(3), max: 1, ..refused });
        assert_eq!((numbers(&page), page.last, page.more), (vec![6], 6, true));
        let eve = AuditQuery { caller: Some("eve".to_owned()), after: Some(8), ..query.clone() };
        assert_eq!(numbers(&ring.read(&eve)), [9]);
        let none = AuditQuery { action: Some(AuditAction::Purge), after: Some(0), ..query };
        let page = ring.read(&none);
        assert_eq!((numbers(&page), page.last, page.more), (vec![], 9, false));
    }

    #[test]
    fn numbers_never_go_back() {
        let mut ring = RecentRecords::default();
        ring.push(record(7, false));
        ring.push(record(3, false));
        ring.push(record(20, true));
        let all = ring.read(&AuditQuery { max: 9, ..AuditQuery::default() });
        assert_eq!(numbers(&all), [7, 8, 20]);
    }
}
