//! The contract on brokers of several servers, one of which fails inside every case: three nodes of RabbitMQ, one killed;
//! PostgreSQL whose primary crashes and whose standby is promoted. `cargo xtask conformance cluster` runs it.
//!
//! Each case runs on all servers first. Then one fails before or during one of its calls, another one for each case. Where
//! it fails, an answer may be missing, a lock may be lost, and a message may come again or be there twice: calls with errors
//! that pass are made again, as every user of a broker must, and a case that met one of the others need not hold, but has to
//! when it runs again with the server still away. Whatever happened, every message that was answered and not settled
//! must be there afterwards, and in order.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

mod audit;
#[path = "../contract/basics.rs"]
mod basics;
#[path = "../contract/can.rs"]
mod can;
#[macro_use]
#[allow(unused_macros)]
#[path = "../contract/cases.rs"]
mod cases;
#[path = "../common/mod.rs"]
mod common;
mod ledger;
mod rabbitmq;
mod servers;
#[path = "../contract/sessions.rs"]
mod sessions;
mod steady;
mod trial;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use malote_connectors::postgres::Postgres;
use malote_connectors::rabbitmq::RabbitMq;
use malote_connectors::{Broker, Capability, Doing};
use malote_model::{Message, QueueSpec};
use parking_lot::Mutex;
use servers::Servers;
use steady::Steady;
use trial::{Tally, Trial};

/// A trial's place on the servers.
struct World {
    url: String,
    trial: Arc<Trial>,
}

impl World {
    async fn connect(&self) -> Arc<dyn Broker> {
        Arc::new(Steady::connect(&self.trial, || self.plain()).await.unwrap())
    }

    fn is_rabbitmq(&self) -> bool {
        self.url.starts_with("amqp")
    }

    /// A connection that nobody watches.
    fn plain(&self) -> Doing<'static, Arc<dyn Broker>> {
        let (url, is_rabbitmq) = (self.url.clone(), self.is_rabbitmq());
        Box::pin(async move {
            let broker: Arc<dyn Broker> = match is_rabbitmq {
                true => Arc::new(RabbitMq::connect(&url).await?),
                false => Arc::new(Postgres::connect(&url).await?),
            };
            Ok(broker)
        })
    }

    async fn make(&self, broker: &dyn Broker, spec: QueueSpec) {
        broker.declare(&common::queue(cases::Q), spec).await.unwrap();
    }

    fn counts_receives(&self) -> bool {
        true
    }

    fn delivered(&self, sent: Message) -> Message {
        sent
    }
}

/// A case of the contract.
#[derive(Clone, Copy)]
enum Case {
    Named(&'static str),
    Capability(Capability),
}

macro_rules! by_name {
    ($($module:ident: $case:ident,)+) => {
        const NAMED: &[&str] = &[$(stringify!($case)),+];

        async fn named(name: &str, world: &World) {
            match name {
                $(stringify!($case) => cases::$module::$case(world).await,)+
                other => panic!("there is no case {other}"),
            }
        }
    };
}
cases!(by_name);

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        let capabilities = Capability::ALL.iter().map(|&what| Self::Capability(what));
        NAMED.iter().map(|&name| Self::Named(name)).chain(capabilities)
    }

    fn name(self) -> String {
        match self {
            Self::Named(name) => name.to_owned(),
            Self::Capability(what) => format!("{what:?}"),
        }
    }

    async fn run(self, world: &World) {
        match self {
            Self::Named(name) => named(name, world).await,
            Self::Capability(what) => {
                let can = match world.is_rabbitmq() {
                    true => malote_connectors::rabbitmq::CAPABILITIES,
                    false => malote_connectors::postgres::CAPABILITIES,
                };
                match can.has(what) {
                    true => cases::of_capability(world, what).await,
                    false => can::refuse(world, what).await,
                }
            }
        }
    }
}

/// One broker and all its cases.
struct Run {
    /// Moves the faults.
    round: usize,
    servers: Arc<Servers>,
    tally: Arc<Tally>,
    /// Cases that held with the fault inside.
    held: usize,
    /// Cases that met what a fault may do, and held when they ran again.
    again: usize,
    failures: Vec<String>,
}

/// What became of a trial.
struct Ended {
    trial: Arc<Trial>,
    /// Why the case did not come to its end.
    broken: Option<String>,
    /// What was wrong afterwards: no fault explains it.
    wrong: Option<String>,
}

impl Run {
    /// Runs a case, and looks after it for what must be there.
    fn trial(&self, case: Case, through: bool, fault_at: Option<usize>, is_down: bool) -> Ended {
        let trial = Trial::new(&self.servers, &self.tally, fault_at, is_down);
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(2).enable_all().build().unwrap()
        };
        let world = World { url: self.servers.url(through), trial: trial.clone() };
        let said = |ran: std::thread::Result<()>| {
            let said = std::mem::take(&mut *SAID.lock());
            ran.err().map(|_| said.join("; "))
        };
        // What a case leaves behind ends with its runtime.
        let broken = said(catch_unwind(AssertUnwindSafe(|| runtime().block_on(case.run(&world)))));
        let wrong =
            said(catch_unwind(AssertUnwindSafe(|| runtime().block_on(audit::audit(&world)))));
        Ended { trial, broken, wrong }
    }

    /// The nth case: on all servers, with a fault inside, and if need be with one server away.
    fn case(&mut self, nth: usize, case: Case) {
        let name = case.name();
        let whole = self.trial(case, true, None, false);
        if let Some(why) = whole.broken.or(whole.wrong) {
            println!("{name}: FAILED on all servers: {why}");
            self.failures.push(format!("{name}, on all servers: {why}"));
            return;
        }
        // Another call in each case, and in each round; mostly of the server that clients talk to.
        let calls = whole.trial.calls().max(1);
        let (fault_at, through) = ((nth * 5 + 4 + self.round) % calls, nth % 4 != 3);
        let Ended { trial, broken, wrong } = self.trial(case, through, Some(fault_at), false);
        let excuses = trial.excuses();
        let said = match (broken, wrong) {
            (None, None) => {
                self.held += 1;
                "held".to_owned()
            }
            (Some(_), None) if !excuses.is_empty() => {
                let away = self.trial(case, through, None, trial.has_struck());
                match away.broken.or(away.wrong) {
                    None => {
                        self.again += 1;
                        format!("{}; held when it ran again", excuses.join(", "))
                    }
                    Some(why) => format!("FAILED when it ran again: {why}"),
                }
            }
            (broken, wrong) => format!("FAILED: {}", wrong.or(broken).unwrap_or_default()),
        };
        if said.starts_with("FAILED") {
            self.failures.push(format!("{name}, fault in call {fault_at}: {said}"));
        }
        println!("{name}: fault in call {fault_at} of {calls}: {said}");
        self.servers.mend();
    }
}

/// What a case said before it ended too early: most of it is no failure, and told where it is one.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// One broker of several servers at a time: machines have few cores, and a process has one panic hook.
static TURN: Mutex<()> = Mutex::new(());

fn set(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn run(servers: Servers) {
    std::panic::set_hook(Box::new(|panic| SAID.lock().push(panic.to_string().replace('\n', " "))));
    let servers = Arc::new(servers);
    let round = set("ROUND").and_then(|round| round.parse().ok()).unwrap_or(0);
    let mut run =
        Run { round, servers, tally: Arc::default(), held: 0, again: 0, failures: Vec::new() };
    // `CASE=name` runs one of them.
    let wanted = set("CASE");
    let mut cases = 0;
    for (nth, case) in Case::all().enumerate() {
        if wanted.as_ref().is_none_or(|wanted| *wanted == case.name()) {
            run.case(nth, case);
            cases += 1;
        }
    }
    let _ = std::panic::take_hook();
    let of = |figure: &AtomicUsize| figure.load(Relaxed);
    let Run { servers, tally, held, again, failures, .. } = run;
    println!(
        "{cases} cases: {held} held with the fault inside, {again} met a lost lock or answer and held when they ran again, \
         {} failed; {} {}; {} calls, {} repeated; {} messages sent, {} sent again, {} delivered, {} settled, {} locks \
         lost, {} came again after their completion; {} had to be there afterwards and were, in order, \
         {} of them only when all servers were back",
        failures.len(),
        of(&tally.faults),
        servers.fault(),
        of(&tally.calls),
        of(&tally.repeated),
        of(&tally.sent),
        of(&tally.sent_again),
        of(&tally.delivered),
        of(&tally.settled),
        of(&tally.locks_lost),
        of(&tally.came_again),
        of(&tally.found),
        of(&tally.late),
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(held + again > 0 && of(&tally.faults) > 0, "no case met a fault");
}

#[test]
fn rabbitmq_with_a_node_killed_in_every_case() {
    let _turn = TURN.lock();
    run(Servers::rabbitmq());
}

#[test]
fn postgres_with_a_standby_promoted_in_every_case() {
    let _turn = TURN.lock();
    run(Servers::postgres());
}
