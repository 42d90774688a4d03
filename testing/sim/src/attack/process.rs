//! The attacked process: its memory, and a key for it.
#![allow(clippy::disallowed_methods, reason = "reads the state of a real process")]

use std::fs::read_to_string;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

pub(super) struct Process {
    status: String,
}

impl Process {
    pub(super) fn new(pid: u32) -> Process {
        Process { status: format!("/proc/{pid}/status") }
    }

    /// Resident memory in bytes.
    pub(super) fn resident(&self) -> Result<u64> {
        let text = read_to_string(&self.status).context("the server has ended")?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.context("/proc reports no resident memory")? << 10)
    }
}

/// Name of a key that may use queues whose names begin with `a`.
pub(super) const KEY: &str = "forger";

/// Creates that key and returns its secret.
pub(super) fn create_key(binary: &Path, data: &Path) -> Result<String> {
    let made = Command::new(binary)
        .args(["key", "add", "servicebus", "--id", KEY, "-o", "json"])
        .args(["--grant", "send,receive,manage a*", "--data"])
        .arg(data)
        .output()
        .context("cannot start the binary")?;
    if !made.status.success() {
        bail!("`malote key add` failed: {}", String::from_utf8_lossy(&made.stderr));
    }
    let made: serde_json::Value = serde_json::from_slice(&made.stdout)?;
    let secret = made["secret"].as_str().context("the new key has no secret")?;
    Ok(secret.to_owned())
}
