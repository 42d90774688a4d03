//! The state of one queue. Changed only by `apply`.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use hashbrown::HashMap;
use malote_model::{Durability, Overflow, QueueName, QueueSpec, Refusal, Timestamp};

use super::dedup::DedupWindow;
use super::fair::{self, FairQueue};
use super::index::{Index, IndexEntry};
use super::sessions::{NONE, SessionTable};
use super::timers::TimerId;
use super::tracked::{Arrival, CarriedAttributes, MessageStatus, RemovedMessage, TrackedMessage};
use super::waiting::WaitingConsumers;
use super::{FixedState, fixed};
use crate::command::{ConnectionId, ConsumerId};
use crate::event::QueueId;
use crate::facts::{NoisyTenants, QueueFacts, Totals};
use crate::journal::Pos;

/// A queue. A message that was never delivered, delayed or deferred exists only in the index.
#[derive(Debug)]
pub(super) struct Queue {
    pub name: QueueName,
    pub spec: QueueSpec,
    /// Its own dead-letter set. A dead-letter set refers to itself.
    pub dead: QueueId,
    /// The queue that this dead-letter set belongs to.
    pub owner: Option<QueueId>,
    pub created_at: Timestamp,
    pub paused: bool,
    pub index: Index,
    /// The newest record of messages that have overlays.
    pub newest: HashMap<u64, Pos, FixedState>,
    pub next_seq: u64,
    /// Without sessions: messages from here on have not been delivered yet.
    pub cursor: u64,
    /// Without sessions: ready messages before the cursor.
    pub returned: BTreeSet<u64>,
    /// Without sessions: the ready and leased messages of tenants, if there are any.
    pub fair: Option<Box<FairQueue>>,
    /// Messages with more state than the index holds.
    pub tracked: HashMap<u64, TrackedMessage, FixedState>,
    /// With priorities: ready messages by priority. Without, `cursor` and `returned` determine which messages are
    /// ready.
    pub lanes: Vec<BTreeSet<u64>>,
    /// Attributes of messages that are scheduled or will move to another queue, and need them there.
    pub carried: HashMap<u64, CarriedAttributes, FixedState>,
    /// Messages with their own expiry, by time. A message that is leased when it expires is removed here, and checked
    /// when it is returned.
    pub expiring: BTreeSet<(u64, u64)>,
    /// The number of messages with their own expiry, leased or not.
    pub own_expiries: u64,
    /// Messages before this have been checked against the queue's time to live.
    pub expire_from: u64,
    /// De-duplication keys, if the queue detects duplicates.
    pub seen: Option<Box<DedupWindow>>,
    /// Topics with rules for this queue.
    pub bound_to: BTreeSet<QueueId>,
    /// Bytes of messages that are not ready, if the queue limits bytes.
    pub aside_bytes: u64,
    /// Bytes of all session states. They count as bytes of the queue.
    pub state_bytes: u64,
    /// Messages before this are included in `aside_bytes`.
    counted_to: u64,
    /// Progress of writing session slots into the index: all sessions before this slot are done, and of this one all
    /// messages before this sequence number.
    slot_progress: Option<(u32, u64)>,
    /// With sessions: no message before this is ready.
    pub oldest: u64,
    pub locked: u64,
    pub delayed: u64,
    pub scheduled: u64,
    pub deferred: u64,
    pub sessions: Option<SessionTable>,
    pub sessions_held: u64,
    pub totals: Totals,
    /// Waiting consumers, in turn. This field and those below are not durable.
    pub waiting: WaitingConsumers,
    /// Attached consumers by priority, highest first, if the queue needs their order: it has a single active consumer, or
    /// a consumer with a priority.
    pub ranked: BTreeSet<(Reverse<i32>, ConsumerId)>,
    pub consumers: u64,
    /// Its only consumer is exclusive.
    pub exclusive_consumer: bool,
    pub dirty: bool,
    /// When something expires next, and the timer for it.
    pub expiry: Option<(u64, TimerId)>,
    /// The timer for deleting the idle queue.
    pub idle: Option<TimerId>,
    /// The timer for retrying to forward or route.
    pub retry: Option<TimerId>,
    pub used_at: u64,
    pub had_consumer: bool,
    /// The connection that owns an exclusive queue.
    pub connection: Option<ConnectionId>,
}

impl Queue {
    pub(super) fn new(
        name: QueueName,
        spec: QueueSpec,
        dead: QueueId,
        created_at: Timestamp,
        hash_seed: u64,
    ) -> Self {
        let sessions = spec.sessions.required().then(|| SessionTable::new(hash_seed));
        let lanes = if spec.priority_max == 0 { 0 } else { usize::from(spec.priority_max) + 1 };
        let seen = spec.dedup.map(|_| Box::default());
        Self {
            name,
            spec,
            dead,
            owner: None,
            created_at,
            paused: false,
            index: Index::default(),
            newest: fixed(),
            next_seq: 1,
            cursor: 1,
            returned: BTreeSet::new(),
            fair: None,
            tracked: fixed(),
            lanes: vec![BTreeSet::new(); lanes],
            carried: fixed(),
            expiring: BTreeSet::new(),
            own_expiries: 0,
            expire_from: 0,
            seen,
            bound_to: BTreeSet::new(),
            aside_bytes: 0,
            state_bytes: 0,
            counted_to: u64::MAX,
            slot_progress: None,
            oldest: 0,
            locked: 0,
            delayed: 0,
            scheduled: 0,
            deferred: 0,
            sessions,
            sessions_held: 0,
            totals: Totals::default(),
            waiting: WaitingConsumers::default(),
            ranked: BTreeSet::new(),
            consumers: 0,
            exclusive_consumer: false,
            dirty: false,
            expiry: None,
            idle: None,
            retry: None,
            used_at: 0,
            had_consumer: false,
            connection: None,
        }
    }

    /// Whether replies wait for the disk.
    pub(super) fn durable(&self) -> bool {
        self.spec.durability == Durability::Fsync
    }

    /// The priority of a consumer in the list of waiting consumers. If only one is active, priorities select that one.
    pub fn waiting_priority(&self, priority: i32) -> i32 {
        if self.spec.single_active { 0 } else { priority }
    }

    /// Whether messages are delivered.
    pub(super) fn delivers(&self) -> bool {
        !self.paused && self.spec.status.receives()
    }

    /// Returns a refusal if receiving is disabled.
    pub(super) fn check_receives(&self) -> Result<(), Refusal> {
        match self.spec.status.receives() {
            true => Ok(()),
            false => Err(self.disabled("nothing can be received from it")),
        }
    }

    /// Returns a refusal if sending is disabled.
    pub(super) fn check_sends(&self) -> Result<(), Refusal> {
        match self.spec.status.sends() {
            true => Ok(()),
            false => Err(self.disabled("nothing can be sent to it")),
        }
    }

    fn disabled(&self, why: &'static str) -> Refusal {
        let (name, status) = (self.name.as_str().to_owned(), self.spec.status.word());
        Refusal::Disabled { what: "queue", name, status, why }
    }

    pub(super) fn status(&self, seq: u64) -> MessageStatus {
        self.tracked.get(&seq).map_or(MessageStatus::Ready, |t| t.status)
    }

    /// The position of a message's newest record.
    pub(super) fn pos(&self, seq: u64) -> Option<Pos> {
        let (first, _) = self.index.get(seq)?;
        if self.newest.is_empty() {
            return Some(first);
        }
        Some(self.newest.get(&seq).copied().unwrap_or(first))
    }

    /// Updates the counters when a message of this size changes its status. Ready messages are not counted separately.
    pub(super) fn count(
        &mut self,
        size: u64,
        from: Option<MessageStatus>,
        to: Option<MessageStatus>,
    ) {
        if let Some(counter) = from.and_then(|place| self.counter(place)) {
            *counter = counter.saturating_sub(1);
            self.aside_bytes = self.aside_bytes.saturating_sub(size);
        }
        if let Some(counter) = to.and_then(|place| self.counter(place)) {
            *counter += 1;
            self.aside_bytes += size;
        }
    }

    /// Updates all counters when a message changes its status.
    pub(super) fn recount(
        &mut self,
        seq: u64,
        from: Option<MessageStatus>,
        to: Option<MessageStatus>,
    ) {
        let size = self.counted_size(seq);
        self.count(size, from, to);
        if self.fair.is_some() {
            self.count_out(self.tenant(seq), from, to);
        }
    }

    /// Updates the number of leased messages of a tenant.
    fn count_out(
        &mut self,
        tenant: Option<u32>,
        from: Option<MessageStatus>,
        to: Option<MessageStatus>,
    ) {
        let (Some(fair), Some(tenant)) = (&mut self.fair, tenant) else { return };
        if matches!(from, Some(MessageStatus::Locked(_))) {
            fair.remove_leased(tenant);
        }
        if matches!(to, Some(MessageStatus::Locked(_))) {
            fair.add_leased(tenant);
        }
    }

    /// The tenant of a message; none if it arrived before there were tenants.
    fn tenant(&self, seq: u64) -> Option<u32> {
        self.fair.as_ref().filter(|fair| seq >= fair.from)?;
        self.index.session(seq)
    }

    /// The bytes of a message, if the queue limits bytes and has already counted it.
    fn counted_size(&self, seq: u64) -> u64 {
        let counts = self.spec.bytes_max.is_some() && seq < self.counted_to;
        if counts { self.index.size(seq) } else { 0 }
    }

    /// Whether the index has everything that the settings require. Until then, no message expires, is dropped for its
    /// limits or is forwarded.
    pub(super) fn is_prepared(&self) -> bool {
        self.slot_progress.is_none() && self.counted_to == u64::MAX
    }

    /// Writes session slots into the index and counts bytes, for at most `left` messages. Returns true when everything
    /// is done.
    pub(super) fn prepare(&mut self, left: &mut usize) -> bool {
        while let Some((slot, from)) = self.slot_progress {
            let Some(sessions) = self.sessions.as_ref().filter(|s| slot < s.slots()) else {
                self.slot_progress = None;
                break;
            };
            let line = sessions.at(slot).map(|s| &s.pending);
            let at = line.map_or(0, |line| line.lower_bound(from));
            let end = line.map_or(0, |line| line.len());
            for seq in (at..end).filter_map(|i| line?.get(i)).take(*left) {
                self.index.set_session(seq, slot);
                self.slot_progress = Some((slot, seq + 1));
            }
            if end - at >= *left {
                *left = 0;
                return false;
            }
            // The session itself counts as well.
            *left -= end - at + 1;
            self.slot_progress = Some((slot + 1, 0));
        }
        if self.tracked.is_empty() {
            self.counted_to = u64::MAX;
        }
        while self.counted_to != u64::MAX {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            let Some(seq) = self.index.next(self.counted_to) else {
                self.counted_to = u64::MAX;
                break;
            };
            if self.status(seq) != MessageStatus::Ready {
                self.aside_bytes += self.index.size(seq);
            }
            self.counted_to = seq + 1;
        }
        true
    }

    /// Starts writing session slots into the index, if they are missing.
    pub(super) fn start_session_slots(&mut self) {
        if self.sessions.is_some() && self.index.lacks_session_slots() {
            self.slot_progress.get_or_insert((0, 0));
        }
    }

    fn counter(&mut self, place: MessageStatus) -> Option<&mut u64> {
        match place {
            MessageStatus::Ready => None,
            MessageStatus::Locked(_) => Some(&mut self.locked),
            MessageStatus::Delayed | MessageStatus::Parked => Some(&mut self.delayed),
            MessageStatus::Scheduled => Some(&mut self.scheduled),
            MessageStatus::Deferred => Some(&mut self.deferred),
        }
    }

    pub(super) fn ready(&self) -> u64 {
        self.index.len().saturating_sub(self.locked + self.delayed + self.scheduled + self.deferred)
    }

    /// Whether messages move on from here, so that their attributes must be kept.
    pub(super) fn keeps_attributes(&self) -> bool {
        self.spec.forward_to.is_some() || self.name.is_inbox() || self.is_recovered()
    }

    /// Whether the session of a message matters here, or where it goes next.
    pub(super) fn orders(&self) -> bool {
        self.sessions.is_some() || self.keeps_attributes()
    }

    /// Whether session ids identify tenants here. Not in queues with sessions or priorities, in dead-letter sets, or
    /// where messages only pass through.
    pub(super) fn has_tenants(&self) -> bool {
        self.spec.fair
            && self.sessions.is_none()
            && self.lanes.is_empty()
            && self.owner.is_none()
            && !self.keeps_attributes()
    }

    /// Whether old messages are dropped when the queue is full.
    pub(super) fn drops(&self) -> bool {
        matches!(self.spec.overflow, Overflow::DropOldest | Overflow::DeadLetterOldest)
            && (self.spec.length_max.is_some() || self.spec.bytes_max.is_some())
    }

    /// Bytes of ready messages and session states, if the queue limits bytes. `bytes_max` applies to these.
    pub(super) fn limited_bytes(&self) -> u64 {
        self.index.bytes().saturating_sub(self.aside_bytes) + self.state_bytes
    }

    /// Whether sessions must be found by sequence number: for messages that expire, are dropped for limits or are
    /// forwarded.
    pub(super) fn needs_session_slots(&self) -> bool {
        self.sessions.is_some()
            && (self.spec.ttl_ms.is_some()
                || self.spec.forward_to.is_some()
                || self.own_expiries > 0
                || self.spec.length_max.is_some()
                || self.spec.bytes_max.is_some())
    }

    /// Adds a message to the index.
    pub(super) fn insert(&mut self, pos: Pos, arrival: &Arrival<'_>, slot: Option<u32>) {
        let Arrival { seq, at, size, priority, ttl_ms, scheduled, tenant, .. } = *arrival;
        self.next_seq = seq + 1;
        // The time to live of a scheduled message begins when it is due.
        let own = ttl_ms.filter(|_| !scheduled).map_or(0, |ms| at.saturating_add(ms));
        if own > 0 {
            self.expiring.insert((own, seq));
            self.own_expiries += 1;
        }
        let tenant = tenant.filter(|_| self.has_tenants()).map(fair::tenant);
        if tenant.is_some() && self.fair.is_none() {
            self.fair = Some(Box::new(FairQueue::new(seq)));
        }
        let no_tenant = self.fair.is_some().then_some(fair::NO_TENANT);
        self.index.push(IndexEntry {
            seq,
            pos,
            size,
            at,
            expires: own,
            priority,
            session: slot.filter(|_| self.needs_session_slots()).or(tenant).or(no_tenant),
            timed: self.spec.ttl_ms.is_some(),
        });
    }

    /// Removes a message from the index and from all other structures.
    pub(super) fn remove(&mut self, seq: u64) -> Option<RemovedMessage> {
        let size = self.counted_size(seq);
        let own = if self.own_expiries > 0 { self.index.expires_at(seq, None) } else { None };
        let tenant = self.tenant(seq);
        if !self.lanes.is_empty() || tenant.is_some() {
            self.unready(seq);
        }
        if !self.index.remove(seq) {
            return None;
        }
        if let Some(at) = own {
            self.expiring.remove(&(at, seq));
            self.own_expiries -= 1;
        }
        let newest = if self.newest.is_empty() { None } else { self.newest.remove(&seq) };
        let tracked = if self.tracked.is_empty() { None } else { self.tracked.remove(&seq) };
        let from = tracked.as_ref().map(|t| t.status);
        self.count(size, from, None);
        self.count_out(tenant, from, None);
        if self.index.len() == 0 && self.fair.take().is_some() {
            self.cursor = self.next_seq;
        }
        self.returned.remove(&seq);
        if !self.carried.is_empty() {
            self.carried.remove(&seq);
        }
        Some(RemovedMessage { newest, tracked })
    }

    /// Without sessions: marks a message as ready, for the first time or again.
    pub(super) fn make_ready(&mut self, seq: u64) {
        if !self.lanes.is_empty() {
            let lane = usize::from(self.index.priority(seq)).min(self.lanes.len() - 1);
            self.lanes[lane].insert(seq);
        } else if let (Some(tenant), Some(fair)) = (self.tenant(seq), &mut self.fair) {
            fair.put(tenant, seq);
        } else if seq < self.cursor {
            self.returned.insert(seq);
        }
    }

    /// Without sessions: marks a message as not ready.
    pub(super) fn unready(&mut self, seq: u64) {
        if !self.lanes.is_empty() {
            let lane = usize::from(self.index.priority(seq)).min(self.lanes.len() - 1);
            self.lanes[lane].remove(&seq);
        } else if let (Some(tenant), Some(fair)) = (self.tenant(seq), &mut self.fair) {
            fair.take(tenant, seq);
        } else if seq >= self.cursor {
            self.cursor = seq + 1;
        } else {
            self.returned.remove(&seq);
        }
    }

    /// Whether a message has expired.
    pub(super) fn expired(&self, seq: u64, now: u64) -> bool {
        if self.spec.ttl_ms.is_none() && self.own_expiries == 0 {
            return false;
        }
        self.index.expires_at(seq, self.spec.ttl_ms).is_some_and(|at| at <= now)
    }

    /// When the next message expires, or de-duplication keys can be dropped.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        let own = self.expiring.first().map(|&(at, _)| at);
        let head = self.spec.ttl_ms.and_then(|ttl_ms| {
            self.index.expires_at(self.index.next(self.expire_from)?, Some(ttl_ms))
        });
        let seen = self.seen.as_ref().zip(self.spec.dedup);
        let keys = seen.and_then(|(seen, dedup)| seen.forget_at(dedup.window_ms));
        [own, head, keys].into_iter().flatten().min()
    }

    /// Without priorities: the next ready message to drop for a limit, after `after`: the oldest.
    pub(super) fn next_to_drop(&mut self, after: Option<u64>) -> Option<u64> {
        if self.sessions.is_none() && (self.fair.is_none() || after.is_none()) {
            return self.oldest_ready(after, 0);
        }
        let mut seq = self.index.next(after.map_or(self.oldest, |seq| seq + 1))?;
        while self.status(seq) != MessageStatus::Ready {
            seq = self.index.next(seq + 1)?;
        }
        if after.is_none() {
            self.oldest = seq;
        }
        Some(seq)
    }

    /// The session slot of a message that is removed while it is not leased.
    pub(super) fn session_slot_of(&mut self, seq: u64) -> Option<u32> {
        self.sessions.as_ref()?;
        // In a replay, all slots are written at once, for later messages. Otherwise they were written before the
        // decision.
        if self.status(seq) == MessageStatus::Ready && self.session_slot(seq).is_none() {
            self.start_session_slots();
            self.prepare(&mut usize::MAX.clone());
        }
        match self.status(seq) {
            MessageStatus::Ready => self.session_slot(seq),
            MessageStatus::Delayed => self.tracked.get(&seq).map(|t| t.session),
            // These are handled elsewhere; a scheduled message is not in a session yet.
            MessageStatus::Locked(_)
            | MessageStatus::Parked
            | MessageStatus::Deferred
            | MessageStatus::Scheduled => None,
        }
    }

    /// After restoring a snapshot: rebuilds what follows from the index and the statuses.
    pub(super) fn restore_order(&mut self) {
        self.expiring = self.index.own_expiries().collect();
        self.own_expiries = self.expiring.len() as u64;
        if !self.lanes.is_empty() || self.fair.is_some() {
            let from = self.fair.as_ref().map_or(0, |fair| fair.from);
            let all = self.index.iter().map(|(seq, _)| seq).filter(|&seq| seq >= from);
            let ready: Vec<_> =
                all.filter(|&seq| self.status(seq) == MessageStatus::Ready).collect();
            ready.into_iter().for_each(|seq| self.make_ready(seq));
        }
    }

    /// After restoring an index, before the statuses: finds out whether there are tenants.
    pub(super) fn restore_tenants(&mut self) {
        let from = self.index.first_with_session();
        let from = from.filter(|_| self.sessions.is_none() && self.lanes.is_empty());
        self.fair = from.map(|from| Box::new(FairQueue::new(from)));
    }

    /// Changes the settings, at a journaled time.
    pub(super) fn respecify(&mut self, spec: &QueueSpec, at: u64) {
        let counted_to = self.spec.bytes_max.is_some();
        DedupWindow::respecify(&mut self.seen, self.spec.dedup, spec.dedup, at);
        self.spec = spec.clone();
        if self.is_recovered() {
            // Its declaration is lost, and with it whether it had sessions.
            self.spec.sessions = malote_model::Sessions::None;
            self.spec.session_from = None;
        }
        self.expire_from = 0;
        match (counted_to, spec.bytes_max.is_some()) {
            (_, false) => (self.aside_bytes, self.counted_to) = (0, u64::MAX),
            (false, true) => (self.aside_bytes, self.counted_to) = (0, 0),
            (true, true) => {}
        }
        if self.needs_session_slots() {
            self.start_session_slots();
        }
    }

    /// The session slot that the index has for a message.
    pub(super) fn session_slot(&self, seq: u64) -> Option<u32> {
        self.index.session(seq).filter(|&slot| slot != NONE && self.sessions.is_some())
    }

    /// Drops removed messages from the front of a session, and adds the session to the ready ring or removes it.
    pub(super) fn refresh_session(&mut self, slot: u32) {
        let Some(sessions) = self.sessions.as_mut() else { return };
        let Some(session) = sessions.at_mut(slot) else { return };
        let mut ready = false;
        while let Some(seq) = session.pending.first() {
            let place = self.tracked.get(&seq).map_or(MessageStatus::Ready, |t| t.status);
            if !self.index.contains(seq)
                || matches!(place, MessageStatus::Deferred | MessageStatus::Parked)
            {
                session.pending.pop();
                continue;
            }
            ready = place == MessageStatus::Ready && session.is_free();
            break;
        }
        session.tidy();
        sessions.set_ready(slot, ready);
        sessions.forget_if_idle(slot);
    }

    pub(super) fn facts(&self, dead_lettered: u64) -> QueueFacts {
        let sessions = self.sessions.as_ref();
        let oldest = if self.sessions.is_some() { self.index.next(0) } else { self.first_ready(0) };
        let at = |seq: Option<u64>| seq.and_then(|seq| self.index.about_when(seq)).map(Timestamp);
        let quiet_oldest = match &self.fair {
            Some(fair) => self
                .next_ready(None, 0)
                .or_else(|| fair.picks(self.locked, |_| true).quiet().map(|(seq, _)| seq)),
            None => oldest,
        };
        QueueFacts {
            name: self.name.clone(),
            spec: self.spec.clone(),
            created_at: self.created_at,
            paused: self.paused,
            ready: self.ready(),
            locked: self.locked,
            delayed: self.delayed,
            scheduled: self.scheduled,
            deferred: self.deferred,
            dead_lettered,
            bytes: self.index.bytes() + self.state_bytes,
            oldest_at: at(oldest),
            noisy: self
                .fair
                .as_ref()
                .map_or_else(NoisyTenants::default, |fair| fair.noisy(self.locked)),
            quiet_oldest_at: at(quiet_oldest),
            consumers: self.consumers,
            sessions: sessions.map_or(0, |s| s.len() as u64),
            sessions_held: self.sessions_held,
            sessions_ready: sessions.map_or(0, |s| s.ready() as u64),
            totals: self.totals,
        }
    }
}
