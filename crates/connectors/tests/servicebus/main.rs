//! The Service Bus client against Malote's front end, over sockets.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{TIMEOUT, TestEnv};
use malote_connectors::servicebus::{
    Client, Config, Credential, Error, ErrorKind, Map, Message, ReceiverOptions, SequenceNumber,
    Settlement, TlsMode, Value,
};
use malote_model::{QueueName, QueueSpec, Sessions};

fn session_message(session: &str, body: impl Into<String>) -> Message {
    let session_id = Some(session.to_owned());
    Message { session_id, ..Message::new(body.into()) }
}

fn with_prefetch(prefetch: u32) -> ReceiverOptions {
    ReceiverOptions { prefetch, ..ReceiverOptions::default() }
}

fn kind<T>(result: Result<T, Error>) -> Option<ErrorKind> {
    result.err().and_then(|error| error.kind())
}

/// Messages that are ready or locked.
async fn left(env: &TestEnv, queue: &QueueName) -> u64 {
    let facts = env.engine.describe(queue.clone()).await.unwrap();
    facts.ready + facts.locked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_delivered_with_all_fields() {
    let env = TestEnv::new().await;
    let queue = env.queue("q", false).await;
    let client = env.client().await;
    let sender = client.sender("q").await.unwrap();
    assert!(sender.message_bytes_max().is_some());
    let message = Message {
        message_id: Some("id".to_owned()),
        subject: Some("about".to_owned()),
        properties: Map::default().with_string("n", 7_i32),
        ..Message::new("hello")
    };
    sender.send(&message).await.unwrap();
    let mut receiver = client.receiver("q", with_prefetch(5)).await.unwrap();
    let received = receiver.next().await.unwrap();
    assert_eq!(received.body().unwrap(), "hello");
    assert_eq!(received.message_id().unwrap().as_deref(), Some("id"));
    assert_eq!(received.properties().unwrap().subject.as_deref(), Some("about"));
    assert_eq!(received.application_properties().unwrap().get("n"), Some(&Value::Int(7)));
    assert_eq!(received.delivery_count(), 0);
    assert!(received.lock_token().is_some() && received.sequence_number().is_some());
    assert!(received.locked_until_ms() > received.enqueued_ms());
    receiver.complete(&received).await.unwrap();
    assert_eq!(kind(receiver.complete(&received).await), Some(ErrorKind::MessageLockLost));
    assert_eq!(left(&env, &queue).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_settlements() {
    let env = TestEnv::new().await;
    env.queue("q", false).await;
    let client = env.client().await;
    let sender = client.sender("q").await.unwrap();
    sender.send(&Message::new("one")).await.unwrap();
    let mut receiver = client.receiver("q", ReceiverOptions::default()).await.unwrap();
    let mut next = async || receiver.receive(1, TIMEOUT).await.unwrap().remove(0);

    let first = next().await;
    let changed = Map::default().with_string("attempt", "first");
    abandon_by_token(&client, &first).await;
    let again = next().await;
    assert_eq!(again.delivery_count(), 1, "the message was abandoned by its token");
    let settler = receiver.settler();
    settler.abandon(&again, changed).await.unwrap();
    let again = receiver.receive(1, TIMEOUT).await.unwrap().remove(0);
    assert_eq!(again.delivery_count(), 2);
    let properties = again.application_properties().unwrap();
    assert_eq!(properties.get("attempt").and_then(Value::as_str), Some("first"));

    // Defer the message, receive it by its sequence number, and dead-letter it.
    let number = again.sequence_number().unwrap();
    settler.defer(&again, Map::default()).await.unwrap();
    let management = client.management("q").await.unwrap();
    let deferred = management.receive_deferred(&[number]).await.unwrap();
    assert_eq!(deferred.len(), 1);
    assert_eq!(deferred[0].body().unwrap(), "one");
    settler.dead_letter(&deferred[0], "bad", "very bad").await.unwrap();
    assert_eq!(
        kind(management.receive_deferred(&[number]).await),
        Some(ErrorKind::MessageNotFound)
    );
    let mut dead = client.receiver("q/$DeadLetterQueue", with_prefetch(1)).await.unwrap();
    let dead_letter = dead.next().await.unwrap();
    let properties = dead_letter.application_properties().unwrap();
    let text = |name: &str| properties.get(name).and_then(Value::as_str).map(str::to_owned);
    assert_eq!(text("DeadLetterReason").as_deref(), Some("bad"));
    assert_eq!(text("DeadLetterErrorDescription").as_deref(), Some("very bad"));
    // Settle on the link as well.
    let outcomes = dead.settle([&dead_letter], &Settlement::Release).await.unwrap();
    assert_eq!(outcomes, [Ok(())]);
    let dead_letter = dead.next().await.unwrap();
    assert_eq!(dead_letter.body().unwrap(), "one");
    let until = dead.renew_locks([&dead_letter]).await.unwrap();
    assert!(until[0] >= dead_letter.locked_until_ms().unwrap());
    dead.complete(&dead_letter).await.unwrap();
}

async fn abandon_by_token(client: &Client, message: &malote_connectors::servicebus::Received) {
    let management = client.management("q").await.unwrap();
    let abandon = Settlement::Abandon { properties: Map::default() };
    management.settle(&[message.lock_token().unwrap()], &abandon).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_and_settlements_in_flight_keep_their_order() {
    let env = TestEnv::new().await;
    let queue = env.queue("orders", true).await;
    let client = env.client().await;
    let sender = client.sender("orders").await.unwrap();
    let mut in_flight = Vec::new();
    for n in 0..500 {
        in_flight.push(sender.start(&session_message("a", n.to_string())).await.unwrap());
    }
    let mut batch = sender.batch();
    for n in 500..1000 {
        assert!(batch.add(&session_message("a", n.to_string())));
    }
    in_flight.push(sender.start_batch(&batch).await.unwrap());
    for sent in in_flight {
        sent.outcome().await.unwrap();
    }
    let mut session = client
        .next_session("orders", with_prefetch(100), TIMEOUT)
        .await
        .unwrap()
        .expect("a session with messages");
    assert_eq!(session.id(), "a");
    let (mut count, mut settling) = (0, Vec::new());
    while count < 1000 {
        let some = session.next_many(64).await.unwrap();
        for message in &some {
            assert_eq!(message.body().unwrap(), count.to_string());
            count += 1;
        }
        settling.push(session.start(&some, &Settlement::Complete).await.unwrap());
    }
    for settled in settling {
        assert!(settled.outcomes().await.iter().all(Result::is_ok));
    }
    assert_eq!(left(&env, &queue).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_has_one_holder_a_lock_and_a_state() {
    let env = TestEnv::new().await;
    env.queue("orders", true).await;
    let client = env.client().await;
    let other = env.client().await;
    let mut session = client.session("orders", "a", with_prefetch(1)).await.unwrap();
    assert_eq!(session.state().await.unwrap(), None);
    session.set_state(Some("half-way".into())).await.unwrap();
    assert_eq!(session.state().await.unwrap().as_deref(), Some(&b"half-way"[..]));
    let until = session.locked_until_ms();
    assert!(until > 0 && session.renew().await.unwrap() >= until);
    let held = other.session("orders", "a", with_prefetch(1)).await;
    assert_eq!(kind(held), Some(ErrorKind::SessionCannotBeLocked));
    // No session is ready: the wait times out.
    let none =
        other.next_session("orders", with_prefetch(1), Duration::from_millis(50)).await.unwrap();
    assert!(none.is_none());
    let sender = client.sender("orders").await.unwrap();
    assert_eq!(
        kind(sender.send(&Message::new("x")).await),
        Some(ErrorKind::NotAllowed),
        "a message without a session"
    );
    sender.send(&session_message("a", "x")).await.unwrap();
    assert_eq!(session.next().await.unwrap().body().unwrap(), "x");
    let listed = client.management("orders").await.unwrap().sessions(0, 10).await.unwrap();
    assert_eq!(listed, ["a"]);
    session.close().await;
    // The session is free at once, and its message was not counted.
    let mut session = other.session("orders", "a", with_prefetch(1)).await.unwrap();
    assert_eq!(session.next().await.unwrap().delivery_count(), 0);
    assert_eq!(session.state().await.unwrap().as_deref(), Some(&b"half-way"[..]));
    session.set_state(None).await.unwrap();
    assert_eq!(session.state().await.unwrap(), None);
}

/// Long enough for a slow machine to receive the message before its lock ends.
const SHORT_LOCK_MS: u64 = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_session_lock_is_an_error() {
    let env = TestEnv::new().await;
    let spec = QueueSpec { lock_ms: SHORT_LOCK_MS, ..QueueSpec::default() };
    env.queue_with("s", QueueSpec { sessions: Sessions::Dynamic, ..spec }).await;
    let client = env.client().await;
    client.sender("s").await.unwrap().send(&session_message("a", "x")).await.unwrap();
    let mut session = client.session("s", "a", with_prefetch(1)).await.unwrap();
    let message = session.next().await.unwrap();
    let lost = tokio::time::timeout(TIMEOUT, session.next()).await.unwrap();
    assert_eq!(kind(lost), Some(ErrorKind::SessionLockLost));
    assert!(session.is_closed());
    assert_eq!(kind(session.complete(&message).await), Some(ErrorKind::SessionLockLost));
    assert_eq!(kind(session.renew().await), Some(ErrorKind::SessionLockLost));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_message_lock_is_an_error() {
    let env = TestEnv::new().await;
    env.queue_with("q", QueueSpec { lock_ms: SHORT_LOCK_MS, ..QueueSpec::default() }).await;
    let client = env.client().await;
    client.sender("q").await.unwrap().send(&Message::new("x")).await.unwrap();
    let mut receiver = client.receiver("q", with_prefetch(2)).await.unwrap();
    let message = receiver.next().await.unwrap();
    let again = tokio::time::timeout(TIMEOUT, receiver.next()).await.unwrap().unwrap();
    assert_eq!(again.sequence_number(), message.sequence_number());
    assert_eq!(kind(receiver.complete(&message).await), Some(ErrorKind::MessageLockLost));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_scheduled_peeked_and_cancelled() {
    let env = TestEnv::new().await;
    env.queue("q", false).await;
    let client = env.client().await;
    let management = client.management("q").await.unwrap();
    assert!(management.peek(SequenceNumber(0), 10).await.unwrap().is_empty());
    let at = Some(env.engine.now().0 as i64 + 3_600_000);
    let later = |body: &'static str| Message { scheduled_ms: at, ..Message::new(body) };
    let numbers = management.schedule(&[later("a"), later("b")]).await.unwrap();
    assert_eq!(numbers.len(), 2);
    client.sender("q").await.unwrap().send(&Message::new("now")).await.unwrap();
    let peeked = management.peek(SequenceNumber(0), 10).await.unwrap();
    let bodies: Vec<_> = peeked.iter().map(|message| message.body().unwrap()).collect();
    assert_eq!(bodies.len(), 3);
    let scheduled = peeked.iter().find(|message| message.sequence_number() == Some(numbers[0]));
    assert_eq!(scheduled.unwrap().scheduled_ms(), at);
    management.cancel(&numbers[..1]).await.unwrap();
    assert_eq!(kind(management.cancel(&numbers[..1]).await), Some(ErrorKind::MessageNotFound));
    assert_eq!(management.peek(SequenceNumber(0), 10).await.unwrap().len(), 2);
    let unset = management.schedule(&[Message::new("when?")]).await;
    assert_eq!(kind(unset), Some(ErrorKind::BadArgument));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_sent_verified_and_renewed() {
    let env = TestEnv::new().await;
    env.queue("q", false).await;
    let wrong = Credential::Key { name: "Root".to_owned(), key: "other".to_owned() };
    let client = Client::connect(Config { credential: wrong, ..env.config() }).await.unwrap();
    assert_eq!(kind(client.sender("q").await), Some(ErrorKind::Unauthorized));
    assert!(!client.sender("q").await.err().unwrap().is_transient());

    // Long enough for a slow machine to renew in time.
    let life = Duration::from_secs(10);
    let client = Client::connect(Config { token_life: life, ..env.config() }).await.unwrap();
    let sender = client.sender("q").await.unwrap();
    let before = env.keys.lookups.load(Ordering::Relaxed);
    let renewed = async {
        while env.keys.lookups.load(Ordering::Relaxed) < before + 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, renewed).await.expect("the token is not renewed");
    sender.send(&Message::new("still there")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_ends_its_links_and_the_client_reconnects() {
    let env = TestEnv::new().await;
    env.queue("q", false).await;
    let client = env.client().await;
    let sender = client.sender("q").await.unwrap();
    let mut receiver = client.receiver("q", with_prefetch(1)).await.unwrap();
    sender.send(&Message::new("before")).await.unwrap();
    let message = receiver.next().await.unwrap();
    env.close_connections();
    let lost = receiver.next().await;
    assert!(matches!(&lost, Err(error) if error.is_transient() && error.is_in_doubt()), "{lost:?}");
    assert!(sender.is_closed() && receiver.is_closed());
    assert!(sender.send(&Message::new("nowhere")).await.is_err());
    // The client itself stays usable.
    client.sender("q").await.unwrap().send(&Message::new("after")).await.unwrap();
    let mut receiver = client.receiver("q", with_prefetch(1)).await.unwrap();
    assert_eq!(receiver.next().await.unwrap().body().unwrap(), "after");
    // A lock outside of a session survives its connection.
    let token = message.lock_token().unwrap();
    let management = client.management("q").await.unwrap();
    management.settle(&[token], &Settlement::Complete).await.unwrap();
    client.close().await;
    assert!(receiver.is_closed());
    assert!(client.sender("q").await.is_ok(), "the client reconnects after a close");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_messages_are_released() {
    let env = TestEnv::new().await;
    let queue = env.queue("q", false).await;
    let client = env.client().await;
    let sender = client.sender("q").await.unwrap();
    for n in 0..20 {
        sender.send(&Message::new(n.to_string())).await.unwrap();
    }
    let mut receiver = client.receiver("q", with_prefetch(10)).await.unwrap();
    let first = receiver.next().await.unwrap();
    receiver.close().await;
    let facts = env.engine.describe(queue.clone()).await.unwrap();
    assert_eq!(
        (facts.ready, facts.ready + facts.locked),
        (19, 20),
        "only the read message stays locked"
    );
    let mut receiver = client.receiver("q", ReceiverOptions::default()).await.unwrap();
    receiver.complete(&first).await.unwrap();
    // Without prefetch, messages arrive only during a call.
    let some = receiver.receive(7, TIMEOUT).await.unwrap();
    assert!(!some.is_empty() && some.len() <= 7);
    let facts = env.engine.describe(queue.clone()).await.unwrap();
    assert_eq!(facts.ready, 19 - some.len() as u64);
    let taking = ReceiverOptions { receive_and_delete: true, ..ReceiverOptions::default() };
    let mut taker = client.receiver("q", taking).await.unwrap();
    let taken = taker.receive(1, TIMEOUT).await.unwrap();
    assert_eq!((taken.len(), taken[0].lock_token()), (1, None));
    assert_eq!(kind(taker.complete(&taken[0]).await), Some(ErrorKind::BadArgument));
    assert_eq!(left(&env, &queue).await, 18);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_have_their_kinds() {
    let env = TestEnv::new().await;
    env.queue("q", false).await;
    env.queue("s", true).await;
    let client = env.client().await;
    assert_eq!(kind(client.sender("missing").await), Some(ErrorKind::EntityNotFound));
    assert_eq!(kind(client.receiver("s", with_prefetch(1)).await), Some(ErrorKind::NotAllowed));
    assert_eq!(kind(client.session("q", "a", with_prefetch(1)).await), Some(ErrorKind::NotAllowed));
    let sender = client.sender("q").await.unwrap();
    let large = vec![0; sender.message_bytes_max().unwrap() as usize + 1];
    assert_eq!(kind(sender.send(&Message::new(large)).await), Some(ErrorKind::MessageTooLarge));
    sender.send(&Message::new("small")).await.unwrap();
    let empty = sender.batch();
    assert_eq!(kind(sender.send_batch(&empty).await), Some(ErrorKind::BadArgument));

    let nobody = Config { attempts: 2, ..Config::plain("127.0.0.1", 1, Credential::Anonymous) };
    let unreachable = Client::connect(nobody).await.err();
    assert!(matches!(unreachable, Some(Error::Unreachable { .. })), "{unreachable:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_server_with_a_trusted_certificate_is_accepted() {
    let (env, authority) = TestEnv::with_tls().await;
    env.queue("q", false).await;
    let config = env.config_with_tls(authority);
    let client = Client::connect(config.clone()).await.unwrap();
    client.sender("q").await.unwrap().send(&Message::new("x")).await.unwrap();
    let stranger = Config { tls: TlsMode::System, attempts: 1, ..config };
    assert!(Client::connect(stranger).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_amqp_without_tokens() {
    let env = TestEnv::new().await;
    env.queue("q", false).await;
    let credential = Credential::Plain { user: "Root".to_owned(), password: "secret".to_owned() };
    let config = Config::plain("127.0.0.1", env.port, credential);
    let client = Client::connect(config.clone()).await.unwrap();
    client.sender("q").await.unwrap().send(&Message::new("x")).await.unwrap();
    let once = ReceiverOptions { prefetch: 1, unconfirmed: true, ..ReceiverOptions::default() };
    let mut receiver = client.receiver("q", once).await.unwrap();
    let message = receiver.next().await.unwrap();
    receiver.complete(&message).await.unwrap();
    let credential = Credential::Plain { user: "Root".to_owned(), password: "wrong".to_owned() };
    let refused = Client::connect(Config { credential, ..config }).await.err();
    assert_eq!(refused.and_then(|error| error.kind()), Some(ErrorKind::Unauthorized));
}
