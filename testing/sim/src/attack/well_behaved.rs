//! The well-behaved client: it checks health, sends and receives, each time on a new connection.
#![allow(clippy::disallowed_methods, reason = "measures real time")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::AUTHORIZATION;
use crate::crash::wire::Http;

/// Pause between two rounds, so that this client causes little load.
const PAUSE: Duration = Duration::from_millis(20);
/// Number of refusals that are stored.
const REFUSALS_MAX: usize = 100;

/// Requests of one round, with the expected status.
const ROUND: [(&str, &str, &str, u16); 3] = [
    ("GET", "/livez", "", 200),
    ("POST", "/api/v1/queues/good/messages", "hello", 201),
    ("POST", "/api/v1/queues/good/receive", "", 200),
];

pub(super) struct WellBehavedClient(JoinHandle<ClientStats>);

#[derive(Default)]
pub(super) struct ClientStats {
    latencies: Vec<Duration>,
    pub(super) refusals: Vec<String>,
}

impl WellBehavedClient {
    pub(super) fn start(at: SocketAddr, stop: Arc<AtomicBool>) -> WellBehavedClient {
        WellBehavedClient(spawn(move || {
            let mut stats = ClientStats::default();
            while !stop.load(Ordering::Relaxed) {
                ROUND.iter().for_each(|request| stats.request(at, request));
                sleep(PAUSE);
            }
            stats
        }))
    }

    pub(super) fn finish(self) -> ClientStats {
        self.0.join().unwrap_or_default()
    }
}

impl ClientStats {
    fn request(
        &mut self,
        at: SocketAddr,
        (method, path, body, expected): &(&str, &str, &str, u16),
    ) {
        let begun = Instant::now();
        let body = match *path {
            "/api/v1/queues/good/receive" => json!({"max": 10, "mode": "delete"}),
            _ if body.is_empty() => Value::Null,
            _ => json!(body),
        };
        let answer = Http::connect(at)
            .and_then(|mut http| http.request_with_headers(method, path, AUTHORIZATION, &body));
        match answer {
            Ok((status, _)) if status == *expected => self.latencies.push(begun.elapsed()),
            Ok((status, answer)) => {
                self.record_refusal(format!("{method} {path}: {status} {answer}"))
            }
            Err(error) => self.record_refusal(format!("{method} {path}: {error}")),
        }
    }

    fn record_refusal(&mut self, why: String) {
        if self.refusals.len() < REFUSALS_MAX {
            self.refusals.push(why);
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.latencies.len()
    }

    /// The median and the 99th percentile.
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
