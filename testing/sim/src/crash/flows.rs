//! Ways that messages take through several queues: copies of a topic, a move in a transaction, sending again what was
//! not answered, dead letters. A message is noted under a name for every queue that it may come out of.

use std::sync::Arc;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use serde_json::{Value, json};

use super::Protocol;
use super::clients::{Shared, Then, consume_from, work};
use super::history::name;
use super::wire::Speaker;
use crate::rng::Rng;

const ALL: &str = "news/Subscriptions/all";
const RED: &str = "news/Subscriptions/red";

/// Every queue at an end of a way, or on it, and what is done there.
const WORKERS: [(&str, Then); 7] = [
    (ALL, Then::Complete),
    (RED, Then::Complete),
    ("first", Then::Move("second")),
    ("second", Then::Complete),
    ("once", Then::Complete),
    ("failing", Then::Abandon),
    ("failing/$deadletterqueue", Then::Complete),
];

/// What must be there before anybody sends: path and specification.
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
    for (n, (queue, then)) in WORKERS.into_iter().enumerate() {
        let shared = shared.clone();
        threads.push(spawn(move || match protocol {
            Protocol::Http => work(&shared, queue, then),
            Protocol::Native => consume_from(&shared, n as u64, queue, then),
        }));
    }
    threads
}

/// Messages and the names by which they must come out.
struct Batch {
    messages: Vec<Value>,
    names: Vec<String>,
    /// Sent again until it is answered.
    again: bool,
}

fn batch(shared: &Shared, rng: &mut Rng, total: &mut u64) -> Batch {
    let flow = rng.below(4);
    let mut batch = Batch { messages: Vec::new(), names: Vec::new(), again: flow == 2 };
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
    let (mut speaker, mut unanswered, mut total) = (None::<Speaker>, None::<Batch>, 0);
    while !shared.is_done() {
        // What was not answered is sent again even when no more is sent.
        if shared.is_quiet() && unanswered.is_none() {
            sleep(Duration::from_millis(5));
            continue;
        }
        let connected = speaker.take().map_or_else(|| Speaker::connect(shared.at(), protocol), Ok);
        let Ok(mut speaking) = connected else {
            sleep(Duration::from_millis(5));
            continue;
        };
        let Batch { messages, names, again } = match unanswered.take() {
            Some(batch) => batch,
            None => {
                let batch = batch(shared, &mut rng, &mut total);
                let mut history = shared.history();
                batch.names.iter().for_each(|name| history.sending(name, None, 0));
                batch
            }
        };
        match speaking.send(&messages) {
            // As if the answer had been lost: the server may be killed before it hears of them again.
            Ok(Ok(_)) if again && rng.chance(30) => {
                unanswered = Some(Batch { messages, names, again });
            }
            Ok(Ok(answer)) => {
                let mut history = shared.history();
                names
                    .iter()
                    .filter(|name| must_come(name))
                    .for_each(|name| history.acknowledged(name));
                let receipts = answer["messages"].as_array().map_or(&[][..], |all| all);
                let before = receipts.iter().filter(|receipt| receipt["duplicate"] == true);
                history.recognised += before.count() as u64;
                speaker = Some(speaking);
            }
            Ok(Err(problem)) => {
                let code = problem["code"].as_str().unwrap_or("no code").to_owned();
                shared.history().refused(&names, &code);
                speaker = Some(speaking);
                sleep(Duration::from_millis(20));
            }
            // The server is gone: who knows.
            Err(_) if again => unanswered = Some(Batch { messages, names, again }),
            Err(_) => {}
        }
        sleep(Duration::from_millis(rng.below(8)));
    }
}

/// Whether a worker must have had it. Not there where messages fail: one whose worker never came back, or whose delivery a
/// kill cut off, and that twice, is among the dead letters, and nobody ever had it in hand.
fn must_come(name: &str) -> bool {
    !WORKERS.iter().any(|(queue, then)| {
        *then == Then::Abandon && name.rsplit_once('@').is_some_and(|(_, of)| of == *queue)
    })
}

/// Queues out of which nothing came: a way that nothing took proves nothing, nor does one that nobody took twice.
pub(crate) fn untaken(shared: &Shared) -> Vec<&'static str> {
    let history = shared.history();
    let counts = history.completed_by_queue();
    let ends = WORKERS.iter().filter(|(_, then)| *then != Then::Abandon);
    let mut untaken: Vec<_> =
        ends.map(|(queue, _)| *queue).filter(|queue| !counts.contains_key(*queue)).collect();
    if history.recognised == 0 {
        untaken.push("once, a second time");
    }
    untaken
}
