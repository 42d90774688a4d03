//! The connection of a replica to its parent process: a socket as standard input.
//!
//! The replica writes its metrics as lines of JSON. When the other end is closed, the parent process is gone.

use std::os::fd::AsFd;

use anyhow::{Context, Result, bail};
use malote::Metrics;
use rustix::fs::{FileType, fstat};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Maximum length of a line.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// The parent of a replica.
pub(super) struct Parent {
    socket: UnixStream,
}

impl Parent {
    pub(super) fn at_stdin() -> Result<Self> {
        let fd = std::io::stdin().as_fd().try_clone_to_owned().context("no standard input")?;
        let kind = FileType::from_raw_mode(fstat(&fd)?.st_mode);
        if kind != FileType::Socket {
            bail!("--replica is for processes that `malote work --scale` starts");
        }
        let line = std::os::unix::net::UnixStream::from(fd);
        line.set_nonblocking(true)?;
        Ok(Self { socket: UnixStream::from_std(line)? })
    }

    /// Reports the metrics of this replica. An error means that the parent is gone.
    pub(super) async fn report(&mut self, metrics: &Metrics) -> Result<()> {
        let mut text = serde_json::to_vec(metrics)?;
        text.push(b'\n');
        Ok(self.socket.write_all(&text).await?)
    }

    /// Waits until the parent is gone.
    pub(super) async fn gone(&mut self) {
        // The parent writes nothing; input is ignored.
        let mut some = [0; 64];
        while matches!(self.socket.read(&mut some).await, Ok(1..)) {}
    }
}

/// The reports of a replica, read as they arrive.
#[derive(Default)]
pub(super) struct ReportReader {
    bytes: Vec<u8>,
}

impl ReportReader {
    /// Reads more bytes; false at the end. Cancel-safe.
    pub(super) async fn more(&mut self, socket: &mut UnixStream) -> bool {
        // No report is that long: drop what cannot be one.
        if self.bytes.len() > LINE_BYTES_MAX {
            self.bytes.clear();
        }
        matches!(socket.read_buf(&mut self.bytes).await, Ok(1..))
    }

    /// The newest complete report since the last call.
    pub(super) fn newest(&mut self) -> Option<Metrics> {
        let end = self.bytes.iter().rposition(|byte| *byte == b'\n')?;
        let whole: Vec<u8> = self.bytes.drain(..=end).collect();
        let last = whole[..end].rsplit(|byte| *byte == b'\n').next()?;
        serde_json::from_slice(last).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_arrive_and_the_end_is_reported() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut parent = Parent { socket: theirs };
        let (mut lines, mut metrics) = (ReportReader::default(), Metrics::default());
        for busy in 1..=3 {
            metrics.busy = busy;
            parent.report(&metrics).await.unwrap();
        }
        // Lines may arrive in pieces; the newest complete one counts.
        while lines.more(&mut ours).await {
            if lines.newest().is_some_and(|newest| newest.busy == 3) {
                break;
            }
        }
        assert_eq!(lines.newest(), None);
        drop(ours);
        parent.gone().await;
        assert!(parent.report(&metrics).await.is_err());
    }
}
