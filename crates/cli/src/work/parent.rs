//! The way from a replica to the process that started it: a socket in the place of standard input.
//!
//! A line of JSON tells how the replica does. When the other end is gone, so is the parent, however it ended.

use std::os::fd::AsFd;

use anyhow::{Context, Result, bail};
use malote::Metrics;
use rustix::fs::{FileType, fstat};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// How long a line may be.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// The parent of a replica.
pub(super) struct Parent {
    line: UnixStream,
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
        Ok(Self { line: UnixStream::from_std(line)? })
    }

    /// Says how this replica does. An error means that nobody is there.
    pub(super) async fn tell(&mut self, metrics: &Metrics) -> Result<()> {
        let mut text = serde_json::to_vec(metrics)?;
        text.push(b'\n');
        Ok(self.line.write_all(&text).await?)
    }

    /// Waits until nobody is there.
    pub(super) async fn gone(&mut self) {
        // It says nothing: whatever is read is not for us.
        let mut some = [0; 64];
        while matches!(self.line.read(&mut some).await, Ok(1..)) {}
    }
}

/// What a replica says, as it comes.
#[derive(Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
}

impl Lines {
    /// Reads more; false when there is no more to come. Nothing is lost when it is dropped while it waits.
    pub(super) async fn more(&mut self, line: &mut UnixStream) -> bool {
        // Nobody writes such a line: what cannot be read is not kept.
        if self.bytes.len() > LINE_BYTES_MAX {
            self.bytes.clear();
        }
        matches!(line.read_buf(&mut self.bytes).await, Ok(1..))
    }

    /// The newest that was said completely, if anything was since the last time.
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
    async fn what_is_told_arrives_and_an_end_is_seen() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut parent = Parent { line: theirs };
        let (mut lines, mut metrics) = (Lines::default(), Metrics::default());
        for busy in 1..=3 {
            metrics.busy = busy;
            parent.tell(&metrics).await.unwrap();
        }
        // However the bytes come in, the newest whole line is what counts.
        while lines.more(&mut ours).await {
            if lines.newest().is_some_and(|newest| newest.busy == 3) {
                break;
            }
        }
        assert_eq!(lines.newest(), None);
        drop(ours);
        parent.gone().await;
        assert!(parent.tell(&metrics).await.is_err());
    }
}
