//! The contract on a real PostgreSQL, which is started for these tests and gone with them, and what only it can show.
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
mod cost;
mod own;
#[path = "../contract/sessions.rs"]
mod sessions;
mod tls;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use malote_connectors::Broker;
use malote_connectors::postgres::Postgres;
use malote_model::{Message, QueueSpec};
use tokio_postgres::{Client, NoTls};

/// A database of its own for each test.
struct World {
    url: String,
}

impl World {
    async fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let server = tokio::task::spawn_blocking(server).await.unwrap();
        let admin = client(&server.url("postgres")).await;
        admin.batch_execute(&format!("create database {name} template template0")).await.unwrap();
        Self { url: server.url(&name) }
    }

    /// As if a pool of connections stood before it.
    async fn pooled() -> Self {
        let world = Self::new().await;
        Self { url: format!("{}?pooled=true", world.url) }
    }

    async fn connect(&self) -> Arc<dyn Broker> {
        Arc::new(Postgres::connect(&self.url).await.unwrap())
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
fn server() -> &'static malote_services::Postgres {
    static SERVER: OnceLock<malote_services::Postgres> = OnceLock::new();
    SERVER.get_or_init(|| malote_services::Postgres::start().unwrap_or_else(|why| panic!("{why}")))
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

contract!(postgres, World::new().await);
contract!(pooled, World::pooled().await);
