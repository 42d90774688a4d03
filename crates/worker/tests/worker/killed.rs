//! Workers that are killed in the middle of a step, before or after its effect: what was under way is dropped where it
//! stands, and its connection with it. For any broker, and wherever sagas are kept.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use malote::{Failure, Malote, Retry, Saga, SagaState, SagaStatus, State, Step, Worker};
use tokio::sync::Notify;

const STEPS: [&str; 3] = ["reserve", "charge", "ship"];
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
pub struct Shared {
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

pub fn saga() -> Saga<Vec<String>> {
    let all =
        Saga::named("order").retry(Retry::at_once(3)).step(STEPS[0], forward).compensate(back);
    all.step(STEPS[1], forward).compensate(back).step(STEPS[2], forward).compensate(back)
}

/// A broker, and where sagas are kept.
pub trait Shop {
    /// A connection for a worker that may die with it.
    async fn connect(&self) -> Malote;
    fn worker(&self, malote: &Malote) -> Worker;
    async fn look(&self, malote: &Malote, id: &str) -> Option<SagaState>;
}

/// A broker by its URL, with sagas in a database.
#[allow(dead_code)] // not every program of tests has one
pub struct At<D> {
    pub url: String,
    pub db: D,
}

macro_rules! at {
    ($feature:literal, $database:ty) => {
        #[cfg(feature = $feature)]
        impl Shop for At<$database> {
            async fn connect(&self) -> Malote {
                Malote::connect(&self.url).await.unwrap()
            }

            fn worker(&self, malote: &Malote) -> Worker {
                Worker::of_saga_in(malote, saga(), &self.db)
            }

            async fn look(&self, _malote: &Malote, id: &str) -> Option<SagaState> {
                self.db.saga("order", id).await.unwrap()
            }
        }
    };
}

at!("sqlite", malote::once::sqlite::Sqlite);
at!("postgres", malote::once::postgres::Postgres);

/// Runs a saga to its end, with another worker after the one that dies. How many calls there were.
async fn run(
    shop: &impl Shop,
    id: &str,
    dies: Option<(u32, bool)>,
    refuses: Option<&'static str>,
) -> u32 {
    let what = format!("{id}: dies {dies:?}, refuses {refuses:?}");
    let malote = shop.connect().await;
    let shared = Shared::default();
    (shared.world.lock().unwrap().dies, shared.world.lock().unwrap().refuses) = (dies, refuses);
    malote.start_saga("order", id, &Vec::<String>::new()).await.unwrap();
    let state = tokio::time::timeout(LONG, async {
        let start = async || {
            let malote = shop.connect().await;
            let worker = shop.worker(&malote).sessions(1).state(shared.clone()).start().await;
            (worker.unwrap(), malote)
        };
        let (mut worker, mut its) = start().await;
        loop {
            let killed = tokio::time::timeout(Duration::from_millis(1), shared.now.notified());
            if killed.await.is_ok() {
                worker.stop_now();
                worker.ended().await.unwrap();
                (worker, its) = start().await;
            }
            if let Some(state) = shop.look(&malote, id).await.filter(SagaState::is_over) {
                worker.stop();
                worker.ended().await.unwrap();
                drop(its);
                return state;
            }
        }
    });
    let state = state.await.unwrap_or_else(|_| panic!("{what}: it stands still"));
    let world = shared.world.lock().unwrap();
    assert_eq!(world.dies, None, "{what}");
    let key = |step: &str| format!("order:{id}:{step}");
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

/// A saga for each point at which a worker can die, whatever the saga comes to: each effect is there once, in order, or
/// taken back in reverse.
pub async fn at_every_point(shop: &impl Shop) {
    let mut started = 0;
    let mut next = async |dies, refuses| {
        started += 1;
        run(shop, &started.to_string(), dies, refuses).await
    };
    for refuses in [None, Some(STEPS[0]), Some(STEPS[1]), Some(STEPS[2])] {
        let calls = next(None, refuses).await;
        for nth in 1..=calls {
            // One that refuses has no effect to die after.
            let refused = refuses.is_some() && STEPS.get(nth as usize - 1).copied() == refuses;
            next(Some((nth, false)), refuses).await;
            if !refused {
                next(Some((nth, true)), refuses).await;
            }
        }
    }
}
