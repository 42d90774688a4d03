//! What happens without a request: leases expire, messages become due, expire or are dropped, connections end.

use std::collections::BTreeSet;

use malote_model::{Changes, DeadReason, OnExpiry, Overflow, QueueName};

use super::journal::Trigger;
use super::{Group, Model};
use crate::model::{Availability, Cause, End, Ev, Lease, Msg, What, Why};

impl Model {
    /// Performs what became due by now, in the engine's order. Each action must be allowed. Only expired messages may
    /// be left, because the engine removes many of them over several turns; returns whether there are any. If the
    /// disk is full, everything may have to wait.
    pub fn expire(&mut self, now: u64, groups: &[Group], room: bool) -> bool {
        // Nothing fires twice at the same time: actions that become due now wait for the next time.
        let moved_on = now > std::mem::replace(&mut self.expired_at, now);
        self.now = now;
        self.stand_before();
        let idle: BTreeSet<QueueName> = self.idle().into_iter().collect();
        self.tried_again |= !room;
        for group in groups {
            self.take_up(now, group);
            match self.trigger(group) {
                Trigger::Lease(token) | Trigger::Hold(token) => {
                    let until = self.state.leases.get(&token).map(|lease| lease.until);
                    assert!(until.is_some_and(|until| until <= now), "{token} ended early");
                    self.end_any(token, Cause::Lost);
                }
                Trigger::Activate(queue, seq) => self.activate(&queue, seq),
                Trigger::Expiry(queue, seqs) => self.expire_messages(&queue, &seqs),
                Trigger::Overflow(queue, seqs) => self.overflow(&queue, &seqs),
                Trigger::Gone(name) => {
                    assert!(idle.contains(&name), "{name} was deleted as idle while in use");
                    self.met.count("queues deleted as idle", 1);
                    self.delete(&name);
                }
            }
        }
        moved_on && room && self.check_due(&idle)
    }

    /// The wall clock was set forward by `by_ms`, which extends all leases by the same time.
    pub fn clock_stepped(&mut self, now: u64, by_ms: u64, groups: &[Group]) {
        let [group] = groups else { panic!("a clock step is one group: {groups:?}") };
        let leases = self.state.leases.len() as u64;
        self.begin(now, group.end);
        self.note(Ev::ClockStep { by_ms });
        self.check_journal(groups);
        self.met.count("clock steps", 1);
        self.met.count("leases over a clock step", leases);
    }

    /// Answers within a step do not depend on later changes of the same step.
    fn stand_before(&mut self) {
        let queues = self.state.queues.iter();
        self.before = Some(queues.map(|(name, q)| (name.clone(), q.eager)).collect());
    }

    /// Checks that nothing except expired messages is due. Returns whether there are any.
    fn check_due(&self, idle: &BTreeSet<QueueName>) -> bool {
        let (now, mut left) = (self.now, false);
        for (token, lease) in &self.state.leases {
            assert!(
                lease.hold.is_some() || lease.until > now,
                "{token} should have ended: {lease:?}"
            );
        }
        for (name, q) in self.state.queues.iter().chain(&self.state.inboxes) {
            assert!(!idle.contains(name), "{name} was idle for too long");
            for (seq, msg) in &q.msgs {
                let due = matches!(msg.availability, Availability::Scheduled { due } if due <= now);
                assert!(!due, "{seq} of {name} should have been activated: {msg:?}");
                // Messages that arrived now expire at the next time.
                let stays = matches!(msg.availability, Availability::Leased(_)) || msg.at == now;
                left |= !stays && q.expired(msg, now);
            }
        }
        left
    }

    /// All messages that have expired but still exist, as text.
    pub fn expired_messages(&self) -> Vec<String> {
        let queues = self.state.queues.iter().chain(&self.state.inboxes);
        let expired = queues.flat_map(|(name, q)| {
            let over = |msg: &Msg| {
                !matches!(msg.availability, Availability::Leased(_)) && q.expired(msg, self.now)
            };
            let these = q.msgs.iter().filter(move |(_, msg)| over(msg));
            these.map(move |(seq, msg)| format!("{seq} of {name}: {msg:?}"))
        });
        expired.collect()
    }

    /// A group begins, with the engine's decisions about times that are known only approximately.
    pub fn take_up(&mut self, now: u64, group: &Group) {
        self.begin(now, group.end);
        self.said_expired = self.expired_in(group);
    }

    fn end_any(&mut self, token: malote_model::LeaseToken, cause: Cause) {
        match self.state.leases.get(&token).cloned() {
            Some(Lease { what: What::Session(_), .. }) => self.end_hold(token, cause),
            Some(Lease { queue, what: What::Message(seq), .. }) => {
                self.back(&queue, seq, cause, 0, &Changes::default());
            }
            None => panic!("the model does not know the lease {token}"),
        }
    }

    fn activate(&mut self, queue: &QueueName, seq: u64) {
        let q = self.state.queue(queue);
        let due = match q.msgs[&seq].availability {
            Availability::Scheduled { due } => due,
            other => panic!("{seq} of {queue} is not scheduled: {other:?}"),
        };
        assert!(due <= self.now, "{seq} of {queue} is not due before {due}");
        // Postponed messages are retried later, so others may overtake them.
        let passed = q.msgs.iter().find(|(other, msg)| {
            let earlier = |of: u64| (of, **other) < (due, seq);
            matches!(msg.availability, Availability::Scheduled { due } if earlier(due))
        });
        assert!(
            self.tried_again || passed.is_none(),
            "{seq} of {queue} was activated before {passed:?}"
        );
        let same = |msg: &Msg| msg.availability == Availability::Scheduled { due };
        let together = q.msgs.values().filter(|msg| same(msg)).count() > 1;
        self.met.count("scheduled for the same moment", u64::from(together));
        let q = self.state.queue(queue);
        let (to, to_seq) = (queue.clone(), q.next_seq);
        let (at, why, changes) = (self.now, Why::Due, Changes::default());
        self.note(Ev::Move { from: queue.clone(), seq, to, to_seq, at, why, changes });
    }

    fn expire_messages(&mut self, queue: &QueueName, seqs: &[u64]) {
        for &seq in seqs {
            let q = self.state.queue(queue);
            let msg = &q.msgs[&seq];
            assert!(q.may_expire(msg, self.now), "{seq} of {queue} expired early: {msg:?}");
            self.expire_message(queue, seq);
        }
    }

    pub(super) fn expire_message(&mut self, queue: &QueueName, seq: u64) {
        self.met.count("expired", 1);
        match self.state.queue(queue).spec.on_expiry {
            OnExpiry::Drop => {
                self.note(Ev::Gone { queue: queue.clone(), seq, end: End::Expired });
            }
            OnExpiry::DeadLetter => {
                self.bury(queue, seq, DeadReason::Expired);
            }
        }
    }

    /// Dead-letters a message without a settlement.
    pub(super) fn bury(&mut self, queue: &QueueName, seq: u64, reason: DeadReason) {
        self.dead_letter(queue, seq, reason, Cause::Released, &Changes::default());
    }

    /// Messages were removed from a queue over its limit: exactly those that had to be.
    pub fn overflow(&mut self, queue: &QueueName, seqs: &[u64]) {
        let q = self.state.queue(queue);
        // There may be more than fit in one journal group.
        let excess = q.in_excess(self.now);
        assert_eq!(seqs, &excess[..seqs.len().min(excess.len())], "messages removed from {queue}");
        let overflow = q.spec.overflow;
        self.met.count("overflowed", seqs.len() as u64);
        for &seq in seqs {
            match overflow {
                Overflow::Reject | Overflow::DeadLetterNewest => {
                    panic!("{queue} refuses at its limit and drops nothing")
                }
                Overflow::DropOldest => {
                    self.note(Ev::Gone { queue: queue.clone(), seq, end: End::Overflowed });
                }
                Overflow::DeadLetterOldest => {
                    self.bury(queue, seq, DeadReason::Overflowed);
                }
            }
        }
        if let Some(q) = self.state.queues.get_mut(queue) {
            q.loose = false;
        }
    }

    /// Consequences of requests: messages are forwarded, and full queues drop messages.
    pub fn follow(&mut self, now: u64, group: &Group) {
        if group.is_forward() {
            self.take_up(now, group);
            self.forwarded(group);
        } else if group.is_overflow() {
            self.take_up(now, group);
            if let Trigger::Overflow(queue, seqs) = self.trigger(group) {
                self.overflow(&queue, &seqs);
            }
        }
    }

    /// Checks that queues that drop messages are within their limits at the end of a turn.
    pub fn check_limits(&mut self, room: bool) {
        let now = self.now;
        for (name, q) in &mut self.state.queues {
            let excess = q.in_excess(now);
            q.loose = (q.loose || !room) && !excess.is_empty();
            assert!(
                q.loose || !q.drops() || excess.is_empty(),
                "{name} should have dropped {excess:?}"
            );
        }
    }

    /// A connection ended: its leases end, in the engine's order, and its exclusive queues are deleted.
    pub fn disconnected(&mut self, now: u64, connection: u64, clean: bool, groups: &[Group]) {
        self.stand_before();
        let cause = if clean { Cause::Released } else { Cause::Lost };
        for group in groups.iter().filter(|group| !group.follows()) {
            self.take_up(now, group);
            match self.trigger(group) {
                Trigger::Lease(token) | Trigger::Hold(token) => {
                    let lease = self.state.leases.get(&token);
                    let bound = lease.is_some_and(|l| l.connection == Some(connection) && l.bound);
                    assert!(bound, "{token} does not end with {connection}: {lease:?}");
                    self.end_any(token, cause);
                }
                Trigger::Gone(name) => {
                    let own = self.is_exclusive_to(&name, connection);
                    assert!(own, "{name} does not belong to connection {connection}");
                    self.met.count("queues deleted with their connection", 1);
                    self.delete(&name);
                }
                other => panic!("{other:?} is not caused by the end of a connection"),
            }
        }
        let bound = self.state.leases.values().filter(|lease| {
            lease.connection == Some(connection) && lease.hold.is_none() && lease.bound
        });
        assert_eq!(bound.count(), 0, "leases of the ended connection {connection}");
        assert_eq!(
            self.exclusive_of(connection),
            [],
            "queues of the ended connection {connection}"
        );
    }
}
