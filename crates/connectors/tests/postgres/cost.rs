//! The cost of a claim in rows read. It does not depend on how many messages are leased, nor on whether the tables
//! were empty when the server last analyzed them.

use malote_connectors::Settle;
use malote_model::{QueueSpec, Sessions};
use tokio_postgres::Client;

use crate::cases::{Q, with_queue};
use crate::common::{LOCK, TIMEOUT, queue, session_message, text, to};
use crate::{TestEnv, client};

const LEASED: usize = 2000;
const CLAIMS: usize = 40;
/// For each claim with its settlement, including maintenance.
const ROWS_EACH: i64 = 100;

/// Rows read so far. Connections report their counts when they end.
async fn rows_read(sql: &Client) -> i64 {
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

/// An environment whose tables were analyzed while they were empty.
async fn analyzed_while_empty(spec: QueueSpec) -> (TestEnv, Client) {
    let env = TestEnv::new().await;
    with_queue(&env, spec).await.close().await.unwrap();
    let sql = client(&env.url).await;
    sql.batch_execute("vacuum analyze").await.unwrap();
    sql.batch_execute("alter table malote.messages set (autovacuum_enabled = off)").await.unwrap();
    sql.batch_execute("alter table malote.sessions set (autovacuum_enabled = off)").await.unwrap();
    (env, sql)
}

#[tokio::test]
async fn a_claim_does_not_scan_leased_messages() {
    let (env, sql) = analyzed_while_empty(QueueSpec::default()).await;
    // The statements are planned while the tables are empty.
    let broker = env.connect().await;
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let some = |count: usize| (0..count).map(|_| (to(Q), text("x"))).collect::<Vec<_>>();
    broker.send(some(1)).await.unwrap();
    let first = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    broker.settle(&queue(Q), vec![Settle::complete(first.lease)]).await.unwrap();

    broker.send(some(LEASED + CLAIMS)).await.unwrap();
    let mut leased = 0;
    while leased < LEASED {
        let left = (LEASED - leased) as u32;
        leased += source.fetch(left, TIMEOUT).await.unwrap().len();
    }
    for _ in 0..CLAIMS {
        let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
        let done = broker.settle(&queue(Q), vec![Settle::complete(received.lease)]).await.unwrap();
        assert_eq!(done, [Ok(())]);
    }
    broker.close().await.unwrap();
    let rows = rows_read(&sql).await;
    // Each leased message is claimed once and released once, which reads a few rows.
    let most = (LEASED * 20) as i64 + CLAIMS as i64 * ROWS_EACH;
    assert!(rows < most, "{rows} rows were read; at most {most} are allowed");
}

#[tokio::test]
async fn a_held_session_is_found_without_a_scan() {
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    let (env, sql) = analyzed_while_empty(spec).await;
    let broker = env.connect().await;
    let held_max = LEASED / 4;
    let all = (0..held_max).map(|n| (to(Q), session_message(&format!("s{n}"), "x"))).collect();
    broker.send(all).await.unwrap();
    let mut held = Vec::new();
    while held.len() < held_max {
        held.push(broker.accept(&queue(Q), None, LOCK, TIMEOUT).await.unwrap().unwrap());
    }
    for source in held.iter().take(CLAIMS) {
        let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
        let done = broker.settle(&queue(Q), vec![Settle::complete(received.lease)]).await.unwrap();
        assert_eq!(done, [Ok(())]);
    }
    drop(held);
    broker.close().await.unwrap();
    let rows = rows_read(&sql).await;
    let most = (held_max * 40) as i64 + CLAIMS as i64 * ROWS_EACH;
    assert!(rows < most, "{rows} rows were read; at most {most} are allowed");
}
