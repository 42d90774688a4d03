//! Detecting duplicates: a queue remembers keys for a time window, and drops them in buckets.

use std::collections::VecDeque;

use hashbrown::HashTable;
use malote_model::Dedup;

use super::snapshot::{VERSION_KNOWN_FROM, VERSION_MORE};
use crate::codec::{EncodeExt, Malformed, StreamReader};

/// Buckets in a window. Keys are dropped one bucket at a time, so up to this fraction too late.
const BUCKETS: u64 = 8;

/// De-duplication keys in order of time. They are parts of SHA-256, so they need no other hash.
#[derive(Debug, Default)]
pub(super) struct DedupWindow {
    buckets: VecDeque<Bucket>,
    len: usize,
    /// Keys from before this time are invalid: they were outside the window when it changed.
    known_from: u64,
}

#[derive(Debug, Default)]
struct Bucket {
    from: u64,
    /// The time of the last key, relative to `from`.
    last: u32,
    keys: HashTable<DedupEntry>,
    /// The sum of the keys' digests.
    sum: u64,
}

#[derive(Debug, Clone, Copy)]
struct DedupEntry {
    key: u128,
    /// The message id, if it is a UUID and not the key; otherwise 0.
    id: u128,
    seq: u64,
    /// The time, relative to the start of the bucket.
    after: u32,
}

impl DedupEntry {
    fn hash(&self) -> u64 {
        self.key as u64
    }

    /// Keys are parts of SHA-256: only the other numbers need mixing.
    fn digest(&self) -> u64 {
        let Self { key, id, seq, after } = self;
        let beside = (seq ^ u64::from(*after).rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (key >> 64) as u64 ^ (*key as u64).rotate_left(17) ^ *id as u64 ^ beside
    }
}

/// The message that a key was first sent with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FirstSend {
    pub seq: u64,
    pub id: Option<u128>,
}

fn width(window_ms: u64) -> u64 {
    (window_ms / BUCKETS).max(1)
}

impl DedupWindow {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Counts the keys one by one.
    pub(super) fn recount(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.keys.iter().count()).sum()
    }

    /// Finds the first message with this key within the window.
    pub(super) fn find(&self, key: u128, now: u64, window_ms: u64) -> Option<FirstSend> {
        let known = |bucket: &Bucket| {
            let known = bucket.keys.find(key as u64, |known| known.key == key)?;
            let at = bucket.from + u64::from(known.after);
            let first = FirstSend { seq: known.seq, id: Some(known.id).filter(|&id| id != 0) };
            let known = at >= self.known_from && now < at.saturating_add(window_ms);
            known.then_some(first)
        };
        self.buckets.iter().rev().find_map(known)
    }

    /// Stores a key with the newest sequence number. A time that goes backwards counts as now. Returns whether the key
    /// is new.
    pub(super) fn insert(&mut self, key: u128, first: FirstSend, at: u64, window_ms: u64) -> bool {
        let fits = |bucket: &Bucket| at.saturating_sub(bucket.from) < width(window_ms);
        if !self.buckets.back().is_some_and(fits) {
            if let Some(closed) = self.buckets.back_mut() {
                closed.keys.shrink_to_fit(DedupEntry::hash);
            }
            self.buckets.push_back(Bucket { from: at, ..Bucket::default() });
        }
        let Some(bucket) = self.buckets.back_mut() else { return false };
        let after = u32::try_from(at.saturating_sub(bucket.from)).unwrap_or(u32::MAX);
        bucket.last = bucket.last.max(after);
        let known = DedupEntry { key, id: first.id.unwrap_or(0), seq: first.seq, after };
        bucket.sum = bucket.sum.wrapping_add(known.digest());
        if let Some(old) = bucket.keys.find_mut(key as u64, |known| known.key == key) {
            bucket.sum = bucket.sum.wrapping_sub(old.digest());
            *old = known;
            return false;
        }
        bucket.keys.insert_unique(key as u64, known, DedupEntry::hash);
        self.len += 1;
        true
    }

    /// Changes the window, or removes it, at the journaled time `at`. Keys outside the window at that time stay invalid
    /// under a longer one, in the live state as in a replay.
    pub(super) fn respecify(
        seen: &mut Option<Box<Self>>,
        old: Option<Dedup>,
        new: Option<Dedup>,
        at: u64,
    ) {
        match (seen.as_mut(), old, new) {
            (Some(seen), Some(old), Some(new)) => {
                if old.window_ms != new.window_ms {
                    seen.window_changed(at, old.window_ms);
                }
            }
            (_, _, new) => *seen = new.map(|_| Box::default()),
        }
    }

    fn window_changed(&mut self, at: u64, old_window_ms: u64) {
        self.forget(at, old_window_ms);
        // Keys of a partly expired bucket are not removed one by one: there may be millions.
        let from = at.checked_sub(old_window_ms).map_or(0, |last| last + 1);
        self.known_from = self.known_from.max(from);
    }

    pub(super) fn known_from(&self) -> u64 {
        self.known_from
    }

    /// Calls `each` with the start, key count and sum of every bucket that has keys within the window at `at`.
    pub(super) fn sums(&self, window_ms: u64, at: u64, mut each: impl FnMut(u64, u64, u64)) {
        for bucket in &self.buckets {
            let end = bucket.from.saturating_add(u64::from(bucket.last)).saturating_add(window_ms);
            if end > at {
                each(bucket.from, bucket.keys.len() as u64, bucket.sum);
            }
        }
    }

    /// When the oldest bucket is completely outside the window.
    pub(super) fn forget_at(&self, window_ms: u64) -> Option<u64> {
        let oldest = self.buckets.front()?;
        Some(oldest.from.saturating_add(u64::from(oldest.last)).saturating_add(window_ms))
    }

    /// Drops buckets outside the window. Returns the number of keys.
    pub(super) fn forget(&mut self, now: u64, window_ms: u64) -> usize {
        let before = self.len;
        while self.forget_at(window_ms).is_some_and(|at| at <= now) {
            self.len -= self.buckets.pop_front().map_or(0, |bucket| bucket.keys.len());
        }
        before - self.len
    }

    pub(super) fn save(&self, out: &mut Vec<u8>) {
        out.put_var(self.known_from);
        out.put_var(self.buckets.len() as u64);
        for bucket in &self.buckets {
            out.put_var(bucket.from);
            out.put_var(bucket.keys.len() as u64);
            let mut keys: Vec<_> = bucket.keys.iter().collect();
            keys.sort_unstable_by_key(|known| (known.seq, known.key));
            for known in keys {
                out.extend_from_slice(&known.key.to_le_bytes());
                out.put_var(known.seq);
                out.put_var(u64::from(known.after));
                out.put_bool(known.id != 0);
                if known.id != 0 {
                    out.extend_from_slice(&known.id.to_le_bytes());
                }
            }
        }
    }

    /// Restores from a snapshot of this version.
    pub(super) fn restore(r: &mut StreamReader<'_>, version: u8) -> Result<Self, Malformed> {
        let mut seen = Self::default();
        let more = version >= VERSION_MORE;
        if version >= VERSION_KNOWN_FROM {
            seen.known_from = r.var()?;
        }
        for _ in 0..r.count()? {
            let from = r.var()?;
            let (mut keys, mut last, mut sum) = (HashTable::new(), 0, 0_u64);
            for _ in 0..r.count()? {
                let known = r.item(|r| {
                    let key = u128::from_le_bytes(r.fixed()?);
                    let (seq, after) = (r.var()?, r.var32()?);
                    let id = if more && r.bool()? { u128::from_le_bytes(r.fixed()?) } else { 0 };
                    Ok(DedupEntry { key, id, seq, after })
                })?;
                last = last.max(known.after);
                sum = sum.wrapping_add(known.digest());
                keys.insert_unique(known.hash(), known, DedupEntry::hash);
            }
            from.checked_add(u64::from(u32::MAX)).ok_or(Malformed)?;
            seen.len += keys.len();
            seen.buckets.push_back(Bucket { from, last, keys, sum });
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dedup_key_is_remembered_for_its_window() {
        let (window_ms, mut seen) = (1000, DedupWindow::default());
        let first =
            |n: u64| FirstSend { seq: n, id: n.is_multiple_of(2).then_some(u128::from(n) + 7) };
        let key = |n: u64| u128::from(n) << 64 | u128::from(n % 3);
        for n in 0..100_u64 {
            seen.insert(key(n), first(n), 5000 + 10 * n, window_ms);
        }
        for n in 0..100 {
            let at = 5000 + 10 * n;
            assert_eq!(seen.find(key(n), at + window_ms - 1, window_ms), Some(first(n)));
            assert_eq!(seen.find(key(n), at + window_ms, window_ms), None);
        }
        let mut saved = Vec::new();
        seen.save(&mut saved);
        let restored = |mut saved: &[u8]| {
            let bytes = saved.len() as u64;
            DedupWindow::restore(&mut StreamReader::new(&mut saved, bytes), VERSION_KNOWN_FROM)
        };
        let back = restored(&saved).unwrap();
        assert_eq!((back.find(key(50), 5600, window_ms), back.len()), (Some(first(50)), 100));
        for cut in 0..saved.len() {
            assert!(restored(&saved[..cut]).is_err());
        }
        assert_eq!(seen.forget(5000 + window_ms, window_ms), 0, "no sooner than its bucket");
        assert!(seen.forget(5500 + window_ms, window_ms) > 30);
        assert_eq!(seen.find(key(60), 5600, window_ms), Some(first(60)));
        assert!(seen.forget(u64::MAX, window_ms) > 0 && seen.len() == 0);
    }
}
