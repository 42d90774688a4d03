//! The state of a native connection that outlives a socket: consumers, leases and unwritten frames.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use malote_engine::{Connection, ConsumerId, Delivery, EngineError, Outbound, Outbox};
use malote_model::{
    Action, AuditAction, AuditPending, AuditProtocol, LeaseToken, Principal, QueueName, Settlement,
    Timestamp,
};
use malote_wire_native::frame::{Deliver, Encoding, Ended, Reply, ServerFrame};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::codec::encode;
use crate::problem::{Code, Problem};
use crate::{Api, convert};

/// Unwritten frames. Their bytes are bounded as well.
const OUTGOING_FRAMES_MAX: usize = 256;
/// Approximate size of a deliver frame.
const DELIVER_BYTES: usize = 1 << 20;
/// Credit of a new consumer at the engine, when the size of its messages is unknown.
const WINDOW_FIRST: u32 = 16;
/// Largest credit of a consumer at the engine.
const WINDOW_MAX: u32 = 1024;
/// Ended consumers that are remembered, because their last messages may still be in flight.
const ENDED_MAX: usize = 1024;

/// An unwritten frame, with its share of the connection's bytes.
pub(super) struct Outgoing {
    pub bytes: Vec<u8>,
    _share: Option<OwnedSemaphorePermit>,
}

/// A native connection, with or without a socket.
pub(super) struct NativeConnection {
    pub api: Api,
    pub caller: Principal,
    pub address: IpAddr,
    pub encoding: Encoding,
    pub connection: Connection,
    pub consumers: Mutex<Consumers>,
    /// Leases of the client. Leases that a resumed client does not know are released and delivered again.
    pub leases: Mutex<Leases>,
    out: mpsc::Sender<Outgoing>,
    out_bytes: Arc<Semaphore>,
}

impl NativeConnection {
    pub fn new(
        api: Api,
        (caller, address): (Principal, IpAddr),
        encoding: Encoding,
    ) -> (Arc<Self>, mpsc::Receiver<Outgoing>, Outbox) {
        let (connection, outbox) = api.engine.connect();
        let (out, written) = mpsc::channel(OUTGOING_FRAMES_MAX);
        let out_bytes = Arc::new(Semaphore::new(api.limits.outgoing_bytes_max));
        let conn = Self {
            api,
            caller,
            address,
            encoding,
            connection,
            consumers: Mutex::default(),
            leases: Mutex::default(),
            out,
            out_bytes,
        };
        (Arc::new(conn), written, outbox)
    }

    /// Begins the audit record of an administrative operation.
    pub fn begin_audit(&self, action: AuditAction, about: (&str, &str)) -> AuditPending {
        let who = (&self.caller, self.address);
        self.api.begin_audit(who, AuditProtocol::Native, action, about)
    }

    /// Queues a frame. Waits while too many bytes are unwritten.
    pub async fn send_frame<T: Serialize>(&self, frame: &ServerFrame<T>) {
        let bytes = encode(frame, self.encoding);
        let share = bytes.len().clamp(1, self.api.limits.outgoing_bytes_max) as u32;
        let share = self.out_bytes.clone().acquire_many_owned(share).await.ok();
        // An error means that the connection has ended.
        let _ = self.out.send(Outgoing { bytes, _share: share }).await;
    }

    pub async fn reply<T: Serialize>(&self, id: Option<u64>, result: Result<T, Problem>) {
        let (ok, problem) = match result {
            Ok(ok) => (Some(ok), None),
            Err(problem) => (None, Some(Box::new(problem.body()))),
        };
        self.send_frame(&ServerFrame::Reply(Reply { id, ok, problem })).await;
    }

    /// Turns outputs of the engine into frames until the connection ends.
    pub async fn pump(self: Arc<Self>, mut outbox: Outbox) {
        while let Some(outbound) = outbox.next().await {
            match outbound {
                Outbound::Deliver(engine_id, deliveries) => {
                    self.deliver(engine_id, deliveries).await
                }
                // They were dead-lettered, so their credit can be used for others.
                Outbound::Damaged(engine_id, count) => {
                    let _ = self.connection.credit(engine_id, count, false).await;
                }
                Outbound::Ended(engine_id, refusal) => {
                    let Some(consumer) = self.consumers.lock().end(engine_id) else { continue };
                    self.send_frame(&ServerFrame::<()>::Ended(Ended {
                        consumer,
                        problem: Box::new(Problem::from(refusal).body()),
                    }))
                    .await;
                }
            }
        }
    }

    async fn deliver(&self, engine_id: ConsumerId, deliveries: Vec<Delivery>) {
        let (name, detached) = {
            let consumers = self.consumers.lock();
            (consumers.name_of(engine_id), consumers.is_ended(engine_id))
        };
        let Some(consumer) =
            name.filter(|_| !detached || deliveries.iter().any(|d| d.lease.is_none()))
        else {
            // The consumer was detached, so the messages are released without counting a delivery.
            let leases: Vec<_> = deliveries.iter().filter_map(|d| d.lease).collect();
            let _ = self
                .api
                .engine
                .settle(None, leases, Settlement::Release { delay_ms: 0 }, None)
                .await;
            return;
        };
        let count = deliveries.len() as u32;
        let mut all_bytes = 0;
        let mut messages = Vec::new();
        let mut bytes = 0;
        for delivery in deliveries {
            if let Some(lease) = delivery.lease {
                self.leases.lock().insert(lease, delivery.until, self.api.engine.now());
            }
            let size = delivery.stored.message.body.bytes.len() + 256;
            if bytes + size > DELIVER_BYTES && !messages.is_empty() {
                let messages = std::mem::take(&mut messages);
                self.send_frame(&ServerFrame::<()>::Deliver(Deliver { consumer, messages })).await;
                bytes = 0;
            }
            bytes += size;
            all_bytes += size;
            messages.push(convert::delivered_message(delivery, self.encoding));
        }
        if !messages.is_empty() {
            self.send_frame(&ServerFrame::<()>::Deliver(Deliver { consumer, messages })).await;
        }
        // New credit only after the frames are queued, so that a slow reader stops deliveries.
        let budget = self.api.limits.outgoing_bytes_max / 2;
        let more = self.consumers.lock().delivered(consumer, count, all_bytes, budget);
        if let Some(more) = more {
            let _ = self.connection.credit(engine_id, more, false).await;
        }
    }

    /// Checks the permissions again. Consumers without permission end with a problem. Returns false if the caller itself
    /// is no longer known.
    pub async fn recheck_permissions(&self) -> bool {
        if !self.api.access.knows(&self.caller) {
            return false;
        }
        let attached = self.consumers.lock().attached_to();
        for (engine_id, queue) in attached {
            let Err(problem) = self.api.allow(&self.caller, Action::Receive, &queue) else {
                continue;
            };
            let Some(consumer) = self.consumers.lock().end(engine_id) else { continue };
            let _ = self.connection.detach(engine_id).await;
            self.send_frame(&ServerFrame::<()>::Ended(Ended {
                consumer,
                problem: Box::new(problem.body()),
            }))
            .await;
        }
        true
    }

    /// Releases leases that the client does not know, so that they are delivered again.
    pub async fn release_unknown_leases(&self, known: &[LeaseToken]) -> Result<(), EngineError> {
        let (unknown, holds) = self.leases.lock().unknown(known);
        for chunk in unknown.chunks(malote_model::limits::SETTLE_BATCH_MAX) {
            self.api
                .engine
                .settle(None, chunk.to_vec(), Settlement::Release { delay_ms: 0 }, None)
                .await?;
        }
        for hold in holds {
            // An expired hold needs no release.
            let _ = self.api.engine.release_session(None, hold).await;
        }
        Ok(())
    }
}

/// Leases of a client. Expired leases are removed when the list has doubled.
#[derive(Default)]
pub(super) struct Leases {
    out: HashMap<LeaseToken, Timestamp>,
    holds: HashMap<LeaseToken, Timestamp>,
    prune_at: usize,
}

impl Leases {
    pub fn insert(&mut self, lease: LeaseToken, until: Timestamp, now: Timestamp) {
        if self.out.len() >= self.prune_at.max(1024) {
            // A renewed lease lasts longer than recorded here. Removing it is harmless: a client that knows it keeps it.
            self.out.retain(|_, until| *until > now);
            self.prune_at = self.out.len() * 2;
        }
        self.out.insert(lease, until);
    }

    /// Adds a held session. Expired ones are removed when there are many.
    pub fn hold(&mut self, hold: LeaseToken, until: Timestamp, now: Timestamp) {
        if self.holds.len() >= 1024 {
            self.holds.retain(|_, until| *until > now);
        }
        self.holds.insert(hold, until);
    }

    pub fn released(&mut self, hold: LeaseToken) {
        self.holds.remove(&hold);
    }

    pub fn settled<'a>(&mut self, leases: impl Iterator<Item = &'a String>) {
        for lease in leases.filter_map(|text| text.parse().ok()) {
            self.out.remove(&lease);
        }
    }

    /// Removes and returns the leases and holds that are not among these.
    fn unknown(&mut self, known: &[LeaseToken]) -> (Vec<LeaseToken>, Vec<LeaseToken>) {
        let known: std::collections::HashSet<_> = known.iter().collect();
        let holds = self.holds.keys().filter(|hold| !known.contains(hold)).copied().collect();
        self.holds.retain(|hold, _| known.contains(hold));
        let unknown: Vec<_> =
            self.out.keys().filter(|lease| !known.contains(lease)).copied().collect();
        self.out.retain(|lease, _| known.contains(lease));
        (unknown, holds)
    }
}

/// The consumers of a connection, by the numbers of the client.
#[derive(Default)]
pub(super) struct Consumers {
    by_name: HashMap<u64, Consumer>,
    names: HashMap<ConsumerId, u64>,
    ended: std::collections::VecDeque<(ConsumerId, u64)>,
}

struct Consumer {
    engine_id: ConsumerId,
    queue: QueueName,
    /// Credit of the client that was not passed to the engine yet.
    withheld: u64,
    /// Credit passed to the engine and not used yet.
    given: u32,
    /// Largest value of `given`.
    window: u32,
}

impl Consumers {
    /// Refuses a number that is in use, and too many consumers.
    pub fn check_new(&self, name: u64, max: usize) -> Result<(), Problem> {
        if self.by_name.contains_key(&name) {
            let why = format!("consumer {name} is already attached");
            return Err(Problem::new(Code::ConsumerExists, why));
        }
        if self.by_name.len() >= max {
            let why = format!("a connection has at most {max} consumers");
            return Err(Problem::new(Code::TooMany, why));
        }
        Ok(())
    }

    /// The part of the first credit that is passed to the engine.
    pub fn first_credit(credit: u32) -> u32 {
        credit.min(WINDOW_FIRST)
    }

    /// Called before the engine is asked, because its first messages arrive before its answer.
    pub fn attached(&mut self, name: u64, engine_id: ConsumerId, queue: QueueName, credit: u32) {
        let given = Self::first_credit(credit);
        let withheld = u64::from(credit - given);
        let consumer = Consumer { engine_id, queue, withheld, given, window: WINDOW_FIRST };
        self.by_name.insert(name, consumer);
        self.names.insert(engine_id, name);
    }

    /// The engine refused the consumer.
    pub fn refused(&mut self, engine_id: ConsumerId) {
        if let Some(name) = self.names.remove(&engine_id) {
            self.by_name.remove(&name);
        }
    }

    /// Adds or replaces credit of the client. Returns the credit to pass to the engine.
    pub fn credit(
        &mut self,
        name: u64,
        credit: u32,
        replace: bool,
    ) -> Result<Option<(ConsumerId, u32)>, Problem> {
        let consumer = self.by_name.get_mut(&name).ok_or_else(|| no_consumer(name))?;
        if replace {
            consumer.given = credit.min(consumer.window);
            consumer.withheld = u64::from(credit - consumer.given);
            return Ok(Some((consumer.engine_id, consumer.given)));
        }
        consumer.withheld = consumer.withheld.saturating_add(credit.into());
        Ok(consumer.top_up().map(|more| (consumer.engine_id, more)))
    }

    /// Counts a delivery. Returns the credit to pass to the engine.
    fn delivered(&mut self, name: u64, count: u32, bytes: usize, budget: usize) -> Option<u32> {
        let consumer = self.by_name.get_mut(&name)?;
        consumer.given = consumer.given.saturating_sub(count);
        let each = (bytes / count.max(1) as usize).max(1);
        consumer.window = (budget / each).clamp(1, WINDOW_MAX as usize) as u32;
        consumer.top_up()
    }

    pub fn detach(&mut self, name: u64) -> Result<ConsumerId, Problem> {
        let engine_id =
            self.by_name.get(&name).map(|c| c.engine_id).ok_or_else(|| no_consumer(name))?;
        self.end(engine_id);
        Ok(engine_id)
    }

    pub fn end(&mut self, engine_id: ConsumerId) -> Option<u64> {
        let name = self.names.remove(&engine_id)?;
        self.by_name.remove(&name);
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((engine_id, name));
        Some(name)
    }

    fn name_of(&self, engine_id: ConsumerId) -> Option<u64> {
        let ended = || self.ended.iter().find(|(id, _)| *id == engine_id).map(|(_, name)| *name);
        self.names.get(&engine_id).copied().or_else(ended)
    }

    fn is_ended(&self, engine_id: ConsumerId) -> bool {
        !self.names.contains_key(&engine_id)
    }

    /// All consumers with their queues.
    fn attached_to(&self) -> Vec<(ConsumerId, QueueName)> {
        self.by_name.values().map(|one| (one.engine_id, one.queue.clone())).collect()
    }

    pub fn names(&self) -> Vec<u64> {
        let mut names: Vec<u64> = self.by_name.keys().copied().collect();
        names.sort_unstable();
        names
    }
}

impl Consumer {
    /// Raises the credit of the engine to the window, in steps of at least half of it.
    fn top_up(&mut self) -> Option<u32> {
        let room = self.window.saturating_sub(self.given);
        let more = u32::try_from(self.withheld).unwrap_or(u32::MAX).min(room);
        if more == 0 || (self.given > self.window / 2 && u64::from(more) < self.withheld) {
            return None;
        }
        self.withheld -= u64::from(more);
        self.given += more;
        Some(more)
    }
}

fn no_consumer(name: u64) -> Problem {
    Problem::new(Code::ConsumerNotFound, format!("this connection has no consumer {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_reaches_the_engine_in_windows_and_never_exceeds_what_was_given() {
        let mut all = Consumers::default();
        let id = ConsumerId(1);
        all.attached(7, id, QueueName::new("q").unwrap(), 100);
        let mut at_engine = Consumers::first_credit(100);
        let mut passed = at_engine;
        assert_eq!(at_engine, WINDOW_FIRST);
        let mut delivered = 0;
        while at_engine > 0 {
            let batch = at_engine.min(10);
            delivered += batch;
            at_engine -= batch;
            // Large messages shrink the window to one.
            let more = all.delivered(7, batch, batch as usize * (8 << 20), 4 << 20).unwrap_or(0);
            at_engine += more;
            passed += more;
        }
        assert_eq!((delivered, passed), (100, 100));
        assert_eq!(all.credit(7, 5, false).unwrap(), Some((id, 1)));
        assert_eq!(all.credit(7, 0, true).unwrap(), Some((id, 0)));
        assert!(all.credit(8, 1, false).is_err());
    }

    #[test]
    fn an_ended_consumer_is_remembered_for_its_last_messages() {
        let mut all = Consumers::default();
        all.attached(7, ConsumerId(1), QueueName::new("q").unwrap(), 1);
        assert!(all.check_new(7, 10).is_err());
        assert_eq!(all.detach(7), Ok(ConsumerId(1)));
        assert_eq!(all.name_of(ConsumerId(1)), Some(7));
        assert!(all.is_ended(ConsumerId(1)));
        all.check_new(7, 10).unwrap();
        assert!(all.detach(7).is_err());
    }
}
