//! The pipeline's threads on a failing disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use malote_engine::journal::{Callbacks, Commit, Pipeline, Recovered, Stopped, recover};
use malote_sim::disk::{Faults, SimDisk};

use crate::toy::{self, PUT, Toy};
use crate::world::options;

/// An output released after a failed sync or write would be a false acknowledgement.
#[test]
fn after_a_failed_sync_no_output_is_released() {
    for nth in 0..40 {
        for write in [false, true] {
            poisoned_at(nth, write);
        }
    }
}

fn poisoned_at(nth: u64, write: bool) {
    let disk = SimDisk::new();
    let mut core = Toy::default();
    let recovered = recover(Arc::new(disk.clone()), &options(), &mut core).unwrap();
    let Recovered { mut appender, writer, syncer, .. } = recovered;
    let (sync_fails_in, write_fails_in) = if write { (None, Some(nth)) } else { (Some(nth), None) };
    disk.set_faults(Faults { sync_fails_in, write_fails_in, ..Faults::default() });

    let released = Arc::new(AtomicU64::new(0));
    let (count, (poisoned, failures)) = (released.clone(), channel());
    let callbacks = Callbacks {
        written: Box::new(|_| {}),
        durable: Box::new(move |batch: Vec<u64>| {
            let first = count.fetch_add(batch.len() as u64, Ordering::SeqCst);
            assert!(batch.into_iter().eq(first..count.load(Ordering::SeqCst)), "out of order");
        }),
        poison: Box::new(move |error| poisoned.send(error.to_string()).unwrap()),
    };
    let pipeline = Pipeline::start(writer, syncer, callbacks).unwrap();
    let mut stopped = None;
    for n in 0..100_000 {
        appender.begin();
        appender.frame(PUT, |out| toy::body(n + 1, 0, 1, 0, out));
        appender.end(false).unwrap();
        let chunks = appender.take().unwrap();
        let commit = Commit { chunks, sync: true, on_written: vec![], on_durable: vec![n] };
        stopped = pipeline.submit(commit).err();
        if stopped.is_some() {
            break;
        }
    }
    assert_eq!(stopped, Some(Stopped));
    assert!(failures.recv().unwrap().contains("simulated"));
    drop(pipeline);
    assert!(failures.try_recv().is_err(), "the failure was reported twice");

    // After power loss as well, everything that was released still exists.
    let after = disk.crashed(&mut malote_sim::rng::Rng::new(nth));
    let mut core = Toy::default();
    recover(Arc::new(after), &options(), &mut core).unwrap();
    assert!(core.order.len() as u64 >= released.load(Ordering::SeqCst));
}
