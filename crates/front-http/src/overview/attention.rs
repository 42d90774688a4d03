//! Finds what an operator should look at: conditions that do not go away by themselves.

use malote_engine::DiskFacts;
use malote_model::Timestamp;
use malote_wire_native::overview::{AttentionItem, AttentionKind};

use super::WatchedQueue;

/// Items of a list; the rest is counted.
const ITEMS_MAX: usize = 20;
/// Messages that wait longer, while none is delivered, are stuck.
const STUCK_MS: u64 = 60_000;

/// The items found so far.
#[derive(Debug, Default)]
pub(super) struct Attention {
    items: Vec<AttentionItem>,
}

impl Attention {
    /// Starts with the disk and the journal.
    pub(super) fn of_disk(disk: &DiskFacts) -> Self {
        let mut found = Self::default();
        let of_broker = |kind, count| AttentionItem { kind, queue: None, count };
        if !disk.publish_allowed {
            found.items.push(of_broker(AttentionKind::DiskFull, 0));
        }
        if disk.diverged > 0 {
            found.items.push(of_broker(AttentionKind::Diverged, disk.diverged));
        }
        if disk.damaged > 0 {
            found.items.push(of_broker(AttentionKind::Damaged, disk.damaged));
        }
        found
    }

    /// Adds what is wrong with a queue.
    pub(super) fn look_at(&mut self, queue: &WatchedQueue, now: Timestamp) {
        let counts = &queue.counts;
        let name = || Some(queue.name.as_str().to_owned());
        let mut add = |kind, count| {
            self.items.push(AttentionItem { kind, queue: name(), count });
        };
        if counts.dead_lettered > 0 {
            let grows = queue.rates.dead_lettered > 0.0;
            let kind =
                if grows { AttentionKind::DeadLettersGrow } else { AttentionKind::DeadLetters };
            add(kind, counts.dead_lettered);
        }
        let age = counts.oldest_at.map_or(0, |at| now.0.saturating_sub(at));
        let waits = counts.ready > 0;
        if queue.paused && waits {
            add(AttentionKind::Paused, counts.ready);
        } else if waits && age > STUCK_MS && queue.rates.delivered == 0.0 {
            add(AttentionKind::Stuck, counts.ready);
        } else if counts.ready + counts.locked > queue.backlog_warning {
            add(AttentionKind::Backlog, counts.ready + counts.locked);
        }
    }

    /// The most urgent items, and the number of the others.
    pub(super) fn finish(mut self) -> (Vec<AttentionItem>, u64) {
        self.items.sort_by(|a, b| a.kind.cmp(&b.kind).then(b.count.cmp(&a.count)));
        let more = self.items.len().saturating_sub(ITEMS_MAX) as u64;
        self.items.truncate(ITEMS_MAX);
        (self.items, more)
    }
}

#[cfg(test)]
mod tests {
    use malote_engine::Totals;
    use malote_model::{QueueName, Status};
    use malote_wire_native::overview::QueueRates;
    use malote_wire_native::queue::QueueCounts;

    use super::*;

    fn queue(name: &str, ready: u64, dead_lettered: u64, oldest_at: Option<u64>) -> WatchedQueue {
        WatchedQueue {
            name: QueueName::new(name).unwrap(),
            created_at: Timestamp(0),
            paused: false,
            status: Status::Active,
            with_sessions: false,
            backlog_warning: 100,
            counts: QueueCounts { ready, dead_lettered, oldest_at, ..QueueCounts::default() },
            totals: Totals::default(),
            rates: QueueRates::default(),
        }
    }

    fn found(queues: &[WatchedQueue]) -> Vec<(AttentionKind, String, u64)> {
        let mut attention = Attention::default();
        queues.iter().for_each(|queue| attention.look_at(queue, Timestamp(100_000)));
        let of = |item: AttentionItem| (item.kind, item.queue.unwrap(), item.count);
        attention.finish().0.into_iter().map(of).collect()
    }

    #[test]
    fn conditions_are_found_and_sorted() {
        let busy = QueueRates { delivered: 5.0, ..QueueRates::default() };
        let fails = QueueRates { dead_lettered: 0.2, ..QueueRates::default() };
        let all = found(&[
            queue("fine", 5, 0, Some(99_000)),
            WatchedQueue { rates: busy, ..queue("slow but served", 5, 0, Some(1)) },
            WatchedQueue { rates: busy, ..queue("deep", 101, 0, Some(1)) },
            queue("stuck", 5, 0, Some(1)),
            WatchedQueue { paused: true, ..queue("paused", 500, 0, Some(1)) },
            queue("failed once", 0, 3, None),
            WatchedQueue { rates: fails, ..queue("failing", 0, 2, None) },
            WatchedQueue { paused: true, ..queue("paused and empty", 0, 0, None) },
        ]);
        let all: Vec<_> = all.iter().map(|(kind, name, count)| (*kind, &**name, *count)).collect();
        assert_eq!(
            all,
            [
                (AttentionKind::DeadLettersGrow, "failing", 2),
                (AttentionKind::Stuck, "stuck", 5),
                (AttentionKind::Backlog, "deep", 101),
                (AttentionKind::Paused, "paused", 500),
                (AttentionKind::DeadLetters, "failed once", 3),
            ]
        );
    }

    #[test]
    fn the_list_is_bounded() {
        let queues: Vec<_> = (0..30).map(|n| queue(&format!("q{n}"), 0, n + 1, None)).collect();
        let mut attention = Attention::default();
        queues.iter().for_each(|queue| attention.look_at(queue, Timestamp(0)));
        let (items, more) = attention.finish();
        assert_eq!((items.len(), more, items[0].count), (20, 10, 30));
    }
}
