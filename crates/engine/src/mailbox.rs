//! The way into the core's thread, and the way its words find back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hashbrown::HashMap;
use malote_model::{LeaseToken, QueueName, Refusal, Settlement, limits};
use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::command::{Command, ConnectionId, ConsumerId, Grant, Held, Notice, Reply, ToRoute};
use crate::core::{FixedState, Resident, To};
use crate::event::QueueId;
use crate::failure::Failure;
use crate::handle::EngineError;
use crate::handover::InOrder;
use crate::journal::Marks;
use crate::room::{Class, Room, RoomSizes};

type Answer = Result<Reply, EngineError>;
type Reads = std::sync::mpsc::Sender<ToRead>;
type Outlet = mpsc::Sender<(ConsumerId, QueueName, Notice)>;

/// A command and whom to answer; nobody for what the engine tells itself.
pub(crate) struct Request {
    pub command: Command,
    pub reply: Option<oneshot::Sender<Answer>>,
    /// None for what the engine asks itself.
    pub permit: Option<Permit>,
}

/// A request's share of a [`Room`]: it is kept with the request, then with the answer, until that has left.
pub(crate) struct Permit {
    mailbox: Arc<Mailbox>,
    class: Class,
    kib: u32,
}

impl Permit {
    /// An answer of this size waits for the journal, too.
    fn take_more(&mut self, bytes: usize) {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
        if kib > 0 {
            self.mailbox.room(self.class).take_more(kib);
            self.kib = self.kib.saturating_add(kib);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.kib > 0 {
            let admit = |request, kib| self.mailbox.admit(self.class, request, kib);
            self.mailbox.room(self.class).leave(self.kib, admit);
        }
    }
}

/// Requests on their way in, and where notices go.
pub(crate) struct Mailbox {
    state: Mutex<State>,
    arrived: Condvar,
    sends: Room,
    asks: Room,
    next_id: AtomicU64,
    failure: OnceLock<Failure>,
    on_failure: OnceLock<Box<dyn Fn() + Send + Sync>>,
    marks: Arc<Marks>,
    outlets: Mutex<Outlets>,
    reads: Mutex<Option<Reads>>,
}

struct State {
    requests: VecDeque<Request>,
    asleep: bool,
    open: bool,
}

struct Outlets {
    open: bool,
    connections: HashMap<ConnectionId, Outlet, FixedState>,
    consumers: HashMap<ConsumerId, Listener, FixedState>,
}

/// A consumer of a connection, and its notices.
struct Listener {
    connection: ConnectionId,
    queue: QueueName,
    notices: InOrder<Notice>,
}

impl Mailbox {
    pub(crate) fn new(marks: Arc<Marks>, rooms: RoomSizes) -> Self {
        let outlets = Outlets {
            open: true,
            connections: HashMap::with_hasher(FixedState),
            consumers: HashMap::with_hasher(FixedState),
        };
        Self {
            state: Mutex::new(State { requests: VecDeque::new(), asleep: false, open: true }),
            arrived: Condvar::new(),
            sends: Room::new(rooms.sends_kib_max),
            asks: Room::new(rooms.asks_kib_max),
            next_id: AtomicU64::new(1),
            failure: OnceLock::new(),
            on_failure: OnceLock::new(),
            marks,
            outlets: Mutex::new(outlets),
            reads: Mutex::new(None),
        }
    }

    /// Sends messages of this many bytes, once there is room for them, and waits for the answer. First come, first
    /// served. Once `enough` is over it no longer waits for room: [`Refusal::Busy`].
    pub(crate) async fn publish(
        self: &Arc<Self>,
        command: Command,
        bytes: usize,
        enough: impl Future<Output = ()>,
    ) -> Answer {
        let (mut asking, mut in_line) = self.submit(Class::Send, command, bytes);
        let answered = tokio::select! {
            biased;
            answered = &mut asking.answer => answered,
            () = enough => {
                if in_line.withdraw() {
                    return Err(Refusal::Busy.into());
                }
                (&mut asking.answer).await
            }
        };
        answered.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Asks, once there is room for it, and waits for the answer.
    pub(crate) async fn ask(self: &Arc<Self>, command: Command) -> Answer {
        let bytes = command.held_bytes();
        let (mut asking, _in_line) = self.submit(Class::Ask, command, bytes);
        (&mut asking.answer).await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Asks for the engine itself, without room.
    pub(crate) async fn ask_inside(&self, command: Command) -> Answer {
        let (reply, answer) = oneshot::channel();
        // If the mailbox is closed, the way to answer is dropped with the request.
        let _ = self.put(Request { command, reply: Some(reply), permit: None });
        answer.await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Tells without waiting, and without room: it is about something that the core has already.
    pub(crate) fn tell(&self, command: Command) {
        self.put(Request { command, reply: None, permit: None });
    }

    fn submit(
        self: &Arc<Self>,
        class: Class,
        command: Command,
        bytes: usize,
    ) -> (Asking<'_>, InLine<'_>) {
        let (reply, answer) = oneshot::channel();
        let request = Request { command, reply: Some(reply), permit: None };
        let admit = |request, kib| self.admit(class, request, kib);
        let number = self.room(class).submit(bytes, request, admit);
        (Asking { mailbox: self, answer }, InLine { mailbox: self, class, number })
    }

    fn room(&self, class: Class) -> &Room {
        match class {
            Class::Send => &self.sends,
            Class::Ask => &self.asks,
        }
    }

    /// Hands over a request that has room. Called while its room is locked.
    fn admit(self: &Arc<Self>, class: Class, mut request: Request, kib: u32) {
        request.permit = Some(Permit { mailbox: self.clone(), class, kib });
        if let Some(mut refused) = self.put(request)
            && let Some(permit) = &mut refused.permit
        {
            // The engine is stopping. Its room is locked, and nobody needs it any more.
            permit.kib = 0;
        }
    }

    /// Gives the request back when the mailbox is closed.
    fn put(&self, request: Request) -> Option<Request> {
        let mut state = self.state.lock();
        if !state.open {
            return Some(request);
        }
        state.requests.push_back(request);
        if std::mem::take(&mut state.asleep) {
            drop(state);
            self.arrived.notify_one();
        }
        None
    }

    /// Everything that arrived; waits for it for at most `wait`. False when nothing will come any more.
    pub(crate) fn take(&self, into: &mut VecDeque<Request>, wait: Duration) -> bool {
        let mut state = self.state.lock();
        if state.requests.is_empty() && state.open && !wait.is_zero() {
            state.asleep = true;
            self.arrived.wait_for(&mut state, wait);
            state.asleep = false;
        }
        std::mem::swap(&mut state.requests, into);
        state.open || !into.is_empty()
    }

    /// Whether no request has any room: all are answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.sends.is_unused() && self.asks.is_unused()
    }

    /// Makes the core look at its clock.
    pub(crate) fn wake(&self) {
        let asleep = std::mem::take(&mut self.state.lock().asleep);
        if asleep {
            self.arrived.notify_one();
        }
    }

    /// Nothing more comes in. What is here already is still answered.
    pub(crate) fn close(&self) {
        self.shut();
    }

    /// The engine failed: nothing more comes in, and everybody who waits hears of it at once. The first reason counts.
    pub(crate) fn poison(&self, failure: Failure) {
        if self.failure.set(failure.clone()).is_err() {
            return;
        }
        tracing::error!(%failure, "the engine stopped: nothing more is accepted, and the outcome of requests under way is unknown");
        drop(self.shut());
        if let Some(on_failure) = self.on_failure.get() {
            on_failure();
        }
    }

    /// What else must stop when the engine fails.
    pub(crate) fn on_failure(&self, stop: impl Fn() + Send + Sync + 'static) {
        let first = self.on_failure.set(Box::new(stop)).is_ok();
        assert!(first, "one engine has one mailbox");
    }

    /// Closes every way in and out, and returns the requests that nobody has taken yet.
    fn shut(&self) -> VecDeque<Request> {
        let mut state = self.state.lock();
        state.open = false;
        let untaken = match self.is_poisoned() {
            true => std::mem::take(&mut state.requests),
            false => VecDeque::new(),
        };
        drop(state);
        self.sends.close();
        self.asks.close();
        let mut outlets = self.outlets.lock();
        outlets.open = false;
        let connections = std::mem::take(&mut outlets.connections);
        drop(outlets);
        drop(connections);
        self.reads.lock().take();
        self.arrived.notify_one();
        untaken
    }

    /// The journal knows first: whoever loses its answer to a failed sync must not hear that the broker is merely
    /// stopping, which would mean that nothing happened.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.failure.get().is_some() || self.marks.poisoned()
    }

    /// Why the engine stopped by itself, if it did.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Why there is no answer. An engine that is neither stopping nor poisoned lost one: a thread is panicking.
    fn closed(&self) -> EngineError {
        if self.is_poisoned() || self.state.lock().open {
            EngineError::Poisoned
        } else {
            EngineError::Stopping
        }
    }

    pub(crate) fn new_consumer(&self) -> ConsumerId {
        ConsumerId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn new_connection(&self, outlet: Outlet) -> ConnectionId {
        let id = ConnectionId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let mut outlets = self.outlets.lock();
        // Closed: the outlet is dropped, and its outbox ends.
        if outlets.open {
            outlets.connections.insert(id, outlet);
        }
        id
    }

    pub(crate) fn new_consumer_of(
        &self,
        connection: ConnectionId,
        queue: &QueueName,
    ) -> ConsumerId {
        let id = self.new_consumer();
        let queue = queue.clone();
        let listener = Listener { connection, queue, notices: InOrder::default() };
        self.outlets.lock().consumers.insert(id, listener);
        id
    }

    pub(crate) fn forget_consumer(&self, consumer: ConsumerId) {
        let gone = self.outlets.lock().consumers.remove(&consumer);
        self.unheard(gone.into_iter().flat_map(|listener| listener.notices.into_unsaid()));
    }

    /// A connection ended, cleanly or not: the core is told, and nobody listens any more.
    pub(crate) fn forget_connection(&self, connection: ConnectionId) {
        let mut outlets = self.outlets.lock();
        outlets.connections.remove(&connection);
        let of_it = |_: &ConsumerId, listener: &mut Listener| listener.connection == connection;
        let gone: Vec<_> = outlets.consumers.extract_if(of_it).collect();
        drop(outlets);
        let notices = gone.into_iter().flat_map(|(_, listener)| listener.notices.into_unsaid());
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
            Word::Answer(reply, answer, _permit) => {
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
            *number = listener.notices.number();
        }
    }

    fn notify(&self, consumer: ConsumerId, number: u64, notice: Notice) {
        let mut outlets = self.outlets.lock();
        let Outlets { connections, consumers, .. } = &mut *outlets;
        // Nobody there: the consumer was detached, or its connection is being dropped. Nobody has seen these.
        let Some(listener) = consumers.get_mut(&consumer) else {
            drop(outlets);
            return self.unheard([notice]);
        };
        listener.notices.arrived(number, notice);
        let connection = listener.connection;
        let (mut ended, mut full, mut unheard) = (false, false, Vec::new());
        while let Some(notice) = listener.notices.next_due() {
            ended |= matches!(notice, Notice::Ended(_));
            let notice = (consumer, listener.queue.clone(), notice);
            let said = match connections.get(&connection) {
                Some(outlet) => outlet.try_send(notice),
                None => Err(TrySendError::Closed(notice)),
            };
            if let Err(error) = said {
                full |= matches!(error, TrySendError::Full(_));
                unheard.push(error.into_inner().2);
            }
        }
        if full {
            tracing::warn!("a connection does not read what it is sent: it is ended");
            connections.remove(&connection);
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

/// A caller that may stand in line for room.
struct InLine<'a> {
    mailbox: &'a Arc<Mailbox>,
    class: Class,
    number: Option<u64>,
}

impl InLine<'_> {
    /// False if its request was handed over: then it happens.
    fn withdraw(&mut self) -> bool {
        let Some(number) = self.number.take() else { return false };
        let admit = |request, kib| self.mailbox.admit(self.class, request, kib);
        self.mailbox.room(self.class).withdraw(number, admit)
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Something to say, with the way to say it.
pub(crate) enum Word {
    Answer(oneshot::Sender<Answer>, Result<Reply, Refusal>, Option<Permit>),
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
    replies: Vec<Option<(oneshot::Sender<Answer>, Option<Permit>)>>,
    free: Vec<u32>,
}

impl Pending {
    pub(crate) fn add(
        &mut self,
        reply: Option<oneshot::Sender<Answer>>,
        permit: Option<Permit>,
    ) -> u64 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.replies.push(None);
                self.replies.len() as u32 - 1
            }
        };
        self.replies[slot as usize] = reply.map(|reply| (reply, permit));
        u64::from(slot)
    }

    /// Whether no request waits for its answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.replies.iter().all(Option::is_none)
    }

    /// The way to say an output; none if nobody waits for it.
    pub(crate) fn word(&mut self, to: To) -> Option<Word> {
        match to {
            To::Consumer(consumer, notice) => Some(Word::Notice(consumer, 0, notice)),
            To::Route(topic, items) => Some(Word::Read(ToRead::Route(topic, items))),
            To::Rewrite(items) => Some(Word::Read(ToRead::Rewrite(items))),
            To::Request(request, answer) => {
                self.free.push(request as u32);
                let (reply, mut permit) = self.replies.get_mut(request as usize)?.take()?;
                if let (Ok(answer), Some(permit)) = (&answer, &mut permit) {
                    permit.take_more(answer.held_bytes());
                }
                Some(Word::Answer(reply, answer, permit))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room;

    #[test]
    fn a_consumer_hears_its_notices_as_they_were_decided() {
        let mailbox = Mailbox::new(Arc::new(Marks::default()), RoomSizes::default());
        let (outlet, mut heard) = mpsc::channel(10);
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

    /// Asks and gives up at once.
    async fn give_up(asking: impl Future<Output = Answer>) {
        tokio::select! {
            biased;
            answer = asking => panic!("nobody answers: {answer:?}"),
            () = std::future::ready(()) => {}
        }
    }

    #[tokio::test]
    async fn what_callers_that_gave_up_leave_behind_is_bounded() {
        let mailbox = Arc::new(Mailbox::new(Arc::new(Marks::default()), RoomSizes::default()));
        let command = || Command::Describe { queue: QueueName::new("q").unwrap() };
        let waiting = || mailbox.state.lock().requests.len();
        for _ in 0..3000 {
            give_up(mailbox.publish(command(), 100 << 10, std::future::pending())).await;
        }
        let sends = (room::SENDS_KIB_MAX / 101) as usize;
        assert_eq!(waiting(), sends);
        let busy = mailbox.publish(command(), 100 << 10, std::future::ready(())).await;
        assert_eq!(busy.unwrap_err(), EngineError::Refused(Refusal::Busy));
        // Settling and asking have room of their own.
        for _ in 0..room::ASKS_KIB_MAX + 1000 {
            give_up(mailbox.ask(command())).await;
        }
        assert_eq!(waiting(), sends + room::ASKS_KIB_MAX as usize);

        // The core took them, and their answers left: there is room again.
        let mut batch = VecDeque::new();
        assert!(mailbox.take(&mut batch, Duration::ZERO));
        let mut pending = Pending::default();
        let mut words = Vec::new();
        for Request { reply, permit, .. } in batch.drain(..) {
            let request = pending.add(reply, permit);
            words.extend(pending.word(To::Request(request, Ok(Reply::Done))));
        }
        give_up(mailbox.publish(command(), 100 << 10, std::future::pending())).await;
        assert_eq!(waiting(), 0, "the answers have not left");
        words.into_iter().for_each(|word| mailbox.say(word));
        give_up(mailbox.publish(command(), 100 << 10, std::future::pending())).await;
        give_up(mailbox.ask(command())).await;
        assert_eq!(waiting(), 2);
        mailbox.poison(Failure::Disk("test".into()));
        assert_eq!(mailbox.ask(command()).await.unwrap_err(), EngineError::Poisoned);
    }
}
