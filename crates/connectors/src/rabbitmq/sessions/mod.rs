//! A queue with sessions: partitions with a single active consumer each, sorted here by session.
//!
//! RabbitMQ gives every partition to one of the processes that ask for it, in order; whoever has it holds its sessions
//! among its own slots, so a hold is this process's affair and ends with the channel of its partition. `partitions.rs`
//! gets and gives back partitions, `source.rs` is a session in hand, `settle.rs` ends leases.
//!
//! What was fetched of a session stays here, unsettled, while the session waits for a retry: its order is kept, and the
//! other sessions go on until what waits fills the partition's window. Bounds: a window of messages for each partition;
//! nothing is known of a session that has no message here and no holder.

mod partitions;
mod settle;
mod source;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use malote_model::{LeaseToken, SessionId, Sessions};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::partitions::{Have, Partition};
use self::source::SessionSource;
use super::convert::{Arrived, probe};
use super::publish::Parcel;
use super::topology::Topology;
use super::way::Way;
use super::{Tools, refused, wall_us};
use crate::broker::{BrokerError, Held, Source};

/// What is there now arrives within this after partitions were asked for, or counts as not there.
const NOW_FIRST: Duration = Duration::from_millis(300);
/// A session by its name: how long it takes to know that somebody else has its partition, at least.
const NAMED_WAIT_MIN: Duration = Duration::from_secs(5);
/// How long after a question of who has it the next is asked; doubled each time.
const PROBE_FIRST: Duration = Duration::from_millis(250);
const PROBE_MAX: Duration = Duration::from_secs(2);

pub(super) struct Hall {
    tools: Arc<Tools>,
    topology: Arc<Topology>,
    state: Mutex<State>,
    /// A session is ready, or was let go.
    ready: Notify,
    /// Somebody wants partitions, or nobody does any more, or one was lost.
    wanted: Arc<Notify>,
    have: watch::Sender<Have>,
}

struct State {
    partitions: Vec<Partition>,
    sessions: HashMap<SessionId, Session>,
    /// Sessions that nobody holds and that have something to hand out, in the order in which they became so.
    ring: VecDeque<SessionId>,
    leases: HashMap<LeaseToken, (SessionId, u64)>,
    holds: HashMap<LeaseToken, SessionId>,
    /// Those who wait for a session, and holds.
    demand: usize,
    idle_since: Instant,
    /// Messages that came so far: the order within a session.
    arrivals: u64,
    last_epoch: u64,
    probes: HashMap<u64, oneshot::Sender<usize>>,
    /// What failed here and was lost with its partition, by its first id.
    remembered: HashMap<String, Arrived>,
}

/// A session that has messages here, or a holder.
struct Session {
    partition: usize,
    /// In the order in which they came.
    here: BTreeMap<u64, Item>,
    out: BTreeMap<u64, (LeaseToken, Item)>,
    hold: Option<Arc<Hold>>,
    in_ring: bool,
    /// When somebody looks whether it is ready.
    looks_at: Option<Instant>,
}

/// A message, and where to settle it.
#[derive(Clone)]
struct Item {
    way: Arc<Way>,
    tag: u64,
    arrived: Arrived,
    /// It failed or waits, and only this process knows.
    altered: bool,
}

/// Messages whose failures are remembered beyond the loss of their partition.
const REMEMBERED_MAX: usize = 10_000;

/// A session in somebody's hand.
struct Hold {
    held: Held,
    lost: CancellationToken,
    came: Notify,
}

/// A reason to have partitions.
struct Demand(Arc<Hall>);

impl Demand {
    fn of(hall: &Arc<Hall>) -> Self {
        hall.state.lock().demand += 1;
        hall.wanted.notify_one();
        Self(hall.clone())
    }
}

impl Drop for Demand {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.demand -= 1;
        if state.demand == 0 {
            state.idle_since = Instant::now();
            self.0.wanted.notify_one();
        }
    }
}

impl Hall {
    pub(super) fn new(tools: Arc<Tools>, topology: Arc<Topology>) -> Arc<Self> {
        let state = State {
            partitions: (0..topology.partitions).map(|_| Partition::default()).collect(),
            sessions: HashMap::new(),
            ring: VecDeque::new(),
            leases: HashMap::new(),
            holds: HashMap::new(),
            demand: 0,
            idle_since: Instant::now(),
            arrivals: 0,
            last_epoch: 0,
            probes: HashMap::new(),
            remembered: HashMap::new(),
        };
        let wanted = Arc::new(Notify::new());
        let hall = Arc::new(Self {
            tools,
            topology,
            state: Mutex::new(state),
            ready: Notify::new(),
            wanted: wanted.clone(),
            have: watch::Sender::new(Have::Nothing),
        });
        hall.tools.io.handle.spawn(partitions::supervise(Arc::downgrade(&hall), wanted));
        hall
    }

    /// Holds the next session that is ready within `wait`.
    pub(super) async fn next(
        self: &Arc<Self>,
        wait: Duration,
    ) -> Result<Option<Box<dyn Source>>, BrokerError> {
        let demand = Demand::of(self);
        let began = Instant::now();
        let since = self.partitioned().await?;
        // What is there may still be on its way here.
        let until = (began + wait).max(since + NOW_FIRST);
        loop {
            let ready = self.ready.notified();
            if let Some(hold) = self.take_next() {
                return Ok(Some(SessionSource::boxed(demand, hold)));
            }
            if tokio::time::timeout_at(until, ready).await.is_err() {
                return Ok(None);
            }
        }
    }

    /// Holds this session, once this process has its partition and nobody else here holds it.
    pub(super) async fn named(
        self: &Arc<Self>,
        id: SessionId,
        wait: Duration,
    ) -> Result<Option<Box<dyn Source>>, BrokerError> {
        let demand = Demand::of(self);
        let until = Instant::now() + wait.max(NAMED_WAIT_MIN);
        self.partitioned().await?;
        let mut asking = Asking::new(self);
        let mut pause = PROBE_FIRST;
        loop {
            let asked = self.state.lock().take_named(&id, None);
            let look = until.min(Instant::now() + pause);
            match asked {
                Named::Taken(hold) => return Ok(Some(SessionSource::boxed(demand, hold))),
                // It is this process that has it: no need to ask around.
                Named::Held if wait.is_zero() => break,
                Named::Held => tokio::time::sleep_until(look).await,
                Named::Unknown => {
                    let ours = asking.ask(&id, pause, look).await?;
                    let taken = ours.map(|ours| self.state.lock().take_named(&id, Some(ours)));
                    if let Some(Named::Taken(hold)) = taken {
                        return Ok(Some(SessionSource::boxed(demand, hold)));
                    }
                }
            }
            if Instant::now() >= until {
                break;
            }
            pause = (pause * 2).min(PROBE_MAX);
        }
        Err(refused("session_held", format!("the session `{id}` is held by somebody else")))
    }

    /// Waits until every partition was asked for; since when.
    async fn partitioned(&self) -> Result<Instant, BrokerError> {
        let mut have = self.have.subscribe();
        // A failure from before is no answer to this question.
        let before = match &*have.borrow_and_update() {
            Have::All(since) => return Ok(*since),
            Have::Failed(number, _) => Some(*number),
            Have::Nothing => None,
        };
        loop {
            have.changed().await.map_err(|_| BrokerError::Closed)?;
            match &*have.borrow_and_update() {
                Have::All(since) => return Ok(*since),
                Have::Failed(number, error) if Some(*number) != before => return Err(error.clone()),
                Have::Failed(..) | Have::Nothing => {}
            }
        }
    }

    fn take_next(self: &Arc<Self>) -> Option<Arc<Hold>> {
        let mut state = self.state.lock();
        while let Some(id) = state.ring.pop_front() {
            if let Some(session) = state.sessions.get_mut(&id) {
                session.in_ring = false;
            }
            if state.is_ready(&id) {
                if !state.ring.is_empty() {
                    // Of several notices that nobody waited for one is kept.
                    self.ready.notify_one();
                }
                return state.hold(&id, None);
            }
            self.look_later(&mut state, &id);
        }
        None
    }

    /// Puts a session into the ring if it is ready; if it will be later, then later.
    fn look(self: &Arc<Self>, state: &mut State, id: &SessionId) {
        if state.is_ready(id) {
            if let Some(session) = state.sessions.get_mut(id).filter(|session| !session.in_ring) {
                session.in_ring = true;
                state.ring.push_back(id.clone());
                self.ready.notify_one();
            }
        } else {
            self.look_later(state, id);
        }
    }

    fn look_later(self: &Arc<Self>, state: &mut State, id: &SessionId) {
        let Some(session) = state.sessions.get_mut(id) else { return };
        if session.is_empty() {
            state.sessions.remove(id);
            return;
        }
        let Some(due) = session.due().filter(|due| *due > Instant::now()) else { return };
        if session.hold.is_some() || session.looks_at.is_some_and(|at| at <= due) {
            return;
        }
        session.looks_at = Some(due);
        let (hall, id) = (Arc::downgrade(self), id.clone());
        self.tools.io.handle.spawn(async move {
            tokio::time::sleep_until(due).await;
            let Some(hall) = hall.upgrade() else { return };
            let mut state = hall.state.lock();
            if let Some(session) = state.sessions.get_mut(&id) {
                session.looks_at = None;
                hall.look(&mut state, &id);
            }
        });
    }

    /// Ends a hold: what is out goes back into its place, uncounted.
    fn end(self: &Arc<Self>, state: &mut State, hold: &Hold) {
        hold.lost.cancel();
        let Some(id) = state.holds.remove(&hold.held.hold) else { return };
        if let Some(session) = state.sessions.get_mut(&id) {
            session.hold = None;
            for (number, (lease, item)) in std::mem::take(&mut session.out) {
                state.leases.remove(&lease);
                session.here.insert(number, item);
            }
        }
        self.look(state, &id);
        if state.partitions.iter().any(|partition| partition.leaving) {
            self.wanted.notify_one();
        }
    }

    /// Ends the hold of a session that has nothing in hand: its partition leaves, and waits for nobody who is idle.
    fn end_idle(self: &Arc<Self>, state: &mut State, id: &SessionId) {
        let session = state.sessions.get(id).filter(|session| session.out.is_empty());
        if let Some(hold) = session.and_then(|session| session.hold.clone()) {
            self.end(state, &hold);
        }
    }

    pub(super) fn renew(&self, lease: LeaseToken) -> Result<(), BrokerError> {
        let state = self.state.lock();
        let known = state.holds.contains_key(&lease) || state.leases.contains_key(&lease);
        if known { Ok(()) } else { Err(BrokerError::LockLost) }
    }

    /// What this process has of the queue: fetched ahead, and handed out.
    pub(super) fn here(&self) -> (u64, u64) {
        let state = self.state.lock();
        let (mut here, mut out) = (0, 0);
        for session in state.sessions.values() {
            here += session.here.len() as u64;
            out += session.out.len() as u64;
        }
        (here, out)
    }

    /// Whether the queue takes messages of this session.
    fn takes(&self, id: &SessionId) -> bool {
        match &self.topology.spec.sessions {
            Sessions::Fixed(ids) => ids.contains(id),
            Sessions::None | Sessions::Dynamic => true,
        }
    }
}

impl Drop for Hall {
    fn drop(&mut self) {
        self.wanted.notify_one();
    }
}

/// Asks who has a session's partition, by messages that only its receiver gets. Late answers count, too.
struct Asking<'a> {
    hall: &'a Hall,
    number: u64,
    answer: oneshot::Receiver<usize>,
}

impl<'a> Asking<'a> {
    fn new(hall: &'a Hall) -> Self {
        // Headers have signed numbers.
        let number = hall.tools.chance.draw() >> 1;
        let (to, answer) = oneshot::channel();
        hall.state.lock().probes.insert(number, to);
        Self { hall, number, answer }
    }

    /// The partition, if it is this process that has it; waits for that until `look`.
    async fn ask(
        &mut self,
        id: &SessionId,
        lives: Duration,
        look: Instant,
    ) -> Result<Option<usize>, BrokerError> {
        if self.answer.is_terminated() {
            // It was answered, and the partition lost since.
            *self = Self::new(self.hall);
        }
        let (exchange, key) = self.hall.topology.route(Some(id.as_str()));
        let lives_ms = u64::try_from(lives.as_millis()).unwrap_or(u64::MAX);
        let (properties, body) = (probe(self.number, lives_ms), bytes::Bytes::new());
        let parcel = Parcel { exchange, key, properties, body };
        self.hall.tools.publisher.publish_one(parcel).await?;
        Ok(tokio::time::timeout_at(look, &mut self.answer).await.ok().and_then(Result::ok))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.hall.state.lock().probes.remove(&self.number);
    }
}

enum Named {
    Taken(Arc<Hold>),
    Held,
    Unknown,
}

impl State {
    fn is_ready(&self, id: &SessionId) -> bool {
        let Some(session) = self.sessions.get(id) else { return false };
        let due = session.due().is_none_or(|due| due <= Instant::now());
        let leaving = self.partitions.get(session.partition).is_none_or(|one| one.leaving);
        session.hold.is_none() && !session.here.is_empty() && due && !leaving
    }

    fn is_leaving(&self, id: &SessionId) -> bool {
        let partition = self.sessions.get(id).map(|session| session.partition);
        partition.and_then(|number| self.partitions.get(number)).is_some_and(|one| one.leaving)
    }

    /// By its name; `partition` if that is known to be ours.
    fn take_named(&mut self, id: &SessionId, partition: Option<usize>) -> Named {
        let known = match self.sessions.get(id) {
            Some(session) if session.hold.is_some() => return Named::Held,
            Some(session) => Some(session.partition),
            None => partition,
        };
        let Some(partition) = known else { return Named::Unknown };
        match self.partitions.get(partition) {
            Some(one) if one.leaving => return Named::Held,
            Some(one) if one.way.is_some() => {}
            _ => return Named::Unknown,
        }
        self.hold(id, Some(partition)).map_or(Named::Unknown, Named::Taken)
    }

    fn hold(&mut self, id: &SessionId, partition: Option<usize>) -> Option<Arc<Hold>> {
        // Grows from hold to hold, also from one process to the next as far as their clocks agree.
        self.last_epoch = wall_us().max(self.last_epoch + 1);
        let number = self.sessions.get(id).map(|session| session.partition).or(partition)?;
        let way = self.partitions.get(number)?.way.as_ref()?;
        let token = LeaseToken {
            epoch: way.number,
            slot: (self.last_epoch >> 32) as u32,
            grant: self.last_epoch as u32,
            random: u32::MAX,
        };
        let held = Held { session: id.clone(), hold: token, epoch: self.last_epoch };
        let hold = Arc::new(Hold { held, lost: CancellationToken::new(), came: Notify::new() });
        let session = self.sessions.entry(id.clone()).or_insert_with(|| Session::new(number));
        session.hold = Some(hold.clone());
        self.holds.insert(token, id.clone());
        Some(hold)
    }
}

impl Session {
    fn new(partition: usize) -> Self {
        Self {
            partition,
            here: BTreeMap::new(),
            out: BTreeMap::new(),
            hold: None,
            in_ring: false,
            looks_at: None,
        }
    }

    /// When its first message may be handed out, if that has a time.
    fn due(&self) -> Option<Instant> {
        self.here.first_key_value().and_then(|(_, item)| item.arrived.not_before)
    }

    fn is_empty(&self) -> bool {
        self.hold.is_none() && self.here.is_empty() && self.out.is_empty()
    }
}
