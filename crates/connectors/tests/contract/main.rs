//! What every connector must do. Cases for what not every broker can do are named after the capability, and run where
//! it is there; where it is not, the call must be refused, not done weaker.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

mod amqp;
mod basics;
mod can;
#[macro_use]
mod cases;
#[path = "../common/mod.rs"]
mod common;
mod sessions;

use std::sync::Arc;

use cases::Q;
use common::Server;
use malote_connectors::servicebus::ServiceBus;
use malote_connectors::{Broker, Embedded, Native};
use malote_engine::{Engine, Running, Settings};
use malote_model::{Message, QueueSpec};

/// A broker under test, and the way to reach it once more.
enum World {
    Embedded { engine: Engine, _running: Running, _dir: tempfile::TempDir },
    Native(Server),
    ServiceBus(amqp::Server),
}

impl World {
    fn embedded() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        Self::Embedded { engine, _running: running, _dir: dir }
    }

    async fn native() -> Self {
        Self::Native(Server::start().await)
    }

    async fn servicebus() -> Self {
        Self::ServiceBus(amqp::Server::start().await)
    }

    async fn connect(&self) -> Arc<dyn Broker> {
        match self {
            Self::Embedded { engine, .. } => Arc::new(Embedded::over(engine)),
            Self::Native(server) => Arc::new(Native::connect(&server.url()).await.unwrap()),
            Self::ServiceBus(server) => Arc::new(ServiceBus::connect(&server.url()).await.unwrap()),
        }
    }

    /// Makes a queue with the broker's own tools, where the connector cannot.
    async fn make(&self, broker: &dyn Broker, spec: QueueSpec) {
        match self {
            Self::ServiceBus(server) => {
                server.engine.declare(common::queue(Q), spec).await.unwrap();
            }
            _ => broker.declare(&common::queue(Q), spec).await.unwrap(),
        }
    }

    /// Whether grants are counted beside failures.
    fn counts_receives(&self) -> bool {
        !matches!(self, Self::ServiceBus(_))
    }

    /// What comes out of what was sent.
    fn delivered(&self, mut sent: Message) -> Message {
        if let Self::ServiceBus(_) = self {
            // What the service has no field for, or does not tell.
            sent.body.kind = malote_model::BodyKind::Bytes;
            (sent.origin_id, sent.key, sent.dedup_id) = (None, None, None);
            (sent.user_id, sent.app_id, sent.content_encoding) = (None, None, None);
        }
        sent
    }
}

contract!(embedded, World::embedded());
contract!(native, World::native().await);
contract!(servicebus, World::servicebus().await);

#[tokio::test]
async fn malote_tells_which_message_of_a_session_is_the_last() {
    sessions::the_last_is_told(&World::embedded()).await;
    sessions::the_last_is_told(&World::native().await).await;
}
