//! The audit log of logins and administrative operations, in memory and in `audit.log`.
//!
//! | part | what it does |
//! |---|---|
//! | `mod.rs` | accepts entries from front ends without blocking; answers queries |
//! | `aggregate.rs` | aggregates logins and refusals, so that a flood of them becomes a few records |
//! | `once_an_hour.rs` | records what happens with every request once an hour |
//! | `writer.rs` | the thread that numbers and writes records |
//! | `ring.rs` | the newest records, in memory |
//! | `file.rs` | `audit.log`: appending, reading, rotation, concurrent processes |
//! | `local.rs` | records of commands that work on the data directory |
//!
//! All memory is bounded. Logins and refusals are queued and stored separately, so they cannot displace records of
//! administrative operations.

mod aggregate;
mod file;
mod local;
mod once_an_hour;
mod ring;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use malote_model::audit::{AuditCounts, AuditPage, AuditQuery};
use malote_model::{
    Audit, AuditAction, AuditEntry, AuditOutcome, AuditProtocol, Principal, Timestamp,
};
use parking_lot::Mutex;

pub use file::AUDIT_FILE;
pub use local::LocalAudit;

use aggregate::RefusalAggregator;
use file::AuditFile;
use once_an_hour::OnceAnHour;
use ring::RecentRecords;
use writer::AuditWriter;

/// Entries waiting to be written. Further ones are dropped and counted.
const WAITING_MAX: usize = 4096;

/// Time for the writer to stop; the disk may hang.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

type ClockFn = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The audit log of a running server.
pub struct AuditLog {
    shared: Arc<AuditShared>,
    waiting: SyncSender<WriterMessage>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// An entry for the writer, or a wake-up call.
enum WriterMessage {
    Entry(Timestamp, AuditEntry),
    Wake,
}

/// Whether the entry is an administrative operation that may have taken effect. The others, logins and refusals, can be
/// caused by anyone.
fn is_operation(entry: &AuditEntry) -> bool {
    entry.action != AuditAction::Login && !matches!(entry.outcome, AuditOutcome::Refused(_))
}

/// State shared by front ends and the writer.
struct AuditShared {
    now: ClockFn,
    aggregator: Mutex<RefusalAggregator>,
    once_an_hour: OnceAnHour,
    ring: Mutex<RecentRecords>,
    recorded: AtomicU64,
    dropped: AtomicU64,
    unwritten: AtomicU64,
    stopping: AtomicBool,
}

impl AuditLog {
    /// Opens the log in a data directory and starts its writer. If the file cannot be read or written, the error is
    /// logged, the server continues, and the next record tries again.
    pub fn open(
        data: &Path,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> io::Result<AuditLog> {
        AuditLog::with(AuditFile::at(&data.join(AUDIT_FILE)), Arc::new(now))
    }

    fn with(file: AuditFile, now: ClockFn) -> io::Result<AuditLog> {
        let shared = Arc::new(AuditShared {
            now,
            aggregator: Mutex::default(),
            once_an_hour: OnceAnHour::default(),
            ring: Mutex::default(),
            recorded: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            unwritten: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        });
        let (waiting, entries) = sync_channel(WAITING_MAX);
        let mut writer = AuditWriter::new(shared.clone(), file);
        writer.restore();
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let thread = thread.spawn(move || writer.run(&entries))?;
        Ok(AuditLog { shared, waiting, writer: Mutex::new(Some(thread)) })
    }

    /// Writes the waiting entries and stops the writer, with a timeout.
    pub fn close(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        let _ = self.waiting.try_send(WriterMessage::Wake);
        let Some(writer) = self.writer.lock().take() else { return };
        let mut patience = STOP_PATIENCE;
        const STEP: Duration = Duration::from_millis(5);
        while !writer.is_finished() && !patience.is_zero() {
            std::thread::sleep(STEP);
            patience = patience.saturating_sub(STEP);
        }
        match writer.is_finished() {
            true => drop(writer.join()),
            false => tracing::warn!("the last audit records may be lost"),
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.close();
    }
}

impl Audit for AuditLog {
    fn record(&self, entry: AuditEntry) {
        let at = (self.shared.now)();
        self.shared.recorded.fetch_add(1, Ordering::Relaxed);
        if !is_operation(&entry) {
            self.shared.aggregator.lock().add(at, entry);
        } else if self.waiting.try_send(WriterMessage::Entry(at, entry)).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_due(
        &self,
        who: &Principal,
        peer: IpAddr,
        protocol: AuditProtocol,
        action: AuditAction,
    ) -> bool {
        self.shared.once_an_hour.is_due((who.clone(), peer, protocol, action), (self.shared.now)())
    }

    fn read(&self, query: &AuditQuery) -> AuditPage {
        self.shared.ring.lock().read(query)
    }

    fn counts(&self) -> AuditCounts {
        let AuditShared { recorded, dropped, unwritten, .. } = &*self.shared;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        AuditCounts { recorded: get(recorded), dropped: get(dropped), unwritten: get(unwritten) }
    }
}
