//! What the journal costs beside the bare disk: `cargo run --release -p malote-engine --example journal [DIR]`.
//!
//! Prints the appender's frames per second, one commit in flight against a raw
//! fdatasync in the same run, and the pipelined rate. Nothing is asserted.
#![allow(clippy::disallowed_methods)] // it measures time, which the engine must not

use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use malote_engine::disk::{Disk, OsDisk};
use malote_engine::journal::{
    Appender, Callbacks, Chunks, Commit, Options, Pipeline, Pos, Recovered, Replay, SpareStep,
    recover,
};

struct Nothing;

impl Replay for Nothing {
    fn restore(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
    fn apply(&mut self, _: Pos, _: u8, _: &[u8]) {}
    fn save(&self, _: &mut Vec<u8>) {}
    fn live(&self, _: &mut dyn FnMut(Pos, u64)) {}
}

fn append(appender: &mut Appender, frames: usize, body: &[u8]) -> Result<(), Box<dyn Error>> {
    for _ in 0..frames {
        appender.begin();
        appender.frame(1, |out| out.extend_from_slice(body));
        appender.end(false)?;
    }
    Ok(())
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100];
    format!("p50 {:?}, p99 {:?}", at(50), at(99))
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "target/journal-example".into());
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::open(&dir)?);
    let options = Options { spares: 6, ..Options::default() };
    let start = Instant::now();
    let Recovered { mut appender, writer, syncer, mut spare_maker, report, .. } =
        recover(disk.clone(), &options, &mut Nothing)?;
    println!("opened in {:?}: {} frames replayed", start.elapsed(), report.frames);
    while spare_maker.step()? == SpareStep::Worked {}

    let body = [7; 100];
    let mut kept = Vec::new();
    append(&mut appender, 10_000, &body)?; // leave the small first segment
    kept.extend(appender.take());
    let start = Instant::now();
    let frames = 1_000_000;
    for _ in 0..frames / 1000 {
        append(&mut appender, 1000, &body)?;
        kept.extend(appender.take());
    }
    let rate = frames as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("appender: {rate:.2} M frames/s of {} B", body.len());

    let raw = disk.create("raw")?;
    raw.write_at(&vec![0; 16 << 20], 0)?;
    raw.sync_all()?;
    let mut times = Vec::new();
    for n in 0..2000 {
        let start = Instant::now();
        raw.write_at(&body, n * 120)?;
        raw.sync_data()?;
        times.push(start.elapsed());
    }
    disk.remove("raw")?;
    println!("raw pwrite + fdatasync: {}", percentiles(times));

    let (sender, durable) = channel();
    let callbacks = Callbacks {
        written: Box::new(|_| {}),
        durable: Box::new(move |batch: Vec<usize>| {
            batch.into_iter().for_each(|n| _ = sender.send(n))
        }),
        poison: Box::new(|error| eprintln!("poisoned: {error}")),
    };
    let pipeline = Pipeline::start(writer, syncer, callbacks)?;
    let commit = |chunks: Chunks, n: usize| Commit {
        chunks,
        sync: true,
        on_written: vec![],
        on_durable: vec![n],
    };
    for chunks in kept {
        pipeline.submit(commit(chunks, 0))?;
        durable.recv()?;
    }
    let mut times = Vec::new();
    for n in 0..2000 {
        let start = Instant::now();
        append(&mut appender, 1, &body)?;
        pipeline.submit(commit(appender.take().unwrap_or_default(), n))?;
        durable.recv()?;
        times.push(start.elapsed());
    }
    println!("one commit in flight:   {}", percentiles(times));

    let start = Instant::now();
    let (batches, frames) = (1000, 1000);
    for n in 0..batches {
        append(&mut appender, frames, &body)?;
        pipeline.submit(commit(appender.take().unwrap_or_default(), n))?;
    }
    for _ in 0..batches {
        durable.recv()?;
    }
    let rate = (batches * frames) as f64 / start.elapsed().as_secs_f64() / 1e3;
    println!("pipelined, batches of {frames}: {rate:.0} k frames/s durable");
    pipeline.close();
    Ok(())
}
