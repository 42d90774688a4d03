//! Topics: who gets a copy of what is published, and what becomes of it when nobody can have it.

use std::rc::Rc;

use malote_engine::command::Receipt;
use malote_engine::event::Event;
use malote_engine::journal::Pos;
use malote_model::{Changes, DeadReason, Message, QueueName, TopicName, When};

use super::check::check_session;
use super::matching::{act, matches, word};
use super::{Group, Model, Need};
use crate::model::{Cause, Dead, End, Ev, Letter, Place, Via, Way, Why};

/// Who gets a message.
#[derive(Debug, Default)]
struct Copies {
    /// As it is.
    plain: Vec<QueueName>,
    /// As a rule's action left it.
    changed: Vec<(QueueName, Rc<Letter>)>,
    /// Cannot take it.
    misfits: Vec<QueueName>,
    /// May not have it again.
    barred: usize,
    /// By which kinds of rules.
    by: Vec<&'static str>,
}

impl Model {
    /// One copy for each queue with a rule that matches, and one more for each rule with an action.
    fn copies(&self, topic: &TopicName, message: &Message, way: &Way) -> Copies {
        let mut copies = Copies::default();
        for (name, rules) in &self.state.topic(topic).rules {
            let sessions = &self.state.queue(name).spec.sessions;
            let takes =
                |message: &Message| check_session(name, sessions, message.session.as_ref()).is_ok();
            let hits: Vec<_> =
                rules.values().filter(|rule| matches(&rule.filter, message)).collect();
            copies.by.extend(hits.iter().map(|rule| word(&rule.filter)));
            let acting = hits.iter().filter(|rule| rule.action.is_some());
            let has_plain = hits.iter().any(|rule| rule.action.is_none());
            if way.died_in.iter().any(|of| of.0 == *name && self.state.is_there(of)) {
                copies.barred += acting.count() + usize::from(has_plain);
                continue;
            }
            if has_plain {
                match takes(message) {
                    true => copies.plain.push(name.clone()),
                    false => copies.misfits.push(name.clone()),
                }
            }
            for rule in acting {
                let changed = act(rule, message);
                match takes(&changed) {
                    true => {
                        let letter = Rc::new(Letter::new(changed, true));
                        copies.changed.push((name.clone(), letter));
                    }
                    false => copies.misfits.push(name.clone()),
                }
            }
        }
        copies
    }

    /// The queues that a message would be put into, each with its copy; nobody if it was sent before.
    pub(super) fn takers(
        &self,
        topic: &TopicName,
        letter: &Rc<Letter>,
    ) -> Vec<(QueueName, Rc<Letter>)> {
        let t = self.state.topic(topic);
        let key = letter.key(t.spec.dedup.is_some_and(|dedup| dedup.content));
        if t.known(key.as_ref(), self.now).is_some() || self.is_later(letter) {
            return Vec::new();
        }
        let Copies { mut plain, changed, .. } =
            self.copies(topic, &letter.message, &Way::default());
        plain.retain(|queue| {
            let known =
                |key: Vec<u8>| self.state.queue(queue).known_by(key, letter, self.now).is_some();
            !key.clone().is_some_and(known)
        });
        plain.into_iter().map(|queue| (queue, letter.clone())).chain(changed).collect()
    }

    fn is_later(&self, letter: &Letter) -> bool {
        matches!(letter.message.when, When::At(at) if at.0 > self.now)
    }

    /// A message is published: all of its copies are there at once, or it waits until it is due.
    pub(super) fn publish(
        &mut self,
        topic: &TopicName,
        letter: &Rc<Letter>,
        receipt: &Receipt,
    ) -> Need {
        let t = self.state.topic(topic);
        let key = letter.key(t.spec.dedup.is_some_and(|dedup| dedup.content));
        let said = (receipt.seq.0, receipt.duplicate, receipt.copies);
        if let Some(durable) = t.known(key.as_ref(), self.now) {
            assert_eq!(said, (0, true, 0), "{topic} knows {letter:?}");
            self.met.count("duplicates", 1);
            return Need { durable, written: Pos::ZERO };
        }
        self.met.count("published", 1);
        let via = Via { topic: topic.clone(), key: key.clone() };
        if self.is_later(letter) {
            let inbox = QueueName::inbox(topic);
            assert_eq!(said, (self.state.queue(&inbox).next_seq, false, 1), "scheduled at {topic}");
            return self.put_copy(&inbox, letter, via);
        }
        let Copies { mut plain, changed, misfits, by, .. } =
            self.copies(topic, &letter.message, &Way::default());
        by.into_iter().for_each(|kind| self.met.count(kind, 1));
        plain.retain(|queue| {
            let q = self.state.queue(queue);
            key.clone().and_then(|key| q.known_by(key, letter, self.now)).is_none()
        });
        let count = (plain.len() + changed.len() + misfits.len()) as u32;
        assert_eq!(said, (0, false, count), "copies of {letter:?} by {topic}");
        self.met.count("copies", u64::from(count));
        let mut need = Need::default();
        for queue in plain {
            need = need.and(self.put_copy(&queue, letter, via.clone()));
        }
        let buried: Vec<_> = misfits
            .into_iter()
            .map(|queue| {
                let dead = queue.dead_letters();
                let seq = self.state.queue(&dead).next_seq;
                let mut msg = self.arriving(&dead, letter);
                msg.place = Place::Here { due: 0 };
                msg.session = letter.message.session.clone();
                let (msg, via) = (Box::new(msg), Some(via.clone()));
                self.note(Ev::Put { queue: dead, msg, via });
                (queue, seq)
            })
            .collect();
        for (queue, seq) in buried {
            self.bury_misfit(&queue, seq);
            need = need.and(Need { durable: self.end, ..Need::default() });
        }
        self.met.count("changed", changed.len() as u64);
        for (queue, copy) in changed {
            need = need.and(self.put_copy(&queue, &copy, via.clone()));
        }
        need
    }

    /// Where it belongs, and nowhere that it died.
    fn home(&self, queue: &QueueName) -> Way {
        let home = Some((queue.clone(), self.state.queue(queue).born));
        Way { home, ..Way::default() }
    }

    /// A copy stands in the dead-letter set of the queue that cannot take it, and now it is said why.
    fn bury_misfit(&mut self, queue: &QueueName, seq: u64) {
        self.met.count("misfits", 1);
        let dead = queue.dead_letters();
        let why = Why::Dead(Dead {
            reason: DeadReason::NoSession,
            from: queue.clone(),
            from_seq: seq,
            receives: 0,
            failed: 0,
            cause: Cause::Released,
            way: self.home(queue),
            key: None,
            ttl_ms: None,
        });
        let (to_seq, at) = (self.state.queue(&dead).next_seq, self.now);
        let (from, to, changes) = (dead.clone(), dead, Changes::default());
        self.note(Ev::Move { from, seq, to, to_seq, at, why, changes });
    }

    /// What was read out of an inbox was routed, each message in a group of its own.
    pub fn routed(&mut self, now: u64, groups: &[Group]) {
        for group in groups.iter().filter(|group| !group.follows()) {
            self.take_up(now, group);
            let inboxed = group.events.iter().find_map(|event| match event {
                Event::Moved(m) => Some((self.topic_names.get(&m.from_queue)?, m.from_seq)),
                Event::Removed { queue, seqs, .. } => {
                    Some((self.topic_names.get(queue)?, *seqs.first()?))
                }
                _ => None,
            });
            let (topic, seq) = inboxed.expect("routing takes messages out of an inbox");
            self.route_one(&topic.clone(), seq);
        }
    }

    fn route_one(&mut self, topic: &TopicName, seq: u64) {
        self.met.count("routed", 1);
        let inbox = QueueName::inbox(topic);
        let msg = self.state.queue(&inbox).msgs.get(&seq);
        let msg = msg.unwrap_or_else(|| panic!("{inbox} has no {seq}")).clone();
        assert!(msg.ready(self.now), "{seq} of {inbox} was routed early: {msg:?}");
        let mut message = msg.sent.message.clone();
        message.properties = msg.properties.clone();
        message.key = msg.key.clone().or(message.key);
        message.message_id = msg.message_id.clone().or(message.message_id);
        message.when = When::Now;
        let Copies { plain, changed, misfits, barred, by } = self.copies(topic, &message, &msg.way);
        by.into_iter().for_each(|kind| self.met.count(kind, 1));
        let nobody = plain.is_empty() && misfits.is_empty() && changed.is_empty();
        self.met.count("changed", changed.len() as u64);
        for (queue, copy) in &changed {
            let via = Via { topic: topic.clone(), key: None };
            let mut arriving = self.arriving(queue, copy);
            arriving.place = Place::Here { due: 0 };
            // It is still on its way, and with that keeps how long it lives.
            arriving.way = msg.way.clone();
            if arriving.way != Way::default() {
                arriving.ttl_ms = copy.message.ttl_ms;
            }
            let msg = arriving;
            self.note(Ev::Put { queue: queue.clone(), msg: Box::new(msg), via: Some(via) });
        }
        let home = msg.way.home.filter(|home| self.state.is_there(home));
        if let Some((home, _)) = home.filter(|_| nobody) {
            let reason = if barred > 0 { DeadReason::Cycle } else { DeadReason::Unroutable };
            let to = home.dead_letters();
            let (to_seq, at) = (self.state.queue(&to).next_seq, self.now);
            self.met.count("cycles", u64::from(barred > 0));
            let way = self.home(&home);
            let why = Why::Dead(Dead {
                reason,
                from: home,
                from_seq: seq,
                receives: 0,
                failed: 0,
                cause: Cause::Released,
                way,
                key: None,
                ttl_ms: None,
            });
            let changes = Changes::default();
            return self.note(Ev::Move { from: inbox, seq, to, to_seq, at, why, changes });
        }
        if plain.is_empty() && misfits.is_empty() {
            return self.note(Ev::Gone { queue: inbox, seq, end: End::Unrouted });
        }
        let next = |queue: QueueName| (queue.clone(), self.state.queue(&queue).next_seq);
        let mut to: Vec<_> = plain.into_iter().map(next).collect();
        let mut buried: Vec<(QueueName, u64)> = Vec::new();
        for queue in misfits {
            let (dead, first) = next(queue.dead_letters());
            let earlier = buried.iter().filter(|(of, _)| *of == queue).count() as u64;
            to.push((dead, first + earlier));
            buried.push((queue, first + earlier));
        }
        self.note(Ev::Route { topic: topic.clone(), seq, to, at: self.now });
        buried.into_iter().for_each(|(queue, seq)| self.bury_misfit(&queue, seq));
    }
}
