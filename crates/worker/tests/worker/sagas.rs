//! Sagas: all steps are done once, or all effects are compensated, with a fault at every point.

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

/// The behaviour of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Behaviour {
    #[default]
    Well,
    /// Returns `Failure::dead` without an effect.
    Refuses,
    /// Has its effect and fails.
    Fails,
    /// Fails this many times, then succeeds.
    FailsFirst(u32),
    /// Has its effect and panics.
    Panics,
    /// Has its effect, and returns `Failure::dead` if it is called again.
    ActsThenRefuses,
}

/// An external service. It recognizes repeated calls by their key.
#[derive(Default)]
struct Service {
    /// Keys of effects, in order. Each key has one effect.
    effects: Vec<String>,
    /// Number of calls by key.
    calls: BTreeMap<String, u32>,
    behaviour: BTreeMap<&'static str, Behaviour>,
    /// Takes the session from its worker at this call, before (false) or after (true) the effect.
    break_session_at: Option<(u32, bool)>,
    count: u32,
}

type Fixture = Arc<(TestBroker, Mutex<Service>)>;

impl Service {
    /// Records a call, and its effect if it is the first one.
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

async fn break_if_due(fixture: &Fixture, after: bool) {
    let now = {
        let mut world = fixture.1.lock().unwrap();
        if !after {
            world.count += 1;
        }
        world.break_session_at == Some((world.count, after))
    };
    if now {
        fixture.1.lock().unwrap().break_session_at = None;
        fixture.0.break_session(QUEUE, &SessionId::new(ID).unwrap()).await.unwrap();
    }
}

async fn act(fixture: &Fixture, step: &Step) -> Result<(), Failure> {
    break_if_due(fixture, false).await;
    let (behaviour, calls) = {
        let mut world = fixture.1.lock().unwrap();
        let behaviour = world.behaviour.get(step.name()).copied().unwrap_or_default();
        let acts = !matches!(behaviour, Behaviour::Refuses | Behaviour::FailsFirst(_))
            || step.undoes().is_some();
        let late = matches!(behaviour, Behaviour::FailsFirst(times) if step.attempt() > times);
        // A repeated key has no further effect.
        if acts || late {
            world.effect(step.key());
        }
        (behaviour, world.calls.get(step.key()).copied().unwrap_or_default())
    };
    break_if_due(fixture, true).await;
    match behaviour {
        _ if step.undoes().is_some() => Ok(()),
        Behaviour::Refuses => Err(Failure::dead("Refused", "this step is refused")),
        Behaviour::Fails => Err(Failure::retry("the call failed")),
        Behaviour::FailsFirst(times) if step.attempt() <= times => Err(Failure::retry("not yet")),
        Behaviour::Panics => panic!("on purpose"),
        Behaviour::ActsThenRefuses if calls > 1 => Err(Failure::dead("Refused", "not again")),
        Behaviour::ActsThenRefuses => Ok(()),
        Behaviour::Well | Behaviour::FailsFirst(_) => Ok(()),
    }
}

async fn forward(mut order: Order, step: Step, fixture: State<Fixture>) -> Result<Order, Failure> {
    assert_eq!(step.saga(), ID);
    assert_eq!(step.key(), format!("order:{ID}:{}", step.name()));
    act(&fixture, &step).await?;
    order.done.push(step.name().to_owned());
    Ok(order)
}

async fn back(_order: Order, step: Step, fixture: State<Fixture>) -> Result<(), Failure> {
    assert_eq!(step.key(), format!("order:{ID}:{}:undo", step.name()));
    assert_eq!(step.undoes(), Some(format!("order:{ID}:{}", step.name()).as_str()));
    // There may be nothing to undo.
    let known = fixture.1.lock().unwrap().has(step.undoes().unwrap());
    if known { act(&fixture, &step).await } else { Ok(()) }
}

/// The last step follows the pivot and has no compensation.
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

fn worker(fixture: &Fixture, saga: Saga<Order>) -> Worker {
    Worker::of_saga(fixture.0.malote(), saga).state(fixture.clone()).sessions(2)
}

fn world(behaviour: &[(&'static str, Behaviour)]) -> Fixture {
    let world = Service { behaviour: behaviour.iter().copied().collect(), ..Service::default() };
    Arc::new((TestBroker::new().unwrap(), Mutex::new(world)))
}

async fn start(fixture: &Fixture) {
    let order = Order { cents: 900, done: Vec::new() };
    fixture.0.malote().start_saga("order", ID, &order).await.unwrap();
}

async fn run(fixture: &Fixture, saga: Saga<Order>) -> SagaState {
    fixture.0.drain(worker(fixture, saga)).await.unwrap();
    saga_state(fixture).await.expect("finished sagas are kept")
}

async fn saga_state(fixture: &Fixture) -> Option<SagaState> {
    fixture.0.malote().saga("order", ID).await.unwrap()
}

fn statuses(state: &SagaState) -> Vec<(&str, &str)> {
    state.steps.iter().map(|step| (step.name.as_str(), step.status.word())).collect()
}

fn key(step: &str) -> String {
    format!("order:{ID}:{step}")
}

/// Either all steps have one effect each, in order, or all effects are compensated once, in reverse order.
fn check(fixture: &Fixture, state: &SagaState, what: &str) {
    let world = fixture.1.lock().unwrap();
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
            // No step ran after the first compensation.
            let first_undo = effects.iter().position(|key| key.ends_with(":undo"));
            assert_eq!(first_undo.unwrap_or(effects.len()), forward.len(), "{what}: {effects:?}");
        }
        other => panic!("{what}: the saga behaviour not end, {other:?}: {state:?}"),
    }
    let keys: BTreeSet<&String> = effects.iter().collect();
    assert_eq!(keys.len(), effects.len());
}

/// A fault at the nth place.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// The nth settlement is lost, as if the worker died after the effect.
    Lose(u32),
    /// This many completed messages are delivered again.
    Repeat(u32),
    /// The session is taken away at the nth call, before or after its effect.
    Break(u32, bool),
}

/// Runs a saga with one fault.
async fn with_fault(behaviour: &[(&'static str, Behaviour)], fault: Fault) -> (Fixture, SagaState) {
    let fixture = world(behaviour);
    start(&fixture).await;
    match fault {
        Fault::None => {}
        Fault::Lose(nth) => fixture.0.lose_settlement(nth),
        Fault::Repeat(nth) => fixture.0.repeat_messages(nth),
        Fault::Break(nth, after) => fixture.1.lock().unwrap().break_session_at = Some((nth, after)),
    }
    // A client that got no answer starts the saga again.
    start(&fixture).await;
    let state = run(&fixture, order()).await;
    (fixture, state)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_at_any_point_leaves_all_or_nothing() {
    let mut behaviours: Vec<Vec<(&'static str, Behaviour)>> = vec![vec![]];
    for step in &STEPS[..3] {
        behaviours.push(vec![(step, Behaviour::Refuses)]);
        behaviours.push(vec![(step, Behaviour::Fails)]);
        behaviours.push(vec![(step, Behaviour::Panics)]);
        behaviours.push(vec![(step, Behaviour::FailsFirst(2))]);
    }
    behaviours.push(vec![("tell", Behaviour::FailsFirst(5))]);
    let mut runs = 0;
    for behaviour in &behaviours {
        let (fixture, state) = with_fault(behaviour, Fault::None).await;
        check(&fixture, &state, &format!("{behaviour:?}"));
        let goes_back = matches!(
            behaviour.first(),
            Some((_, Behaviour::Refuses | Behaviour::Fails | Behaviour::Panics))
        );
        let expected = if goes_back { SagaStatus::Compensated } else { SagaStatus::Done };
        assert_eq!(state.status, expected, "{behaviour:?}");
        let calls: u32 = fixture.1.lock().unwrap().count;
        // One settlement for each call, and those of the end.
        let mut faults: Vec<Fault> = (1..=calls + 2).map(Fault::Lose).collect();
        faults.extend((1..=2).map(Fault::Repeat));
        for nth in 1..=calls {
            faults.extend([Fault::Break(nth, false), Fault::Break(nth, true)]);
        }
        for fault in faults {
            let what = format!("{behaviour:?}, {fault:?}");
            let (fixture, state) = with_fault(behaviour, fault).await;
            check(&fixture, &state, &what);
            // A fault behaviour not change the result.
            assert_eq!(state.status, expected, "{what}");
            assert_eq!(fixture.0.counts(QUEUE).await.unwrap().dead, 0, "{what}");
            runs += 1;
        }
    }
    assert!(runs > 150, "{runs}");
}

/// A worker dies after the effect, and the service refuses the next call. The effect was never reported, but it must be
/// compensated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_that_was_never_reported_is_compensated() {
    let mut went_back = 0;
    for step in &STEPS[..3] {
        let behaviour = [(*step, Behaviour::ActsThenRefuses)];
        for nth in 1..=4 {
            for fault in [Fault::Lose(nth), Fault::Break(nth, true)] {
                let (fixture, state) = with_fault(&behaviour, fault).await;
                check(&fixture, &state, &format!("{behaviour:?}, {fault:?}"));
                went_back += u32::from(state.status == SagaStatus::Compensated);
            }
        }
    }
    assert_eq!(went_back, 3 * 2, "each step lost one settlement and one session after its effect");
}

#[tokio::test]
async fn a_refused_step_is_not_compensated_and_a_step_in_doubt_is() {
    let fixture = world(&[("charge", Behaviour::Refuses)]);
    start(&fixture).await;
    let state = run(&fixture, order()).await;
    assert_eq!(
        statuses(&state),
        [
            ("reserve", "compensated"),
            ("charge", "failed"),
            ("ship", "waiting"),
            ("tell", "waiting")
        ]
    );
    assert_eq!(state.error.as_deref(), Some("charge: Refused: this step is refused"));
    let fixture = world(&[("charge", Behaviour::Fails)]);
    start(&fixture).await;
    let state = run(&fixture, order()).await;
    assert_eq!(statuses(&state)[1], ("charge", "compensated"));
    assert_eq!(fixture.1.lock().unwrap().calls[&key("charge")], 3);
}

#[tokio::test]
async fn starting_the_same_id_again_has_no_effect() {
    let fixture = world(&[]);
    start(&fixture).await;
    start(&fixture).await;
    run(&fixture, order()).await;
    // After the de-duplication window of the queue.
    fixture.0.advance(Duration::from_secs(3600));
    start(&fixture).await;
    let state = run(&fixture, order()).await;
    check(&fixture, &state, "started three times");
    let calls = fixture.1.lock().unwrap().calls.clone();
    assert!(calls.values().all(|count| *count == 1), "{calls:?}");
}

#[tokio::test]
async fn steps_after_the_pivot_are_retried_until_they_succeed() {
    let fixture = world(&[("tell", Behaviour::FailsFirst(40))]);
    start(&fixture).await;
    let mut state = run(&fixture, order().retry(Retry::at_once(2))).await;
    // From the tenth failure on, the saga waits between attempts.
    assert_eq!(state.steps[3].attempts, 10);
    for _ in 0..30 {
        assert_eq!(state.status, SagaStatus::Running);
        fixture.0.advance(Duration::from_secs(1));
        state = run(&fixture, order().retry(Retry::at_once(2))).await;
    }
    fixture.0.advance(Duration::from_secs(1));
    let state = run(&fixture, order()).await;
    check(&fixture, &state, "after the pivot");
    assert_eq!(state.steps[3].attempts, 40);
}

#[tokio::test]
async fn a_pivot_in_doubt_without_compensation_is_retried_until_its_result_is_known() {
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
    let fixture = world(&[("charge", Behaviour::FailsFirst(7))]);
    start(&fixture).await;
    assert_eq!(run(&fixture, saga()).await.status, SagaStatus::Done);
    // A refused pivot had no effect.
    let fixture = world(&[("charge", Behaviour::Refuses)]);
    start(&fixture).await;
    assert_eq!(run(&fixture, saga()).await.status, SagaStatus::Compensated);
}

#[tokio::test]
async fn a_deadline_wakes_a_waiting_saga_and_compensates_it() {
    let saga = || {
        Saga::named("order")
            .retry(Retry::fixed(Duration::from_secs(3600), 10))
            .step("reserve", forward)
            .compensate(back)
            .step("charge", forward)
            .compensate(back)
            .deadline(Duration::from_secs(60))
    };
    let fixture = world(&[("charge", Behaviour::FailsFirst(100))]);
    start(&fixture).await;
    let state = run(&fixture, saga()).await;
    assert_eq!((state.status, state.steps[1].attempts), (SagaStatus::Running, 1));
    fixture.0.advance(Duration::from_secs(59));
    assert_eq!(
        run(&fixture, saga()).await.version,
        state.version,
        "nothing happens before the deadline"
    );
    fixture.0.advance(Duration::from_secs(2));
    let state = run(&fixture, saga()).await;
    assert_eq!(state.status, SagaStatus::Compensated);
    assert_eq!(state.error.as_deref(), Some("charge: TimedOut: the deadline has passed"));
    assert_eq!(state.steps[1].status, StepStatus::Compensated);
}

#[tokio::test]
async fn the_deadline_of_a_saga_ends_with_its_pivot() {
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
        let fixture = world(&[("tell", Behaviour::FailsFirst(1))]);
        start(&fixture).await;
        run(&fixture, saga(pivot)).await;
        fixture.0.advance(Duration::from_secs(61));
        run(&fixture, saga(pivot)).await;
        fixture.0.advance(Duration::from_secs(100));
        assert_eq!(run(&fixture, saga(pivot)).await.status, expected);
    }
}

#[tokio::test]
async fn a_finished_saga_is_kept_for_some_time() {
    let fixture = world(&[]);
    start(&fixture).await;
    let saga = || order().keep(Duration::from_secs(1000));
    run(&fixture, saga()).await;
    fixture.0.advance(Duration::from_secs(999));
    fixture.0.drain(worker(&fixture, saga())).await.unwrap();
    assert!(saga_state(&fixture).await.is_some());
    fixture.0.advance(Duration::from_secs(2));
    fixture.0.drain(worker(&fixture, saga())).await.unwrap();
    assert!(saga_state(&fixture).await.is_none());
    let counts = fixture.0.counts(QUEUE).await.unwrap();
    assert_eq!((counts.ready, counts.locked, counts.delayed, counts.dead), (0, 0, 0, 0));
    // The id can be used again now.
    start(&fixture).await;
    assert_eq!(run(&fixture, saga()).await.status, SagaStatus::Done);
}

#[tokio::test]
async fn the_state_of_running_sagas_can_be_read() {
    let fixture = world(&[("charge", Behaviour::FailsFirst(1))]);
    let malote = fixture.0.malote();
    for n in 0..30 {
        malote.start_saga("other", &format!("s{n}"), &n).await.unwrap();
    }
    async fn same(n: u32) -> Result<u32, Failure> {
        Ok(n)
    }
    let other = Saga::named("other").step("one", same).step("two", same);
    fixture.0.drain(Worker::of_saga(malote, other)).await.unwrap();
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
    // A saga that waits for its next attempt shows its last error.
    start(&fixture).await;
    let slow = Retry::fixed(Duration::from_secs(60), 3);
    let saga = Saga::named("order").step("reserve", forward).step("charge", forward).retry(slow);
    let state = run(&fixture, saga).await;
    assert_eq!(state.status, SagaStatus::Running);
    let current = state.current().unwrap();
    assert_eq!((current.name.as_str(), current.attempts), ("charge", 1));
    assert_eq!(current.error.as_deref(), Some("not yet"));
}

#[tokio::test]
async fn invalid_sagas_are_refused_at_start() {
    let broker = TestBroker::new().unwrap();
    let refused =
        async |saga: Saga<Order>| match Worker::of_saga(broker.malote(), saga).start().await {
            Err(Error::Settings(text)) => text,
            _ => panic!("the saga was not refused"),
        };
    assert!(refused(Saga::named("order")).await.contains("has no steps"));
    assert!(refused(Saga::named("order").compensate(back)).await.contains("must follow a step"));
    let twice = Saga::named("order").step("a", forward).step("a", forward);
    assert!(refused(twice).await.contains("two steps `a`"));
    let after = Saga::named("order").step("a", forward).pivot().step("b", forward).compensate(back);
    assert!(refused(after).await.contains("compensation that never runs"));
    let retries = Worker::of_saga(broker.malote(), order()).retry(Retry::never()).start().await;
    assert!(
        matches!(retries, Err(Error::Settings(text)) if text.contains("set it with the `Saga`"))
    );
}

#[tokio::test]
async fn data_that_is_too_large_is_a_failed_attempt() {
    async fn grow(mut order: Order) -> Result<Order, Failure> {
        order.done.push("x".repeat(200 << 10));
        Ok(order)
    }
    let fixture = world(&[]);
    start(&fixture).await;
    let saga = Saga::named("order")
        .retry(Retry::at_once(2))
        .step("reserve", forward)
        .compensate(back)
        .step("grow", grow);
    let state = run(&fixture, saga).await;
    assert_eq!(state.status, SagaStatus::Compensated);
    assert!(
        state.error.as_deref().is_some_and(|error| error.contains("the limit is")),
        "{state:?}"
    );
    let large = Order { cents: 1, done: vec!["x".repeat(200 << 10)] };
    assert!(fixture.0.malote().start_saga("order", "18", &large).await.is_err());
}

#[tokio::test]
async fn a_worker_without_the_next_step_leaves_the_saga_to_another() {
    let fixture = world(&[]);
    start(&fixture).await;
    let older = Saga::named("order").step("reserve", forward).compensate(back);
    // A newer worker has started the saga, and its steps are stored.
    fixture.1.lock().unwrap().behaviour.insert("charge", Behaviour::FailsFirst(1));
    let newer = Saga::named("order")
        .step("reserve", forward)
        .compensate(back)
        .step("charge", forward)
        .retry(Retry::fixed(Duration::from_secs(10), 3));
    assert_eq!(run(&fixture, newer).await.status, SagaStatus::Running);
    fixture.0.advance(Duration::from_secs(10));
    let state = run(&fixture, older).await;
    assert_eq!(state.status, SagaStatus::Running);
    fixture.0.advance(Duration::from_secs(30));
    let both =
        Saga::named("order").step("reserve", forward).compensate(back).step("charge", forward);
    assert_eq!(run(&fixture, both).await.status, SagaStatus::Done);
}
