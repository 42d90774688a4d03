//! The built binary on a real file system that fills up. While the disk is full, sends are refused and settlements work.
//! Once space is free again, because messages were settled or another file was deleted, sends work without a restart.
//!
//! Clients and checks are those of the kill -9 loop. No acknowledged message may be lost, and no refused
//! one delivered.
#![allow(clippy::disallowed_methods, reason = "runs a real process on a real disk, in real time")]

mod image;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::crash::clients::{Shared, now, send};
use crate::crash::server::Server;
use crate::crash::{Protocol, declare, receiver};
use image::{Image, MountError, free_mib};

/// Large messages, so that the disk fills soon.
const PADDING_MAX: u64 = 64 << 10;
/// Timeout of each step.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    /// Not possible on this machine; the reason was printed.
    Skipped,
}

/// Fills the disk, drains the queues and fills it again, `rounds` times.
pub fn run(rounds: u64, image_mib: u64, binary: &Path, seed: u64) -> Result<Outcome> {
    let image = match Image::mount(image_mib << 20) {
        Ok(image) => image,
        Err(MountError::Unsupported) => {
            println!("skipped: this kernel has no loop devices");
            return Ok(Outcome::Skipped);
        }
        Err(MountError::Unavailable(why)) if std::env::var_os("CI").is_some() => bail!("{why}"),
        Err(MountError::Unavailable(why)) => {
            println!("skipped: {why}");
            return Ok(Outcome::Skipped);
        }
    };
    let mut server = Server::new(binary, &image.data())?;
    server.start()?;
    declare(&server)?;
    let shared = Shared::new(server.at, PADDING_MAX);
    shared.slow.store(true, Ordering::Relaxed);
    let threads = clients(&shared, seed);
    let mut run = Run { begun: Instant::now(), shared, server, image };
    for round in 0..rounds {
        run.print_status(&format!("round {round}"));
        run.filled_by_messages()?;
        run.filled_by_another_program()?;
        run.killed_while_full()?;
    }
    run.shared.set_paused(true);
    run.drain()?;
    let mut fine = run.shared.finish(threads)?;
    for (code, count) in &run.shared.history().refusals {
        if code != "disk_full" && code != "busy" {
            println!("{count} messages were refused as {code} instead of disk_full");
            fine = false;
        }
    }
    Ok(if fine { Outcome::Passed } else { Outcome::Failed })
}

/// Senders and receivers of both protocols. Each sender has its own sessions.
fn clients(shared: &Arc<Shared>, seed: u64) -> Vec<JoinHandle<()>> {
    let mut threads = Vec::new();
    for n in 0..4 {
        let protocol = if n % 2 == 0 { Protocol::Http } else { Protocol::Native };
        let shared = shared.clone();
        threads.push(spawn(move || send(&shared, protocol, n, seed + n)));
    }
    threads.extend((0..3).map(|n| receiver(shared, Protocol::Http, n)));
    threads.extend((0..2).map(|n| receiver(shared, Protocol::Native, n)));
    threads
}

struct Run {
    begun: Instant,
    shared: Arc<Shared>,
    server: Server,
    /// Declared after the server, so that the server is stopped before the image is unmounted.
    image: Image,
}

/// Counters of the history at one moment.
#[derive(Clone, Copy)]
struct Counts {
    acknowledged: usize,
    completed: usize,
    refused: u64,
}

impl Run {
    fn counts(&self) -> Counts {
        let history = self.shared.history();
        Counts {
            acknowledged: history.count_acknowledged(),
            completed: history.count_completed(),
            refused: history.refusals.values().sum(),
        }
    }

    fn print_status(&self, what: &str) {
        let Counts { acknowledged, completed, refused } = self.counts();
        println!(
            "{:6.1} s  {what}: acknowledged {acknowledged}, completed {completed}, refused {refused}, {} MiB free",
            self.begun.elapsed().as_secs_f32(),
            free_mib(&self.image.root())
        );
    }

    fn wait(&self, what: &str, reached: impl Fn(Counts) -> bool) -> Result<()> {
        let since = Instant::now();
        while !reached(self.counts()) {
            if since.elapsed() > TIMEOUT {
                self.print_status(what);
                bail!("{what}: not within {} s", TIMEOUT.as_secs());
            }
            sleep(Duration::from_millis(50));
        }
        self.print_status(what);
        Ok(())
    }

    fn set_slow(&self, slow: bool) {
        self.shared.slow.store(slow, Ordering::Relaxed);
    }

    /// Checks that sends are refused repeatedly and that settlements still work.
    fn check_full(&self) -> Result<()> {
        let before = self.counts();
        self.wait("sends are refused", |now| now.refused > before.refused + 200)?;
        let full = self.counts();
        self.wait("settlements work", |now| now.completed > full.completed + 20)
    }

    fn check_resumed(&self) -> Result<()> {
        let before = self.counts();
        self.wait("sends work again", |now| now.acknowledged > before.acknowledged + 200)
    }

    /// Waits until all acknowledged messages were received.
    fn drain(&self) -> Result<()> {
        self.set_slow(false);
        self.shared.wait_until_drained();
        self.print_status("drained");
        let left = self.shared.history().missing().len();
        if left > 0 {
            bail!("{left} acknowledged messages were not received");
        }
        Ok(())
    }

    fn filled_by_messages(&self) -> Result<()> {
        self.set_slow(true);
        self.check_full()?;
        self.shared.set_paused(true);
        self.drain()?;
        self.shared.set_paused(false);
        self.check_resumed()
    }

    fn filled_by_another_program(&self) -> Result<()> {
        self.set_slow(true);
        let mib = self.image.fill_disk()? >> 20;
        self.print_status(&format!("another program took {mib} MiB"));
        self.check_full()?;
        self.image.remove_filler()?;
        self.check_resumed()
    }

    /// Fills the disk to the last byte, kills the server and restarts it without freeing space.
    fn killed_while_full(&mut self) -> Result<()> {
        self.set_slow(true);
        self.check_full()?;
        self.image.fill_disk()?;
        self.print_status("no byte is free");
        self.server.kill()?;
        self.shared.history().killed(now());
        let down = Instant::now();
        self.server.start()?;
        self.print_status(&format!("started on a full disk in {} ms", down.elapsed().as_millis()));
        self.check_full()?;
        self.shared.set_paused(true);
        self.drain()?;
        self.image.remove_filler()?;
        self.shared.set_paused(false);
        self.check_resumed()
    }
}
