//! What an entity of Service Bus is when nothing is said.

use malote_model::{QueueSpec, Status};

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

/// The words for what may be done with an entity.
pub(crate) const STATUSES: &str = "Active, SendDisabled, ReceiveDisabled or Disabled";

/// What a word of the service means; none if it is no such word.
pub(crate) fn status_of(word: &str) -> Option<Status> {
    [Status::Active, Status::SendDisabled, Status::ReceiveDisabled, Status::Disabled]
        .into_iter()
        .find(|status| status_word(*status) == word)
}

/// The service's word for it.
pub(crate) const fn status_word(status: Status) -> &'static str {
    match status {
        Status::Active => "Active",
        Status::SendDisabled => "SendDisabled",
        Status::ReceiveDisabled => "ReceiveDisabled",
        Status::Disabled => "Disabled",
    }
}
