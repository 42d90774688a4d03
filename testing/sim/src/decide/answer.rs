//! The model's answer to each request, and the effect of that answer.

use std::collections::BTreeSet;
use std::mem::discriminant;

use malote_engine::MoveItem;
use malote_engine::command::{Attach, Reply};
use malote_model::{Changes, Refusal};

use super::life::Life;
use super::serve::By;
use super::{Ask, Consumer, Model, Need};
use crate::model::{Availability, Cause, End, Ev, Msg, Why};

fn refused(answer: &Result<Reply, Refusal>, expected: &Refusal) {
    match answer {
        Err(refusal) if discriminant(refusal) == discriminant(expected) => {}
        other => panic!("expected the refusal {expected:?}, got {other:?}"),
    }
}

impl Model {
    /// Checks the answer to a request and applies its effect. Returns what the answer must wait for. An `answer` of
    /// `None` means that the engine keeps the request waiting.
    pub fn ask(
        &mut self,
        request: u64,
        ask: &Ask,
        answer: Option<&Result<Reply, Refusal>>,
    ) -> Need {
        let waits = match ask {
            Ask::Attach(attach) => attach.once_until.is_some(),
            Ask::Accept(accept) => accept.session.is_none(),
            _ => false,
        };
        let Some(answer) = answer else {
            assert!(waits, "no answer to {ask:?}");
            return self.wait(request, ask);
        };
        // A wait that ends at once: its delivery or its end is checked like any other.
        if waits && (answer.is_ok() || self.check(ask).is_ok()) {
            return self.wait(request, ask);
        }
        if let Ask::Declare { name, connection, .. } = ask {
            self.asked_for(name, *connection);
        }
        match self.check(ask) {
            Err(refusal) => {
                refused(answer, &refusal);
                match ask {
                    Ask::Settle { leases, .. } | Ask::Renew { leases, .. } => {
                        self.eager_of_tokens(leases)
                    }
                    Ask::Commit { settles, .. } => {
                        let tokens: Vec<_> = settles.iter().map(|(_, token, _)| *token).collect();
                        self.eager_of_tokens(&tokens)
                    }
                    Ask::SetState { hold, .. } | Ask::ReleaseSession { hold } => {
                        self.eager_of_tokens(&[*hold])
                    }
                    Ask::Attach(Attach { queue, .. })
                    | Ask::Cancel { queue, .. }
                    | Ask::Declare { name: queue, .. } => self.eager(queue),
                    _ => Need::default(),
                }
            }
            Ok(()) => match answer {
                Ok(reply) => self.effect(ask, reply),
                Err(refusal) => panic!("{ask:?} was refused: {refusal}"),
            },
        }
    }

    fn effect(&mut self, ask: &Ask, reply: &Reply) -> Need {
        let now = self.now;
        match (ask, reply) {
            (Ask::Declare { name, spec, connection }, Reply::Declared { created }) => {
                assert_eq!(*created, !self.state.queues.contains_key(name), "declared {name}");
                if !created {
                    return self.eager(name);
                }
                self.note(Ev::Declare { name: name.clone(), spec: spec.clone() });
                let connection = connection.filter(|_| spec.exclusive);
                self.lives.insert(name.clone(), Life::new(now, connection));
                Need { durable: self.end, ..Need::default() }
            }
            (Ask::Update { name, spec }, Reply::Done) => {
                if self.state.queue(name).spec.status.receives() && !spec.status.receives() {
                    let of = |c: &Consumer| c.queue == *name;
                    let ended = self.consumers.iter().filter(|(_, c)| of(c)).map(|(&id, _)| id);
                    let ended: Vec<_> = ended.collect();
                    self.met.count("consumers ended by a status", ended.len() as u64);
                    self.ended.extend(ended);
                }
                self.note(Ev::Update { name: name.clone(), spec: spec.clone(), at: now });
                Need { durable: self.end, ..Need::default() }
            }
            (Ask::Delete { name }, Reply::Done) => {
                self.delete(name);
                Need { durable: self.end, ..Need::default() }
            }
            (Ask::Purge { queue, leased }, Reply::Count(count)) => {
                let goes =
                    |msg: &&Msg| *leased || !matches!(msg.availability, Availability::Leased(_));
                let gone = self.state.queue(queue).msgs.values().filter(goes).count() as u64;
                assert_eq!(*count, gone, "number of purged messages");
                self.note(Ev::Purge { queue: queue.clone(), leased: *leased });
                self.done(queue)
            }
            (Ask::PurgeThese { queue, items }, Reply::Count(count)) => {
                let q = self.state.queue(queue);
                let seqs: BTreeSet<u64> = items.iter().map(|(seq, _)| seq.0).collect();
                let ready = |seq: &u64| q.msgs.get(seq).is_some_and(|msg| msg.ready(now));
                let gone: Vec<u64> = seqs.into_iter().filter(ready).collect();
                assert_eq!(*count, gone.len() as u64, "number of individually purged messages");
                if gone.is_empty() {
                    return self.eager(queue);
                }
                for seq in gone {
                    self.note(Ev::Gone { queue: queue.clone(), seq, end: End::Purged });
                }
                self.done(queue)
            }
            (Ask::CompleteLate { queue, seqs }, Reply::Count(count)) => {
                self.complete_late(queue, seqs, *count)
            }
            (Ask::Pause { queue, paused }, Reply::Done) => {
                if self.state.queue(queue).paused == *paused {
                    return self.eager(queue);
                }
                self.note(Ev::Pause { queue: queue.clone(), paused: *paused });
                Need { durable: self.end, ..Need::default() }
            }
            (Ask::Send { items }, Reply::Sent(receipts)) => self.send(items, receipts),
            (Ask::Commit { sends, settles, states }, Reply::Sent(receipts)) => {
                self.commit(sends, settles, states, receipts)
            }
            (Ask::Cancel { queue, seqs }, Reply::Count(count)) => {
                let seqs: BTreeSet<u64> = seqs.iter().map(|seq| seq.0).collect();
                assert_eq!(*count, seqs.len() as u64, "number of cancelled messages");
                if seqs.is_empty() {
                    return Need::default();
                }
                for seq in seqs {
                    self.note(Ev::Gone { queue: queue.clone(), seq, end: End::Cancelled });
                }
                self.done(queue)
            }
            (Ask::Attach(attach), Reply::Done) => {
                self.attach(attach, None);
                self.eager(&attach.queue)
            }
            (Ask::Credit { consumer, credit, replace }, Reply::Count(had)) => {
                let known = self.consumers.get(consumer).map_or(0, |c| c.credit);
                assert_eq!(*had, u64::from(known), "previous credit");
                if let Some(c) = self.consumers.get_mut(consumer) {
                    c.credit = if *replace { *credit } else { c.credit + credit };
                }
                Need::default()
            }
            (Ask::Detach { consumer }, Reply::Done) => {
                // A waiting request is answered with an empty result, because its time is over.
                match self.consumers.get_mut(consumer) {
                    Some(Consumer { once: Some((_, until)), .. }) => *until = 0,
                    _ => self.forget(*consumer),
                }
                Need::default()
            }
            (Ask::Disconnect { connection, .. }, Reply::Done) => {
                self.disconnect(*connection);
                Need::default()
            }
            (
                Ask::ReceiveDeferred { queue, seqs, hold, lock_ms, take, connection },
                Reply::Delivered(grants),
            ) => {
                let seqs: BTreeSet<u64> = seqs.iter().map(|seq| seq.0).collect();
                let given: Vec<u64> = grants.iter().map(|grant| grant.seq.0).collect();
                assert_eq!(
                    given,
                    seqs.into_iter().collect::<Vec<_>>(),
                    "the requested deferred messages"
                );
                let by = By {
                    queue,
                    hold: *hold,
                    lock_ms: *lock_ms,
                    take: *take,
                    connection: *connection,
                    deferred: true,
                };
                grants.iter().fold(Need::default(), |need, grant| self.grant(&by, grant, need))
            }
            (Ask::Settle { leases, settlement, state }, Reply::Settled(outcomes)) => {
                self.settle(leases, settlement, state.as_ref(), outcomes)
            }
            (Ask::Renew { leases, lock_ms }, Reply::Renewed(outcomes)) => {
                assert_eq!(leases.len(), outcomes.len());
                for (&token, outcome) in leases.iter().zip(outcomes) {
                    let lease = self.state.lease(token, now);
                    let token = lease.and_then(|lease| lease.hold).unwrap_or(token);
                    match (self.state.lease(token, now), outcome) {
                        (None, Err(Refusal::LeaseLost { .. })) => {}
                        (Some(lease), Ok(until)) => {
                            let lock_ms =
                                lock_ms.unwrap_or(self.state.queue(&lease.queue).spec.lock_ms);
                            assert_eq!(until.0, now + lock_ms, "a renewal counts from now");
                            self.note(Ev::Renew { token, until: until.0 });
                        }
                        (have, said) => {
                            panic!("renewing {token}: {said:?}, but the model has {have:?}")
                        }
                    }
                }
                Need { written: self.end, ..self.eager_of_tokens(leases) }
            }
            (Ask::Accept(accept), Reply::Accepted(held)) => {
                let held = held.as_ref().expect("a free session is accepted");
                self.hold(&accept.queue, accept.connection.map(|c| c.0), accept.lock_ms, held)
            }
            (Ask::ReleaseSession { hold }, Reply::Done) => {
                self.end_hold(*hold, Cause::Released);
                self.eager_of_tokens(&[*hold])
            }
            (Ask::SetState { hold, state }, Reply::Done) => {
                self.set_state(*hold, state);
                Need { durable: self.end, ..Need::default() }
            }
            (Ask::GetState { queue, session, .. }, Reply::State(at)) => {
                let have =
                    self.state.queue(queue).sessions.get(session).and_then(|s| s.state.as_ref());
                assert_eq!(have.is_some(), at.is_some(), "the state of {session}");
                self.eager(queue)
            }
            (Ask::BreakSession { queue, session }, Reply::Done) => {
                let q = self.state.queue(queue);
                match q.hold(session) {
                    Some(hold) => self.end_hold(hold, Cause::Released),
                    None => {
                        for (seq, _) in q.out(session) {
                            self.back(queue, seq, Cause::Released, 0, &Changes::default());
                        }
                    }
                }
                self.done(queue)
            }
            (Ask::Move { from, items }, Reply::Count(count)) => {
                let mut moved = 0;
                let mut need = Need::default();
                for MoveItem { seq, to, message_id } in items {
                    if self.state.queue(from).msgs.contains_key(&seq.0) {
                        let (to_seq, at) = (self.state.queue(to).next_seq, now);
                        let changes = Changes::default();
                        let ev = Ev::Move {
                            from: from.clone(),
                            seq: seq.0,
                            to: to.clone(),
                            to_seq,
                            at,
                            why: Why::Redriven(message_id.clone()),
                            changes,
                        };
                        self.note(ev);
                        self.met.count("moved under a new id", u64::from(message_id.is_some()));
                        need.durable =
                            need.durable.max(self.done(from).durable).max(self.done(to).durable);
                        moved += 1;
                    }
                }
                assert_eq!(*count, moved, "number of moved messages");
                need
            }
            (Ask::Replace { from, seq, to, message }, Reply::Sent(seqs)) => {
                self.note(Ev::Gone { queue: from.clone(), seq: seq.0, end: End::Replaced });
                assert!(!seqs[0].duplicate, "a replacement is never a duplicate");
                self.put(to, message, seqs[0].seq);
                let (a, b) = (self.done(from), self.done(to));
                Need { durable: a.durable.max(b.durable), written: a.written }
            }
            (Ask::Topic(ask), reply) => self.topic_effect(ask, reply),
            (ask, reply) => panic!("{ask:?} was answered with {reply:?}"),
        }
    }
}
