//! The effect of changes on the state.

use malote_engine::journal::Pos;
use malote_model::{Changes, DeadReason, QueueName, QueueSpec, SessionId};

use super::{
    Availability, Cause, End, Ev, ForwardingPath, Known, Lease, Msg, Queue, State, Via, What, Why,
};

impl State {
    /// Applies one change whose journal group ends at `pos`.
    pub fn apply(&mut self, ev: &Ev, pos: Pos) {
        match ev {
            Ev::Declare { name, spec } => {
                let dead = letters_spec(spec);
                self.queues.insert(name.clone(), Queue::new(spec.clone(), None, pos));
                self.queues.insert(name.dead_letters(), Queue::new(dead, Some(name.clone()), pos));
            }
            Ev::Update { name, spec, at } => {
                let q = self.queue_mut(name);
                q.remember_for(spec, *at);
                (q.spec, q.eager) = (spec.clone(), pos);
                self.queue_mut(&name.dead_letters()).spec = letters_spec(spec);
            }
            Ev::Delete { name } => {
                for name in [name, &name.dead_letters()] {
                    self.queues.remove(name);
                    self.leases.retain(|_, lease| lease.queue != *name);
                }
                for topic in self.topics.values_mut() {
                    topic.rules.remove(name);
                }
            }
            Ev::Purge { queue, leased } => {
                if *leased {
                    let of_message = |lease: &Lease| matches!(lease.what, What::Message(_));
                    self.leases.retain(|_, lease| lease.queue != *queue || !of_message(lease));
                }
                let q = self.queue_mut(queue);
                q.msgs.retain(|_, msg| {
                    !*leased && matches!(msg.availability, Availability::Leased(_))
                });
                if *leased {
                    q.seen.clear();
                }
                self.eager(queue, pos);
            }
            Ev::Pause { queue, paused } => {
                let q = self.queue_mut(queue);
                (q.paused, q.eager) = (*paused, pos);
            }
            Ev::Put { queue, msg, via } => {
                if let Some(via) = via {
                    self.published(queue, msg, via, pos);
                }
                let q = self.queue_mut(queue);
                let mut msg = (**msg).clone();
                (msg.rests, msg.entered) = (pos, pos);
                q.come(&mut msg);
                q.remember(&msg, via.as_ref(), pos);
                q.msgs.insert(q.next_seq, msg);
                q.next_seq += 1;
                q.totals.sent += 1;
                self.eager(queue, pos);
            }
            Ev::Gone { queue, seq, end } => {
                // Expiry follows from the clock, so no answer depends on it.
                if *end != End::Expired {
                    self.rest(queue, *seq, pos);
                    self.eager(queue, pos);
                }
                self.unlease(queue, *seq);
                let q = self.queue_mut(queue);
                let msg = q.msgs.remove(seq);
                let taken = *end == End::Taken;
                q.totals.completed += u64::from(taken || *end == End::Completed);
                q.totals.delivered += u64::from(taken);
                q.totals.redelivered += u64::from(taken && msg.is_some_and(|m| m.receives > 0));
                q.totals.expired += u64::from(*end == End::Expired);
                if let End::Dropped(cause) = end {
                    cause.count(&mut q.totals);
                }
            }
            Ev::Grant { queue, seq, token, lease, at } => {
                self.leases.insert(*token, (**lease).clone());
                let q = self.queue_mut(queue);
                let Some(msg) = q.msgs.get_mut(seq) else {
                    panic!("the granted message does not exist")
                };
                msg.availability = Availability::Leased(*token);
                q.totals.delivered += 1;
                q.totals.redelivered += u64::from(msg.receives > 0);
                msg.first = msg.first.or(Some(*at));
                msg.receives += 1;
            }
            Ev::ClockStep { by_ms } => {
                self.leases.values_mut().for_each(|lease| lease.until += by_ms);
            }
            Ev::Renew { token, until } => {
                if let Some(lease) = self.leases.get_mut(token) {
                    lease.until = *until;
                }
            }
            Ev::Back { queue, seq, cause, due, parked, changes } => {
                if *cause == Cause::Abandoned || !changes.is_empty() {
                    self.rest(queue, *seq, pos);
                }
                let deferred = self.unlease(queue, *seq).is_some_and(|lease| lease.deferred);
                let q = self.queue_mut(queue);
                let Some(msg) = q.msgs.get_mut(seq) else { return };
                msg.availability = match (deferred, parked) {
                    (true, _) => Availability::Deferred,
                    (false, true) => Availability::Parked { due: *due },
                    (false, false) => Availability::InOrder { due: *due },
                };
                match cause {
                    Cause::Released => msg.released += 1,
                    Cause::Abandoned | Cause::Lost => msg.failed += 1,
                }
                cause.count(&mut q.totals);
                msg.change(changes, pos);
                if *cause != Cause::Lost {
                    self.eager(queue, pos);
                }
            }
            Ev::Defer { queue, seq, changes } => {
                self.rest(queue, *seq, pos);
                self.unlease(queue, *seq);
                let q = self.queue_mut(queue);
                q.totals.deferred += 1;
                if let Some(msg) = q.msgs.get_mut(seq) {
                    msg.availability = Availability::Deferred;
                    msg.change(changes, pos);
                }
                self.eager(queue, pos);
            }
            Ev::Move { from, seq, to, to_seq, at, why, changes } => {
                self.rest(from, *seq, pos);
                self.unlease(from, *seq);
                let q = self.queue_mut(from);
                let Some(mut msg) = q.msgs.remove(seq) else {
                    panic!("the moved message does not exist")
                };
                if let Why::Dead(dead) = why {
                    q.totals.dead_lettered += 1;
                    dead.cause.count(&mut q.totals);
                    q.totals.expired += u64::from(dead.reason == DeadReason::Expired);
                }
                msg.change(changes, pos);
                (msg.receives, msg.failed, msg.released, msg.first) = (0, 0, 0, None);
                (msg.availability, msg.at, msg.rests) =
                    (Availability::InOrder { due: 0 }, *at, pos);
                msg.entered = pos;
                msg.dead = None;
                match why {
                    Why::Dead(dead) => {
                        (msg.path, msg.dead) = (dead.path.clone(), Some(dead.clone()));
                        msg.key = dead.key.clone().or(msg.key);
                        // Its topic read it for routing, so its session is known.
                        if matches!(dead.reason, DeadReason::Cycle | DeadReason::Unroutable) {
                            msg.session = msg.read_session.clone();
                        }
                    }
                    Why::Redriven(id) => {
                        msg.path = ForwardingPath::default();
                        msg.message_id = id.clone().or(msg.message_id);
                    }
                    Why::Forwarded(path) => msg.path = path.clone(),
                    Why::Due => {}
                }
                // A scheduled message's time to live begins when it is due; a dead letter's own time to live is
                // cleared.
                msg.ttl_ms = match why {
                    Why::Due | Why::Forwarded(_) => msg.ttl_ms,
                    Why::Dead(dead) => dead.ttl_ms,
                    Why::Redriven(_) => None,
                };
                msg.own_expiry = msg.ttl_ms.map(|ttl_ms| at + ttl_ms);
                msg.tenant = msg.session.clone();
                let q = self.queue_mut(to);
                q.come(&mut msg);
                q.totals.sent += 1;
                q.next_seq = q.next_seq.max(to_seq + 1);
                q.msgs.insert(*to_seq, msg);
                self.eager(from, pos);
                self.eager(to, pos);
            }
            Ev::Hold { token, lease } => {
                if let What::Session(session) = &lease.what {
                    let q = self.queue_mut(&lease.queue);
                    q.sessions.entry(session.clone()).or_default().hold = Some(*token);
                }
                self.leases.insert(*token, (**lease).clone());
            }
            Ev::Unhold { queue, session, lost } => {
                let q = self.queue_mut(queue);
                q.totals.sessions_lost += u64::from(*lost);
                let hold = q.sessions.get_mut(session).and_then(|s| s.hold.take());
                hold.map(|hold| self.leases.remove(&hold));
                self.tidy(queue, session);
            }
            Ev::SetState { queue, session, state } => {
                let q = self.queue_mut(queue);
                let s = q.sessions.entry(session.clone()).or_default();
                (s.state, s.rests, q.eager) = (state.clone(), pos, pos);
                self.tidy(queue, session);
            }
            Ev::DeclareTopic { name, spec } => self.declare_topic(name, spec, pos),
            Ev::UpdateTopic { name, spec, at } => {
                let topic = self.topic_mut(name);
                match (topic.spec.dedup, spec.dedup) {
                    (Some(old), Some(_)) => {
                        topic.seen.retain(|_, (seen_at, _)| *seen_at + old.window_ms > *at);
                    }
                    _ => topic.seen.clear(),
                }
                (topic.spec, topic.eager) = (spec.clone(), pos);
            }
            Ev::DeleteTopic { name } => {
                self.topics.remove(name);
                let inbox = QueueName::inbox(name);
                for topic in self.topics.values_mut() {
                    topic.rules.remove(&inbox);
                }
                self.inboxes.remove(&inbox);
            }
            Ev::Bind { topic, queue, rule } => {
                let topic = self.topic_mut(topic);
                let rules = topic.rules.entry(queue.clone()).or_default();
                rules.insert(rule.name.clone(), (**rule).clone());
                (topic.had_rule, topic.eager) = (true, pos);
            }
            Ev::Unbind { topic, queue, rule } => {
                let topic = self.topic_mut(topic);
                topic.eager = pos;
                if let Some(rules) = topic.rules.get_mut(queue) {
                    rules.remove(rule);
                    if rules.is_empty() {
                        topic.rules.remove(queue);
                    }
                }
            }
            Ev::Route { topic, seq, to, at } => self.routed(topic, *seq, to, *at, pos),
            Ev::Boot => self.boot(),
        }
    }

    /// Leases and holds that were bound to a connection end as released; nothing counts as failed or lost. Exclusive
    /// queues are deleted.
    fn boot(&mut self) {
        let bound = |state: &Self, of_message: bool| -> Vec<Lease> {
            let is = |lease: &&Lease| {
                lease.bound && matches!(lease.what, What::Message(_)) == of_message
            };
            state.leases.values().filter(is).cloned().collect()
        };
        for Lease { queue, what, .. } in bound(self, true) {
            if let What::Message(seq) = what {
                let (cause, changes) = (Cause::Released, Changes::default());
                self.apply(
                    &Ev::Back { queue, seq, cause, due: 0, parked: false, changes },
                    Pos::ZERO,
                );
            }
        }
        for Lease { queue, what, .. } in bound(self, false) {
            if let What::Session(session) = what {
                self.apply(&Ev::Unhold { queue, session, lost: false }, Pos::ZERO);
            }
        }
        self.leases.values_mut().for_each(|lease| lease.connection = None);
        let exclusive = self.queues.iter().filter(|(_, q)| q.spec.exclusive);
        let exclusive: Vec<_> = exclusive.map(|(name, _)| name.clone()).collect();
        exclusive.into_iter().for_each(|name| self.apply(&Ev::Delete { name }, Pos::ZERO));
        while let Some(name) = self.falling() {
            for name in self.subscriptions(&name) {
                self.apply(&Ev::Delete { name }, Pos::ZERO);
            }
            self.apply(&Ev::DeleteTopic { name }, Pos::ZERO);
        }
    }

    pub(super) fn eager(&mut self, queue: &QueueName, pos: Pos) {
        let q = self.queue_mut(queue);
        if q.durable() {
            q.eager = q.eager.max(pos);
        }
    }

    /// Later deliveries of the session depend on this position.
    fn rest(&mut self, queue: &QueueName, seq: u64, pos: Pos) {
        let q = self.queue_mut(queue);
        if q.durable()
            && q.sessioned()
            && let Some(msg) = q.msgs.get(&seq)
            && matches!(msg.availability, Availability::InOrder { .. } | Availability::Leased(_))
            && let Some(session) = msg.session.clone()
        {
            let s = q.sessions.entry(session).or_default();
            s.rests = s.rests.max(pos);
        }
    }

    fn unlease(&mut self, queue: &QueueName, seq: u64) -> Option<Lease> {
        match self.queue(queue).msgs.get(&seq)?.availability {
            Availability::Leased(token) => self.leases.remove(&token),
            _ => None,
        }
    }

    fn tidy(&mut self, queue: &QueueName, session: &SessionId) {
        let q = self.queue_mut(queue);
        if q.sessions
            .get(session)
            .is_some_and(|s| s.hold.is_none() && s.state.is_none() && s.rests == Pos::ZERO)
        {
            q.sessions.remove(session);
        }
    }
}

impl Queue {
    /// A message enters the queue.
    pub(super) fn come(&mut self, msg: &mut Msg) {
        msg.timed = self.spec.ttl_ms.is_some();
        msg.tenant = msg.tenant.take().filter(|_| self.has_tenants());
        self.had_tenants |= msg.tenant.is_some();
        if !msg.timed {
            self.untimed_at = msg.at;
        }
    }

    fn remember(&mut self, msg: &Msg, via: Option<&Via>, rests: Pos) {
        let Some(dedup) = self.spec.dedup else { return };
        let session = msg.session.clone().filter(|_| dedup.per_session);
        let key = match via {
            Some(via) => via.key.clone(),
            None => msg.sent.key(dedup.content),
        };
        if let Some(key) = key {
            let (sent_message, seq) = (msg.sent.clone(), self.next_seq);
            let known = Known { sent_message, seq, at: msg.at, rests };
            self.seen.insert((key, session), known);
        }
    }

    /// Adapts remembered keys to a new specification.
    fn remember_for(&mut self, spec: &QueueSpec, at: u64) {
        match (self.spec.dedup, spec.dedup) {
            // Keys outside the old window stay forgotten even if the new one is longer.
            (Some(old), Some(_)) => self.seen.retain(|_, known| known.at + old.window_ms > at),
            _ => self.seen.clear(),
        }
    }
}

impl Msg {
    fn change(&mut self, changes: &Changes, pos: Pos) {
        if !changes.is_empty() {
            self.properties.lay_over(changes.properties.clone());
            self.rests = self.rests.max(pos);
        }
    }
}

/// The specification of a dead-letter set: it inherits the lock time, durability, size limit and warning of its
/// queue.
fn letters_spec(spec: &QueueSpec) -> QueueSpec {
    QueueSpec {
        lock_ms: spec.lock_ms,
        durability: spec.durability,
        message_bytes_max: spec.message_bytes_max,
        backlog_warning: spec.backlog_warning,
        failed_max: None,
        ..QueueSpec::default()
    }
}
