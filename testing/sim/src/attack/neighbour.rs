//! The well-behaved client: it asks about health and sends and receives, each time on a new connection.
#![allow(clippy::disallowed_methods, reason = "measures the machine's time")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::AUTHORIZATION;
use crate::crash::wire::Http;

/// Between two rounds: it is a neighbour and not a load.
const PAUSE: Duration = Duration::from_millis(20);
/// Refusals that are kept.
const REFUSED_MAX: usize = 100;

/// What it asks for, and what it must be answered.
const ROUND: [(&str, &str, &str, u16); 3] = [
    ("GET", "/livez", "", 200),
    ("POST", "/api/v1/queues/good/messages", "neighbour", 201),
    ("POST", "/api/v1/queues/good/receive", "", 200),
];

pub(super) struct Neighbour(JoinHandle<Served>);

/// How it fared.
#[derive(Default)]
pub(super) struct Served {
    latencies: Vec<Duration>,
    pub(super) refused: Vec<String>,
}

impl Neighbour {
    pub(super) fn start(at: SocketAddr, stop: Arc<AtomicBool>) -> Neighbour {
        Neighbour(spawn(move || {
            let mut served = Served::default();
            while !stop.load(Ordering::Relaxed) {
                ROUND.iter().for_each(|request| served.ask(at, request));
                sleep(PAUSE);
            }
            served
        }))
    }

    pub(super) fn finish(self) -> Served {
        self.0.join().unwrap_or_default()
    }
}

impl Served {
    fn ask(&mut self, at: SocketAddr, (method, path, body, expected): &(&str, &str, &str, u16)) {
        let begun = Instant::now();
        let body = match *path {
            "/api/v1/queues/good/receive" => json!({"max": 10, "mode": "delete"}),
            _ if body.is_empty() => Value::Null,
            _ => json!(body),
        };
        let answer = Http::connect(at)
            .and_then(|mut http| http.ask_headed(method, path, AUTHORIZATION, &body));
        match answer {
            Ok((status, _)) if status == *expected => self.latencies.push(begun.elapsed()),
            Ok((status, answer)) => self.refuse(format!("{method} {path}: {status} {answer}")),
            Err(error) => self.refuse(format!("{method} {path}: {error}")),
        }
    }

    fn refuse(&mut self, why: String) {
        if self.refused.len() < REFUSED_MAX {
            self.refused.push(why);
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.latencies.len()
    }

    /// The middle one, and that which one in a hundred exceeds.
    pub(super) fn latency_ms(&self) -> (f64, f64) {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let at = |share: f64| {
            let index = (sorted.len() as f64 * share) as usize;
            sorted.get(index).or(sorted.last()).map_or(0.0, |one| one.as_secs_f64() * 1000.0)
        };
        (at(0.5), at(0.99))
    }
}
