//! Compares everything that the engine shows with the model.

use std::collections::BTreeMap;
use std::rc::Rc;

use malote_engine::command::{Command, MessageState, Peeked, Reply};
use malote_engine::{QueueFacts, SessionFacts, Stored, read_state};
use malote_model::{Properties, QueueName, Rule, SessionId};

use super::World;
use crate::model::{Availability, Dead, Msg, SentMessage};

/// The expected content of a delivered message.
pub(super) struct Expected {
    pub(super) sent: Rc<SentMessage>,
    pub(super) properties: Properties,
    pub(super) at: u64,
    pub(super) dead: Option<Dead>,
    pub(super) key: Option<String>,
    pub(super) message_id: Option<String>,
    pub(super) session: Option<SessionId>,
}

impl Expected {
    pub(super) fn of(msg: &Msg) -> Self {
        let (sent, properties) = (msg.sent.clone(), msg.properties.clone());
        let (dead, key, message_id) = (msg.dead.clone(), msg.key.clone(), msg.message_id.clone());
        let session = msg.read_session.clone();
        Self { sent, properties, at: msg.at, dead, key, message_id, session }
    }
}

impl World {
    /// Checks all queues and topics against the model.
    pub fn check_all(&mut self) {
        let names: Vec<_> = self.model.state.queues.keys().cloned().collect();
        for name in names {
            let peeked = self.peek(&name);
            self.check_messages(&name, &peeked);
            let Ok(Reply::Queues(facts)) = self.look(Command::Describe { queue: name.clone() })
            else {
                panic!("{name} cannot be described");
            };
            self.check_facts(&name, &facts[0]);
            if self.model.state.queue(&name).sessioned() {
                self.check_sessions(&name);
            }
        }
        self.check_topics();
        let wrong = self.core.audit();
        assert!(wrong.is_empty(), "the core's state is inconsistent: {}", wrong.join("; "));
        self.met.count("consistency checks", 1);
    }

    /// Checks topics, their rules and their inboxes.
    fn check_topics(&mut self) {
        let list = Command::ListTopics { after: None, max: usize::MAX };
        let Ok(Reply::Topics(facts)) = self.look(list) else { panic!("topics cannot be listed") };
        let names: Vec<_> = facts.iter().map(|facts| facts.name.clone()).collect();
        let want: Vec<_> = self.model.state.topics.keys().cloned().collect();
        assert_eq!(names, want, "topic names");
        for facts in facts {
            let (topic, target, after, max) = (facts.name.clone(), None, None, 1000);
            let look = Command::Rules { topic, target, after, max };
            let Ok(Reply::Rules(rules)) = self.look(look) else { panic!("rules of {facts:?}") };
            let t = self.model.state.topic(&facts.name);
            let have: Vec<_> = rules.into_iter().map(|b| (b.target, b.rule)).collect();
            let of = |(queue, rules): (&QueueName, &BTreeMap<String, Rule>)| {
                let target = super::command::target(queue.clone());
                rules.values().map(|rule| (target.clone(), rule.clone())).collect::<Vec<_>>()
            };
            let mut want: Vec<_> = t.rules.iter().flat_map(of).collect();
            want.sort_by(|(a, _), (b, _)| a.cmp(b));
            assert_eq!(have, want, "rules of {}", facts.name);
            let inbox = self.model.state.queue(&QueueName::inbox(&facts.name));
            let later = |msg: &&Msg| matches!(msg.availability, Availability::Scheduled { .. });
            let scheduled = inbox.msgs.values().filter(later).count() as u64;
            let waiting = inbox.msgs.len() as u64 - scheduled;
            let is = (facts.scheduled, facts.waiting, facts.totals.copies, facts.spec);
            let want = (scheduled, waiting, t.copies, t.spec.clone());
            assert_eq!(is, want, "scheduled, waiting, copies, specification of {}", facts.name);
        }
    }

    pub(super) fn check_messages(&mut self, name: &QueueName, peeked: &[Peeked]) {
        let now = self.now;
        let q = self.model.state.queue(name);
        let have: Vec<u64> = peeked.iter().map(|p| p.seq.0).collect();
        let want: Vec<u64> = q.msgs.keys().copied().collect();
        assert_eq!(have, want, "the messages of {name}");
        let written = self.journal.marks.written();
        for (p, (seq, msg)) in peeked.iter().zip(&q.msgs) {
            let (state, due) = match msg.availability {
                Availability::InOrder { due } | Availability::Parked { due } if due > now => {
                    (MessageState::Delayed, Some(due))
                }
                Availability::InOrder { .. } | Availability::Parked { .. } => {
                    (MessageState::Ready, None)
                }
                Availability::Scheduled { due } => (MessageState::Scheduled, Some(due)),
                Availability::Leased(_) => (MessageState::Locked, None),
                Availability::Deferred => (MessageState::Deferred, None),
            };
            let deferred = match msg.availability {
                Availability::Leased(token) => {
                    self.model.state.leases.get(&token).is_some_and(|lease| lease.deferred)
                }
                availability => availability == Availability::Deferred,
            };
            let is = (p.state, p.due.map(|due| due.0), p.receives, p.failed, p.deferred);
            let want = (state, due, msg.receives, msg.failed, deferred);
            assert_eq!(is, want, "message {seq} of {name}");
            assert_eq!(p.first_at.map(|at| at.0), msg.first, "first grant of {seq} of {name}");
            if p.pos < written {
                let expected = Expected::of(msg);
                match Stored::read_now(&self.journal.segments, p.pos) {
                    Ok(stored) => check_stored(&stored, &expected),
                    Err(_) if self.flipped => {}
                    Err(error) => panic!("message {seq} of {name} cannot be read: {error}"),
                }
            }
        }
    }

    pub(super) fn check_facts(&self, name: &QueueName, facts: &QueueFacts) {
        let now = self.now;
        let q = self.model.state.queue(name);
        let count = |of: &dyn Fn(&Availability) -> bool| {
            q.msgs.values().filter(|m| of(&m.availability)).count() as u64
        };
        let waits = |availability: &Availability| matches!(availability, Availability::InOrder { due } | Availability::Parked { due } if *due > now);
        let locked = count(&|p| matches!(p, Availability::Leased(_)));
        let delayed = count(&waits);
        let scheduled = count(&|p| matches!(p, Availability::Scheduled { .. }));
        let deferred = count(&|p| *p == Availability::Deferred);
        let ready = q.msgs.len() as u64 - locked - delayed - scheduled - deferred;
        let is = [facts.ready, facts.locked, facts.delayed, facts.scheduled, facts.deferred];
        assert_eq!(
            is,
            [ready, locked, delayed, scheduled, deferred],
            "ready, locked, delayed, scheduled, deferred of {name}"
        );
        assert_eq!(facts.totals, q.totals, "totals of {name}");
        assert_eq!(facts.paused, q.paused, "pause of {name}");
        assert_eq!(facts.spec, q.spec, "specification of {name}");
        let dead = self
            .model
            .state
            .queues
            .get(&name.dead_letters())
            .map_or(0, |dead| dead.msgs.len() as u64);
        assert_eq!(
            facts.dead_lettered,
            if q.owner.is_some() { 0 } else { dead },
            "dead letters of {name}"
        );
        let held = q.sessions.values().filter(|s| s.hold.is_some()).count() as u64;
        assert_eq!(facts.sessions_held, held, "held sessions of {name}");
        let noisy = q.noisy();
        let expected = (noisy.len() as u64, noisy.values().sum::<u64>());
        assert_eq!((facts.noisy.tenants, facts.noisy.locked), expected, "noisy tenants of {name}");
        let free =
            q.live_sessions().iter().filter(|s| q.sessioned() && q.free(s, now)).count() as u64;
        // A message that expired just now may still make a session seem ready.
        if !q.overdue(now) {
            assert_eq!(facts.sessions_ready, free, "ready sessions of {name}");
        }
        let bytes: u64 = q.msgs.values().map(|msg| msg.sent.size()).sum();
        assert_eq!(facts.bytes, bytes + q.state_bytes(), "bytes of {name}");
        let consumers = self.model.consumers.values().filter(|c| c.queue == *name).count();
        assert_eq!(facts.consumers, consumers as u64, "consumers of {name}");
    }

    pub(super) fn check_sessions(&mut self, name: &QueueName) {
        let (now, max) = (self.now, 1000);
        let look = Command::Sessions { queue: name.clone(), from: 0, max };
        let Ok(Reply::Sessions { sessions: facts, next: None }) = self.look(look) else {
            panic!("sessions of {name}")
        };
        let facts: BTreeMap<SessionId, SessionFacts> =
            facts.into_iter().map(|facts| (facts.session.clone(), facts)).collect();
        let q = self.model.state.queue(name);
        let mut ids = q.live_sessions();
        ids.extend(
            q.sessions
                .iter()
                .filter(|(_, s)| s.hold.is_some() || s.state.is_some())
                .map(|(id, _)| id.clone()),
        );
        let mut states = Vec::new();
        for id in ids {
            let places = |msg: &Msg| !msg.aside(now);
            let known = q.sessions.get(&id).is_some_and(|s| s.hold.is_some() || s.state.is_some());
            let messages = q.line(&id).filter(|(_, msg)| places(msg)).count() as u64;
            let aside = q.line(&id).any(|(_, m)| {
                m.aside(now) && !matches!(m.availability, Availability::Scheduled { .. })
            });
            let Some(facts) = facts.get(&id) else {
                assert!(!known && messages == 0 && !aside, "session {id} of {name} is missing");
                continue;
            };
            let hold =
                q.hold(&id).and_then(|hold| self.model.state.leases.get(&hold)).map(|l| l.until);
            assert_eq!(facts.held_until.map(|t| t.0), hold, "the hold of {id} in {name}");
            assert_eq!(facts.locked, q.out(&id).len() as u64, "leased messages of {id} in {name}");
            let state = q.sessions.get(&id).and_then(|s| s.state.clone());
            assert_eq!(
                facts.state_bytes,
                state.as_ref().map_or(0, |s| s.len() as u64),
                "state of {id}"
            );
            if let Some(state) = state {
                states.push((id.clone(), state));
            }
        }
        for (session, state) in states {
            let (queue, hold) = (name.clone(), None);
            let look = Command::GetState { queue, session: session.clone(), hold };
            let Ok(Reply::State(Some(pos))) = self.look(look) else { panic!("state of {session}") };
            if pos < self.journal.marks.written() {
                let read = read_state(&self.journal.segments, pos);
                if read.is_err() && self.flipped {
                    continue;
                }
                let read = read.unwrap_or_else(|error| panic!("state of {session}: {error}"));
                assert_eq!(read, Some(state), "the state of {session} in {name}");
            }
        }
    }
}

pub(super) fn check_stored(stored: &Stored, expected: &Expected) {
    let Expected { sent, properties, at, dead, key, message_id, session } = expected;
    let mut want = sent.message.clone();
    want.session = session.clone();
    want.properties = properties.clone();
    want.key = key.clone().or(want.key);
    want.message_id = message_id.clone().or(want.message_id);
    want.when = stored.message.when;
    assert_eq!(stored.message, want, "the stored message differs from the sent one");
    assert_eq!(stored.enqueued_at.0, *at, "the time of enqueueing");
    let is = stored.dead.as_ref().map(|d| {
        (d.reason.clone(), d.text.clone(), d.from.clone(), d.from_seq.0, d.receives, d.failed)
    });
    let want = dead.as_ref().map(|d| {
        (
            d.reason.word().to_owned(),
            d.reason.text(),
            d.from.clone(),
            d.from_seq,
            d.receives,
            d.failed,
        )
    });
    assert_eq!(is, want, "dead-letter reason and origin");
}
