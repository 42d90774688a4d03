//! Clients of the whole engine. Each is a future that uses the engine's handle as front ends do.

use std::cell::RefCell;
use std::rc::Rc;

use malote_engine::{Connection, Consume, Delivery, Engine, EngineError, Outbound, Receive, Wants};
use malote_model::{
    Address, Changes, Durability, LeaseToken, QueueName, QueueSpec, Refusal, Sessions, Settlement,
    TopicName, TopicSpec, When,
};

use super::history::{History, Queue, Which};
use super::tasks::{Work, join};

pub(super) type Shared = Rc<RefCell<History>>;

pub(super) const LINE: Queue = 0;
pub(super) const PLAIN: Queue = 1;
pub(super) const RELAXED: Queue = 2;
pub(super) const TAKEN: Queue = 3;
pub(super) const NEWS: Queue = 4;
pub(super) const QUEUES: [&str; 5] =
    ["sim-line", "sim-plain", "sim-relaxed", "sim-taken", "sim-news/Subscriptions/all"];

const LOCK_MS: u64 = 10_000;

/// More requests than one turn processes.
const FLOOD: usize = 1_100;

pub(super) fn name(queue: Queue) -> QueueName {
    QueueName::new(QUEUES[queue as usize]).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn news() -> TopicName {
    TopicName::new("sim-news").unwrap_or_else(|refusal| panic!("{refusal}"))
}

pub(super) async fn declare(engine: Engine) -> Result<(), EngineError> {
    let spec = |sessions, durability| QueueSpec {
        sessions,
        durability,
        lock_ms: LOCK_MS,
        failed_max: None,
        ..QueueSpec::default()
    };
    engine.declare(name(LINE), spec(Sessions::Dynamic, Durability::Fsync)).await?;
    engine.declare(name(PLAIN), spec(Sessions::None, Durability::Fsync)).await?;
    engine.declare(name(RELAXED), spec(Sessions::Dynamic, Durability::Relaxed)).await?;
    engine.declare(name(TAKEN), spec(Sessions::None, Durability::Fsync)).await?;
    engine.declare(super::slow::scratch(), QueueSpec::default()).await?;
    engine.declare_topic(news(), TopicSpec::default()).await?;
    engine.subscribe(name(NEWS), spec(Sessions::None, Durability::Fsync), None).await?;
    Ok(())
}

/// A client that holds messages; it holds none once it is dropped.
struct LeaseHolder {
    history: Shared,
    id: u64,
}

impl LeaseHolder {
    fn new(history: &Shared) -> Self {
        Self { id: history.borrow_mut().new_holder(), history: history.clone() }
    }
}

impl Drop for LeaseHolder {
    fn drop(&mut self) {
        self.history.borrow_mut().drop_holder(self.id);
    }
}

/// A stream of messages that one client sends.
struct Stream(Shared, Queue, u64);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.borrow_mut().leave_stream(self.1, self.2);
    }
}

/// A client of a random kind.
pub(super) fn any(engine: &Engine, history: &Shared) -> Work {
    let (kind, producing) = {
        let mut history = history.borrow_mut();
        (history.rng.below(100), history.producing)
    };
    let (engine, history) = (engine.clone(), history.clone());
    match kind {
        0..35 if producing => Box::pin(produce(engine, history)),
        35..40 if producing => Box::pin(schedule(engine, history)),
        40..43 => Box::pin(flood(engine, history)),
        43..50 => Box::pin(take(engine, history)),
        50..58 => Box::pin(old(engine, history)),
        58..72 => Box::pin(attach(engine, history)),
        72..85 => Box::pin(hold(engine, history)),
        _ => Box::pin(receive(engine, history)),
    }
}

fn below(history: &Shared, bound: u64) -> u64 {
    history.borrow_mut().rng.below(bound)
}

/// Whether a client can continue after this error.
fn goes_on(error: &EngineError) -> bool {
    match error {
        EngineError::Refused(_) => true,
        EngineError::Poisoned | EngineError::Stopping => false,
        EngineError::Damaged { .. } => panic!("{error}"),
    }
}

async fn produce(engine: Engine, history: Shared) {
    let queue = [LINE, LINE, PLAIN, RELAXED, TAKEN][below(&history, 5) as usize];
    let Some(stream) = history.borrow_mut().take_stream(queue) else { return };
    let _stream = Stream(history.clone(), queue, stream);
    for _ in 0..1 + below(&history, 6) {
        if !history.borrow().producing {
            return;
        }
        let count = 1 + below(&history, 3);
        let these = history.borrow_mut().trying(queue, stream, count);
        let message = |&which: &Which| (name(queue), which.message(below(&history, 2000) as usize));
        let messages: Vec<_> = these.iter().map(message).collect();
        let sent = match below(&history, 4) {
            0 => engine.send_unless(messages, std::future::ready(())).await,
            _ => engine.send(messages).await,
        };
        match sent {
            Ok(sent) => {
                assert_eq!(sent.len(), these.len(), "each message has a receipt");
                history.borrow_mut().sent(&these);
            }
            Err(EngineError::Refused(why)) => {
                let expected = matches!(why, Refusal::Busy | Refusal::DiskFull);
                assert!(expected || matches!(why, Refusal::NoSegment { .. }), "{why}");
                history.borrow_mut().refused(&these, &why.to_string());
            }
            Err(error) => {
                assert!(!goes_on(&error), "{error}");
                return;
            }
        }
    }
}

/// Sends a scheduled message to a topic, where it is stored, read for the core and routed.
async fn schedule(engine: Engine, history: Shared) {
    let Some(stream) = history.borrow_mut().take_stream(NEWS) else { return };
    let _stream = Stream(history.clone(), NEWS, stream);
    let these = history.borrow_mut().trying(NEWS, stream, 1);
    let at = engine.now().plus_ms(below(&history, 4000));
    history.borrow_mut().is_due_at(these[0], at);
    let mut message = these[0].message(100);
    message.when = When::At(at);
    match engine.send(vec![(Address::Topic(news()), message)]).await {
        Ok(_) => history.borrow_mut().sent(&these),
        Err(EngineError::Refused(why)) => {
            history.borrow_mut().refused(&these, &why.to_string());
        }
        Err(_) => {}
    }
}

async fn flood(engine: Engine, history: Shared) {
    if below(&history, 20) > 0 {
        return;
    }
    history.borrow_mut().met.count("stepped: floods", 1);
    let ask = |_| -> Work {
        let engine = engine.clone();
        Box::pin(async move {
            if let Err(error) = engine.describe(name(LINE)).await {
                assert!(!goes_on(&error), "{error}");
            }
        })
    };
    join((0..FLOOD).map(ask).collect()).await;
}

/// Receives and deletes.
async fn take(engine: Engine, history: Shared) {
    let holder = LeaseHolder::new(&history);
    for _ in 0..1 + below(&history, 4) {
        let max = 1 + below(&history, 5) as u32;
        let wait_ms = below(&history, 2) * 3000;
        let (take, lock_ms, hold, per_session) = (true, None, None, 1);
        let receive =
            Receive { queue: name(TAKEN), max, wait_ms, lock_ms, take, hold, per_session };
        match engine.receive(receive).await {
            Ok(got) => {
                let now = engine.now();
                let mut history = history.borrow_mut();
                got.iter().for_each(|delivery| history.taken(holder.id, delivery, now));
            }
            Err(error) if goes_on(&error) => {}
            Err(_) => return,
        }
    }
}

async fn receive(engine: Engine, history: Shared) {
    let queue = [LINE, LINE, PLAIN, RELAXED, NEWS][below(&history, 5) as usize];
    for _ in 0..1 + below(&history, 5) {
        let holder = LeaseHolder::new(&history);
        let receive = Receive {
            queue: name(queue),
            max: 1 + below(&history, 4) as u32,
            wait_ms: below(&history, 3) * 2000,
            lock_ms: Some(2000 + below(&history, 20_000)),
            take: false,
            hold: None,
            per_session: 1 + below(&history, 3) as u32,
        };
        let got = match engine.receive(receive).await {
            Ok(got) => got,
            Err(error) if goes_on(&error) => continue,
            Err(_) => return,
        };
        let got = seen(&engine, &history, holder.id, got);
        for (which, lease) in got {
            if settle(&engine, &history, holder.id, which, lease).await.is_err() {
                return;
            }
        }
        if history.borrow().stopping {
            return;
        }
    }
}

/// Records received messages. Messages whose lease may have ended are ignored.
fn seen(
    engine: &Engine,
    history: &Shared,
    holder: u64,
    got: Vec<Delivery>,
) -> Vec<(Which, LeaseToken)> {
    let now = engine.now();
    let mut history = history.borrow_mut();
    let has = |delivery: Delivery| {
        let which = Which::of(&delivery.stored.message);
        let has = history.delivered(holder, &delivery, now);
        has.then(|| (which, delivery.lease.expect("the message is leased")))
    };
    got.into_iter().filter_map(has).collect()
}

/// Settles a message in a random way. An error means that the engine has stopped.
async fn settle(
    engine: &Engine,
    history: &Shared,
    holder: u64,
    which: Which,
    lease: LeaseToken,
) -> Result<(), EngineError> {
    let changes = Changes::default();
    let settlement = match below(history, 20) {
        // The lease expires.
        0 => return Ok(()),
        1 => Settlement::Abandon { delay_ms: 0, changes },
        2 => Settlement::Release { delay_ms: 0 },
        3 => {
            history.borrow_mut().unsure(holder, which);
            let renewed = engine.renew(None, vec![lease], Some(LOCK_MS)).await;
            return renewed
                .map(drop)
                .or_else(|error| if goes_on(&error) { Ok(()) } else { Err(error) });
        }
        _ => Settlement::Complete,
    };
    let complete = settlement == Settlement::Complete;
    match complete {
        true => history.borrow_mut().completing(which),
        false => history.borrow_mut().unsure(holder, which),
    }
    let each = engine.settle(None, vec![lease], settlement, None).await?;
    if complete {
        history.borrow_mut().settled(holder, which, each[0].is_ok());
    }
    Ok(())
}

/// Consumers of a connection, with one message per session at a time.
async fn attach(engine: Engine, history: Shared) {
    let (connection, mut outbox) = engine.connect();
    let mut consumers = Vec::new();
    for _ in 0..1 + below(&history, 3) {
        let queue = [LINE, PLAIN, RELAXED, NEWS][below(&history, 4) as usize];
        let consume = Consume {
            queue: name(queue),
            wants: Wants::Any { per_session: 1 },
            credit: 1 + below(&history, 4) as u32,
            take: false,
            lock_ms: None,
            free_standing: below(&history, 2) == 0,
            priority: 0,
            exclusive: false,
        };
        match connection.attach(consume).await {
            Ok(consumer) => consumers.push((consumer, LeaseHolder::new(&history))),
            Err(error) if goes_on(&error) => {}
            Err(_) => return,
        }
    }
    for _ in 0..1 + below(&history, 10) {
        let (consumer, got) = match outbox.next().await {
            Some(Outbound::Deliver(consumer, got)) => (consumer, got),
            Some(Outbound::Damaged(..)) => continue,
            Some(Outbound::Ended(consumer, _)) => {
                consumers.retain(|(have, _)| *have != consumer);
                continue;
            }
            None => return,
        };
        // Deliveries may arrive before the answer to attach.
        let Some((_, holder)) = consumers.iter().find(|(have, _)| *have == consumer) else {
            return;
        };
        for (which, lease) in seen(&engine, &history, holder.id, got) {
            if settle(&engine, &history, holder.id, which, lease).await.is_err() {
                return;
            }
        }
        if connection.credit(consumer, 1, false).await.is_err_and(|error| !goes_on(&error)) {
            return;
        }
    }
    // Leases of the consumers end; free-standing leases continue until they expire.
    if below(&history, 2) == 0 {
        drop(consumers);
        connection.close().await;
    }
}

/// Holds a session and leases several of its messages.
async fn hold(engine: Engine, history: Shared) {
    let (connection, mut outbox) = engine.connect();
    let queue = [LINE, RELAXED][below(&history, 2) as usize];
    let accepted = connection.accept(name(queue), None, 3000, Some(LOCK_MS)).await;
    let Ok(Some(held)) = accepted else { return };
    let holder = LeaseHolder::new(&history);
    let consume = Consume {
        queue: name(queue),
        wants: Wants::Held(held.hold),
        credit: 1 + below(&history, 6) as u32,
        take: false,
        lock_ms: None,
        free_standing: false,
        priority: 0,
        exclusive: false,
    };
    let Ok(consumer) = connection.attach(consume).await else { return };
    for _ in 0..1 + below(&history, 6) {
        let Some(Outbound::Deliver(_, got)) = outbox.next().await else { return };
        for (which, lease) in seen(&engine, &history, holder.id, got) {
            if settle(&engine, &history, holder.id, which, lease).await.is_err() {
                return;
            }
        }
        if connection.credit(consumer, 1, false).await.is_err() {
            return;
        }
    }
    let _ = release(&engine, &connection, &history, holder, held.hold).await;
}

async fn release(
    engine: &Engine,
    connection: &Connection,
    history: &Shared,
    holder: LeaseHolder,
    hold: LeaseToken,
) -> Result<(), EngineError> {
    drop(holder);
    match below(history, 3) {
        0 => engine.release_session(None, hold).await,
        1 => {
            connection.end().await;
            Ok(())
        }
        // The connection is dropped.
        _ => Ok(()),
    }
}

/// Completes messages that were stored by an earlier version.
async fn old(engine: Engine, history: Shared) {
    if history.borrow().old.is_empty() {
        return;
    }
    let queue = ["plain", "sessions", "east", "north", "graves"][below(&history, 5) as usize];
    let Ok(queue) = QueueName::new(queue) else { return };
    let receive = Receive {
        queue,
        max: 3,
        wait_ms: 0,
        lock_ms: Some(LOCK_MS),
        take: false,
        hold: None,
        per_session: 2,
    };
    let Ok(got) = engine.receive(receive).await else { return };
    for Delivery { lease, stored, .. } in got {
        let id = stored.message.message_id.unwrap_or_default();
        history.borrow_mut().old.remove(&id);
        history.borrow_mut().met.count("stepped: old messages completed", 1);
        let lease = vec![lease.expect("the message is leased")];
        if engine.settle(None, lease, Settlement::Complete, None).await.is_err() {
            return;
        }
    }
}
