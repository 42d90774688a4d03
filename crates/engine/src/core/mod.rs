//! The deterministic core: all queue semantics, without I/O, clock or randomness.
//!
//! A [`Turn`] *decides* (`admin`, `remove`, `send`, `consume`, `settle`, `session_holds`, `expire`). Each decision is
//! an event that is journaled and then *applied* (`apply`, `apply_leases`). Only `apply` changes durable state, and it
//! cannot fail; a replay is `apply` alone. Everything for callers is an [`Output`] with the journal position that it
//! depends on.

mod admin;
mod apply;
mod apply_leases;
mod background;
mod column;
mod connections;
mod consistency;
mod consume;
mod consumers;
mod dedup;
mod digest;
mod enqueue;
mod expire;
mod fair;
mod forward;
mod index;
mod leases;
mod lifecycle;
mod orphans;
mod purge;
mod queue;
mod ready;
mod relocate;
mod remove;
mod resolve;
mod route;
mod send;
mod seq_list;
mod session_holds;
mod sessions;
mod settle;
mod snapshot;
#[cfg(test)]
mod tests;
mod timers;
mod topic;
mod tracked;
mod transaction;
mod ttl;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::BuildHasher;

use hashbrown::HashMap;
use malote_model::{LeaseToken, QueueName, Refusal, Timestamp, TopicName};

use self::background::{BackgroundWork, SLICE_MAX};
use self::leases::Leases;
use self::queue::Queue;
pub use self::relocate::{LiveRecord, RecordCopy, RecordOwner, Relocation};
use self::timers::TimerWheel;
use self::topic::Topic;
use crate::codec::{encode_event, kind_of};
use crate::command::{Command, ConnectionId, ConsumerId, InboxItem, Notice, Reply};
use crate::event::{Event, MessageRef, QueueId};
use crate::journal::{AppendError, Appender, Pos, Replay as _, blocked_by};

/// All state of the engine.
pub struct Core {
    queues: HashMap<QueueId, Box<Queue>, FixedState>,
    names: BTreeMap<QueueName, QueueId>,
    next_queue: u32,
    leases: Leases,
    topics: HashMap<QueueId, Box<Topic>, FixedState>,
    topic_names: BTreeMap<TopicName, QueueId>,
    /// The older record under each overlay. All of them are live.
    base_records: HashMap<Pos, BaseRecord, FixedState>,
    /// The number of rules of all topics.
    rules: usize,
    /// The number of de-duplication keys of all queues and topics.
    dedup_keys: usize,
    /// The queues whose dead letters go to the queue of this name.
    dead_letter_sources: BTreeMap<QueueName, BTreeSet<QueueId>>,
    epoch: u32,
    /// The latest time in any event. The clock starts no earlier.
    last_at: u64,
    hash_seed: u64,
    /// Records of missing queues, found by replay. Not part of the state.
    orphans: orphans::Orphans,
    #[cfg(test)]
    processed_items: usize,
    /// Results of comparing digests during a replay.
    checks: digest::DigestChecks,
    /// State that is not durable and starts empty with every start; `None` during a replay.
    live: Option<LiveState>,
}

/// The older record under an overlay, and the number of messages that use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BaseRecord {
    from: Pos,
    users: u32,
}

struct LiveState {
    timers: TimerWheel<Timer>,
    /// Timers that fired and were not handled yet. While the journal has no room, they wait until `due_held`.
    due: VecDeque<Timer>,
    due_held: Option<u64>,
    /// Work done in slices, and work that is blocked because the journal has no room.
    work: VecDeque<BackgroundWork>,
    blocked: Vec<BackgroundWork>,
    consumers: HashMap<ConsumerId, consumers::Consumer, FixedState>,
    connections: HashMap<ConnectionId, connections::ConnectionState, FixedState>,
    /// Queues, and sessions with a holder, that may have messages to deliver.
    dirty: Vec<QueueId>,
    dirty_sessions: Vec<(QueueId, u32)>,
    /// Queues that may exceed their limits, and queues whose last consumer left.
    over_limit: Vec<QueueId>,
    unused: Vec<QueueId>,
    /// Messages whose chain of overlays is long enough to store them again.
    to_rewrite: Vec<MessageRef>,
    /// What is retried because the journal had no room. One timer serves all of it.
    stalled: BTreeSet<Stalled>,
    random: u64,
    /// Where the next digest continues.
    progress: digest::DigestProgress,
}

/// Something that is retried because the journal had no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stalled {
    /// Delivery from a queue.
    Queue(QueueId),
    /// Delivery to the holder of the session in this slot.
    Session(QueueId, u32),
    /// Ending what is bound to a connection; true for a clean close.
    Connection(ConnectionId, bool),
    /// A slice of the work of `background.rs`.
    Work,
    /// Timers that fired.
    Due,
}

/// The purpose of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    Lease(u32),
    Due(MessageRef),
    Wait(ConsumerId),
    /// Messages or keys of a queue expire.
    Expiry(QueueId),
    /// A queue may have been idle for too long.
    Idle(QueueId),
    /// A queue or topic retries forwarding or routing.
    Retry(QueueId),
    Stalled,
}

/// An effect that may take place once the journal has reached its positions.
#[derive(Debug)]
pub struct Output {
    pub effect: Effect,
    /// The position that must be durable first.
    pub durable: Pos,
    /// The position that must be written first.
    pub written: Pos,
}

/// A reply, a notice or a request to the shell.
#[derive(Debug)]
pub enum Effect {
    /// The reply to the request with this number.
    Request(u64, Result<Reply, Refusal>),
    /// A notice to a consumer of a connection.
    Consumer(ConsumerId, Notice),
    /// Messages of a topic's inbox to read and to send back with `Command::Route`.
    Route(QueueId, Vec<InboxItem>),
    /// Messages to read and to store again with `Command::Relocate`.
    Rewrite(Vec<LiveRecord>),
}

/// One batch of work at one time: commands, then due timers, then deliveries.
pub struct Turn<'a> {
    pub(super) core: &'a mut Core,
    pub(super) log: &'a mut Appender,
    pub(super) now: Timestamp,
    pub(super) out: &'a mut Vec<Output>,
    /// False while the last journal segments are reserved for settling.
    pub(super) publish_allowed: bool,
    /// If set, tokens of other queues are treated as lost.
    scope: Option<QueueId>,
    eager: bool,
    open: bool,
    /// The size limit of the open group.
    room: usize,
    /// How many more messages, sessions or leases this step may process, besides what was asked for.
    left: usize,
}

/// Space for a frame besides what is counted separately: all its numbers, a session id and a key of 512 bytes each, and
/// a queue name of up to 403 bytes. A group that exceeds its reserved space is a broken invariant.
const FRAME_ROOM: usize = 2048;

/// Space for a record that contains only numbers, such as a renewed lease.
const SMALL_ROOM: usize = 64;

impl Core {
    /// An empty core. The seed only affects hash tables, nothing visible.
    pub fn new(hash_seed: u64) -> Self {
        Self {
            queues: fixed(),
            names: BTreeMap::new(),
            next_queue: 1,
            leases: Leases::default(),
            topics: fixed(),
            topic_names: BTreeMap::new(),
            base_records: fixed(),
            rules: 0,
            dedup_keys: 0,
            dead_letter_sources: BTreeMap::new(),
            #[cfg(test)]
            processed_items: 0,
            epoch: 0,
            last_at: 0,
            hash_seed,
            orphans: orphans::Orphans::default(),
            checks: digest::DigestChecks::default(),
            live: None,
        }
    }

    /// The latest time in the journal. The clock starts no earlier.
    pub fn last_at(&self) -> Timestamp {
        Timestamp(self.last_at)
    }

    /// Ends the replay and begins a new epoch. Its record must be durable before anything is served.
    pub fn go_live(
        &mut self,
        log: &mut Appender,
        now: Timestamp,
        random: u64,
    ) -> Result<(), Refusal> {
        self.leases.tidy();
        self.live = Some(LiveState {
            timers: TimerWheel::new(now.0),
            due: VecDeque::new(),
            due_held: None,
            work: VecDeque::new(),
            blocked: Vec::new(),
            consumers: fixed(),
            connections: fixed(),
            dirty: Vec::new(),
            dirty_sessions: Vec::new(),
            over_limit: Vec::new(),
            to_rewrite: Vec::new(),
            unused: Vec::new(),
            stalled: BTreeSet::new(),
            random,
            progress: digest::DigestProgress::default(),
        });
        let mut out = Vec::new();
        let mut turn = Turn::new(self, log, now, &mut out, true);
        turn.begin(FRAME_ROOM)?;
        let epoch = turn.core.epoch + 1;
        turn.commit(Event::Booted { epoch, at: now }, false);
        turn.end();
        turn.remove_temporary()?;
        self.set_timers(now);
        Ok(())
    }

    /// The number of de-duplication keys, as counted and as held by queues and topics. Both must be equal.
    pub fn keys(&self) -> (usize, usize) {
        let queues = self.queues.values().filter_map(|q| q.seen.as_ref());
        let topics = self.topics.values().filter_map(|t| t.seen.as_ref());
        (self.dedup_keys, queues.chain(topics).map(|seen| seen.len()).sum())
    }

    /// When the next timer may fire.
    pub fn next_wake(&self) -> Option<Timestamp> {
        if self.is_busy() {
            return Some(self.last_at());
        }
        self.live.as_ref()?.timers.next_wake().map(Timestamp)
    }

    fn queue(&self, name: &QueueName) -> Result<(QueueId, &Queue), Refusal> {
        let missing = || Refusal::QueueNotFound { queue: name.clone() };
        let id = *self.names.get(name).ok_or_else(missing)?;
        Ok((id, self.queues.get(&id).ok_or_else(missing)?))
    }

    fn live(&mut self) -> &mut LiveState {
        self.live.as_mut().expect("a turn is taken only after the replay")
    }
}

impl<'a> Turn<'a> {
    pub fn new(
        core: &'a mut Core,
        log: &'a mut Appender,
        now: Timestamp,
        out: &'a mut Vec<Output>,
        publish_allowed: bool,
    ) -> Self {
        let (scope, eager, open, room, left) = (None, false, false, 0, SLICE_MAX);
        Self { core, log, now, out, publish_allowed, scope, eager, open, room, left }
    }

    /// Decides one command and queues its reply.
    pub fn command(&mut self, request: u64, command: Command) {
        self.left = SLICE_MAX;
        let decided = self.decide(request, command);
        self.scope = None;
        self.end();
        self.enforce_limits();
        match decided {
            Ok(Some((reply, needs))) => self.answer(request, Ok(reply), needs),
            Ok(None) => {}
            // A refusal depends on everything decided before it.
            Err(refusal) => self.answer(request, Err(refusal), WaitFor::Settled),
        }
    }

    fn decide(&mut self, request: u64, command: Command) -> Decided {
        if let Some(queue) = self.must_prepare(&command) {
            self.core.add_background_work(BackgroundWork::Command(
                queue,
                request,
                Box::new(command),
            ));
            return Ok(None);
        }
        match command {
            Command::Declare { name, spec, connection } => self.declare(name, spec, connection),
            Command::Update { name, spec } => self.update(name, spec),
            Command::Delete { name } => self.delete(&name),
            Command::Purge { queue, leased } => self.purge(request, queue, leased),
            Command::PurgeThese { queue, items } => self.purge_these(&queue, items),
            Command::CompleteLate { queue, items } => self.complete_late(&queue, &items),
            Command::Pause { queue, paused } => self.pause(&queue, paused),
            Command::Send { items } => {
                let (receipts, needs) = self.send(items.into())?;
                Ok(Some((Reply::Sent(receipts.into_vec()), needs)))
            }
            Command::SendEach { sends } => Ok(Some(self.send_each(sends))),
            Command::Commit { work } => self.transact(work),
            Command::Cancel { from, seqs } => self.cancel(&from, &seqs),
            Command::Attach(attach) => self.attach(request, attach),
            Command::Credit { consumer, credit, replace } => self.credit(consumer, credit, replace),
            Command::Detach { consumer } => self.detach(consumer),
            Command::Disconnect { connection, clean } => self.disconnect(connection, clean),
            Command::ReceiveDeferred(receive) => self.receive_deferred(receive),
            Command::Within { queue, command } => {
                self.scope = Some(self.core.queue(&queue)?.0);
                self.decide(request, *command)
            }
            Command::Settle { leases, settlement, state } => {
                self.settle(&leases, settlement, state)
            }
            Command::Damaged { leases } => self.damaged(leases),
            Command::Renew { leases, lock_ms } => self.renew(&leases, lock_ms),
            Command::Accept(accept) => self.accept(request, accept),
            Command::ReleaseSession { hold } => self.release_session(hold),
            Command::SetState { change } => self.set_state(change),
            Command::GetState { queue, session, hold } => self.get_state(&queue, &session, hold),
            Command::BreakSession { queue, session } => self.break_session(&queue, &session),
            Command::Move { from, items, why } => self.move_messages(&from, items, why),
            Command::Replace { from, seq, to, message } => self.replace(&from, seq, &to, message),
            Command::DeclareTopic { name, spec } => self.declare_topic(name, spec),
            Command::UpdateTopic { name, spec } => self.update_topic(name, spec),
            Command::DeleteTopic { name } => self.delete_topic(&name),
            Command::LabelTopic { name, labels } => self.label_topic(&name, labels),
            Command::Subscribe { name, spec, rules } => self.subscribe(name, spec, rules),
            Command::Bind { topic, target, rule } => self.bind_rule(&topic, target, rule),
            Command::Rebind { topic, target, rule } => self.rebind_rule(&topic, target, rule),
            Command::Unbind { topic, target, rule } => self.unbind_rule(&topic, target, &rule),
            Command::Route { topic, items } => self.route(topic, items),
            Command::DescribeTopic { name } => self.describe_topic(&name),
            Command::ListTopics { after, max } => {
                Ok(Some((self.list_topics(after.as_ref(), max), WaitFor::Settled)))
            }
            Command::Rules { topic, target, after, max } => {
                self.list_rules(&topic, target.as_ref(), after.as_ref(), max)
            }
            Command::Peek(peek) => self.peek(&peek),
            Command::Describe { queue } => self.describe(&queue),
            Command::List { after, max } => {
                Ok(Some((self.list(after.as_ref(), max), WaitFor::Settled)))
            }
            Command::Resolve { name } => {
                Ok(Some((Reply::Resolved(self.core.resolve(&name)), WaitFor::Settled)))
            }
            Command::Sessions { queue, from, max } => self.list_sessions(&queue, from, max),
            Command::Session { queue, session } => self.describe_session(&queue, &session),
            Command::Relocate { items } => self.relocate(items),
            Command::LiveBytes => self.live_bytes(),
            Command::Locate { leases } => self.locate(&leases),
            Command::Save => {
                let mut body = Vec::new();
                self.core.save(&mut body);
                let covered = self.log.end_pos();
                Ok(Some((Reply::Saved { covered, body }, WaitFor::Settled)))
            }
            Command::Mark => {
                self.log.mark();
                Ok(Some((Reply::Done, WaitFor::Settled)))
            }
        }
    }

    /// Opens a journal group with space for `bytes`. From here on, positions are known as frames are added.
    fn begin(&mut self, bytes: usize) -> Result<(), Refusal> {
        assert!(!self.open, "groups do not nest");
        self.log.begin_with_room(bytes).map_err(|error| match error {
            AppendError::TooLarge { bytes_max, .. } => {
                let (what, limit) = ("bytes of journal for one request", bytes_max as u64);
                Refusal::BatchTooLarge { what, limit }
            }
            AppendError::NoSegment(error) => no_segment(blocked_by(&error)),
        })?;
        (self.open, self.eager, self.room) = (true, false, bytes);
        Ok(())
    }

    /// Journals an event and applies it. A `lazy` event is synced with the next commit.
    fn commit(&mut self, event: Event, lazy: bool) -> Pos {
        assert!(self.open, "events belong to a group");
        self.eager |= !lazy;
        let pos = self.log.frame_at(kind_of(&event), |out| encode_event(out, &event));
        self.core.apply(pos, &event);
        pos
    }

    /// Closes the group, if one is open.
    fn end(&mut self) {
        if self.open {
            self.open = false;
            // In production, this is fatal only at the end of a segment.
            debug_assert!(self.log.group_bytes() <= self.room, "a group outgrew its room");
            self.log.end_group(!self.eager);
        }
    }

    /// Why sending is refused while `publish_allowed` is false.
    fn no_publishing(&self) -> Refusal {
        no_segment(self.log.blocked_by())
    }

    fn answer(&mut self, request: u64, answer: Result<Reply, Refusal>, needs: WaitFor) {
        let (durable, written) = self.marks(needs);
        self.out.push(Output { effect: Effect::Request(request, answer), durable, written });
    }

    /// The positions that an output waits for. The group that it depends on must be closed.
    fn marks(&self, needs: WaitFor) -> (Pos, Pos) {
        match needs {
            WaitFor::Settled => (self.log.last_eager(), Pos::ZERO),
            WaitFor::Durable => (self.log.end_pos(), Pos::ZERO),
            WaitFor::Written => (Pos::ZERO, self.log.end_pos()),
            WaitFor::Granted(durable) => (durable, self.log.end_pos()),
        }
    }

    /// The lease of a token, if it is within the scope of the command.
    fn lease_of(&self, token: LeaseToken) -> Option<&leases::Lease> {
        let lease = self.core.leases.find(token)?;
        // Leases of a deleted queue are removed in slices, but are invalid at once.
        let live = self.core.live.as_ref();
        let there = live.is_some_and(|live| live.work.is_empty())
            || self.core.queues.contains_key(&lease.queue);
        (there && self.scope.is_none_or(|scope| lease.queue == scope)).then_some(lease)
    }

    /// A token for the `nth` lease that this event grants.
    fn token(&mut self, nth: usize) -> LeaseToken {
        let (slot, grant) = self.core.leases.upcoming(nth);
        let epoch = self.core.epoch;
        let live = self.core.live();
        live.random = live.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = live.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        LeaseToken { epoch, slot, grant, random: (mixed ^ (mixed >> 31)) as u32 }
    }
}

/// The refusal if no journal segment can be created.
fn no_segment(why: Option<String>) -> Refusal {
    why.map_or(Refusal::DiskFull, |why| Refusal::NoSegment { why })
}

/// What a reply waits for.
#[derive(Debug, Clone, Copy)]
enum WaitFor {
    /// Everything decided so far, except lazy records, must be durable.
    Settled,
    /// The group that was just closed must be durable.
    Durable,
    /// The group that was just closed must be written.
    Written,
    /// The group that was just closed must be written, and this position must be durable.
    Granted(Pos),
}

impl WaitFor {
    fn of(durable: bool) -> Self {
        if durable { Self::Durable } else { Self::Written }
    }
}

/// A reply now, a reply later (`None`), or a refusal.
type Decided = Result<Option<(Reply, WaitFor)>, Refusal>;

/// A hasher without a random seed, so that runs are reproducible. Its keys are numbers that the engine chose.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FixedState;

impl BuildHasher for FixedState {
    type Hasher = FixedHasher;
    fn build_hasher(&self) -> FixedHasher {
        FixedHasher(0)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct FixedHasher(u64);

impl std::hash::Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        // The table uses bits from both ends.
        self.0 ^ (self.0 >> 32)
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

fn fixed<K, V>() -> HashMap<K, V, FixedState> {
    HashMap::with_hasher(FixedState)
}
