//! Small sets of rule ids: usually one, sometimes all of a topic's.

use smallvec::SmallVec;

/// The index of a rule in its router.
pub(super) type RuleId = u32;

/// Rule ids in ascending order.
#[derive(Debug, Default)]
pub(super) struct RuleIds(SmallVec<[RuleId; 2]>);

impl RuleIds {
    pub(super) fn insert(&mut self, id: RuleId) {
        if let Err(at) = self.0.binary_search(&id) {
            self.0.insert(at, id);
        }
    }

    pub(super) fn remove(&mut self, id: RuleId) {
        if let Ok(at) = self.0.binary_search(&id) {
            self.0.remove(at);
        }
    }

    pub(super) fn contains(&self, id: RuleId) -> bool {
        self.0.binary_search(&id).is_ok()
    }

    pub(super) fn as_slice(&self) -> &[RuleId] {
        &self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
