//! The thread that numbers records and writes them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use malote_model::audit::AuditRecord;
use malote_model::{AuditAction, AuditEntry, AuditProtocol, CallerKind, Timestamp};

use super::file::AuditFile;
use super::{Shared, Waiting};

/// How often logins and refusals are collected, and the file is looked at for records of other processes.
const TICK: Duration = Duration::from_millis(250);
/// Records written at once.
const BATCH_MAX: usize = 256;

/// Something that happened, for the first time at a time, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Counted {
    pub at: Timestamp,
    pub count: u64,
    pub entry: AuditEntry,
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    file: AuditFile,
    /// Dropped records that the log tells of.
    dropped_told: u64,
    /// The last attempt failed: said once, until one succeeds.
    failing: bool,
}

impl Writer {
    pub fn new(shared: Arc<Shared>, file: AuditFile) -> Writer {
        Writer { shared, file, dropped_told: 0, failing: false }
    }

    /// Takes up the newest records that were written before this start.
    pub fn restore(&mut self) {
        match self.file.open() {
            Ok(records) => self.keep(records),
            Err(error) => self.failed(&error),
        }
    }

    pub fn run(mut self, entries: &Receiver<Waiting>) {
        loop {
            let mut batch = Vec::new();
            let mut next = entries.recv_timeout(TICK);
            let over = matches!(next, Err(RecvTimeoutError::Disconnected));
            while let Ok(waiting) = next {
                if let Waiting::Entry(at, entry) = waiting {
                    batch.push(Counted { at, count: 1, entry });
                }
                if batch.len() >= BATCH_MAX {
                    break;
                }
                next = entries.try_recv().map_err(|_| RecvTimeoutError::Timeout);
            }
            let full = batch.len() >= BATCH_MAX;
            let stopping = over || self.shared.stopping.load(Ordering::Acquire);
            let now = (self.shared.now)();
            batch.extend(self.shared.repeated.lock().take(now, stopping));
            batch.extend(self.dropped(now));
            if !batch.is_empty() || self.file.has_news() {
                self.write(batch);
            }
            if stopping && !full {
                return;
            }
        }
    }

    /// A record of those that were dropped since the last such record.
    fn dropped(&mut self, at: Timestamp) -> Option<Counted> {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        let count = dropped - self.dropped_told;
        if count == 0 {
            return None;
        }
        self.dropped_told = dropped;
        tracing::warn!(count, "records of the audit log were dropped: too many came at once");
        let entry = AuditEntry::new(AuditProtocol::Server, AuditAction::Dropped);
        Some(Counted { at, count, entry: entry.claimed("server", CallerKind::Server) })
    }

    fn write(&mut self, batch: Vec<Counted>) {
        let locked = self.file.lock().map(|(lock, records)| {
            self.keep(records);
            lock
        });
        let mut seq = self.shared.ring.lock().last();
        let number = |Counted { at, count, entry }| {
            seq += 1;
            AuditRecord { seq, at, count, entry }
        };
        let records: Vec<AuditRecord> = batch.into_iter().map(number).collect();
        // Before the file, which may hang.
        self.keep(records.clone());
        let written = locked.and_then(|_lock| self.file.write(&records));
        match written {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!("the audit log is written again");
            }
            Ok(()) => {}
            Err(error) => {
                self.shared.unwritten.fetch_add(records.len() as u64, Ordering::Relaxed);
                self.failed(&error);
            }
        }
    }

    fn keep(&self, records: Vec<AuditRecord>) {
        let mut ring = self.shared.ring.lock();
        records.into_iter().for_each(|record| ring.push(record));
    }

    fn failed(&mut self, error: &io::Error) {
        if !self.failing {
            tracing::error!(
                path = %self.file.path().display(), %error,
                "the audit log cannot be written: records are in memory only"
            );
        }
        self.failing = true;
    }
}
