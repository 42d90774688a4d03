//! Topics: which queues get copies of a published message, and what happens to messages without a taker.

use std::collections::BTreeMap;
use std::rc::Rc;

use malote_engine::command::Receipt;
use malote_engine::event::Event;
use malote_engine::journal::Pos;
use malote_model::{
    Changes, DeadReason, Filter, Message, QueueName, Rule, TopicKind, TopicName, When,
};

use super::check::check_session;
use super::matching::{act, chosen, matches, word};
use super::{Group, Model, Need};
use crate::model::{Availability, Cause, Dead, End, Ev, ForwardingPath, SentMessage, Via, Why};

/// The queues that a message is routed to.
#[derive(Debug, Default)]
struct Copies {
    /// Queues that get the unchanged message.
    plain: Vec<QueueName>,
    /// Queues that get a message changed by a rule's action.
    changed: Vec<(QueueName, Rc<SentMessage>)>,
    /// Queues that cannot take the message.
    misfits: Vec<QueueName>,
    /// Number of copies that are not made, because the message was dead-lettered in that queue.
    barred: usize,
    /// Kinds of the matching rules.
    by: Vec<&'static str>,
}

impl Model {
    /// One copy for each queue with a matching rule, and one more for each rule with an action.
    fn copies(&self, topic: &TopicName, message: &Message, path: &ForwardingPath) -> Copies {
        let mut copies = Copies::default();
        let (found, topics) = self.hits(topic, message);
        if topics > 1 {
            copies.by.push("passed to another topic");
        }
        for (name, hits) in &found {
            let q = self.state.queue(name);
            let takes = |message: &Message| {
                check_session(name, &q.spec.sessions, q.session_for(message).as_ref()).is_ok()
            };
            copies.by.extend(hits.iter().map(|rule| word(&rule.filter)));
            let acting = hits.iter().filter(|rule| rule.action.is_some());
            let has_plain = hits.iter().any(|rule| rule.action.is_none());
            if path.died_in.iter().any(|of| of.0 == *name && self.state.is_there(of)) {
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
                let mut changed = act(rule, message);
                changed.session = q.session_for(&changed);
                match takes(&changed) {
                    true => {
                        let sent_message = Rc::new(SentMessage::new(changed, true));
                        copies.changed.push((name.clone(), sent_message));
                    }
                    false => copies.misfits.push(name.clone()),
                }
            }
        }
        copies
    }

    /// The rules that match a message, by queue, of a topic and of those that it leads to, and the number of topics.
    fn hits(
        &self,
        topic: &TopicName,
        message: &Message,
    ) -> (BTreeMap<QueueName, Vec<&Rule>>, usize) {
        let mut found: BTreeMap<QueueName, Vec<&Rule>> = BTreeMap::new();
        let mut topics = vec![topic.clone()];
        let mut next = 0;
        while let Some(name) = topics.get(next) {
            next += 1;
            let t = self.state.topic(name);
            let mut hits: Vec<(&QueueName, &Rule)> = Vec::new();
            for (target, rules) in &t.rules {
                let rules = rules.values().filter(|rule| matches(&rule.filter, message));
                hits.extend(rules.map(|rule| (target, rule)));
            }
            if t.spec.kind == TopicKind::Hash {
                let all = t.rules.iter().flat_map(|(q, rules)| rules.values().map(move |r| (q, r)));
                let mut all: Vec<_> = all.collect();
                all.sort_by_key(|(target, rule)| (self.state.queue(target).born, &rule.name));
                let weights = all.iter().map(|(_, rule)| match rule.filter {
                    Filter::Weight(weight) => weight,
                    _ => panic!("a hash topic has weights only: {rule:?}"),
                });
                let weights: Vec<_> = weights.collect();
                hits.extend(chosen(&weights, message).map(|rule| all[rule]));
            }
            let alternate = t.spec.alternate.clone().filter(|_| hits.is_empty());
            let mut onward: Vec<TopicName> = alternate.into_iter().collect();
            for (target, rule) in hits {
                match target.inbox_of() {
                    Some(of) => onward.push(of),
                    None => found.entry(target.clone()).or_default().push(rule),
                }
            }
            for of in onward {
                if !topics.contains(&of) && self.state.topics.contains_key(&of) {
                    topics.push(of);
                }
            }
        }
        for rules in found.values_mut() {
            rules.sort_by(|a, b| a.name.cmp(&b.name));
        }
        (found, topics.len())
    }

    /// The queues that a message would be stored in, each with its copy; empty for a duplicate.
    pub(super) fn takers(
        &self,
        topic: &TopicName,
        sent_message: &Rc<SentMessage>,
    ) -> Vec<(QueueName, Rc<SentMessage>)> {
        let t = self.state.topic(topic);
        let key = sent_message.key(t.spec.dedup.is_some_and(|dedup| dedup.content));
        if t.known(key.as_ref(), self.now).is_some() || self.is_later(sent_message) {
            return Vec::new();
        }
        let Copies { mut plain, changed, .. } =
            self.copies(topic, &sent_message.message, &ForwardingPath::default());
        plain.retain(|queue| {
            let known = |key: Vec<u8>| {
                self.state.queue(queue).known_by(key, sent_message, self.now).is_some()
            };
            !key.clone().is_some_and(known)
        });
        plain.into_iter().map(|queue| (queue, sent_message.clone())).chain(changed).collect()
    }

    fn is_later(&self, sent_message: &SentMessage) -> bool {
        matches!(sent_message.message.when, When::At(at) if at.0 > self.now)
    }

    /// A message is published: all copies are stored at once, or the message waits until it is due.
    pub(super) fn publish(
        &mut self,
        topic: &TopicName,
        sent_message: &Rc<SentMessage>,
        receipt: &Receipt,
    ) -> Need {
        let t = self.state.topic(topic);
        let key = sent_message.key(t.spec.dedup.is_some_and(|dedup| dedup.content));
        let said = (receipt.seq.0, receipt.duplicate, receipt.copies);
        if let Some(durable) = t.known(key.as_ref(), self.now) {
            assert_eq!(said, (0, true, 0), "{topic} has seen {sent_message:?} before");
            self.met.count("duplicates", 1);
            return Need { durable, written: Pos::ZERO };
        }
        self.met.count("published", 1);
        let via = Via { topic: topic.clone(), key: key.clone() };
        if self.is_later(sent_message) {
            let inbox = QueueName::inbox(topic);
            assert_eq!(said, (self.state.queue(&inbox).next_seq, false, 1), "scheduled at {topic}");
            return self.put_copy(&inbox, sent_message, via);
        }
        let Copies { mut plain, changed, misfits, by, .. } =
            self.copies(topic, &sent_message.message, &ForwardingPath::default());
        by.into_iter().for_each(|kind| self.met.count(kind, 1));
        plain.retain(|queue| {
            let q = self.state.queue(queue);
            key.clone().and_then(|key| q.known_by(key, sent_message, self.now)).is_none()
        });
        let count = (plain.len() + changed.len() + misfits.len()) as u32;
        assert_eq!(said, (0, false, count), "copies of {sent_message:?} by {topic}");
        self.met.count("copies", u64::from(count));
        let mut need = Need::default();
        for queue in plain {
            need = need.and(self.put_copy(&queue, sent_message, via.clone()));
        }
        let buried: Vec<_> = misfits
            .into_iter()
            .map(|queue| {
                let dead = queue.dead_letters();
                let seq = self.state.queue(&dead).next_seq;
                let mut msg = self.arriving(&dead, sent_message);
                msg.availability = Availability::InOrder { due: 0 };
                msg.session = sent_message.message.session.clone();
                let (msg, via) = (Box::new(msg), Some(via.clone()));
                self.note(Ev::Put { queue: dead, msg, via });
                (queue, seq)
            })
            .collect();
        for (queue, seq) in buried {
            self.bury_misfit(&queue, seq);
            need = need.and(Need { durable: self.end, ..Need::default() });
        }
        self.met.count("copies changed by an action", changed.len() as u64);
        for (queue, copy) in changed {
            need = need.and(self.put_copy(&queue, &copy, via.clone()));
        }
        need
    }

    /// The home queue of a message that was not dead-lettered anywhere.
    fn home(&self, queue: &QueueName) -> ForwardingPath {
        let home = Some((queue.clone(), self.state.queue(queue).born));
        ForwardingPath { home, ..ForwardingPath::default() }
    }

    /// Records why a copy is in the dead-letter set of a queue that cannot take it.
    fn bury_misfit(&mut self, queue: &QueueName, seq: u64) {
        self.met.count("copies dead-lettered at once", 1);
        let dead = queue.dead_letters();
        let why = Why::Dead(Dead {
            reason: DeadReason::NoSession,
            from: queue.clone(),
            from_seq: seq,
            receives: 0,
            failed: 0,
            cause: Cause::Released,
            path: self.home(queue),
            key: None,
            ttl_ms: None,
        });
        let (to_seq, at) = (self.state.queue(&dead).next_seq, self.now);
        let (from, to, changes) = (dead.clone(), dead, Changes::default());
        self.note(Ev::Move { from, seq, to, to_seq, at, why, changes });
    }

    /// Messages read from an inbox were routed, each in its own journal group.
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
        let message = msg.as_read();
        let Copies { plain, changed, misfits, barred, by } =
            self.copies(topic, &message, &msg.path);
        by.into_iter().for_each(|kind| self.met.count(kind, 1));
        let unrouted = plain.is_empty() && misfits.is_empty() && changed.is_empty();
        self.met.count("copies changed by an action", changed.len() as u64);
        for (queue, copy) in &changed {
            let via = Via { topic: topic.clone(), key: None };
            let mut arriving = self.arriving(queue, copy);
            arriving.availability = Availability::InOrder { due: 0 };
            // It continues on its path, and keeps its time to live.
            arriving.path = msg.path.clone();
            if arriving.path != ForwardingPath::default() {
                arriving.ttl_ms = copy.message.ttl_ms;
            }
            let msg = arriving;
            self.note(Ev::Put { queue: queue.clone(), msg: Box::new(msg), via: Some(via) });
        }
        let home = msg.path.home.filter(|home| self.state.is_there(home));
        if let Some((home, _)) = home.filter(|_| unrouted) {
            let reason = if barred > 0 { DeadReason::Cycle } else { DeadReason::Unroutable };
            let to = home.dead_letters();
            let (to_seq, at) = (self.state.queue(&to).next_seq, self.now);
            self.met.count("cycles", u64::from(barred > 0));
            let path = self.home(&home);
            let why = Why::Dead(Dead {
                reason,
                from: home,
                from_seq: seq,
                receives: 0,
                failed: 0,
                cause: Cause::Released,
                path,
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
