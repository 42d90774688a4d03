//! When and in which order messages of an outbox are published.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use malote::model::Sessions;
use malote::once::postgres::Postgres;
use malote::once::postgres::tokio_postgres::{AsyncMessage, Client, NoTls, connect};
use malote::{Failure, Malote, OutboxMessage, QueueSpec, SessionId, Tx};

use super::relays::{PausableBroker, SendCounts};
use super::{Fixture, RECEIPTS, client, until};

const EMPTY: &str = "select count(*) = 0 from malote_outbox";

fn receipt(session: &str, text: &str) -> OutboxMessage {
    OutboxMessage::text(RECEIPTS, text).session(SessionId::new(session).unwrap())
}

async fn begin(fixture: &Fixture, more: &str) -> Client {
    let client = client(&fixture.url).await;
    client.batch_execute(&format!("begin; {more}")).await.unwrap();
    client
}

async fn send(client: &Client, message: OutboxMessage) {
    Postgres::send_in(client, message).await.unwrap();
}

#[tokio::test]
async fn a_refused_message_holds_back_only_its_own_key() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    fixture.send("1").await;
    async fn send_to_both(order: String, tx: Tx<Postgres>) -> Result<(), Failure> {
        tx.send(OutboxMessage::text("nowhere", "x")).await?;
        tx.send(OutboxMessage::text(RECEIPTS, order)).await?;
        tx.send(OutboxMessage::text("nowhere", "y")).await?;
        Ok(())
    }
    fixture.broker.drain(fixture.worker().handle(send_to_both)).await.unwrap();
    fixture.relay_until("select count(*) = 2 and count(error) = 1 from malote_outbox").await;
    assert_eq!(fixture.broker.counts(RECEIPTS).await.unwrap().ready, 1);
    let refused: String = fixture.one("select error from malote_outbox order by id limit 1").await;
    assert!(refused.contains("nowhere"), "{refused}");
    // After the queue is created, both messages are published.
    fixture.broker.malote().declare("nowhere", QueueSpec::default()).await.unwrap();
    fixture.relay_until(EMPTY).await;
    assert_eq!(fixture.broker.counts("nowhere").await.unwrap().ready, 2);
}

#[tokio::test]
async fn a_delayed_message_is_published_when_it_is_due() {
    let fixture = Fixture::new(Sessions::None, Sessions::Dynamic).await;
    send(&fixture.sql, receipt("ana", "later").delay(Duration::from_secs(3600))).await;
    assert_eq!(fixture.db.outbox_age().await.unwrap(), None);
    send(&fixture.sql, receipt("ana", "now")).await;
    fixture.relay_until("select count(*) = 1 from malote_outbox").await;
    // Now the message was due an hour ago.
    let due = "update malote_outbox set not_before = not_before - interval '2 hours'";
    fixture.sql.batch_execute(due).await.unwrap();
    assert!(fixture.db.outbox_age().await.unwrap().unwrap() > Duration::from_secs(1800));
    fixture.relay_until(EMPTY).await;
    let received: Vec<_> =
        fixture.received(Some(1)).await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(received, ["now", "later"]);
}

/// Row ids are not in commit order. The row that was committed first is published first, even if an open older
/// transaction delays it.
#[tokio::test]
async fn rows_are_published_in_commit_order() {
    let fixture = Fixture::new(Sessions::None, Sessions::Dynamic).await;
    send(&fixture.sql, receipt("bea", "before")).await;
    let xid = "select pg_current_xact_id()";
    let old = begin(&fixture, xid).await;
    let long = begin(&fixture, xid).await;
    // The young transaction writes and commits before the old one writes.
    let young = begin(&fixture, xid).await;
    send(&young, receipt("ana", "first")).await;
    young.batch_execute("commit").await.unwrap();
    send(&old, receipt("ana", "second")).await;
    old.batch_execute("commit").await.unwrap();
    // When this row is gone, the relay has seen all keys.
    fixture.relay_until("select count(*) = 2 from malote_outbox").await;
    long.batch_execute("commit").await.unwrap();
    fixture.relay_until(EMPTY).await;
    let received = fixture.received(Some(1)).await;
    let of_ana: Vec<_> =
        received.iter().filter(|(who, _)| who == "ana").map(|(_, text)| text).collect();
    assert_eq!(of_ana, ["first", "second"]);
    assert_eq!(received.len(), 3);
}

/// There are more keys than in a batch. One key has more rows than a batch, and one is always refused.
#[tokio::test]
async fn every_key_is_published() {
    let fixture = Fixture::new(Sessions::None, Sessions::Dynamic).await;
    fixture.sql.batch_execute("begin").await.unwrap();
    send(&fixture.sql, OutboxMessage::text("nowhere", "x")).await;
    for n in 0..250 {
        send(&fixture.sql, receipt(&format!("s{n:03}"), "one")).await;
        send(&fixture.sql, receipt("hot", &n.to_string())).await;
    }
    fixture.sql.batch_execute("commit").await.unwrap();
    fixture.relay_until("select count(*) = 1 from malote_outbox").await;
    let received = fixture.received(Some(8)).await;
    let hot: Vec<_> =
        received.iter().filter(|(who, _)| who == "hot").map(|(_, text)| text).collect();
    assert_eq!(hot, (0..250).map(|n| n.to_string()).collect::<Vec<_>>().iter().collect::<Vec<_>>());
    assert_eq!(received.len(), 500);
}

#[tokio::test]
async fn batches_are_limited_in_bytes() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    const BYTES: u64 = 100_000;
    for _ in 0..40 {
        send(&fixture.sql, OutboxMessage::text(RECEIPTS, "x".repeat(BYTES as usize))).await;
    }
    // Rows wait for older transactions, also those of other tests on this server, and a batch would end before them.
    let settled =
        "select bool_and(xid < pg_snapshot_xmin(pg_current_snapshot())) from malote_outbox";
    fixture.until(settled).await;
    let counts = Arc::<SendCounts>::default();
    let pausable = PausableBroker::over(fixture.broker.malote().broker().clone(), counts.clone());
    let malote = Malote::with_broker(Arc::new(pausable));
    fixture.db.relay_until(&malote, fixture.until(EMPTY)).await.unwrap();
    assert_eq!(fixture.broker.counts(RECEIPTS).await.unwrap().ready, 40);
    assert_eq!(counts.bytes_max.load(Ordering::SeqCst), 10 * BYTES);
    assert_eq!(counts.batches.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn the_age_of_an_outbox_is_the_age_of_its_oldest_message() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    assert_eq!(fixture.db.outbox_age().await.unwrap(), None);
    send(&fixture.sql, OutboxMessage::text(RECEIPTS, "x")).await;
    let old = "update malote_outbox set since = now() - interval '1 hour'";
    fixture.sql.batch_execute(old).await.unwrap();
    assert!(fixture.db.outbox_age().await.unwrap().unwrap() >= Duration::from_secs(3600));
}

/// A transaction that is rolled back sends no notification.
#[tokio::test]
async fn a_commit_notifies_the_relays() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    let (listener, mut connection) = connect(&fixture.url, NoTls).await.unwrap();
    let (notified_sender, mut notified) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) =
            std::future::poll_fn(|context| connection.poll_message(context)).await
        {
            if let AsyncMessage::Notification(call) = message {
                notified_sender.send(call.channel().to_owned()).unwrap();
            }
        }
    });
    listener.batch_execute("listen malote_outbox").await.unwrap();
    for end in ["rollback", "commit"] {
        fixture.sql.batch_execute("begin").await.unwrap();
        send(&fixture.sql, OutboxMessage::text(RECEIPTS, end)).await;
        fixture.sql.batch_execute(end).await.unwrap();
    }
    assert_eq!(notified.recv().await.as_deref(), Some("malote_outbox"));
    assert_eq!(fixture.one::<i64>("select count(*) from malote_outbox").await, 1);
    listener.batch_execute("select 1").await.unwrap();
    assert!(notified.is_empty(), "the rolled-back transaction sent a notification");
}

/// A missing table is not retried.
#[tokio::test]
async fn a_relay_without_tables_returns_an_error() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    fixture.sql.batch_execute("drop table malote_outbox").await.unwrap();
    let relay = fixture.db.relay_until(fixture.broker.malote(), std::future::pending()).await;
    assert!(relay.unwrap_err().to_string().contains("malote_outbox"));
}

#[tokio::test]
async fn a_relay_can_poll_instead_of_listening() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    let relay = fixture.db.clone().poll_only();
    let malote = fixture.broker.malote().clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let relay =
        tokio::spawn(
            async move { relay.relay_until(&malote, async { drop(stopped.await) }).await },
        );
    send(&fixture.sql, OutboxMessage::text(RECEIPTS, "x")).await;
    until(async || fixture.count("malote_outbox").await == 0).await;
    drop(stop);
    relay.await.unwrap().unwrap();
    assert_eq!(fixture.broker.counts(RECEIPTS).await.unwrap().ready, 1);
}
