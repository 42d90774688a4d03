//! Sessions: handled in order and one message at a time, and served in turn.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use malote::testing::TestBroker;
use malote::{
    Address, Attempt, Failure, Message, Outcome, QueueName, QueueSpec, Retry, Session, SessionId,
    SessionOptions, SessionState, State, Worker,
};

use crate::until;

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

/// The session and body of each started message, in order.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

fn of<'a>(seen: &'a [(String, String)], session: &str) -> Vec<&'a str> {
    seen.iter().filter(|(of, _)| of == session).map(|(_, body)| body.as_str()).collect()
}

/// One busy session, a thousand quiet ones and eight slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_session_does_not_starve_quiet_ones() {
    const BUSY: usize = 100_000;
    const QUIET: usize = 1_000;
    let broker = broker().await;
    let busy: Vec<_> = (0..BUSY).map(|n| message("busy", &n.to_string())).collect();
    for some in busy.chunks(4000) {
        broker.malote().send_all(some.to_vec()).await.unwrap();
    }
    let quiet = (0..QUIET).map(|n| message(&format!("quiet-{n}"), "0")).collect();
    broker.malote().send_all(quiet).await.unwrap();
    async fn handle_message(
        text: String,
        Session(session): Session,
        seen: State<Seen>,
        quiet: State<Arc<AtomicUsize>>,
    ) {
        let is_busy = session.as_str() == "busy";
        let is_second_quantum = is_busy && text.parse::<usize>().unwrap() >= 64;
        seen.lock().unwrap().push((session.as_str().to_owned(), text));
        let begun =
            quiet.fetch_add(usize::from(!is_busy), Ordering::SeqCst) + usize::from(!is_busy);
        // Handlers take some time while quiet sessions wait. At the second quantum of the busy session, all quiet
        // sessions are held, and those that have not started get more time.
        if begun < QUIET {
            let ms = if is_second_quantum { 50 } else { 1 };
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }
    let seen = Seen::default();
    let worker =
        Worker::new(broker.malote(), Q).handle(handle_message).sessions(8).state(seen.clone());
    let worker = worker.state(Arc::new(AtomicUsize::new(0)));
    let report = broker.drain(worker).await.unwrap();
    assert_eq!(report.counts.done as usize, BUSY + QUIET);
    let seen = seen.lock().unwrap();
    let busy_at: Vec<usize> =
        (0..seen.len()).filter(|&at| seen[at].0 == "busy").take(129).collect();
    let last_quiet = seen.iter().rposition(|(session, _)| session != "busy").unwrap();
    assert!(
        last_quiet < busy_at[128],
        "a quiet session started after the 129th message of the busy session"
    );
    let expected: Vec<String> = (0..BUSY).map(|n| n.to_string()).collect();
    assert_eq!(of(&seen, "busy"), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_handled_in_order_and_by_one_slot_at_a_time() {
    let broker = broker().await;
    for n in 0..20 {
        let all = (0..50).map(|s| message(&format!("s{s}"), &n.to_string())).collect();
        broker.malote().send_all(all).await.unwrap();
    }
    type Running = Arc<Mutex<HashMap<String, Vec<String>>>>;
    async fn handle_message(
        text: String,
        Session(session): Session,
        Attempt(attempt): Attempt,
        done: State<Running>,
        now: State<Arc<Mutex<std::collections::HashSet<String>>>>,
    ) -> Result<(), Failure> {
        let session = session.as_str().to_owned();
        assert!(
            now.lock().unwrap().insert(session.clone()),
            "{session} is handled twice at the same time"
        );
        tokio::task::yield_now().await;
        now.lock().unwrap().remove(&session);
        // Some messages fail at the first attempt.
        if attempt == 1 && text.ends_with('7') {
            return Err(Failure::retry("not yet"));
        }
        done.lock().unwrap().entry(session).or_default().push(text);
        Ok(())
    }
    let done = Running::default();
    let worker = Worker::new(broker.malote(), Q)
        .handle(handle_message)
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
async fn a_waiting_retry_holds_back_its_own_session_only() {
    let broker = broker().await;
    let all = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")];
    broker.malote().send_all(all.map(|(s, b)| message(s, b)).to_vec()).await.unwrap();
    async fn handle_message(
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
    let make =
        || Worker::new(broker.malote(), Q).handle(handle_message).sessions(1).state(seen.clone());
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
async fn a_dead_lettered_message_does_not_hold_back_its_session() {
    let broker = broker().await;
    broker.malote().send_all(["1", "2"].map(|b| message("a", b)).to_vec()).await.unwrap();
    async fn handle_message(text: String, seen: State<Seen>) -> Outcome {
        seen.lock().unwrap().push(("a".into(), text.clone()));
        match text.as_str() {
            "1" => Outcome::Dead { reason: "Bad".into(), text: "the body is 1".into() },
            _ => Outcome::Done,
        }
    }
    let seen = Seen::default();
    let worker =
        Worker::new(broker.malote(), Q).handle(handle_message).sessions(1).state(seen.clone());
    let counts = broker.drain(worker).await.unwrap().counts;
    assert_eq!((counts.dead, counts.done), (1, 1));
    assert_eq!(of(&seen.lock().unwrap(), "a"), ["1", "2"]);
}

#[tokio::test]
async fn a_session_state_changes_only_with_its_settlement() {
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

#[tokio::test]
async fn an_idle_session_gives_its_slot_to_a_ready_one_at_once() {
    let broker = broker().await;
    async fn handle_message(text: String, Session(session): Session, seen: State<Seen>) {
        seen.lock().unwrap().push((session.as_str().to_owned(), text));
    }
    let seen = Seen::default();
    let hour = Duration::from_secs(3600);
    let options =
        SessionOptions { max: 1, receive_wait: hour, idle: hour, ..SessionOptions::default() };
    let worker = Worker::new(broker.malote(), Q).handle(handle_message).with_sessions(options);
    let running = worker.state(seen.clone()).start().await.unwrap();
    for session in ["a", "b", "a", "c"] {
        broker.malote().send_all(vec![message(session, "x")]).await.unwrap();
        until(&format!("{session} is handled"), async || {
            let seen = seen.lock().unwrap();
            let is_last = seen.last().is_some_and(|(of, _)| of == session);
            is_last && running.counts().done == seen.len() as u64
        })
        .await;
    }
    running.stop();
    assert_eq!(running.ended().await.unwrap().counts.done, 4);
}
