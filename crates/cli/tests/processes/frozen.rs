//! SIGSTOP: a worker whose lock expired while it was stopped commits and settles nothing when it continues.

use std::time::Duration;

use rustix::process::Signal;

use crate::child::Role;
use crate::lab::{Lab, message};

/// Long enough that a slow machine can stop the worker before the lock expires.
const LOCK: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_worker_is_fenced_when_it_continues() {
    let lab = Lab::start("--sessions dynamic").await;
    lab.send(vec![message("m", "apply", Some("s"))]).await;
    let first = lab.worker(Role::Slow, LOCK).await;
    lab.until("the effect is written and not committed", |log| {
        log.iter().any(|event| event.what == "written")
    })
    .await;
    first.signal(Signal::STOP);
    let frozen = tokio::time::Instant::now();
    let second = lab.worker(Role::ApplySessions, LOCK).await;
    let (old, new) = (first.pid(), second.pid());
    let log = lab
        .until("the other process has the message", |log| {
            log.iter().any(|event| event.what == "begun" && event.pid == new)
        })
        .await;
    let again = log.iter().find(|event| event.what == "begun" && event.pid == new).unwrap();
    assert_eq!((again.lost, again.receives), (1, 2));
    // The worker counts the lock from its arrival, which is later than the server's start of the lock.
    tokio::time::sleep_until(frozen + LOCK).await;
    // The handler could finish at once, and the worker must fetch nothing more.
    std::fs::write(lab.dir().join("go"), "").unwrap();
    first.signal(Signal::TERM);
    first.signal(Signal::CONT);
    assert!(first.ended().await);
    lab.until_empty().await;
    second.stop().await;
    let log = lab.log();
    let said = |what: &str, pid| log.iter().find(|event| event.what == what && event.pid == pid);
    assert!(said("cancelled", old).is_some(), "its token did not fire: {log:#?}");
    let ended = said("ended", old).unwrap();
    assert_eq!((ended.attempt, ended.lost), (0, 1), "done and lost of the first worker");
    assert_eq!(lab.effects().await, [("m".to_owned(), new)]);
}
