//! What a broker can do, as data: workers compare it with what they need, the contract suite and the table in
//! docs/reference/connectors.md are made from it.

use std::fmt;

/// What a delayed retry holds back so that order is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryHold {
    /// The message's own session.
    Session,
    /// All sessions that share its partition.
    Partition,
    /// Nothing: order is given up.
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
        /// What a broker can do.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Capabilities {
            /// The broker's name, for messages.
            pub broker: &'static str,
            /// What a delayed retry holds back.
            pub retry_hold: RetryHold,
            $($(#[$doc])+ pub $name: bool,)+
        }

        /// One thing that a broker can do or cannot.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Capability { $($(#[$doc])+ $variant,)+ }

        impl Capability {
            /// All of them, in the order of the table.
            pub const ALL: &'static [Capability] = &[$(Self::$variant),+];

            /// A few words for it.
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }

            /// What to do where it is missing.
            pub fn fix(self) -> &'static str {
                match self { $(Self::$variant => $fix,)+ }
            }
        }

        impl Capabilities {
            /// Whether it can do this.
            pub fn has(&self, what: Capability) -> bool {
                match what { $(Capability::$variant => self.$name,)+ }
            }
        }
    };
}

capabilities! {
    /// Queues can be declared through it.
    declare Declare "declare queues" => "make the queue with the broker's own tools";
    /// Sessions: exclusive holds, FIFO within each, accept-next.
    sessions Sessions "sessions" => "use a worker without sessions, or another broker";
    /// The next ready session is found by waiting, and given in the order in which sessions became ready.
    fair_sessions FairSessions "sessions in turn" => "expect that a busy session is served for longer";
    /// Whoever receives says how long its locks last.
    choose_lock ChooseLock "locks as long as the worker says" => "give the worker the queue's own lock";
    /// Sessions have a state.
    session_state SessionState "session state" => "keep the state in your own database";
    /// The state changes in the same step as a settlement.
    state_with_settle StateWithSettle "state and settlement in one step" => "keep the state in your own database, with an inbox; sagas with `Worker::of_saga_in`";
    /// Locks of messages and sessions can be prolonged.
    renew Renew "renew locks" => "let handlers end within the queue's lock";
    /// A message that was not tried goes back uncounted.
    release Release "give back uncounted" => "expect a counted attempt at every shutdown";
    /// A failed message comes back after a delay that survives everything.
    delay Delay "durable delay of a retry" => "set the retry's backoff to none";
    /// Messages can be sent for later.
    schedule Schedule "send later" => "send when it is time";
    /// A message can be dead-lettered with a reason, and read there.
    dead_letter DeadLetter "dead letters with reason" => "give the queue a dead-letter target with the broker's own tools";
    /// Properties can be laid over a failed message: the history of its attempts.
    changes Changes "history on the message" => "expect a dead letter to show its last error only";
    /// A message id that was sent before is not stored again, where the queue asks for it.
    dedup Dedup "de-duplication window" => "make handlers exactly-once with an inbox";
    /// Several sends happen together or not at all.
    atomic_send AtomicSend "all or nothing over queues" => "send through an outbox";
    /// Leases end when the worker vanishes, not when their lock runs out.
    bound_leases BoundLeases "recovery as soon as a worker is gone" => "shorten the queue's lock";
}

impl Capabilities {
    /// Refuses what is missing of all this, with what to change.
    pub fn require(&self, needs: &[Capability]) -> Result<(), Missing> {
        let missing: Vec<_> = needs.iter().copied().filter(|&need| !self.has(need)).collect();
        if missing.is_empty() { Ok(()) } else { Err(Missing { broker: self.broker, missing }) }
    }
}

/// A worker needs what its broker has not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Missing {
    /// Which broker.
    pub broker: &'static str,
    /// What it has not.
    pub missing: Vec<Capability>,
}

impl fmt::Display for Missing {
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

    /// `UPDATE_EXPECT=1 cargo test -p malote-connectors` writes the page anew.
    #[test]
    fn the_reference_page_is_the_table() {
        let all = [
            ("`embedded:DIR`", crate::embedded::CAPABILITIES),
            ("`malote://`", crate::native::CAPABILITIES),
            ("`amqp://`", crate::rabbitmq::CAPABILITIES),
            ("`postgres://`", crate::postgres::CAPABILITIES),
            ("`servicebus://`", crate::servicebus::broker::CAPABILITIES),
        ];
        let mut page = String::from(
            "# What each broker can do\n\nWritten by `UPDATE_EXPECT=1 cargo test -p malote-connectors`; \
             `crates/connectors/src/capabilities.rs` is the source, and the contract suite in \
             `crates/connectors/tests/contract` holds each connector to it. A worker that needs what its broker cannot do \
             is refused when it starts.\n\n| | ",
        );
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        let _ = writeln!(page, "{} | where it is missing |", names.join(" | "));
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
    fn what_is_missing_is_named_with_what_to_change() {
        let few = Capabilities { delay: false, ..crate::embedded::CAPABILITIES };
        few.require(&[Capability::Renew]).unwrap();
        let error = few.require(&[Capability::Delay, Capability::Renew]).unwrap_err().to_string();
        assert!(error.contains("durable delay") && error.contains("backoff to none"), "{error}");
    }
}
