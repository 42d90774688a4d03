//! Whoever is told: consumers hear their notices in order, and may be slow to read what they were granted.

use std::collections::BTreeMap;

use malote_engine::command::{Command, MessageGrant, Reply};
use malote_engine::core::Effect;
use malote_engine::outputs::NoticeSequencer;
use malote_engine::{ConsumerId, Stored};

use super::check::{Expected, check_stored};
use super::{Pending, World};

/// Grants that wait to be read, at most.
const UNREAD_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Receivers {
    consumers: BTreeMap<ConsumerId, Consumer>,
    /// Granted, and not read yet.
    unread: Vec<(MessageGrant, Expected)>,
}

#[derive(Default)]
struct Consumer {
    notices: NoticeSequencer<(u64, Pending)>,
    /// The output that it heard last.
    heard: Option<u64>,
}

impl Receivers {
    /// An output was decided: its number among those of its consumer.
    pub(super) fn number(&mut self, effect: &Effect) -> u64 {
        match effect {
            Effect::Consumer(id, _) => self.consumers.entry(*id).or_default().notices.number(),
            _ => 0,
        }
    }

    /// An output may leave: those that leave now.
    pub(super) fn in_order(&mut self, number: u64, output: Pending) -> Vec<(u64, Pending)> {
        let Effect::Consumer(id, _) = &output.effect else { return vec![(number, output)] };
        let notices = &mut self.consumers.entry(*id).or_default().notices;
        notices.arrived(output.notice, (number, output));
        std::iter::from_fn(|| notices.next_due()).collect()
    }

    /// Outputs are numbered as they were decided: so a consumer hears them.
    pub(super) fn heard(&mut self, number: u64, effect: &Effect) {
        let Effect::Consumer(id, _) = effect else { return };
        let last = self.consumers.entry(*id).or_default().heard.replace(number);
        assert!(last < Some(number), "{id:?} heard {number} after {last:?}: {effect:?}");
    }
}

impl World {
    /// Messages reach a receiver: it reads them at once, or later.
    pub(super) fn receive(&mut self, grants: Vec<MessageGrant>, expected: Vec<Expected>) {
        assert_eq!(grants.len(), expected.len(), "something is known of every message");
        let slow = self.rng.chance(30) && self.receivers.unread.len() < UNREAD_MAX;
        for (grant, expected) in grants.into_iter().zip(expected) {
            match slow {
                true => self.receivers.unread.push((grant, expected)),
                false => self.read_granted(&grant, &expected),
            }
        }
    }

    /// Slow receivers read what they were granted.
    pub(super) fn receive_late(&mut self) {
        for (grant, expected) in std::mem::take(&mut self.receivers.unread) {
            self.met.count("read late", 1);
            self.met.count("read late, taken", u64::from(grant.lease.is_none()));
            self.read_granted(&grant, &expected);
        }
    }

    /// As the engine's `deliver` does: what compaction moved away is where its lease says.
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
                return; // the engine's answer would wait for it
            }
            read = Stored::read_now(&self.journal.segments, pos);
        }
        match read {
            Ok(stored) => check_stored(&stored, expected),
            Err(error) => panic!("{grant:?} was delivered and cannot be read: {error}"),
        }
    }
}
