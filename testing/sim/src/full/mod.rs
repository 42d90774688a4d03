//! The real binary on a real file system that is full: sending is refused, settling goes on, and when space returns,
//! by what was settled or by a neighbour's file that is gone, sending goes on as well, without a restart.
//!
//! Clients and the checker are those of the kill -9 loop. Nothing acknowledged may be lost, nothing refused may come.
#![allow(
    clippy::disallowed_methods,
    reason = "a real process on a real disk, by the machine's clock"
)]

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
use image::{Image, Missing, free_mib};

/// Large messages: the disk is what runs out.
const PADDING_MAX: u64 = 64 << 10;
/// Longer than any step takes; the end of it is a failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    /// Not possible here; why was said.
    Skipped,
}

/// Fills the disk, empties it and fills it again, `rounds` times.
pub fn run(rounds: u64, image_mib: u64, binary: &Path, seed: u64) -> Result<Outcome> {
    let image = match Image::mount(image_mib << 20) {
        Ok(image) => image,
        Err(Missing::Kernel) => {
            println!("skipped: this kernel has no loop devices");
            return Ok(Outcome::Skipped);
        }
        Err(Missing::Machine(why)) if std::env::var_os("CI").is_some() => bail!("{why}"),
        Err(Missing::Machine(why)) => {
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
        run.say(&format!("round {round}"));
        run.filled_by_messages()?;
        run.filled_by_a_neighbour()?;
        run.killed_while_full()?;
    }
    run.shared.quiet(true);
    run.drain()?;
    let mut fine = run.shared.finish(threads)?;
    for (code, count) in &run.shared.history().refusals {
        if code != "disk_full" && code != "busy" {
            println!("{count} messages were refused as {code}: not what a full disk is called");
            fine = false;
        }
    }
    Ok(if fine { Outcome::Passed } else { Outcome::Failed })
}

/// Senders and receivers of both protocols. Each sender has sessions of its own.
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
    /// After the server: it is mounted as long as somebody uses it.
    image: Image,
}

/// So far.
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

    fn say(&self, what: &str) {
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
            if since.elapsed() > PATIENCE {
                self.say(what);
                bail!("{what}: not within {} s", PATIENCE.as_secs());
            }
            sleep(Duration::from_millis(50));
        }
        self.say(what);
        Ok(())
    }

    fn pace(&self, slow: bool) {
        self.shared.slow.store(slow, Ordering::Relaxed);
    }

    /// Senders are refused, again and again, and what was taken can be settled.
    fn is_full(&self) -> Result<()> {
        let before = self.counts();
        self.wait("sending is refused", |now| now.refused > before.refused + 200)?;
        let full = self.counts();
        self.wait("settling goes on", |now| now.completed > full.completed + 20)
    }

    fn resumes(&self) -> Result<()> {
        let before = self.counts();
        self.wait("sending goes on", |now| now.acknowledged > before.acknowledged + 200)
    }

    /// Everything that was acknowledged is received.
    fn drain(&self) -> Result<()> {
        self.pace(false);
        self.shared.drained();
        self.say("drained");
        let left = self.shared.history().missing().len();
        if left > 0 {
            bail!("{left} acknowledged messages did not come");
        }
        Ok(())
    }

    fn filled_by_messages(&self) -> Result<()> {
        self.pace(true);
        self.is_full()?;
        self.shared.quiet(true);
        self.drain()?;
        self.shared.quiet(false);
        self.resumes()
    }

    fn filled_by_a_neighbour(&self) -> Result<()> {
        self.pace(true);
        let mib = self.image.put_ballast()? >> 20;
        self.say(&format!("a neighbour took {mib} MiB"));
        self.is_full()?;
        self.image.remove_ballast()?;
        self.resumes()
    }

    /// Full to the last byte, killed, and started again with no more room than it had.
    fn killed_while_full(&mut self) -> Result<()> {
        self.pace(true);
        self.is_full()?;
        self.image.put_ballast()?;
        self.say("not a byte is free");
        self.server.kill()?;
        self.shared.history().killed(now());
        let down = Instant::now();
        self.server.start()?;
        self.say(&format!("started on a full disk in {} ms", down.elapsed().as_millis()));
        self.is_full()?;
        self.shared.quiet(true);
        self.drain()?;
        self.image.remove_ballast()?;
        self.shared.quiet(false);
        self.resumes()
    }
}
