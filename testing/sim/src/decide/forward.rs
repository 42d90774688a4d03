//! Forwarding: messages leave queues that forward, and inboxes of topics. A blocked message is retried.

use malote_engine::event::Event;
use malote_model::{Address, Changes, DeadReason, QueueName};

use super::check::check_session;
use super::{Group, Model};
use crate::model::{Ev, ForwardingPath, Queue, Why};

/// Maximum number of times a message is forwarded.
const HOPS_MAX: u8 = 4;

/// Interval after which a blocked message is retried.
const AGAIN_MS: u64 = 1000;

impl Model {
    /// The target of a queue's forwarding, if it exists.
    fn target(&self, name: &QueueName, q: &Queue) -> Option<QueueName> {
        let to = match q.spec.forward_to.as_ref()? {
            Address::Queue(queue) => queue.clone(),
            Address::Topic(topic) => QueueName::inbox(topic),
        };
        let there = self.state.queues.contains_key(&to) || self.state.inboxes.contains_key(&to);
        (there && to != *name).then_some(to)
    }

    /// A queue forwarded messages, in order. Those that may not be forwarded are dead-lettered.
    pub(super) fn forwarded(&mut self, group: &Group) {
        for event in &group.events {
            let (queue, seqs) = match event {
                Event::Moved(moved) => (moved.from_queue, vec![moved.from_seq]),
                Event::Removed { queue, seqs, .. } => (*queue, seqs.clone()),
                other => panic!("unexpected event while forwarding: {other:?}"),
            };
            let queue = self.names[&queue].clone();
            seqs.into_iter().for_each(|seq| self.forward_one(&queue, seq));
        }
        self.find_stuck();
    }

    fn forward_one(&mut self, queue: &QueueName, seq: u64) {
        let q = self.state.queue(queue);
        assert!(!q.paused, "a paused queue forwarded");
        assert_eq!(q.first_ready(self.now), Some(seq), "forwarded out of order from {queue}");
        let to = self.target(queue, q).unwrap_or_else(|| panic!("{queue} does not forward"));
        self.met.count("forwarded", 1);
        self.met.count("forwarded to topics", u64::from(to.is_inbox()));
        if let Some(reason) = self.stops(queue, seq, &to) {
            return self.bury(queue, seq, reason);
        }
        let msg = &self.state.queue(queue).msgs[&seq];
        assert!(self.has_room(&to, msg.sent.size()), "{to} had no room for {seq} of {queue}");
        let path = ForwardingPath { hops: msg.path.hops + 1, ..msg.path.clone() };
        self.met.count("forwarded several times", u64::from(path.hops > 1));
        let (to_seq, at) = (self.state.queue(&to).next_seq, self.now);
        let (why, changes) = (Why::Forwarded(path), Changes::default());
        self.note(Ev::Move { from: queue.clone(), seq, to, to_seq, at, why, changes });
    }

    /// Why a message cannot be forwarded any more.
    fn stops(&self, queue: &QueueName, seq: u64, to: &QueueName) -> Option<DeadReason> {
        let msg = &self.state.queue(queue).msgs[&seq];
        let takes = check_session(to, &self.state.queue(to).spec.sessions, msg.session.as_ref());
        match (msg.path.hops == HOPS_MAX, takes.is_ok()) {
            (true, _) => Some(DeadReason::TooManyHops),
            (_, false) => Some(DeadReason::NoSession),
            _ => None,
        }
    }

    fn has_room(&self, to: &QueueName, size: u64) -> bool {
        self.check_room(to, size, &mut Default::default()).is_ok()
    }

    /// Queues with a message to forward, and whether it can be forwarded now.
    fn forwarding(&self) -> Vec<(QueueName, bool)> {
        let mut found = Vec::new();
        for (name, q) in self.state.queues.iter().filter(|(_, q)| q.spec.forward_to.is_some()) {
            let Some(first) = q.first_ready(self.now).filter(|_| !q.paused) else { continue };
            let goes = self.target(name, q).is_some_and(|to| {
                let size = q.msgs[&first].sent.size();
                self.stops(name, first, &to).is_some() || self.has_room(&to, size)
            });
            found.push((name.clone(), goes));
        }
        found
    }

    /// Blocked queues are retried later.
    pub fn find_stuck(&mut self) {
        for (name, _) in self.forwarding().into_iter().filter(|(_, goes)| !goes) {
            self.cannot_go_on(&name);
        }
    }

    /// Checks that no queue has a message to forward, except queues that were blocked a moment ago.
    pub fn check_forwarded(&mut self, room: bool) {
        for (name, goes) in self.forwarding() {
            match goes && room {
                true => {
                    assert!(self.is_stuck(&name), "messages of {name} should have been forwarded")
                }
                false => self.cannot_go_on(&name),
            }
        }
    }

    /// Blocked, and not yet due for a retry.
    pub fn is_stuck(&self, name: &QueueName) -> bool {
        self.stuck.get(name).is_some_and(|at| self.now < at + AGAIN_MS)
    }

    pub fn cannot_go_on(&mut self, name: &QueueName) {
        self.stuck.insert(name.clone(), self.now);
        self.met.count("forwarding blocked", 1);
    }
}
