//! The list of cases, and a macro that turns them into tests. The including program defines `TestEnv`.

#[path = "depth.rs"]
pub mod depth;

use std::sync::Arc;

use malote_connectors::{Broker, BrokerError, Capability};
use malote_model::QueueSpec;

use crate::TestEnv;
pub(crate) use crate::{basics, capabilities, sessions};

/// The queue of most cases.
pub const Q: &str = "q";

pub async fn with_queue(env: &TestEnv, spec: QueueSpec) -> Arc<dyn Broker> {
    let broker = env.connect().await;
    env.make_queue(&*broker, spec).await;
    broker
}

/// The code of a refusal.
#[track_caller]
pub fn refused<T>(result: Result<T, BrokerError>) -> String {
    match result {
        Err(BrokerError::Refused { code, .. }) => code,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("the call was not refused"),
    }
}

/// Every capability has a case; the compiler reports a missing one.
pub async fn run_capability_case(env: &TestEnv, what: Capability) {
    match what {
        Capability::Declare => capabilities::declare(env).await,
        Capability::Sessions => sessions::exclusive_and_in_order(env).await,
        Capability::FairSessions => sessions::fair(env).await,
        Capability::ChooseLock => capabilities::choose_lock(env).await,
        Capability::SessionState => sessions::state(env).await,
        Capability::StateWithSettle => sessions::state_with_settle(env).await,
        Capability::Renew => capabilities::renew(env).await,
        Capability::Release => capabilities::release(env).await,
        Capability::Delay => capabilities::delay(env).await,
        Capability::Schedule => capabilities::schedule(env).await,
        Capability::DeadLetter => capabilities::dead_letter(env).await,
        Capability::Changes => capabilities::changes(env).await,
        Capability::Dedup => capabilities::dedup(env).await,
        Capability::AtomicSend => capabilities::atomic_send(env).await,
        Capability::BoundLeases => capabilities::bound_leases(env).await,
    }
}

/// Passes all cases without a capability to a macro.
macro_rules! cases {
    ($macro:ident $($first:tt)*) => {
        $macro! {
            $($first)*
            basics: a_message_is_sent_received_and_completed,
            basics: all_fields_of_a_message_are_delivered,
            basics: a_queue_is_first_in_first_out,
            basics: an_abandoned_message_is_counted_and_redelivered,
            basics: a_lease_can_be_settled_only_once,
            basics: each_lease_is_settled_independently,
            basics: a_fetch_waits,
            basics: a_dropped_fetch_leases_nothing,
            basics: closing_releases_prefetched_messages,
            basics: an_unknown_queue_is_refused,
            sessions: an_accept_waits_and_may_return_none,
            sessions: a_dropped_accept_holds_nothing,
            sessions: dropping_a_source_releases_its_session,
            sessions: a_delayed_retry_ends_the_hold,
            depth: messages_are_counted,
            depth: sessions_are_counted_by_state,
        }
    };
}

macro_rules! contract {
    ($connector:ident, $env:expr) => {
        mod $connector {
            use super::*;
            use malote_connectors::Capability;

            #[tokio::test]
            async fn the_declared_capabilities_match_the_behaviour() {
                let capabilities = $env.connect().await.capabilities().clone();
                for &what in Capability::ALL {
                    println!("{what:?}");
                    if capabilities.has(what) {
                        $crate::cases::run_capability_case(&$env, what).await;
                    } else {
                        capabilities::refuse(&$env, what).await;
                    }
                }
            }

            cases!(contract @case $env,);
        }
    };
    (@case $env:expr, $($module:ident: $case:ident,)+) => {
        $(#[tokio::test]
        async fn $case() {
            $crate::cases::$module::$case(&$env).await;
        })+
    };
}
