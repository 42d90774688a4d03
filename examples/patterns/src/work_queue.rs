//! One queue and many workers: a free worker takes the next job. Each job is handled by one worker at a time. A failed
//! job is retried. A job that always fails is dead-lettered and does not block the others.
//!
//! To get more done, start more processes.

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

/// The workers that did each job.
type Done = Arc<Mutex<HashMap<u32, Vec<usize>>>>;

struct WorkerNumber(usize);

async fn resize(
    job: Resize,
    Attempt(attempt): Attempt,
    worker: State<WorkerNumber>,
    done: State<Done>,
) -> Result<(), Failure> {
    tokio::time::sleep(Duration::from_millis(1)).await; // the work
    if job.picture % 50 == 7 {
        return Err(Failure::retry("the file is broken")); // every time
    }
    if job.picture % 10 == 3 && attempt == 1 {
        return Err(Failure::retry("the disk was full")); // once
    }
    done.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(job.picture)
        .or_default()
        .push(worker.0);
    Ok(())
}

/// Waits until a condition is true.
pub async fn until(is_true: impl Fn() -> bool) -> anyhow::Result<()> {
    let started = tokio::time::Instant::now();
    while !is_true() {
        ensure!(started.elapsed() < Duration::from_secs(120), "timed out");
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
    for number in 0..WORKERS {
        let worker = Worker::new(malote, QUEUE).handle(resize).slots(4);
        let worker =
            worker.retry(Retry::at_once(3)).state(WorkerNumber(number)).state(done.clone());
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
    checks.check(
        "every other job was done once",
        done.len() == JOBS as usize - broken && done.values().all(|by| by.len() == 1),
        format!("{} of {} jobs, {retried} retries", done.len(), JOBS as usize - broken),
    );
    let mut by: Vec<usize> = done.values().flatten().copied().collect();
    by.sort_unstable();
    by.dedup();
    checks.check("the workers shared the work", by.len() > 1, format!("{} workers", by.len()));
    checks.check(
        "jobs that always fail are dead-lettered",
        dead as usize == broken,
        format!("{dead} of {broken}"),
    );
    Ok(())
}
