//! The door to time for what is written down: attempts in a message's history. Waits use tokio's clock.

/// Wall-clock milliseconds since 1970.
#[allow(clippy::disallowed_methods)] // this is the door
pub(crate) fn wall_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
