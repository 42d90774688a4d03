//! Topics: who gets a copy of what is published, and what becomes of it when nobody can have it.

use std::rc::Rc;

use malote_engine::command::{Receipt, Reply};
use malote_engine::event::Event;
use malote_engine::journal::Pos;
use malote_model::{
    Changes, DeadReason, Facts, Message, QueueName, QueueSpec, Refusal, Rule, Seq, Timestamp,
    TopicKind, TopicName, TopicSpec, When,
};

use super::check::check_session;
use super::life::Life;
use super::{Group, Model, Need};
use crate::model::{Cause, Dead, End, Ev, Letter, Place, Via, Way, Why};

/// What a client asks of topics.
#[derive(Clone, Debug)]
pub enum TopicAsk {
    Declare { name: TopicName, spec: TopicSpec },
    Delete { name: TopicName },
    Subscribe { name: QueueName, spec: QueueSpec, rules: Option<Vec<Rule>> },
    Bind { topic: TopicName, queue: QueueName, rule: Rule },
    Unbind { topic: TopicName, queue: QueueName, rule: String },
    Cancel { topic: TopicName, seqs: Vec<Seq> },
}

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
}

impl Model {
    /// One copy for each queue with a rule that matches, and one more for each rule with an action.
    fn copies(&self, topic: &TopicName, message: &Message, way: &Way) -> Copies {
        let at = Timestamp(self.now);
        let facts = Facts::new(message, at);
        let mut copies = Copies::default();
        for (name, rules) in &self.state.topic(topic).rules {
            let sessions = &self.state.queue(name).spec.sessions;
            let takes =
                |message: &Message| check_session(name, sessions, message.session.as_ref()).is_ok();
            let hits: Vec<_> = rules.values().filter(|rule| rule.filter.matches(&facts)).collect();
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
                let mut changed = message.clone();
                rule.act(&mut changed, at);
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
            self.happened.duplicates += 1;
            return Need { durable, written: Pos::ZERO };
        }
        self.happened.published += 1;
        let via = Via { topic: topic.clone(), key: key.clone() };
        if self.is_later(letter) {
            let inbox = QueueName::inbox(topic);
            assert_eq!(said, (self.state.queue(&inbox).next_seq, false, 1), "scheduled at {topic}");
            return self.put_copy(&inbox, letter, via);
        }
        let Copies { mut plain, changed, misfits, .. } =
            self.copies(topic, &letter.message, &Way::default());
        plain.retain(|queue| {
            let q = self.state.queue(queue);
            let known = key.clone().and_then(|key| q.known_by(key, letter, self.now));
            // Where it may be forgotten or not, the engine says.
            let put = || self.said_put.contains(&(queue.clone(), q.next_seq));
            known.is_none_or(|known| known.perhaps && put())
        });
        let count = (plain.len() + changed.len() + misfits.len()) as u32;
        assert_eq!(said, (0, false, count), "copies of {letter:?} by {topic}");
        self.happened.copies += u64::from(count);
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
        self.happened.changed += changed.len() as u64;
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
        self.happened.misfits += 1;
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
        });
        let (to_seq, at) = (self.state.queue(&dead).next_seq, self.now);
        let (from, to, changes) = (dead.clone(), dead, Changes::default());
        self.note(Ev::Move { from, seq, to, to_seq, at, why, changes });
    }

    /// What was read out of an inbox was routed, each message in a group of its own.
    pub fn routed(&mut self, now: u64, groups: &[Group]) {
        for group in groups.iter().filter(|group| !group.is_overflow()) {
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
        self.happened.routed += 1;
        let inbox = QueueName::inbox(topic);
        let msg = self.state.queue(&inbox).msgs.get(&seq);
        let msg = msg.unwrap_or_else(|| panic!("{inbox} has no {seq}")).clone();
        assert!(msg.ready(self.now), "{seq} of {inbox} was routed early: {msg:?}");
        let mut message = msg.sent.message.clone();
        message.properties = msg.properties.clone();
        message.key = msg.key.clone().or(message.key);
        message.when = When::Now;
        let Copies { plain, changed, misfits, barred } = self.copies(topic, &message, &msg.way);
        let nobody = plain.is_empty() && misfits.is_empty() && changed.is_empty();
        self.happened.changed += changed.len() as u64;
        for (queue, copy) in &changed {
            let via = Via { topic: topic.clone(), key: None };
            let mut msg = self.arriving(queue, copy);
            msg.place = Place::Here { due: 0 };
            self.note(Ev::Put { queue: queue.clone(), msg: Box::new(msg), via: Some(via) });
        }
        let home = msg.way.home.filter(|home| self.state.is_there(home));
        if let Some((home, _)) = home.filter(|_| nobody) {
            let reason = if barred > 0 { DeadReason::Cycle } else { DeadReason::Unroutable };
            let to = home.dead_letters();
            let (to_seq, at) = (self.state.queue(&to).next_seq, self.now);
            self.happened.cycles += u64::from(barred > 0);
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

    /// A topic goes after its subscriptions; queues that were only bound stay.
    pub fn topic_deleted(&mut self, now: u64, name: &TopicName, groups: &[Group]) -> Need {
        let is_own = |queue: &QueueName| queue.subscription_of().is_some_and(|(of, _)| of == *name);
        for group in groups {
            self.take_up(now, group);
            match group.events.as_slice() {
                [Event::Deleted { queue }] => {
                    let queue = self.names[queue].clone();
                    assert!(is_own(&queue), "{queue} went with {name}");
                    self.delete(&queue);
                }
                [Event::TopicDeleted { topic }] => {
                    assert_eq!(self.topic_names[topic], *name, "the topic that went");
                    self.note(Ev::DeleteTopic { name: name.clone() });
                }
                other => panic!("{name} was deleted, and {other:?}"),
            }
        }
        let left: Vec<_> = self.state.queues.keys().filter(|queue| is_own(queue)).collect();
        assert!(left.is_empty(), "{name} is gone, and not {left:?}");
        assert!(!self.state.topics.contains_key(name), "{name} was deleted and is there");
        Need { durable: self.end, ..Need::default() }
    }

    pub(super) fn check_topic(&self, ask: &TopicAsk) -> Result<(), Refusal> {
        let state = &self.state;
        let topic = |name: &TopicName| {
            state.topics.get(name).ok_or(Refusal::TopicNotFound { topic: name.clone() })
        };
        let queue = |name: &QueueName| {
            state.queues.get(name).ok_or(Refusal::QueueNotFound { queue: name.clone() })
        };
        match ask {
            TopicAsk::Declare { name, spec } => match state.topics.get(name) {
                Some(t) if t.spec != *spec => Err(Refusal::TopicDiffers {
                    topic: name.clone(),
                    field: "",
                    is: String::new(),
                    asked: String::new(),
                }),
                _ => spec.check(),
            },
            TopicAsk::Delete { name } => topic(name).map(drop),
            TopicAsk::Subscribe { name, spec, rules } => {
                let (of, _) = name.subscription_of().expect("a subscription is named so");
                let t = topic(&of)?;
                match state.queues.get(name) {
                    Some(q) if q.spec == *spec => Ok(()),
                    Some(_) => Err(Refusal::QueueDiffers {
                        queue: name.clone(),
                        field: "",
                        is: String::new(),
                        asked: String::new(),
                    }),
                    None => {
                        rules.iter().flatten().try_for_each(|rule| t.spec.check_rule(rule))?;
                        self.check_target(name, spec)
                    }
                }
            }
            TopicAsk::Bind { topic: of, queue: name, rule } => {
                let (t, q) = (topic(of)?, queue(name)?);
                if q.owner.is_some() {
                    return Err(Refusal::DeadLetterSet { queue: name.clone(), why: "" });
                }
                t.spec.check_rule(rule)?;
                match t.rules.get(name).and_then(|rules| rules.get(&rule.name)) {
                    Some(have) if have != rule => Err(Refusal::RuleDiffers {
                        topic: of.clone(),
                        queue: name.clone(),
                        rule: rule.name.clone(),
                    }),
                    _ => Ok(()),
                }
            }
            TopicAsk::Unbind { topic: of, queue: name, rule } => {
                let (t, _) = (topic(of)?, queue(name)?);
                match t.rules.get(name).and_then(|rules| rules.get(rule)) {
                    Some(_) => Ok(()),
                    None => Err(Refusal::RuleNotFound {
                        topic: of.clone(),
                        queue: name.clone(),
                        rule: rule.clone(),
                    }),
                }
            }
            TopicAsk::Cancel { topic: of, seqs } => {
                topic(of)?;
                let inbox = QueueName::inbox(of);
                let msgs = &state.queue(&inbox).msgs;
                let there = |seq: &Seq| {
                    msgs.get(&seq.0).is_some_and(|m| matches!(m.place, Place::Scheduled { .. }))
                };
                match seqs.iter().find(|seq| !there(seq)) {
                    Some(&seq) => Err(Refusal::MessageNotFound { queue: inbox, seq, what: "" }),
                    None => Ok(()),
                }
            }
        }
    }

    pub(super) fn topic_effect(&mut self, ask: &TopicAsk, reply: &Reply) -> Need {
        let durable = |model: &Self| Need { durable: model.end, ..Need::default() };
        match (ask, reply) {
            (TopicAsk::Declare { name, spec }, Reply::Declared { created }) => {
                assert_eq!(*created, !self.state.topics.contains_key(name), "declared {name}");
                if !created {
                    return Need { durable: self.state.topic(name).eager, ..Need::default() };
                }
                self.note(Ev::DeclareTopic { name: name.clone(), spec: spec.clone() });
                durable(self)
            }
            // Group after group: see `topic_deleted`.
            (TopicAsk::Delete { .. }, Reply::Done) => Need::default(),
            (TopicAsk::Subscribe { name, spec, rules }, Reply::Declared { created }) => {
                assert_eq!(*created, !self.state.queues.contains_key(name), "subscribed {name}");
                if !created {
                    return self.eager(name);
                }
                self.note(Ev::Declare { name: name.clone(), spec: spec.clone() });
                self.lives.insert(name.clone(), Life::new(self.now, None));
                let (topic, _) = name.subscription_of().expect("it was taken for one");
                let kind = self.state.topic(&topic).spec.kind;
                for rule in rules.clone().unwrap_or_else(|| default_rules(kind)) {
                    let (topic, queue) = (topic.clone(), name.clone());
                    self.note(Ev::Bind { topic, queue, rule: Box::new(rule) });
                }
                durable(self)
            }
            (TopicAsk::Bind { topic, queue, rule }, Reply::Declared { created }) => {
                let have = self.state.topic(topic).rules.get(queue);
                let have = have.is_some_and(|rules| rules.contains_key(&rule.name));
                assert_eq!(*created, !have, "bound {queue} to {topic}");
                if have {
                    return Need { durable: self.state.topic(topic).eager, ..Need::default() };
                }
                let (topic, queue) = (topic.clone(), queue.clone());
                self.note(Ev::Bind { topic, queue, rule: Box::new(rule.clone()) });
                durable(self)
            }
            (TopicAsk::Unbind { topic, queue, rule }, Reply::Done) => {
                let (topic, queue) = (topic.clone(), queue.clone());
                self.note(Ev::Unbind { topic, queue, rule: rule.clone() });
                durable(self)
            }
            (TopicAsk::Cancel { topic, seqs }, Reply::Count(count)) => {
                let mut seqs: Vec<u64> = seqs.iter().map(|seq| seq.0).collect();
                seqs.dedup();
                assert_eq!(*count, seqs.len() as u64, "cancelled");
                let queue = QueueName::inbox(topic);
                for &seq in &seqs {
                    let (queue, end) = (queue.clone(), End::Cancelled);
                    self.note(Ev::Gone { queue, seq, end });
                }
                if seqs.is_empty() { Need::default() } else { durable(self) }
            }
            (ask, reply) => panic!("{ask:?} was answered with {reply:?}"),
        }
    }
}

/// What a subscription takes when nothing is said.
fn default_rules(kind: TopicKind) -> Vec<Rule> {
    let all = Rule { name: "$Default".into(), filter: malote_model::Filter::All, action: None };
    match kind {
        TopicKind::Filter | TopicKind::Fanout => vec![all],
        TopicKind::Direct | TopicKind::Topic | TopicKind::Headers => Vec::new(),
    }
}
