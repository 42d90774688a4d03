//! Defaults of Service Bus entities.

use malote_model::{QueueSpec, Status};

pub(crate) const LOCK_MS: u64 = 60_000;
/// Failed deliveries after which a message is dead-lettered.
pub(crate) const FAILED_MAX: u32 = 10;
/// Default window of duplicate detection.
pub(crate) const DEDUP_WINDOW_MS: u64 = 10 * 60_000;

/// Specification of a queue or subscription with the service's defaults.
pub(crate) fn queue_spec() -> QueueSpec {
    QueueSpec { lock_ms: LOCK_MS, failed_max: Some(FAILED_MAX), ..QueueSpec::default() }
}

pub(crate) const STATUSES: &str = "Active, SendDisabled, ReceiveDisabled or Disabled";

/// Parses a status; none if it is unknown.
pub(crate) fn status_of(word: &str) -> Option<Status> {
    [Status::Active, Status::SendDisabled, Status::ReceiveDisabled, Status::Disabled]
        .into_iter()
        .find(|status| status_word(*status) == word)
}

/// The service's name for a status.
pub(crate) const fn status_word(status: Status) -> &'static str {
    match status {
        Status::Active => "Active",
        Status::SendDisabled => "SendDisabled",
        Status::ReceiveDisabled => "ReceiveDisabled",
        Status::Disabled => "Disabled",
    }
}
