//! One queue, many workers: whoever is free takes the next job. Each job is one worker's at a time, a job that fails
//! comes again, and one that always fails goes to the dead letters instead of standing in the way.
//!
//! Add processes to get more done; nothing else changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use malote::{Attempt, Failure, Malote, QueueSpec, Retry, State, Worker};
use serde::{Deserialize, Serialize};

use crate::Checks;

const QUEUE: &str = "resize";
const JOBS: u32 = 200;
const WORKERS: usize = 4;

#[derive(Serialize, Deserialize)]
struct Resize {
    picture: u32,
}

/// Who did what.
type Done = Arc<Mutex<HashMap<u32, Vec<usize>>>>;

struct Me(usize);

async fn resize(
    job: Resize,
    Attempt(attempt): Attempt,
    me: State<Me>,
    done: State<Done>,
) -> Result<(), Failure> {
    tokio::time::sleep(Duration::from_millis(1)).await; // the work
    if job.picture % 50 == 7 {
        return Err(Failure::retry("the file is broken")); // every time
    }
    if job.picture % 10 == 3 && attempt == 1 {
        return Err(Failure::retry("the disk was full")); // once
    }
    done.lock().unwrap_or_else(PoisonError::into_inner).entry(job.picture).or_default().push(me.0);
    Ok(())
}

/// Waits until something is so.
pub async fn until(is_so: impl Fn() -> bool) -> anyhow::Result<()> {
    let begun = tokio::time::Instant::now();
    while !is_so() {
        ensure!(begun.elapsed() < Duration::from_secs(120), "it stands still");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

pub async fn run(malote: &Malote, checks: &mut Checks) -> anyhow::Result<()> {
    malote.declare(QUEUE, QueueSpec::default()).await?;
    for picture in 0..JOBS {
        malote.send(QUEUE, &Resize { picture }).await?;
    }
    let done = Done::default();
    let mut workers = Vec::new();
    for nth in 0..WORKERS {
        let worker = Worker::new(malote, QUEUE).handle(resize).slots(4);
        let worker = worker.retry(Retry::at_once(3)).state(Me(nth)).state(done.clone());
        workers.push(worker.start().await?);
    }
    let counted =
        |of: fn(&malote::Counts) -> u64| workers.iter().map(|w| of(&w.counts())).sum::<u64>();
    until(|| counted(|counts| counts.done + counts.dead) >= u64::from(JOBS)).await?;
    let (retried, dead) = (counted(|counts| counts.retried), counted(|counts| counts.dead));
    for worker in workers {
        worker.stop();
        worker.ended().await?;
    }
    let done = done.lock().unwrap_or_else(PoisonError::into_inner);
    let broken = (0..JOBS).filter(|picture| picture % 50 == 7).count();
    checks.line(
        "every job that can be done was done once",
        done.len() == JOBS as usize - broken && done.values().all(|by| by.len() == 1),
        format!("{} of {} jobs, {retried} attempts more", done.len(), JOBS as usize - broken),
    );
    let mut by: Vec<usize> = done.values().flatten().copied().collect();
    by.sort_unstable();
    by.dedup();
    checks.line("the work was shared", by.len() > 1, format!("{} workers", by.len()));
    checks.line(
        "what always fails is a dead letter",
        dead as usize == broken,
        format!("{dead} of {broken}"),
    );
    Ok(())
}
