//! Workers that are killed in the middle of a step, before or after its effect, with sagas in the broker and in a
//! database: what was under way is dropped where it stands.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use malote::testing::TestBroker;
use malote::{Failure, Malote, Retry, Saga, SagaState, SagaStatus, State, Step, Worker};
use tokio::sync::Notify;

const STEPS: [&str; 3] = ["reserve", "charge", "ship"];
const ID: &str = "17";
/// Longer than any machine needs.
const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
struct World {
    /// Effects in their order, each once by its key.
    effects: Vec<String>,
    calls: u32,
    /// At this call the worker dies, before or after the effect.
    dies: Option<(u32, bool)>,
    /// This step says no.
    refuses: Option<&'static str>,
}

#[derive(Clone, Default)]
struct Shared {
    world: Arc<Mutex<World>>,
    /// It is time to die.
    now: Arc<Notify>,
}

impl Shared {
    async fn die(&self, after: bool) {
        let dies = {
            let mut world = self.world.lock().unwrap();
            world.calls += u32::from(!after);
            let dies = world.dies == Some((world.calls, after));
            if dies {
                world.dies = None;
            }
            dies
        };
        if dies {
            self.now.notify_one();
            std::future::pending::<()>().await;
        }
    }

    async fn act(&self, step: &Step) -> Result<(), Failure> {
        self.die(false).await;
        {
            let mut world = self.world.lock().unwrap();
            if world.refuses == Some(step.name()) && step.undoes().is_none() {
                return Err(Failure::dead("Refused", "never"));
            }
            if !world.effects.iter().any(|have| have == step.key()) {
                world.effects.push(step.key().to_owned());
            }
        }
        self.die(true).await;
        Ok(())
    }
}

async fn forward(
    done: Vec<String>,
    step: Step,
    shared: State<Shared>,
) -> Result<Vec<String>, Failure> {
    shared.act(&step).await?;
    Ok(done.into_iter().chain([step.name().to_owned()]).collect())
}

async fn back(_done: Vec<String>, step: Step, shared: State<Shared>) -> Result<(), Failure> {
    let of = step.undoes().unwrap().to_owned();
    let known = shared.world.lock().unwrap().effects.contains(&of);
    if known { shared.act(&step).await } else { Ok(()) }
}

fn saga() -> Saga<Vec<String>> {
    let all =
        Saga::named("order").retry(Retry::at_once(3)).step(STEPS[0], forward).compensate(back);
    all.step(STEPS[1], forward).compensate(back).step(STEPS[2], forward).compensate(back)
}

/// Where sagas are.
enum Store {
    Broker,
    #[cfg(feature = "sqlite")]
    Sqlite(malote::once::sqlite::Sqlite),
}

impl Store {
    fn worker(&self, malote: &Malote) -> Worker {
        match self {
            Self::Broker => Worker::of_saga(malote, saga()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(db) => Worker::of_saga_in(malote, saga(), db),
        }
    }

    async fn look(&self, malote: &Malote) -> Option<SagaState> {
        match self {
            Self::Broker => malote.saga("order", ID).await.unwrap(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(db) => db.saga("order", ID).await.unwrap(),
        }
    }
}

/// Runs a saga to its end, with another worker after the one that dies. How many calls there were.
async fn run(store: &Store, dies: Option<(u32, bool)>, refuses: Option<&'static str>) -> u32 {
    let what = format!("dies {dies:?}, refuses {refuses:?}");
    let broker = TestBroker::new().unwrap();
    let malote = broker.malote();
    let shared = Shared::default();
    (shared.world.lock().unwrap().dies, shared.world.lock().unwrap().refuses) = (dies, refuses);
    malote.start_saga("order", ID, &Vec::<String>::new()).await.unwrap();
    let state = tokio::time::timeout(LONG, async {
        let start = || store.worker(malote).sessions(1).state(shared.clone()).start();
        let mut worker = start().await.unwrap();
        loop {
            let killed = tokio::time::timeout(Duration::from_millis(1), shared.now.notified());
            if killed.await.is_ok() {
                worker.stop_now();
                worker.ended().await.unwrap();
                worker = start().await.unwrap();
            }
            if let Some(state) = store.look(malote).await.filter(SagaState::is_over) {
                worker.stop();
                worker.ended().await.unwrap();
                return state;
            }
        }
    });
    let state = state.await.unwrap_or_else(|_| panic!("{what}: it stands still"));
    let world = shared.world.lock().unwrap();
    assert_eq!(world.dies, None, "{what}");
    let key = |step: &str| format!("order:{ID}:{step}");
    let mut expected: Vec<String> = STEPS.map(key).into();
    if let Some(refuses) = refuses {
        expected.truncate(STEPS.iter().position(|step| *step == refuses).unwrap());
        let undone: Vec<String> = expected.iter().rev().map(|key| format!("{key}:undo")).collect();
        expected.extend(undone);
        assert_eq!(state.status, SagaStatus::Compensated, "{what}");
    } else {
        assert_eq!(state.status, SagaStatus::Done, "{what}");
        assert_eq!(state.data.get(), r#"["reserve","charge","ship"]"#, "{what}");
    }
    assert_eq!(world.effects, expected, "{what}");
    world.calls
}

async fn at_every_point(store: impl AsyncFn() -> Store) {
    for refuses in [None, Some(STEPS[0]), Some(STEPS[1]), Some(STEPS[2])] {
        let calls = run(&store().await, None, refuses).await;
        for nth in 1..=calls {
            // One that refuses has no effect to die after.
            let refused = refuses.is_some() && STEPS.get(nth as usize - 1).copied() == refuses;
            run(&store().await, Some((nth, false)), refuses).await;
            if !refused {
                run(&store().await, Some((nth, true)), refuses).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_in_any_step_leaves_all_or_nothing() {
    at_every_point(async || Store::Broker).await;
}

#[cfg(feature = "sqlite")]
mod in_sqlite {
    use malote::once::sqlite::Sqlite;
    use malote::{Outgoing, Tx};

    use super::*;

    fn database() -> Sqlite {
        Sqlite::over(rusqlite::Connection::open_in_memory().unwrap()).unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_worker_killed_in_any_step_leaves_all_or_nothing() {
        at_every_point(async || Store::Sqlite(database())).await;
    }

    async fn ended(db: &Sqlite, malote: &Malote, saga: Saga<u32>) -> SagaState {
        let worker = Worker::of_saga_in(malote, saga, db).start().await.unwrap();
        let over = tokio::time::timeout(LONG, async {
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

    /// What waits is woken by a message that waits in the outbox.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_retry_waits_in_the_outbox() {
        async fn third_time(n: u32, step: Step) -> Result<u32, Failure> {
            if step.attempt() < 3 { Err(Failure::retry("not yet")) } else { Ok(n + 1) }
        }
        let (broker, db) = (TestBroker::new().unwrap(), database());
        broker.malote().start_saga("count", ID, &1_u32).await.unwrap();
        let saga = Saga::named("count")
            .retry(Retry::fixed(Duration::from_millis(10), 5))
            .step("one", third_time);
        let state = ended(&db, broker.malote(), saga).await;
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

    /// A step's writes, its messages and its end are one transaction.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_step_with_a_transaction_commits_with_its_saga() {
        async fn book(n: u32, step: Step, tx: Tx<Sqlite>) -> Result<u32, Failure> {
            tx.run(|db| db.execute("insert into books values (1)", ())).await?;
            tx.send(Outgoing::text("letters", "booked")).await?;
            // The first attempt writes, and fails: nothing of it is left.
            if step.attempt() == 1 { Err(Failure::retry("after all")) } else { Ok(n + 1) }
        }
        let (broker, db) = (TestBroker::new().unwrap(), database());
        db.run(|db| db.execute_batch("create table books (n integer)")).await.unwrap();
        broker.malote().declare("letters", malote::QueueSpec::default()).await.unwrap();
        broker.malote().declare("saga.count", spec()).await.unwrap();
        // Started with a transaction, too: what waits in the outbox starts it.
        let start = Outgoing::saga("count", ID, &1_u32).unwrap();
        db.run(move |db| Ok(Sqlite::send_in(db, start))).await.unwrap().unwrap();
        let saga = Saga::named("count")
            .retry(Retry::at_once(3))
            .step("book", book)
            .step("again", book)
            .retry(Retry::at_once(3));
        let state = ended(&db, broker.malote(), saga).await;
        assert_eq!((state.status, state.data.get()), (SagaStatus::Done, "3"));
        let count = "select count(*) from books";
        let books: u32 = db.run(move |db| db.query_row(count, [], |row| row.get(0))).await.unwrap();
        assert_eq!(books, 2);
    }

    /// The queue as a worker of a saga makes it.
    fn spec() -> malote::QueueSpec {
        let dedup = malote::model::Dedup { window_ms: 600_000, per_session: false, content: false };
        malote::QueueSpec {
            sessions: malote::model::Sessions::Dynamic,
            failed_max: None,
            dedup: Some(dedup),
            ..malote::QueueSpec::default()
        }
    }

    /// A saga in the broker has no transaction of a database.
    #[tokio::test]
    async fn a_transaction_of_a_saga_in_the_broker_is_refused() {
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
