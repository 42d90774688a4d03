//! What every connector must do. Cases for what not every broker can do are named after the capability, and run where
//! it is there; where it is not, the call must be refused, not done weaker.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

mod amqp;
mod basics;
mod can;
#[path = "../common/mod.rs"]
mod common;
mod depth;
mod sessions;

use std::sync::Arc;

use common::Server;
use malote_connectors::servicebus::ServiceBus;
use malote_connectors::{Broker, BrokerError, Capability, Embedded, Native};
use malote_engine::{Engine, Running, Settings};
use malote_model::QueueSpec;

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
}

/// The queue of most cases.
const Q: &str = "q";

async fn with_queue(world: &World, spec: QueueSpec) -> Arc<dyn Broker> {
    let broker = world.connect().await;
    world.make(&*broker, spec).await;
    broker
}

/// The code of a refusal.
#[track_caller]
fn refused<T>(result: Result<T, BrokerError>) -> String {
    match result {
        Err(BrokerError::Refused { code, .. }) => code,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// Every capability has a case: a new one stops this from compiling until it has one.
async fn of_capability(world: &World, what: Capability) {
    match what {
        Capability::Declare => can::declare(world).await,
        Capability::Sessions => sessions::in_order_and_alone(world).await,
        Capability::FairSessions => sessions::in_turn(world).await,
        Capability::ChooseLock => can::choose_lock(world).await,
        Capability::SessionState => sessions::state(world).await,
        Capability::StateWithSettle => sessions::state_with_settle(world).await,
        Capability::Renew => can::renew(world).await,
        Capability::Release => can::release(world).await,
        Capability::Delay => can::delay(world).await,
        Capability::Schedule => can::schedule(world).await,
        Capability::DeadLetter => can::dead_letter(world).await,
        Capability::Changes => can::changes(world).await,
        Capability::Dedup => can::dedup(world).await,
        Capability::AtomicSend => can::atomic_send(world).await,
        Capability::BoundLeases => can::bound_leases(world).await,
    }
}

macro_rules! contract {
    ($connector:ident, $world:expr) => {
        mod $connector {
            use super::*;

            #[tokio::test]
            async fn the_capabilities_are_true() {
                let capabilities = $world.connect().await.capabilities().clone();
                for &what in Capability::ALL {
                    println!("{what:?}");
                    if capabilities.has(what) {
                        of_capability(&$world, what).await;
                    } else {
                        can::refuse(&$world, what).await;
                    }
                }
            }

            contract!(@case $world,
                basics: a_message_goes_through,
                basics: everything_of_a_message_goes_through,
                basics: a_queue_is_first_in_first_out,
                basics: a_failure_is_counted_and_comes_back,
                basics: a_lease_ends_once,
                basics: each_is_settled_on_its_own,
                basics: a_fetch_waits,
                basics: a_fetch_that_is_dropped_takes_nothing,
                basics: closing_gives_back_what_was_fetched_ahead,
                basics: what_is_not_there_is_refused,
                depth: what_waits_is_told,
                depth: sessions_are_told_apart,
                sessions: an_accept_waits_and_none_is_no_error,
                sessions: an_accept_that_is_dropped_holds_nothing,
                sessions: dropping_lets_go,
                sessions: a_broken_hold_is_lost,
            );
        }
    };
    (@case $world:expr, $($module:ident: $case:ident,)+) => {
        $(#[tokio::test]
        async fn $case() {
            super::$module::$case(&$world).await;
        })+
    };
}

contract!(embedded, World::embedded());
contract!(native, World::native().await);
contract!(servicebus, World::servicebus().await);
