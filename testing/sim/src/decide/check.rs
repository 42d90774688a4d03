//! What may be asked at all.

use malote_engine::Wants;
use malote_model::{
    DeadLetterTarget, LeaseToken, QueueName, QueueSpec, Refusal, Seq, SessionId, Sessions,
};

use super::{Ask, Model};
use crate::model::Place;

impl Model {
    /// Whether it may be asked at all.
    pub(super) fn check(&self, ask: &Ask) -> Result<(), Refusal> {
        let state = &self.state;
        let queue = |name: &QueueName| {
            state.queues.get(name).ok_or(Refusal::QueueNotFound { queue: name.clone() })
        };
        let lost = |lease: LeaseToken| Refusal::LeaseLost { lease };
        match ask {
            Ask::Declare { name, spec } => match state.queues.get(name) {
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
                if queue(name)?.spec.sessions != spec.sessions {
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
            Ask::Purge { queue: name } | Ask::Pause { queue: name, .. } => queue(name).map(drop),
            Ask::Send { items } => {
                for (name, message) in items {
                    let q = queue(name)?;
                    if q.owner.is_some() {
                        return Err(Refusal::DeadLetterSet { queue: name.clone(), why: "" });
                    }
                    check_session(name, &q.spec.sessions, message.session.as_ref())?;
                }
                Ok(())
            }
            Ask::Cancel { queue: name, seqs } => {
                let q = queue(name)?;
                let there = |seq: &Seq| {
                    q.msgs
                        .get(&seq.0)
                        .is_some_and(|msg| matches!(msg.place, Place::Scheduled { .. }))
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
                let session = match (q.sessioned(), hold) {
                    (true, None) => return Err(Refusal::HoldRequired { queue: name.clone() }),
                    (true, Some(token)) => Some(self.held(*token, name)?),
                    (false, _) => None,
                };
                let there = |seq: &Seq| {
                    q.msgs.get(&seq.0).is_some_and(|msg| {
                        msg.place == Place::Deferred
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
            Ask::Settle { leases, state: Some((hold, _)), .. } => {
                state.held(*hold, self.now).ok_or(lost(*hold))?;
                match leases.iter().find(|&&lease| state.leased(lease, self.now).is_none()) {
                    Some(&lease) => Err(lost(lease)),
                    None => Ok(()),
                }
            }
            Ask::Settle { .. } => Ok(()),
            Ask::Accept(accept) => {
                let q = queue(&accept.queue)?;
                if !q.sessioned() {
                    return Err(Refusal::NoSessions { queue: accept.queue.clone() });
                }
                let Some(session) = &accept.session else { return Ok(()) };
                check_session(&accept.queue, &q.spec.sessions, Some(session))?;
                if q.hold(session).is_some() || !q.out(session).is_empty() {
                    let until = malote_model::Timestamp(0);
                    return Err(Refusal::SessionHeld { session: session.clone(), until });
                }
                Ok(())
            }
            Ask::ReleaseSession { hold } | Ask::SetState { hold, .. } => {
                state.held(*hold, self.now).map(drop).ok_or(lost(*hold))
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
                for (seq, to) in items {
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
                let msg =
                    queue(from)?.msgs.get(&seq.0).filter(|msg| !matches!(msg.place, Place::Out(_)));
                msg.ok_or(Refusal::MessageNotFound { queue: from.clone(), seq: *seq, what: "" })?;
                self.check(&Ask::Send { items: vec![(to.clone(), message.clone())] })
            }
        }
    }

    pub(super) fn check_target(&self, name: &QueueName, spec: &QueueSpec) -> Result<(), Refusal> {
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
