//! One run of one case: when the fault happens, and what it explains.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use malote_connectors::{BrokerError, Doing};
use malote_model::QueueName;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ledger::{Ledger, Strange};
use crate::servers::Servers;

/// A cluster that lost a member has to notice it first.
const REPEAT_FOR: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

/// Figures of a whole run.
#[derive(Default)]
pub struct Tally {
    pub trials: AtomicUsize,
    pub faults: AtomicUsize,
    /// Calls of brokers, by cases.
    pub calls: AtomicUsize,
    /// Calls that were answered with an error that passes, and asked again.
    pub repeated: AtomicUsize,
    pub sent: AtomicUsize,
    /// Messages of sends without an answer.
    pub sent_again: AtomicUsize,
    pub delivered: AtomicUsize,
    pub settled: AtomicUsize,
    pub locks_lost: AtomicUsize,
    /// Messages that came although they were completed.
    pub came_again: AtomicUsize,
    /// Messages that came after a case when all servers were back, and not before.
    pub late: AtomicUsize,
    /// Messages that had to be there after a case, and were.
    pub found: AtomicUsize,
}

pub struct Trial {
    servers: Arc<Servers>,
    /// No two have the same.
    number: usize,
    pub tally: Arc<Tally>,
    pub ledger: Mutex<Ledger>,
    /// The call in which a server fails.
    fault_at: Option<usize>,
    calls: AtomicUsize,
    /// A server fails or is down: answers may be missing, and locks be lost.
    shaken: AtomicBool,
    struck: watch::Sender<bool>,
    excuses: Mutex<Vec<&'static str>>,
}

impl Trial {
    pub fn new(
        servers: &Arc<Servers>,
        tally: &Arc<Tally>,
        fault_at: Option<usize>,
        is_down: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            servers: servers.clone(),
            number: tally.trials.fetch_add(1, Relaxed),
            tally: tally.clone(),
            ledger: Mutex::default(),
            fault_at,
            calls: AtomicUsize::new(0),
            shaken: AtomicBool::new(is_down),
            struck: watch::Sender::new(false),
            excuses: Mutex::default(),
        })
    }

    /// What the case's queue is called on the servers: no other trial has it.
    pub fn own(&self, queue: &QueueName) -> QueueName {
        let own = |name: &str| QueueName::new(&format!("{name}-{}", self.number)).unwrap();
        queue.owner().map_or_else(|| own(queue.as_str()), |owner| own(owner).dead_letters())
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    pub fn has_struck(&self) -> bool {
        *self.struck.borrow()
    }

    /// What happened in it that a case without a fault never meets.
    pub fn excuses(&self) -> Vec<&'static str> {
        self.excuses.lock().clone()
    }

    fn excuse(&self, what: &'static str) {
        let mut excuses = self.excuses.lock();
        if self.shaken.load(Relaxed) && !excuses.contains(&what) {
            excuses.push(what);
        }
    }

    /// A call begins. If it is the one, a server fails: before it, or while it is under way.
    async fn begins(&self) {
        self.tally.calls.fetch_add(1, Relaxed);
        let call = self.calls.fetch_add(1, Relaxed);
        if Some(call) != self.fault_at {
            return;
        }
        self.shaken.store(true, Relaxed);
        self.tally.faults.fetch_add(1, Relaxed);
        let (servers, struck) = (self.servers.clone(), self.struck.clone());
        tokio::task::spawn_blocking(move || {
            servers.strike();
            struck.send_replace(true);
        });
        if call.is_multiple_of(2) {
            let mut struck = self.struck.subscribe();
            let _ = struck.wait_for(|struck| *struck).await; // we have the sender
        }
    }

    /// Asks once more where that may help; only a fault makes such an answer right.
    pub async fn repeat<'a, T>(
        &self,
        ask: impl FnMut() -> Doing<'a, T> + Send,
    ) -> Result<T, BrokerError> {
        self.repeat_noting(ask, |_| {}).await
    }

    /// The same; tells why it asks once more.
    pub async fn repeat_noting<'a, T>(
        &self,
        mut ask: impl FnMut() -> Doing<'a, T> + Send,
        note: impl Fn(&BrokerError) + Send + Sync,
    ) -> Result<T, BrokerError> {
        self.begins().await;
        let until = Instant::now() + REPEAT_FOR;
        loop {
            match ask().await {
                Err(error) if self.may_repeat(&error, until) => {
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

    /// Whether an error passes, and a fault is its reason.
    pub fn may_repeat(&self, error: &BrokerError, until: Instant) -> bool {
        let may = error.is_transient() && self.shaken.load(Relaxed) && Instant::now() < until;
        if may {
            self.tally.repeated.fetch_add(1, Relaxed);
        }
        may
    }

    /// A lock that somebody had is lost.
    pub fn lock_lost(&self) {
        self.tally.locks_lost.fetch_add(1, Relaxed);
        self.excuse("a lock was lost");
    }

    /// No answer came: what was sent again may be there twice.
    pub fn sent_again(&self, messages: usize) {
        self.tally.sent_again.fetch_add(messages, Relaxed);
        self.excuse("a send had no answer");
    }

    /// No answer came: what was taken is in nobody's hand until its lock is over.
    pub fn taken_unheard(&self, error: &BrokerError) {
        if let BrokerError::Unreachable { .. } = error {
            self.excuse("what was asked for had no answer");
        }
    }

    /// Nothing came: what somebody had and let go of its source may be with the server that is away, and RabbitMQ asks anew
    /// only after minutes for what was on its way from one queue to another.
    pub fn nothing_came(&self) {
        if self.ledger.lock().may_be_late() {
            self.excuse("what was in hand or delayed is late");
        }
    }

    /// So many messages have not come: all servers come back.
    pub async fn wait_for_all(&self, missing: usize) {
        let servers = self.servers.clone();
        if tokio::task::spawn_blocking(move || servers.mend()).await.unwrap() {
            self.tally.late.fetch_add(missing, Relaxed);
        }
    }

    /// Something came that nobody expects where no server fails.
    pub fn strange(&self, what: Strange) {
        match what {
            Strange::InHand => self.excuse("it came while somebody had it"),
            Strange::Granted => self.excuse("a grant was lost on its way"),
            Strange::Done => {
                self.tally.came_again.fetch_add(1, Relaxed);
                assert!(
                    !self.servers.settles_for_good(),
                    "a message that was completed came again"
                );
                self.excuse("it came after its completion");
            }
        }
    }
}
