//! The contract on a RabbitMQ that is started for these tests, and cases specific to it.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test code

#[path = "../contract/basics.rs"]
mod basics;
#[path = "../contract/capabilities.rs"]
mod capabilities;
#[macro_use]
#[path = "../contract/cases.rs"]
mod cases;
#[path = "../common/mod.rs"]
mod common;
#[path = "../contract/sessions.rs"]
mod sessions;
mod specifics;
mod tls;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use malote_connectors::Broker;
use malote_connectors::rabbitmq::RabbitMq;
use malote_model::{Message, QueueSpec};

/// The URL of a running broker, without a virtual host. The broker must have the virtual hosts `0` to `47`. Without this
/// variable, the tests start a broker.
const BROKER: &str = "MALOTE_TEST_RABBITMQ";

/// One virtual host for each test.
const VHOSTS: usize = 48;

/// A separate virtual host for each test.
struct TestEnv {
    url: String,
}

impl TestEnv {
    async fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number < VHOSTS, "more tests than virtual hosts: raise VHOSTS");
        let url = match std::env::var(BROKER) {
            Ok(broker) => format!("{broker}/{number}"),
            Err(_) => tokio::task::spawn_blocking(server).await.unwrap().url(number),
        };
        // Fewer partitions than by default: declaring them takes most of a test's time.
        Self { url: format!("{url}?partitions=4") }
    }

    async fn connect(&self) -> Arc<dyn Broker> {
        Arc::new(RabbitMq::connect(&self.url).await.unwrap())
    }

    async fn make_queue(&self, broker: &dyn Broker, spec: QueueSpec) {
        broker.declare(&common::queue(cases::Q), spec).await.unwrap();
    }

    fn counts_receives(&self) -> bool {
        true
    }

    fn delivered(&self, sent: Message) -> Message {
        sent
    }
}

/// One server for all tests. It stops with the process.
fn server() -> &'static malote_services::RabbitMq {
    static SERVER: OnceLock<malote_services::RabbitMq> = OnceLock::new();
    SERVER.get_or_init(|| {
        malote_services::RabbitMq::start(VHOSTS).unwrap_or_else(|why| panic!("{why}"))
    })
}

contract!(rabbitmq, TestEnv::new().await);
