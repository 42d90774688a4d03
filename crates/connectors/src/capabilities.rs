//! The capabilities of each broker, as data. Workers compare them with their needs. The contract suite and the table in
//! docs/reference/connectors.md are generated from them.

use std::fmt;

/// What a delayed retry holds back to keep the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryHold {
    /// The message's own session.
    Session,
    /// All sessions that share its partition.
    Partition,
    /// Nothing: the order is not kept.
    Nothing,
}

impl fmt::Display for RetryHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Session => "its session",
            Self::Partition => "its partition",
            Self::Nothing => "nothing",
        })
    }
}

macro_rules! capabilities {
    ($($(#[$doc:meta])+ $name:ident $variant:ident $title:literal => $fix:literal;)+) => {
        /// The capabilities of a broker.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Capabilities {
            /// The broker's name, for errors.
            pub broker: &'static str,
            /// What a delayed retry holds back.
            pub retry_hold: RetryHold,
            $($(#[$doc])+ pub $name: bool,)+
        }

        /// A feature that a broker has or lacks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Capability { $($(#[$doc])+ $variant,)+ }

        impl Capability {
            /// All capabilities, in the order of the table.
            pub const ALL: &'static [Capability] = &[$(Self::$variant),+];

            /// A short description.
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }

            /// What to do if the broker lacks it.
            pub fn fix(self) -> &'static str {
                match self { $(Self::$variant => $fix,)+ }
            }
        }

        impl Capabilities {
            /// Whether the broker has a capability.
            pub fn has(&self, what: Capability) -> bool {
                match what { $(Capability::$variant => self.$name,)+ }
            }
        }
    };
}

capabilities! {
    /// Queues can be declared through the connector.
    declare Declare "declare queues" => "create the queue with the broker's own tools";
    /// Sessions: exclusive holds, FIFO order within each, accept-next.
    sessions Sessions "sessions" => "use a worker without sessions, or another broker";
    /// Ready sessions are accepted in the order in which they became ready, and an accept waits for one.
    fair_sessions FairSessions "fair sessions" => "expect busy sessions to be served for longer";
    /// The receiver chooses how long its locks last.
    choose_lock ChooseLock "lock duration chosen by the worker" => "set the worker's lock to that of the queue";
    /// Sessions have a state.
    session_state SessionState "session state" => "keep the state in your own database";
    /// The state changes atomically with a settlement.
    state_with_settle StateWithSettle "state and settlement in one step" => "keep the state in your own database, with an inbox; sagas with `Worker::of_saga_in`";
    /// Locks of messages and sessions can be renewed.
    renew Renew "renew locks" => "let handlers end within the queue's lock";
    /// A message that was not tried can be returned without counting a failure.
    release Release "release without counting a failure" => "expect a counted attempt at every shutdown";
    /// A failed message is redelivered after a durable delay.
    delay Delay "durable delay of a retry" => "set the retry's backoff to none";
    /// Messages can be scheduled.
    schedule Schedule "scheduled messages" => "send the message when it is due";
    /// A message can be dead-lettered with a reason, and dead letters can be received.
    dead_letter DeadLetter "dead letters with reason" => "give the queue a dead-letter target with the broker's own tools";
    /// Properties of a failed message can be changed, to store the history of its attempts.
    changes Changes "history on the message" => "expect a dead letter to show only its last error";
    /// Within a window, a message with the same id is not stored again, if the queue is set so.
    dedup Dedup "de-duplication window" => "make handlers exactly-once with an inbox";
    /// Several sends take effect together or not at all.
    atomic_send AtomicSend "atomic sends to several queues" => "send through an outbox";
    /// Leases end when the worker is gone, before their locks expire.
    bound_leases BoundLeases "redelivery as soon as a worker is gone" => "shorten the queue's lock";
}

impl Capabilities {
    /// Checks that the broker has all these capabilities. The error says what to change.
    pub fn require(&self, needs: &[Capability]) -> Result<(), MissingCapabilities> {
        let missing: Vec<_> = needs.iter().copied().filter(|&need| !self.has(need)).collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(MissingCapabilities { broker: self.broker, missing })
        }
    }
}

/// A worker needs capabilities that its broker lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct MissingCapabilities {
    /// The broker's name.
    pub broker: &'static str,
    /// The missing capabilities.
    pub missing: Vec<Capability>,
}

impl fmt::Display for MissingCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot do what this worker needs", self.broker)?;
        for what in &self.missing {
            write!(f, "\n- {}: {}", what.title(), what.fix())?;
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "postgres", feature = "rabbitmq", feature = "servicebus"))]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// `UPDATE_EXPECT=1 cargo test -p malote-connectors` regenerates the page.
    #[test]
    fn the_reference_page_is_up_to_date() {
        let all = [
            ("`embedded:DIR`", crate::embedded::CAPABILITIES),
            ("`malote://`", crate::native::CAPABILITIES),
            ("`amqp://`", crate::rabbitmq::CAPABILITIES),
            ("`postgres://`", crate::postgres::CAPABILITIES),
            ("`servicebus://`", crate::servicebus::broker::CAPABILITIES),
        ];
        let mut page = String::from(
            "# What each broker can do\n\nGenerated from `crates/connectors/src/capabilities.rs` by \
             `UPDATE_EXPECT=1 cargo test -p malote-connectors`. The contract suite in `crates/connectors/tests/contract` \
             tests each connector against it. A worker that needs a missing capability does not start.\n\n| | ",
        );
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        let _ = writeln!(page, "{} | if it is missing |", names.join(" | "));
        let _ = writeln!(page, "|---|{}---|", "---|".repeat(all.len()));
        for &what in Capability::ALL {
            let has = all.iter().map(|(_, can)| if can.has(what) { "yes" } else { "no" });
            let has: Vec<_> = has.collect();
            let _ = writeln!(page, "| {} | {} | {} |", what.title(), has.join(" | "), what.fix());
        }
        let holds: Vec<_> = all.iter().map(|(_, can)| can.retry_hold.to_string()).collect();
        let _ = writeln!(page, "| a delayed retry holds back | {} | |", holds.join(" | "));
        expect_test::expect_file!["../../../docs/reference/connectors.md"].assert_eq(&page);
    }

    #[test]
    fn a_missing_capability_is_named_with_what_to_change() {
        let capabilities = Capabilities { delay: false, ..crate::embedded::CAPABILITIES };
        capabilities.require(&[Capability::Renew]).unwrap();
        let error =
            capabilities.require(&[Capability::Delay, Capability::Renew]).unwrap_err().to_string();
        assert!(error.contains("durable delay") && error.contains("backoff to none"), "{error}");
    }
}
