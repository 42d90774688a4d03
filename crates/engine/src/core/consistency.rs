//! Recounts everything and compares it with the counters and sets that are maintained incrementally.
//!
//! For the simulation, which calls it after every crash and from time to time. Its cost is proportional to the whole
//! state.

use std::collections::{BTreeMap, BTreeSet};

use super::Core;
use super::leases::{LeaseTarget, NONE};
use super::queue::Queue;
use super::tracked::MessageStatus;
use crate::event::QueueId;

impl Core {
    /// All inconsistencies; empty if there are none.
    pub fn audit(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut equal = |what: &str, kept: u64, counted: u64| {
            if kept != counted {
                wrong.push(format!("{what}: {kept} is kept, {counted} were counted"));
            }
        };
        let of_queues = self.queues.values().filter_map(|q| q.seen.as_ref());
        let of_topics = self.topics.values().filter_map(|topic| topic.seen.as_ref());
        let keys: usize = of_queues.chain(of_topics).map(|seen| seen.recount()).sum();
        equal("keys of all queues and topics", self.dedup_keys as u64, keys as u64);
        let rules: usize = self.topics.values().map(|topic| topic.router.len()).sum();
        equal("rules", self.rules as u64, rules as u64);
        equal("leases", self.leases.len() as u64, self.leases.iter().count() as u64);
        let mut locked: BTreeMap<QueueId, BTreeSet<(u64, u32)>> = BTreeMap::new();
        for lease in self.leases.iter() {
            if let LeaseTarget::Message { seq, .. } = lease.what {
                locked.entry(lease.queue).or_default().insert((seq, lease.token.slot));
            }
        }
        let mut ids: Vec<_> = self.queues.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(q) = self.queues.get(&id) else { continue };
            let leased = locked.remove(&id).unwrap_or_default();
            wrong.extend(q.audit(&leased).into_iter().map(|what| format!("{}: {what}", q.name)));
        }
        wrong.extend(locked.keys().map(|id| format!("leases of queue {}, which is gone", id.0)));
        wrong
    }
}

impl Queue {
    fn audit(&self, leased: &BTreeSet<(u64, u32)>) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut equal = |what: &str, kept: u64, counted: u64| {
            if kept != counted {
                wrong.push(format!("{what}: {kept} is kept, {counted} were counted"));
            }
        };
        let (mut len, mut bytes, mut aside, mut own) = (0, 0, 0, 0);
        let mut places = [0_u64; 4];
        let mut out = BTreeSet::new();
        let mut ready = BTreeSet::new();
        for entry in self.index.entries_from(0) {
            let place = self.status(entry.seq);
            (len, bytes) = (len + 1, bytes + u64::from(entry.size));
            own += u64::from(entry.expires > 0);
            let counter = match place {
                MessageStatus::Ready => {
                    ready.insert(entry.seq);
                    continue;
                }
                MessageStatus::Locked(slot) => {
                    out.insert((entry.seq, slot));
                    0
                }
                MessageStatus::Delayed | MessageStatus::Parked => 1,
                MessageStatus::Scheduled => 2,
                MessageStatus::Deferred => 3,
            };
            places[counter] += 1;
            aside += u64::from(entry.size);
        }
        equal("messages", self.index.len(), len);
        equal("bytes", self.index.bytes(), bytes);
        equal("messages out", self.locked, places[0]);
        equal("delayed messages", self.delayed, places[1]);
        equal("scheduled messages", self.scheduled, places[2]);
        equal("deferred messages", self.deferred, places[3]);
        equal("messages with an expiry of their own", self.own_expiries, own);
        if self.spec.bytes_max.is_some() {
            equal("bytes set aside", self.aside_bytes, aside);
        }
        let mut gone = |what: &str, seqs: Vec<u64>| {
            let gone: Vec<_> = seqs.into_iter().filter(|&seq| !self.index.contains(seq)).collect();
            equal(what, gone.len() as u64, 0);
        };
        gone("places of messages that are gone", self.tracked.keys().copied().collect());
        gone("changes of messages that are gone", self.newest.keys().copied().collect());
        gone("sessions of messages that are gone", self.carried.keys().copied().collect());
        let held = self.sessions.iter().flat_map(|s| s.iter());
        let held = held.filter(|(_, s)| s.extras().hold != NONE).count() as u64;
        equal("held sessions", self.sessions_held, held);
        if out != *leased {
            wrong.push(format!("out: {out:?}, and leases: {leased:?}"));
        }
        let found = self.findable(&ready);
        if found != ready {
            let lost: Vec<_> = ready.difference(&found).take(5).collect();
            wrong.push(format!("ready messages that cannot be found: {lost:?}"));
        }
        wrong
    }

    /// The ready messages that a receiver can reach.
    fn findable(&self, ready: &BTreeSet<u64>) -> BTreeSet<u64> {
        let Some(sessions) = &self.sessions else {
            let by_tenant = |seq: u64| self.fair.as_ref().is_some_and(|fair| seq >= fair.from);
            let can = |seq: u64| match self.lanes.is_empty() {
                false => self.lanes.iter().any(|lane| lane.contains(&seq)),
                true => by_tenant(seq) || seq >= self.cursor || self.returned.contains(&seq),
            };
            return ready.iter().copied().filter(|&seq| can(seq)).collect();
        };
        let lines: BTreeSet<u64> = sessions.iter().flat_map(|(_, s)| s.pending.iter()).collect();
        ready.intersection(&lines).copied().collect()
    }
}
