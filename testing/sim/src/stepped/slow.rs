//! A receiver that takes messages and reads them late. By then the journal has advanced, and the segments that
//! contain them would have been recycled if the answer did not pin them.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use malote_engine::Receive;
use malote_model::{Message, QueueName, Timestamp, When};

use super::Stepped;
use super::clients::{TAKEN, name};

/// Number of segments that are recycled before the receiver reads.
const RECYCLED: u64 = 4;

/// Rounds of traffic that must be enough to recycle them.
const ROUNDS_MAX: u32 = 400;

/// A queue that no client uses.
pub(super) fn scratch() -> QueueName {
    QueueName::new("sim-scratch").unwrap_or_else(|refusal| panic!("{refusal}"))
}

impl Stepped {
    pub(super) fn read_slowly(&mut self) {
        let engine = self.life().engine.clone();
        let now = engine.now();
        let these = self.history.borrow_mut().trying(TAKEN, 0, 2);
        // The second gets a new record when it becomes due, but its body stays in the record of the send.
        let when = [When::Now, When::At(Timestamp(now.0 + 100))];
        let messages = these.iter().zip(when).map(|(which, when)| {
            let message = Message { when, ..which.message(500) };
            (name(TAKEN), message)
        });
        let messages: Vec<_> = messages.collect();
        let sent = self.run(engine.send(messages)).map(drop);
        assert_eq!(sent, Ok(()), "the send is accepted");
        self.history.borrow_mut().sent(&these);
        self.busy_for(1);
        self.clocks.pass(200);
        self.pump();
        let receive = Receive {
            queue: name(TAKEN),
            max: 1000,
            wait_ms: 0,
            lock_ms: None,
            take: true,
            hold: None,
            per_session: 1,
        };
        let mut taking = pin!(engine.receive(receive));
        let asked = taking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(asked, Poll::Pending), "the engine has not run yet");
        self.busy_for(RECYCLED);
        let got = self.run(taking).unwrap_or_else(|error| panic!("{error}"));
        let (holder, now) = (self.history.borrow_mut().new_holder(), engine.now());
        got.iter().for_each(|delivery| self.history.borrow_mut().taken(holder, delivery, now));
        assert_eq!(engine.damaged(), 0, "a taken message could not be read");
        assert!(got.len() >= these.len(), "two messages were sent, but {} were taken", got.len());
        self.met("stepped: read slowly");
    }

    /// Sends and purges messages until this many segments were recycled.
    fn busy_for(&mut self, recycled: u64) {
        let engine = self.life().engine.clone();
        let until = engine.disk().recycled + recycled;
        for _ in 0..ROUNDS_MAX {
            if engine.disk().recycled >= until {
                return;
            }
            let message = |n: u64| {
                (scratch(), super::history::Which { queue: 9, stream: 0, n }.message(4000))
            };
            let sent = self.run(engine.send((0..8).map(message).collect())).map(drop);
            assert_eq!(sent, Ok(()), "the send is accepted");
            self.run(engine.purge(scratch())).unwrap_or_else(|error| panic!("{error}"));
            for _ in 0..6 {
                self.life().steps.keep_house();
                self.pump();
            }
        }
        panic!("no segment was recycled");
    }
}
