//! Rules with correlation filters. Rules with the same set of fields share a table by their values, so a publish costs
//! one lookup per set of fields, however many rules there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashTable;
use malote_model::filter::CORRELATION_FIELDS;
use malote_model::{Correlation, Facts, Value};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ids::{RuleId, RuleIds};

#[derive(Debug)]
pub(super) struct Correlations {
    tables: BTreeMap<CorrelationFields, HashTable<CorrelationSlot>>,
    /// The number of rules in all tables.
    len: usize,
    hash_seed: u64,
}

/// A set of fields.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CorrelationFields {
    /// One bit per text field.
    texts: u16,
    /// Names of properties, ascending.
    properties: Vec<String>,
}

/// Rules with the same values.
#[derive(Debug)]
struct CorrelationSlot {
    hash: u64,
    /// The common filter.
    wanted: Arc<Correlation>,
    ids: RuleIds,
}

impl CorrelationFields {
    fn of(correlation: &Correlation) -> Self {
        let texts = correlation.texts().into_iter().enumerate();
        let texts = texts.fold(0, |mask, (i, text)| mask | u16::from(text.is_some()) << i);
        let mut properties: Vec<_> =
            correlation.properties.iter().map(|(name, _)| name.clone()).collect();
        properties.sort_unstable();
        Self { texts, properties }
    }

    /// A hash of the values of these fields; `None` if one is missing.
    fn hash<'a>(
        &self,
        hash_seed: u64,
        texts: &[Option<&str>; CORRELATION_FIELDS],
        property: impl Fn(&str) -> Option<&'a Value>,
    ) -> Option<u64> {
        let mut hash = hash_seed;
        for (i, text) in texts.iter().enumerate() {
            if self.texts >> i & 1 == 1 {
                hash = xxh3_64_with_seed((*text)?.as_bytes(), hash);
            }
        }
        for name in &self.properties {
            hash = hash_value(property(name)?, hash);
        }
        Some(hash)
    }
}

/// Equal values have equal hashes. Lists and maps are rare, and are only compared.
fn hash_value(value: &Value, hash: u64) -> u64 {
    if let Some(n) = value.as_int() {
        return xxh3_64_with_seed(&n.to_le_bytes(), hash);
    }
    if let Some(n) = value.as_float() {
        // Both zeros are equal, and so are all NaNs.
        let canonical = if n == 0.0 {
            0.0
        } else if n.is_nan() {
            f64::NAN
        } else {
            n
        };
        return xxh3_64_with_seed(&canonical.to_le_bytes(), hash);
    }
    match value {
        Value::String(text) => xxh3_64_with_seed(text.as_bytes(), hash),
        Value::Bytes(bytes) => xxh3_64_with_seed(bytes, hash),
        Value::Uuid(id) => xxh3_64_with_seed(id, hash),
        Value::Time(ms) => xxh3_64_with_seed(&ms.to_le_bytes(), hash),
        Value::Bool(b) => xxh3_64_with_seed(&[u8::from(*b)], hash),
        _ => xxh3_64_with_seed(&[], hash),
    }
}

/// Whether two filters on the same fields have the same values.
fn same(a: &Correlation, b: &Correlation) -> bool {
    let value = |name: &str| b.properties.iter().find(|(have, _)| have == name).map(|(_, v)| v);
    a.texts() == b.texts()
        && a.properties.iter().all(|(name, v)| value(name).is_some_and(|have| have.same(v)))
}

impl Correlations {
    pub(super) fn new(hash_seed: u64) -> Self {
        Self { tables: BTreeMap::new(), len: 0, hash_seed }
    }

    fn place(&self, wanted: &Correlation) -> (CorrelationFields, u64) {
        let fields = CorrelationFields::of(wanted);
        let property =
            |name: &str| wanted.properties.iter().find(|(have, _)| have == name).map(|(_, v)| v);
        let hash = fields.hash(self.hash_seed, &wanted.texts(), property);
        (fields, hash.expect("it has the fields that it asks for"))
    }

    pub(super) fn insert(&mut self, wanted: &Arc<Correlation>, id: RuleId) {
        let (fields, hash) = self.place(wanted);
        let table = self.tables.entry(fields).or_default();
        let is_it = |slot: &CorrelationSlot| slot.hash == hash && same(&slot.wanted, wanted);
        let entry = table.entry(hash, is_it, |slot| slot.hash);
        let empty =
            || CorrelationSlot { hash, wanted: Arc::clone(wanted), ids: RuleIds::default() };
        entry.or_insert_with(empty).get_mut().ids.insert(id);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, wanted: &Correlation, id: RuleId) {
        let (fields, hash) = self.place(wanted);
        let Some(table) = self.tables.get_mut(&fields) else { return };
        let is_it = |slot: &CorrelationSlot| slot.hash == hash && slot.ids.contains(id);
        if let Ok(mut entry) = table.find_entry(hash, is_it) {
            entry.get_mut().ids.remove(id);
            self.len -= 1;
            if entry.get().ids.is_empty() {
                entry.remove();
            }
        }
        if table.is_empty() {
            self.tables.remove(&fields);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Calls `hit` once for every matching rule.
    pub(super) fn of(&self, facts: &Facts<'_>, mut hit: impl FnMut(RuleId)) {
        if self.tables.is_empty() {
            return;
        }
        let texts = Correlation::texts_of(facts);
        let property = |name: &str| facts.message.properties.get(name);
        for (fields, table) in &self.tables {
            let Some(hash) = fields.hash(self.hash_seed, &texts, property) else { continue };
            let is_it = |slot: &CorrelationSlot| slot.hash == hash && slot.wanted.matches(facts);
            if let Some(slot) = table.find(hash, is_it) {
                slot.ids.for_each(&mut hit);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }
}
