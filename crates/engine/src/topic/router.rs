//! All rules of one topic, and their target queues.

use std::collections::BTreeMap;

use malote_model::{Facts, Filter, Rule};

use super::buckets::Buckets;
use super::correlations::Correlations;
use super::ids::{RuleId, RuleIds};
use super::keys::KeyIndex;
use super::patterns::Patterns;

/// The rules of one topic. `T` identifies a target queue.
///
/// It is saved as a list of rules and restored by inserting them. Its results depend only on the rules, not on their
/// order or on the seed.
#[derive(Debug)]
pub struct TopicRouter<T> {
    rules: Vec<Option<RuleEntry<T>>>,
    free: Vec<RuleId>,
    targets: BTreeMap<T, BTreeMap<String, RuleId>>,
    /// Rules that match every message.
    always: RuleIds,
    keys: KeyIndex,
    patterns: Patterns,
    correlations: Correlations,
    /// Headers and SQL filters: evaluated one by one.
    asked: RuleIds,
    /// Rules with a weight, on a hash topic.
    buckets: Buckets<T>,
}

#[derive(Debug)]
struct RuleEntry<T> {
    target: T,
    rule: Rule,
}

/// One copy to make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouteMatch<'a, T> {
    pub target: T,
    /// The rule whose action changes the copy; `None` for a plain copy.
    pub rule: Option<&'a Rule>,
}

impl<T: Copy + Ord> TopicRouter<T> {
    pub fn new(hash_seed: u64) -> Self {
        Self {
            rules: Vec::new(),
            free: Vec::new(),
            targets: BTreeMap::new(),
            always: RuleIds::default(),
            keys: KeyIndex::new(hash_seed),
            patterns: Patterns::new(hash_seed),
            correlations: Correlations::new(hash_seed),
            asked: RuleIds::default(),
            buckets: Buckets::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.rules.len() - self.free.len()
    }

    /// The number of rules with a correlation filter.
    pub fn correlations(&self) -> usize {
        self.correlations.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a rule. A rule with the same target and name is replaced and returned.
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
            Filter::Weight(weight) => self.buckets.insert(target, &rule.name, *weight, id),
        }
        self.targets.entry(target).or_default().insert(rule.name.clone(), id);
        let entry = Some(RuleEntry { target, rule });
        match self.rules.get_mut(id as usize) {
            Some(place) => *place = entry,
            None => self.rules.push(entry),
        }
        before
    }

    /// Removes a rule.
    pub fn remove(&mut self, target: T, name: &str) -> Option<Rule> {
        let names = self.targets.get_mut(&target)?;
        let id = names.remove(name)?;
        if names.is_empty() {
            self.targets.remove(&target);
        }
        self.take(id)
    }

    /// Removes all rules of a target. Returns their number.
    pub fn remove_target(&mut self, target: T) -> usize {
        let names = self.targets.remove(&target).unwrap_or_default();
        let count = names.len();
        self.buckets.remove_target(target);
        for id in names.into_values() {
            self.take(id);
        }
        count
    }

    /// Removes any rule, to free the memory of a router in slices. False if there is none.
    pub fn pop(&mut self) -> bool {
        let Some((target, name)) =
            self.targets.iter().next().and_then(|(target, names)| {
                names.keys().next().map(|name| (*target, name.clone()))
            })
        else {
            return false;
        };
        self.remove(target, &name).is_some()
    }

    fn take(&mut self, id: RuleId) -> Option<Rule> {
        let RuleEntry { rule, target } = self.rules.get_mut(id as usize)?.take()?;
        self.free.push(id);
        match &rule.filter {
            Filter::All => self.always.remove(id),
            Filter::None => {}
            Filter::Key(key) => self.keys.remove(key, id),
            Filter::Pattern(pattern) => self.patterns.remove(pattern, id),
            Filter::Correlation(wanted) => self.correlations.remove(wanted, id),
            Filter::Headers(_) | Filter::Sql(_) => self.asked.remove(id),
            Filter::Weight(_) => self.buckets.remove(target, &rule.name),
        }
        Some(rule)
    }

    fn entry(&self, id: RuleId) -> Option<&RuleEntry<T>> {
        self.rules.get(id as usize)?.as_ref()
    }

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

    /// The copies of a message: for each target at most one without an action, and one for each matching rule with an
    /// action. Replaces the content of `out`, sorted by target: the plain copy first, then by rule name.
    pub fn route<'a>(&'a self, facts: &Facts<'_>, out: &mut Vec<RouteMatch<'a, T>>) {
        out.clear();
        let mut hit = |id: RuleId| {
            if let Some(RuleEntry { target, rule }) = self.entry(id) {
                let rule = rule.action.is_some().then_some(rule);
                out.push(RouteMatch { target: *target, rule });
            }
        };
        self.always.for_each(&mut hit);
        for key in facts.keys() {
            self.keys.of(key, &mut hit);
            self.patterns.of(key, &mut hit);
        }
        self.correlations.of(facts, &mut hit);
        self.asked.for_each(|id| {
            if self.entry(id).is_some_and(|entry| entry.rule.filter.matches(facts)) {
                hit(id);
            }
        });
        out.sort_unstable_by(|a, b| Self::order(a).cmp(&Self::order(b)));
        out.dedup_by(|a, b| Self::order(a) == Self::order(b));
    }

    /// The target of a message on a hash topic, by the text that the topic hashes.
    pub fn by_hash(&self, text: &str) -> Option<T> {
        let id = self.buckets.of(text.as_bytes())?;
        self.entry(id).map(|entry| entry.target)
    }

    fn order<'h>(hit: &'h RouteMatch<'_, T>) -> (T, Option<&'h str>) {
        (hit.target, hit.rule.map(|rule| rule.name.as_str()))
    }

    /// Whether no traces of removed rules are left.
    #[cfg(test)]
    pub(super) fn is_clean(&self) -> bool {
        self.is_empty()
            && self.targets.is_empty()
            && self.always.is_empty()
            && self.asked.is_empty()
            && self.buckets.is_empty()
            && self.keys.is_empty()
            && self.patterns.nodes_in_use() == 1
            && self.correlations.is_empty()
    }
}
