//! The deterministic core: all queue semantics, no I/O, no clock, no chance of its own.
//!
//! A [`Turn`] *decides* (`admin`, `remove`, `send`, `consume`, `settle`, `hold`, `expire`), each step yielding an event that is
//! journaled and then *applied* (`apply`). Only `apply` changes durable state, and it cannot fail; a replay is `apply`
//! alone. What must be said to callers is an [`Output`] with the journal position it rests on.

mod admin;
mod apply;
mod audit;
mod column;
mod connected;
mod consume;
mod dedup;
mod digest;
mod enqueue;
mod expire;
mod fair;
mod forward;
mod held;
mod hold;
mod index;
mod leases;
mod lifecycle;
mod line;
mod orphans;
mod purge;
mod queue;
mod ready;
mod relocate;
mod remove;
mod resolve;
mod route;
mod send;
mod sessions;
mod settle;
mod snapshot;
#[cfg(test)]
mod tests;
mod timers;
mod topic;
mod transact;
mod ttl;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::BuildHasher;

use hashbrown::HashMap;
use malote_model::{LeaseToken, QueueName, Refusal, Timestamp, TopicName};

use self::leases::Leases;
use self::queue::Queue;
pub use self::relocate::{Copied, Relocation, Resident, Whose};
use self::timers::Wheel;
use self::topic::Topic;
use self::work::{SLICE_MAX, Work};
use crate::codec::{encode_event, kind_of};
use crate::command::{Command, ConnectionId, ConsumerId, Notice, Reply, ToRoute};
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
    /// Records that lie over others, and over which: all of them are live.
    under: HashMap<Pos, Under, FixedState>,
    /// Rules of all topics.
    rules: usize,
    /// Keys that all queues remember.
    seen_keys: usize,
    /// Queues whose dead letters go to a queue of this name.
    aimed_at: BTreeMap<QueueName, BTreeSet<QueueId>>,
    epoch: u32,
    /// The latest time in any event: the clock starts no earlier.
    last_at: u64,
    hash_seed: u64,
    /// What replay found missing; not part of the state.
    orphans: orphans::Orphans,
    #[cfg(test)]
    touched_items: usize,
    /// What a replay found by comparing digests.
    checks: digest::Checks,
    /// Everything below is not durable: it begins anew with every start.
    live: Option<Live>,
}

/// What a record lies over, and how many messages need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Under {
    from: Pos,
    users: u32,
}

struct Live {
    timers: Wheel<Timer>,
    /// Timers that fired and were not dealt with yet, and until when none of them is for want of room.
    due: VecDeque<Timer>,
    due_held: Option<u64>,
    /// What is done a slice at a time, and what of it found no room in the journal.
    work: VecDeque<Work>,
    blocked: Vec<Work>,
    consumers: HashMap<ConsumerId, consume::Consumer, FixedState>,
    connections: HashMap<ConnectionId, connected::Connected, FixedState>,
    /// Queues that may have something to deliver, and sessions whose holder may.
    dirty: Vec<QueueId>,
    dirty_sessions: Vec<(QueueId, u32)>,
    /// Queues that may hold more than they should, and queues whose last consumer left.
    overfull: Vec<QueueId>,
    leaving: Vec<QueueId>,
    /// Messages under so many records that they should be stored anew.
    deep: Vec<MessageRef>,
    /// What found no room in the journal and is tried again, all of it by one timer.
    stalled: BTreeSet<Stalled>,
    random: u64,
    /// Where the next digest continues.
    rounds: digest::Rounds,
}

/// Something that found no room in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stalled {
    /// Delivery of a queue.
    Queue(QueueId),
    /// Delivery to the holder of the session in a slot.
    Session(QueueId, u32),
    /// The end of what was bound to a connection; true if it was closed and not lost.
    Connection(ConnectionId, bool),
    /// Work that is done a slice at a time.
    Work,
    /// Timers that fired.
    Due,
}

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    Lease(u32),
    Due(MessageRef),
    Wait(ConsumerId),
    /// Something of a queue expires.
    Expiry(QueueId),
    /// A queue may have been idle for too long.
    Idle(QueueId),
    /// What a queue could not send on.
    Again(QueueId),
    Stalled,
}

/// Something to say, once the journal is far enough.
#[derive(Debug)]
pub struct Output {
    /// To whom.
    pub to: To,
    /// Not before this much is durable.
    pub durable: Pos,
    /// Not before this much is written.
    pub written: Pos,
}

/// Whom an output is for, and what it says.
#[derive(Debug)]
pub enum To {
    /// The answer to the request with this number.
    Request(u64, Result<Reply, Refusal>),
    /// A notice to a consumer of a connection.
    Consumer(ConsumerId, Notice),
    /// Messages of a topic's inbox to read and to bring back with `Command::Route`.
    Route(QueueId, Vec<ToRoute>),
    /// Messages under so many records that they should be stored anew, with `Command::Relocate`.
    Rewrite(Vec<Resident>),
}

/// One batch of work at one moment: commands, then what became due, then deliveries.
pub struct Turn<'a> {
    pub(super) core: &'a mut Core,
    pub(super) log: &'a mut Appender,
    pub(super) now: Timestamp,
    pub(super) out: &'a mut Vec<Output>,
    /// False while the last journal segments are kept for settling.
    pub(super) publish_allowed: bool,
    /// Tokens of other queues are as good as lost.
    scope: Option<QueueId>,
    eager: bool,
    open: bool,
    /// Bytes that the open group may have.
    room: usize,
    /// Messages, sessions or leases that this step may still deal with beside what was asked for.
    left: usize,
}

/// A frame of a group has at most this beside what is counted: all its numbers, a session id and a key of 512 bytes
/// each, and the name of a queue, of up to 403. A group that outgrows the room it asked for is a broken invariant.
const FRAME_ROOM: usize = 2048;

/// The same for a record that names its message only by numbers: a lease that is renewed, or ends with no dead letter.
const SMALL_ROOM: usize = 64;

impl Core {
    /// An empty core. The seed only spreads hashes: nothing visible depends on it.
    pub fn new(hash_seed: u64) -> Self {
        Self {
            queues: fixed(),
            names: BTreeMap::new(),
            next_queue: 1,
            leases: Leases::default(),
            topics: fixed(),
            topic_names: BTreeMap::new(),
            under: fixed(),
            rules: 0,
            seen_keys: 0,
            aimed_at: BTreeMap::new(),
            #[cfg(test)]
            touched_items: 0,
            epoch: 0,
            last_at: 0,
            hash_seed,
            orphans: orphans::Orphans::default(),
            checks: digest::Checks::default(),
            live: None,
        }
    }

    /// The latest time that the journal knows: the clock starts no earlier.
    pub fn last_at(&self) -> Timestamp {
        Timestamp(self.last_at)
    }

    /// Ends the replay: a new epoch begins. Its record must be durable before anything is served.
    pub fn go_live(
        &mut self,
        log: &mut Appender,
        now: Timestamp,
        random: u64,
    ) -> Result<(), Refusal> {
        self.leases.tidy();
        self.live = Some(Live {
            timers: Wheel::new(now.0),
            due: VecDeque::new(),
            due_held: None,
            work: VecDeque::new(),
            blocked: Vec::new(),
            consumers: fixed(),
            connections: fixed(),
            dirty: Vec::new(),
            dirty_sessions: Vec::new(),
            overfull: Vec::new(),
            deep: Vec::new(),
            leaving: Vec::new(),
            stalled: BTreeSet::new(),
            random,
            rounds: digest::Rounds::default(),
        });
        let mut out = Vec::new();
        let mut turn = Turn::new(self, log, now, &mut out, true);
        turn.begin(FRAME_ROOM)?;
        let epoch = turn.core.epoch + 1;
        turn.commit(Event::Booted { epoch, at: now }, false);
        turn.end();
        turn.remove_orphans()?;
        self.set_timers(now);
        Ok(())
    }

    /// De-duplication keys as they are counted, and as queues and topics hold them: the same number.
    pub fn keys(&self) -> (usize, usize) {
        let queues = self.queues.values().filter_map(|q| q.seen.as_ref());
        let topics = self.topics.values().filter_map(|t| t.seen.as_ref());
        (self.seen_keys, queues.chain(topics).map(|seen| seen.len()).sum())
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

    fn live(&mut self) -> &mut Live {
        self.live.as_mut().expect("a turn is taken only after the replay")
    }
}

impl<'a> Turn<'a> {
    /// A turn at `now`.
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

    /// Decides one command and queues its answer.
    pub fn command(&mut self, request: u64, command: Command) {
        self.left = SLICE_MAX;
        let decided = self.decide(request, command);
        self.scope = None;
        self.end();
        self.make_room();
        match decided {
            Ok(Some((reply, needs))) => self.answer(request, Ok(reply), needs),
            Ok(None) => {}
            // A refusal rests on all that was decided before it.
            Err(refusal) => self.answer(request, Err(refusal), Needs::Settled),
        }
    }

    fn decide(&mut self, request: u64, command: Command) -> Decided {
        if let Some(queue) = self.must_prepare(&command) {
            self.core.put_off(Work::Command(queue, request, Box::new(command)));
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
            Command::Bind { topic, queue, rule } => self.bind_rule(&topic, &queue, rule),
            Command::Rebind { topic, queue, rule } => self.rebind_rule(&topic, &queue, rule),
            Command::Unbind { topic, queue, rule } => self.unbind_rule(&topic, &queue, &rule),
            Command::Route { topic, items } => self.route(topic, items),
            Command::DescribeTopic { name } => self.describe_topic(&name),
            Command::ListTopics { after, max } => {
                Ok(Some((self.list_topics(after.as_ref(), max), Needs::Settled)))
            }
            Command::Rules { topic, queue, after, max } => {
                self.list_rules(&topic, queue.as_ref(), after.as_ref(), max)
            }
            Command::Peek(peek) => self.peek(&peek),
            Command::Describe { queue } => self.describe(&queue),
            Command::List { after, max } => {
                Ok(Some((self.list(after.as_ref(), max), Needs::Settled)))
            }
            Command::Resolve { name } => {
                Ok(Some((Reply::Resolved(self.core.resolve(&name)), Needs::Settled)))
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
                Ok(Some((Reply::Saved { covered, body }, Needs::Settled)))
            }
            Command::Mark => {
                self.log.mark();
                Ok(Some((Reply::Done, Needs::Settled)))
            }
        }
    }

    /// Opens a journal group with room for `bytes`: from here on positions are known as frames are added.
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

    /// Journals an event and applies it. `lazy` events ride with the next commit; nobody waits for them.
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
            // Only at the end of a segment is it fatal; in tests it is everywhere.
            debug_assert!(self.log.group_bytes() <= self.room, "a group outgrew its room");
            self.log.end_group(!self.eager);
        }
    }

    /// Why sending is refused while `publish_allowed` is false.
    fn no_publishing(&self) -> Refusal {
        no_segment(self.log.blocked_by())
    }

    fn answer(&mut self, request: u64, answer: Result<Reply, Refusal>, needs: Needs) {
        let (durable, written) = self.marks(needs);
        self.out.push(Output { to: To::Request(request, answer), durable, written });
    }

    /// What an output must wait for. The group it rests on must have been closed.
    fn marks(&self, needs: Needs) -> (Pos, Pos) {
        match needs {
            Needs::Settled => (self.log.last_eager(), Pos::ZERO),
            Needs::Durable => (self.log.end_pos(), Pos::ZERO),
            Needs::Written => (Pos::ZERO, self.log.end_pos()),
            Needs::Granted(durable) => (durable, self.log.end_pos()),
        }
    }

    /// The lease that a token stands for, if it is within the scope of the command.
    fn lease_of(&self, token: LeaseToken) -> Option<&leases::Lease> {
        let lease = self.core.leases.find(token)?;
        // Of a queue that was deleted, leases go a few at a time; they are over at once.
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

/// No journal segment can be made, because of this or because the disk is full.
fn no_segment(why: Option<String>) -> Refusal {
    why.map_or(Refusal::DiskFull, |why| Refusal::NoSegment { why })
}

/// What an answer waits for.
#[derive(Debug, Clone, Copy)]
enum Needs {
    /// All that was decided so far, lazy records apart.
    Settled,
    /// The group just closed, on disk.
    Durable,
    /// The group just closed, with the operating system.
    Written,
    /// The group just closed written, and this much on disk.
    Granted(Pos),
}

impl Needs {
    fn of(durable: bool) -> Self {
        if durable { Self::Durable } else { Self::Written }
    }
}

/// An answer now, an answer later (`None`), or a refusal.
type Decided = Result<Option<(Reply, Needs)>, Refusal>;

/// A hasher without a seed of its own: the same run twice is the same run. Keys are numbers that the engine chose.
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
        // The table takes its bits from both ends.
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
