//! SIGKILL: messages of a killed worker are delivered again when its connection ends, before its locks expire.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;

use crate::child::{Role, now_ms};
use crate::lab::{Lab, PATIENCE, message};

const JOBS: usize = 100;
/// Far longer than the test: it fails if messages return only when their locks expire.
const LOCK: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_killed_worker_are_delivered_again_and_applied_once() {
    let lab = Lab::start("").await;
    // Half of the messages are applied but not settled; the others hang.
    let kind = |n: usize| if n.is_multiple_of(2) { "apply" } else { "hang" };
    lab.send((0..JOBS).map(|n| message(&format!("m{n}"), kind(n), None)).collect()).await;
    let first = lab.worker(Role::Mute, LOCK).await;
    lab.until("all handlers run", |log| {
        log.iter().filter(|event| event.what == "begun").count() == JOBS
    })
    .await;
    let written = async {
        while lab.effects().await.len() < JOBS / 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, written).await.expect("half of them are done");
    let second = lab.worker(Role::Apply, LOCK).await;
    let (old, new) = (first.pid(), second.pid());
    first.signal(Signal::KILL);
    let killed_ms = now_ms();
    let log = lab
        .until("all begin again", |log| {
            log.iter().filter(|event| event.what == "begun" && event.pid == new).count() == JOBS
        })
        .await;
    let again: Vec<_> = log.iter().filter(|e| e.what == "begun" && e.pid == new).collect();
    let took_ms = again.iter().map(|event| event.at_ms).max().unwrap() - killed_ms;
    println!("{JOBS} messages of a killed worker began again within {took_ms} ms");
    for event in &again {
        assert_eq!((event.lost, event.receives, event.attempt), (1, 2, 1), "{event:?}");
    }
    lab.until_empty().await;
    second.stop().await;
    let log = lab.log();
    assert!(!log.iter().any(|event| event.what == "twice"), "{log:#?}");
    let begun = log.iter().filter(|event| event.what == "begun").count();
    assert_eq!(begun, 2 * JOBS);
    let effects = lab.effects().await;
    let ids: BTreeSet<_> = effects.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!((effects.len(), ids.len()), (JOBS, JOBS));
    let by = |pid| effects.iter().filter(|(_, of)| *of == pid).count();
    assert_eq!((by(old), by(new)), (JOBS / 2, JOBS / 2));
    assert_eq!(lab.take_dead().await, []);
}
