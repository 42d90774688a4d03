//! Entries that occur with every request, such as a login over HTTP. Each is recorded the first time, then once an
//! hour.

use std::collections::HashMap;
use std::net::IpAddr;

use malote_model::{AuditAction, AuditProtocol, Principal, Timestamp};
use parking_lot::RwLock;

const AGAIN_AFTER_MS: u64 = 3_600_000;

/// Distinct entries kept in memory. When the limit is reached, they are cleared and recorded again.
const SEEN_MAX: usize = 4096;

type EntryKey = (Principal, IpAddr, AuditProtocol, AuditAction);

/// The time of the last record of each entry. Most requests only read it.
#[derive(Default)]
pub(super) struct OnceAnHour(RwLock<HashMap<EntryKey, Timestamp>>);

impl OnceAnHour {
    /// Whether the entry must be recorded now.
    pub fn is_due(&self, key: EntryKey, now: Timestamp) -> bool {
        let is_fresh = |at: &Timestamp| now.0.saturating_sub(at.0) < AGAIN_AFTER_MS;
        if self.0.read().get(&key).is_some_and(is_fresh) {
            return false;
        }
        let mut seen = self.0.write();
        if seen.get(&key).is_some_and(is_fresh) {
            return false;
        }
        if seen.len() >= SEEN_MAX {
            seen.retain(|_, at| is_fresh(at));
        }
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_due_once_an_hour_and_memory_is_bounded() {
        let once_an_hour = OnceAnHour::default();
        let key = |name: &str, host: u8| {
            let address = IpAddr::from([192, 0, 2, host]);
            (Principal::named(name), address, AuditProtocol::Http, AuditAction::Login)
        };
        assert!(once_an_hour.is_due(key("ana", 1), Timestamp(0)));
        assert!(!once_an_hour.is_due(key("ana", 1), Timestamp(AGAIN_AFTER_MS - 1)));
        assert!(once_an_hour.is_due(key("ana", 2), Timestamp(1)));
        assert!(once_an_hour.is_due(key("bob", 1), Timestamp(1)));
        assert!(once_an_hour.is_due(key("ana", 1), Timestamp(AGAIN_AFTER_MS)));
        for n in 0..3 * SEEN_MAX {
            once_an_hour.is_due(key(&n.to_string(), 1), Timestamp(AGAIN_AFTER_MS));
            assert!(once_an_hour.0.read().len() <= SEEN_MAX);
        }
    }
}
