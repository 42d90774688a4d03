//! What waits in an outbox: when it leaves, in which order, and what it says to whoever looks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use malote::model::Sessions;
use malote::once::postgres::Postgres;
use malote::once::postgres::tokio_postgres::{AsyncMessage, Client, NoTls, connect};
use malote::{Failure, Malote, Outgoing, QueueSpec, SessionId, Tx};

use super::relays::{Seen, Window};
use super::{RECEIPTS, World, client, until};

const EMPTY: &str = "select count(*) = 0 from malote_outbox";

fn receipt(session: &str, text: &str) -> Outgoing {
    Outgoing::text(RECEIPTS, text).session(SessionId::new(session).unwrap())
}

async fn begin(world: &World, more: &str) -> Client {
    let client = client(&world.url).await;
    client.batch_execute(&format!("begin; {more}")).await.unwrap();
    client
}

async fn send(client: &Client, outgoing: Outgoing) {
    Postgres::send_in(client, outgoing).await.unwrap();
}

#[tokio::test]
async fn a_refused_message_holds_back_only_its_own_key() {
    let world = World::new(Sessions::None, Sessions::None).await;
    world.send("1").await;
    async fn both(order: String, tx: Tx<Postgres>) -> Result<(), Failure> {
        tx.send(Outgoing::text("nowhere", "x")).await?;
        tx.send(Outgoing::text(RECEIPTS, order)).await?;
        tx.send(Outgoing::text("nowhere", "y")).await?;
        Ok(())
    }
    world.broker.drain(world.worker().handle(both)).await.unwrap();
    world.relay_until("select count(*) = 2 and count(error) = 1 from malote_outbox").await;
    assert_eq!(world.broker.held(RECEIPTS).await.unwrap().ready, 1);
    let refused: String = world.one("select error from malote_outbox order by id limit 1").await;
    assert!(refused.contains("nowhere"), "{refused}");
    // Once there is such a queue, both go.
    world.broker.malote().declare("nowhere", QueueSpec::default()).await.unwrap();
    world.relay_until(EMPTY).await;
    assert_eq!(world.broker.held("nowhere").await.unwrap().ready, 2);
}

/// What is not due holds nothing back, and leaves when it is.
#[tokio::test]
async fn a_delayed_message_leaves_when_it_is_due() {
    let world = World::new(Sessions::None, Sessions::Dynamic).await;
    send(&world.sql, receipt("ana", "later").delay(Duration::from_secs(3600))).await;
    assert_eq!(world.db.outbox_age().await.unwrap(), None);
    send(&world.sql, receipt("ana", "now")).await;
    world.relay_until("select count(*) = 1 from malote_outbox").await;
    // By the clock of the database, it was due an hour ago.
    let due = "update malote_outbox set not_before = not_before - interval '2 hours'";
    world.sql.batch_execute(due).await.unwrap();
    assert!(world.db.outbox_age().await.unwrap().unwrap() > Duration::from_secs(1800));
    world.relay_until(EMPTY).await;
    let received: Vec<_> =
        world.received(Some(1)).await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(received, ["now", "later"]);
}

/// Numbers of rows are not the order of commits: what was committed first leaves first, even when an older transaction
/// that is still open hides it and not the row behind it.
#[tokio::test]
async fn a_row_waits_for_what_was_committed_before_it() {
    let world = World::new(Sessions::None, Sessions::Dynamic).await;
    send(&world.sql, receipt("bea", "before")).await;
    let xid = "select pg_current_xact_id()";
    let old = begin(&world, xid).await;
    let long = begin(&world, xid).await;
    // The young one writes and commits; the old one, which may have waited for it, writes then.
    let young = begin(&world, xid).await;
    send(&young, receipt("ana", "first")).await;
    young.batch_execute("commit").await.unwrap();
    send(&old, receipt("ana", "second")).await;
    old.batch_execute("commit").await.unwrap();
    // The relay has looked at all keys once this is gone.
    world.relay_until("select count(*) = 2 from malote_outbox").await;
    long.batch_execute("commit").await.unwrap();
    world.relay_until(EMPTY).await;
    let received = world.received(Some(1)).await;
    let of_ana: Vec<_> =
        received.iter().filter(|(who, _)| who == "ana").map(|(_, text)| text).collect();
    assert_eq!(of_ana, ["first", "second"]);
    assert_eq!(received.len(), 3);
}

/// More keys than a relay takes at once, one of them with more rows than a batch, one that never goes.
#[tokio::test]
async fn every_key_has_its_turn() {
    let world = World::new(Sessions::None, Sessions::Dynamic).await;
    world.sql.batch_execute("begin").await.unwrap();
    send(&world.sql, Outgoing::text("nowhere", "x")).await;
    for n in 0..250 {
        send(&world.sql, receipt(&format!("s{n:03}"), "one")).await;
        send(&world.sql, receipt("hot", &n.to_string())).await;
    }
    world.sql.batch_execute("commit").await.unwrap();
    world.relay_until("select count(*) = 1 from malote_outbox").await;
    let received = world.received(Some(8)).await;
    let hot: Vec<_> =
        received.iter().filter(|(who, _)| who == "hot").map(|(_, text)| text).collect();
    assert_eq!(hot, (0..250).map(|n| n.to_string()).collect::<Vec<_>>().iter().collect::<Vec<_>>());
    assert_eq!(received.len(), 500);
}

/// Large bodies go in several batches.
#[tokio::test]
async fn a_batch_has_a_limit_in_bytes() {
    let world = World::new(Sessions::None, Sessions::None).await;
    const BYTES: u64 = 100_000;
    for _ in 0..40 {
        send(&world.sql, Outgoing::text(RECEIPTS, "x".repeat(BYTES as usize))).await;
    }
    let seen = Arc::<Seen>::default();
    let window = Window::over(world.broker.malote().broker().clone(), seen.clone());
    let malote = Malote::over(Arc::new(window));
    world.db.relay_until(&malote, world.until(EMPTY)).await.unwrap();
    assert_eq!(world.broker.held(RECEIPTS).await.unwrap().ready, 40);
    assert_eq!(seen.bytes_max.load(Ordering::SeqCst), 10 * BYTES);
    assert_eq!(seen.batches.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn the_age_of_an_outbox_is_that_of_its_oldest_message() {
    let world = World::new(Sessions::None, Sessions::None).await;
    assert_eq!(world.db.outbox_age().await.unwrap(), None);
    send(&world.sql, Outgoing::text(RECEIPTS, "x")).await;
    let old = "update malote_outbox set since = now() - interval '1 hour'";
    world.sql.batch_execute(old).await.unwrap();
    assert!(world.db.outbox_age().await.unwrap().unwrap() >= Duration::from_secs(3600));
}

/// Relays hear of a message when its transaction commits, and of none that is rolled back.
#[tokio::test]
async fn writers_call_the_relays() {
    let world = World::new(Sessions::None, Sessions::None).await;
    let (listener, mut connection) = connect(&world.url, NoTls).await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) =
            std::future::poll_fn(|context| connection.poll_message(context)).await
        {
            if let AsyncMessage::Notification(call) = message {
                tell.send(call.channel().to_owned()).unwrap();
            }
        }
    });
    listener.batch_execute("listen malote_outbox").await.unwrap();
    for end in ["rollback", "commit"] {
        world.sql.batch_execute("begin").await.unwrap();
        send(&world.sql, Outgoing::text(RECEIPTS, end)).await;
        world.sql.batch_execute(end).await.unwrap();
    }
    assert_eq!(told.recv().await.as_deref(), Some("malote_outbox"));
    assert_eq!(world.one::<i64>("select count(*) from malote_outbox").await, 1);
    listener.batch_execute("select 1").await.unwrap();
    assert!(told.is_empty(), "a rollback called, too");
}

/// A relay says what is wrong with a database that will not get better by waiting.
#[tokio::test]
async fn a_relay_without_tables_says_so() {
    let world = World::new(Sessions::None, Sessions::None).await;
    world.sql.batch_execute("drop table malote_outbox").await.unwrap();
    let relay = world.db.relay_until(world.broker.malote(), std::future::pending()).await;
    assert!(relay.unwrap_err().to_string().contains("malote_outbox"));
}

/// Where nobody may listen, a relay looks by itself.
#[tokio::test]
async fn a_relay_may_only_poll() {
    let world = World::new(Sessions::None, Sessions::None).await;
    let relay = world.db.clone().poll_only();
    let malote = world.broker.malote().clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let relay =
        tokio::spawn(
            async move { relay.relay_until(&malote, async { drop(stopped.await) }).await },
        );
    send(&world.sql, Outgoing::text(RECEIPTS, "x")).await;
    until(async || world.count("malote_outbox").await == 0).await;
    drop(stop);
    relay.await.unwrap().unwrap();
    assert_eq!(world.broker.held(RECEIPTS).await.unwrap().ready, 1);
}
