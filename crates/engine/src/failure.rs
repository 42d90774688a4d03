//! Why an engine stopped by itself, and how panics of its threads are caught.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

// An engine thread that panics must be able to tell everybody who waits for it.
const _: () = assert!(cfg!(panic = "unwind"), "the engine must be built with `panic = \"unwind\"`");

/// Why an engine stopped by itself. The process should end: a restart goes through recovery.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A write or a sync of the journal failed.
    #[error("the disk failed: {0}")]
    Disk(String),
    /// Somebody removed files of the data directory: what is written to them goes when the process ends.
    #[error("files of the data directory are gone: {0}")]
    FilesRemoved(String),
    /// An engine thread panicked.
    #[error("internal error: thread `{thread}` panicked: {message}")]
    Panic {
        /// The name of the thread.
        thread: String,
        /// What the panic said.
        message: String,
    },
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::FilesRemoved(error.to_string()),
            _ => Self::Disk(error.to_string()),
        }
    }
}

impl Failure {
    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::Panic { thread, message: text.unwrap_or("no message").to_owned() }
    }
}

/// Does the work of an engine thread. A panic is an error that the caller must report with `Mailbox::poison`; what the
/// work borrowed is still there then, so whoever loses an answer with it finds the engine poisoned.
pub(crate) fn supervised(work: impl FnOnce()) -> Result<(), Failure> {
    if cfg!(feature = "mutate-no-supervision") {
        work();
        return Ok(());
    }
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| Failure::of_panic(&*panic))
}
