//! One queue: its messages by place and state. Changed only by `apply`.

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashMap;
use malote_model::{Durability, Overflow, QueueName, QueueSpec, Refusal, SessionId, Timestamp};

use super::dedup::Seen;
use super::fair::{self, Fair};
use super::index::{Entry, Index};
use super::sessions::{NONE, Sessions};
use super::timers::TimerId;
use super::{FixedState, fixed};
use crate::command::{ConnectionId, ConsumerId, MessageState, Noisy, QueueFacts, Totals};
use crate::event::{QueueId, Way};
use crate::journal::Pos;

/// A queue. A message that was never delivered, delayed or set aside is only a place in the index.
#[derive(Debug)]
pub(super) struct Queue {
    pub name: QueueName,
    pub spec: QueueSpec,
    /// Its own dead-letter set; itself for a dead-letter set.
    pub dead: QueueId,
    /// The queue whose dead-letter set this is.
    pub owner: Option<QueueId>,
    pub created_at: Timestamp,
    pub paused: bool,
    pub index: Index,
    /// The newest record of messages that something was laid over.
    pub newest: HashMap<u64, Pos, FixedState>,
    pub next_seq: u64,
    /// Without sessions: what stands here or later was not delivered yet.
    pub cursor: u64,
    /// Without sessions: ready messages before the cursor.
    pub returned: BTreeSet<u64>,
    /// Without sessions: what tenants have, if there are any.
    pub fair: Option<Box<Fair>>,
    /// Messages that are more than a place in the index.
    pub touched: HashMap<u64, Touched, FixedState>,
    /// With priorities: ready messages by priority. Without, the cursor and what returned tell which are ready.
    pub lanes: Vec<BTreeSet<u64>>,
    /// What scheduled messages and dead letters will be once they stand in a line.
    pub kept: HashMap<u64, Kept, FixedState>,
    /// Messages that expire by their own word, and when; one that is out when it does is not looked for any more.
    pub expiring: BTreeSet<(u64, u64)>,
    /// How many of its messages have such a word, out or not.
    pub own_expiries: u64,
    /// What stands before this does not expire by the queue's time to live any more.
    pub expire_from: u64,
    /// What it has seen, if it cares.
    pub seen: Option<Box<Seen>>,
    /// Topics with rules that lead here.
    pub bound_to: BTreeSet<QueueId>,
    /// Bytes of messages that are not ready, if bytes are limited.
    pub aside_bytes: u64,
    /// Bytes of the states of all sessions: they count as the queue's.
    pub state_bytes: u64,
    /// What stands before this is counted there.
    weighed: u64,
    /// Messages learn their sessions: those of slots before this do know them, and of this one those before a sequence.
    marking: Option<(u32, u64)>,
    /// With sessions: no message before this is ready.
    pub oldest: u64,
    pub locked: u64,
    pub delayed: u64,
    pub scheduled: u64,
    pub deferred: u64,
    pub sessions: Option<Sessions>,
    pub sessions_held: u64,
    pub totals: Totals,
    /// Consumers that want something, in turn. Not part of the durable state, nor is what follows.
    pub waiting: VecDeque<ConsumerId>,
    pub consumers: u64,
    pub dirty: bool,
    /// When something of it expires next, and the timer for that.
    pub expiry: Option<(u64, TimerId)>,
    /// Since when nobody has used it, if that counts, and the timer.
    pub idle: Option<TimerId>,
    /// It could not send its messages on, and tries again.
    pub again: Option<TimerId>,
    pub used_at: u64,
    pub had_consumer: bool,
    /// Whose it is, if it is exclusive.
    pub connection: Option<ConnectionId>,
}

/// What a message will be once it stands in a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub session: Option<SessionId>,
    pub priority: u8,
    pub ttl_ms: Option<u64>,
    pub way: Way,
}

/// A message that was delivered, delayed or set aside.
#[derive(Debug, Clone)]
pub(super) struct Touched {
    pub place: Place,
    pub receives: u32,
    pub failed: u32,
    pub released: u32,
    pub lost: u32,
    /// When it was first granted; 0 if it was not, or if that is not known.
    pub first: u64,
    /// When it is due, in the places that wait.
    pub due: u64,
    /// The session of a message set aside or parked.
    pub session: u32,
    pub timer: Option<TimerId>,
}

impl Default for Touched {
    fn default() -> Self {
        let place = Place::Ready;
        Self {
            place,
            receives: 0,
            failed: 0,
            released: 0,
            lost: 0,
            first: 0,
            due: 0,
            session: NONE,
            timer: None,
        }
    }
}

impl Touched {
    pub(super) fn first_at(&self) -> Option<Timestamp> {
        (self.first > 0).then_some(Timestamp(self.first))
    }
}

/// Where a touched message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Ready,
    /// Out, under the lease in this slot.
    Locked(u32),
    /// Waits in its place.
    Delayed,
    /// Waits beside its session, which goes on.
    Parked,
    /// Holds no place yet.
    Scheduled,
    Deferred,
}

impl Place {
    pub(super) fn state(self) -> MessageState {
        match self {
            Self::Ready => MessageState::Ready,
            Self::Locked(_) => MessageState::Locked,
            Self::Delayed | Self::Parked => MessageState::Delayed,
            Self::Scheduled => MessageState::Scheduled,
            Self::Deferred => MessageState::Deferred,
        }
    }
}

/// A message that comes into a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival<'a> {
    pub seq: u64,
    pub at: u64,
    pub due: u64,
    pub scheduled: bool,
    pub size: u32,
    pub session: Option<&'a SessionId>,
    /// Whose it is, where that counts.
    pub tenant: Option<&'a SessionId>,
    pub priority: u8,
    pub ttl_ms: Option<u64>,
    /// It comes from another queue, and may go back one day: what it remembers of its way.
    pub way: Option<&'a Way>,
}

/// What is left of a message that is gone.
pub(super) struct Gone {
    pub newest: Option<Pos>,
    pub touched: Option<Touched>,
}

impl Queue {
    pub(super) fn new(
        name: QueueName,
        spec: QueueSpec,
        dead: QueueId,
        created_at: Timestamp,
        hash_seed: u64,
    ) -> Self {
        let sessions = spec.sessions.required().then(|| Sessions::new(hash_seed));
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
            touched: fixed(),
            lanes: vec![BTreeSet::new(); lanes],
            kept: fixed(),
            expiring: BTreeSet::new(),
            own_expiries: 0,
            expire_from: 0,
            seen,
            bound_to: BTreeSet::new(),
            aside_bytes: 0,
            state_bytes: 0,
            weighed: u64::MAX,
            marking: None,
            oldest: 0,
            locked: 0,
            delayed: 0,
            scheduled: 0,
            deferred: 0,
            sessions,
            sessions_held: 0,
            totals: Totals::default(),
            waiting: VecDeque::new(),
            consumers: 0,
            dirty: false,
            expiry: None,
            idle: None,
            again: None,
            used_at: 0,
            had_consumer: false,
            connection: None,
        }
    }

    /// Answers about it wait for the disk.
    pub(super) fn durable(&self) -> bool {
        self.spec.durability == Durability::Fsync
    }

    /// Whether anything is given out.
    pub(super) fn delivers(&self) -> bool {
        !self.paused && self.spec.status.receives()
    }

    /// Refuses whoever wants to receive while nobody may.
    pub(super) fn check_receives(&self) -> Result<(), Refusal> {
        match self.spec.status.receives() {
            true => Ok(()),
            false => Err(self.disabled("nothing can be received from it")),
        }
    }

    /// Refuses whoever wants to send while nobody may.
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

    pub(super) fn place(&self, seq: u64) -> Place {
        self.touched.get(&seq).map_or(Place::Ready, |t| t.place)
    }

    /// Where the newest record of a message stands.
    pub(super) fn pos(&self, seq: u64) -> Option<Pos> {
        let (first, _) = self.index.get(seq)?;
        if self.newest.is_empty() {
            return Some(first);
        }
        Some(self.newest.get(&seq).copied().unwrap_or(first))
    }

    /// Counts a message of this size out of the place it is in and into another; ready ones are what the rest leaves.
    pub(super) fn count(&mut self, size: u64, from: Option<Place>, to: Option<Place>) {
        if let Some(counter) = from.and_then(|place| self.counter(place)) {
            *counter = counter.saturating_sub(1);
            self.aside_bytes = self.aside_bytes.saturating_sub(size);
        }
        if let Some(counter) = to.and_then(|place| self.counter(place)) {
            *counter += 1;
            self.aside_bytes += size;
        }
    }

    /// Counts a message from one place into another.
    pub(super) fn recount(&mut self, seq: u64, from: Option<Place>, to: Option<Place>) {
        let size = self.weight(seq);
        self.count(size, from, to);
        if self.fair.is_some() {
            self.count_out(self.tenant(seq), from, to);
        }
    }

    /// Counts what a tenant has out.
    fn count_out(&mut self, tenant: Option<u32>, from: Option<Place>, to: Option<Place>) {
        let (Some(fair), Some(tenant)) = (&mut self.fair, tenant) else { return };
        if matches!(from, Some(Place::Locked(_))) {
            fair.came_in(tenant);
        }
        if matches!(to, Some(Place::Locked(_))) {
            fair.went_out(tenant);
        }
    }

    /// Whose a message is; none if it came before there were tenants.
    fn tenant(&self, seq: u64) -> Option<u32> {
        self.fair.as_ref().filter(|fair| seq >= fair.from)?;
        self.index.session(seq)
    }

    /// Bytes of a message, if bytes are limited and it was looked at since they are.
    fn weight(&self, seq: u64) -> u64 {
        let counts = self.spec.bytes_max.is_some() && seq < self.weighed;
        if counts { self.index.size(seq) } else { 0 }
    }

    /// Whether all is known of its messages that its specification asks for. Until then none of them expires, makes
    /// room or goes on.
    pub(super) fn is_prepared(&self) -> bool {
        self.marking.is_none() && self.weighed == u64::MAX
    }

    /// Lets messages learn their sessions and weighs those that are aside, `left` of them; true when that is all.
    pub(super) fn prepare(&mut self, left: &mut usize) -> bool {
        while let Some((slot, from)) = self.marking {
            let Some(sessions) = self.sessions.as_ref().filter(|s| slot < s.slots()) else {
                self.marking = None;
                break;
            };
            let line = sessions.at(slot).map(|s| &s.line);
            let at = line.map_or(0, |line| line.place(from));
            let end = line.map_or(0, |line| line.len());
            for seq in (at..end).filter_map(|i| line?.get(i)).take(*left) {
                self.index.set_session(seq, slot);
                self.marking = Some((slot, seq + 1));
            }
            if end - at >= *left {
                *left = 0;
                return false;
            }
            // The session itself counts, too.
            *left -= end - at + 1;
            self.marking = Some((slot + 1, 0));
        }
        if self.touched.is_empty() {
            self.weighed = u64::MAX;
        }
        while self.weighed != u64::MAX {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            let Some(seq) = self.index.next(self.weighed) else {
                self.weighed = u64::MAX;
                break;
            };
            if self.place(seq) != Place::Ready {
                self.aside_bytes += self.index.size(seq);
            }
            self.weighed = seq + 1;
        }
        true
    }

    /// Its messages must be able to tell their sessions. True if they can at once.
    pub(super) fn must_find_sessions(&mut self) {
        if self.sessions.is_some() && self.index.lacks_sessions() {
            self.marking.get_or_insert((0, 0));
        }
    }

    fn counter(&mut self, place: Place) -> Option<&mut u64> {
        match place {
            Place::Ready => None,
            Place::Locked(_) => Some(&mut self.locked),
            Place::Delayed | Place::Parked => Some(&mut self.delayed),
            Place::Scheduled => Some(&mut self.scheduled),
            Place::Deferred => Some(&mut self.deferred),
        }
    }

    pub(super) fn ready(&self) -> u64 {
        self.index.len().saturating_sub(self.locked + self.delayed + self.scheduled + self.deferred)
    }

    /// Whether messages go on from here: then what they would be elsewhere is kept.
    pub(super) fn keeps_all(&self) -> bool {
        self.spec.forward_to.is_some() || self.name.is_inbox() || self.is_recovered()
    }

    /// Whether the session of a message counts here, or where it goes next.
    pub(super) fn orders(&self) -> bool {
        self.sessions.is_some() || self.keeps_all()
    }

    /// Whether session ids are tenants here. Where sessions or priorities are, or messages only pass or rest, they are
    /// not.
    pub(super) fn has_tenants(&self) -> bool {
        self.spec.fair
            && self.sessions.is_none()
            && self.lanes.is_empty()
            && self.owner.is_none()
            && !self.keeps_all()
    }

    /// Whether older messages go when it is full.
    pub(super) fn drops(&self) -> bool {
        self.spec.overflow != Overflow::Reject
            && (self.spec.length_max.is_some() || self.spec.bytes_max.is_some())
    }

    /// Bytes of ready messages and of session states, if bytes are limited: what its `bytes_max` is about.
    pub(super) fn limited_bytes(&self) -> u64 {
        self.index.bytes().saturating_sub(self.aside_bytes) + self.state_bytes
    }

    /// Whether its messages must tell their sessions by their sequence: those that expire, make room or go on do.
    pub(super) fn finds_sessions(&self) -> bool {
        self.sessions.is_some()
            && (self.spec.ttl_ms.is_some()
                || self.spec.forward_to.is_some()
                || self.own_expiries > 0
                || self.spec.length_max.is_some()
                || self.spec.bytes_max.is_some())
    }

    /// Puts a message into the index; its session's slot is known by then.
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
            self.fair = Some(Box::new(Fair::new(seq)));
        }
        let nobodys = self.fair.is_some().then_some(fair::NOBODY);
        self.index.push(Entry {
            seq,
            pos,
            size,
            at,
            expires: own,
            priority,
            session: slot.filter(|_| self.finds_sessions()).or(tenant).or(nobodys),
            timed: self.spec.ttl_ms.is_some(),
        });
    }

    /// Takes a message out of the index and whatever else knows it.
    pub(super) fn take_out(&mut self, seq: u64) -> Option<Gone> {
        let size = self.weight(seq);
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
        let touched = if self.touched.is_empty() { None } else { self.touched.remove(&seq) };
        let from = touched.as_ref().map(|t| t.place);
        self.count(size, from, None);
        self.count_out(tenant, from, None);
        if self.index.len() == 0 && self.fair.take().is_some() {
            self.cursor = self.next_seq;
        }
        self.returned.remove(&seq);
        if !self.kept.is_empty() {
            self.kept.remove(&seq);
        }
        Some(Gone { newest, touched })
    }

    /// Without sessions: a message is ready, for the first time or again.
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

    /// Without sessions: a message goes out, or is gone.
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

    /// Whether a message's time to live is over.
    pub(super) fn expired(&self, seq: u64, now: u64) -> bool {
        if self.spec.ttl_ms.is_none() && self.own_expiries == 0 {
            return false;
        }
        self.index.expires_at(seq, self.spec.ttl_ms).is_some_and(|at| at <= now)
    }

    /// When something of it expires next, or keys can be forgotten.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        let own = self.expiring.first().map(|&(at, _)| at);
        let head = self.spec.ttl_ms.and_then(|ttl_ms| {
            self.index.expires_at(self.index.next(self.expire_from)?, Some(ttl_ms))
        });
        let seen = self.seen.as_ref().zip(self.spec.dedup);
        let keys = seen.and_then(|(seen, dedup)| seen.forget_at(dedup.window_ms));
        [own, head, keys].into_iter().flatten().min()
    }

    /// Without priorities: the ready message that makes room for others, the next one after `after`: the oldest.
    pub(super) fn least(&mut self, after: Option<u64>) -> Option<u64> {
        if self.sessions.is_none() && (self.fair.is_none() || after.is_none()) {
            return self.oldest_ready(after, 0);
        }
        let mut seq = self.index.next(after.map_or(self.oldest, |seq| seq + 1))?;
        while self.place(seq) != Place::Ready {
            seq = self.index.next(seq + 1)?;
        }
        if after.is_none() {
            self.oldest = seq;
        }
        Some(seq)
    }

    /// The session whose line a message leaves when nobody has it.
    pub(super) fn line_of(&mut self, seq: u64) -> Option<u32> {
        self.sessions.as_ref()?;
        // In a replay all learn at once, for the sake of those that follow; else they knew before this was decided.
        if self.place(seq) == Place::Ready && self.marked_session(seq).is_none() {
            self.must_find_sessions();
            self.prepare(&mut usize::MAX.clone());
        }
        match self.place(seq) {
            Place::Ready => self.marked_session(seq),
            Place::Delayed => self.touched.get(&seq).map(|t| t.session),
            // Those that hold it, or the set aside, are told otherwise; a scheduled one has no place.
            Place::Locked(_) | Place::Parked | Place::Deferred | Place::Scheduled => None,
        }
    }

    /// After a snapshot was read: what follows from the index and the places.
    pub(super) fn restore_order(&mut self) {
        self.expiring = self.index.own_expiries().collect();
        self.own_expiries = self.expiring.len() as u64;
        if !self.lanes.is_empty() || self.fair.is_some() {
            let from = self.fair.as_ref().map_or(0, |fair| fair.from);
            let all = self.index.iter().map(|(seq, _)| seq).filter(|&seq| seq >= from);
            let ready: Vec<_> = all.filter(|&seq| self.place(seq) == Place::Ready).collect();
            ready.into_iter().for_each(|seq| self.make_ready(seq));
        }
    }

    /// After an index was read, before the places are: whether there are tenants.
    pub(super) fn restore_tenants(&mut self) {
        let from = self.index.first_with_session();
        let from = from.filter(|_| self.sessions.is_none() && self.lanes.is_empty());
        self.fair = from.map(|from| Box::new(Fair::new(from)));
    }

    /// Another specification, at a time that the journal knows.
    pub(super) fn respecify(&mut self, spec: &QueueSpec, at: u64) {
        let weighed = self.spec.bytes_max.is_some();
        Seen::respecify(&mut self.seen, self.spec.dedup, spec.dedup, at);
        self.spec = spec.clone();
        if self.is_recovered() {
            // Its own declaration may have said otherwise; that is lost.
            self.spec.sessions = malote_model::Sessions::None;
        }
        self.expire_from = 0;
        match (weighed, spec.bytes_max.is_some()) {
            (_, false) => (self.aside_bytes, self.weighed) = (0, u64::MAX),
            (false, true) => (self.aside_bytes, self.weighed) = (0, 0),
            (true, true) => {}
        }
        if self.finds_sessions() {
            self.must_find_sessions();
        }
    }

    /// The session that a message tells.
    pub(super) fn marked_session(&self, seq: u64) -> Option<u32> {
        self.index.session(seq).filter(|&slot| slot != NONE && self.sessions.is_some())
    }

    /// Drops what is gone from the front of a session's line, and puts the session into the ready ring or takes it out.
    pub(super) fn refresh_session(&mut self, slot: u32) {
        let Some(sessions) = self.sessions.as_mut() else { return };
        let Some(session) = sessions.at_mut(slot) else { return };
        let mut ready = false;
        while let Some(seq) = session.line.first() {
            let place = self.touched.get(&seq).map_or(Place::Ready, |t| t.place);
            if !self.index.contains(seq) || matches!(place, Place::Deferred | Place::Parked) {
                session.line.pop();
                continue;
            }
            ready = place == Place::Ready && session.is_free();
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
            noisy: self.fair.as_ref().map_or_else(Noisy::default, |fair| fair.noisy(self.locked)),
            quiet_oldest_at: at(quiet_oldest),
            consumers: self.consumers,
            sessions: sessions.map_or(0, |s| s.len() as u64),
            sessions_held: self.sessions_held,
            sessions_ready: sessions.map_or(0, |s| s.ready() as u64),
            totals: self.totals,
        }
    }
}
