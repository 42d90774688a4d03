//! The whole engine in one thread, deterministic: the real handle, mailbox, admission, shard loop, pipeline, reads,
//! spares and housekeeping, on the simulated disk and with clocks that are set forward and back.
//!
//! Clients are futures that use the engine as front ends do. The simulation chooses which client and which step of
//! the engine runs next, and cancels clients at any point. Each run of the engine ends with power loss, a kill, a
//! failed disk or an orderly stop. The reference model of [`crate::world`] is exact about the core. Here only what
//! clients can see is checked ([`history`]), and that the engine releases everything it reserved.

mod clients;
mod history;
mod slow;
mod tasks;
mod time;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use malote_engine::chance::Chance;
use malote_engine::clock::SystemClock;
use malote_engine::disk::Disk;
use malote_engine::journal::{Options, restore};
use malote_engine::{AdmissionLimits, Engine, EngineError, Peek, PeekedMessage, Stepwise};
use malote_model::{QueueName, Seq, Timestamp};

use self::clients::{QUEUES, Shared, name};
use self::history::{History, Which};
use self::tasks::Tasks;
use self::time::Clocks;
use crate::disk::{Faults, SimDisk};
use crate::rng::Rng;

/// Data directories of earlier versions.
const OLD: [&[u8]; 2] = [
    include_bytes!("../../../../crates/engine/tests/fixtures/v1.backup"),
    include_bytes!("../../../../crates/engine/tests/fixtures/v2.backup"),
];

const CLIENTS: usize = 12;

/// Rounds in which all requests must end. Longer means that they never end.
const ROUNDS_MAX: u32 = 30_000;

/// Rounds after which everything that was due at a start has happened.
const ROUNDS_AFTER_START: u32 = 50;

/// The engine of a seed.
pub struct Stepped {
    disk: SimDisk,
    options: Options,
    rooms: AdmissionLimits,
    clocks: Clocks,
    rng: Rng,
    history: Shared,
    life: Option<Life>,
    tasks: Tasks,
    lives: u64,
    last_told: Timestamp,
}

/// One run of the engine, from a start to its end.
struct Life {
    engine: Engine,
    steps: Stepwise,
}

/// How a run of the engine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Power,
    Kill,
    Stop,
}

impl Stepped {
    pub fn new(seed: u64, verbose: bool) -> Self {
        let mut rng = Rng::new(seed ^ 0x7374_6570);
        let options = Options {
            segment_bytes: (96 + rng.below(64)) << 10,
            first_segment_bytes: 16 << 10,
            spares: 3,
            spares_reserved: 2,
            free_bytes_min: 0,
            snapshot_after_bytes: 24 << 10,
            snapshot_after_ratio: 1,
            compact_floor_bytes: rng.below(3) * (100 << 10),
            scrub_bytes_per_s: 64 << 10,
            ..Options::default()
        };
        let rooms = match rng.below(3) {
            0 => AdmissionLimits::default(),
            _ => AdmissionLimits {
                sends_kib_max: 1 + rng.below(16) as u32,
                asks_kib_max: 1 + rng.below(16) as u32,
            },
        };
        let clocks = Clocks::starting_at(1_700_000_000_000);
        let history = History::new(Rng::new(rng.next_u64()), clocks.clone(), verbose);
        let mut world = Self {
            disk: SimDisk::new(),
            options,
            rooms,
            clocks,
            rng,
            history: Rc::new(RefCell::new(history)),
            life: None,
            tasks: Tasks::default(),
            lives: 0,
            last_told: Timestamp(0),
        };
        let old = world.rng.chance(25);
        if old {
            let mut bytes = OLD[world.rng.below(2) as usize];
            restore(&mut bytes, &world.disk).unwrap_or_else(|error| panic!("fixture: {error}"));
        }
        world.open();
        if old {
            let found = world.old_ids();
            assert!(found.len() > 10, "too few messages in the fixture: {found:?}");
            world.history.borrow_mut().old = found;
            world.met("stepped: old versions opened");
        }
        world
    }

    fn met(&self, what: &'static str) {
        self.history.borrow_mut().met.count(what, 1);
    }

    /// The last steps, for a failure report.
    pub fn last_steps(&self) -> Vec<String> {
        self.history.borrow().trace.clone()
    }

    pub fn take_met(&mut self) -> crate::situations::Situations {
        std::mem::take(&mut self.history.borrow_mut().met)
    }

    /// A hash of everything that clients saw, and of the disk after each run.
    pub fn hash(&self) -> u64 {
        let mut hasher = self.history.borrow().hasher.clone();
        self.disk.state_hash().hash(&mut hasher);
        hasher.finish()
    }

    fn life(&mut self) -> &mut Life {
        self.life.as_mut().expect("the engine is open")
    }

    fn open(&mut self) {
        self.lives += 1;
        let (disk, clocks) = (Arc::new(self.disk.clone()), self.clocks.clone());
        let chance = Chance::of_seed(self.rng.next_u64());
        let opened = Engine::open_stepwise(
            disk,
            &self.options,
            chance,
            |floor| Arc::new(SystemClock::following(clocks, floor)),
            self.rooms,
        );
        let (engine, steps) =
            opened.unwrap_or_else(|error| panic!("the engine did not start: {error}"));
        let report = steps.running().report();
        assert!(report.damaged.is_empty() && report.unreadable_segments.is_empty(), "{report:?}");
        assert_eq!(report.diverged, None, "the replay differs from the served state");
        // Times that were returned but not journaled may be repeated, if the wall clock was set back meanwhile.
        self.last_told = engine.now();
        self.life = Some(Life { engine: engine.clone(), steps });
        let declared = self.run(clients::declare(engine));
        declared.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Runs the engine until `work` is done. No client runs meanwhile.
    fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        for _ in 0..ROUNDS_MAX {
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(done) = work.as_mut().poll(&mut cx) {
                return done;
            }
            self.pump();
        }
        panic!("the engine did not answer");
    }

    /// Performs each step of the engine once.
    fn pump(&mut self) {
        let steps = &mut self.life().steps;
        steps.turn();
        steps.write();
        steps.sync(true);
        steps.read();
        let _ = steps.make_spare();
    }

    pub fn step(&mut self) {
        while self.tasks.len() < CLIENTS && !self.history.borrow().stopping {
            let engine = self.life().engine.clone();
            self.tasks.spawn(clients::any(&engine, &self.history));
        }
        let step = self.rng.below(1000);
        match step {
            0..330 => {
                self.tasks.poll_one(&mut self.rng);
            }
            330..520 => drop(self.life().steps.turn()),
            520..640 => drop(self.life().steps.write()),
            640..730 => {
                let lazy = self.rng.chance(30);
                self.life().steps.sync(lazy);
            }
            730..750 => drop(self.life().steps.read()),
            750..790 => drop(self.life().steps.make_spare()),
            790..850 => self.life().steps.keep_house(),
            850..960 => self.clocks.pass(self.step_ms(step)),
            960..966 => self.set_wall_clock(),
            966..978 => {
                self.tasks.give_up(&mut self.rng);
                self.met("stepped: given up");
            }
            978..980 => self.set_faults(),
            980..984 => self.end_life(),
            _ => self.look_at_time(),
        }
        let life = self.life();
        if life.steps.running().is_poisoned() {
            self.check_poisoned();
        }
    }

    fn step_ms(&self, step: u64) -> u64 {
        let mut rng = self.history.borrow_mut();
        match step {
            850..940 => 1 + rng.rng.below(40),
            940..957 => rng.rng.below(2_000),
            _ => rng.rng.below(30_000),
        }
    }

    fn set_wall_clock(&mut self) {
        let ms = [500, 4_000, 60_000, 3_600_000][self.rng.below(4) as usize] + self.rng.below(1000);
        let forward = self.rng.chance(50);
        match forward {
            true => self.clocks.set_forward(ms),
            false => self.clocks.set_back(ms),
        }
        self.met(if forward { "stepped: clock set forward" } else { "stepped: clock set back" });
        let words = if forward { "forward" } else { "back" };
        self.history.borrow_mut().say(format!("the wall clock is set {words} by {ms} ms"));
    }

    /// The engine's time never goes back.
    fn look_at_time(&mut self) {
        let now = self.life().engine.now();
        assert!(now >= self.last_told, "the time went back to {now:?} from {:?}", self.last_told);
        self.last_told = now;
    }

    fn set_faults(&mut self) {
        let mut faults = Faults::default();
        match self.rng.below(3) {
            0 => faults.sync_fails_in = Some(self.rng.below(20)),
            1 => faults.write_fails_in = Some(self.rng.below(30)),
            _ => {
                let used: u64 = self.disk.list().map_or(0, |all| all.iter().map(|e| e.len).sum());
                faults.capacity_bytes = Some(used + self.rng.below(200 << 10));
            }
        }
        self.history.borrow_mut().say(format!("{faults:?}"));
        self.disk.set_faults(faults);
    }

    /// The disk failed: every client must get an error.
    fn check_poisoned(&mut self) {
        self.met("stepped: poisoned");
        self.history.borrow_mut().stopping = true;
        self.end_tasks("the engine failed");
        self.begin_again(End::Power);
    }

    /// Every client must end by itself, with an answer or an error.
    fn end_tasks(&mut self, why: &str) {
        for _ in 0..ROUNDS_MAX {
            while self.tasks.poll_one(&mut self.rng) {}
            if self.tasks.len() == 0 {
                return;
            }
            self.pump();
            self.clocks.pass(100);
        }
        panic!("{why}, but {} clients still wait", self.tasks.len());
    }

    fn end_life(&mut self) {
        let end = [End::Power, End::Power, End::Kill, End::Stop][self.rng.below(4) as usize];
        if end == End::Stop {
            self.stop();
        }
        self.begin_again(end);
    }

    /// An orderly stop: pending requests are answered, and nothing is lost.
    fn stop(&mut self) {
        self.disk.set_faults(Faults::default());
        self.life().steps.close();
        self.end_tasks("the engine stopped");
        for _ in 0..ROUNDS_MAX {
            let steps = &mut self.life().steps;
            let serving = steps.turn();
            if !serving && !steps.write() && !steps.sync(true) {
                return;
            }
        }
        panic!("the engine did not stop");
    }

    fn begin_again(&mut self, end: End) {
        self.met(match end {
            End::Power => "stepped: power lost",
            End::Kill => "stepped: killed",
            End::Stop => "stepped: stopped",
        });
        self.history.borrow_mut().say(format!("{end:?}"));
        let power = end == End::Power;
        let disk = match power {
            true => self.disk.crashed(&mut self.rng),
            false => self.disk.killed(),
        };
        disk.state_hash().hash(&mut self.history.borrow_mut().hasher);
        // Cancelled clients only affect the old disk.
        self.tasks.give_up_all();
        self.life = None;
        self.disk = disk;
        self.history.borrow_mut().stopping = false;
        self.open();
        // Due messages in topics reach their subscriptions.
        for _ in 0..ROUNDS_AFTER_START {
            self.pump();
            self.clocks.pass(1);
        }
        let found = self.found();
        let now = self.life().engine.now();
        self.history.borrow_mut().reopened(&found, power, now);
        self.check_old();
    }

    /// The messages of all queues of this simulation, in order.
    fn found(&mut self) -> Vec<Which> {
        let mut all = Vec::new();
        for queue in 0..QUEUES.len() as u64 {
            let seen = self.peek_all(name(queue)).unwrap_or_else(|error| panic!("{error}"));
            for PeekedMessage { stored, seq, .. } in seen {
                let stored = stored.unwrap_or_else(|_| panic!("{seq} of {queue} is unreadable"));
                let which = Which::of(&stored.message);
                assert_eq!(which.queue, queue, "{which:?} is in the wrong queue");
                all.push(which);
            }
        }
        all
    }

    fn peek_all(&mut self, queue: QueueName) -> Result<Vec<PeekedMessage>, EngineError> {
        let (mut all, mut from) = (Vec::new(), Seq(0));
        loop {
            let engine = self.life().engine.clone();
            let peek = Peek { queue: queue.clone(), from, max: 1000, session: None, state: None };
            let (seen, next) = self.run(async move { engine.peek(peek).await })?;
            all.extend(seen);
            let Some(next) = next else { return Ok(all) };
            from = next;
        }
    }

    /// Ids of all messages in other queues, which this simulation did not declare, including dead letters.
    fn old_ids(&mut self) -> BTreeSet<String> {
        let engine = self.life().engine.clone();
        let listed = self.run(async move { engine.list().await });
        let facts = listed.unwrap_or_else(|error| panic!("{error}"));
        let mut ids = BTreeSet::new();
        for facts in facts.into_iter().filter(|facts| !facts.name.as_str().starts_with("sim-")) {
            for queue in [facts.name.dead_letters(), facts.name] {
                for seen in self.peek_all(queue).unwrap_or_default() {
                    let stored =
                        seen.stored.unwrap_or_else(|_| panic!("{} is unreadable", seen.seq));
                    // Messages with a time to live may expire.
                    if stored.message.ttl_ms.is_none() {
                        ids.extend(stored.message.message_id);
                    }
                }
            }
        }
        ids
    }

    /// Checks that messages of an earlier version still exist.
    fn check_old(&mut self) {
        let old = self.history.borrow().old.clone();
        if !old.is_empty() {
            let there = self.old_ids();
            let lost: Vec<_> = old.difference(&there).collect();
            assert!(lost.is_empty(), "messages of an earlier version were lost: {lost:?}");
        }
    }

    /// The end: all sent messages are delivered and completed, and then no request is left.
    pub fn finish(&mut self) {
        self.disk.set_faults(Faults::default());
        self.begin_again(End::Kill);
        self.read_slowly();
        self.history.borrow_mut().producing = false;
        let mut rounds = 0;
        while !self.history.borrow().all_done() {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                let left: Vec<_> = self.history.borrow().left().take(5).copied().collect();
                let (engine, queue) = (self.life().engine.clone(), name(left[0].queue));
                let facts = self.run(async move { engine.describe(queue).await });
                let next_wake = self.life().steps.next_wake();
                let now = self.life().engine.now();
                panic!("never completed: {left:?}; at {now:?}, next wake {next_wake:?}: {facts:?}");
            }
            while self.tasks.len() < CLIENTS {
                let engine = self.life().engine.clone();
                self.tasks.spawn(clients::any(&engine, &self.history));
            }
            while self.tasks.poll_one(&mut self.rng) {}
            // Some clients wait at a queue that stays empty.
            if self.rng.chance(5) {
                self.tasks.give_up(&mut self.rng);
            }
            self.pump();
            self.life().steps.keep_house();
            self.clocks.pass(50);
        }
        self.tasks.give_up_all();
        for _ in 0..200 {
            self.pump();
            self.clocks.pass(10);
        }
        let damaged = self.life().engine.damaged();
        assert_eq!(damaged, 0, "messages could not be read for delivery");
        let steps = &self.life().steps;
        assert!(steps.is_idle(), "requests or their reservations are left without a client");
        let wrong = steps.audit();
        assert!(wrong.is_empty(), "the engine's state is inconsistent: {}", wrong.join("; "));
        let diverged = self.life().engine.disk().diverged;
        assert_eq!(diverged, 0, "a snapshot differs from the served state");
    }
}
