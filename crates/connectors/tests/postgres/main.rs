//! The contract on a PostgreSQL that is started for these tests, and cases specific to it.
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
mod cost;
#[path = "../contract/sessions.rs"]
mod sessions;
mod specifics;
mod tls;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use malote_connectors::Broker;
use malote_connectors::postgres::PostgresBroker;
use malote_model::{Message, QueueSpec};
use tokio_postgres::{Client, NoTls};

/// A separate database for each test.
struct TestEnv {
    url: String,
}

impl TestEnv {
    async fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let server = tokio::task::spawn_blocking(server).await.unwrap();
        let admin = client(&server.url("postgres")).await;
        admin.batch_execute(&format!("create database {name} template template0")).await.unwrap();
        Self { url: server.url(&name) }
    }

    /// With the settings for a connection pool.
    async fn pooled() -> Self {
        let env = Self::new().await;
        Self { url: format!("{}?pooled=true", env.url) }
    }

    async fn connect(&self) -> Arc<dyn Broker> {
        Arc::new(PostgresBroker::connect(&self.url).await.unwrap())
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
fn server() -> &'static malote_services::Postgres {
    static SERVER: OnceLock<malote_services::Postgres> = OnceLock::new();
    SERVER.get_or_init(|| malote_services::Postgres::start().unwrap_or_else(|why| panic!("{why}")))
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

contract!(postgres, TestEnv::new().await);
contract!(pooled, TestEnv::pooled().await);
