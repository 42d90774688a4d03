//! Sagas: every step once or every effect taken back, whatever is lost, repeated or broken, at every point.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use malote::saga::StepStatus;
use malote::testing::TestBroker;
use malote::{Error, Failure, Retry, Saga, SagaState, SagaStatus, SessionId, State, Step, Worker};

const STEPS: [&str; 4] = ["reserve", "charge", "ship", "tell"];
const ID: &str = "17";
const QUEUE: &str = "saga.order";

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Order {
    cents: u64,
    done: Vec<String>,
}

/// How one step behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Does {
    #[default]
    Well,
    /// Says no, and has done nothing.
    Refuses,
    /// Has its effect, and fails all the same.
    Fails,
    /// Fails so often, then does well.
    FailsFirst(u32),
    /// Has its effect, and panics.
    Panics,
    /// Has its effect, and says no to whoever asks again.
    ActsThenRefuses,
}

/// The world outside: it knows what was done by its key, as a good service does.
#[derive(Default)]
struct World {
    /// Effects in their order, each once.
    effects: Vec<String>,
    /// Calls by key.
    calls: BTreeMap<String, u32>,
    does: BTreeMap<&'static str, Does>,
    /// After so many calls the session is taken from its worker, before or after the effect.
    breaks: Option<(u32, bool)>,
    count: u32,
}

type Shared = Arc<(TestBroker, Mutex<World>)>;

impl World {
    /// The effect of a key, once.
    fn effect(&mut self, key: &str) {
        *self.calls.entry(key.to_owned()).or_default() += 1;
        if !self.effects.iter().any(|have| have == key) {
            self.effects.push(key.to_owned());
        }
    }

    fn has(&self, key: &str) -> bool {
        self.effects.iter().any(|have| have == key)
    }
}

async fn breaks(shared: &Shared, after: bool) {
    let now = {
        let mut world = shared.1.lock().unwrap();
        if !after {
            world.count += 1;
        }
        world.breaks == Some((world.count, after))
    };
    if now {
        shared.1.lock().unwrap().breaks = None;
        shared.0.break_session(QUEUE, &SessionId::new(ID).unwrap()).await.unwrap();
    }
}

async fn act(shared: &Shared, step: &Step) -> Result<(), Failure> {
    breaks(shared, false).await;
    let (does, calls) = {
        let mut world = shared.1.lock().unwrap();
        let does = world.does.get(step.name()).copied().unwrap_or_default();
        let acts = !matches!(does, Does::Refuses | Does::FailsFirst(_)) || step.undoes().is_some();
        let late = matches!(does, Does::FailsFirst(times) if step.attempt() > times);
        // What was done before is done: it is known by its key.
        if acts || late {
            world.effect(step.key());
        }
        (does, world.calls.get(step.key()).copied().unwrap_or_default())
    };
    breaks(shared, true).await;
    match does {
        _ if step.undoes().is_some() => Ok(()),
        Does::Refuses => Err(Failure::dead("Refused", "never")),
        Does::Fails => Err(Failure::retry("it failed")),
        Does::FailsFirst(times) if step.attempt() <= times => Err(Failure::retry("not yet")),
        Does::Panics => panic!("it cannot"),
        Does::ActsThenRefuses if calls > 1 => Err(Failure::dead("Refused", "not again")),
        Does::ActsThenRefuses => Ok(()),
        Does::Well | Does::FailsFirst(_) => Ok(()),
    }
}

async fn forward(mut order: Order, step: Step, shared: State<Shared>) -> Result<Order, Failure> {
    assert_eq!(step.saga(), ID);
    assert_eq!(step.key(), format!("order:{ID}:{}", step.name()));
    act(&shared, &step).await?;
    order.done.push(step.name().to_owned());
    Ok(order)
}

async fn back(_order: Order, step: Step, shared: State<Shared>) -> Result<(), Failure> {
    assert_eq!(step.key(), format!("order:{ID}:{}:undo", step.name()));
    assert_eq!(step.undoes(), Some(format!("order:{ID}:{}", step.name()).as_str()));
    // There may be nothing to take back; whatever there is must be there before.
    let known = shared.1.lock().unwrap().has(step.undoes().unwrap());
    if known { act(&shared, &step).await } else { Ok(()) }
}

/// The last step follows the pivot, and has no way back.
fn order() -> Saga<Order> {
    Saga::named("order")
        .retry(Retry::at_once(3))
        .step("reserve", forward)
        .compensate(back)
        .step("charge", forward)
        .compensate(back)
        .step("ship", forward)
        .compensate(back)
        .pivot()
        .step("tell", forward)
}

fn worker(shared: &Shared, saga: Saga<Order>) -> Worker {
    Worker::of_saga(shared.0.malote(), saga).state(shared.clone()).sessions(2)
}

fn world(does: &[(&'static str, Does)]) -> Shared {
    let world = World { does: does.iter().copied().collect(), ..World::default() };
    Arc::new((TestBroker::new().unwrap(), Mutex::new(world)))
}

async fn start(shared: &Shared) {
    let order = Order { cents: 900, done: Vec::new() };
    shared.0.malote().start_saga("order", ID, &order).await.unwrap();
}

async fn run(shared: &Shared, saga: Saga<Order>) -> SagaState {
    shared.0.drain(worker(shared, saga)).await.unwrap();
    look(shared).await.expect("it is kept")
}

async fn look(shared: &Shared) -> Option<SagaState> {
    shared.0.malote().saga("order", ID).await.unwrap()
}

fn statuses(state: &SagaState) -> Vec<(&str, &str)> {
    state.steps.iter().map(|step| (step.name.as_str(), step.status.word())).collect()
}

fn key(step: &str) -> String {
    format!("order:{ID}:{step}")
}

/// All steps once and in order; or no effect that was not taken back, the newest first, and each once.
fn check(shared: &Shared, state: &SagaState, what: &str) {
    let world = shared.1.lock().unwrap();
    let effects = &world.effects;
    let done: Vec<String> = STEPS.map(key).into();
    match state.status {
        SagaStatus::Done => {
            assert_eq!(*effects, done, "{what}");
            let data: Order = serde_json::from_str(state.data.get()).unwrap();
            assert_eq!(data, Order { cents: 900, done: STEPS.map(str::to_owned).into() }, "{what}");
        }
        SagaStatus::Compensated => {
            let (undone, forward): (Vec<_>, Vec<_>) =
                effects.iter().cloned().partition(|key| key.ends_with(":undo"));
            let mut expected: Vec<String> =
                forward.iter().map(|key| format!("{key}:undo")).collect();
            expected.reverse();
            assert_eq!(undone, expected, "{what}: {effects:?}");
            assert_eq!(forward, done[..forward.len()], "{what}: {effects:?}");
            // No step began once the way back had.
            let first_undo = effects.iter().position(|key| key.ends_with(":undo"));
            assert_eq!(first_undo.unwrap_or(effects.len()), forward.len(), "{what}: {effects:?}");
        }
        other => panic!("{what}: it stands still, {other:?}: {state:?}"),
    }
    let keys: BTreeSet<&String> = effects.iter().collect();
    assert_eq!(keys.len(), effects.len());
}

/// What may happen at the nth place.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// The nth settlement does not arrive: the worker died after the effect.
    Lose(u32),
    /// So many messages that are done come again.
    Repeat(u32),
    /// The session is taken at the nth call, before or after its effect.
    Break(u32, bool),
}

/// Runs a saga with one fault, and tells how many steps and compensations were called.
async fn with_fault(does: &[(&'static str, Does)], fault: Fault) -> (Shared, SagaState) {
    let shared = world(does);
    start(&shared).await;
    match fault {
        Fault::None => {}
        Fault::Lose(nth) => shared.0.lose_settlement(nth),
        Fault::Repeat(nth) => shared.0.repeat_messages(nth),
        Fault::Break(nth, after) => shared.1.lock().unwrap().breaks = Some((nth, after)),
    }
    // Somebody who hears no answer starts it again.
    start(&shared).await;
    let state = run(&shared, order()).await;
    (shared, state)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_every_point_leaves_all_or_nothing() {
    let mut ways: Vec<Vec<(&'static str, Does)>> = vec![vec![]];
    for step in &STEPS[..3] {
        ways.push(vec![(step, Does::Refuses)]);
        ways.push(vec![(step, Does::Fails)]);
        ways.push(vec![(step, Does::Panics)]);
        ways.push(vec![(step, Does::FailsFirst(2))]);
    }
    ways.push(vec![("tell", Does::FailsFirst(5))]);
    let mut runs = 0;
    for does in &ways {
        let (shared, state) = with_fault(does, Fault::None).await;
        check(&shared, &state, &format!("{does:?}"));
        let goes_back =
            matches!(does.first(), Some((_, Does::Refuses | Does::Fails | Does::Panics)));
        let expected = if goes_back { SagaStatus::Compensated } else { SagaStatus::Done };
        assert_eq!(state.status, expected, "{does:?}");
        let calls: u32 = shared.1.lock().unwrap().count;
        // Every settlement: one of each call, and the end.
        let mut faults: Vec<Fault> = (1..=calls + 2).map(Fault::Lose).collect();
        faults.extend((1..=2).map(Fault::Repeat));
        for nth in 1..=calls {
            faults.extend([Fault::Break(nth, false), Fault::Break(nth, true)]);
        }
        for fault in faults {
            let what = format!("{does:?}, {fault:?}");
            let (shared, state) = with_fault(does, fault).await;
            check(&shared, &state, &what);
            // A fault never turns one end into another.
            assert_eq!(state.status, expected, "{what}");
            assert_eq!(shared.0.held(QUEUE).await.unwrap().dead, 0, "{what}");
            runs += 1;
        }
    }
    assert!(runs > 150, "{runs}");
}

/// A worker dies after the effect, and the service says no to the next: nobody told that there is something to take
/// back, and it is taken back all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_that_nobody_lived_to_tell_of_is_taken_back() {
    let mut went_back = 0;
    for step in &STEPS[..3] {
        let does = [(*step, Does::ActsThenRefuses)];
        for nth in 1..=4 {
            for fault in [Fault::Lose(nth), Fault::Break(nth, true)] {
                let (shared, state) = with_fault(&does, fault).await;
                check(&shared, &state, &format!("{does:?}, {fault:?}"));
                went_back += u32::from(state.status == SagaStatus::Compensated);
            }
        }
    }
    assert_eq!(went_back, 3 * 2, "one settlement and one hold lost after the effect of each step");
}

#[tokio::test]
async fn a_step_that_refuses_is_not_compensated_and_one_in_doubt_is() {
    let shared = world(&[("charge", Does::Refuses)]);
    start(&shared).await;
    let state = run(&shared, order()).await;
    assert_eq!(
        statuses(&state),
        [
            ("reserve", "compensated"),
            ("charge", "failed"),
            ("ship", "waiting"),
            ("tell", "waiting")
        ]
    );
    assert_eq!(state.error.as_deref(), Some("charge: Refused: never"));
    let shared = world(&[("charge", Does::Fails)]);
    start(&shared).await;
    let state = run(&shared, order()).await;
    assert_eq!(statuses(&state)[1], ("charge", "compensated"));
    assert_eq!(shared.1.lock().unwrap().calls[&key("charge")], 3);
}

#[tokio::test]
async fn the_same_id_is_one_saga() {
    let shared = world(&[]);
    start(&shared).await;
    start(&shared).await;
    run(&shared, order()).await;
    // Long after the window in which the broker knows the message itself.
    shared.0.advance(Duration::from_secs(3600));
    start(&shared).await;
    let state = run(&shared, order()).await;
    check(&shared, &state, "started three times");
    let calls = shared.1.lock().unwrap().calls.clone();
    assert!(calls.values().all(|count| *count == 1), "{calls:?}");
}

#[tokio::test]
async fn what_follows_the_pivot_is_tried_until_it_succeeds() {
    let shared = world(&[("tell", Does::FailsFirst(40))]);
    start(&shared).await;
    let mut state = run(&shared, order().retry(Retry::at_once(2))).await;
    // From the tenth failure on it waits a little, and is to be seen.
    assert_eq!(state.steps[3].attempts, 10);
    for _ in 0..30 {
        assert_eq!(state.status, SagaStatus::Running);
        shared.0.advance(Duration::from_secs(1));
        state = run(&shared, order().retry(Retry::at_once(2))).await;
    }
    shared.0.advance(Duration::from_secs(1));
    let state = run(&shared, order()).await;
    check(&shared, &state, "after the pivot");
    assert_eq!(state.steps[3].attempts, 40);
}

#[tokio::test]
async fn a_pivot_in_doubt_without_compensation_goes_on_until_it_says() {
    async fn first(order: Order) -> Result<Order, Failure> {
        Ok(order)
    }
    let saga = || {
        Saga::named("order")
            .retry(Retry::at_once(2))
            .step("reserve", first)
            .compensate(back)
            .step("charge", forward)
            .pivot()
            .deadline(Duration::from_secs(60))
    };
    let shared = world(&[("charge", Does::FailsFirst(7))]);
    start(&shared).await;
    assert_eq!(run(&shared, saga()).await.status, SagaStatus::Done);
    // One that says no at once has done nothing.
    let shared = world(&[("charge", Does::Refuses)]);
    start(&shared).await;
    assert_eq!(run(&shared, saga()).await.status, SagaStatus::Compensated);
}

#[tokio::test]
async fn a_deadline_wakes_what_waits_and_takes_it_back() {
    let saga = || {
        Saga::named("order")
            .retry(Retry::fixed(Duration::from_secs(3600), 10))
            .step("reserve", forward)
            .compensate(back)
            .step("charge", forward)
            .compensate(back)
            .deadline(Duration::from_secs(60))
    };
    let shared = world(&[("charge", Does::FailsFirst(100))]);
    start(&shared).await;
    let state = run(&shared, saga()).await;
    assert_eq!((state.status, state.steps[1].attempts), (SagaStatus::Running, 1));
    shared.0.advance(Duration::from_secs(59));
    assert_eq!(run(&shared, saga()).await.version, state.version, "nothing happens before");
    shared.0.advance(Duration::from_secs(2));
    let state = run(&shared, saga()).await;
    assert_eq!(state.status, SagaStatus::Compensated);
    assert_eq!(state.error.as_deref(), Some("charge: TimedOut: its deadline is over"));
    assert_eq!(state.steps[1].status, StepStatus::Compensated);
}

#[tokio::test]
async fn the_whole_saga_has_a_deadline_which_a_pivot_ends() {
    let saga = |pivot: bool| {
        let saga = Saga::named("order")
            .retry(Retry::fixed(Duration::from_secs(100), 10))
            .deadline(Duration::from_secs(60))
            .step("reserve", forward)
            .compensate(back);
        let saga = if pivot { saga.pivot() } else { saga };
        saga.step("tell", forward)
    };
    for (pivot, expected) in [(false, SagaStatus::Compensated), (true, SagaStatus::Done)] {
        let shared = world(&[("tell", Does::FailsFirst(1))]);
        start(&shared).await;
        run(&shared, saga(pivot)).await;
        shared.0.advance(Duration::from_secs(61));
        run(&shared, saga(pivot)).await;
        shared.0.advance(Duration::from_secs(100));
        assert_eq!(run(&shared, saga(pivot)).await.status, expected);
    }
}

#[tokio::test]
async fn a_saga_that_is_over_is_kept_for_a_while() {
    let shared = world(&[]);
    start(&shared).await;
    let saga = || order().keep(Duration::from_secs(1000));
    run(&shared, saga()).await;
    shared.0.advance(Duration::from_secs(999));
    shared.0.drain(worker(&shared, saga())).await.unwrap();
    assert!(look(&shared).await.is_some());
    shared.0.advance(Duration::from_secs(2));
    shared.0.drain(worker(&shared, saga())).await.unwrap();
    assert!(look(&shared).await.is_none());
    let held = shared.0.held(QUEUE).await.unwrap();
    assert_eq!((held.ready, held.locked, held.delayed, held.dead), (0, 0, 0, 0));
    // Then its id can be used anew.
    start(&shared).await;
    assert_eq!(run(&shared, saga()).await.status, SagaStatus::Done);
}

#[tokio::test]
async fn sagas_are_seen_while_they_run() {
    let shared = world(&[("charge", Does::FailsFirst(1))]);
    let malote = shared.0.malote();
    for n in 0..30 {
        malote.start_saga("other", &format!("s{n}"), &n).await.unwrap();
    }
    async fn same(n: u32) -> Result<u32, Failure> {
        Ok(n)
    }
    let other = Saga::named("other").step("one", same).step("two", same);
    shared.0.drain(Worker::of_saga(malote, other)).await.unwrap();
    let mut seen = BTreeSet::new();
    let mut from = Some(0);
    while let Some(at) = from {
        let page = malote.sagas("other", at, 7).await.unwrap();
        assert!(page.sagas.len() <= 7);
        seen.extend(page.sagas.into_iter().map(|(id, state)| {
            assert_eq!(state.status, SagaStatus::Done);
            id
        }));
        from = page.next;
    }
    assert_eq!(seen.len(), 30);
    // One that waits for its next attempt is seen with its last error.
    start(&shared).await;
    let slow = Retry::fixed(Duration::from_secs(60), 3);
    let saga = Saga::named("order").step("reserve", forward).step("charge", forward).retry(slow);
    let state = run(&shared, saga).await;
    assert_eq!(state.status, SagaStatus::Running);
    let current = state.current().unwrap();
    assert_eq!((current.name.as_str(), current.attempts), ("charge", 1));
    assert_eq!(current.error.as_deref(), Some("not yet"));
}

#[tokio::test]
async fn what_cannot_be_is_refused_when_the_worker_starts() {
    let broker = TestBroker::new().unwrap();
    let refused =
        async |saga: Saga<Order>| match Worker::of_saga(broker.malote(), saga).start().await {
            Err(Error::Settings(text)) => text,
            _ => panic!("it was not refused"),
        };
    assert!(refused(Saga::named("order")).await.contains("has no steps"));
    assert!(refused(Saga::named("order").compensate(back)).await.contains("behind a step"));
    let twice = Saga::named("order").step("a", forward).step("a", forward);
    assert!(refused(twice).await.contains("two steps `a`"));
    let after = Saga::named("order").step("a", forward).pivot().step("b", forward).compensate(back);
    assert!(refused(after).await.contains("never be compensated"));
    let retries = Worker::of_saga(broker.malote(), order()).retry(Retry::never()).start().await;
    assert!(matches!(retries, Err(Error::Settings(text)) if text.contains("said with the saga")));
}

#[tokio::test]
async fn data_that_is_too_large_is_a_failure_and_not_a_loop() {
    async fn grow(mut order: Order) -> Result<Order, Failure> {
        order.done.push("x".repeat(200 << 10));
        Ok(order)
    }
    let shared = world(&[]);
    start(&shared).await;
    let saga = Saga::named("order")
        .retry(Retry::at_once(2))
        .step("reserve", forward)
        .compensate(back)
        .step("grow", grow);
    let state = run(&shared, saga).await;
    assert_eq!(state.status, SagaStatus::Compensated);
    assert!(state.error.as_deref().is_some_and(|error| error.contains("may have")), "{state:?}");
    let large = Order { cents: 1, done: vec!["x".repeat(200 << 10)] };
    assert!(shared.0.malote().start_saga("order", "18", &large).await.is_err());
}

#[tokio::test]
async fn a_worker_without_the_step_leaves_it_to_another() {
    let shared = world(&[]);
    start(&shared).await;
    let short = Saga::named("order").step("reserve", forward).compensate(back);
    // Started by a newer worker, whose plan is written down.
    shared.1.lock().unwrap().does.insert("charge", Does::FailsFirst(1));
    let held = Saga::named("order")
        .step("reserve", forward)
        .compensate(back)
        .step("charge", forward)
        .retry(Retry::fixed(Duration::from_secs(10), 3));
    assert_eq!(run(&shared, held).await.status, SagaStatus::Running);
    shared.0.advance(Duration::from_secs(10));
    let state = run(&shared, short).await;
    assert_eq!(state.status, SagaStatus::Running);
    shared.0.advance(Duration::from_secs(30));
    let both =
        Saga::named("order").step("reserve", forward).compensate(back).step("charge", forward);
    assert_eq!(run(&shared, both).await.status, SagaStatus::Done);
}
