//! Rules of a hash topic: each has as many buckets as its weight, and a key always falls into the same bucket.
//!
//! Buckets are ordered by target, then by rule name. Queues get ascending ids, so the buckets of a new queue come last
//! and take only their share of the keys from the others ("jump consistent hash").

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use super::ids::RuleId;

#[derive(Debug, Default)]
pub(super) struct Buckets<T> {
    /// The weights, by target and rule name.
    rules: BTreeMap<(T, Box<str>), (RuleId, u32)>,
    /// The rule of each bucket.
    buckets: Vec<RuleId>,
}

impl<T: Copy + Ord> Buckets<T> {
    pub(super) fn new() -> Self {
        Self { rules: BTreeMap::new(), buckets: Vec::new() }
    }

    pub(super) fn insert(&mut self, target: T, name: &str, weight: u32, id: RuleId) {
        self.rules.insert((target, name.into()), (id, weight));
        self.rebuild();
    }

    pub(super) fn remove(&mut self, target: T, name: &str) {
        if self.rules.remove(&(target, name.into())).is_some() {
            self.rebuild();
        }
    }

    /// Removes all rules of a target at once, because each change makes all buckets again.
    pub(super) fn remove_target(&mut self, target: T) {
        let mut rest = self.rules.split_off(&(target, "".into()));
        let before = rest.len();
        rest.retain(|(of, _), _| *of != target);
        let changed = rest.len() < before;
        self.rules.append(&mut rest);
        if changed {
            self.rebuild();
        }
    }

    fn rebuild(&mut self) {
        self.buckets.clear();
        for &(id, weight) in self.rules.values() {
            self.buckets.extend(std::iter::repeat_n(id, weight as usize));
        }
    }

    /// The rule for this text; `None` without rules. The hash has no seed: the same rules give the same answer.
    pub(super) fn of(&self, text: &[u8]) -> Option<RuleId> {
        let count = u32::try_from(self.buckets.len()).ok().filter(|&count| count > 0)?;
        self.buckets.get(jump(xxh3_64(text), count) as usize).copied()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// "A fast, minimal memory, consistent hash algorithm" (Lamping and Veach, 2014).
fn jump(mut key: u64, buckets: u32) -> u32 {
    let (mut bucket, mut next) = (0_u32, 0_u64);
    while next < u64::from(buckets) {
        bucket = next as u32;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next =
            ((f64::from(bucket) + 1.0) * ((1_u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as u64;
    }
    bucket
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(buckets: &Buckets<u8>) -> BTreeMap<RuleId, u32> {
        let mut counts = BTreeMap::new();
        for n in 0..10_000 {
            let id = buckets.of(format!("key {n}").as_bytes()).unwrap();
            *counts.entry(id).or_default() += 1;
        }
        counts
    }

    #[test]
    fn keys_are_shared_by_weight() {
        let mut buckets = Buckets::new();
        assert_eq!(buckets.of(b"x"), None);
        buckets.insert(1, "a", 1, 10);
        buckets.insert(2, "b", 3, 20);
        let counts = counts(&buckets);
        assert!((2200..2800).contains(&counts[&10]), "{counts:?}");
        assert!((7200..7800).contains(&counts[&20]), "{counts:?}");
    }

    #[test]
    fn a_new_hash_target_takes_over_only_its_share_of_keys() {
        let mut buckets = Buckets::new();
        (1..=4_u8).for_each(|n| buckets.insert(n, "r", 1, u32::from(n)));
        let before: Vec<_> = (0..1000).map(|n: u32| buckets.of(&n.to_le_bytes())).collect();
        buckets.insert(5, "r", 1, 5);
        for (n, before) in before.into_iter().enumerate() {
            let now = buckets.of(&(n as u32).to_le_bytes());
            assert!(now == before || now == Some(5));
        }
        buckets.insert(3, "s", 2, 6);
        buckets.remove_target(3);
        let left = counts(&buckets).into_keys().collect::<Vec<_>>();
        assert_eq!(left, [1, 2, 4, 5]);
        buckets.remove_target(3);
        [1, 2, 4, 5_u8].into_iter().for_each(|n| buckets.remove(n, "r"));
        assert!(buckets.is_empty() && buckets.of(b"x").is_none());
    }
}
