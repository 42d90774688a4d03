//! Checks after a case that every acknowledged and unsettled message is still in its queue, in order.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use malote_connectors::{Broker, BrokerError, BrokerFuture, Delivery, Settle, Source};
use malote_model::QueueName;
use tokio::time::Instant;

use crate::TestEnv;
use crate::cases::Q;
use crate::common::{LOCK, queue};
use crate::expected::{Anomaly, ExpectedMessages, ExpectedState};

/// How long to wait when no more messages are expected.
const REST: Duration = Duration::from_millis(500);
/// A message that did not arrive within this time after a fault waits for the failed server …
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// … or, after this time, is lost.
const LOST_AFTER: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(50);

/// Ids in the order of their first delivery, by session.
type IdsBySession = HashMap<Option<String>, Vec<String>>;

/// Drains the queues over a new connection and checks the messages.
pub async fn audit(env: &TestEnv) {
    let expected = std::mem::take(&mut *env.trial.expected.lock());
    let broker = retry(|| env.plain()).await;
    for queue in [queue(Q), queue(Q).dead_letters()] {
        let of = |state: ExpectedState| {
            let all = expected.entries.iter().filter(|(_, entry)| entry.queue == queue);
            all.filter(move |(_, entry)| entry.state == state)
        };
        let missing: HashSet<&str> =
            of(ExpectedState::InQueue).map(|(id, _)| id.as_str()).collect();
        if missing.is_empty() && of(ExpectedState::Unknown).next().is_none() {
            continue;
        }
        env.trial.counters.found.fetch_add(missing.len(), Relaxed);
        let ids_by_session = drain(env, &*broker, &env.trial.trial_queue(&queue), missing).await;
        if queue == crate::common::queue(Q) {
            for (session, ids) in &ids_by_session {
                in_order(&expected, session.as_deref(), ids);
            }
        }
        for id in ids_by_session.values().flatten() {
            if expected.entries.get(id).is_some_and(|entry| entry.state == ExpectedState::Completed)
            {
                env.trial.anomaly(Anomaly::DeliveredAfterCompletion);
            }
        }
    }
    let _ = broker.close().await; // it ends with the process
}

/// Drains a queue and waits for missing messages. If a source was closed while its node was down, RabbitMQ keeps its
/// leased messages back until the node returns.
async fn drain(
    env: &TestEnv,
    broker: &dyn Broker,
    queue: &QueueName,
    mut missing: HashSet<&str>,
) -> IdsBySession {
    let (mut ids_by_session, until) = (IdsBySession::new(), Instant::now() + LOST_AFTER);
    loop {
        let wait = if missing.is_empty() { REST } else { STUCK_AFTER };
        let source = source(broker, queue, wait).await;
        let is_session = source.as_ref().is_some_and(|source| source.held().is_some());
        if let Some(source) = source {
            let wait = if is_session { REST } else { wait };
            take(broker, queue, &*source, wait, &mut missing, &mut ids_by_session).await;
            let _ = source.close().await; // it ends with its connection
            if is_session {
                continue;
            }
        }
        if missing.is_empty() {
            return ids_by_session;
        }
        env.trial.restore_servers(missing.len()).await;
        assert!(Instant::now() < until, "messages lost in {queue}: {missing:?}");
    }
}

/// Drains a source.
async fn take(
    broker: &dyn Broker,
    queue: &QueueName,
    source: &dyn Source,
    wait: Duration,
    missing: &mut HashSet<&str>,
    ids_by_session: &mut IdsBySession,
) {
    loop {
        let wait = if missing.is_empty() { REST } else { wait };
        let received = match source.fetch(64, wait).await {
            Ok(received) if received.is_empty() => return,
            Ok(received) => received,
            Err(BrokerError::LockLost) => return,
            Err(error) if error.is_transient() => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        for Delivery { message, lease, .. } in received {
            let Some(id) = message.message_id else { continue };
            missing.remove(id.as_str());
            let session = message.session.map(|session| session.as_str().to_owned());
            let ids = ids_by_session.entry(session).or_default();
            if !ids.contains(&id) {
                ids.push(id);
            }
            // A message that is not settled is delivered again, which is harmless.
            let _ = broker.settle(queue, vec![Settle::complete(lease)]).await;
        }
    }
}

/// The source of a queue without sessions, or of its next session.
async fn source(broker: &dyn Broker, queue: &QueueName, wait: Duration) -> Option<Box<dyn Source>> {
    let sourcing = || -> BrokerFuture<'_, Option<Box<dyn Source>>> {
        Box::pin(async move {
            match broker.accept(queue, None, LOCK, wait).await {
                Err(BrokerError::Refused { code, .. }) if code == "no_sessions" => {
                    broker.open(queue, LOCK).await.map(Some)
                }
                accepted => accepted,
            }
        })
    };
    retry(sourcing).await
}

async fn retry<'a, T>(mut call: impl FnMut() -> BrokerFuture<'a, T>) -> T {
    let until = Instant::now() + LOST_AFTER;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) if error.is_transient() && Instant::now() < until => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => panic!("error after the case: {error}"),
        }
    }
}

/// Sessions always keep their order. In a queue without sessions, a redelivered message may have another position.
fn in_order(expected: &ExpectedMessages, session: Option<&str>, ids: &[String]) {
    let known = ids.iter().filter_map(|id| expected.entries.get(id));
    let still = known.filter(|entry| session.is_some() || !entry.moved);
    let numbers: Vec<usize> = still.map(|entry| entry.number).collect();
    assert!(
        numbers.is_sorted(),
        "session {session:?} is out of order: {ids:?} were sent as {numbers:?}"
    );
}
