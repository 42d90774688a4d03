//! The contract on brokers with several servers, one of which fails in every case: a node of a RabbitMQ cluster is
//! killed, or a PostgreSQL primary crashes and its standby is promoted. `cargo xtask conformance cluster` runs it.
//!
//! Each case runs without a fault first. Then a server fails before or during one of its calls, a different call for
//! each case. A fault may cause missing answers, lost locks, redeliveries and duplicates. Calls with transient errors
//! are repeated, as users must do. A case that met another effect may fail, but must pass when it runs again while
//! the server is down. In any case, every acknowledged and unsettled message must be in its queue afterwards, in
//! order.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test code

mod audit;
#[path = "../contract/basics.rs"]
mod basics;
#[path = "../contract/capabilities.rs"]
mod capabilities;
#[macro_use]
#[allow(unused_macros)]
#[path = "../contract/cases.rs"]
mod cases;
#[path = "../common/mod.rs"]
mod common;
mod expected;
mod rabbitmq;
mod retrying;
mod servers;
#[path = "../contract/sessions.rs"]
mod sessions;
mod trial;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use malote_connectors::postgres::PostgresBroker;
use malote_connectors::rabbitmq::RabbitMq;
use malote_connectors::{Broker, BrokerFuture, Capability};
use malote_model::{Message, QueueSpec};
use parking_lot::Mutex;
use retrying::RetryingBroker;
use servers::Servers;
use trial::{Counters, Trial};

/// The environment of one trial.
struct TestEnv {
    url: String,
    trial: Arc<Trial>,
}

impl TestEnv {
    async fn connect(&self) -> Arc<dyn Broker> {
        Arc::new(RetryingBroker::connect(&self.trial, || self.plain()).await.unwrap())
    }

    fn is_rabbitmq(&self) -> bool {
        self.url.starts_with("amqp")
    }

    /// A connection that is neither retried nor recorded.
    fn plain(&self) -> BrokerFuture<'static, Arc<dyn Broker>> {
        let (url, is_rabbitmq) = (self.url.clone(), self.is_rabbitmq());
        Box::pin(async move {
            let broker: Arc<dyn Broker> = match is_rabbitmq {
                true => Arc::new(RabbitMq::connect(&url).await?),
                false => Arc::new(PostgresBroker::connect(&url).await?),
            };
            Ok(broker)
        })
    }

    async fn make_queue(&self, broker: &dyn Broker, spec: QueueSpec) {
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

        async fn named(name: &str, env: &TestEnv) {
            match name {
                $(stringify!($case) => cases::$module::$case(env).await,)+
                other => panic!("unknown case {other}"),
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

    async fn run(self, env: &TestEnv) {
        match self {
            Self::Named(name) => named(name, env).await,
            Self::Capability(what) => {
                let can = match env.is_rabbitmq() {
                    true => malote_connectors::rabbitmq::CAPABILITIES,
                    false => malote_connectors::postgres::CAPABILITIES,
                };
                match can.has(what) {
                    true => cases::run_capability_case(env, what).await,
                    false => capabilities::refuse(env, what).await,
                }
            }
        }
    }
}

/// All cases on one broker.
struct Run {
    /// Shifts the faults to other calls.
    round: usize,
    servers: Arc<Servers>,
    counters: Arc<Counters>,
    /// Cases that passed with the fault.
    passed: usize,
    /// Cases that met an effect of the fault and passed when they ran again.
    passed_again: usize,
    failures: Vec<String>,
}

/// The result of a trial.
struct TrialResult {
    trial: Arc<Trial>,
    /// Why the case failed.
    case_failure: Option<String>,
    /// Why the audit failed. No fault explains it.
    audit_failure: Option<String>,
}

impl Run {
    /// Runs a case and the audit.
    fn trial(
        &self,
        case: Case,
        via_victim: bool,
        fault_at: Option<usize>,
        is_down: bool,
    ) -> TrialResult {
        let trial = Trial::new(&self.servers, &self.counters, fault_at, is_down);
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(2).enable_all().build().unwrap()
        };
        let env = TestEnv { url: self.servers.url(via_victim), trial: trial.clone() };
        let result = |ran: std::thread::Result<()>| {
            let result = std::mem::take(&mut *PANICS.lock());
            ran.err().map(|_| result.join("; "))
        };
        // Tasks that a case leaves behind end with its runtime.
        let case_failure =
            result(catch_unwind(AssertUnwindSafe(|| runtime().block_on(case.run(&env)))));
        let audit_failure =
            result(catch_unwind(AssertUnwindSafe(|| runtime().block_on(audit::audit(&env)))));
        TrialResult { trial, case_failure, audit_failure }
    }

    /// Runs a case without a fault, with a fault, and if needed again while a server is down.
    fn case(&mut self, index: usize, case: Case) {
        let name = case.name();
        let whole = self.trial(case, true, None, false);
        if let Some(why) = whole.case_failure.or(whole.audit_failure) {
            println!("{name}: FAILED on all servers: {why}");
            self.failures.push(format!("{name}, on all servers: {why}"));
            return;
        }
        // A different call in each case and round; mostly on the server that clients are connected to.
        let calls = whole.trial.calls().max(1);
        let (fault_at, via_victim) = ((index * 5 + 4 + self.round) % calls, index % 4 != 3);
        let TrialResult { trial, case_failure, audit_failure } =
            self.trial(case, via_victim, Some(fault_at), false);
        let excuses = trial.excuses();
        let result = match (case_failure, audit_failure) {
            (None, None) => {
                self.passed += 1;
                "passed".to_owned()
            }
            (Some(_), None) if !excuses.is_empty() => {
                let rerun = self.trial(case, via_victim, None, trial.is_fault_done());
                match rerun.case_failure.or(rerun.audit_failure) {
                    None => {
                        self.passed_again += 1;
                        format!("{}; passed when it ran again", excuses.join(", "))
                    }
                    Some(why) => format!("FAILED when it ran again: {why}"),
                }
            }
            (case_failure, audit_failure) => {
                format!("FAILED: {}", audit_failure.or(case_failure).unwrap_or_default())
            }
        };
        if result.starts_with("FAILED") {
            self.failures.push(format!("{name}, fault in call {fault_at}: {result}"));
        }
        println!("{name}: fault in call {fault_at} of {calls}: {result}");
        self.servers.restore();
    }
}

/// Messages of panics. They are printed only if they are failures.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Serializes the tests: machines have few cores, and a process has one panic hook.
static SERIAL: Mutex<()> = Mutex::new(());

fn env_var(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn run(servers: Servers) {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.lock().push(panic.to_string().replace('\n', " "))
    }));
    let servers = Arc::new(servers);
    let round = env_var("ROUND").and_then(|round| round.parse().ok()).unwrap_or(0);
    let mut run = Run {
        round,
        servers,
        counters: Arc::default(),
        passed: 0,
        passed_again: 0,
        failures: Vec::new(),
    };
    // `CASE=name` selects one case.
    let wanted = env_var("CASE");
    let mut cases = 0;
    for (index, case) in Case::all().enumerate() {
        if wanted.as_ref().is_none_or(|wanted| *wanted == case.name()) {
            run.case(index, case);
            cases += 1;
        }
    }
    let _ = std::panic::take_hook();
    let value = |counter: &AtomicUsize| counter.load(Relaxed);
    let Run { servers, counters, passed, passed_again, failures, .. } = run;
    println!(
        "{cases} cases: {passed} passed with the fault, {passed_again} met an effect of the fault and passed when they ran again, \
         {} failed; {} {}; {} calls, {} repeated; {} messages sent, {} sent again, {} delivered, {} settled, {} locks \
         lost, {} delivered after their completion; {} messages were in their queues afterwards, in order, \
         {} of them only after all servers were restored",
        failures.len(),
        value(&counters.faults),
        servers.fault(),
        value(&counters.calls),
        value(&counters.repeated),
        value(&counters.sent),
        value(&counters.sent_again),
        value(&counters.delivered),
        value(&counters.settled),
        value(&counters.locks_lost),
        value(&counters.delivered_after_completion),
        value(&counters.found),
        value(&counters.late),
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(passed + passed_again > 0 && value(&counters.faults) > 0, "no case met a fault");
}

#[test]
fn rabbitmq_with_a_node_killed_in_every_case() {
    let _turn = SERIAL.lock();
    run(Servers::rabbitmq());
}

#[test]
fn postgres_with_a_standby_promoted_in_every_case() {
    let _turn = SERIAL.lock();
    run(Servers::postgres());
}
