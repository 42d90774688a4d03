//! Whether a request is valid.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use malote_engine::{MoveItem, Wants};
use malote_model::{
    Address, DeadLetterTarget, LeaseToken, QueueName, QueueSpec, Refusal, Seq, SessionId, Sessions,
    limits,
};

use super::{Ask, Model};
use crate::model::{Availability, SentMessage};

impl Model {
    /// The refusal of a request, if the model refuses it.
    pub(super) fn check(&self, ask: &Ask) -> Result<(), Refusal> {
        let state = &self.state;
        let queue = |name: &QueueName| {
            state.queues.get(name).ok_or(Refusal::QueueNotFound { queue: name.clone() })
        };
        let lost = |lease: LeaseToken| Refusal::LeaseLost { lease };
        match ask {
            Ask::Declare { name, connection, .. } if self.is_anothers(name, *connection) => {
                Err(Refusal::QueueExclusive { queue: name.clone() })
            }
            Ask::Declare { name, spec, connection } => match state.queues.get(name) {
                None if spec.exclusive && connection.is_none() => {
                    Err(Refusal::BadSpec { field: "", why: String::new() })
                }
                Some(q) if q.spec == *spec => Ok(()),
                Some(_) => Err(Refusal::QueueDiffers {
                    queue: name.clone(),
                    field: "",
                    is: String::new(),
                    asked: String::new(),
                }),
                None => self.check_target(name, spec),
            },
            Ask::Update { name, spec } => {
                let had = &queue(name)?.spec;
                let fixed = (&had.sessions, had.priority_max, had.exclusive);
                if fixed != (&spec.sessions, spec.priority_max, spec.exclusive) {
                    return Err(Refusal::QueueFixed { queue: name.clone(), field: "" });
                }
                self.check_target(name, spec)
            }
            Ask::Delete { name } => {
                queue(name)?;
                let aims = |q: &&crate::model::Queue| {
                    q.owner.is_none() && q.spec.dead_letter == DeadLetterTarget::Queue(name.clone())
                };
                match state.queues.values().find(aims) {
                    Some(_) => Err(Refusal::QueueInUse { queue: name.clone(), by: name.clone() }),
                    None => Ok(()),
                }
            }
            Ask::Purge { queue: name, .. }
            | Ask::PurgeThese { queue: name, .. }
            | Ask::Pause { queue: name, .. } => queue(name).map(drop),
            Ask::CompleteLate { queue: name, .. } => match queue(name)?.sessioned() {
                true => Err(Refusal::HasSessions { queue: name.clone(), why: "" }),
                false => Ok(()),
            },
            Ask::Send { items } => self.check_send(items),
            Ask::Commit { sends, settles, states } => self.check_commit(sends, settles, states),
            Ask::Cancel { queue: name, seqs } => {
                let q = queue(name)?;
                let there = |seq: &Seq| {
                    q.msgs.get(&seq.0).is_some_and(|msg| {
                        matches!(msg.availability, Availability::Scheduled { .. })
                    })
                };
                match seqs.iter().find(|seq| !there(seq)) {
                    Some(&seq) => {
                        Err(Refusal::MessageNotFound { queue: name.clone(), seq, what: "" })
                    }
                    None => Ok(()),
                }
            }
            Ask::Attach(attach) => {
                let q = queue(&attach.queue)?;
                if self.is_anothers(&attach.queue, attach.connection.map(|c| c.0)) {
                    return Err(Refusal::QueueExclusive { queue: attach.queue.clone() });
                }
                self.check_alone(&attach.queue)?;
                check_receives(q)?;
                if attach.exclusive && self.is_consumed(&attach.queue) {
                    return Err(Refusal::ConsumerExclusive {
                        queue: attach.queue.clone(),
                        why: "",
                    });
                }
                match &attach.wants {
                    Wants::Any { .. } if q.sessioned() && attach.take => {
                        Err(Refusal::HoldRequired { queue: attach.queue.clone() })
                    }
                    Wants::Any { .. } => Ok(()),
                    Wants::Held(_) if !q.sessioned() => {
                        Err(Refusal::NoSessions { queue: attach.queue.clone() })
                    }
                    Wants::Held(token) => self.held(*token, &attach.queue).map(drop),
                }
            }
            Ask::Credit { .. }
            | Ask::Detach { .. }
            | Ask::Disconnect { .. }
            | Ask::Renew { .. } => Ok(()),
            Ask::ReceiveDeferred { queue: name, seqs, hold, .. } => {
                let q = queue(name)?;
                check_receives(q)?;
                let session = match (q.sessioned(), hold) {
                    (true, None) => return Err(Refusal::HoldRequired { queue: name.clone() }),
                    (true, Some(token)) => Some(self.held(*token, name)?),
                    (false, _) => None,
                };
                let there = |seq: &Seq| {
                    q.msgs.get(&seq.0).is_some_and(|msg| {
                        msg.availability == Availability::Deferred
                            && (session.is_none() || msg.session == session)
                    })
                };
                match seqs.iter().find(|seq| !there(seq)) {
                    Some(&seq) => {
                        Err(Refusal::MessageNotFound { queue: name.clone(), seq, what: "" })
                    }
                    None => Ok(()),
                }
            }
            Ask::Settle { leases, .. } if leases.len() > limits::SETTLE_BATCH_MAX => {
                Err(Refusal::BatchTooLarge { what: "", limit: 0 })
            }
            Ask::Settle { leases, state: Some((hold, new)), .. } => {
                state.held(*hold, self.now).ok_or(lost(*hold))?;
                self.check_state_room(*hold, new.as_ref())?;
                match leases.iter().find(|&&lease| state.leased(lease, self.now).is_none()) {
                    Some(&lease) => Err(lost(lease)),
                    None => Ok(()),
                }
            }
            Ask::Settle { .. } => Ok(()),
            Ask::Accept(accept) => {
                let q = queue(&accept.queue)?;
                if self.is_anothers(&accept.queue, accept.connection.map(|c| c.0)) {
                    return Err(Refusal::QueueExclusive { queue: accept.queue.clone() });
                }
                self.check_alone(&accept.queue)?;
                if !q.sessioned() {
                    return Err(Refusal::NoSessions { queue: accept.queue.clone() });
                }
                check_receives(q)?;
                let Some(session) = &accept.session else { return Ok(()) };
                check_session(&accept.queue, &q.spec.sessions, Some(session))?;
                if q.hold(session).is_some() || !q.out(session).is_empty() {
                    let until = malote_model::Timestamp(0);
                    return Err(Refusal::SessionHeld { session: session.clone(), until });
                }
                Ok(())
            }
            Ask::ReleaseSession { hold } | Ask::SetState { hold, .. } => {
                state.held(*hold, self.now).ok_or(lost(*hold))?;
                match ask {
                    Ask::SetState { state, .. } => self.check_state_room(*hold, state.as_ref()),
                    _ => Ok(()),
                }
            }
            Ask::GetState { queue: name, session, hold } => {
                if !queue(name)?.sessioned() {
                    return Err(Refusal::NoSessions { queue: name.clone() });
                }
                match hold {
                    Some(token) if self.held(*token, name)? != *session => Err(lost(*token)),
                    _ => Ok(()),
                }
            }
            Ask::BreakSession { queue: name, .. } => match queue(name)?.sessioned() {
                true => Ok(()),
                false => Err(Refusal::NoSessions { queue: name.clone() }),
            },
            Ask::Move { from, items } => {
                let source = queue(from)?;
                for MoveItem { seq, to, .. } in items {
                    let msg = source.msgs.get(&seq.0).filter(|msg| msg.ready(self.now));
                    let msg = msg.ok_or(Refusal::MessageNotFound {
                        queue: from.clone(),
                        seq: *seq,
                        what: "",
                    })?;
                    check_session(to, &queue(to)?.spec.sessions, msg.session.as_ref())?;
                }
                Ok(())
            }
            Ask::Replace { from, seq, to, message } => {
                let msg = queue(from)?
                    .msgs
                    .get(&seq.0)
                    .filter(|msg| !matches!(msg.availability, Availability::Leased(_)));
                msg.ok_or(Refusal::MessageNotFound { queue: from.clone(), seq: *seq, what: "" })?;
                self.check_letter(to, message)
            }
            Ask::Topic(ask) => self.check_topic(ask),
        }
    }

    /// Checks every message, and that all of them fit into queues that refuse at their limit.
    pub(super) fn check_send(&self, items: &[(Address, Rc<SentMessage>)]) -> Result<(), Refusal> {
        let mut filled: BTreeMap<QueueName, (u64, u64)> = BTreeMap::new();
        for (to, sent_message) in items {
            let going = match to {
                Address::Queue(name) => {
                    self.check_letter(name, sent_message)?;
                    let new = self.state.queue(name).known(sent_message, self.now).is_none();
                    if new { vec![(name.clone(), sent_message.clone())] } else { Vec::new() }
                }
                Address::Topic(name) => match self.state.topics.get(name) {
                    None => return Err(Refusal::TopicNotFound { topic: name.clone() }),
                    Some(topic) if topic.spec.internal => {
                        return Err(Refusal::TopicInternal { topic: name.clone() });
                    }
                    Some(_) => self.takers(name, sent_message),
                },
            };
            let fits = |(name, copy): &(QueueName, Rc<SentMessage>)| {
                self.check_room(name, copy.size(), &mut filled)
            };
            going.iter().try_for_each(fits)?;
        }
        Ok(())
    }

    /// A growing session state must fit into its queue: together with ready messages, or only with other states if
    /// the queue drops messages.
    pub(super) fn check_state_room(
        &self,
        hold: LeaseToken,
        state: Option<&Bytes>,
    ) -> Result<(), Refusal> {
        let Some((queue, session)) = self.state.held(hold, self.now) else { return Ok(()) };
        let q = self.state.queue(&queue);
        let Some(limit) = q.spec.bytes_max else { return Ok(()) };
        let size = |state: Option<&Bytes>| state.map_or(0, |state| state.len() as u64);
        let now = size(q.sessions.get(&session).and_then(|s| s.state.as_ref()));
        let taken = if q.drops() { q.state_bytes() } else { q.filled(self.now).1 };
        if size(state) > now && taken - now + size(state) > limit {
            return Err(Refusal::QueueFull { queue, field: "bytes_max", limit });
        }
        Ok(())
    }

    /// One more message must fit, after those already counted in `filled`.
    pub(super) fn check_room(
        &self,
        name: &QueueName,
        size: u64,
        filled: &mut BTreeMap<QueueName, (u64, u64)>,
    ) -> Result<(), Refusal> {
        let q = self.state.queue(name);
        if q.drops() {
            return Ok(());
        }
        let (count, bytes) = filled.entry(name.clone()).or_insert_with(|| q.filled(self.now));
        (*count, *bytes) = (*count + 1, *bytes + size);
        for (field, have, limit) in
            [("length_max", *count, q.spec.length_max), ("bytes_max", *bytes, q.spec.bytes_max)]
        {
            if let Some(limit) = limit.filter(|&limit| have > limit) {
                return Err(Refusal::QueueFull { queue: name.clone(), field, limit });
            }
        }
        Ok(())
    }

    fn check_letter(&self, name: &QueueName, sent_message: &SentMessage) -> Result<(), Refusal> {
        let q = self.state.queues.get(name);
        let q = q.ok_or(Refusal::QueueNotFound { queue: name.clone() })?;
        if q.owner.is_some() {
            return Err(Refusal::DeadLetterSet { queue: name.clone(), why: "" });
        }
        if !q.spec.status.sends() {
            return Err(disabled());
        }
        check_session(name, &q.spec.sessions, q.session_for(&sent_message.message).as_ref())
    }

    /// Refuses a consumer beside an exclusive one.
    fn check_alone(&self, name: &QueueName) -> Result<(), Refusal> {
        match self.consumers.values().any(|c| c.queue == *name && c.exclusive) {
            true => Err(Refusal::ConsumerExclusive { queue: name.clone(), why: "" }),
            false => Ok(()),
        }
    }

    fn is_anothers(&self, name: &QueueName, connection: Option<u64>) -> bool {
        let exclusive = self.state.queues.get(name).is_some_and(|q| q.spec.exclusive);
        exclusive && self.lives.get(name).is_none_or(|life| life.connection != connection)
    }

    pub(super) fn check_target(&self, name: &QueueName, spec: &QueueSpec) -> Result<(), Refusal> {
        if spec.forward_to == Some(Address::Queue(name.clone())) {
            return Err(Refusal::BadSpec { field: "", why: String::new() });
        }
        match &spec.dead_letter {
            DeadLetterTarget::Queue(target)
                if target == name || !self.state.queues.contains_key(target) =>
            {
                Err(Refusal::BadSpec { field: "", why: String::new() })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn held(&self, token: LeaseToken, queue: &QueueName) -> Result<SessionId, Refusal> {
        match self.state.held(token, self.now) {
            Some((of, session)) if of == *queue => Ok(session),
            _ => Err(Refusal::LeaseLost { lease: token }),
        }
    }
}

fn check_receives(q: &crate::model::Queue) -> Result<(), Refusal> {
    if q.spec.status.receives() { Ok(()) } else { Err(disabled()) }
}

fn disabled() -> Refusal {
    Refusal::Disabled { what: "", name: String::new(), status: "", why: "" }
}

pub(super) fn check_session(
    queue: &QueueName,
    sessions: &Sessions,
    session: Option<&SessionId>,
) -> Result<(), Refusal> {
    match (sessions, session) {
        (Sessions::None, _) | (Sessions::Dynamic, Some(_)) => Ok(()),
        (Sessions::Fixed(ids), Some(session)) if ids.contains(session) => Ok(()),
        (Sessions::Fixed(_), Some(session)) => {
            Err(Refusal::SessionNotListed { queue: queue.clone(), session: session.clone() })
        }
        (_, None) => Err(Refusal::SessionRequired { queue: queue.clone() }),
    }
}
