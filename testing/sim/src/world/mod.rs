//! One broker in one thread: the real core and journal on a simulated disk, clients, a clock that jumps, and crashes.
//!
//! A turn goes as in the engine's `shard`: what is due, commands, deliveries; then its outputs wait for the marks that
//! they name while chunks are written and synced at moments of the world's choosing. Every step is told to the
//! reference model, and every answer is checked against it before and when it leaves.

mod check;
mod met;
mod upkeep;

use check::Expected;
pub use met::Met;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use malote_engine::command::{Command, ConnectionId, Grant, Notice, Peeked, Reply};
use malote_engine::compact::Compaction;
use malote_engine::core::{Core, Output, To, Turn};
use malote_engine::journal::{Chunk, Options, Pos, Recovered, recover};
use malote_engine::{ConsumerId, Outgoing, Peek, QueueFacts, StateChange, Stored};
use malote_model::{Message, QueueName, Refusal, Seq, Timestamp};

use crate::clients::Clients;
use crate::decide::{Ask, Model, Need, REDRIVE};
use crate::disk::{Faults, SimDisk};
use crate::rng::Rng;

/// An output on its way.
struct Pending {
    to: To,
    durable: Pos,
    written: Pos,
    need: Need,
    expected: Vec<Expected>,
}

/// A seed's world.
pub struct World {
    pub disk: SimDisk,
    journal: Recovered,
    core: Core,
    pub model: Model,
    pub now: u64,
    pub rng: Rng,
    options: Options,
    /// Copies that are being made after a snapshot.
    compaction: Option<(Compaction, BTreeSet<u64>)>,
    unwritten: VecDeque<Chunk>,
    pending: Vec<Pending>,
    asked: BTreeMap<u64, (usize, Ask)>,
    next_request: u64,
    pub clients: Clients,
    hasher: DefaultHasher,
    trace: VecDeque<String>,
    pub verbose: bool,
    pub met: Met,
    /// The disk may be full: records may find no room.
    tight: bool,
    /// A bit was turned: what cannot be read is no wonder, but what can be read must be right.
    flipped: bool,
    /// A read failed or the journal is poisoned: only a crash helps.
    broken: bool,
}

/// Requests of the world itself.
const LOOK: u64 = u64::MAX;

impl World {
    /// The world of a seed, with its queues declared.
    pub fn new(seed: u64, verbose: bool) -> World {
        let mut rng = Rng::new(seed);
        let options = Options {
            segment_bytes: (24 + rng.below(64)) << 10,
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
        let journal = recover(Arc::new(disk.clone()), &options, &mut core)
            .unwrap_or_else(|error| panic!("an empty disk does not open: {error}"));
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
            unwritten: VecDeque::new(),
            pending: Vec::new(),
            asked: BTreeMap::new(),
            next_request: 1,
            clients,
            hasher: DefaultHasher::new(),
            trace: VecDeque::new(),
            verbose,
            met: Met::default(),
            tight: false,
            flipped: false,
            broken: false,
        };
        world.model.verbose = verbose;
        world.boot().unwrap_or_else(|error| panic!("no first boot: {error}"));
        for (name, spec) in world.clients.queues.clone() {
            world.turn(vec![(0, Ask::Declare { name, spec })]);
        }
        world.flush();
        world
    }

    fn boot(&mut self) -> std::io::Result<()> {
        let random = self.rng.next_u64();
        self.now = self.now.max(self.core.last_at().0);
        let live = self.core.go_live(&mut self.journal.appender, Timestamp(self.now), random);
        live.map_err(|refusal| std::io::Error::other(refusal.to_string()))?;
        for chunk in self.journal.appender.take().unwrap_or_default() {
            self.journal.writer.write(&chunk)?;
        }
        self.journal.syncer.sync()?;
        self.now += 1;
        Ok(())
    }

    /// Notes what happened, for whoever must understand a failure.
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

    /// The last steps.
    pub fn last_steps(&self) -> impl Iterator<Item = &String> {
        self.trace.iter()
    }

    /// Everything that was said, and every disk that was left behind.
    pub fn hash(&self) -> u64 {
        let mut hasher = self.hasher.clone();
        self.disk.state_hash().hash(&mut hasher);
        hasher.finish()
    }

    /// One random step; a crash now and then.
    pub fn step(&mut self) {
        self.met.steps += 1;
        if self.broken {
            // Part of a step may be written that the model knows nothing of.
            return self.begin_anew();
        }
        if self.journal.marks.poisoned() {
            self.met.faults += 1;
            return self.crash();
        }
        match self.rng.below(1000) {
            0..440 => {
                let count = 1 + self.rng.below(3);
                let asks = (0..count).map(|_| Clients::ask(self)).collect();
                self.turn(asks);
            }
            440..700 => self.write_one(),
            700..850 => self.sync(),
            850..890 => drop(self.journal.keeper.step()),
            890..900 | 988.. => self.compact(),
            900..930 => {
                let ms = [1, 10, 300, 2000, 10_000, 60_000][self.rng.below(6) as usize];
                self.now += 1 + self.rng.below(ms);
                self.say(|| String::from("the clock jumps"));
            }
            930..950 if self.journal.snapshotter.due() || self.rng.chance(20) => self.snapshot(),
            950..953 => self.journal.appender.mark(),
            953..955 => self.scrub(),
            955..965 => {
                self.turn(Vec::new());
                self.check_all();
            }
            965..970 => self.set_faults(),
            970..988 => self.crash(),
            _ => {}
        }
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
                (self.tight, self.met.full) = (true, self.met.full + 1);
            }
            _ => {
                // Space returns. The rest stays broken until the process ends.
            }
        }
        self.say(|| format!("faults: {faults:?}"));
        self.disk.set_faults(faults);
    }

    fn call(&mut self, work: impl FnOnce(&mut Turn<'_>)) -> (Pos, Pos, Vec<Output>) {
        let lo = self.journal.appender.end_pos();
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
        (lo, self.journal.appender.end_pos(), out)
    }

    /// What is due, some commands, deliveries.
    pub fn turn(&mut self, asks: Vec<(usize, Ask)>) {
        // Without any room even time stands still: that far it does not come here.
        let many = |(_, ask): &(usize, Ask)| matches!(ask, Ask::Disconnect { .. });
        if self.tight && (self.journal.pool.spares() == 0 || asks.iter().any(many)) {
            self.make_room();
        }
        self.now += self.rng.below(20);
        let now = self.now;
        let several = self.model.may_move_several(now, None);
        let (lo, hi, out) = self.call(|turn| turn.expire());
        self.model.begin(now, lo, hi, true);
        if several && lo != hi {
            self.see_places();
            if self.broken {
                return; // the write failed: nobody will ever hear of this
            }
        }
        self.model.expire();
        self.take_in(out, None, lo);
        for (client, ask) in asks {
            self.command(client, ask);
            if self.broken {
                return;
            }
        }
        let (lo, hi, out) = self.call(|turn| turn.dispatch());
        self.model.begin(now, lo, hi, false);
        self.take_in(out, None, lo);
        if !self.tight {
            self.model.check_served();
        }
        self.unwritten.extend(self.journal.appender.take().into_iter().flatten());
        self.release();
    }

    /// Space returns.
    fn make_room(&mut self) {
        self.disk.set_faults(Faults::default());
        self.tight = false;
        while self.journal.pool.spares() < self.options.spares && self.journal.keeper.step().is_ok()
        {
        }
    }

    fn command(&mut self, client: usize, ask: Ask) {
        let request = self.next_request;
        self.next_request += 1;
        self.met.commands += 1;
        let now = self.now;
        let several = match ask {
            Ask::Disconnect { connection, .. } => {
                self.model.may_move_several(now, Some(connection))
            }
            _ => false,
        };
        let command = command_of(&ask);
        let (lo, hi, out) = self.call(|turn| turn.command(request, command));
        self.say(|| format!("{now} #{request} client {client} {}", short(&ask)));
        self.model.begin(now, lo, hi, matches!(ask, Ask::Disconnect { .. }));
        if several && lo != hi {
            self.see_places();
            if self.broken {
                return; // the write failed: nobody will ever hear of this
            }
        }
        if let Ok(watched) = std::env::var("MALOTE_WATCH") {
            for queue in watched.split(',') {
                if let Ok(queue) = QueueName::new(queue)
                    && self.model.state.queues.contains_key(&queue)
                {
                    let seqs: Vec<u64> = self.peek(&queue).iter().map(|p| p.seq.0).collect();
                    eprintln!("    engine: {queue} {seqs:?}");
                }
            }
        }
        self.asked.insert(request, (client, ask.clone()));
        self.take_in(out, Some((request, ask)), lo);
    }

    /// Reads where several messages that moved at once came to stand.
    fn see_places(&mut self) {
        self.unwritten.extend(self.journal.appender.take().into_iter().flatten());
        while let Some(chunk) = self.unwritten.pop_front() {
            if self.journal.writer.write(&chunk).is_err() {
                self.broken = true;
                return;
            }
        }
        let names: Vec<_> = self.model.state.queues.keys().cloned().collect();
        for name in names {
            for peeked in self.peek(&name) {
                if self.model.state.queue(&name).msgs.contains_key(&peeked.seq.0) {
                    continue;
                }
                let Ok(stored) = Stored::read_now(&self.journal.segments, peeked.pos) else {
                    assert!(self.flipped, "{} of {name}, which moved, cannot be read", peeked.seq);
                    self.broken = true;
                    return;
                };
                let id = stored.message.message_id.unwrap_or_default();
                self.model.placed.insert((name.clone(), id), peeked.seq.0);
            }
        }
    }

    fn look(&mut self, command: Command) -> Result<Reply, Refusal> {
        let (_, _, mut out) = self.call(|turn| turn.command(LOOK, command));
        match out.pop().map(|output| output.to) {
            Some(To::Request(LOOK, answer)) => answer,
            other => panic!("a look was answered with {other:?}"),
        }
    }

    fn peek(&mut self, queue: &QueueName) -> Vec<Peeked> {
        let (from, max, session, state) = (Seq(0), 1000, None, None);
        let peek = Peek { queue: queue.clone(), from, max, session, state };
        match self.look(Command::Peek(peek)) {
            Ok(Reply::Peeked { items, next }) => {
                assert!(next.is_none() || items.len() == 1000, "a peek ends when all was seen");
                items
            }
            other => panic!("a peek at {queue} was answered with {other:?}"),
        }
    }

    /// The outputs of one step: checked by the model, then kept until the marks allow.
    fn take_in(&mut self, out: Vec<Output>, own: Option<(u64, Ask)>, lo: Pos) {
        let (now, mut last) = (self.now, lo);
        let mut own_need = Need::default();
        if let Some((request, ask)) = &own {
            let is_own = |output: &&Output| matches!(&output.to, To::Request(r, _) if r == request);
            let answer = out.iter().find(is_own).map(|output| match &output.to {
                To::Request(_, answer) => answer,
                To::Consumer(..) | To::Route(..) | To::Rewrite(..) => {
                    unreachable!("a request was found")
                }
            });
            if matches!(answer, Some(Err(Refusal::DiskFull))) {
                let publishes = matches!(ask, Ask::Send { .. } | Ask::Replace { .. });
                let spent = self.tight && self.journal.pool.spares() == 0;
                assert!(publishes || spent, "{ask:?}: there is room for settling");
                self.met.refused += 1;
            } else {
                if let (Some(Ok(Reply::Delivered(grants))), Ask::ReceiveDeferred { queue, .. }) =
                    (answer, ask)
                {
                    let expected = self.expected(queue, grants);
                    own_need = self.model.ask(*request, ask, answer);
                    let to = To::Request(*request, Ok(Reply::Delivered(grants.clone())));
                    let Some(output) = out.iter().find(is_own) else { return };
                    let (durable, written) = (output.durable, output.written);
                    self.pending.push(Pending { to, durable, written, need: own_need, expected });
                    return;
                }
                own_need = self.model.ask(*request, ask, answer);
                self.met.refused += u64::from(matches!(answer, Some(Err(_))));
            }
        }
        for Output { to, durable, written } in out {
            let at = durable.max(written);
            let mut expected = Vec::new();
            let need = match &to {
                To::Route(..) | To::Rewrite(..) => {
                    unreachable!("there are no topics, and few changes")
                }
                To::Request(request, answer) => match (self.model.waiting(*request), answer) {
                    (None, _) if own.as_ref().is_some_and(|(r, _)| r == request) => own_need,
                    (None, _) => panic!("nobody asked #{request}: {answer:?}"),
                    (Some(id), Ok(Reply::Delivered(grants))) if grants.is_empty() => {
                        self.model.said_nothing(id)
                    }
                    (Some(id), Ok(Reply::Accepted(None))) => self.model.said_nothing(id),
                    (Some(id), Ok(Reply::Delivered(grants))) => {
                        expected = self.expected_of(id, grants);
                        self.model.begin(now, last, at, false);
                        last = at;
                        self.model.said_deliver(id, grants)
                    }
                    (Some(id), Ok(Reply::Accepted(Some(held)))) => {
                        self.model.begin(now, last, at, false);
                        last = at;
                        self.model.said_held(id, held)
                    }
                    (Some(id), Err(_)) => self.model.said_ended(id),
                    (Some(_), Ok(other)) => panic!("a wait was answered with {other:?}"),
                },
                To::Consumer(id, Notice::Deliver(grants)) => {
                    expected = self.expected_of(*id, grants);
                    self.model.begin(now, last, at, false);
                    last = at;
                    self.model.said_deliver(*id, grants)
                }
                To::Consumer(id, Notice::Ended(_)) => self.model.said_ended(*id),
            };
            self.pending.push(Pending { to, durable, written, need, expected });
        }
        assert!(self.model.ended.is_empty(), "not told that they ended: {:?}", self.model.ended);
    }

    fn expected_of(&self, id: ConsumerId, grants: &[Grant]) -> Vec<Expected> {
        let consumer = self.model.consumers.get(&id);
        let queue = &consumer.unwrap_or_else(|| panic!("{id:?} does not exist")).queue;
        self.expected(queue, grants)
    }

    fn expected(&self, queue: &QueueName, grants: &[Grant]) -> Vec<Expected> {
        let q = self.model.state.queue(queue);
        let of = |grant: &Grant| {
            let msg = q.msgs.get(&grant.seq.0);
            let msg = msg.unwrap_or_else(|| panic!("{queue} has no {}", grant.seq));
            let (sent, properties) = (msg.sent.clone(), msg.properties.clone());
            Expected { sent, properties, at: msg.at, dead: msg.dead.clone() }
        };
        grants.iter().map(of).collect()
    }

    fn write_one(&mut self) {
        if let Some(chunk) = self.unwritten.pop_front() {
            let done = self.journal.writer.write(&chunk);
            self.say(|| {
                format!("write to {} {}", chunk.end(), if done.is_ok() { "" } else { "fails" })
            });
        }
        self.release();
    }

    fn sync(&mut self) {
        let done = self.journal.syncer.sync();
        self.say(|| format!("sync: {done:?}"));
        self.model.durable(self.journal.marks.durable());
        self.release();
    }

    /// Everything written, synced and told.
    pub fn flush(&mut self) {
        while !self.unwritten.is_empty() && !self.journal.marks.poisoned() {
            self.write_one();
        }
        self.sync();
    }

    /// Says what may be said.
    fn release(&mut self) {
        if self.journal.marks.poisoned() {
            return; // outcomes are unknown from here on
        }
        let (durable, written) = (self.journal.marks.durable(), self.journal.marks.written());
        let (ready, kept) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|p: &Pending| p.durable <= durable && p.written <= written);
        self.pending = kept;
        for Pending { to, need, expected, .. } in ready {
            assert!(
                need.durable <= durable,
                "told before it was durable ({} > {durable}): {to:?}",
                need.durable
            );
            assert!(
                need.written <= written,
                "told before it was written ({} > {written}): {to:?}",
                need.written
            );
            self.told(to, &expected);
        }
    }

    fn told(&mut self, to: To, expected: &[Expected]) {
        format!("{to:?}").hash(&mut self.hasher);
        self.say(|| format!("  told {to:?}"));
        match to {
            To::Consumer(id, Notice::Deliver(grants)) => {
                self.check_bodies(&grants, expected);
                self.clients.delivered(id, &grants);
                self.met.granted += grants.len() as u64;
            }
            To::Consumer(id, Notice::Ended(_)) => self.clients.ended(id),
            To::Route(..) | To::Rewrite(..) => unreachable!("there are no topics, and few changes"),
            To::Request(request, answer) => {
                let Some((client, ask)) = self.asked.remove(&request) else {
                    panic!("#{request} was answered twice");
                };
                match &answer {
                    Ok(Reply::Delivered(grants)) => {
                        self.check_bodies(grants, expected);
                        self.met.granted += grants.len() as u64;
                    }
                    Ok(Reply::Sent(seqs)) => self.met.sent += seqs.len() as u64,
                    Ok(Reply::Accepted(Some(_))) => self.met.held += 1,
                    Ok(Reply::Settled(outcomes)) => {
                        self.met.settled += outcomes.iter().filter(|o| o.is_ok()).count() as u64;
                        self.met.stale += outcomes.iter().filter(|o| o.is_err()).count() as u64;
                    }
                    _ => {}
                }
                let queues = &self.model.state;
                self.clients.answered(client, &ask, &answer, queues);
            }
        }
    }

    /// The disk as a crash leaves it, opened again.
    fn crash(&mut self) {
        let power = self.rng.chance(70);
        let (durable, written) = (self.journal.marks.durable(), self.journal.marks.written());
        let poisoned = self.journal.marks.poisoned();
        let mut rng = Rng::new(self.rng.next_u64());
        let restored = if rng.chance(10) && !poisoned { self.restored() } else { None };
        let from_backup = restored.is_some();
        let mut disk = match restored {
            Some(restored) => restored,
            None if power => self.disk.crashed(&mut rng),
            None => self.disk.killed(),
        };
        self.met.crashes += 1;
        if power {
            self.met.power += 1;
        } else {
            self.met.kills += 1;
        }
        disk.state_hash().hash(&mut self.hasher);
        let flipped = if rng.chance(8) { self.flip(&disk, &mut rng) } else { None };
        self.say(|| {
            format!(
                "crash, power {power}, durable {durable}, written {written}, flipped {flipped:?}"
            )
        });
        (self.tight, self.broken) = (false, false);
        let mut again = 0;
        let (core, journal, unread) = loop {
            let mut faults = Faults::default();
            if again < 3 && rng.chance(20) {
                match rng.below(4) {
                    0 => faults.read_fails_in = Some(rng.below(20)),
                    1 => faults.write_fails_in = Some(rng.below(6)),
                    _ => faults.sync_fails_in = Some(rng.below(6)),
                }
            }
            let unread = faults.read_fails_in.is_some();
            disk.set_faults(faults);
            let mut core = Core::new(1);
            let opened = recover(Arc::new(disk.clone()), &self.options, &mut core);
            disk.set_faults(Faults::default());
            match opened {
                Ok(journal) => break (core, journal, unread),
                Err(error) if again < 3 => {
                    self.say(|| format!("recovery failed: {error}"));
                    again += 1;
                    disk = if power && rng.chance(50) {
                        disk.crashed(&mut rng)
                    } else {
                        disk.killed()
                    };
                }
                Err(error) if flipped.is_some() => {
                    // It says that something is missing; an operator must look. A new world begins.
                    self.say(|| format!("recovery refused after a flipped bit: {error}"));
                    self.met.damaged += 1;
                    return self.begin_anew();
                }
                Err(error) => panic!("recovery failed without a fault: {error}"),
            }
        };
        (self.core, self.journal, self.disk) = (core, journal, disk);
        (self.unwritten, self.pending, self.asked) = (VecDeque::new(), Vec::new(), BTreeMap::new());
        self.compaction = None;
        let report = self.journal.report.clone();
        self.say(|| format!("{report:?}"));
        self.met.restored += u64::from(report.snapshot.is_some());
        self.met.torn += u64::from(report.discarded_frames > 0);
        let said_damage = !report.damaged.is_empty()
            || !report.unreadable_segments.is_empty()
            || !report.invalid_snapshots.is_empty();
        if flipped.is_some()
            && (!report.damaged.is_empty() || !report.unreadable_segments.is_empty())
        {
            self.met.damaged += 1;
            return self.begin_anew();
        }
        // What cannot be read at the moment is reported like what is damaged.
        let fine = flipped.is_some() || unread && report.damaged.is_empty();
        assert!(fine || !said_damage, "a crash is not damage: {report:?}");
        let cut = report.cut;
        // A flipped bit behind the last mark is a torn tail to any reader.
        if flipped.is_none() || cut >= durable {
            let lossy = power || poisoned || from_backup || flipped.is_some();
            let keep = if lossy { durable } else { written };
            assert!(
                !from_backup || flipped.is_some() || cut == durable,
                "a backup made at {durable} ends at {cut}"
            );
            assert!(
                cut >= keep,
                "lost: the journal ends at {cut}, and {keep} was kept (power {power})"
            );
        } else {
            self.met.damaged += 1;
            return self.begin_anew();
        }
        self.boot().unwrap_or_else(|error| panic!("no boot after a crash: {error}"));
        let mut failed = BTreeMap::new();
        for name in self.engine_queues() {
            for name in [name.dead_letters(), name] {
                for peeked in self.peek(&name) {
                    failed.insert((name.clone(), peeked.seq.0), peeked.failed);
                }
            }
        }
        let unsure = self.model.crash(cut, |queue, seq| failed.get(&(queue.clone(), seq)).copied());
        self.clients.restarted(&self.model.state);
        // Names must agree before anything can be looked at.
        let names: Vec<_> =
            self.model.state.queues.keys().filter(|n| !n.is_dead_letters()).cloned().collect();
        assert_eq!(self.engine_queues(), names, "the queues after a crash");
        self.flipped = flipped.is_some();
        let (lo, hi, out) = self.call(|turn| turn.expire());
        self.model.begin(self.now, lo, hi, true);
        if unsure || lo != hi {
            self.see_places();
        }
        if self.broken {
            self.met.damaged += 1;
            return self.begin_anew();
        }
        self.model.unsure = unsure;
        self.model.expire();
        self.model.unsure = false;
        assert!(out.is_empty(), "nobody is there to be told");
        if unsure {
            // All of it durable first: the totals are then those of the durable state.
            self.unwritten.extend(self.journal.appender.take().into_iter().flatten());
            self.flush();
            let totals =
                self.facts().into_iter().map(|facts| (facts.name.clone(), facts.totals)).collect();
            self.model.adopt_totals(&totals);
        }
        self.unwritten.extend(self.journal.appender.take().into_iter().flatten());
        self.check_all();
        if self.flipped {
            return self.begin_anew();
        }
        if self.rng.chance(30) {
            self.flush();
        }
    }

    fn begin_anew(&mut self) {
        let seed = self.rng.next_u64();
        let mut world = World::new(seed, self.verbose);
        world.met = self.met;
        world.met.add(&Met::default());
        world.hasher = self.hasher.clone();
        world.trace = std::mem::take(&mut self.trace);
        *self = world;
    }

    fn flip(&mut self, disk: &SimDisk, rng: &mut Rng) -> Option<String> {
        use malote_engine::disk::Disk;
        let files: Vec<_> = disk.list().ok()?.into_iter().filter(|e| e.len > 0).collect();
        let file = files.get(rng.below(files.len().max(1) as u64) as usize)?;
        let byte = rng.below(file.len);
        disk.flip_bit(&file.name, byte, rng.below(8) as u8);
        self.met.flips += 1;
        Some(format!("{} at {byte}", file.name))
    }

    fn engine_queues(&mut self) -> Vec<QueueName> {
        self.facts().into_iter().map(|facts| facts.name).collect()
    }

    fn facts(&mut self) -> Vec<QueueFacts> {
        match self.look(Command::List) {
            Ok(Reply::Queues(facts)) => facts,
            other => panic!("a list was answered with {other:?}"),
        }
    }
}

/// A question without its payloads.
fn short(ask: &Ask) -> String {
    let message = |m: &Message| {
        let id = m.message_id.as_deref().unwrap_or_default();
        let session = m.session.as_ref().map_or("-", |session| session.as_str());
        format!("{id} {session} {:?}", m.when)
    };
    match ask {
        Ask::Send { items } => {
            let items: Vec<_> =
                items.iter().map(|(queue, m)| format!("{queue}: {}", message(m))).collect();
            format!("Send {items:?}")
        }
        Ask::Replace { from, seq, to, message: m } => {
            format!("Replace {from} {seq} {to}: {}", message(m))
        }
        other => format!("{other:?}"),
    }
}

fn command_of(ask: &Ask) -> Command {
    let outgoing = |message: &Message| {
        Outgoing::new(message, false)
            .unwrap_or_else(|refusal| panic!("a message is well formed: {refusal}"))
    };
    match ask.clone() {
        Ask::Declare { name, spec } => {
            Command::Declare { name, spec: Box::new(spec), connection: None }
        }
        Ask::Update { name, spec } => Command::Update { name, spec: Box::new(spec) },
        Ask::Delete { name } => Command::Delete { name },
        Ask::Purge { queue } => Command::Purge { queue },
        Ask::Pause { queue, paused } => Command::Pause { queue, paused },
        Ask::Send { items } => Command::Send {
            items: items
                .into_iter()
                .map(|(queue, message)| (queue.into(), outgoing(&message)))
                .collect(),
        },
        Ask::Cancel { queue, seqs } => Command::Cancel { from: queue.into(), seqs },
        Ask::Attach(attach) => Command::Attach(attach),
        Ask::Credit { consumer, credit, replace } => Command::Credit { consumer, credit, replace },
        Ask::Detach { consumer } => Command::Detach { consumer },
        Ask::Disconnect { connection, clean } => {
            Command::Disconnect { connection: ConnectionId(connection), clean }
        }
        Ask::ReceiveDeferred { queue, seqs, hold, lock_ms, take, connection } => {
            let connection = connection.map(ConnectionId);
            Command::ReceiveDeferred { queue, seqs, hold, lock_ms, take, connection }
        }
        Ask::Settle { leases, settlement, state } => {
            let state = state.map(|(hold, state)| StateChange { hold, state });
            Command::Settle { leases, settlement, state }
        }
        Ask::Renew { leases, lock_ms } => Command::Renew { leases, lock_ms },
        Ask::Accept(accept) => Command::Accept(accept),
        Ask::ReleaseSession { hold } => Command::ReleaseSession { hold },
        Ask::SetState { hold, state } => Command::SetState { change: StateChange { hold, state } },
        Ask::GetState { queue, session, hold } => Command::GetState { queue, session, hold },
        Ask::BreakSession { queue, session } => Command::BreakSession { queue, session },
        Ask::Move { from, items } => Command::Move { from, items, why: REDRIVE },
        Ask::Replace { from, seq, to, message } => {
            Command::Replace { from, seq, to, message: outgoing(&message) }
        }
    }
}
