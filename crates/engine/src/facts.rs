//! What the engine reports about queues, topics and sessions: their settings, counts and totals.

use std::collections::BTreeMap;

use malote_model::{QueueName, QueueSpec, Seq, SessionId, Timestamp, TopicName, TopicSpec};

use crate::event::LeaseEnd;

/// A topic and its counters.
#[derive(Clone, Debug)]
pub struct TopicFacts {
    pub name: TopicName,
    pub spec: TopicSpec,
    pub created_at: Timestamp,
    /// Number of queues with rules.
    pub queues: u64,
    /// Number of rules.
    pub rules: u64,
    /// Number of rules with a correlation filter.
    pub correlations: u64,
    /// Number of scheduled messages.
    pub scheduled: u64,
    /// Number of messages that wait to be routed.
    pub waiting: u64,
    /// Bytes of scheduled and waiting messages.
    pub bytes: u64,
    /// Names and values that front ends store with the topic. The engine ignores them.
    pub labels: BTreeMap<String, String>,
    pub totals: TopicTotals,
}

/// Counters since the topic was declared. They survive restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicTotals {
    pub copies: u64,
}

/// A queue and its counters.
#[derive(Clone, Debug)]
pub struct QueueFacts {
    pub name: QueueName,
    pub spec: QueueSpec,
    pub created_at: Timestamp,
    /// Delivery is paused.
    pub paused: bool,
    /// Messages that can be delivered.
    pub ready: u64,
    /// Messages leased to receivers.
    pub locked: u64,
    /// Messages that keep their position, but are not due yet.
    pub delayed: u64,
    /// Messages that will be enqueued later.
    pub scheduled: u64,
    /// Messages that can only be received by sequence number.
    pub deferred: u64,
    /// Messages in the queue's own dead-letter set.
    pub dead_lettered: u64,
    /// Bytes of all these messages, as sent, and of session states.
    pub bytes: u64,
    /// When the oldest ready message was enqueued, to the precision of an index block.
    pub oldest_at: Option<Timestamp>,
    /// Tenants that are currently served after the others.
    pub noisy: NoisyTenants,
    /// When the oldest ready message of the other tenants was enqueued.
    pub quiet_oldest_at: Option<Timestamp>,
    /// Consumers that are attached or wait.
    pub consumers: u64,
    /// Sessions with messages, a hold or a state.
    pub sessions: u64,
    /// Sessions that a receiver holds.
    pub sessions_held: u64,
    /// Sessions that have ready messages and no holder.
    pub sessions_ready: u64,
    pub totals: Totals,
}

/// Tenants with a large share of the leased messages, and their messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoisyTenants {
    /// Number of tenants.
    pub tenants: u64,
    /// Their ready messages.
    pub ready: u64,
    /// Their leased messages.
    pub locked: u64,
}

/// Defines the totals in one place: snapshots and front ends use their names.
macro_rules! totals {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Counters since the queue was declared. They survive restarts.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Totals { $($(#[$doc])+ pub $name: u64,)+ }

        impl Totals {
            /// The names, in the order of snapshots. New ones must be added at the end.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// The values, in the same order.
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$name),+]
            }

            pub(crate) fn of_values(values: [u64; Self::NAMES.len()]) -> Self {
                let [$($name),+] = values;
                Self { $($name),+ }
            }
        }
    };
}

totals! {
    /// Messages enqueued since the queue was created.
    sent,
    /// Deliveries, including redeliveries.
    delivered,
    /// Deliveries of messages that had been delivered before.
    redelivered,
    /// Messages completed or removed on delivery.
    completed,
    /// Deliveries that the receiver abandoned.
    abandoned,
    /// Messages dead-lettered, by a receiver or automatically.
    dead_lettered,
    /// Messages deferred by receivers.
    deferred,
    /// Messages whose time to live has passed.
    expired,
    /// Leases of messages that expired or whose connection was lost.
    lost,
    /// Session holds that expired or whose connection was lost.
    sessions_lost,
}

impl Totals {
    /// Counts how a lease ended, independently of what happens to the message.
    pub(crate) fn lease_ended(&mut self, cause: LeaseEnd) {
        match cause {
            LeaseEnd::Released => {}
            LeaseEnd::Abandoned => self.abandoned += 1,
            LeaseEnd::Lost => self.lost += 1,
        }
    }
}

/// A session and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFacts {
    pub session: SessionId,
    /// Messages that are ready, delayed or leased, without deferred ones.
    pub messages: u64,
    /// Messages leased to its holder.
    pub locked: u64,
    /// When the explicit hold ends, if there is one.
    pub held_until: Option<Timestamp>,
    pub state_bytes: u64,
    /// When the state was last set; 0 if there is none or the time is unknown.
    pub state_at: Timestamp,
    /// The sequence number of the first message.
    pub first: Option<Seq>,
    /// No message of the session is delivered before this time.
    pub delayed_until: Option<Timestamp>,
}
