//! Records whose queue is missing. If a record sends to a queue that replay does not know, the queue was declared in a
//! damaged part of the journal: its declaration is lost, but its messages are intact. Replay creates a queue
//! `recovered-N` for them, so that they are live and listed, and an operator can forward them.
//!
//! On an undamaged journal this never happens: records are only written for existing queues, ids are never reused, and
//! no record refers to a queue after its deletion. Only replay decides here, from the records alone, so every replay of
//! the same records creates the same queues.

use std::collections::BTreeMap;

use malote_model::{QueueName, QueueSpec, Timestamp, limits};

use super::Core;
use super::queue::Queue;
use crate::event::{Event, QueueId};
use crate::journal::{ORPHANS_MAX, Orphan, Pos};

/// Marks the id of a recovered queue's dead-letter set. Ids of declared queues never reach it.
const RECOVERED_DEAD: u32 = 1 << 31;

/// Missing queues and topics that records have referred to.
#[derive(Debug, Default)]
pub(super) struct Orphans(BTreeMap<QueueId, Orphan>);

impl Orphans {
    fn note(&mut self, id: QueueId, recovered: Option<&QueueName>, pos: Pos) {
        if self.0.len() >= ORPHANS_MAX && !self.0.contains_key(&id) {
            return; // the queue is recovered anyway
        }
        let orphan = self.0.entry(id).or_insert_with(|| Orphan::new(id.0, pos));
        orphan.records += 1;
        orphan.last = pos;
        match recovered {
            Some(name) => orphan.recovered = Some(name.as_str().to_owned()),
            None => drop(orphan.unplaced.insert(pos.generation())),
        }
    }

    pub(super) fn report(&self) -> Vec<Orphan> {
        self.0.values().cloned().collect()
    }
}

impl Queue {
    /// Whether replay created the queue for messages whose own queue is missing.
    pub(super) fn is_recovered(&self) -> bool {
        self.dead.0 & RECOVERED_DEAD != 0 && self.owner.is_none()
    }
}

impl Core {
    /// Before an event is replayed: creates missing queues that it adds something to.
    pub(super) fn recover_orphans(&mut self, pos: Pos, event: &Event) {
        match event {
            Event::Sent(sent) => {
                sent.places.iter().for_each(|place| self.recover_queue(pos, place.queue));
            }
            Event::Moved(moved) => {
                moved.places.iter().for_each(|place| self.recover_queue(pos, place.queue));
            }
            Event::Updated { queue, .. } => self.recover_queue(pos, *queue),
            // A recovered queue has no sessions, so it cannot hold this.
            Event::State { queue, .. } if self.is_missing_or_recovered(*queue) => {
                self.orphans.note(*queue, None, pos);
            }
            Event::Bound { topic, queue, .. } => {
                if self.topics.contains_key(topic) {
                    self.recover_queue(pos, *queue);
                } else {
                    self.orphans.note(*topic, None, pos);
                }
            }
            Event::TopicUpdated { topic, .. } if !self.topics.contains_key(topic) => {
                self.orphans.note(*topic, None, pos);
            }
            Event::Declared { name, .. } => {
                self.free_name(name);
                // A name is declared again only after its deletion. Without the record of that, two queues would have
                // the name, and only one of them would be found by it and saved.
                if let Some(&deleted) = self.names.get(name) {
                    self.drop_queue(deleted);
                }
            }
            Event::TopicDeclared { name, .. } => {
                if let Some(&deleted) = self.topic_names.get(name) {
                    self.drop_topic(deleted);
                }
            }
            // The missing queue was deleted regularly later. Its dead-letter set, which has the next id, is deleted
            // too.
            Event::Deleted { queue } if self.is_missing_or_recovered(*queue) => {
                let dead = QueueId(queue.0 + 1);
                self.orphans.0.remove(queue);
                if self.is_recovered(dead) {
                    self.orphans.0.remove(&dead);
                    self.drop_queue(dead);
                }
            }
            Event::TopicDeleted { topic } if !self.topics.contains_key(topic) => {
                self.orphans.0.remove(topic);
                self.drop_queue(*topic);
            }
            _ => {}
        }
    }

    fn is_recovered(&self, id: QueueId) -> bool {
        self.queues.get(&id).is_some_and(|q| q.is_recovered())
    }

    fn is_missing_or_recovered(&self, id: QueueId) -> bool {
        !self.queues.contains_key(&id) || self.is_recovered(id)
    }

    fn recover_queue(&mut self, pos: Pos, id: QueueId) {
        // A dead-letter set is recovered together with its queue.
        let id = QueueId(id.0 & !RECOVERED_DEAD);
        if let Some(q) = self.queues.get(&id) {
            if q.is_recovered() && self.orphans.0.contains_key(&id) {
                let name = q.name.clone();
                self.orphans.note(id, Some(&name), pos);
            }
            return;
        }
        if id == QueueId::default() {
            return;
        }
        // The limit of declared queues applies. Beyond it, only the segments of the records are kept.
        if self.queues.len() / 2 >= limits::QUEUES_MAX {
            self.orphans.note(id, None, pos);
            return;
        }
        // Nothing expires, overflows or is dead-lettered. Without sessions it can be forwarded, and the attributes of
        // its messages, above all their sessions, are kept (`Queue::keeps_attributes`).
        let spec = QueueSpec { failed_max: None, ..QueueSpec::default() };
        let name = self.recovered_name(id);
        let (dead, at) = (QueueId(id.0 | RECOVERED_DEAD), Timestamp(self.last_at));
        self.orphans.note(id, Some(&name), pos);
        // The ids of the queue and of its dead-letter set are never reused.
        self.next_queue = self.next_queue.max(id.0.saturating_add(2));
        self.add_queue(id, dead, name, &spec, at);
    }

    /// Renames a recovered queue, because a queue with its name is declared.
    fn free_name(&mut self, name: &QueueName) {
        let Some(&id) = self.names.get(name).filter(|id| self.is_recovered(**id)) else { return };
        let renamed = self.recovered_name(id);
        let dead = QueueId(id.0 | RECOVERED_DEAD);
        for (id, is, will_be) in [
            (id, name.clone(), renamed.clone()),
            (dead, name.dead_letters(), renamed.dead_letters()),
        ] {
            self.names.remove(&is);
            if let Some(q) = self.queues.get_mut(&id) {
                q.name = will_be.clone();
                self.names.insert(will_be, id);
            }
        }
        if let Some(orphan) = self.orphans.0.get_mut(&id) {
            orphan.recovered = Some(renamed.as_str().to_owned());
        }
    }

    /// An unused name.
    fn recovered_name(&self, id: QueueId) -> QueueName {
        let mut text = format!("recovered-{}", id.0);
        loop {
            let name = QueueName::new(&text).expect("letters, digits and dashes make a name");
            if !self.names.contains_key(&name) {
                return name;
            }
            text.push_str("-again");
        }
    }

    /// Adds a queue and its dead-letter set.
    pub(super) fn add_queue(
        &mut self,
        id: QueueId,
        dead: QueueId,
        name: QueueName,
        spec: &QueueSpec,
        at: Timestamp,
    ) {
        let made = Queue::new(name.clone(), spec.clone(), dead, at, self.hash_seed);
        let dead_spec = super::apply::dead_letter_set_spec(spec);
        let mut letters = Queue::new(name.dead_letters(), dead_spec, dead, at, self.hash_seed);
        letters.owner = Some(id);
        self.names.insert(name.dead_letters(), dead);
        self.names.insert(name, id);
        self.queues.insert(id, Box::new(made));
        self.queues.insert(dead, Box::new(letters));
    }
}
