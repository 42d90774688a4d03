//! Kills workers in the middle of a step, before or after its effect. The running handler and its connection are
//! dropped. The tests run it with every broker and every place for sagas.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use malote::{Failure, Malote, Retry, Saga, SagaState, SagaStatus, State, Step, Worker};
use tokio::sync::Notify;

const STEPS: [&str; 3] = ["reserve", "charge", "ship"];
/// Longer than a slow machine needs.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Effects {
    /// Keys of effects, in order. Each key has one effect.
    keys: Vec<String>,
    calls: u32,
    /// Kills the worker at this call, before (false) or after (true) the effect.
    kill_at: Option<(u32, bool)>,
    /// The step that returns `Failure::dead`.
    refuses: Option<&'static str>,
}

#[derive(Clone, Default)]
pub struct FaultyService {
    effects: Arc<Mutex<Effects>>,
    /// Notified when the worker must be killed.
    killed: Arc<Notify>,
}

impl FaultyService {
    async fn kill_if_due(&self, after: bool) {
        let is_due = {
            let mut effects = self.effects.lock().unwrap();
            effects.calls += u32::from(!after);
            let is_due = effects.kill_at == Some((effects.calls, after));
            if is_due {
                effects.kill_at = None;
            }
            is_due
        };
        if is_due {
            self.killed.notify_one();
            std::future::pending::<()>().await;
        }
    }

    async fn act(&self, step: &Step) -> Result<(), Failure> {
        self.kill_if_due(false).await;
        {
            let mut effects = self.effects.lock().unwrap();
            if effects.refuses == Some(step.name()) && step.undoes().is_none() {
                return Err(Failure::dead("Refused", "this step is refused"));
            }
            if !effects.keys.iter().any(|have| have == step.key()) {
                effects.keys.push(step.key().to_owned());
            }
        }
        self.kill_if_due(true).await;
        Ok(())
    }
}

async fn forward(
    done: Vec<String>,
    step: Step,
    service: State<FaultyService>,
) -> Result<Vec<String>, Failure> {
    service.act(&step).await?;
    Ok(done.into_iter().chain([step.name().to_owned()]).collect())
}

async fn compensate_step(
    _done: Vec<String>,
    step: Step,
    service: State<FaultyService>,
) -> Result<(), Failure> {
    let of = step.undoes().unwrap().to_owned();
    let known = service.effects.lock().unwrap().keys.contains(&of);
    if known { service.act(&step).await } else { Ok(()) }
}

pub fn saga() -> Saga<Vec<String>> {
    let all = Saga::named("order")
        .retry(Retry::at_once(3))
        .step(STEPS[0], forward)
        .compensate(compensate_step);
    all.step(STEPS[1], forward)
        .compensate(compensate_step)
        .step(STEPS[2], forward)
        .compensate(compensate_step)
}

/// A broker and a place for sagas.
pub trait SagaSetup {
    /// A new connection for a worker that may be killed.
    async fn connect(&self) -> Malote;
    fn worker(&self, malote: &Malote) -> Worker;
    async fn saga_state(&self, malote: &Malote, id: &str) -> Option<SagaState>;
}

/// A broker, and sagas in a database.
#[allow(dead_code)] // not used by all test programs
pub struct BrokerAndDatabase<D> {
    pub url: String,
    pub db: D,
}

macro_rules! at {
    ($feature:literal, $database:ty) => {
        #[cfg(feature = $feature)]
        impl SagaSetup for BrokerAndDatabase<$database> {
            async fn connect(&self) -> Malote {
                Malote::connect(&self.url).await.unwrap()
            }

            fn worker(&self, malote: &Malote) -> Worker {
                Worker::of_saga_in(malote, saga(), &self.db)
            }

            async fn saga_state(&self, _malote: &Malote, id: &str) -> Option<SagaState> {
                self.db.saga("order", id).await.unwrap()
            }
        }
    };
}

at!("sqlite", malote::once::sqlite::Sqlite);
at!("postgres", malote::once::postgres::Postgres);

/// Runs a saga to its end, and starts another worker after a killed one. Returns the number of calls.
async fn run(
    setup: &impl SagaSetup,
    id: &str,
    kill_at: Option<(u32, bool)>,
    refuses: Option<&'static str>,
) -> u32 {
    let what = format!("{id}: killed at {kill_at:?}, refuses {refuses:?}");
    let malote = setup.connect().await;
    let service = FaultyService::default();
    (service.effects.lock().unwrap().kill_at, service.effects.lock().unwrap().refuses) =
        (kill_at, refuses);
    malote.start_saga("order", id, &Vec::<String>::new()).await.unwrap();
    let state = tokio::time::timeout(TIMEOUT, async {
        let start = async || {
            let malote = setup.connect().await;
            let worker = setup.worker(&malote).sessions(1).state(service.clone()).start().await;
            (worker.unwrap(), malote)
        };
        let (mut worker, mut its) = start().await;
        loop {
            let killed = tokio::time::timeout(Duration::from_millis(1), service.killed.notified());
            if killed.await.is_ok() {
                worker.stop_now();
                worker.ended().await.unwrap();
                (worker, its) = start().await;
            }
            if let Some(state) = setup.saga_state(&malote, id).await.filter(SagaState::is_over) {
                worker.stop();
                worker.ended().await.unwrap();
                drop(its);
                return state;
            }
        }
    });
    let state = state.await.unwrap_or_else(|_| panic!("{what}: the saga does not end"));
    let effects = service.effects.lock().unwrap();
    assert_eq!(effects.kill_at, None, "{what}");
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
    assert_eq!(effects.keys, expected, "{what}");
    effects.calls
}

/// Runs a saga for each point at which a worker can be killed. Every effect must exist once and in order, or be
/// compensated in reverse order.
pub async fn kill_at_every_point(setup: &impl SagaSetup) {
    let mut started = 0;
    let mut next = async |kill_at, refuses| {
        started += 1;
        run(setup, &started.to_string(), kill_at, refuses).await
    };
    for refuses in [None, Some(STEPS[0]), Some(STEPS[1]), Some(STEPS[2])] {
        let calls = next(None, refuses).await;
        for nth in 1..=calls {
            // A refused step has no effect, so there is no point after it.
            let refused = refuses.is_some() && STEPS.get(nth as usize - 1).copied() == refuses;
            next(Some((nth, false)), refuses).await;
            if !refused {
                next(Some((nth, true)), refuses).await;
            }
        }
    }
}
