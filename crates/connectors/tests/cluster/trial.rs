//! One run of one case: the fault, and the effects that it explains.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use malote_connectors::{BrokerError, BrokerFuture};
use malote_model::QueueName;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::expected::{Anomaly, ExpectedMessages};
use crate::servers::Servers;

/// A cluster needs time to notice the failure of a member.
const REPEAT_FOR: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

/// Counters of a whole run.
#[derive(Default)]
pub struct Counters {
    pub trials: AtomicUsize,
    pub faults: AtomicUsize,
    /// Calls made by cases.
    pub calls: AtomicUsize,
    /// Calls repeated after a transient error.
    pub repeated: AtomicUsize,
    pub sent: AtomicUsize,
    /// Messages of repeated sends.
    pub sent_again: AtomicUsize,
    pub delivered: AtomicUsize,
    pub settled: AtomicUsize,
    pub locks_lost: AtomicUsize,
    /// Messages delivered after their completion.
    pub delivered_after_completion: AtomicUsize,
    /// Messages that arrived only after all servers were restored.
    pub late: AtomicUsize,
    /// Messages that had to be in their queue after a case.
    pub found: AtomicUsize,
}

pub struct Trial {
    servers: Arc<Servers>,
    /// Unique in a run.
    number: usize,
    pub counters: Arc<Counters>,
    pub expected: Mutex<ExpectedMessages>,
    /// The index of the call with the fault.
    fault_at: Option<usize>,
    calls: AtomicUsize,
    /// A server fails or is down: answers may be missing, and locks may be lost.
    has_fault: AtomicBool,
    fault_done: watch::Sender<bool>,
    excuses: Mutex<Vec<&'static str>>,
}

impl Trial {
    pub fn new(
        servers: &Arc<Servers>,
        counters: &Arc<Counters>,
        fault_at: Option<usize>,
        is_down: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            servers: servers.clone(),
            number: counters.trials.fetch_add(1, Relaxed),
            counters: counters.clone(),
            expected: Mutex::default(),
            fault_at,
            calls: AtomicUsize::new(0),
            has_fault: AtomicBool::new(is_down),
            fault_done: watch::Sender::new(false),
            excuses: Mutex::default(),
        })
    }

    /// The name of the case's queue in this trial.
    pub fn trial_queue(&self, queue: &QueueName) -> QueueName {
        let trial_queue = |name: &str| QueueName::new(&format!("{name}-{}", self.number)).unwrap();
        queue
            .owner()
            .map_or_else(|| trial_queue(queue.as_str()), |owner| trial_queue(owner).dead_letters())
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    pub fn is_fault_done(&self) -> bool {
        *self.fault_done.borrow()
    }

    /// Effects of the fault on this trial.
    pub fn excuses(&self) -> Vec<&'static str> {
        self.excuses.lock().clone()
    }

    fn excuse(&self, what: &'static str) {
        let mut excuses = self.excuses.lock();
        if self.has_fault.load(Relaxed) && !excuses.contains(&what) {
            excuses.push(what);
        }
    }

    /// Begins a call. If it is the one with the fault, a server fails before or during it.
    async fn begin_call(&self) {
        self.counters.calls.fetch_add(1, Relaxed);
        let call = self.calls.fetch_add(1, Relaxed);
        if Some(call) != self.fault_at {
            return;
        }
        self.has_fault.store(true, Relaxed);
        self.counters.faults.fetch_add(1, Relaxed);
        let (servers, fault_done) = (self.servers.clone(), self.fault_done.clone());
        tokio::task::spawn_blocking(move || {
            servers.fail_one();
            fault_done.send_replace(true);
        });
        if call.is_multiple_of(2) {
            let mut fault_done = self.fault_done.subscribe();
            let _ = fault_done.wait_for(|fault_done| *fault_done).await; // the sender is alive
        }
    }

    /// Repeats a call after transient errors, which are allowed only with a fault.
    pub async fn retry<'a, T>(
        &self,
        call: impl FnMut() -> BrokerFuture<'a, T> + Send,
    ) -> Result<T, BrokerError> {
        self.retry_noting(call, |_| {}).await
    }

    /// Like `retry`, and calls `note` before each repetition.
    pub async fn retry_noting<'a, T>(
        &self,
        mut call: impl FnMut() -> BrokerFuture<'a, T> + Send,
        note: impl Fn(&BrokerError) + Send + Sync,
    ) -> Result<T, BrokerError> {
        self.begin_call().await;
        let until = Instant::now() + REPEAT_FOR;
        loop {
            match call().await {
                Err(error) if self.may_retry(&error, until) => {
                    note(&error);
                    tokio::time::sleep(PAUSE).await;
                }
                Err(BrokerError::LockLost) => {
                    self.excuse("a lock was lost");
                    return Err(BrokerError::LockLost);
                }
                answer => return answer,
            }
        }
    }

    /// Whether an error is transient and explained by a fault.
    pub fn may_retry(&self, error: &BrokerError, until: Instant) -> bool {
        let may = error.is_transient() && self.has_fault.load(Relaxed) && Instant::now() < until;
        if may {
            self.counters.repeated.fetch_add(1, Relaxed);
        }
        may
    }

    /// Records a lost lock.
    pub fn lock_lost(&self) {
        self.counters.locks_lost.fetch_add(1, Relaxed);
        self.excuse("a lock was lost");
    }

    /// Records a repeated send, which may cause duplicates.
    pub fn sent_again(&self, messages: usize) {
        self.counters.sent_again.fetch_add(messages, Relaxed);
        self.excuse("a send had no answer");
    }

    /// Records a missing answer: the leased messages return only when their lock ends.
    pub fn answer_lost(&self, error: &BrokerError) {
        if let BrokerError::Unreachable { .. } = error {
            self.excuse("the answer of a fetch or accept was lost");
        }
    }

    /// Records an empty fetch: messages may be late. The failed server may hold messages of a closed source, and
    /// RabbitMQ retries dead-lettering between queues only after minutes.
    pub fn fetched_nothing(&self) {
        if self.expected.lock().may_be_late() {
            self.excuse("redelivered or delayed messages are late");
        }
    }

    /// Restores all servers, because messages are missing.
    pub async fn restore_servers(&self, missing: usize) {
        let servers = self.servers.clone();
        if tokio::task::spawn_blocking(move || servers.restore()).await.unwrap() {
            self.counters.late.fetch_add(missing, Relaxed);
        }
    }

    /// Records behaviour that is allowed only with a fault.
    pub fn anomaly(&self, what: Anomaly) {
        match what {
            Anomaly::LeasedTwice => self.excuse("a message was delivered while it was leased"),
            Anomaly::DeliveryLost => self.excuse("a delivery was lost"),
            Anomaly::DeliveredAfterCompletion => {
                self.counters.delivered_after_completion.fetch_add(1, Relaxed);
                assert!(
                    !self.servers.settles_for_good(),
                    "a completed message was delivered again"
                );
                self.excuse("a message was delivered after its completion");
            }
        }
    }
}
