//! What happens without being asked for: leases lapse, messages become due, expire or make room, connections end.

use std::collections::BTreeSet;

use malote_model::{Changes, DeadReason, OnExpiry, Overflow, QueueName};

use super::journal::Trigger;
use super::{Group, Model};
use crate::model::{Cause, End, Ev, Lease, Msg, Place, What, Why};

impl Model {
    /// What became due by now, in the engine's order. Each must be right to happen, and only expired messages may be
    /// left: the engine spreads many of them over several turns. Tells whether there are any. Without room for records
    /// everything may have to wait.
    pub fn expire(&mut self, now: u64, groups: &[Group], room: bool) -> bool {
        // Nothing fires twice in a moment: what was made due in it waits for the next.
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
                    assert!(idle.contains(&name), "{name} went, and somebody used it");
                    self.met.count("went idle", 1);
                    self.delete(&name);
                }
            }
        }
        moved_on && room && self.check_due(&idle)
    }

    /// The wall clock was set forward by `by_ms`: every lease lasts as much longer.
    pub fn clock_stepped(&mut self, now: u64, by_ms: u64, groups: &[Group]) {
        let [group] = groups else { panic!("a step of the clock is one group: {groups:?}") };
        let leases = self.state.leases.len() as u64;
        self.begin(now, group.end);
        self.note(Ev::ClockStep { by_ms });
        self.check_journal(groups);
        self.met.count("clock steps", 1);
        self.met.count("leases over a clock step", leases);
    }

    /// Who is answered in the middle of a step knows nothing of what comes after.
    fn stand_before(&mut self) {
        let queues = self.state.queues.iter();
        self.before = Some(queues.map(|(name, q)| (name.clone(), q.eager)).collect());
    }

    /// Nothing but expired messages is due. Tells whether there are any.
    fn check_due(&self, idle: &BTreeSet<QueueName>) -> bool {
        let (now, mut left) = (self.now, false);
        for (token, lease) in &self.state.leases {
            assert!(lease.hold.is_some() || lease.until > now, "{token} is over: {lease:?}");
        }
        for (name, q) in self.state.queues.iter().chain(&self.state.inboxes) {
            assert!(!idle.contains(name), "{name} was idle for too long");
            for (seq, msg) in &q.msgs {
                let due = matches!(msg.place, Place::Scheduled { due } if due <= now);
                assert!(!due, "{seq} of {name} was scheduled for now: {msg:?}");
                // What came in this moment goes in the next.
                let stays = matches!(msg.place, Place::Out(_)) || msg.at == now;
                left |= !stays && q.expired(msg, now);
            }
        }
        left
    }

    /// Every message that expired by now and is still there, in plain words.
    pub fn expired_messages(&self) -> Vec<String> {
        let queues = self.state.queues.iter().chain(&self.state.inboxes);
        let expired = queues.flat_map(|(name, q)| {
            let over = |msg: &Msg| !matches!(msg.place, Place::Out(_)) && q.expired(msg, self.now);
            let these = q.msgs.iter().filter(move |(_, msg)| over(msg));
            these.map(move |(seq, msg)| format!("{seq} of {name}: {msg:?}"))
        });
        expired.collect()
    }

    /// A group begins, and with it what the engine says of times that are known only roughly.
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
            None => panic!("{token} is nobody's"),
        }
    }

    fn activate(&mut self, queue: &QueueName, seq: u64) {
        let q = self.state.queue(queue);
        let due = match q.msgs[&seq].place {
            Place::Scheduled { due } => due,
            other => panic!("{seq} of {queue} is not scheduled: {other:?}"),
        };
        assert!(due <= self.now, "{seq} of {queue} is not due before {due}");
        // What found no room is tried again later, and may be passed.
        let passed = q.msgs.iter().find(|(other, msg)| {
            let earlier = |of: u64| (of, **other) < (due, seq);
            matches!(msg.place, Place::Scheduled { due } if earlier(due))
        });
        assert!(self.tried_again || passed.is_none(), "{seq} of {queue} came before {passed:?}");
        let same = |msg: &Msg| msg.place == Place::Scheduled { due };
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

    /// A message that nobody settled becomes a dead letter.
    pub(super) fn bury(&mut self, queue: &QueueName, seq: u64, reason: DeadReason) {
        self.dead_letter(queue, seq, reason, Cause::Released, &Changes::default());
    }

    /// Messages made room in a queue that was too full: just those that had to.
    pub fn overflow(&mut self, queue: &QueueName, seqs: &[u64]) {
        let q = self.state.queue(queue);
        // There may be more than one record group holds.
        let excess = q.in_excess(self.now);
        assert_eq!(seqs, &excess[..seqs.len().min(excess.len())], "what makes room in {queue}");
        let overflow = q.spec.overflow;
        self.met.count("overflowed", seqs.len() as u64);
        for &seq in seqs {
            match overflow {
                Overflow::Reject => panic!("{queue} refuses what is too much"),
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

    /// What follows by itself from what was asked: messages go on, and queues that are too full make room.
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

    /// Limits hold at the end of a turn, where the queue itself sees to it.
    pub fn check_limits(&mut self, room: bool) {
        let now = self.now;
        for (name, q) in &mut self.state.queues {
            let excess = q.in_excess(now);
            q.loose = (q.loose || !room) && !excess.is_empty();
            assert!(q.loose || !q.drops() || excess.is_empty(), "{name} holds {excess:?} too much");
        }
    }

    /// A connection ended: what was bound to it comes back, in the engine's order, and its own queues go.
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
                    assert!(own, "{name} does not go with {connection}");
                    self.met.count("went with its connection", 1);
                    self.delete(&name);
                }
                other => panic!("{other:?} has nothing to do with a connection's end"),
            }
        }
        let bound = self.state.leases.values().filter(|lease| {
            lease.connection == Some(connection) && lease.hold.is_none() && lease.bound
        });
        assert_eq!(bound.count(), 0, "bound to {connection}, which is gone");
        assert_eq!(self.exclusive_of(connection), [], "queues of {connection}, which is gone");
    }
}
