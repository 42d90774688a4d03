//! The audit log: who signed in and who administered what, in memory and in `audit.log`.
//!
//! | part | what it does |
//! |---|---|
//! | `mod.rs` | takes entries from front ends, never waiting; answers queries |
//! | `repeated.rs` | counts identical logins and refusals, so that a flood of them is a few records |
//! | `rarely.rs` | what happens with every request is recorded once an hour |
//! | `writer.rs` | the thread that numbers records, and writes them |
//! | `ring.rs` | the newest records, in memory |
//! | `file.rs` | the lines of `audit.log`: appending, reading, rotation, two processes |
//! | `local.rs` | records of commands that work on the data directory |
//!
//! Everything is bounded. Logins and refusals cannot push out what was carried out by those who may administer: they
//! wait, and are kept, apart from it.

mod file;
mod local;
mod rarely;
mod repeated;
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

use file::AuditFile;
use rarely::Rarely;
use repeated::Repeated;
use ring::Ring;
use writer::Writer;

/// Records that wait to be written. At the bound they are dropped and counted.
const WAITING_MAX: usize = 4096;

/// How long a stop may take: the disk may hang.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Tells the time.
type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The audit log of a running server.
pub struct AuditLog {
    shared: Arc<Shared>,
    waiting: SyncSender<Waiting>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// An entry on its way to the writer, or the wish that it look around.
enum Waiting {
    Entry(Timestamp, AuditEntry),
    Wake,
}

/// Whether somebody administered something, or may have. Anybody can cause the other records: logins and refusals.
fn is_operation(entry: &AuditEntry) -> bool {
    entry.action != AuditAction::Login && !matches!(entry.outcome, AuditOutcome::Refused(_))
}

/// What front ends and the writer have in common.
struct Shared {
    now: Now,
    repeated: Mutex<Repeated>,
    rarely: Rarely,
    ring: Mutex<Ring>,
    recorded: AtomicU64,
    dropped: AtomicU64,
    unwritten: AtomicU64,
    stopping: AtomicBool,
}

impl AuditLog {
    /// Opens the log in a data directory and starts its writer. A file that cannot be read or written is logged, and
    /// tried again with the next record: the server serves without it.
    pub fn open(
        data: &Path,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> io::Result<AuditLog> {
        AuditLog::with(AuditFile::at(&data.join(AUDIT_FILE)), Arc::new(now))
    }

    fn with(file: AuditFile, now: Now) -> io::Result<AuditLog> {
        let shared = Arc::new(Shared {
            now,
            repeated: Mutex::default(),
            rarely: Rarely::default(),
            ring: Mutex::default(),
            recorded: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            unwritten: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        });
        let (waiting, entries) = sync_channel(WAITING_MAX);
        let mut writer = Writer::new(shared.clone(), file);
        writer.restore();
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let thread = thread.spawn(move || writer.run(&entries))?;
        Ok(AuditLog { shared, waiting, writer: Mutex::new(Some(thread)) })
    }

    /// Writes what waits and stops the writer; gives up after a short time.
    pub fn close(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        let _ = self.waiting.try_send(Waiting::Wake);
        let Some(writer) = self.writer.lock().take() else { return };
        let mut patience = STOP_PATIENCE;
        const STEP: Duration = Duration::from_millis(5);
        while !writer.is_finished() && !patience.is_zero() {
            std::thread::sleep(STEP);
            patience = patience.saturating_sub(STEP);
        }
        match writer.is_finished() {
            true => drop(writer.join()),
            false => tracing::warn!("the last records of the audit log may not be written"),
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
            self.shared.repeated.lock().add(at, entry);
        } else if self.waiting.try_send(Waiting::Entry(at, entry)).is_err() {
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
        self.shared.rarely.is_due((who.clone(), peer, protocol, action), (self.shared.now)())
    }

    fn read(&self, query: &AuditQuery) -> AuditPage {
        self.shared.ring.lock().read(query)
    }

    fn counts(&self) -> AuditCounts {
        let Shared { recorded, dropped, unwritten, .. } = &*self.shared;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        AuditCounts { recorded: get(recorded), dropped: get(dropped), unwritten: get(unwritten) }
    }
}
