//! What an entity of Service Bus is when nothing is said.

use malote_model::QueueSpec;

/// How long a message or session is locked.
pub(crate) const LOCK_MS: u64 = 60_000;
/// Failed deliveries until a message becomes a dead letter.
pub(crate) const FAILED_MAX: u32 = 10;
/// How long ids are remembered where duplicates are detected.
pub(crate) const DEDUP_WINDOW_MS: u64 = 10 * 60_000;

/// A queue or subscription with the service's defaults.
pub(crate) fn queue_spec() -> QueueSpec {
    QueueSpec { lock_ms: LOCK_MS, failed_max: Some(FAILED_MAX), ..QueueSpec::default() }
}
