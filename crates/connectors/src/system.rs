//! The connectors' only source of wall-clock time and randomness.
//!
//! The engine has seeded sources of its own, so that a seed replays a whole run. Connectors talk to other processes
//! and are never replayed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use malote_model::Timestamp;

/// Whole milliseconds of a duration.
#[cfg_attr(not(feature = "embedded"), allow(dead_code))]
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The time since 1970, by the clock of this machine.
#[allow(clippy::disallowed_methods)] // the only place that may ask the system for the time
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub(crate) fn now() -> Timestamp {
    Timestamp(millis(since_epoch()))
}

#[cfg(any(feature = "postgres", feature = "rabbitmq", feature = "servicebus"))]
mod random {
    use uuid::Uuid;

    #[cfg(any(feature = "rabbitmq", feature = "servicebus"))]
    #[allow(clippy::disallowed_methods)] // the only place that may ask the system for randomness
    fn random_uuid() -> Uuid {
        Uuid::new_v4()
    }

    /// Not a secret: six of its bits are known.
    #[cfg(any(feature = "rabbitmq", feature = "servicebus"))]
    pub(crate) fn random_u64() -> u64 {
        let (high, low) = random_uuid().as_u64_pair();
        high ^ low
    }

    /// An id for a message that has none: 32 hexadecimal digits.
    #[cfg(any(feature = "rabbitmq", feature = "servicebus"))]
    pub(crate) fn random_id() -> String {
        random_uuid().simple().to_string()
    }

    /// An id that sorts by time.
    #[cfg(feature = "postgres")]
    #[allow(clippy::disallowed_methods)] // the only place that may ask the system for randomness
    pub(crate) fn time_ordered_id() -> String {
        Uuid::now_v7().to_string()
    }
}

#[cfg(any(feature = "postgres", feature = "rabbitmq", feature = "servicebus"))]
pub(crate) use random::*;
