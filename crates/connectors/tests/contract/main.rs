//! The contract for all connectors. The case of a capability runs if the broker has it; otherwise the call must be
//! refused.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test code

mod basics;
mod capabilities;
mod servicebus_server;
#[macro_use]
mod cases;
#[path = "../common/mod.rs"]
mod common;
mod sessions;

use std::sync::Arc;

use cases::Q;
use common::MaloteServer;
use malote_connectors::servicebus::ServiceBus;
use malote_connectors::{Broker, Embedded, NativeBroker};
use malote_engine::{Engine, Running, Settings};
use malote_model::{Message, QueueSpec};

/// A broker under test.
enum TestEnv {
    Embedded { engine: Engine, _running: Running, _dir: tempfile::TempDir },
    Native(MaloteServer),
    ServiceBus(servicebus_server::ServiceBusServer),
}

impl TestEnv {
    fn embedded() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        Self::Embedded { engine, _running: running, _dir: dir }
    }

    async fn native() -> Self {
        Self::Native(MaloteServer::start().await)
    }

    async fn servicebus() -> Self {
        Self::ServiceBus(servicebus_server::ServiceBusServer::start().await)
    }

    async fn connect(&self) -> Arc<dyn Broker> {
        match self {
            Self::Embedded { engine, .. } => Arc::new(Embedded::on_engine(engine)),
            Self::Native(server) => Arc::new(NativeBroker::connect(&server.url()).await.unwrap()),
            Self::ServiceBus(server) => Arc::new(ServiceBus::connect(&server.url()).await.unwrap()),
        }
    }

    /// Declares the queue, with the broker's own tools if the connector cannot.
    async fn make_queue(&self, broker: &dyn Broker, spec: QueueSpec) {
        match self {
            Self::ServiceBus(server) => {
                server.engine.declare(common::queue(Q), spec).await.unwrap();
            }
            _ => broker.declare(&common::queue(Q), spec).await.unwrap(),
        }
    }

    /// Whether the broker counts deliveries in addition to failures.
    fn counts_receives(&self) -> bool {
        !matches!(self, Self::ServiceBus(_))
    }

    /// The message as this broker delivers it.
    fn delivered(&self, mut sent: Message) -> Message {
        if let Self::ServiceBus(_) = self {
            // Fields that the service does not have or does not return.
            sent.body.kind = malote_model::BodyKind::Bytes;
            (sent.origin_id, sent.key, sent.dedup_id) = (None, None, None);
            (sent.user_id, sent.app_id, sent.content_encoding) = (None, None, None);
        }
        sent
    }
}

contract!(embedded, TestEnv::embedded());
contract!(native, TestEnv::native().await);
contract!(servicebus, TestEnv::servicebus().await);

#[tokio::test]
async fn malote_marks_the_last_message_of_a_session() {
    sessions::the_last_message_is_marked(&TestEnv::embedded()).await;
    sessions::the_last_message_is_marked(&TestEnv::native().await).await;
}
