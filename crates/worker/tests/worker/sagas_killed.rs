//! Workers that are killed in the middle of a step, with sagas in the broker and in SQLite.

use malote::testing::TestBroker;
use malote::{Malote, SagaState, Worker};

use crate::killed::{SagaSetup, kill_at_every_point, saga};

struct InBroker(TestBroker);

impl SagaSetup for InBroker {
    async fn connect(&self) -> Malote {
        self.0.malote().clone()
    }

    fn worker(&self, malote: &Malote) -> Worker {
        Worker::of_saga(malote, saga())
    }

    async fn saga_state(&self, malote: &Malote, id: &str) -> Option<SagaState> {
        malote.saga("order", id).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_in_any_step_leaves_all_or_nothing() {
    kill_at_every_point(&InBroker(TestBroker::new().unwrap())).await;
}

#[cfg(feature = "sqlite")]
mod in_sqlite {
    use std::time::Duration;

    use malote::once::sqlite::Sqlite;
    use malote::{Failure, OutboxMessage, Retry, Saga, SagaStatus, Step, Tx};

    use super::*;
    use crate::TIMEOUT;
    use crate::killed::BrokerAndDatabase;

    const ID: &str = "17";

    struct InSqlite(TestBroker, Sqlite);

    impl SagaSetup for InSqlite {
        async fn connect(&self) -> Malote {
            self.0.malote().clone()
        }

        fn worker(&self, malote: &Malote) -> Worker {
            Worker::of_saga_in(malote, saga(), &self.1)
        }

        async fn saga_state(&self, _malote: &Malote, id: &str) -> Option<SagaState> {
            self.1.saga("order", id).await.unwrap()
        }
    }

    fn database() -> Sqlite {
        Sqlite::with_connection(rusqlite::Connection::open_in_memory().unwrap()).unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_worker_killed_in_any_step_leaves_all_or_nothing() {
        kill_at_every_point(&InSqlite(TestBroker::new().unwrap(), database())).await;
    }

    /// An operator creates the queue, because the protocol cannot.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_worker_killed_on_service_bus_leaves_all_or_nothing() {
        let server = crate::servicebus_server::ServiceBusServer::start().await;
        let (url, db) = (server.url(), database());
        let missing = Worker::of_saga_in(&Malote::connect(&url).await.unwrap(), saga(), &db);
        let missing = missing.start().await.map(drop).unwrap_err().to_string();
        assert!(missing.contains("saga.order"), "{missing}");
        let queue = malote::QueueName::new("saga.order").unwrap();
        server.engine.declare(queue, spec()).await.unwrap();
        kill_at_every_point(&BrokerAndDatabase { url, db }).await;
    }

    async fn run_to_end(db: &Sqlite, malote: &Malote, saga: Saga<u32>) -> SagaState {
        let worker = Worker::of_saga_in(malote, saga, db).start().await.unwrap();
        let over = tokio::time::timeout(TIMEOUT, async {
            loop {
                if let Some(state) = db.saga("count", ID).await.unwrap().filter(SagaState::is_over)
                {
                    return state;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        let over = over.await.unwrap();
        worker.stop();
        worker.ended().await.unwrap();
        over
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_waiting_saga_is_woken_by_a_message_in_the_outbox() {
        async fn third_time(n: u32, step: Step) -> Result<u32, Failure> {
            if step.attempt() < 3 { Err(Failure::retry("not yet")) } else { Ok(n + 1) }
        }
        let (broker, db) = (TestBroker::new().unwrap(), database());
        broker.malote().start_saga("count", ID, &1_u32).await.unwrap();
        let saga = Saga::named("count")
            .retry(Retry::fixed(Duration::from_millis(10), 5))
            .step("one", third_time);
        let state = run_to_end(&db, broker.malote(), saga).await;
        assert_eq!((state.status, state.data.get()), (SagaStatus::Done, "2"));
        assert_eq!(state.steps[0].attempts, 2);
        let view = "select step || ' ' || status || ' ' || attempts from malote_saga_step";
        let step: String = db.run(|db| db.query_row(view, [], |row| row.get(0))).await.unwrap();
        assert_eq!(step, "one done 2");
        assert_eq!(db.sagas("count", "", 10).await.unwrap().len(), 1);
        let age = Duration::from_secs(100 * 365 * 24 * 3600);
        assert_eq!(db.clean_sagas(age).await.unwrap(), 0);
        assert_eq!(db.clean_sagas(Duration::ZERO).await.unwrap(), 1);
    }

    /// The writes of a step, its messages and its result are one transaction.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_step_with_a_transaction_commits_with_its_saga() {
        async fn book(n: u32, step: Step, tx: Tx<Sqlite>) -> Result<u32, Failure> {
            tx.run(|db| db.execute("insert into books values (1)", ())).await?;
            tx.send(OutboxMessage::text("letters", "booked")).await?;
            // The first attempt writes and fails, and is rolled back.
            if step.attempt() == 1 {
                Err(Failure::retry("the first attempt fails"))
            } else {
                Ok(n + 1)
            }
        }
        let (broker, db) = (TestBroker::new().unwrap(), database());
        db.run(|db| db.execute_batch("create table books (n integer)")).await.unwrap();
        broker.malote().declare("letters", malote::QueueSpec::default()).await.unwrap();
        broker.malote().declare("saga.count", spec()).await.unwrap();
        // A message in the outbox starts the saga.
        let start = OutboxMessage::saga("count", ID, &1_u32).unwrap();
        db.run(move |db| Ok(Sqlite::send_in(db, start))).await.unwrap().unwrap();
        let saga = Saga::named("count")
            .retry(Retry::at_once(3))
            .step("book", book)
            .step("again", book)
            .retry(Retry::at_once(3));
        let state = run_to_end(&db, broker.malote(), saga).await;
        assert_eq!((state.status, state.data.get()), (SagaStatus::Done, "3"));
        let count = "select count(*) from books";
        let books: u32 = db.run(move |db| db.query_row(count, [], |row| row.get(0))).await.unwrap();
        assert_eq!(books, 2);
    }

    /// The specification that a worker of a saga uses for its queue.
    fn spec() -> malote::QueueSpec {
        let dedup = malote::model::Dedup { window_ms: 600_000, per_session: false, content: false };
        malote::QueueSpec {
            sessions: malote::model::Sessions::Dynamic,
            failed_max: None,
            dedup: Some(dedup),
            ..malote::QueueSpec::default()
        }
    }

    #[tokio::test]
    async fn a_step_of_a_saga_in_the_broker_cannot_take_a_transaction() {
        async fn book(n: u32, _tx: Tx<Sqlite>) -> Result<u32, Failure> {
            Ok(n)
        }
        let broker = TestBroker::new().unwrap();
        broker.malote().start_saga("count", ID, &1_u32).await.unwrap();
        let saga = Saga::named("count").step("book", book);
        let worker = Worker::of_saga(broker.malote(), saga).state(database());
        broker.drain(worker).await.unwrap();
        let state = broker.malote().saga("count", ID).await.unwrap().unwrap();
        assert!(state.error.unwrap().contains("NoTransaction"));
    }
}
