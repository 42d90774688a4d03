//! All queues at a glance: shared counts that are read at most once a second, whatever the number of readers.
//!
//! `watch.rs` reads the queues, `page.rs` filters and sorts them for a caller, `attention.rs` finds what an operator
//! should look at.

mod attention;
mod page;
mod watch;

pub(crate) use page::{PAGE_DEFAULT, PAGE_MAX, build};
pub(crate) use watch::{REFRESH_EVERY, Snapshot, Watch, WatchedQueue};
