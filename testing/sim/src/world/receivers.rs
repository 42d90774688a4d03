//! Receivers: consumers get their notices in order, and may be slow to read granted messages.

use std::collections::BTreeMap;

use malote_engine::command::{Command, MessageGrant, Reply};
use malote_engine::core::Effect;
use malote_engine::outputs::NoticeSequencer;
use malote_engine::{ConsumerId, Stored};

use super::check::{Expected, check_stored};
use super::{Pending, World};

/// The most grants that wait to be read.
const UNREAD_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Receivers {
    consumers: BTreeMap<ConsumerId, Consumer>,
    /// Granted, but not read yet.
    unread: Vec<(MessageGrant, Expected)>,
}

#[derive(Default)]
struct Consumer {
    notices: NoticeSequencer<(u64, Pending)>,
    /// The last output that it received.
    heard: Option<u64>,
}

impl Receivers {
    /// Numbers an output among those of its consumer, when it is decided.
    pub(super) fn number(&mut self, effect: &Effect) -> u64 {
        match effect {
            Effect::Consumer(id, _) => self.consumers.entry(*id).or_default().notices.number(),
            _ => 0,
        }
    }

    /// An output was released. Returns the outputs that can be sent now.
    pub(super) fn in_order(&mut self, number: u64, output: Pending) -> Vec<(u64, Pending)> {
        let Effect::Consumer(id, _) = &output.effect else { return vec![(number, output)] };
        let notices = &mut self.consumers.entry(*id).or_default().notices;
        notices.arrived(output.notice, (number, output));
        std::iter::from_fn(|| notices.next_due()).collect()
    }

    /// Checks that a consumer gets outputs in the order in which they were decided.
    pub(super) fn heard(&mut self, number: u64, effect: &Effect) {
        let Effect::Consumer(id, _) = effect else { return };
        let last = self.consumers.entry(*id).or_default().heard.replace(number);
        assert!(last < Some(number), "{id:?} received {number} after {last:?}: {effect:?}");
    }
}

impl World {
    /// Messages reach a receiver, which reads them at once or later.
    pub(super) fn receive(&mut self, grants: Vec<MessageGrant>, expected: Vec<Expected>) {
        assert_eq!(grants.len(), expected.len(), "every message has an expected content");
        let slow = self.rng.chance(30) && self.receivers.unread.len() < UNREAD_MAX;
        for (grant, expected) in grants.into_iter().zip(expected) {
            match slow {
                true => self.receivers.unread.push((grant, expected)),
                false => self.read_granted(&grant, &expected),
            }
        }
    }

    /// Slow receivers read their messages.
    pub(super) fn receive_late(&mut self) {
        for (grant, expected) in std::mem::take(&mut self.receivers.unread) {
            self.met.count("read late", 1);
            self.met.count("read late, taken", u64::from(grant.lease.is_none()));
            self.read_granted(&grant, &expected);
        }
    }

    /// Reads a message as the engine's `deliver` does: if compaction has moved it, its lease locates it.
    fn read_granted(&mut self, grant: &MessageGrant, expected: &Expected) {
        let mut read = Stored::read_now(&self.journal.segments, grant.pos);
        if let (Err(error), Some(lease)) = (&read, grant.lease)
            && error.kind() == std::io::ErrorKind::NotFound
        {
            let located = self.look(Command::Locate { leases: vec![lease] });
            let Ok(Reply::Located(at)) = located else { panic!("locate: {located:?}") };
            let Some(pos) = at[0] else {
                self.met.count("read late, lease over", 1);
                return;
            };
            self.met.count("located", 1);
            if pos >= self.journal.marks.written() {
                return; // the engine would wait until it is written
            }
            read = Stored::read_now(&self.journal.segments, pos);
        }
        match read {
            Ok(stored) => check_stored(&stored, expected),
            Err(error) => panic!("{grant:?} was delivered, but cannot be read: {error}"),
        }
    }
}
