//! Sessions: in order, one at a time, in turn; what a failing head does to the rest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use malote::testing::TestBroker;
use malote::{
    Address, Attempt, Failure, Message, Outcome, QueueName, QueueSpec, Retry, Session, SessionId,
    SessionState, Sessions, State, Worker,
};

const Q: &str = "orders";

async fn broker() -> TestBroker {
    let broker = TestBroker::new().unwrap();
    let sessions = malote::model::Sessions::Dynamic;
    let spec = QueueSpec { failed_max: None, sessions, ..QueueSpec::default() };
    broker.malote().declare(Q, spec).await.unwrap();
    broker
}

fn message(session: &str, body: &str) -> (Address, Message) {
    let body = malote::model::Body { bytes: body.to_owned().into(), ..Default::default() };
    let session = Some(SessionId::new(session).unwrap());
    let to = Address::Queue(QueueName::new(Q).unwrap());
    (to, Message { session, body, ..Message::default() })
}

/// What was begun, in this order.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

fn of<'a>(seen: &'a [(String, String)], session: &str) -> Vec<&'a str> {
    seen.iter().filter(|(of, _)| of == session).map(|(_, body)| body.as_str()).collect()
}

/// One hot session, a thousand cold ones and eight slots: nobody starves, and order holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_session_does_not_starve_cold_ones() {
    const HOT: usize = 100_000;
    const COLD: usize = 1_000;
    let broker = broker().await;
    let hot: Vec<_> = (0..HOT).map(|n| message("hot", &n.to_string())).collect();
    for some in hot.chunks(4000) {
        broker.malote().send_all(some.to_vec()).await.unwrap();
    }
    let cold = (0..COLD).map(|n| message(&format!("cold-{n}"), "0")).collect();
    broker.malote().send_all(cold).await.unwrap();
    async fn take(
        text: String,
        Session(session): Session,
        seen: State<Seen>,
        cold: State<Arc<AtomicUsize>>,
    ) {
        let is_hot = session.as_str() == "hot";
        let is_second_turn = is_hot && text.parse::<usize>().unwrap() >= 64;
        seen.lock().unwrap().push((session.as_str().to_owned(), text));
        let begun = cold.fetch_add(usize::from(!is_hot), Ordering::SeqCst) + usize::from(!is_hot);
        // While cold ones wait, work takes some time; afterwards there is only the hot one left. At its second turn all
        // cold ones are in hand: those whose threads do not run just now have time to begin.
        if begun < COLD {
            let ms = if is_second_turn { 50 } else { 1 };
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }
    let seen = Seen::default();
    let worker = Worker::new(broker.malote(), Q).handle(take).sessions(8).state(seen.clone());
    let worker = worker.state(Arc::new(AtomicUsize::new(0)));
    let report = broker.drain(worker).await.unwrap();
    assert_eq!(report.counts.done as usize, HOT + COLD);
    let seen = seen.lock().unwrap();
    let hot_at: Vec<usize> = (0..seen.len()).filter(|&at| seen[at].0 == "hot").take(129).collect();
    let last_cold = seen.iter().rposition(|(session, _)| session != "hot").unwrap();
    assert!(last_cold < hot_at[128], "a cold message began after the hot session's 129th");
    let expected: Vec<String> = (0..HOT).map(|n| n.to_string()).collect();
    assert_eq!(of(&seen, "hot"), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_in_order_and_never_twice_at_once() {
    let broker = broker().await;
    for n in 0..20 {
        let all = (0..50).map(|s| message(&format!("s{s}"), &n.to_string())).collect();
        broker.malote().send_all(all).await.unwrap();
    }
    type Running = Arc<Mutex<HashMap<String, Vec<String>>>>;
    async fn take(
        text: String,
        Session(session): Session,
        Attempt(attempt): Attempt,
        done: State<Running>,
        now: State<Arc<Mutex<std::collections::HashSet<String>>>>,
    ) -> Result<(), Failure> {
        let session = session.as_str().to_owned();
        assert!(now.lock().unwrap().insert(session.clone()), "{session} runs twice at once");
        tokio::task::yield_now().await;
        now.lock().unwrap().remove(&session);
        // Some fail the first time.
        if attempt == 1 && text.ends_with('7') {
            return Err(Failure::retry("not yet"));
        }
        done.lock().unwrap().entry(session).or_default().push(text);
        Ok(())
    }
    let done = Running::default();
    let worker = Worker::new(broker.malote(), Q)
        .handle(take)
        .sessions(16)
        .retry(Retry::at_once(3))
        .state(done.clone())
        .state(Arc::new(Mutex::new(std::collections::HashSet::<String>::new())));
    let report = broker.drain(worker).await.unwrap();
    assert_eq!((report.counts.done, report.counts.retried, report.counts.panicked), (1000, 100, 0));
    let done = done.lock().unwrap();
    let expected: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert!(done.len() == 50 && done.values().all(|of| *of == expected));
}

#[tokio::test]
async fn a_head_that_waits_holds_its_session_and_nobody_else() {
    let broker = broker().await;
    let all = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")];
    broker.malote().send_all(all.map(|(s, b)| message(s, b)).to_vec()).await.unwrap();
    async fn take(
        text: String,
        Session(session): Session,
        Attempt(attempt): Attempt,
        seen: State<Seen>,
    ) -> Result<(), Failure> {
        seen.lock().unwrap().push((session.as_str().to_owned(), text.clone()));
        if session.as_str() == "a" && text == "1" && attempt == 1 {
            return Err(Failure::retry_after("busy", Duration::from_secs(10)));
        }
        Ok(())
    }
    let seen = Seen::default();
    let make = || Worker::new(broker.malote(), Q).handle(take).sessions(1).state(seen.clone());
    broker.drain(make()).await.unwrap();
    {
        let seen = seen.lock().unwrap();
        assert_eq!((of(&seen, "a"), of(&seen, "b")), (vec!["1"], vec!["1", "2"]));
    }
    broker.advance(Duration::from_secs(11));
    broker.drain(make()).await.unwrap();
    assert_eq!(of(&seen.lock().unwrap(), "a"), ["1", "1", "2"]);
}

#[tokio::test]
async fn a_dead_head_makes_way() {
    let broker = broker().await;
    broker.malote().send_all(["1", "2"].map(|b| message("a", b)).to_vec()).await.unwrap();
    async fn take(text: String, seen: State<Seen>) -> Outcome {
        seen.lock().unwrap().push(("a".into(), text.clone()));
        match text.as_str() {
            "1" => Outcome::Dead { reason: "Bad".into(), text: "it is one".into() },
            _ => Outcome::Done,
        }
    }
    let seen = Seen::default();
    let worker = Worker::new(broker.malote(), Q).handle(take).sessions(1).state(seen.clone());
    let counts = broker.drain(worker).await.unwrap().counts;
    assert_eq!((counts.dead, counts.done), (1, 1));
    assert_eq!(of(&seen.lock().unwrap(), "a"), ["1", "2"]);
}

#[tokio::test]
async fn a_state_changes_with_its_message_or_not_at_all() {
    let broker = broker().await;
    broker.malote().send_all(["1", "2", "3"].map(|b| message("a", b)).to_vec()).await.unwrap();
    async fn sum(
        text: String,
        Attempt(attempt): Attempt,
        state: SessionState,
    ) -> Result<(), Failure> {
        let before: u32 = match state.get() {
            Some(bytes) => String::from_utf8(bytes.to_vec())?.parse()?,
            None => 0,
        };
        let now = before + text.parse::<u32>()?;
        state.set(now.to_string());
        if attempt == 1 {
            return Err(Failure::retry("once more"));
        }
        if now == 6 {
            assert_eq!(before, 3);
        }
        Ok(())
    }
    broker.lose_settlements(1);
    let worker = Worker::new(broker.malote(), Q).handle(sum).sessions(2);
    let counts = broker.drain(worker.retry(Retry::at_once(3))).await.unwrap().counts;
    assert_eq!((counts.done, counts.retried, counts.panicked, counts.lost), (3, 3, 0, 1));
}

/// An idle session is waited for, but not while another one is ready.
#[tokio::test]
async fn an_idle_session_makes_way_at_once() {
    let broker = broker().await;
    async fn take(text: String, Session(session): Session, seen: State<Seen>) {
        seen.lock().unwrap().push((session.as_str().to_owned(), text));
    }
    let seen = Seen::default();
    let hour = Duration::from_secs(3600);
    let sessions = Sessions { max: 1, receive_wait: hour, idle: hour, ..Sessions::default() };
    let worker = Worker::new(broker.malote(), Q).handle(take).with_sessions(sessions);
    let running = worker.state(seen.clone()).start().await.unwrap();
    for session in ["a", "b", "a", "c"] {
        broker.malote().send_all(vec![message(session, "x")]).await.unwrap();
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        while running.counts().done < seen.lock().unwrap().len() as u64 || {
            let last = seen.lock().unwrap().last().map(|(of, _)| of.clone());
            last.as_deref() != Some(session)
        } {
            assert!(tokio::time::Instant::now() < until, "{session} waits for an idle session");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    running.stop();
    assert_eq!(running.ended().await.unwrap().counts.done, 4);
}
