//! Sets of rule ids: usually one, sometimes all of a topic's.

use std::collections::BTreeSet;

use smallvec::SmallVec;

/// The index of a rule in its router.
pub(super) type RuleId = u32;

/// Ids in a list. In a longer one, removing all of them would move too many others.
const LISTED_MAX: usize = 1_024;

/// Rule ids in ascending order.
#[derive(Debug)]
pub(super) enum RuleIds {
    Few(SmallVec<[RuleId; 2]>),
    Many(BTreeSet<RuleId>),
}

impl Default for RuleIds {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

impl RuleIds {
    pub(super) fn insert(&mut self, id: RuleId) {
        match self {
            Self::Few(ids) if ids.len() < LISTED_MAX => {
                if let Err(at) = ids.binary_search(&id) {
                    ids.insert(at, id);
                }
            }
            Self::Few(ids) => {
                let mut many: BTreeSet<RuleId> = ids.drain(..).collect();
                many.insert(id);
                *self = Self::Many(many);
            }
            Self::Many(ids) => {
                ids.insert(id);
            }
        }
    }

    pub(super) fn remove(&mut self, id: RuleId) {
        match self {
            Self::Few(ids) => {
                if let Ok(at) = ids.binary_search(&id) {
                    ids.remove(at);
                }
            }
            Self::Many(ids) => {
                ids.remove(&id);
                // Half of the bound, so that a set does not change its form with every rule.
                if ids.len() < LISTED_MAX / 2 {
                    *self = Self::Few(ids.iter().copied().collect());
                }
            }
        }
    }

    pub(super) fn contains(&self, id: RuleId) -> bool {
        match self {
            Self::Few(ids) => ids.binary_search(&id).is_ok(),
            Self::Many(ids) => ids.contains(&id),
        }
    }

    /// Calls `each` for every id, in ascending order.
    pub(super) fn for_each(&self, mut each: impl FnMut(RuleId)) {
        match self {
            Self::Few(ids) => ids.iter().copied().for_each(&mut each),
            Self::Many(ids) => ids.iter().copied().for_each(&mut each),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Few(ids) => ids.is_empty(),
            Self::Many(ids) => ids.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_stays_in_order_while_it_grows_and_shrinks() {
        let mut ids = RuleIds::default();
        let listed = |ids: &RuleIds| {
            let mut all = Vec::new();
            ids.for_each(|id| all.push(id));
            all
        };
        let most = 3 * LISTED_MAX as RuleId;
        for id in (0..most).rev() {
            ids.insert(id);
            ids.insert(id);
        }
        assert!(matches!(ids, RuleIds::Many(_)));
        assert_eq!(listed(&ids), (0..most).collect::<Vec<_>>());
        for id in 0..most {
            assert!(ids.contains(id));
            ids.remove(id);
            ids.remove(id);
            assert!(!ids.contains(id));
            if id % 500 == 0 {
                assert_eq!(listed(&ids), (id + 1..most).collect::<Vec<_>>());
            }
        }
        assert!(ids.is_empty() && matches!(ids, RuleIds::Few(_)));
    }
}
