//! All rules of one topic, and the queues that they lead to.

use std::collections::BTreeMap;

use malote_model::{Facts, Filter, Rule};

use super::correlations::Correlations;
use super::ids::{Ids, RuleId};
use super::keys::Keys;
use super::patterns::Patterns;

/// The rules of one topic. `T` names a target: a queue.
///
/// It is saved by its rules and restored by inserting them again: what it answers depends on them alone, not on the
/// order in which they came nor on the seed.
#[derive(Debug)]
pub struct Router<T> {
    rules: Vec<Option<Entry<T>>>,
    free: Vec<RuleId>,
    targets: BTreeMap<T, BTreeMap<String, RuleId>>,
    /// Rules that take everything.
    always: Ids,
    keys: Keys,
    patterns: Patterns,
    correlations: Correlations,
    /// Headers and SQL: asked one by one.
    asked: Ids,
}

#[derive(Debug)]
struct Entry<T> {
    target: T,
    rule: Rule,
}

/// One copy to make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit<'a, T> {
    /// Where it goes.
    pub target: T,
    /// The rule whose action it goes through; none is a plain copy.
    pub rule: Option<&'a Rule>,
}

impl<T: Copy + Ord> Router<T> {
    /// No rules. The seed only spreads hashes.
    pub fn new(hash_seed: u64) -> Self {
        Self {
            rules: Vec::new(),
            free: Vec::new(),
            targets: BTreeMap::new(),
            always: Ids::default(),
            keys: Keys::new(hash_seed),
            patterns: Patterns::new(hash_seed),
            correlations: Correlations::new(hash_seed),
            asked: Ids::default(),
        }
    }

    /// How many rules.
    pub fn len(&self) -> usize {
        self.rules.len() - self.free.len()
    }

    /// How many of them compare fields.
    pub fn correlations(&self) -> usize {
        self.correlations.len()
    }

    /// No rules.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a rule; one of the same target and name is replaced and returned. Bounds were checked when it was decided.
    pub fn insert(&mut self, target: T, rule: Rule) -> Option<Rule> {
        let before = self.remove(target, &rule.name);
        let id = self.free.pop().unwrap_or(self.rules.len() as RuleId);
        match &rule.filter {
            Filter::All => self.always.insert(id),
            Filter::None => {}
            Filter::Key(key) => self.keys.insert(key, id),
            Filter::Pattern(pattern) => self.patterns.insert(pattern, id),
            Filter::Correlation(wanted) => self.correlations.insert(wanted, id),
            Filter::Headers(_) | Filter::Sql(_) => self.asked.insert(id),
        }
        self.targets.entry(target).or_default().insert(rule.name.clone(), id);
        let entry = Some(Entry { target, rule });
        match self.rules.get_mut(id as usize) {
            Some(place) => *place = entry,
            None => self.rules.push(entry),
        }
        before
    }

    /// Takes a rule away.
    pub fn remove(&mut self, target: T, name: &str) -> Option<Rule> {
        let names = self.targets.get_mut(&target)?;
        let id = names.remove(name)?;
        if names.is_empty() {
            self.targets.remove(&target);
        }
        self.take(id)
    }

    /// Takes all rules of a target away; says how many there were.
    pub fn remove_target(&mut self, target: T) -> usize {
        let names = self.targets.remove(&target).unwrap_or_default();
        let count = names.len();
        for id in names.into_values() {
            self.take(id);
        }
        count
    }

    fn take(&mut self, id: RuleId) -> Option<Rule> {
        let Entry { rule, .. } = self.rules.get_mut(id as usize)?.take()?;
        self.free.push(id);
        match &rule.filter {
            Filter::All => self.always.remove(id),
            Filter::None => {}
            Filter::Key(key) => self.keys.remove(key, id),
            Filter::Pattern(pattern) => self.patterns.remove(pattern, id),
            Filter::Correlation(wanted) => self.correlations.remove(wanted, id),
            Filter::Headers(_) | Filter::Sql(_) => self.asked.remove(id),
        }
        Some(rule)
    }

    fn entry(&self, id: RuleId) -> Option<&Entry<T>> {
        self.rules.get(id as usize)?.as_ref()
    }

    /// One rule.
    pub fn rule(&self, target: T, name: &str) -> Option<&Rule> {
        let id = *self.targets.get(&target)?.get(name)?;
        self.entry(id).map(|entry| &entry.rule)
    }

    /// The rules of a target, by name.
    pub fn rules(&self, target: T) -> impl Iterator<Item = &Rule> {
        let names = self.targets.get(&target).into_iter().flat_map(BTreeMap::values);
        names.filter_map(|&id| self.entry(id)).map(|entry| &entry.rule)
    }

    /// All targets, ascending.
    pub fn targets(&self) -> impl ExactSizeIterator<Item = T> {
        self.targets.keys().copied()
    }

    /// The copies of a message to make: for each target at most one without an action, and one for each matching rule
    /// with one. They replace what is in `out`, by target; the plain copy first, then by the name of the rule.
    pub fn route<'a>(&'a self, facts: &Facts<'_>, out: &mut Vec<Hit<'a, T>>) {
        out.clear();
        let mut hit = |id: RuleId| {
            if let Some(Entry { target, rule }) = self.entry(id) {
                let rule = rule.action.is_some().then_some(rule);
                out.push(Hit { target: *target, rule });
            }
        };
        self.always.as_slice().iter().copied().for_each(&mut hit);
        self.keys.of(facts.key).iter().copied().for_each(&mut hit);
        self.patterns.of(facts.key, &mut hit);
        self.correlations.of(facts, &mut hit);
        for &id in self.asked.as_slice() {
            if self.entry(id).is_some_and(|entry| entry.rule.filter.matches(facts)) {
                hit(id);
            }
        }
        out.sort_unstable_by(|a, b| Self::order(a).cmp(&Self::order(b)));
        out.dedup_by(|a, b| Self::order(a) == Self::order(b));
    }

    fn order<'h>(hit: &'h Hit<'_, T>) -> (T, Option<&'h str>) {
        (hit.target, hit.rule.map(|rule| rule.name.as_str()))
    }

    /// Nothing is left of rules that are gone.
    #[cfg(test)]
    pub(super) fn is_clean(&self) -> bool {
        self.is_empty()
            && self.targets.is_empty()
            && self.always.is_empty()
            && self.asked.is_empty()
            && self.keys.of("").is_empty()
            && self.patterns.nodes_in_use() == 1
            && self.correlations.is_empty()
    }
}
