//! Messages that pass through several queues: copies of a topic, a move in a transaction, retries of unanswered
//! sends, and dead letters. The history has one entry per message and queue.

use std::sync::Arc;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use serde_json::{Value, json};

use super::Protocol;
use super::clients::{Shared, WorkerAction, consume_from, run_worker};
use super::history::name;
use super::wire::SenderConnection;
use crate::rng::Rng;

const ALL: &str = "news/Subscriptions/all";
const RED: &str = "news/Subscriptions/red";

/// Every queue of these flows, with the action of its workers.
const WORKERS: [(&str, WorkerAction); 7] = [
    (ALL, WorkerAction::Complete),
    (RED, WorkerAction::Complete),
    ("first", WorkerAction::Move("second")),
    ("second", WorkerAction::Complete),
    ("once", WorkerAction::Complete),
    ("failing", WorkerAction::Abandon),
    ("failing/$deadletterqueue", WorkerAction::Complete),
];

/// Paths and specifications of the queues, topics and subscriptions.
pub(crate) fn specs() -> [(&'static str, Value); 7] {
    let red = json!([{ "name": "red", "filter": { "correlation": { "subject": "red" } } }]);
    [
        ("topics/news", json!({})),
        ("topics/news/subscriptions/all", json!({ "spec": { "failed_max": null } })),
        ("topics/news/subscriptions/red", json!({ "spec": { "failed_max": null }, "rules": red })),
        ("queues/first", json!({ "failed_max": null })),
        ("queues/second", json!({ "failed_max": null })),
        ("queues/once", json!({ "failed_max": null, "dedup": { "window_ms": 3_600_000 } })),
        ("queues/failing", json!({ "failed_max": 2 })),
    ]
}

/// One sender, and a worker for each queue.
pub(crate) fn clients(shared: &Arc<Shared>, protocol: Protocol, seed: u64) -> Vec<JoinHandle<()>> {
    let sender = shared.clone();
    let mut threads = vec![spawn(move || send(&sender, protocol, seed))];
    for (n, (queue, action)) in WORKERS.into_iter().enumerate() {
        let shared = shared.clone();
        threads.push(spawn(move || match protocol {
            Protocol::Http => run_worker(&shared, queue, action),
            Protocol::Native => consume_from(&shared, n as u64, queue, action),
        }));
    }
    threads
}

/// Messages, and their names in the history.
struct Batch {
    messages: Vec<Value>,
    names: Vec<String>,
    /// Sent again until it is answered.
    retry: bool,
}

fn batch(shared: &Shared, rng: &mut Rng, total: &mut u64) -> Batch {
    let flow = rng.below(4);
    let mut batch = Batch { messages: Vec::new(), names: Vec::new(), retry: flow == 2 };
    for _ in 0..1 + rng.below(4) {
        *total += 1;
        let id = format!("flow-{total}");
        let body = json!({ "number": 0, "padding": shared.padding(rng) });
        let mut message = json!({ "id": id, "body": body });
        let out_of: &[&str] = match flow {
            0 => {
                message["topic"] = "news".into();
                let red = rng.chance(50);
                message["subject"] = if red { "red" } else { "blue" }.into();
                if red { &[ALL, RED] } else { &[ALL] }
            }
            1 => {
                message["queue"] = "first".into();
                &["first", "second"]
            }
            2 => {
                message["queue"] = "once".into();
                &["once"]
            }
            _ => {
                message["queue"] = "failing".into();
                &["failing", "failing/$deadletterqueue"]
            }
        };
        batch.messages.push(message);
        batch.names.extend(out_of.iter().map(|queue| name(&id, queue)));
    }
    batch
}

fn send(shared: &Shared, protocol: Protocol, seed: u64) {
    let mut rng = Rng::new(seed ^ 0xf10e);
    let (mut connection, mut unanswered, mut total) = (None::<SenderConnection>, None::<Batch>, 0);
    while !shared.is_done() {
        // Unanswered batches are retried even while senders are paused.
        if shared.is_paused() && unanswered.is_none() {
            sleep(Duration::from_millis(5));
            continue;
        }
        let connecting =
            connection.take().map_or_else(|| SenderConnection::connect(shared.at(), protocol), Ok);
        let Ok(mut connected) = connecting else {
            sleep(Duration::from_millis(5));
            continue;
        };
        let Batch { messages, names, retry } = match unanswered.take() {
            Some(batch) => batch,
            None => {
                let batch = batch(shared, &mut rng, &mut total);
                let mut history = shared.history();
                batch.names.iter().for_each(|name| history.sending(name, None, 0));
                batch
            }
        };
        match connected.send(&messages) {
            // Treat the answer as lost: the server may be killed before the retry.
            Ok(Ok(_)) if retry && rng.chance(30) => {
                unanswered = Some(Batch { messages, names, retry });
            }
            Ok(Ok(answer)) => {
                let mut history = shared.history();
                names
                    .iter()
                    .filter(|name| must_be_received(name))
                    .for_each(|name| history.acknowledged(name));
                let receipts = answer["messages"].as_array().map_or(&[][..], |all| all);
                let before = receipts.iter().filter(|receipt| receipt["duplicate"] == true);
                history.duplicates += before.count() as u64;
                connection = Some(connected);
            }
            Ok(Err(problem)) => {
                let code = problem["code"].as_str().unwrap_or("no code").to_owned();
                shared.history().refused(&names, &code);
                connection = Some(connected);
                sleep(Duration::from_millis(20));
            }
            // The server was killed; the result is unknown.
            Err(_) if retry => unanswered = Some(Batch { messages, names, retry }),
            Err(_) => {}
        }
        sleep(Duration::from_millis(rng.below(8)));
    }
}

/// Whether a worker must have received the message. This is not so in the queue with failures: if a worker disappears
/// or a kill interrupts a delivery twice, the message is dead-lettered although no worker received it.
fn must_be_received(name: &str) -> bool {
    !WORKERS.iter().any(|(queue, action)| {
        *action == WorkerAction::Abandon
            && name.rsplit_once('@').is_some_and(|(_, of)| of == *queue)
    })
}

/// Queues from which no message was received, because such a run proves nothing. The same applies if no retry was
/// detected as a duplicate.
pub(crate) fn unused_queues(shared: &Shared) -> Vec<&'static str> {
    let history = shared.history();
    let counts = history.completed_by_queue();
    let ends = WORKERS.iter().filter(|(_, action)| *action != WorkerAction::Abandon);
    let mut unused: Vec<_> =
        ends.map(|(queue, _)| *queue).filter(|queue| !counts.contains_key(*queue)).collect();
    if history.duplicates == 0 {
        unused.push("once (retries)");
    }
    unused
}
