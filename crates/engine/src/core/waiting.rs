//! The consumers of a queue that wait for messages, in turn.
//!
//! Consumers with a higher priority are first; of equal ones, the one that has waited longest. Taking the next one and
//! adding one cost the same for one consumer and for ten thousand. A consumer that left stays in the list until its turn
//! comes, or until [`WaitingConsumers::retain`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use crate::command::ConsumerId;

#[derive(Debug, Default)]
pub(super) struct WaitingConsumers {
    /// Those without a priority: nearly all.
    normal: VecDeque<ConsumerId>,
    /// Those with a priority, highest first. No list is empty.
    ranked: BTreeMap<Reverse<i32>, VecDeque<ConsumerId>>,
    len: usize,
}

impl WaitingConsumers {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push_back(&mut self, id: ConsumerId, priority: i32) {
        self.list(priority).push_back(id);
        self.len += 1;
    }

    /// The consumer keeps its turn.
    pub fn push_front(&mut self, id: ConsumerId, priority: i32) {
        self.list(priority).push_front(id);
        self.len += 1;
    }

    fn list(&mut self, priority: i32) -> &mut VecDeque<ConsumerId> {
        match priority {
            0 => &mut self.normal,
            priority => self.ranked.entry(Reverse(priority)).or_default(),
        }
    }

    /// Whether the next consumer has a priority.
    fn is_ranked_next(&self) -> bool {
        let first = self.ranked.first_key_value();
        first.is_some_and(|(&Reverse(priority), _)| priority > 0 || self.normal.is_empty())
    }

    pub fn first(&self) -> Option<ConsumerId> {
        if self.is_ranked_next() {
            return self.ranked.first_key_value()?.1.front().copied();
        }
        self.normal.front().copied()
    }

    pub fn pop_front(&mut self) -> Option<ConsumerId> {
        let popped = match self.is_ranked_next() {
            false => self.normal.pop_front(),
            true => {
                let mut first = self.ranked.first_entry()?;
                let popped = first.get_mut().pop_front();
                if first.get().is_empty() {
                    first.remove();
                }
                popped
            }
        };
        self.len -= usize::from(popped.is_some());
        popped
    }

    pub fn retain(&mut self, keep: impl Fn(&ConsumerId) -> bool) {
        self.normal.retain(&keep);
        self.ranked.retain(|_, list| {
            list.retain(&keep);
            !list.is_empty()
        });
        self.len = self.normal.len() + self.ranked.values().map(VecDeque::len).sum::<usize>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_by_priority_and_then_by_time() {
        let mut waiting = WaitingConsumers::default();
        for (id, priority) in [(1, 0), (2, -5), (3, 7), (4, 0), (5, 7), (6, 9), (7, -5)] {
            waiting.push_back(ConsumerId(id), priority);
        }
        waiting.push_front(ConsumerId(8), 7);
        waiting.retain(|id| *id != ConsumerId(6));
        assert_eq!(waiting.len(), 7);
        let mut order = Vec::new();
        while let Some(first) = waiting.first() {
            assert_eq!(waiting.pop_front(), Some(first));
            order.push(first.0);
        }
        assert_eq!(order, [8, 3, 5, 1, 4, 2, 7]);
        assert_eq!((waiting.len(), waiting.pop_front()), (0, None));
        assert!(waiting.ranked.is_empty());
    }
}
