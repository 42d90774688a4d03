//! A rolling restart under load: no failed attempts, and no session is in two processes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::child::{Role, now_ms};
use crate::lab::{Lab, message};

const SESSIONS: usize = 24;
const ROUNDS: usize = 3;
const LOCK: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_are_replaced_under_load_without_failed_attempts() {
    let lab = Arc::new(Lab::start("--sessions dynamic").await);
    let over = Arc::new(AtomicBool::new(false));
    let (producer, until) = (lab.clone(), over.clone());
    let sent = tokio::spawn(async move {
        let mut sent = Vec::new();
        for n in 0.. {
            if until.load(Ordering::Relaxed) {
                break;
            }
            let of = |session: usize| {
                message(&format!("s{session}.{n}"), "work", Some(&format!("s{session}")))
            };
            producer.send((0..SESSIONS).map(of).collect()).await;
            sent.push(now_ms());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        sent
    });
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(lab.worker(Role::Steady, LOCK).await);
    }
    for _ in 0..ROUNDS {
        for worker in &mut workers {
            let new = lab.worker(Role::Steady, LOCK).await;
            std::mem::replace(worker, new).stop().await;
        }
    }
    over.store(true, Ordering::Relaxed);
    let sent = sent.await.unwrap();
    lab.until_empty().await;
    for worker in workers {
        worker.stop().await;
    }
    let log = lab.log();
    assert!(!log.iter().any(|event| event.what == "twice"), "{log:#?}");
    let mut done: HashMap<&str, Vec<usize>> = HashMap::new();
    let mut late_ms = 0;
    for event in log.iter().filter(|event| event.what == "begun") {
        assert_eq!((event.attempt, event.lost), (1, 0), "{event:?}");
        let (session, n) = event.id.split_once('.').unwrap();
        let n: usize = n.parse().unwrap();
        done.entry(session).or_default().push(n);
        late_ms = late_ms.max(event.at_ms.saturating_sub(sent[n]));
    }
    println!("{} messages, the latest after {late_ms} ms", sent.len() * SESSIONS);
    let all: Vec<usize> = (0..sent.len()).collect();
    assert_eq!(done.len(), SESSIONS);
    for (session, order) in done {
        assert_eq!(order, all, "{session}");
    }
    assert_eq!(lab.take_dead().await, []);
}
