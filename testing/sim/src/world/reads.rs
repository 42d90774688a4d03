//! Reads that the engine's shell does for the core. The results are passed to the core at a random time, or never.

use malote_engine::command::{Command, Reply};
use malote_engine::core::Effect;
use malote_engine::event::QueueId;
use malote_engine::reads::{rewrite, route};
use malote_model::{Changes, QueueName, Refusal, Seq, Settlement, TopicName, Value};

use super::{LOOK, World};
use crate::decide::Ask;
use crate::model::Availability;

/// A message with more records than this is rewritten as one.
const DEPTH_MAX: u64 = 64;

/// The result of a read.
pub(super) enum Read {
    /// Messages of a topic's inbox.
    Route(QueueId, Command),
    /// Messages that are rewritten.
    Rewrite(Command),
}

impl World {
    /// Performs a read that the core requested.
    pub(super) fn read(&mut self, to: Effect) {
        self.reads.push_back(match to {
            Effect::Route(topic, items) => {
                Read::Route(topic, route(topic, items, &self.journal.segments))
            }
            Effect::Rewrite(items) => Read::Rewrite(rewrite(items, &self.journal.segments)),
            Effect::Request(..) | Effect::Consumer(..) => unreachable!("not a read"),
        });
    }

    /// Passes the oldest result to the core.
    pub(super) fn bring_back(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        // Due actions come first, as in every turn of the engine.
        self.turn(Vec::new());
        match self.reads.pop_front() {
            Some(Read::Route(topic, command)) => self.route(topic, command),
            Some(Read::Rewrite(command)) => self.rewrite(command),
            None => {}
        }
        self.turn(Vec::new());
    }

    fn route(&mut self, topic: QueueId, command: Command) {
        let now = self.now;
        self.say(|| format!("{now} {command:?}"));
        let (groups, out) = self.call(|turn| turn.command(LOOK, command));
        self.model.routed(now, &groups);
        groups.iter().for_each(|group| self.model.follow(now, group));
        let answer: Vec<_> = out.into_iter().map(|output| output.effect).collect();
        assert!(
            matches!(answer.as_slice(), [Effect::Request(LOOK, Ok(Reply::Done))]),
            "routing was answered with {answer:?}"
        );
        self.model.check_journal(&groups);
        // Blocked messages are retried later.
        let name = self.model.topic_names.get(&topic).cloned();
        if let Some(inbox) = name.and_then(|n| self.waiting_inbox(&n)).filter(|_| self.tight) {
            self.met.count("routing blocked by a full disk", 1);
            self.model.cannot_go_on(&inbox);
        }
    }

    fn rewrite(&mut self, command: Command) {
        let (_, out) = self.call(|turn| turn.command(LOOK, command));
        match out.into_iter().map(|output| output.effect).next() {
            Some(Effect::Request(LOOK, Ok(Reply::Count(stored)))) => {
                self.met.count("rewritten", stored);
            }
            Some(Effect::Request(LOOK, Err(Refusal::DiskFull | Refusal::NoSegment { .. })))
                if self.tight => {}
            other => panic!("a rewrite was answered with {other:?}"),
        }
    }

    /// The inbox of a topic, if it contains a message to route.
    fn waiting_inbox(&self, topic: &TopicName) -> Option<QueueName> {
        let inbox = QueueName::inbox(topic);
        let q = self.model.state.inboxes.get(&inbox)?;
        let mut waiting = q.msgs.values().filter(|msg| msg.ready(self.now));
        // Expired messages are removed in the next turn.
        waiting.any(|msg| !q.expired(msg, self.now)).then_some(inbox)
    }

    /// Messages in an inbox must be in a read, in a result, or blocked.
    pub(super) fn check_inboxes(&mut self) {
        let topics: Vec<_> = self.model.state.topics.keys().cloned().collect();
        for topic in topics {
            let Some(inbox) = self.waiting_inbox(&topic) else { continue };
            if self.tight {
                self.model.cannot_go_on(&inbox);
                continue;
            }
            let is_it = |id: &QueueId| self.model.topic_names.get(id) == Some(&topic);
            let mut asked = self.pending.values().filter_map(|pending| match &pending.effect {
                Effect::Route(id, _) => Some(id),
                _ => None,
            });
            let mut read = self.reads.iter().filter_map(|read| match read {
                Read::Route(id, _) => Some(id),
                Read::Rewrite(_) => None,
            });
            let fine = asked.any(is_it) || read.any(is_it) || self.model.is_stuck(&inbox);
            assert!(fine, "the messages in {inbox} are not being routed");
        }
    }

    /// Changes one message until it is rewritten because of its number of records.
    pub(super) fn deepen(&mut self) {
        let queues = self.model.state.queues.iter().filter(|(_, q)| !q.sessioned());
        let deferred = queues.flat_map(|(name, q)| {
            let deferred =
                q.msgs.iter().filter(|(_, msg)| msg.availability == Availability::Deferred);
            deferred.map(|(&seq, _)| (name.clone(), seq))
        });
        let Some((queue, seq)) = deferred.last() else { return };
        self.met.count("messages with many records", 1);
        for n in 0..DEPTH_MAX + 2 {
            let ask = Ask::ReceiveDeferred {
                queue: queue.clone(),
                seqs: vec![Seq(seq)],
                hold: None,
                lock_ms: None,
                take: false,
                connection: None,
            };
            self.turn_at_once(vec![(0, ask)]);
            let msg = self.model.state.queues.get(&queue).and_then(|q| q.msgs.get(&seq));
            let Some(Availability::Leased(token)) = msg.map(|msg| msg.availability) else { return };
            let mut changes = Changes::default();
            changes.properties.set("p0", Value::U64(n));
            let (leases, settlement) = (vec![token], Settlement::Defer { changes });
            self.turn_at_once(vec![(0, Ask::Settle { leases, settlement, state: None })]);
        }
        self.flush();
        // Usually before the message changes again.
        while !self.reads.is_empty() && self.rng.chance(90) {
            self.bring_back();
        }
    }
}
