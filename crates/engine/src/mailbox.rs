//! The way into the core's thread, and the way its words find back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use malote_model::{Address, LeaseToken, QueueName, Refusal, Settlement};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};

use crate::codec::Outgoing;
use crate::command::{Command, ConnectionId, ConsumerId, Grant, Held, Notice, Reply, ToRoute};
use crate::core::{FixedState, Resident, To};
use crate::event::QueueId;
use crate::handle::EngineError;
use crate::journal::Marks;

/// Kilobytes of messages that are being sent and not yet answered: senders beyond that wait, settlers never do.
const PUBLISHING_KIB_MAX: u32 = 64 << 10;

type Answer = Result<Reply, EngineError>;
type Reads = std::sync::mpsc::Sender<ToRead>;
type Outlet = mpsc::UnboundedSender<(ConsumerId, QueueName, Notice)>;

/// A command and whom to answer; nobody for what the engine tells itself.
pub(crate) struct Request {
    pub command: Command,
    pub reply: Option<oneshot::Sender<Answer>>,
}

/// Requests on their way in, and where notices go.
pub(crate) struct Mailbox {
    state: Mutex<State>,
    arrived: Condvar,
    publishing: Semaphore,
    next_id: AtomicU64,
    poisoned: AtomicBool,
    marks: Arc<Marks>,
    outlets: Mutex<Outlets>,
    reads: Mutex<Option<Reads>>,
}

struct State {
    requests: Vec<Request>,
    asleep: bool,
    open: bool,
}

struct Outlets {
    connections: HashMap<ConnectionId, Outlet, FixedState>,
    consumers: HashMap<ConsumerId, (ConnectionId, QueueName), FixedState>,
}

impl Mailbox {
    pub(crate) fn new(marks: Arc<Marks>) -> Self {
        let outlets = Outlets {
            connections: HashMap::with_hasher(FixedState),
            consumers: HashMap::with_hasher(FixedState),
        };
        Self {
            state: Mutex::new(State { requests: Vec::new(), asleep: false, open: true }),
            arrived: Condvar::new(),
            publishing: Semaphore::new(PUBLISHING_KIB_MAX as usize),
            next_id: AtomicU64::new(1),
            poisoned: AtomicBool::new(false),
            marks,
            outlets: Mutex::new(outlets),
            reads: Mutex::new(None),
        }
    }

    /// Room for messages that are about to be sent; held until they are answered.
    pub(crate) async fn publish_permit(
        &self,
        items: &[(Address, Outgoing)],
    ) -> Result<SemaphorePermit<'_>, EngineError> {
        let bytes: usize = items.iter().map(|(_, message)| message.size() + 64).sum();
        let kib = (bytes >> 10) as u32 + 1;
        self.publishing.acquire_many(kib.min(PUBLISHING_KIB_MAX)).await.map_err(|_| self.closed())
    }

    /// Asks and waits for the answer.
    pub(crate) async fn ask(&self, command: Command) -> Answer {
        let (reply, answer) = oneshot::channel();
        if !self.put(Request { command, reply: Some(reply) }) {
            return Err(self.closed());
        }
        let mut asking = Asking { mailbox: self, answer };
        (&mut asking.answer).await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Asks and waits for the answer, on a thread that may wait.
    pub(crate) fn ask_blocking(&self, command: Command) -> Answer {
        let (reply, answer) = oneshot::channel();
        if !self.put(Request { command, reply: Some(reply) }) {
            return Err(self.closed());
        }
        answer.blocking_recv().unwrap_or_else(|_| Err(self.closed()))
    }

    /// Tells without waiting.
    pub(crate) fn tell(&self, command: Command) {
        self.put(Request { command, reply: None });
    }

    fn put(&self, request: Request) -> bool {
        let mut state = self.state.lock();
        if !state.open {
            return false;
        }
        state.requests.push(request);
        if std::mem::take(&mut state.asleep) {
            drop(state);
            self.arrived.notify_one();
        }
        true
    }

    /// Everything that arrived; waits for it for at most `wait`. False when nothing will come any more.
    pub(crate) fn take(&self, into: &mut Vec<Request>, wait: Duration) -> bool {
        let mut state = self.state.lock();
        if state.requests.is_empty() && state.open && !wait.is_zero() {
            state.asleep = true;
            self.arrived.wait_for(&mut state, wait);
            state.asleep = false;
        }
        std::mem::swap(&mut state.requests, into);
        state.open || !into.is_empty()
    }

    /// Makes the core look at its clock.
    pub(crate) fn wake(&self) {
        let asleep = std::mem::take(&mut self.state.lock().asleep);
        if asleep {
            self.arrived.notify_one();
        }
    }

    /// Nothing more comes in. What is here already is still answered, unless the disk failed.
    pub(crate) fn close(&self, poisoned: bool) {
        if poisoned {
            self.poisoned.store(true, Ordering::SeqCst);
        }
        let mut state = self.state.lock();
        state.open = false;
        if poisoned {
            state.requests.clear();
        }
        drop(state);
        self.publishing.close();
        self.outlets.lock().connections.clear();
        self.reads.lock().take();
        self.arrived.notify_one();
    }

    /// The journal knows first: whoever loses its answer to a failed sync must not hear that the broker is merely
    /// stopping, which would mean that nothing happened.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::SeqCst) || self.marks.poisoned()
    }

    fn closed(&self) -> EngineError {
        if self.is_poisoned() { EngineError::Poisoned } else { EngineError::Stopping }
    }

    pub(crate) fn new_consumer(&self) -> ConsumerId {
        ConsumerId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn new_connection(&self, outlet: Outlet) -> ConnectionId {
        let id = ConnectionId(self.next_id.fetch_add(1, Ordering::Relaxed));
        self.outlets.lock().connections.insert(id, outlet);
        id
    }

    pub(crate) fn new_consumer_of(
        &self,
        connection: ConnectionId,
        queue: &QueueName,
    ) -> ConsumerId {
        let id = self.new_consumer();
        self.outlets.lock().consumers.insert(id, (connection, queue.clone()));
        id
    }

    pub(crate) fn forget_consumer(&self, consumer: ConsumerId) {
        self.outlets.lock().consumers.remove(&consumer);
    }

    /// A connection ended, cleanly or not: the core is told, and nobody listens any more.
    pub(crate) fn forget_connection(&self, connection: ConnectionId) {
        let mut outlets = self.outlets.lock();
        outlets.connections.remove(&connection);
        outlets.consumers.retain(|_, (of, _)| *of != connection);
    }

    pub(crate) fn lost(&self, connection: ConnectionId) {
        self.tell(Command::Disconnect { connection, clean: false });
        self.forget_connection(connection);
    }

    /// Whoever waited went away.
    pub(crate) fn give_up(&self, consumer: ConsumerId) {
        self.tell(Command::Detach { consumer });
    }

    /// Says what the core had to say, now that the journal is far enough.
    pub(crate) fn say(&self, word: Word) {
        match word {
            Word::Answer(reply, answer) => {
                if let Err(unheard) = reply.send(answer.map_err(EngineError::Refused)) {
                    self.take_back(unheard);
                }
            }
            Word::Notice(consumer, notice) => self.notify(consumer, notice),
            Word::Read(what) => {
                if let Some(reads) = &*self.reads.lock() {
                    // Nobody reads any more: the engine is stopping, and the next start asks again.
                    let _ = reads.send(what);
                }
            }
        }
    }

    /// Who reads what the core asks for. Bounded: a topic asks for a few messages at a time and waits for them, and a
    /// message is under too many records only after very many changes.
    pub(crate) fn set_reads(&self, reads: Reads) {
        *self.reads.lock() = Some(reads);
    }

    fn notify(&self, consumer: ConsumerId, notice: Notice) {
        let mut outlets = self.outlets.lock();
        let Some((connection, queue)) = outlets.consumers.get(&consumer).cloned() else { return };
        if matches!(notice, Notice::Ended(_)) {
            outlets.consumers.remove(&consumer);
        }
        if let Some(outlet) = outlets.connections.get(&connection) {
            // Nobody there: the connection is being dropped, and what is bound to it comes back.
            let _ = outlet.send((consumer, queue, notice));
        }
    }

    /// Whoever asked is gone: it takes nothing with it.
    fn take_back(&self, unheard: Answer) {
        match unheard {
            Ok(Reply::Delivered(grants)) => self.release(grants),
            Ok(Reply::Accepted(Some(Held { hold, .. }))) => {
                self.tell(Command::ReleaseSession { hold })
            }
            _ => {}
        }
    }

    fn release(&self, grants: Vec<Grant>) {
        self.release_leases(grants.into_iter().filter_map(|grant| grant.lease).collect());
    }

    /// Messages that were granted and not handed on: they were not tried.
    pub(crate) fn release_leases(&self, leases: Vec<LeaseToken>) {
        if !leases.is_empty() {
            self.tell(Command::Settle {
                leases,
                settlement: Settlement::Release { delay_ms: 0 },
                state: None,
            });
        }
    }
}

/// Waits for an answer. One that was said and not heard takes nothing with it, either.
struct Asking<'a> {
    mailbox: &'a Mailbox,
    answer: oneshot::Receiver<Answer>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(unheard) = self.answer.try_recv() {
            self.mailbox.take_back(unheard);
        }
    }
}

/// Something to say, with the way to say it.
pub(crate) enum Word {
    Answer(oneshot::Sender<Answer>, Result<Reply, Refusal>),
    Notice(ConsumerId, Notice),
    Read(ToRead),
}

/// Messages that the core, which reads no disk, asks for.
pub(crate) enum ToRead {
    /// So that their topic can route them.
    Route(QueueId, Vec<ToRoute>),
    /// So that they are stored anew.
    Rewrite(Vec<Resident>),
}

/// The requests that the core has not answered yet, by number.
#[derive(Default)]
pub(crate) struct Pending {
    replies: Vec<Option<oneshot::Sender<Answer>>>,
    free: Vec<u32>,
}

impl Pending {
    pub(crate) fn add(&mut self, reply: Option<oneshot::Sender<Answer>>) -> u64 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.replies.push(None);
                self.replies.len() as u32 - 1
            }
        };
        self.replies[slot as usize] = reply;
        u64::from(slot)
    }

    /// The way to say an output; none if nobody waits for it.
    pub(crate) fn word(&mut self, to: To) -> Option<Word> {
        match to {
            To::Consumer(consumer, notice) => Some(Word::Notice(consumer, notice)),
            To::Route(topic, items) => Some(Word::Read(ToRead::Route(topic, items))),
            To::Rewrite(items) => Some(Word::Read(ToRead::Rewrite(items))),
            To::Request(request, answer) => {
                self.free.push(request as u32);
                let reply = self.replies.get_mut(request as usize)?.take()?;
                Some(Word::Answer(reply, answer))
            }
        }
    }
}
