//! Rules by exact key: one lookup per publish.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ids::{RuleId, RuleIds};

/// Clients choose the keys, so the hash is seeded: collisions cannot be constructed.
#[derive(Debug)]
pub(super) struct KeyIndex {
    table: HashTable<KeySlot>,
    hash_seed: u64,
}

#[derive(Debug)]
struct KeySlot {
    hash: u64,
    key: Box<str>,
    ids: RuleIds,
}

impl KeyIndex {
    pub(super) fn new(hash_seed: u64) -> Self {
        Self { table: HashTable::new(), hash_seed }
    }

    fn hash(&self, key: &str) -> u64 {
        xxh3_64_with_seed(key.as_bytes(), self.hash_seed)
    }

    pub(super) fn insert(&mut self, key: &str, id: RuleId) {
        let hash = self.hash(key);
        let same = |slot: &KeySlot| slot.hash == hash && *slot.key == *key;
        let entry = self.table.entry(hash, same, |slot| slot.hash);
        let empty = || KeySlot { hash, key: key.into(), ids: RuleIds::default() };
        entry.or_insert_with(empty).get_mut().ids.insert(id);
    }

    pub(super) fn remove(&mut self, key: &str, id: RuleId) {
        let hash = self.hash(key);
        let same = |slot: &KeySlot| slot.hash == hash && *slot.key == *key;
        if let Ok(mut entry) = self.table.find_entry(hash, same) {
            entry.get_mut().ids.remove(id);
            if entry.get().ids.is_empty() {
                entry.remove();
            }
        }
    }

    /// Calls `hit` for every rule with this key.
    pub(super) fn of(&self, key: &str, hit: impl FnMut(RuleId)) {
        let hash = self.hash(key);
        let found = self.table.find(hash, |slot| slot.hash == hash && *slot.key == *key);
        if let Some(slot) = found {
            slot.ids.for_each(hit);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}
