//! The contract on a real RabbitMQ, which is started for these tests and gone with them, and what only it can show.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

#[path = "../contract/basics.rs"]
mod basics;
#[path = "../contract/can.rs"]
mod can;
#[macro_use]
#[path = "../contract/cases.rs"]
mod cases;
#[path = "../common/mod.rs"]
mod common;
mod own;
#[path = "../contract/sessions.rs"]
mod sessions;
mod tls;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use malote_connectors::Broker;
use malote_connectors::rabbitmq::RabbitMq;
use malote_model::{Message, QueueSpec};

/// As many as there are worlds: each has a virtual host of its own.
const WORLDS: usize = 48;

/// A virtual host of its own for each test.
struct World {
    url: String,
}

impl World {
    async fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number < WORLDS, "there are more tests than virtual hosts");
        let server = tokio::task::spawn_blocking(server).await.unwrap();
        // A queue with sessions has fewer partitions than usual: making them takes most of a test's time.
        Self { url: format!("{}?partitions=4", server.url(number)) }
    }

    async fn connect(&self) -> Arc<dyn Broker> {
        Arc::new(RabbitMq::connect(&self.url).await.unwrap())
    }

    async fn make(&self, broker: &dyn Broker, spec: QueueSpec) {
        broker.declare(&common::queue(cases::Q), spec).await.unwrap();
    }

    fn counts_receives(&self) -> bool {
        true
    }

    fn delivered(&self, sent: Message) -> Message {
        sent
    }
}

/// One server for all tests: it ends with this process.
fn server() -> &'static malote_services::RabbitMq {
    static SERVER: OnceLock<malote_services::RabbitMq> = OnceLock::new();
    SERVER.get_or_init(|| {
        malote_services::RabbitMq::start(WORLDS).unwrap_or_else(|why| panic!("{why}"))
    })
}

contract!(rabbitmq, World::new().await);
