//! Why an engine failed, and how panics of its threads are caught.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

// A panicking engine thread must be able to notify all waiting callers.
const _: () = assert!(cfg!(panic = "unwind"), "the engine must be built with `panic = \"unwind\"`");

/// Why an engine failed. The process should exit: a restart runs recovery.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineFailure {
    /// A write or a sync of the journal failed.
    #[error("the disk failed: {0}")]
    Disk(String),
    /// Files of the data directory were removed. Data written to them would be lost when the process ends.
    #[error("files of the data directory are gone: {0}")]
    FilesRemoved(String),
    /// An engine thread panicked.
    #[error("internal error: thread `{thread}` panicked: {message}")]
    Panic { thread: String, message: String },
}

impl From<io::Error> for EngineFailure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::FilesRemoved(error.to_string()),
            _ => Self::Disk(error.to_string()),
        }
    }
}

impl EngineFailure {
    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::Panic { thread, message: text.unwrap_or("no message").to_owned() }
    }
}

/// Runs the work of an engine thread. A panic becomes an error, which the caller must report with `Mailbox::poison`.
/// What the work borrowed is dropped only afterwards, so that callers who lose a reply find the engine poisoned.
pub(crate) fn supervised(work: impl FnOnce()) -> Result<(), EngineFailure> {
    if cfg!(feature = "mutate-no-supervision") {
        work();
        return Ok(());
    }
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| EngineFailure::of_panic(&*panic))
}
