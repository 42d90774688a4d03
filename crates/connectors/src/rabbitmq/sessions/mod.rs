//! A queue with sessions: partitions with a single active consumer each. This process sorts their messages by session.
//!
//! RabbitMQ delivers each partition, in order, to one of the processes that consume it. That process holds the
//! partition's sessions, so holds are local to the process and end with the channel of the partition. `partitions.rs`
//! acquires and returns partitions, `source.rs` is the source of a held session, and `settle.rs` settles leases.
//!
//! While a session waits for a retry, its messages stay in this process, unsettled, so that their order is kept.
//! Other sessions continue until the waiting messages fill the partition's prefetch. Memory is bounded by the
//! prefetch of each partition; sessions without messages and without a hold are forgotten.

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

use self::partitions::{Partition, PartitionStatus};
use self::source::RabbitSessionSource;
use super::convert::{InboundMessage, probe};
use super::publish::Publication;
use super::topology::QueueTopology;
use super::tracked_channel::TrackedChannel;
use super::{RabbitContext, now_us, refused};
use crate::broker::{BrokerError, SessionHold, Source};
use crate::retry_delay::RetryDelay;
use crate::system::{self, millis};

/// How long to wait for first messages after consuming began, before no session counts as ready.
const EMPTY_WAIT_FIRST: Duration = Duration::from_millis(300);
/// A named session: the least time to find out that another process has its partition.
const NAMED_WAIT_MIN: Duration = Duration::from_secs(5);
/// Pauses between probes.
const PROBE_FIRST: Duration = Duration::from_millis(250);
const PROBE_MAX: Duration = Duration::from_secs(2);

pub(super) struct PartitionedQueue {
    context: Arc<RabbitContext>,
    topology: Arc<QueueTopology>,
    state: Mutex<PartitionedState>,
    /// A session became ready.
    ready: Notify,
    /// Demand began or ended, or a partition was lost.
    wakeup: Arc<Notify>,
    partition_status: watch::Sender<PartitionStatus>,
}

struct PartitionedState {
    partitions: Vec<Partition>,
    sessions: HashMap<SessionId, SessionEntry>,
    /// Sessions with messages to deliver and without a hold, in the order in which they became ready.
    ready_ring: VecDeque<SessionId>,
    leases: HashMap<LeaseToken, (SessionId, u64)>,
    holds: HashMap<LeaseToken, SessionId>,
    /// The number of pending accepts and of holds.
    demand: usize,
    idle_since: Instant,
    /// Counts received messages: the order within a session.
    arrivals: u64,
    last_epoch: u64,
    probes: HashMap<u64, oneshot::Sender<usize>>,
    /// Failed attempts of messages whose partition was lost, by origin id.
    lost_attempts: HashMap<String, InboundMessage>,
}

/// A session with buffered messages or a hold.
struct SessionEntry {
    partition: usize,
    /// By order of arrival.
    buffered: BTreeMap<u64, SessionMessage>,
    leased: BTreeMap<u64, (LeaseToken, SessionMessage)>,
    hold: Option<Arc<ActiveHold>>,
    in_ready_ring: bool,
    /// When a task will check whether the session is ready.
    ready_check_at: Option<Instant>,
}

/// A message with its channel.
#[derive(Clone)]
struct SessionMessage {
    tracked: Arc<TrackedChannel>,
    tag: u64,
    inbound: InboundMessage,
    /// It was abandoned or delayed, which is recorded only in this process.
    changed_locally: bool,
}

/// The most messages whose failures are remembered after a partition is lost.
const LOST_ATTEMPTS_MAX: usize = 10_000;

/// A session that is held by a source.
struct ActiveHold {
    held: SessionHold,
    lost: CancellationToken,
    arrival: Notify,
}

/// While one exists, this process consumes the partitions.
struct Demand(Arc<PartitionedQueue>);

impl Demand {
    fn of(partitioned: &Arc<PartitionedQueue>) -> Self {
        partitioned.state.lock().demand += 1;
        partitioned.wakeup.notify_one();
        Self(partitioned.clone())
    }
}

impl Drop for Demand {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.demand -= 1;
        if state.demand == 0 {
            state.idle_since = Instant::now();
            self.0.wakeup.notify_one();
        }
    }
}

impl PartitionedQueue {
    pub(super) fn new(context: Arc<RabbitContext>, topology: Arc<QueueTopology>) -> Arc<Self> {
        let state = PartitionedState {
            partitions: (0..topology.partitions).map(|_| Partition::default()).collect(),
            sessions: HashMap::new(),
            ready_ring: VecDeque::new(),
            leases: HashMap::new(),
            holds: HashMap::new(),
            demand: 0,
            idle_since: Instant::now(),
            arrivals: 0,
            last_epoch: 0,
            probes: HashMap::new(),
            lost_attempts: HashMap::new(),
        };
        let wakeup = Arc::new(Notify::new());
        let partitioned = Arc::new(Self {
            context,
            topology,
            state: Mutex::new(state),
            ready: Notify::new(),
            wakeup: wakeup.clone(),
            partition_status: watch::Sender::new(PartitionStatus::Nothing),
        });
        partitioned
            .context
            .io
            .handle
            .spawn(partitions::supervise(Arc::downgrade(&partitioned), wakeup));
        partitioned
    }

    /// Holds the next session that becomes ready within `wait`.
    pub(super) async fn accept_next(
        self: &Arc<Self>,
        wait: Duration,
    ) -> Result<Option<Box<dyn Source>>, BrokerError> {
        let demand = Demand::of(self);
        let began = Instant::now();
        let since = self.wait_for_partitions().await?;
        // First messages may still be on their way.
        let until = (began + wait).max(since + EMPTY_WAIT_FIRST);
        loop {
            let ready = self.ready.notified();
            if let Some(hold) = self.take_next() {
                return Ok(Some(RabbitSessionSource::boxed(demand, hold)));
            }
            if tokio::time::timeout_at(until, ready).await.is_err() {
                return Ok(None);
            }
        }
    }

    /// Holds this session, once this process has its partition and no other source holds it.
    pub(super) async fn accept_named(
        self: &Arc<Self>,
        id: SessionId,
        wait: Duration,
    ) -> Result<Option<Box<dyn Source>>, BrokerError> {
        let demand = Demand::of(self);
        let until = Instant::now() + wait.max(NAMED_WAIT_MIN);
        self.wait_for_partitions().await?;
        let mut owner_probe = OwnerProbe::new(self);
        let mut backoff = RetryDelay::new(PROBE_FIRST, PROBE_MAX);
        loop {
            let accepted = self.state.lock().take_named(&id, None);
            let pause = backoff.pause();
            let deadline = until.min(Instant::now() + pause);
            match accepted {
                NamedAccept::Taken(hold) => {
                    return Ok(Some(RabbitSessionSource::boxed(demand, hold)));
                }
                // This process has the partition, so no probe is needed.
                NamedAccept::AlreadyHeld if wait.is_zero() => break,
                NamedAccept::AlreadyHeld => tokio::time::sleep_until(deadline).await,
                NamedAccept::Unknown => {
                    let own_partition = owner_probe.publish(&id, pause, deadline).await?;
                    let taken = own_partition.map(|own_partition| {
                        self.state.lock().take_named(&id, Some(own_partition))
                    });
                    if let Some(NamedAccept::Taken(hold)) = taken {
                        return Ok(Some(RabbitSessionSource::boxed(demand, hold)));
                    }
                }
            }
            if Instant::now() >= until {
                break;
            }
        }
        Err(refused("session_held", format!("session `{id}` is held by another receiver")))
    }

    /// Waits until this process consumes all partitions. Returns since when it does.
    async fn wait_for_partitions(&self) -> Result<Instant, BrokerError> {
        let mut partition_status = self.partition_status.subscribe();
        // Errors of earlier attempts are ignored.
        let before = match &*partition_status.borrow_and_update() {
            PartitionStatus::All(since) => return Ok(*since),
            PartitionStatus::Failed(number, _) => Some(*number),
            PartitionStatus::Nothing => None,
        };
        loop {
            partition_status.changed().await.map_err(|_| BrokerError::Closed)?;
            match &*partition_status.borrow_and_update() {
                PartitionStatus::All(since) => return Ok(*since),
                PartitionStatus::Failed(number, error) if Some(*number) != before => {
                    return Err(error.clone());
                }
                PartitionStatus::Failed(..) | PartitionStatus::Nothing => {}
            }
        }
    }

    fn take_next(self: &Arc<Self>) -> Option<Arc<ActiveHold>> {
        let mut state = self.state.lock();
        while let Some(id) = state.ready_ring.pop_front() {
            if let Some(session) = state.sessions.get_mut(&id) {
                session.in_ready_ring = false;
            }
            if state.is_ready(&id) {
                if !state.ready_ring.is_empty() {
                    // `Notify` stores only one wakeup, so pass it on.
                    self.ready.notify_one();
                }
                return state.hold(&id, None);
            }
            self.schedule_ready_check(&mut state, &id);
        }
        None
    }

    /// Adds a session to the ready ring if it is ready. If it becomes ready later, schedules a check.
    fn update_ready(self: &Arc<Self>, state: &mut PartitionedState, id: &SessionId) {
        if state.is_ready(id) {
            if let Some(session) =
                state.sessions.get_mut(id).filter(|session| !session.in_ready_ring)
            {
                session.in_ready_ring = true;
                state.ready_ring.push_back(id.clone());
                self.ready.notify_one();
            }
        } else {
            self.schedule_ready_check(state, id);
        }
    }

    fn schedule_ready_check(self: &Arc<Self>, state: &mut PartitionedState, id: &SessionId) {
        let Some(session) = state.sessions.get_mut(id) else { return };
        if session.is_empty() {
            state.sessions.remove(id);
            return;
        }
        let Some(due) = session.due().filter(|due| *due > Instant::now()) else { return };
        if session.hold.is_some() || session.ready_check_at.is_some_and(|at| at <= due) {
            return;
        }
        session.ready_check_at = Some(due);
        let (partitioned, id) = (Arc::downgrade(self), id.clone());
        self.context.io.handle.spawn(async move {
            tokio::time::sleep_until(due).await;
            let Some(partitioned) = partitioned.upgrade() else { return };
            let mut state = partitioned.state.lock();
            if let Some(session) = state.sessions.get_mut(&id) {
                session.ready_check_at = None;
                partitioned.update_ready(&mut state, &id);
            }
        });
    }

    /// Ends a hold. Leased messages return to their positions, uncounted.
    fn end_hold(self: &Arc<Self>, state: &mut PartitionedState, hold: &ActiveHold) {
        hold.lost.cancel();
        let Some(id) = state.holds.remove(&hold.held.hold) else { return };
        if let Some(session) = state.sessions.get_mut(&id) {
            session.hold = None;
            for (number, (lease, item)) in std::mem::take(&mut session.leased) {
                state.leases.remove(&lease);
                session.buffered.insert(number, item);
            }
        }
        self.update_ready(state, &id);
        if state.partitions.iter().any(|partition| partition.leaving) {
            self.wakeup.notify_one();
        }
    }

    /// Ends the hold of a session without leased messages, because its partition is leaving.
    fn end_hold_if_idle(self: &Arc<Self>, state: &mut PartitionedState, id: &SessionId) {
        let session = state.sessions.get(id).filter(|session| session.leased.is_empty());
        if let Some(hold) = session.and_then(|session| session.hold.clone()) {
            self.end_hold(state, &hold);
        }
    }

    pub(super) fn renew(&self, lease: LeaseToken) -> Result<(), BrokerError> {
        let state = self.state.lock();
        let known = state.holds.contains_key(&lease) || state.leases.contains_key(&lease);
        if known { Ok(()) } else { Err(BrokerError::LockLost) }
    }

    /// Messages of the queue in this process: prefetched, and leased.
    pub(super) fn local_counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        let (mut prefetched, mut leased) = (0, 0);
        for session in state.sessions.values() {
            prefetched += session.buffered.len() as u64;
            leased += session.leased.len() as u64;
        }
        (prefetched, leased)
    }

    /// Whether the queue accepts messages of this session.
    fn accepts_session(&self, id: &SessionId) -> bool {
        match &self.topology.spec.sessions {
            Sessions::Fixed(ids) => ids.contains(id),
            Sessions::None | Sessions::Dynamic => true,
        }
    }
}

impl Drop for PartitionedQueue {
    fn drop(&mut self) {
        self.wakeup.notify_one();
    }
}

/// Finds out whether this process has a session's partition, by publishing probes that only the partition's consumer
/// receives. Late answers count as well.
struct OwnerProbe<'a> {
    partitioned: &'a PartitionedQueue,
    number: u64,
    answer: oneshot::Receiver<usize>,
}

impl<'a> OwnerProbe<'a> {
    fn new(partitioned: &'a PartitionedQueue) -> Self {
        // Header numbers are signed.
        let number = system::random_u64() >> 1;
        let (to, answer) = oneshot::channel();
        partitioned.state.lock().probes.insert(number, to);
        Self { partitioned, number, answer }
    }

    /// Publishes a probe. Returns the partition if it arrives in this process before `deadline`.
    async fn publish(
        &mut self,
        id: &SessionId,
        lives: Duration,
        deadline: Instant,
    ) -> Result<Option<usize>, BrokerError> {
        if self.answer.is_terminated() {
            // An earlier probe was answered, but the partition was lost since.
            *self = Self::new(self.partitioned);
        }
        let (exchange, key) = self.partitioned.topology.route(Some(id.as_str()));
        let (properties, body) = (probe(self.number, millis(lives)), bytes::Bytes::new());
        let publication = Publication { exchange, key, properties, body };
        self.partitioned.context.publisher.publish_one(publication).await?;
        Ok(tokio::time::timeout_at(deadline, &mut self.answer).await.ok().and_then(Result::ok))
    }
}

impl Drop for OwnerProbe<'_> {
    fn drop(&mut self) {
        self.partitioned.state.lock().probes.remove(&self.number);
    }
}

enum NamedAccept {
    Taken(Arc<ActiveHold>),
    AlreadyHeld,
    Unknown,
}

impl PartitionedState {
    fn is_ready(&self, id: &SessionId) -> bool {
        let Some(session) = self.sessions.get(id) else { return false };
        let due = session.due().is_none_or(|due| due <= Instant::now());
        let leaving = self.partitions.get(session.partition).is_none_or(|one| one.leaving);
        session.hold.is_none() && !session.buffered.is_empty() && due && !leaving
    }

    fn is_leaving(&self, id: &SessionId) -> bool {
        let partition = self.sessions.get(id).map(|session| session.partition);
        partition.and_then(|number| self.partitions.get(number)).is_some_and(|one| one.leaving)
    }

    /// Holds a session by name; `partition` is set if this process is known to have it.
    fn take_named(&mut self, id: &SessionId, partition: Option<usize>) -> NamedAccept {
        let known = match self.sessions.get(id) {
            Some(session) if session.hold.is_some() => return NamedAccept::AlreadyHeld,
            Some(session) => Some(session.partition),
            None => partition,
        };
        let Some(partition) = known else { return NamedAccept::Unknown };
        match self.partitions.get(partition) {
            Some(one) if one.leaving => return NamedAccept::AlreadyHeld,
            Some(one) if one.tracked.is_some() => {}
            _ => return NamedAccept::Unknown,
        }
        self.hold(id, Some(partition)).map_or(NamedAccept::Unknown, NamedAccept::Taken)
    }

    fn hold(&mut self, id: &SessionId, partition: Option<usize>) -> Option<Arc<ActiveHold>> {
        // Grows with every hold, also across processes as far as their clocks agree.
        self.last_epoch = now_us().max(self.last_epoch + 1);
        let number = self.sessions.get(id).map(|session| session.partition).or(partition)?;
        let tracked = self.partitions.get(number)?.tracked.as_ref()?;
        let token = LeaseToken {
            epoch: tracked.number,
            slot: (self.last_epoch >> 32) as u32,
            grant: self.last_epoch as u32,
            random: u32::MAX,
        };
        let held = SessionHold { session: id.clone(), hold: token, epoch: self.last_epoch };
        let hold =
            Arc::new(ActiveHold { held, lost: CancellationToken::new(), arrival: Notify::new() });
        let session = self.sessions.entry(id.clone()).or_insert_with(|| SessionEntry::new(number));
        session.hold = Some(hold.clone());
        self.holds.insert(token, id.clone());
        Some(hold)
    }
}

impl SessionEntry {
    fn new(partition: usize) -> Self {
        Self {
            partition,
            buffered: BTreeMap::new(),
            leased: BTreeMap::new(),
            hold: None,
            in_ready_ring: false,
            ready_check_at: None,
        }
    }

    /// When the first message is due, if it is delayed.
    fn due(&self) -> Option<Instant> {
        self.buffered.first_key_value().and_then(|(_, item)| item.inbound.not_before)
    }

    fn is_empty(&self) -> bool {
        self.hold.is_none() && self.buffered.is_empty() && self.leased.is_empty()
    }
}
