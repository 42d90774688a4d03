//! What must still be there after a case: every message that was answered and not settled, in order.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use malote_connectors::{Broker, BrokerError, Delivery, Doing, Settle, Source};
use malote_model::QueueName;
use tokio::time::Instant;

use crate::World;
use crate::cases::Q;
use crate::common::{LOCK, queue};
use crate::ledger::{Fate, Ledger, Strange};

/// What comes while nothing is expected any more.
const REST: Duration = Duration::from_millis(500);
/// After a fault everything takes its time; a message that has not come by then waits for the server that is away …
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// … or is lost.
const LOST_AFTER: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(50);

/// Ids in the order in which they came first, by session.
type Lines = HashMap<Option<String>, Vec<String>>;

/// Takes all that is there, with a connection of its own.
pub async fn audit(world: &World) {
    let ledger = std::mem::take(&mut *world.trial.ledger.lock());
    let broker = again(|| world.plain()).await;
    for queue in [queue(Q), queue(Q).dead_letters()] {
        let of = |fate: Fate| {
            let all = ledger.entries.iter().filter(|(_, entry)| entry.queue == queue);
            all.filter(move |(_, entry)| entry.fate == fate)
        };
        let missing: HashSet<&str> = of(Fate::There).map(|(id, _)| id.as_str()).collect();
        if missing.is_empty() && of(Fate::Unsure).next().is_none() {
            continue;
        }
        world.trial.tally.found.fetch_add(missing.len(), Relaxed);
        let lines = drain(world, &*broker, &world.trial.own(&queue), missing).await;
        if queue == crate::common::queue(Q) {
            for (session, ids) in &lines {
                in_order(&ledger, session.as_deref(), ids);
            }
        }
        for id in lines.values().flatten() {
            if ledger.entries.get(id).is_some_and(|entry| entry.fate == Fate::Done) {
                world.trial.strange(Strange::Done);
            }
        }
    }
    let _ = broker.close().await; // it goes with its process
}

/// Everything of a queue; what is missing is waited for. RabbitMQ keeps what was in hand when its source was let go, over a
/// node that is away, until the node is back.
async fn drain(
    world: &World,
    broker: &dyn Broker,
    queue: &QueueName,
    mut missing: HashSet<&str>,
) -> Lines {
    let (mut lines, until) = (Lines::new(), Instant::now() + LOST_AFTER);
    loop {
        let wait = if missing.is_empty() { REST } else { STUCK_AFTER };
        let source = source(broker, queue, wait).await;
        let is_session = source.as_ref().is_some_and(|source| source.held().is_some());
        if let Some(source) = source {
            let wait = if is_session { REST } else { wait };
            take(broker, queue, &*source, wait, &mut missing, &mut lines).await;
            let _ = source.close().await; // it goes with its connection
            if is_session {
                continue;
            }
        }
        if missing.is_empty() {
            return lines;
        }
        world.trial.wait_for_all(missing.len()).await;
        assert!(Instant::now() < until, "lost in {queue}: {missing:?}");
    }
}

/// All that a source has, until nothing comes for a while.
async fn take(
    broker: &dyn Broker,
    queue: &QueueName,
    source: &dyn Source,
    wait: Duration,
    missing: &mut HashSet<&str>,
    lines: &mut Lines,
) {
    loop {
        let wait = if missing.is_empty() { REST } else { wait };
        let got = match source.fetch(64, wait).await {
            Ok(got) if got.is_empty() => return,
            Ok(got) => got,
            Err(BrokerError::LockLost) => return,
            Err(error) if error.is_transient() => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        for Delivery { message, lease, .. } in got {
            let Some(id) = message.message_id else { continue };
            missing.remove(id.as_str());
            let session = message.session.map(|session| session.as_str().to_owned());
            let line = lines.entry(session).or_default();
            if !line.contains(&id) {
                line.push(id);
            }
            // What is not settled comes again, and is known.
            let _ = broker.settle(queue, vec![Settle::complete(lease)]).await;
        }
    }
}

/// A queue without sessions, or its next session.
async fn source(broker: &dyn Broker, queue: &QueueName, wait: Duration) -> Option<Box<dyn Source>> {
    let sourcing = || -> Doing<'_, Option<Box<dyn Source>>> {
        Box::pin(async move {
            match broker.accept(queue, None, LOCK, wait).await {
                Err(BrokerError::Refused { code, .. }) if code == "no_sessions" => {
                    broker.open(queue, LOCK).await.map(Some)
                }
                accepted => accepted,
            }
        })
    };
    again(sourcing).await
}

async fn again<'a, T>(mut ask: impl FnMut() -> Doing<'a, T>) -> T {
    let until = Instant::now() + LOST_AFTER;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) if error.is_transient() && Instant::now() < until => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => panic!("after the case: {error}"),
        }
    }
}

/// A session keeps its order whatever happens; without one, what somebody had may come back elsewhere.
fn in_order(ledger: &Ledger, session: Option<&str>, ids: &[String]) {
    let known = ids.iter().filter_map(|id| ledger.entries.get(id));
    let still = known.filter(|entry| session.is_some() || !entry.moved);
    let numbers: Vec<usize> = still.map(|entry| entry.number).collect();
    assert!(numbers.is_sorted(), "out of order in {session:?}: {ids:?} were sent as {numbers:?}");
}
