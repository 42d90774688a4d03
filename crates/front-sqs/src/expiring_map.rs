//! A bounded map whose entries expire.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use malote_model::Timestamp;

/// A bounded map whose entries expire after a time. When it is full, the oldest entries are removed.
#[derive(Debug)]
pub struct ExpiringMap<K, V> {
    entries: HashMap<K, (u64, V)>,
    /// By age. A replaced or removed entry stays here until it would have expired.
    order: VecDeque<(u64, K)>,
    max: usize,
    keep_ms: u64,
}

impl<K: Hash + Eq + Clone, V> ExpiringMap<K, V> {
    pub fn new(max: usize, keep_ms: u64) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), max, keep_ms }
    }

    /// Inserts a value. Returns the values that were replaced, expired or evicted.
    pub fn put(&mut self, key: K, value: V, now: Timestamp) -> Vec<V> {
        let mut gone = Vec::new();
        let keep_ms = self.keep_ms;
        let over = |at: u64| now.0 >= at.saturating_add(keep_ms);
        while self.order.front().is_some_and(|(at, _)| over(*at) || self.order.len() >= self.max) {
            let Some((at, old)) = self.order.pop_front() else { break };
            if self.entries.get(&old).is_some_and(|(of, _)| *of == at) {
                gone.extend(self.remove(&old));
            }
        }
        self.order.push_back((now.0, key.clone()));
        gone.extend(self.entries.insert(key, (now.0, value)).map(|(_, value)| value));
        gone
    }

    pub fn get(&self, key: &K, now: Timestamp) -> Option<&V> {
        let (at, value) = self.entries.get(key)?;
        (now.0 < at.saturating_add(self.keep_ms)).then_some(value)
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_expire_and_are_evicted() {
        let mut recent = ExpiringMap::new(3, 100);
        for n in 0..5_u64 {
            recent.put(n, n * 10, Timestamp(n));
        }
        assert_eq!(
            [0, 1, 2, 3, 4].map(|n| recent.get(&n, Timestamp(5)).copied()),
            [None, None, Some(20), Some(30), Some(40)]
        );
        assert_eq!(recent.get(&4, Timestamp(104)), None);
        recent.put(2, 7, Timestamp(50));
        recent.put(9, 0, Timestamp(51));
        assert_eq!(recent.get(&2, Timestamp(60)), Some(&7), "replaced, so it is young again");
        assert_eq!(recent.remove(&2), Some(7));
        assert!(recent.order.len() <= 3 && recent.entries.len() <= 3);
    }
}
