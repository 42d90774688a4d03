//! Topics: their rules, and messages that wait for routing.

use std::collections::BTreeMap;

use malote_engine::journal::Pos;
use malote_model::{QueueName, QueueSpec, Rule, TopicName, TopicSpec};

use super::{Availability, Msg, Queue, State};

#[derive(Clone, Debug)]
pub struct Topic {
    pub spec: TopicSpec,
    pub rules: BTreeMap<QueueName, BTreeMap<String, Rule>>,
    /// It may be deleted with its last rule.
    pub had_rule: bool,
    /// Number of copies made.
    pub copies: u64,
    /// De-duplication keys: the time, and the position that a duplicate's answer must wait for.
    pub seen: BTreeMap<Vec<u8>, (u64, Pos)>,
    pub eager: Pos,
}

/// How a message was published to a topic.
#[derive(Clone, Debug)]
pub struct Via {
    pub topic: TopicName,
    /// Its de-duplication key from then on.
    pub key: Option<Vec<u8>>,
}

/// The path of a message. Queues are identified by name and position of their declaration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardingPath {
    /// Queues in which it was dead-lettered automatically since it was last dead-lettered by a receiver.
    pub died_in: Vec<(QueueName, Pos)>,
    /// The queue in which it was last dead-lettered.
    pub home: Option<(QueueName, Pos)>,
    /// How often it was forwarded.
    pub hops: u8,
}

impl Topic {
    /// Whether it has seen a key within its window.
    pub fn known(&self, key: Option<&Vec<u8>>, now: u64) -> Option<Pos> {
        let dedup = self.spec.dedup?;
        let (at, rests) = self.seen.get(key?)?;
        (now < at + dedup.window_ms).then_some(*rests)
    }
}

impl State {
    pub fn topic(&self, name: &TopicName) -> &Topic {
        self.topics.get(name).unwrap_or_else(|| panic!("the model has no topic {name}"))
    }

    pub(super) fn topic_mut(&mut self, name: &TopicName) -> &mut Topic {
        self.topics.get_mut(name).unwrap_or_else(|| panic!("the model has no topic {name}"))
    }

    /// An auto-delete topic that has lost its last rule.
    pub fn falling(&self) -> Option<TopicName> {
        let falls = |t: &Topic| t.spec.auto_delete && t.had_rule && t.rules.is_empty();
        self.topics.iter().find(|(_, t)| falls(t)).map(|(name, _)| name.clone())
    }

    /// The subscriptions of a topic, with or without rules.
    pub fn subscriptions(&self, name: &TopicName) -> Vec<QueueName> {
        let own = |queue: &&QueueName| queue.subscription_of().is_some_and(|(of, _)| of == *name);
        self.queues.keys().filter(own).cloned().collect()
    }

    /// Whether the same queue still exists.
    pub fn is_there(&self, (name, born): &(QueueName, Pos)) -> bool {
        self.queues.get(name).is_some_and(|q| q.born == *born)
    }

    pub(super) fn declare_topic(&mut self, name: &TopicName, spec: &TopicSpec, pos: Pos) {
        let topic = Topic {
            spec: spec.clone(),
            rules: BTreeMap::new(),
            had_rule: false,
            copies: 0,
            seen: BTreeMap::new(),
            eager: pos,
        };
        self.topics.insert(name.clone(), topic);
        let inbox = Queue::new(QueueSpec::default(), None, pos);
        self.inboxes.insert(QueueName::inbox(name), inbox);
    }

    /// A topic makes a copy, or stores a message for later.
    pub(super) fn published(
        &mut self,
        queue: &QueueName,
        msg: &Msg,
        Via { topic, key }: &Via,
        pos: Pos,
    ) {
        let durable = self.queue(queue).durable();
        let topic = self.topic_mut(topic);
        topic.copies += u64::from(!queue.is_inbox());
        if let (Some(key), Some(_)) = (key, topic.spec.dedup) {
            // Only durable copies count, because others may be lost in a crash.
            let others = topic.seen.get(key).filter(|(at, _)| *at == msg.at);
            let rests = others.map_or(Pos::ZERO, |(_, rests)| *rests);
            topic.seen.insert(key.clone(), (msg.at, if durable { pos } else { rests }));
        }
    }

    pub(super) fn routed(
        &mut self,
        topic: &TopicName,
        seq: u64,
        to: &[(QueueName, u64)],
        at: u64,
        pos: Pos,
    ) {
        self.topic_mut(topic).copies += to.len() as u64;
        let inbox = QueueName::inbox(topic);
        let Some(mut msg) = self.queue_mut(&inbox).msgs.remove(&seq) else {
            panic!("the routed message does not exist")
        };
        let message = msg.as_read();
        // All copies of one move have one session: those that have their own go through the inbox once more.
        let own = to.iter().filter(|(name, _)| self.queue(name).spec.session_from.is_some());
        let own = own.count();
        let again = if own == to.len() { own.saturating_sub(1) } else { own } as u64;
        let q = self.queue_mut(&inbox);
        q.next_seq += again;
        q.totals.sent += again;
        msg.own_expiry = msg.ttl_ms.map(|ttl_ms| at + ttl_ms);
        (msg.availability, msg.at, msg.rests) = (Availability::InOrder { due: 0 }, at, pos);
        msg.entered = pos;
        (msg.receives, msg.failed, msg.released, msg.dead) = (0, 0, 0, None);
        for (name, to_seq) in to {
            let q = self.queue_mut(name);
            let mut copy = msg.clone();
            copy.session = q.session_for(&message);
            copy.read_session = copy.session.clone().or(copy.read_session);
            copy.tenant = copy.session.clone();
            q.come(&mut copy);
            q.totals.sent += 1;
            q.next_seq = q.next_seq.max(to_seq + 1);
            q.msgs.insert(*to_seq, copy);
            self.eager(name, pos);
        }
    }
}
