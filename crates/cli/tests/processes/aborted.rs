//! A message that crashes its process is dead-lettered, and no other message is.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::child::Role;
use crate::lab::{Lab, PATIENCE, message};

const OTHERS: usize = 20;
const LOCK: Duration = Duration::from_secs(60);

async fn is_dead_lettered_alone(lab: Lab, role: Role, session: impl Fn(usize) -> Option<String>) {
    // The bad message is among the first.
    let mut messages: Vec<_> =
        (0..OTHERS).map(|n| message(&format!("m{n}"), "work", session(n).as_deref())).collect();
    messages.insert(2, message("abort", "work", session(2).as_deref()));
    lab.send(messages).await;
    let (mut dead, mut crashes) = (Vec::new(), 0);
    let mut worker = lab.worker(role, LOCK).await;
    let end = std::time::Instant::now() + PATIENCE;
    let done = loop {
        if worker.has_ended() {
            crashes += 1;
            assert!(crashes <= 3, "it takes more workers than it may");
            worker = lab.worker(role, LOCK).await;
        }
        dead.extend(lab.take_dead().await);
        let log = lab.log();
        let done: BTreeSet<_> =
            log.iter().filter(|e| e.what == "done").map(|e| e.id.clone()).collect();
        if done.len() + dead.len() > OTHERS {
            break done;
        }
        assert!(std::time::Instant::now() < end, "{} done, {} dead", done.len(), dead.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    lab.until_empty().await;
    worker.stop().await;
    dead.extend(lab.take_dead().await);
    let reasons: Vec<_> = dead
        .iter()
        .map(|one| {
            (one.message.message_id.as_deref().unwrap(), one.dead.as_ref().unwrap().0.as_str())
        })
        .collect();
    assert_eq!(reasons, [("abort", "WorkerLost")]);
    assert_eq!((crashes, done.len()), (3, OTHERS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_crashes_its_process_is_dead_lettered_alone() {
    let lab = Lab::start("").await;
    is_dead_lettered_alone(lab, Role::Abort, |_| None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_a_session_that_crashes_its_process_is_dead_lettered_alone() {
    let lab = Lab::start("--sessions dynamic").await;
    is_dead_lettered_alone(lab, Role::AbortSessions, |n| Some(format!("s{}", n % 5))).await;
}
