//! Audit records of commands that work on the data directory, with or without a running server.

use std::io;
use std::path::Path;
use std::time::Duration;

use malote_engine::clock::{Clock, SystemClock};
use malote_model::audit::AuditRecord;
use malote_model::{AuditAction, AuditEntry, AuditProtocol, CallerKind, Timestamp};

use super::file::{AUDIT_FILE, AuditFile};
use crate::files::{self, FileLock};

/// Timeout of the lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// Writes records in the name of the operating-system user who runs the command.
pub struct LocalAudit {
    file: AuditFile,
    user: String,
}

impl LocalAudit {
    pub fn at(data: &Path) -> LocalAudit {
        LocalAudit { file: AuditFile::at(&data.join(AUDIT_FILE)), user: os_user() }
    }

    pub fn record(&mut self, action: AuditAction, object: &str, detail: &str) -> io::Result<()> {
        let entry = AuditEntry::new(AuditProtocol::Cli, action)
            .claimed(&self.user, CallerKind::OsUser)
            .on(object)
            .detail(detail);
        let _lock = FileLock::within(self.file.path(), PATIENCE)?;
        let seq = self.file.last()? + 1;
        let at = SystemClock::starting_at(Timestamp(0)).now();
        self.file.write(&[AuditRecord { seq, at, count: 1, entry }])
    }
}

/// The name of the user who runs this process, or the numeric id if there is no name.
fn os_user() -> String {
    let uid = rustix::process::getuid().as_raw();
    let users = files::read_text(Path::new("/etc/passwd")).unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| format!("uid {uid}"))
}
