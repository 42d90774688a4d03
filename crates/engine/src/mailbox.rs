//! The way into the core's thread, and the way its words find back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use malote_model::{LeaseToken, QueueName, Refusal, Settlement, limits};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{mpsc, oneshot};

use crate::command::{Command, ConnectionId, ConsumerId, Grant, Held, Notice, Reply, ToRoute};
use crate::core::{FixedState, Resident, To};
use crate::event::QueueId;
use crate::handle::EngineError;
use crate::journal::Marks;
use crate::room::{self, Place, Room};

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
    room: Room,
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
    consumers: HashMap<ConsumerId, Listener, FixedState>,
}

/// A consumer that is told. Its notices wait for different marks of the journal, and are said by different threads; but
/// it hears them in the order in which they were decided, or the order of a session would be lost on the way.
struct Listener {
    connection: ConnectionId,
    queue: QueueName,
    /// The number of the next notice that is decided.
    next: u64,
    /// The number of the next that is said.
    due: u64,
    /// What came too early; never more than what waits for the journal.
    early: BTreeMap<u64, Notice>,
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
            room: Room::new(room::KIB_MAX),
            next_id: AtomicU64::new(1),
            poisoned: AtomicBool::new(false),
            marks,
            outlets: Mutex::new(outlets),
            reads: Mutex::new(None),
        }
    }

    /// Sends messages of so many bytes, once there is room for them, and waits for the answer: the room is theirs until
    /// then. Whoever asks first is first. Once `enough` is over it no longer waits for room: [`Refusal::Busy`].
    pub(crate) async fn publish(
        &self,
        command: Command,
        bytes: usize,
        enough: impl Future<Output = ()>,
    ) -> Answer {
        let (reply, answer) = oneshot::channel();
        let request = Request { command, reply: Some(reply) };
        let place = self.room.enter(bytes, request, |request| self.put(request));
        let mut publishing = Publishing { mailbox: self, place };
        let mut asking = Asking { mailbox: self, answer };
        let answered = tokio::select! {
            biased;
            answered = &mut asking.answer => answered,
            () = enough => {
                if publishing.withdraw() {
                    return Err(Refusal::Busy.into());
                }
                (&mut asking.answer).await
            }
        };
        answered.unwrap_or_else(|_| Err(self.closed()))
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
        self.room.close();
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
        let queue = queue.clone();
        let listener = Listener { connection, queue, next: 0, due: 0, early: BTreeMap::new() };
        self.outlets.lock().consumers.insert(id, listener);
        id
    }

    pub(crate) fn forget_consumer(&self, consumer: ConsumerId) {
        let gone = self.outlets.lock().consumers.remove(&consumer);
        self.unheard(gone.into_iter().flat_map(|listener| listener.early.into_values()));
    }

    /// A connection ended, cleanly or not: the core is told, and nobody listens any more.
    pub(crate) fn forget_connection(&self, connection: ConnectionId) {
        let mut outlets = self.outlets.lock();
        outlets.connections.remove(&connection);
        let of_it = |_: &ConsumerId, listener: &mut Listener| listener.connection == connection;
        let gone: Vec<_> = outlets.consumers.extract_if(of_it).collect();
        drop(outlets);
        let notices = gone.into_iter().flat_map(|(_, listener)| listener.early.into_values());
        self.unheard(notices);
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
            Word::Notice(consumer, number, notice) => self.notify(consumer, number, notice),
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

    /// A notice was decided: it gets its place among those of its consumer.
    pub(crate) fn number(&self, word: &mut Word) {
        let Word::Notice(consumer, number, _) = word else { return };
        if let Some(listener) = self.outlets.lock().consumers.get_mut(consumer) {
            *number = listener.next;
            listener.next += 1;
        }
    }

    fn notify(&self, consumer: ConsumerId, number: u64, notice: Notice) {
        let mut outlets = self.outlets.lock();
        let Outlets { connections, consumers } = &mut *outlets;
        // Nobody there: the consumer was detached, or its connection is being dropped. Nobody has seen these.
        let Some(listener) = consumers.get_mut(&consumer) else {
            drop(outlets);
            return self.unheard([notice]);
        };
        listener.early.insert(number, notice);
        let (mut ended, mut unheard) = (false, Vec::new());
        while let Some(notice) = listener.early.remove(&listener.due) {
            listener.due += 1;
            ended |= matches!(notice, Notice::Ended(_));
            let notice = (consumer, listener.queue.clone(), notice);
            let said = match connections.get(&listener.connection) {
                Some(outlet) => outlet.send(notice).map_err(|unsent| unsent.0),
                None => Err(notice),
            };
            unheard.extend(said.err().map(|(_, _, notice)| notice));
        }
        if ended {
            consumers.remove(&consumer);
        }
        drop(outlets);
        self.unheard(unheard);
    }

    /// What was granted comes back; the rest matters to nobody.
    fn unheard(&self, notices: impl IntoIterator<Item = Notice>) {
        for notice in notices {
            if let Notice::Deliver(grants) = notice {
                self.release(grants);
            }
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

    /// What was granted and seen by nobody comes back, uncounted.
    pub(crate) fn release(&self, grants: Vec<Grant>) {
        let leases: Vec<LeaseToken> = grants.into_iter().filter_map(|grant| grant.lease).collect();
        for some in leases.chunks(limits::SETTLE_BATCH_MAX) {
            self.tell(Command::Settle {
                leases: some.to_vec(),
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

/// Waits for room, or has it.
struct Publishing<'a> {
    mailbox: &'a Mailbox,
    place: Place,
}

impl Publishing<'_> {
    /// False if it has it.
    fn withdraw(&mut self) -> bool {
        let mailbox = self.mailbox;
        mailbox.room.withdraw(&mut self.place, |request| mailbox.put(request))
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        let mailbox = self.mailbox;
        mailbox.room.leave(&self.place, |request| mailbox.put(request));
    }
}

/// Something to say, with the way to say it.
pub(crate) enum Word {
    Answer(oneshot::Sender<Answer>, Result<Reply, Refusal>),
    /// With its number among those of its consumer.
    Notice(ConsumerId, u64, Notice),
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
            To::Consumer(consumer, notice) => Some(Word::Notice(consumer, 0, notice)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_hears_its_notices_as_they_were_decided() {
        let mailbox = Mailbox::new(Arc::new(Marks::default()));
        let (outlet, mut heard) = mpsc::unbounded_channel();
        let connection = mailbox.new_connection(outlet);
        let queue = QueueName::new("q").unwrap();
        let consumer = mailbox.new_consumer_of(connection, &queue);
        let other = mailbox.new_consumer_of(connection, &queue);
        let decide = |consumer| {
            let mut word = Word::Notice(consumer, 0, Notice::Deliver(Vec::new()));
            mailbox.number(&mut word);
            word
        };
        let (first, second) = (decide(consumer), decide(consumer));
        let mut last = Word::Notice(consumer, 0, Notice::Ended(Refusal::Busy));
        mailbox.number(&mut last);
        // The first waits for the disk; those after it, and another consumer's, for less.
        mailbox.say(last);
        mailbox.say(second);
        assert!(heard.try_recv().is_err());
        mailbox.say(decide(other));
        assert_eq!(heard.try_recv().unwrap().0, other);
        mailbox.say(first);
        let told: Vec<_> = std::iter::from_fn(|| heard.try_recv().ok()).collect();
        assert!(matches!(
            &told[..],
            [(_, _, Notice::Deliver(_)), (_, _, Notice::Deliver(_)), (_, _, Notice::Ended(_))]
        ));
        assert!(told.iter().all(|(to, _, _)| *to == consumer));
    }
}
