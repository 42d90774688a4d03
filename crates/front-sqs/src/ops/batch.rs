//! Common rules of batches: at most ten entries, each with its own id and its own outcome.

use crate::refusal::{Code, SqsError};
use crate::wire::shapes::FailedOut;

const ENTRIES_MAX: usize = 10;
const ID_CHARS_MAX: usize = 80;

/// Checks the ids of a batch, in the same order as the service, and returns them.
pub fn check<'a>(
    entry: &str,
    ids: impl Iterator<Item = Option<&'a str>>,
) -> Result<Vec<String>, SqsError> {
    let ids: Vec<&str> = ids.map(Option::unwrap_or_default).collect();
    if ids.is_empty() {
        let text = format!("There should be at least one {entry} in the request.");
        return Err(SqsError::new(Code::EmptyBatchRequest, text));
    }
    if ids.len() > ENTRIES_MAX {
        let n = ids.len();
        let text =
            format!("Maximum number of entries per request are {ENTRIES_MAX}. You have sent {n}.");
        return Err(SqsError::new(Code::TooManyEntriesInBatchRequest, text));
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if ids.iter().any(|id| id.is_empty() || id.len() > ID_CHARS_MAX || !id.bytes().all(plain)) {
        let text = "A batch entry id can only contain alphanumeric characters, hyphens and underscores. \
                    It can be at most 80 letters long.";
        return Err(SqsError::new(Code::InvalidBatchEntryId, text));
    }
    for (n, id) in ids.iter().enumerate() {
        if ids[..n].contains(id) {
            let text = format!("Id {id} repeated.");
            return Err(SqsError::new(Code::BatchEntryIdsNotDistinct, text));
        }
    }
    Ok(ids.into_iter().map(str::to_owned).collect())
}

/// The result for an entry that failed.
pub fn failed(id: String, error: SqsError) -> FailedOut {
    let SqsError { code, message } = error;
    FailedOut { id, code: code.query().to_owned(), message, sender_fault: code.is_sender() }
}
