//! The thread that numbers records and writes them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use malote_model::audit::AuditRecord;
use malote_model::{AuditAction, AuditEntry, AuditProtocol, CallerKind, Timestamp};

use super::file::AuditFile;
use super::{AuditShared, WriterMessage};

/// How often aggregated entries are collected, and the file is checked for records of other processes.
const TICK: Duration = Duration::from_millis(250);
/// Records per write.
const BATCH_MAX: usize = 256;

/// An entry, the time of its first occurrence, and its count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CountedEntry {
    pub at: Timestamp,
    pub count: u64,
    pub entry: AuditEntry,
}

pub(super) struct AuditWriter {
    shared: Arc<AuditShared>,
    file: AuditFile,
    /// Dropped entries that were already reported.
    dropped_reported: u64,
    /// The last write failed. Logged once, until a write succeeds.
    failing: bool,
}

impl AuditWriter {
    pub fn new(shared: Arc<AuditShared>, file: AuditFile) -> AuditWriter {
        AuditWriter { shared, file, dropped_reported: 0, failing: false }
    }

    /// Loads the newest records from before this start.
    pub fn restore(&mut self) {
        match self.file.open() {
            Ok(records) => self.keep(records),
            Err(error) => self.failed(&error),
        }
    }

    pub fn run(mut self, entries: &Receiver<WriterMessage>) {
        loop {
            let mut batch = Vec::new();
            let mut next = entries.recv_timeout(TICK);
            let over = matches!(next, Err(RecvTimeoutError::Disconnected));
            while let Ok(waiting) = next {
                if let WriterMessage::Entry(at, entry) = waiting {
                    batch.push(CountedEntry { at, count: 1, entry });
                }
                if batch.len() >= BATCH_MAX {
                    break;
                }
                next = entries.try_recv().map_err(|_| RecvTimeoutError::Timeout);
            }
            let full = batch.len() >= BATCH_MAX;
            let stopping = over || self.shared.stopping.load(Ordering::Acquire);
            let now = (self.shared.now)();
            batch.extend(self.shared.aggregator.lock().take(now, stopping));
            batch.extend(self.dropped(now));
            if !batch.is_empty() || self.file.has_changed() {
                self.write(batch);
            }
            if stopping && !full {
                return;
            }
        }
    }

    /// A record of the entries that were dropped since the last such record.
    fn dropped(&mut self, at: Timestamp) -> Option<CountedEntry> {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        let count = dropped - self.dropped_reported;
        if count == 0 {
            return None;
        }
        self.dropped_reported = dropped;
        tracing::warn!(count, "audit records dropped: too many at once");
        let entry = AuditEntry::new(AuditProtocol::Server, AuditAction::Dropped);
        Some(CountedEntry { at, count, entry: entry.claimed("server", CallerKind::Server) })
    }

    fn write(&mut self, batch: Vec<CountedEntry>) {
        let locked = self.file.lock().map(|(lock, records)| {
            self.keep(records);
            lock
        });
        let mut seq = self.shared.ring.lock().last();
        let number = |CountedEntry { at, count, entry }| {
            seq += 1;
            AuditRecord { seq, at, count, entry }
        };
        let records: Vec<AuditRecord> = batch.into_iter().map(number).collect();
        // Before writing the file, which may hang.
        self.keep(records.clone());
        let written = locked.and_then(|_lock| self.file.write(&records));
        match written {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!("writing the audit log works again");
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
                "cannot write the audit log; records are kept in memory only"
            );
        }
        self.failing = true;
    }
}
