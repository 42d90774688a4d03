//! What a claim costs, in rows that the server looks at: not more because others have much in hand, nor because the
//! tables were empty when the server last counted them.

use malote_connectors::Settle;
use malote_model::{QueueSpec, Sessions};
use tokio_postgres::Client;

use crate::cases::{Q, with_queue};
use crate::common::{LOCK, PATIENCE, of_session, queue, text, to};
use crate::{World, client};

const IN_HAND: usize = 2000;
const CLAIMS: usize = 40;
/// For each claim with its settlement, and for whoever keeps house meanwhile.
const ROWS_EACH: i64 = 100;

/// Rows that were looked at so far. A connection that ended has told all of its own.
async fn looked_at(sql: &Client) -> i64 {
    let others = "select count(*) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and application_name = 'malote'";
    while sql.query_one(others, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        tokio::task::yield_now().await;
    }
    let rows =
        "select coalesce(sum(idx_tup_fetch + seq_tup_read), 0)::int8 from pg_stat_user_tables
        where schemaname = 'malote'";
    sql.batch_execute("select pg_stat_clear_snapshot()").await.unwrap();
    sql.query_one(rows, &[]).await.unwrap().get(0)
}

/// An empty database as the server knows it some time later.
async fn counted_empty(spec: QueueSpec) -> (World, Client) {
    let world = World::new().await;
    with_queue(&world, spec).await.close().await.unwrap();
    let sql = client(&world.url).await;
    sql.batch_execute("vacuum analyze").await.unwrap();
    sql.batch_execute("alter table malote.messages set (autovacuum_enabled = off)").await.unwrap();
    sql.batch_execute("alter table malote.sessions set (autovacuum_enabled = off)").await.unwrap();
    (world, sql)
}

#[tokio::test]
async fn a_claim_does_not_walk_past_what_others_have() {
    let (world, sql) = counted_empty(QueueSpec::default()).await;
    // Its statements are planned while there is nothing.
    let broker = world.connect().await;
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let some = |count: usize| (0..count).map(|_| (to(Q), text("x"))).collect::<Vec<_>>();
    broker.send(some(1)).await.unwrap();
    let first = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    broker.settle(&queue(Q), vec![Settle::complete(first.lease)]).await.unwrap();

    broker.send(some(IN_HAND + CLAIMS)).await.unwrap();
    let mut in_hand = 0;
    while in_hand < IN_HAND {
        let left = (IN_HAND - in_hand) as u32;
        in_hand += source.fetch(left, PATIENCE).await.unwrap().len();
    }
    for _ in 0..CLAIMS {
        let got = source.fetch(1, PATIENCE).await.unwrap().remove(0);
        let done = broker.settle(&queue(Q), vec![Settle::complete(got.lease)]).await.unwrap();
        assert_eq!(done, [Ok(())]);
    }
    broker.close().await.unwrap();
    let rows = looked_at(&sql).await;
    // What is in hand is claimed once, given back once, and looked at a few times for that.
    let most = (IN_HAND * 20) as i64 + CLAIMS as i64 * ROWS_EACH;
    assert!(rows < most, "{rows} rows were looked at, of {most}");
}

#[tokio::test]
async fn a_session_is_found_among_all_that_are_held() {
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    let (world, sql) = counted_empty(spec).await;
    let broker = world.connect().await;
    let held_max = IN_HAND / 4;
    let all = (0..held_max).map(|n| (to(Q), of_session(&format!("s{n}"), "x"))).collect();
    broker.send(all).await.unwrap();
    let mut held = Vec::new();
    while held.len() < held_max {
        held.push(broker.accept(&queue(Q), None, LOCK, PATIENCE).await.unwrap().unwrap());
    }
    for source in held.iter().take(CLAIMS) {
        let got = source.fetch(1, PATIENCE).await.unwrap().remove(0);
        let done = broker.settle(&queue(Q), vec![Settle::complete(got.lease)]).await.unwrap();
        assert_eq!(done, [Ok(())]);
    }
    drop(held);
    broker.close().await.unwrap();
    let rows = looked_at(&sql).await;
    let most = (held_max * 40) as i64 + CLAIMS as i64 * ROWS_EACH;
    assert!(rows < most, "{rows} rows were looked at, of {most}");
}
