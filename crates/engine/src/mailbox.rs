//! Queues commands for the core thread and routes its replies and notices.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hashbrown::HashMap;
use malote_model::{LeaseToken, QueueName, Refusal, Settlement, limits};
use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::admission::{Admission, AdmissionLimits, RequestClass};
use crate::command::{
    AcceptedSession, Command, ConnectionId, ConsumerId, MessageGrant, Notice, Reply,
};
use crate::core::FixedState;
use crate::failure::EngineFailure;
use crate::handle::EngineError;
use crate::journal::Marks;
use crate::outputs::NoticeSequencer;
use crate::replies::{ReadRequest, RoutedOutput};

pub(crate) type Answer = Result<Reply, EngineError>;
type Reads = std::sync::mpsc::Sender<ReadRequest>;
type NoticeSender = mpsc::Sender<(ConsumerId, QueueName, Notice)>;

/// A command and its reply channel. Internal commands that need no reply have none.
pub(crate) struct Request {
    pub command: Command,
    pub reply: Option<oneshot::Sender<Answer>>,
    /// `None` for internal requests, which need no admission.
    pub permit: Option<Permit>,
}

/// A request's share of an [`Admission`] budget. It is kept with the request and then with the reply, until the reply
/// has been sent.
pub(crate) struct Permit {
    mailbox: Arc<Mailbox>,
    class: RequestClass,
    kib: u32,
}

impl Permit {
    /// Takes more budget for a large reply, which also waits for the journal.
    pub(crate) fn take_more(&mut self, bytes: usize) {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
        if kib > 0 {
            self.mailbox.admission(self.class).take_more(kib);
            self.kib = self.kib.saturating_add(kib);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.kib > 0 {
            let admit = |request, kib| self.mailbox.admit(self.class, request, kib);
            self.mailbox.admission(self.class).leave(self.kib, admit);
        }
    }
}

/// The queue of requests for the core, and the registry of consumers.
pub(crate) struct Mailbox {
    state: Mutex<MailboxState>,
    arrived: Condvar,
    sends: Admission,
    asks: Admission,
    next_id: AtomicU64,
    failure: OnceLock<EngineFailure>,
    on_failure: OnceLock<Box<dyn Fn() + Send + Sync>>,
    marks: Arc<Marks>,
    registry: Mutex<ConnectionRegistry>,
    reads: Mutex<Option<Reads>>,
}

struct MailboxState {
    requests: VecDeque<Request>,
    asleep: bool,
    open: bool,
}

struct ConnectionRegistry {
    open: bool,
    connections: HashMap<ConnectionId, NoticeSender, FixedState>,
    consumers: HashMap<ConsumerId, ConsumerNotices, FixedState>,
}

/// A consumer of a connection, with its notices.
struct ConsumerNotices {
    connection: ConnectionId,
    queue: QueueName,
    notices: NoticeSequencer<Notice>,
}

impl Mailbox {
    pub(crate) fn new(marks: Arc<Marks>, rooms: AdmissionLimits) -> Self {
        let registry = ConnectionRegistry {
            open: true,
            connections: HashMap::with_hasher(FixedState),
            consumers: HashMap::with_hasher(FixedState),
        };
        Self {
            state: Mutex::new(MailboxState {
                requests: VecDeque::new(),
                asleep: false,
                open: true,
            }),
            arrived: Condvar::new(),
            sends: Admission::new(rooms.sends_kib_max),
            asks: Admission::new(rooms.asks_kib_max),
            next_id: AtomicU64::new(1),
            failure: OnceLock::new(),
            on_failure: OnceLock::new(),
            marks,
            registry: Mutex::new(registry),
            reads: Mutex::new(None),
        }
    }

    /// Sends a command with this many bytes of messages, once it is admitted, and waits for the reply. First come,
    /// first served. Stops waiting for admission when `enough` completes, and then returns [`Refusal::Busy`].
    pub(crate) async fn publish(
        self: &Arc<Self>,
        command: Command,
        bytes: usize,
        enough: impl Future<Output = ()>,
    ) -> Answer {
        let (mut pending, mut queued) = self.submit(RequestClass::Send, command, bytes);
        let answered = tokio::select! {
            biased;
            answered = &mut pending.answer => answered,
            () = enough => {
                if queued.withdraw() {
                    return Err(Refusal::Busy.into());
                }
                (&mut pending.answer).await
            }
        };
        answered.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Sends a command, once it is admitted, and waits for the reply.
    pub(crate) async fn ask(self: &Arc<Self>, command: Command) -> Answer {
        let bytes = command.held_bytes();
        let (mut pending, _in_line) = self.submit(RequestClass::Ask, command, bytes);
        (&mut pending.answer).await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Sends an internal command, without admission, and waits for the reply.
    pub(crate) async fn ask_inside(&self, command: Command) -> Answer {
        let (reply, answer) = oneshot::channel();
        // If the mailbox is closed, the request is dropped together with its reply channel.
        let _ = self.put(Request { command, reply: Some(reply), permit: None });
        answer.await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Sends a command without waiting and without admission. Such commands only concern state that the core already
    /// has.
    pub(crate) fn post(&self, command: Command) {
        self.put(Request { command, reply: None, permit: None });
    }

    fn submit(
        self: &Arc<Self>,
        class: RequestClass,
        command: Command,
        bytes: usize,
    ) -> (PendingAnswer<'_>, QueuedRequest<'_>) {
        let (reply, answer) = oneshot::channel();
        let request = Request { command, reply: Some(reply), permit: None };
        let admit = |request, kib| self.admit(class, request, kib);
        let number = self.admission(class).submit(bytes, request, admit);
        (PendingAnswer { mailbox: self, answer }, QueuedRequest { mailbox: self, class, number })
    }

    fn admission(&self, class: RequestClass) -> &Admission {
        match class {
            RequestClass::Send => &self.sends,
            RequestClass::Ask => &self.asks,
        }
    }

    /// Queues an admitted request. Called while its admission budget is locked.
    fn admit(self: &Arc<Self>, class: RequestClass, mut request: Request, kib: u32) {
        request.permit = Some(Permit { mailbox: self.clone(), class, kib });
        if let Some(mut refused) = self.put(request)
            && let Some(permit) = &mut refused.permit
        {
            // The engine is stopping. The budget is locked here, and no request needs it any more.
            permit.kib = 0;
        }
    }

    /// Returns the request if the mailbox is closed.
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

    /// Takes all queued requests; waits at most `wait` for the first. Returns false when no more will come.
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

    /// Whether all admitted requests have been answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.sends.is_unused() && self.asks.is_unused()
    }

    /// Wakes the core, so that it looks at its clock.
    pub(crate) fn wake(&self) {
        let asleep = std::mem::take(&mut self.state.lock().asleep);
        if asleep {
            self.arrived.notify_one();
        }
    }

    /// Closes the mailbox. Queued requests are still answered.
    pub(crate) fn close(&self) {
        self.close_all();
    }

    /// Closes the mailbox after a failure. All waiting callers get an error at once. Only the first failure is kept.
    pub(crate) fn poison(&self, failure: EngineFailure) {
        if self.failure.set(failure.clone()).is_err() {
            return;
        }
        tracing::error!(%failure, "the engine failed: it accepts no more requests, and the outcome of pending requests is unknown");
        drop(self.close_all());
        if let Some(on_failure) = self.on_failure.get() {
            on_failure();
        }
    }

    /// Sets what else must stop when the engine fails.
    pub(crate) fn on_failure(&self, stop: impl Fn() + Send + Sync + 'static) {
        let first = self.on_failure.set(Box::new(stop)).is_ok();
        assert!(first, "one engine has one mailbox");
    }

    /// Closes all channels, and returns the requests that were not taken yet.
    fn close_all(&self) -> VecDeque<Request> {
        let mut state = self.state.lock();
        state.open = false;
        let untaken = match self.is_poisoned() {
            true => std::mem::take(&mut state.requests),
            false => VecDeque::new(),
        };
        drop(state);
        self.sends.close();
        self.asks.close();
        let mut registry = self.registry.lock();
        registry.open = false;
        let connections = std::mem::take(&mut registry.connections);
        drop(registry);
        drop(connections);
        self.reads.lock().take();
        self.arrived.notify_one();
        untaken
    }

    /// The journal is poisoned first: a caller that loses its reply because of a failed sync must not get the error
    /// `Stopping`, which would mean that nothing happened.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.failure.get().is_some() || self.marks.poisoned()
    }

    /// Why the engine stopped, if it failed.
    pub(crate) fn failure(&self) -> Option<&EngineFailure> {
        self.failure.get()
    }

    /// The error for a lost reply. If the engine is neither stopping nor poisoned, a thread is panicking.
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

    pub(crate) fn new_connection(&self, sender: NoticeSender) -> ConnectionId {
        let id = ConnectionId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let mut registry = self.registry.lock();
        // Closed: the sender is dropped, and the outbox ends.
        if registry.open {
            registry.connections.insert(id, sender);
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
        let entry = ConsumerNotices { connection, queue, notices: NoticeSequencer::default() };
        self.registry.lock().consumers.insert(id, entry);
        id
    }

    pub(crate) fn forget_consumer(&self, consumer: ConsumerId) {
        let gone = self.registry.lock().consumers.remove(&consumer);
        self.release_undelivered(gone.into_iter().flat_map(|entry| entry.notices.into_unsent()));
    }

    /// Removes a connection and its consumers from the registry.
    pub(crate) fn forget_connection(&self, connection: ConnectionId) {
        let mut registry = self.registry.lock();
        registry.connections.remove(&connection);
        let of_it = |_: &ConsumerId, entry: &mut ConsumerNotices| entry.connection == connection;
        let gone: Vec<_> = registry.consumers.extract_if(of_it).collect();
        drop(registry);
        let notices = gone.into_iter().flat_map(|(_, entry)| entry.notices.into_unsent());
        self.release_undelivered(notices);
    }

    pub(crate) fn connection_lost(&self, connection: ConnectionId) {
        self.post(Command::Disconnect { connection, clean: false });
        self.forget_connection(connection);
    }

    /// Cancels a waiting request.
    pub(crate) fn cancel_wait(&self, consumer: ConsumerId) {
        self.post(Command::Detach { consumer });
    }

    /// Sends an output, after the journal has reached its position.
    pub(crate) fn send_output(&self, output: RoutedOutput) {
        match output {
            RoutedOutput::Answer(reply, answer, _permit) => {
                if let Err(undelivered) = reply.send(answer.map_err(EngineError::Refused)) {
                    self.release_answer(undelivered);
                }
            }
            RoutedOutput::Notice(consumer, number, notice) => self.notify(consumer, number, notice),
            RoutedOutput::Read(what) => {
                if let Some(reads) = &*self.reads.lock() {
                    // The engine is stopping. The next start asks for it again.
                    let _ = reads.send(what);
                }
            }
        }
    }

    /// Sets the receiver of read requests. Their number is bounded: a topic requests a few messages at a time and waits
    /// for them, and rewrites are rare.
    pub(crate) fn set_reads(&self, reads: Reads) {
        *self.reads.lock() = Some(reads);
    }

    /// Gives a notice its number in the sequence of its consumer.
    pub(crate) fn number(&self, output: &mut RoutedOutput) {
        let RoutedOutput::Notice(consumer, number, _) = output else { return };
        if let Some(entry) = self.registry.lock().consumers.get_mut(consumer) {
            *number = entry.notices.number();
        }
    }

    fn notify(&self, consumer: ConsumerId, number: u64, notice: Notice) {
        let mut registry = self.registry.lock();
        let ConnectionRegistry { connections, consumers, .. } = &mut *registry;
        // The consumer was detached, or its connection is being dropped. Nothing was delivered.
        let Some(entry) = consumers.get_mut(&consumer) else {
            drop(registry);
            return self.release_undelivered([notice]);
        };
        entry.notices.arrived(number, notice);
        let connection = entry.connection;
        let (mut ended, mut full, mut undelivered) = (false, false, Vec::new());
        while let Some(notice) = entry.notices.next_due() {
            ended |= matches!(notice, Notice::Ended(_));
            let notice = (consumer, entry.queue.clone(), notice);
            let said = match connections.get(&connection) {
                Some(sender) => sender.try_send(notice),
                None => Err(TrySendError::Closed(notice)),
            };
            if let Err(error) = said {
                full |= matches!(error, TrySendError::Full(_));
                undelivered.push(error.into_inner().2);
            }
        }
        if full {
            tracing::warn!("a connection does not read its notices and is closed");
            connections.remove(&connection);
        }
        if ended {
            consumers.remove(&consumer);
        }
        drop(registry);
        self.release_undelivered(undelivered);
    }

    /// Returns undelivered messages to their queues.
    fn release_undelivered(&self, notices: impl IntoIterator<Item = Notice>) {
        for notice in notices {
            if let Notice::Deliver(grants) = notice {
                self.release(grants);
            }
        }
    }

    /// Undoes a reply whose caller is gone: releases its leases or its session hold.
    fn release_answer(&self, undelivered: Answer) {
        match undelivered {
            Ok(Reply::Delivered(grants)) => self.release(grants),
            Ok(Reply::Accepted(Some(AcceptedSession { hold, .. }))) => {
                self.post(Command::ReleaseSession { hold })
            }
            _ => {}
        }
    }

    /// Returns granted messages that no receiver has seen to their queues. Nothing is counted.
    pub(crate) fn release(&self, grants: Vec<MessageGrant>) {
        let leases: Vec<LeaseToken> = grants.into_iter().filter_map(|grant| grant.lease).collect();
        for some in leases.chunks(limits::SETTLE_BATCH_MAX) {
            self.post(Command::Settle {
                leases: some.to_vec(),
                settlement: Settlement::Release { delay_ms: 0 },
                state: None,
            });
        }
    }
}

/// Waits for a reply. A reply that arrives after the caller has given up is undone.
struct PendingAnswer<'a> {
    mailbox: &'a Mailbox,
    answer: oneshot::Receiver<Answer>,
}

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(undelivered) = self.answer.try_recv() {
            self.mailbox.release_answer(undelivered);
        }
    }
}

/// A request that may wait for admission.
struct QueuedRequest<'a> {
    mailbox: &'a Arc<Mailbox>,
    class: RequestClass,
    number: Option<u64>,
}

impl QueuedRequest<'_> {
    /// Returns false if the request was already admitted.
    fn withdraw(&mut self) -> bool {
        let Some(number) = self.number.take() else { return false };
        let admit = |request, kib| self.mailbox.admit(self.class, request, kib);
        self.mailbox.admission(self.class).withdraw(number, admit)
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission;
    use crate::core::Effect;
    use crate::replies::PendingReplies;

    #[test]
    fn a_consumer_gets_its_notices_in_the_order_of_decisions() {
        let mailbox = Mailbox::new(Arc::new(Marks::default()), AdmissionLimits::default());
        let (sender, mut heard) = mpsc::channel(10);
        let connection = mailbox.new_connection(sender);
        let queue = QueueName::new("q").unwrap();
        let consumer = mailbox.new_consumer_of(connection, &queue);
        let other = mailbox.new_consumer_of(connection, &queue);
        let decide = |consumer| {
            let mut output = RoutedOutput::Notice(consumer, 0, Notice::Deliver(Vec::new()));
            mailbox.number(&mut output);
            output
        };
        let (first, second) = (decide(consumer), decide(consumer));
        let mut last = RoutedOutput::Notice(consumer, 0, Notice::Ended(Refusal::Busy));
        mailbox.number(&mut last);
        // The first notice waits for the disk; the others do not.
        mailbox.send_output(last);
        mailbox.send_output(second);
        assert!(heard.try_recv().is_err());
        mailbox.send_output(decide(other));
        assert_eq!(heard.try_recv().unwrap().0, other);
        mailbox.send_output(first);
        let notices: Vec<_> = std::iter::from_fn(|| heard.try_recv().ok()).collect();
        assert!(matches!(
            &notices[..],
            [(_, _, Notice::Deliver(_)), (_, _, Notice::Deliver(_)), (_, _, Notice::Ended(_))]
        ));
        assert!(notices.iter().all(|(to, _, _)| *to == consumer));
    }

    /// Sends a request and drops its future at once.
    async fn give_up(pending: impl Future<Output = Answer>) {
        tokio::select! {
            biased;
            answer = pending => panic!("unexpected answer: {answer:?}"),
            () = std::future::ready(()) => {}
        }
    }

    #[tokio::test]
    async fn requests_of_cancelled_callers_are_bounded() {
        let mailbox =
            Arc::new(Mailbox::new(Arc::new(Marks::default()), AdmissionLimits::default()));
        let command = || Command::Describe { queue: QueueName::new("q").unwrap() };
        let waiting = || mailbox.state.lock().requests.len();
        for _ in 0..3000 {
            give_up(mailbox.publish(command(), 100 << 10, std::future::pending())).await;
        }
        let sends = (admission::SENDS_KIB_MAX / 101) as usize;
        assert_eq!(waiting(), sends);
        let busy = mailbox.publish(command(), 100 << 10, std::future::ready(())).await;
        assert_eq!(busy.unwrap_err(), EngineError::Refused(Refusal::Busy));
        // Other requests have a budget of their own.
        for _ in 0..admission::ASKS_KIB_MAX + 1000 {
            give_up(mailbox.ask(command())).await;
        }
        assert_eq!(waiting(), sends + admission::ASKS_KIB_MAX as usize);

        // After the core has taken the requests and their replies were sent, the budget is free again.
        let mut batch = VecDeque::new();
        assert!(mailbox.take(&mut batch, Duration::ZERO));
        let mut pending = PendingReplies::default();
        let mut outputs = Vec::new();
        for Request { reply, permit, .. } in batch.drain(..) {
            let request = pending.add(reply, permit);
            outputs.extend(pending.route(Effect::Request(request, Ok(Reply::Done))));
        }
        give_up(mailbox.publish(command(), 100 << 10, std::future::pending())).await;
        assert_eq!(waiting(), 0, "the answers have not left");
        outputs.into_iter().for_each(|output| mailbox.send_output(output));
        give_up(mailbox.publish(command(), 100 << 10, std::future::pending())).await;
        give_up(mailbox.ask(command())).await;
        assert_eq!(waiting(), 2);
        mailbox.poison(EngineFailure::Disk("test".into()));
        assert_eq!(mailbox.ask(command()).await.unwrap_err(), EngineError::Poisoned);
    }
}
