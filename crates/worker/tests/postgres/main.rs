//! Exactly-once writes, outbox and sagas in PostgreSQL. The tests start and stop the server.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

mod effects;
#[path = "../worker/killed.rs"]
mod killed;
mod outbox;
mod relays;
mod sagas;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use malote::model::{Dedup, Sessions};
use malote::once::postgres::Postgres;
use malote::once::postgres::tokio_postgres::types::FromSqlOwned;
use malote::once::postgres::tokio_postgres::{Client, NoTls, connect};
use malote::testing::TestBroker;
use malote::{Meta, QueueSpec, State, Worker};

const ORDERS: &str = "orders";
const RECEIPTS: &str = "receipts";

/// A broker and a new database for each test.
struct Fixture {
    broker: TestBroker,
    db: Postgres,
    url: String,
    /// A separate connection for checks.
    sql: Client,
}

impl Fixture {
    async fn new(orders: Sessions, receipts: Sessions) -> Self {
        let broker = TestBroker::new().unwrap();
        let spec = QueueSpec { failed_max: None, ..QueueSpec::default() };
        let with = |sessions| QueueSpec { sessions, ..spec.clone() };
        broker.malote().declare(ORDERS, with(orders)).await.unwrap();
        let dedup = Some(Dedup { window_ms: 600_000, per_session: false, content: false });
        broker.malote().declare(RECEIPTS, QueueSpec { dedup, ..with(receipts) }).await.unwrap();
        let url = database().await;
        let db = Postgres::connect(&url).await.unwrap();
        db.install().await.unwrap();
        let sql = client(&url).await;
        sql.batch_execute("create table charges (id bigserial, order_id text)").await.unwrap();
        Self { broker, db, url, sql }
    }

    async fn send(&self, id: &str) {
        self.broker.malote().send_text(ORDERS, id).id(id).session("ana").await.unwrap();
    }

    fn worker(&self) -> Worker {
        Worker::new(self.broker.malote(), ORDERS).state(self.db.clone())
    }

    async fn charges(&self) -> Vec<String> {
        let rows = self.sql.query("select order_id from charges order by id", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn one<T: FromSqlOwned>(&self, sql: &str) -> T {
        self.sql.query_one(sql, &[]).await.unwrap().get(0)
    }

    async fn count(&self, table: &str) -> i64 {
        self.one(&format!("select count(*) from {table}")).await
    }

    /// Waits until a query returns `true`.
    async fn until(&self, sql: &str) {
        until(async || self.one(sql).await).await;
    }

    /// Runs a relay until a query returns `true`.
    async fn relay_until(&self, sql: &str) {
        self.db.relay_until(self.broker.malote(), self.until(sql)).await.unwrap();
    }

    /// The received messages in order: session and text.
    async fn received(&self, sessions: Option<usize>) -> Vec<(String, String)> {
        type Seen = Arc<Mutex<Vec<(String, String)>>>;
        async fn record(text: String, meta: Meta, seen: State<Seen>) {
            let session = meta.message().session.as_ref().map(|id| id.as_str().to_owned());
            seen.lock().unwrap().push((session.unwrap_or_default(), text));
        }
        let seen = Seen::default();
        let worker = Worker::new(self.broker.malote(), RECEIPTS).handle(record).state(seen.clone());
        let worker = match sessions {
            Some(sessions) => worker.sessions(sessions),
            None => worker.slots(1),
        };
        self.broker.drain(worker).await.unwrap();
        std::mem::take(&mut *seen.lock().unwrap())
    }
}

/// Waits until a condition is true.
async fn until(mut is_true: impl AsyncFnMut() -> bool) {
    let end = tokio::time::Instant::now() + Duration::from_secs(120);
    while !is_true().await {
        assert!(tokio::time::Instant::now() < end, "timed out waiting for a condition");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The server of all tests. It ends with this process.
fn server() -> &'static malote_services::Postgres {
    static SERVER: OnceLock<malote_services::Postgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        malote_services::Postgres::start().unwrap_or_else(|error| panic!("{error}"))
    })
}

/// Creates a database and returns its URL.
async fn database() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let server = tokio::task::spawn_blocking(server).await.unwrap();
    let admin = client(&server.url("postgres")).await;
    admin.batch_execute(&format!("create database {name} template template0")).await.unwrap();
    server.url(&name)
}

async fn client(url: &str) -> Client {
    let (client, connection) = connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
