//! Compares the journal of a step with the model.
//!
//! Both are converted to the same text and must be equal. If several things happen automatically in one step, the
//! journal gives their order. The model decides whether each of them is allowed.

use std::collections::BTreeSet;

use malote_engine::event::{self, Event, QueueId, Removal};
use malote_engine::journal::Pos;
use malote_model::{DeadReason, LeaseToken, QueueName};

use super::Model;
use crate::model::{Availability, Ev, State, Why};

/// Events that take effect together or not at all.
#[derive(Debug)]
pub struct Group {
    pub end: Pos,
    pub events: Vec<Event>,
}

impl Group {
    /// Messages that were removed because a queue was full.
    pub fn is_overflow(&self) -> bool {
        match self.events.first() {
            Some(Event::Removed { why, .. }) => *why == Removal::Overflowed,
            Some(Event::Moved(moved)) => reason_of(&moved.why) == Some(&DeadReason::Overflowed),
            _ => false,
        }
    }

    /// Messages that were forwarded, or dead-lettered because they may not be forwarded.
    pub fn is_forward(&self) -> bool {
        match self.events.first() {
            Some(Event::Removed { why, .. }) => *why == Removal::Dropped(event::LeaseEnd::Released),
            Some(Event::Moved(moved)) => match &moved.why {
                event::MoveReason::Forwarded => true,
                event::MoveReason::DeadLettered { reason, .. } => {
                    matches!(reason, DeadReason::NoSession | DeadReason::TooManyHops)
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// Not requested, but a consequence of a request.
    pub fn follows(&self) -> bool {
        self.is_overflow() || self.is_forward()
    }

    pub fn is_deletion(&self) -> bool {
        matches!(self.events.first(), Some(Event::Deleted { .. }))
    }
}

/// The cause of a group that was not requested.
#[derive(Debug)]
pub(super) enum Trigger {
    Lease(LeaseToken),
    Hold(LeaseToken),
    Activate(QueueName, u64),
    Expiry(QueueName, Vec<u64>),
    Overflow(QueueName, Vec<u64>),
    Gone(QueueName),
}

fn reason_of(why: &event::MoveReason) -> Option<&DeadReason> {
    match why {
        event::MoveReason::DeadLettered { reason, .. } => Some(reason),
        _ => None,
    }
}

impl Model {
    fn name(&self, id: QueueId) -> QueueName {
        let name = self.names.get(&id);
        name.unwrap_or_else(|| panic!("queue {id:?} was never declared")).clone()
    }

    /// Records the names of new queues and topics.
    pub fn hear(&mut self, groups: &[Group]) {
        for event in groups.iter().flat_map(|group| &group.events) {
            self.met.event(event);
            if let Event::Declared { queue, dead, name, .. } = event {
                // After a crash, ids are assigned again.
                self.topic_names.retain(|id, _| id != queue && id != dead);
                self.names.insert(*queue, name.clone());
                self.names.insert(*dead, name.dead_letters());
            }
            if let Event::TopicDeclared { topic, name, .. } = event {
                self.names.insert(*topic, QueueName::inbox(name));
                self.topic_names.insert(*topic, name.clone());
            }
        }
    }

    /// The journal of a step must contain exactly the changes that the model recorded.
    pub fn check_journal(&mut self, groups: &[Group]) {
        let mut said = Vec::new();
        groups.iter().flat_map(|g| &g.events).for_each(|event| self.say(event, &mut said));
        let mut noted = std::mem::take(&mut self.noted);
        noted.sort();
        said.sort();
        assert_eq!(said, noted, "the journal differs from the model");
        self.before = None;
    }

    /// Messages of a group that expired, according to the engine.
    pub(super) fn expired_in(&self, group: &Group) -> BTreeSet<(QueueName, u64)> {
        let mut all = BTreeSet::new();
        for event in &group.events {
            match event {
                Event::Removed { queue, why: Removal::Expired, seqs, .. } => {
                    all.extend(seqs.iter().map(|&seq| (self.name(*queue), seq)));
                }
                Event::Moved(m) if reason_of(&m.why) == Some(&DeadReason::Expired) => {
                    all.insert((self.name(m.from_queue), m.from_seq));
                }
                _ => {}
            }
        }
        all
    }

    /// The cause of a group that was not requested.
    pub(super) fn trigger(&self, group: &Group) -> Trigger {
        let first = group.events.first().expect("a group has events");
        let (id, seq, why) = match first {
            Event::Deleted { queue } => return Trigger::Gone(self.name(*queue)),
            Event::Unheld { queue, session, .. } => {
                let hold = self.state.queue(&self.name(*queue)).hold(session);
                return Trigger::Hold(hold.expect("only a held session is released"));
            }
            Event::Returned(returned) => (returned.queue, returned.seq, None),
            Event::Removed { queue, why, seqs, .. } => (*queue, seqs[0], Some(*why)),
            Event::Moved(m) => match reason_of(&m.why) {
                None => return Trigger::Activate(self.name(m.from_queue), m.from_seq),
                Some(DeadReason::Expired) => (m.from_queue, m.from_seq, Some(Removal::Expired)),
                Some(DeadReason::Overflowed) => {
                    (m.from_queue, m.from_seq, Some(Removal::Overflowed))
                }
                Some(_) => (m.from_queue, m.from_seq, None),
            },
            other => panic!("{other:?} was not requested"),
        };
        let queue = self.name(id);
        let msg = self.state.queue(&queue).msgs.get(&seq);
        let msg = msg.unwrap_or_else(|| panic!("{queue} has no {seq}: {first:?}"));
        if let Availability::Leased(token) = msg.availability {
            let hold = self.state.leases.get(&token).and_then(|lease| lease.hold);
            return hold.map_or(Trigger::Lease(token), Trigger::Hold);
        }
        let seqs = group.events.iter().flat_map(|event| match event {
            Event::Removed { seqs, .. } => seqs.clone(),
            Event::Moved(m) => vec![m.from_seq],
            other => panic!("unexpected event among removed messages: {other:?}"),
        });
        match why {
            Some(Removal::Expired) => Trigger::Expiry(queue, seqs.collect()),
            Some(Removal::Overflowed) => Trigger::Overflow(queue, seqs.collect()),
            _ => panic!("{seq} of {queue} was not leased, but the journal has {first:?}"),
        }
    }

    fn say(&self, event: &Event, out: &mut Vec<String>) {
        let name = |id: &QueueId| self.name(*id);
        match event {
            // A copy has no visible effect.
            Event::Relocated(_) => {}
            Event::Digest(_) => panic!("digests are removed before this check"),
            Event::Booted { .. } => panic!("the broker boots only once"),
            Event::TopicDeclared { name, spec, .. } => out.push(format!("topic {name} {spec:?}")),
            Event::TopicUpdated { topic, spec, .. } => {
                out.push(format!("update {} {spec:?}", name(topic)));
            }
            Event::TopicDeleted { topic } => out.push(format!("delete {}", name(topic))),
            Event::Bound { topic, queue, rule } => {
                out.push(format!("bind {} {} {rule:?}", name(topic), name(queue)));
            }
            Event::Unbound { topic, queue, rule } => {
                out.push(format!("unbind {} {} {rule}", name(topic), name(queue)));
            }
            Event::Declared { name, spec, .. } => out.push(format!("declare {name} {spec:?}")),
            Event::Updated { queue, spec, .. } => {
                out.push(format!("update {} {spec:?}", name(queue)));
            }
            Event::Deleted { queue } => out.push(format!("delete {}", name(queue))),
            Event::Paused { queue, paused } => out.push(format!("pause {} {paused}", name(queue))),
            Event::Purged { queue, leased, .. } => {
                out.push(format!("purge {} {leased}", name(queue)));
            }
            Event::Sent(sent) => {
                out.extend(sent.places.iter().map(|p| format!("put {} {}", name(&p.queue), p.seq)));
            }
            Event::Removed { queue, why, seqs, .. } => {
                out.extend(seqs.iter().map(|seq| format!("gone {} {seq} {why:?}", name(queue))));
            }
            Event::Leased(leased) => {
                let queue = name(&leased.queue);
                let items = leased.items.iter();
                out.extend(items.map(|(seq, token)| format!("grant {queue} {seq} {token}")));
            }
            Event::ClockStepped { by_ms, .. } => out.push(format!("clock step {by_ms}")),
            Event::Renewed { leases, until } => {
                out.extend(leases.iter().map(|token| format!("renew {token} {}", until.0)));
            }
            Event::Returned(r) => {
                let (queue, changed) = (name(&r.queue), r.overlay.is_some());
                out.push(format!("back {queue} {} {:?} {} {changed}", r.seq, r.cause, r.due.0));
            }
            Event::Deferred { queue, seq, overlay } => {
                out.push(format!("defer {} {seq} {}", name(queue), overlay.is_some()));
            }
            Event::Moved(m) => {
                let why = match &m.why {
                    event::MoveReason::Due => "due",
                    event::MoveReason::Redriven => "redriven",
                    event::MoveReason::Routed => "routed",
                    event::MoveReason::Forwarded => "along",
                    event::MoveReason::DeadLettered { reason, .. } => reason.word(),
                };
                let from = name(&m.from_queue);
                // A copy may go through the inbox once more, so its position there does not count.
                let routed = m.why == event::MoveReason::Routed;
                for place in m.places.iter().filter(|place| !routed || place.queue != m.from_queue)
                {
                    let (to, to_seq) = (name(&place.queue), place.seq);
                    if routed {
                        out.push(format!("route {from} to {to} {to_seq}"));
                        continue;
                    }
                    out.push(format!("move {from} {} to {to} {to_seq} {why}", m.from_seq));
                }
            }
            Event::Held { queue, session, token, until, .. } => {
                out.push(format!("hold {} {session} {token} {}", name(queue), until.0));
            }
            Event::Unheld { queue, session, lost } => {
                out.push(format!("unhold {} {session} {lost}", name(queue)));
            }
            Event::State { queue, session, state, .. } => {
                let bytes = state.as_ref().map(|state| state.len());
                out.push(format!("state {} {session} {bytes:?}", name(queue)));
            }
        }
    }
}

/// A change about to be applied to this state, as text like that of the journal.
pub(super) fn words(state: &State, ev: &Ev) -> Vec<String> {
    if let Ev::Route { topic, to, .. } = ev {
        let from = QueueName::inbox(topic);
        let one = |(to, to_seq): &(QueueName, u64)| format!("route {from} to {to} {to_seq}");
        return to.iter().map(one).collect();
    }
    vec![one_word(state, ev)]
}

fn one_word(state: &State, ev: &Ev) -> String {
    match ev {
        Ev::Route { .. } => unreachable!("a route has several lines"),
        Ev::DeclareTopic { name, spec } => format!("topic {name} {spec:?}"),
        Ev::UpdateTopic { name, spec, .. } => format!("update {} {spec:?}", QueueName::inbox(name)),
        Ev::DeleteTopic { name } => format!("delete {}", QueueName::inbox(name)),
        Ev::Bind { topic, queue, rule } => {
            format!("bind {} {queue} {rule:?}", QueueName::inbox(topic))
        }
        Ev::Unbind { topic, queue, rule } => {
            format!("unbind {} {queue} {rule}", QueueName::inbox(topic))
        }
        Ev::Declare { name, spec } => format!("declare {name} {spec:?}"),
        Ev::Update { name, spec, .. } => format!("update {name} {spec:?}"),
        Ev::Delete { name } => format!("delete {name}"),
        Ev::Purge { queue, leased } => format!("purge {queue} {leased}"),
        Ev::Pause { queue, paused } => format!("pause {queue} {paused}"),
        Ev::Put { queue, .. } => format!("put {queue} {}", state.queue(queue).next_seq),
        Ev::Gone { queue, seq, end } => format!("gone {queue} {seq} {end:?}"),
        Ev::Grant { queue, seq, token, .. } => format!("grant {queue} {seq} {token}"),
        Ev::ClockStep { by_ms } => format!("clock step {by_ms}"),
        Ev::Renew { token, until } => format!("renew {token} {until}"),
        Ev::Back { queue, seq, cause, due, changes, .. } => {
            format!("back {queue} {seq} {cause:?} {due} {}", !changes.is_empty())
        }
        Ev::Defer { queue, seq, changes } => format!("defer {queue} {seq} {}", !changes.is_empty()),
        Ev::Move { from, seq, to, to_seq, why, .. } => {
            let why = match why {
                Why::Due => "due",
                Why::Redriven(_) => "redriven",
                Why::Forwarded(_) => "along",
                Why::Dead(dead) => dead.reason.word(),
            };
            format!("move {from} {seq} to {to} {to_seq} {why}")
        }
        Ev::Hold { token, lease } => match &lease.what {
            crate::model::What::Session(session) => {
                format!("hold {} {session} {token} {}", lease.queue, lease.until)
            }
            crate::model::What::Message(_) => panic!("messages are leased, not held"),
        },
        Ev::Unhold { queue, session, lost } => format!("unhold {queue} {session} {lost}"),
        Ev::SetState { queue, session, state } => {
            format!("state {queue} {session} {:?}", state.as_ref().map(|state| state.len()))
        }
        Ev::Boot => "boot".into(),
    }
}
