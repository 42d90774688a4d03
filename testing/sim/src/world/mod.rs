//! One broker in one thread: the real core and journal on a simulated disk, with clients, a jumping clock and
//! crashes.
//!
//! A turn is like one of the engine's `shard`: due actions, commands, deliveries. Its outputs go to the engine's own
//! pipeline, whose steps the world runs at random times. The engine's code numbers and orders the notices, and
//! readers may be slow. The reference model follows every step. Every answer is checked when it is decided and when
//! it is sent.

mod check;
mod command;
mod crash;
mod crowd;
mod damage;
mod journal;
mod reads;
mod receivers;
mod upkeep;

use check::Expected;
use command::command_of;
use journal::Journal;
use reads::Read;
use receivers::Receivers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use malote_engine::command::{Command, MessageGrant, Notice, Peeked, Reply};
use malote_engine::compact::Compaction;
use malote_engine::core::{Core, Effect, Output, Turn};
use malote_engine::event::Event;
use malote_engine::journal::{
    Chunks, FLAG_MORE, HEADER_BYTES, KIND_MARK, Options, Pos, decode_frame,
};
use malote_engine::outputs::pin_taken;
use malote_engine::{ConsumerId, Peek, QueueFacts};
use malote_model::{QueueName, Refusal, Seq, Timestamp};

use crate::clients::Clients;
use crate::decide::{Ask, Group, Model, Need};
use crate::disk::{Faults, SimDisk};
use crate::rng::Rng;
use crate::situations::Situations;

/// An output that is not sent yet.
struct Pending {
    effect: Effect,
    durable: Pos,
    written: Pos,
    need: Need,
    expected: Vec<Expected>,
    /// For a notice, its number among those of its consumer.
    notice: u64,
}

/// The world of a seed.
pub struct World {
    pub disk: SimDisk,
    journal: Journal,
    core: Core,
    pub model: Model,
    pub now: u64,
    pub rng: Rng,
    options: Options,
    /// The compaction after a snapshot, while it runs.
    compaction: Option<(Compaction, BTreeSet<u64>)>,
    /// Chunks and outputs of the current turn.
    turn_chunks: Chunks,
    turn_outputs: Vec<u64>,
    /// By number, in the order of decision.
    pending: BTreeMap<u64, Pending>,
    next_output: u64,
    receivers: Receivers,
    asked: BTreeMap<u64, (usize, Ask)>,
    next_request: u64,
    /// Messages that were read for the core but not passed to it yet.
    reads: VecDeque<Read>,
    pub clients: Clients,
    hasher: DefaultHasher,
    trace: VecDeque<String>,
    pub verbose: bool,
    pub met: Situations,
    /// The disk may be full, so records may be refused.
    tight: bool,
    /// A bit was flipped: reads may fail, but must not return wrong data.
    flipped: bool,
    /// Damage was reported: it is found again whenever its segment is read.
    damaged: bool,
}

/// Upper bound of the time between a request and its turn.
pub const TURN_MS_MAX: u64 = 20;

/// The engine expires at least this many messages of a queue in one turn.
const EXPIRED_PER_TURN_MIN: usize = 500;

/// The request id of the world itself.
const LOOK: u64 = u64::MAX;

impl World {
    /// The world of a seed, with its queues declared.
    pub fn new(seed: u64, verbose: bool) -> World {
        let mut rng = Rng::new(seed);
        let crowded = rng.chance(8);
        let options = Options {
            segment_bytes: if crowded { 1 << 20 } else { (80 + rng.below(64)) << 10 },
            first_segment_bytes: 16 << 10,
            spares: 3,
            spares_reserved: 2,
            free_bytes_min: 0,
            salt: rng.next_u64() as u32,
            snapshot_after_bytes: 32 << 10,
            snapshot_after_ratio: 1,
            compact_floor_bytes: rng.below(3) * (100 << 10),
            scrub_bytes_per_s: 0,
        };
        let disk = SimDisk::new();
        let mut core = Core::new(1);
        let journal = Journal::open(&disk, &options, &mut core)
            .unwrap_or_else(|error| panic!("cannot open an empty disk: {error}"));
        let clients = Clients::new(&mut rng);
        let mut world = World {
            disk,
            journal,
            core,
            model: Model::default(),
            now: 1_700_000_000_000,
            rng,
            options,
            compaction: None,
            turn_chunks: Chunks::new(),
            turn_outputs: Vec::new(),
            pending: BTreeMap::new(),
            next_output: 0,
            receivers: Receivers::default(),
            asked: BTreeMap::new(),
            next_request: 1,
            reads: VecDeque::new(),
            clients,
            hasher: DefaultHasher::new(),
            trace: VecDeque::new(),
            verbose,
            met: Situations::default(),
            tight: false,
            flipped: false,
            damaged: false,
        };
        world.model.verbose = verbose;
        let at = world.boot().unwrap_or_else(|error| panic!("the first boot failed: {error}"));
        world.model.crash(Pos::ZERO, at);
        world.declare_all();
        if crowded {
            world.crowd();
        }
        world
    }

    /// Boots, and returns the time of the boot.
    fn boot(&mut self) -> std::io::Result<u64> {
        let random = self.rng.next_u64();
        self.now = self.now.max(self.core.last_at().0);
        self.journal.boot(&mut self.core, self.now, random)?;
        self.now += 1;
        Ok(self.now - 1)
    }

    /// Records a step for the failure report.
    pub fn say(&mut self, what: impl FnOnce() -> String) {
        let line = what();
        if self.verbose {
            eprintln!("{line}");
        }
        if self.trace.len() >= 60 {
            self.trace.pop_front();
        }
        self.trace.push_back(line);
    }

    pub fn last_steps(&self) -> impl Iterator<Item = &String> {
        self.trace.iter()
    }

    /// A hash of everything that was sent, and of every disk after a crash.
    pub fn hash(&self) -> u64 {
        let mut hasher = self.hasher.clone();
        self.disk.state_hash().hash(&mut hasher);
        hasher.finish()
    }

    /// One random step; sometimes a crash.
    pub fn step(&mut self) {
        self.met.count("steps", 1);
        if self.journal.marks.poisoned() {
            self.met.count("disk failures", 1);
            return self.crash();
        }
        match self.rng.below(1000) {
            0..440 => {
                let count = 1 + self.rng.below(3);
                let asks = (0..count).map(|_| Clients::ask(self)).collect();
                self.turn(asks);
            }
            440..690 => self.write(),
            690..700 => self.receive_late(),
            700..830 => {
                let lazy = self.rng.chance(50);
                self.sync(lazy);
            }
            830..860 => {
                self.bring_back();
                while self.rng.chance(60) && !self.reads.is_empty() {
                    self.bring_back();
                }
            }
            860..890 => drop(self.journal.spare_maker.step()),
            890..900 | 995.. => self.compact(),
            900..930 => {
                let ms = [1, 10, 300, 2000, 10_000, 60_000][self.rng.below(6) as usize];
                self.now += 1 + self.rng.below(ms);
                self.say(|| String::from("the clock jumps"));
            }
            988 => self.deepen(),
            987 => self.set_clock(),
            989..992 => {
                if let Some((at, asks)) = Clients::at_the_edge(self) {
                    self.now = at;
                    self.turn_at_once(asks);
                }
            }
            992..995 => {
                let asks = Clients::noise(self);
                self.turn_at_once(asks);
            }
            930..950 if self.journal.snapshotter.due() || self.rng.chance(20) => self.snapshot(),
            950..953 => {
                self.call(|turn| turn.digest());
                self.end_turn();
                self.journal.appender.mark();
            }
            953..955 => self.scrub(),
            955..965 => {
                self.turn(Vec::new());
                self.check_all();
            }
            965..970 => self.set_faults(),
            970..987 => self.crash(),
            _ => {}
        }
    }

    /// Sets the wall clock forward: schedules follow it, leases do not. The engine ignores a clock that is set back.
    fn set_clock(&mut self) {
        if self.tight {
            return;
        }
        let by_ms = 5_001 + self.rng.below(100_000);
        self.now += by_ms;
        let now = self.now;
        self.say(|| format!("{now} the clock is set forward by {by_ms} ms"));
        let (groups, out) = self.call(|turn| turn.clock_stepped(by_ms));
        assert!(out.is_empty(), "a clock step has no output: {out:?}");
        self.model.clock_stepped(now, by_ms, &groups);
        self.turn_at_once(Vec::new());
    }

    fn set_faults(&mut self) {
        let mut faults = Faults::default();
        match self.rng.below(4) {
            0 => faults.sync_fails_in = Some(self.rng.below(20)),
            1 => faults.write_fails_in = Some(self.rng.below(30)),
            2 => {
                use malote_engine::disk::Disk;
                let used: u64 = self.disk.list().map_or(0, |all| all.iter().map(|e| e.len).sum());
                faults.capacity_bytes = Some(used + self.rng.below(200 << 10));
                self.tight = true;
                self.met.count("disk full", 1);
            }
            _ => {
                // Space is free again. Other faults remain until the process ends.
            }
        }
        self.say(|| format!("faults: {faults:?}"));
        self.disk.set_faults(faults);
    }

    fn call(&mut self, work: impl FnOnce(&mut Turn<'_>)) -> (Vec<Group>, Vec<Output>) {
        let mut out = Vec::new();
        let publish = self.journal.pool.publish_allowed();
        let mut turn = Turn::new(
            &mut self.core,
            &mut self.journal.appender,
            Timestamp(self.now),
            &mut out,
            publish,
        );
        work(&mut turn);
        let groups = self.take_chunks();
        self.model.hear(&groups);
        (groups, out)
    }

    /// Takes the appended chunks and decodes their events.
    fn take_chunks(&mut self) -> Vec<Group> {
        let mut groups = Vec::new();
        let mut events = Vec::new();
        for chunk in self.journal.appender.take().into_iter().flatten() {
            let (mut pos, bytes) = (chunk.start(), chunk.bytes());
            // The segment's header is first.
            if pos.offset() == 0 {
                pos = Pos::new(pos.generation(), HEADER_BYTES as u32);
            }
            while pos < chunk.end() {
                let rest = &bytes[(pos.offset() - chunk.start().offset()) as usize..];
                let frame = decode_frame(rest, pos, self.options.salt)
                    .unwrap_or_else(|error| panic!("appended at {pos}: {error}"));
                pos = Pos::new(pos.generation(), pos.offset() + frame.len_bytes() as u32);
                if frame.kind == KIND_MARK {
                    continue;
                }
                let event = Event::decode(frame.kind, frame.body);
                let event =
                    event.unwrap_or_else(|| panic!("unknown event kind {} at {pos}", frame.kind));
                if let Event::Digest(_) = event {
                    // Every replay compares the digest. It is a group of its own, and changes nothing.
                    self.met.event(&event);
                    assert!(events.is_empty() && frame.flags & FLAG_MORE == 0, "at {pos}");
                    continue;
                }
                events.push(event);
                if frame.flags & FLAG_MORE == 0 {
                    groups.push(Group { end: pos, events: std::mem::take(&mut events) });
                }
            }
            self.turn_chunks.push(chunk);
        }
        groups
    }

    /// Hands the turn's chunks and outputs to the pipeline.
    fn end_turn(&mut self) {
        let chunks = std::mem::take(&mut self.turn_chunks);
        let outputs = std::mem::take(&mut self.turn_outputs);
        let of = |number: u64| {
            let pending = &self.pending[&number];
            (number, pending.durable, pending.written)
        };
        self.journal.hand_over(outputs.into_iter().map(of), chunks);
    }

    /// Keeps an output of the current turn.
    fn keep(&mut self, mut pending: Pending) {
        let number = self.next_output;
        self.next_output += 1;
        pin_taken(&mut pending.effect, &self.journal.segments);
        pending.notice = self.receivers.number(&pending.effect);
        self.pending.insert(number, pending);
        self.turn_outputs.push(number);
    }

    /// A turn: due actions, some commands, deliveries.
    pub fn turn(&mut self, asks: Vec<(usize, Ask)>) {
        self.now += self.rng.below(TURN_MS_MAX);
        self.turn_at_once(asks);
    }

    /// A turn, and further turns while expired messages are left.
    fn turn_at_once(&mut self, asks: Vec<(usize, Ask)>) {
        let left = self.one_turn(asks);
        self.finish_expiry(left);
    }

    /// Takes further turns while expired messages are left. The engine must request each of them, and finish in a
    /// number of turns that is proportional to the messages.
    fn finish_expiry(&mut self, mut left: bool) {
        self.met.count("expired over several turns", u64::from(left));
        let messages: usize = self.model.state.queues.values().map(|q| q.msgs.len()).sum();
        let mut turns_left = 4 + messages / EXPIRED_PER_TURN_MIN;
        while left {
            let wake = self.core.next_wake();
            let goes_on = turns_left > 0 && wake.is_some_and(|wake| wake.0 <= self.now + 1);
            assert!(
                goes_on,
                "at {} expired messages are left, but the next turn is at {wake:?}: {:?}",
                self.now,
                self.model.expired_messages().first()
            );
            self.now += 1;
            turns_left -= 1;
            left = self.one_turn(Vec::new());
        }
    }

    /// Returns whether expired messages are left.
    fn one_turn(&mut self, asks: Vec<(usize, Ask)>) -> bool {
        // Without any spare segment not even due actions are possible, so space is freed first.
        let many = |(_, ask): &(usize, Ask)| matches!(ask, Ask::Disconnect { .. });
        if self.tight && (self.journal.pool.spares() == 0 || asks.iter().any(many)) {
            self.make_room();
        }
        let now = self.now;
        let (mut groups, mut out) = self.call(|turn| turn.expire());
        // Many due actions are spread over several turns, which follow at once.
        while self.core.next_wake().is_some_and(|wake| wake.0 <= now) {
            let (more, outputs) = self.call(|turn| turn.expire());
            if more.is_empty() && outputs.is_empty() {
                break;
            }
            groups.extend(more);
            out.extend(outputs);
        }
        let left = self.model.expire(now, &groups, !self.tight);
        self.take_in(out, None, &groups, groups.len());
        for (client, ask) in asks {
            self.command(client, ask);
        }
        let (groups, out) = self.call(|turn| turn.dispatch());
        self.model.leave(now, &groups, !self.tight);
        self.take_in(out, None, &groups, 0);
        if !self.tight {
            self.model.check_served();
        }
        self.model.check_limits(!self.tight);
        self.model.check_forwarded(!self.tight);
        let (counted, held) = self.core.keys();
        assert_eq!(counted, held, "counted and stored de-duplication keys");
        self.end_turn();
        self.check_inboxes();
        self.met.add(&std::mem::take(&mut self.model.met));
        self.release();
        left
    }

    /// Frees space on the disk.
    fn make_room(&mut self) {
        self.disk.set_faults(Faults::default());
        self.tight = false;
        while self.journal.pool.spares() < self.options.spares
            && self.journal.spare_maker.step().is_ok()
        {}
    }

    fn command(&mut self, client: usize, ask: Ask) {
        let request = self.next_request;
        self.next_request += 1;
        self.met.count("commands", 1);
        let now = self.now;
        let command = command_of(&ask);
        let (groups, out) = self.call(|turn| turn.command(request, command));
        self.say(|| format!("{now} #{request} client {client} {ask:?}"));
        self.asked.insert(request, (client, ask.clone()));
        self.take_in(out, Some((request, ask)), &groups, 0);
    }

    fn look(&mut self, command: Command) -> Result<Reply, Refusal> {
        let (groups, mut out) = self.call(|turn| turn.command(LOOK, command));
        assert!(groups.is_empty(), "a read changes nothing");
        match out.pop().map(|output| output.effect) {
            Some(Effect::Request(LOOK, answer)) => answer,
            other => panic!("a read was answered with {other:?}"),
        }
    }

    fn peek(&mut self, queue: &QueueName) -> Vec<Peeked> {
        let (mut all, mut from) = (Vec::new(), Seq(0));
        loop {
            let (max, session, state) = (1000, None, None);
            let peek = Peek { queue: queue.clone(), from, max, session, state };
            match self.look(Command::Peek(peek)) {
                Ok(Reply::Peeked { items, next }) => {
                    assert!(
                        next.is_none() || items.len() == 1000,
                        "a peek ends after the last message"
                    );
                    all.extend(items);
                    let Some(next) = next else { return all };
                    from = next;
                }
                other => panic!("a peek at {queue} was answered with {other:?}"),
            }
        }
    }

    /// Checks the outputs of one step with the model, and keeps them until they may be sent. The model has followed
    /// the first `followed` groups; it follows the others in their order among the outputs.
    fn take_in(
        &mut self,
        mut out: Vec<Output>,
        own: Option<(u64, Ask)>,
        groups: &[Group],
        mut followed: usize,
    ) {
        let now = self.now;
        let mut own_need = Need::default();
        for output in &mut out {
            if let Effect::Request(_, answer) = &mut output.effect
                && let Ok(Reply::SentEach(each)) = answer
            {
                let only = each.pop().filter(|_| each.is_empty()).expect("one send, one answer");
                *answer = only.map(|receipts| Reply::Sent(receipts.into_vec()));
            }
        }
        if let Some((request, ask)) = &own {
            let is_own =
                |output: &Output| matches!(&output.effect, Effect::Request(r, _) if r == request);
            let at = out.iter().position(is_own);
            let answer = at.map(|at| match &out[at].effect {
                Effect::Request(_, answer) => answer,
                Effect::Consumer(..) | Effect::Route(..) | Effect::Rewrite(..) => {
                    unreachable!("a request was found")
                }
            });
            let mut expected = Vec::new();
            let no_room = |refusal: &Refusal| match refusal {
                Refusal::DiskFull | Refusal::NoSegment { .. } => true,
                // Larger than a segment, which is small in this simulation.
                Refusal::BatchTooLarge { what, .. } => what.starts_with("bytes of journal"),
                _ => false,
            };
            if answer.is_some_and(|answer| answer.as_ref().is_err_and(no_room)) {
                let publishes = match ask {
                    Ask::Send { .. } | Ask::Replace { .. } => true,
                    Ask::Commit { sends, .. } => !sends.is_empty(),
                    _ => false,
                };
                let spent = self.tight && self.journal.pool.spares() == 0;
                assert!(
                    publishes || spent,
                    "{ask:?} was refused, although settling always has room"
                );
            } else {
                if let (Some(Ok(Reply::Delivered(grants))), Ask::ReceiveDeferred { queue, .. }) =
                    (answer, ask)
                {
                    expected = self.expected(queue, grants);
                }
                let end = self.journal.appender.end_pos();
                let mut own = groups.iter().filter(|group| !group.follows());
                match own.next() {
                    Some(group) => self.model.take_up(now, group),
                    None => self.model.begin(now, end),
                }
                own_need = self.model.ask(*request, ask, answer);
                let several =
                    matches!(ask, Ask::Disconnect { .. }) || self.model.waiting(*request).is_some();
                assert!(several || own.next().is_none(), "{ask:?} must be one group");
            }
            self.met.count(ask.word(), u64::from(!matches!(answer, Some(Err(_)))));
            if let Some(Err(refusal)) = answer {
                self.met.refusal(refusal);
            }
            match ask {
                Ask::Disconnect { connection, clean } => {
                    self.model.disconnected(now, *connection, *clean, groups);
                }
                // A request that may wait is served at once.
                _ if self.model.waiting(*request).is_some() => {
                    self.model.leave(now, groups, !self.tight);
                }
                _ => {}
            }
            if let (Ask::ReceiveDeferred { .. }, Some(at)) = (ask, at) {
                let Output { effect, durable, written } = out.remove(at);
                let (need, notice) = (own_need, 0);
                self.keep(Pending { effect, durable, written, need, expected, notice });
            }
        }
        self.model.find_stuck();
        for Output { effect, durable, written } in out {
            let at = durable.max(written);
            while let Some(group) = groups.get(followed).filter(|group| group.end < at) {
                self.model.follow(now, group);
                followed += 1;
            }
            let mut expected = Vec::new();
            let need = match &effect {
                Effect::Route(..) | Effect::Rewrite(..) => Need::default(),
                Effect::Request(request, answer) => match (self.model.waiting(*request), answer) {
                    (None, _) if own.as_ref().is_some_and(|(r, _)| r == request) => own_need,
                    (None, _) => panic!("unknown request #{request}: {answer:?}"),
                    (Some(id), Ok(Reply::Delivered(grants))) if grants.is_empty() => {
                        self.model.said_nothing(id)
                    }
                    (Some(id), Ok(Reply::Accepted(None))) => self.model.said_nothing(id),
                    (Some(id), Ok(Reply::Delivered(grants))) => {
                        expected = self.expected_of(id, grants);
                        self.model.begin(now, at);
                        self.model.said_deliver(id, grants)
                    }
                    (Some(id), Ok(Reply::Accepted(Some(held)))) => {
                        self.model.begin(now, at);
                        self.model.said_held(id, held)
                    }
                    (Some(id), Err(_)) => self.model.said_ended(id),
                    (Some(_), Ok(other)) => panic!("a wait was answered with {other:?}"),
                },
                Effect::Consumer(id, Notice::Deliver(grants)) => {
                    expected = self.expected_of(*id, grants);
                    self.model.begin(now, at);
                    self.model.said_deliver(*id, grants)
                }
                Effect::Consumer(id, Notice::Ended(_)) => self.model.said_ended(*id),
            };
            self.keep(Pending { effect, durable, written, need, expected, notice: 0 });
        }
        groups[followed..].iter().for_each(|group| self.model.follow(now, group));
        assert!(self.model.ended.is_empty(), "not notified of their end: {:?}", self.model.ended);
        self.model.check_journal(groups);
    }

    fn expected_of(&self, id: ConsumerId, grants: &[MessageGrant]) -> Vec<Expected> {
        let consumer = self.model.consumers.get(&id);
        let queue = &consumer.unwrap_or_else(|| panic!("{id:?} does not exist")).queue;
        self.expected(queue, grants)
    }

    fn expected(&self, queue: &QueueName, grants: &[MessageGrant]) -> Vec<Expected> {
        let q = self.model.state.queue(queue);
        let of = |grant: &MessageGrant| {
            let msg = q.msgs.get(&grant.seq.0);
            let msg = msg.unwrap_or_else(|| panic!("{queue} has no {}", grant.seq));
            Expected::of(msg)
        };
        grants.iter().map(of).collect()
    }

    /// Writes what was handed over.
    fn write(&mut self) {
        let done = self.journal.write();
        let written = self.journal.marks.written();
        self.say(|| format!("write, {done}: to {written}"));
        self.release();
    }

    fn sync(&mut self, lazy: bool) {
        let done = self.journal.sync(lazy);
        let durable = self.journal.marks.durable();
        self.say(|| format!("sync, {done}: to {durable}"));
        self.model.durable(durable);
        self.release();
    }

    /// Writes, syncs and sends everything.
    pub fn flush(&mut self) {
        self.end_turn();
        while self.journal.write() {}
        while self.journal.sync(true) {}
        self.model.durable(self.journal.marks.durable());
        self.release();
        self.receive_late();
    }

    /// Sends the released outputs.
    fn release(&mut self) {
        for number in self.journal.released() {
            let output = self.pending.remove(&number);
            let output = output.unwrap_or_else(|| panic!("output {number} was released twice"));
            for (number, output) in self.receivers.in_order(number, output) {
                self.leaves(number, output);
            }
        }
    }

    fn leaves(&mut self, number: u64, output: Pending) {
        let (durable, written) = (self.journal.marks.durable(), self.journal.marks.written());
        let Pending { effect, need, expected, .. } = output;
        assert!(
            need.durable <= durable,
            "sent before it was durable ({} > {durable}): {effect:?}",
            need.durable
        );
        assert!(
            need.written <= written,
            "sent before it was written ({} > {written}): {effect:?}",
            need.written
        );
        self.receivers.heard(number, &effect);
        self.check_output(effect, expected);
    }

    fn check_output(&mut self, to: Effect, expected: Vec<Expected>) {
        format!("{to:?}").hash(&mut self.hasher);
        self.say(|| format!("  sent {to:?}"));
        match to {
            Effect::Consumer(id, Notice::Deliver(grants)) => {
                self.clients.delivered(id, &grants);
                self.met.count("granted", grants.len() as u64);
                self.receive(grants, expected);
            }
            Effect::Consumer(id, Notice::Ended(_)) => self.clients.ended(id),
            Effect::Route(..) | Effect::Rewrite(..) => self.read(to),
            Effect::Request(request, answer) => {
                let Some((client, ask)) = self.asked.remove(&request) else {
                    panic!("#{request} was answered twice");
                };
                match &answer {
                    Ok(Reply::Delivered(grants)) => {
                        self.met.count("granted", grants.len() as u64);
                        self.receive(grants.clone(), expected);
                    }
                    Ok(Reply::Sent(seqs)) => self.met.count("sent", seqs.len() as u64),
                    Ok(Reply::Accepted(Some(_))) => self.met.count("held", 1),
                    Ok(Reply::Settled(outcomes)) => {
                        self.met
                            .count("settled", outcomes.iter().filter(|o| o.is_ok()).count() as u64);
                        self.met
                            .count("stale", outcomes.iter().filter(|o| o.is_err()).count() as u64);
                    }
                    _ => {}
                }
                self.clients.answered(client, &ask, &answer);
            }
        }
    }

    fn engine_queues(&mut self) -> Vec<QueueName> {
        self.facts().into_iter().map(|facts| facts.name).collect()
    }

    fn facts(&mut self) -> Vec<QueueFacts> {
        match self.look(Command::List { after: None, max: usize::MAX }) {
            Ok(Reply::Queues(facts)) => facts,
            other => panic!("a list was answered with {other:?}"),
        }
    }
}
