//! The cases, for any `World` of the program that includes them: one macro makes the tests of a connector.

#[path = "depth.rs"]
pub mod depth;

use std::sync::Arc;

use malote_connectors::{Broker, BrokerError, Capability};
use malote_model::QueueSpec;

use crate::World;
pub(crate) use crate::{basics, can, sessions};

/// The queue of most cases.
pub const Q: &str = "q";

pub async fn with_queue(world: &World, spec: QueueSpec) -> Arc<dyn Broker> {
    let broker = world.connect().await;
    world.make(&*broker, spec).await;
    broker
}

/// The code of a refusal.
#[track_caller]
pub fn refused<T>(result: Result<T, BrokerError>) -> String {
    match result {
        Err(BrokerError::Refused { code, .. }) => code,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// Every capability has a case: a new one stops this from compiling until it has one.
pub async fn of_capability(world: &World, what: Capability) {
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

/// Every case that is of no capability, for a macro that makes something of each.
macro_rules! cases {
    ($macro:ident $($first:tt)*) => {
        $macro! {
            $($first)*
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
            sessions: an_accept_waits_and_none_is_no_error,
            sessions: an_accept_that_is_dropped_holds_nothing,
            sessions: dropping_lets_go,
            sessions: a_broken_hold_is_lost,
            depth: what_waits_is_told,
            depth: sessions_are_told_apart,
        }
    };
}

macro_rules! contract {
    ($connector:ident, $world:expr) => {
        mod $connector {
            use super::*;
            use malote_connectors::Capability;

            #[tokio::test]
            async fn the_capabilities_are_true() {
                let capabilities = $world.connect().await.capabilities().clone();
                for &what in Capability::ALL {
                    println!("{what:?}");
                    if capabilities.has(what) {
                        $crate::cases::of_capability(&$world, what).await;
                    } else {
                        can::refuse(&$world, what).await;
                    }
                }
            }

            cases!(contract @case $world,);
        }
    };
    (@case $world:expr, $($module:ident: $case:ident,)+) => {
        $(#[tokio::test]
        async fn $case() {
            $crate::cases::$module::$case(&$world).await;
        })+
    };
}
