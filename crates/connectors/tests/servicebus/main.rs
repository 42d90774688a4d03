//! The client against our own broker, over sockets.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{LONG, World};
use malote_connectors::servicebus::{
    Client, Config, Credential, Error, Kind, Map, Message, ReceiverOptions, SequenceNumber,
    Settlement, Tls, Value,
};
use malote_model::{QueueName, QueueSpec, Sessions};

fn of_session(session: &str, body: impl Into<String>) -> Message {
    let session_id = Some(session.to_owned());
    Message { session_id, ..Message::new(body.into()) }
}

fn ahead(prefetch: u32) -> ReceiverOptions {
    ReceiverOptions { prefetch, ..ReceiverOptions::default() }
}

fn kind<T>(result: Result<T, Error>) -> Option<Kind> {
    result.err().and_then(|error| error.kind())
}

/// Messages that are ready or locked.
async fn left(world: &World, queue: &QueueName) -> u64 {
    let facts = world.engine.describe(queue.clone()).await.unwrap();
    facts.ready + facts.locked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_goes_round_with_all_that_it_says() {
    let world = World::new().await;
    let queue = world.queue("q", false).await;
    let client = world.client().await;
    let sender = client.sender("q").await.unwrap();
    assert!(sender.message_bytes_max().is_some());
    let message = Message {
        message_id: Some("id".to_owned()),
        subject: Some("about".to_owned()),
        properties: Map::default().with_string("n", 7_i32),
        ..Message::new("hello")
    };
    sender.send(&message).await.unwrap();
    let mut receiver = client.receiver("q", ahead(5)).await.unwrap();
    let received = receiver.next().await.unwrap();
    assert_eq!(received.body().unwrap(), "hello");
    assert_eq!(received.message_id().unwrap().as_deref(), Some("id"));
    assert_eq!(received.properties().unwrap().subject.as_deref(), Some("about"));
    assert_eq!(received.application_properties().unwrap().get("n"), Some(&Value::Int(7)));
    assert_eq!(received.delivery_count(), 0);
    assert!(received.lock_token().is_some() && received.sequence_number().is_some());
    assert!(received.locked_until_ms() > received.enqueued_ms());
    receiver.complete(&received).await.unwrap();
    assert_eq!(kind(receiver.complete(&received).await), Some(Kind::MessageLockLost));
    assert_eq!(left(&world, &queue).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_settle() {
    let world = World::new().await;
    world.queue("q", false).await;
    let client = world.client().await;
    let sender = client.sender("q").await.unwrap();
    sender.send(&Message::new("one")).await.unwrap();
    let mut receiver = client.receiver("q", ReceiverOptions::default()).await.unwrap();
    let mut next = async || receiver.receive(1, LONG).await.unwrap().remove(0);

    let first = next().await;
    let changed = Map::default().with_string("attempt", "first");
    client_settle(&client, &first).await;
    let again = next().await;
    assert_eq!(again.delivery_count(), 1, "abandoned by its token, over management");
    let settler = receiver.settler();
    settler.abandon(&again, changed).await.unwrap();
    let again = receiver.receive(1, LONG).await.unwrap().remove(0);
    assert_eq!(again.delivery_count(), 2);
    let properties = again.application_properties().unwrap();
    assert_eq!(properties.get("attempt").and_then(Value::as_str), Some("first"));

    // Put aside, found by its number, and given up.
    let number = again.sequence_number().unwrap();
    settler.defer(&again, Map::default()).await.unwrap();
    let management = client.management("q").await.unwrap();
    let deferred = management.receive_deferred(&[number]).await.unwrap();
    assert_eq!(deferred.len(), 1);
    assert_eq!(deferred[0].body().unwrap(), "one");
    settler.dead_letter(&deferred[0], "bad", "very bad").await.unwrap();
    assert_eq!(kind(management.receive_deferred(&[number]).await), Some(Kind::MessageNotFound));
    let mut dead = client.receiver("q/$DeadLetterQueue", ahead(1)).await.unwrap();
    let corpse = dead.next().await.unwrap();
    let properties = corpse.application_properties().unwrap();
    let text = |name: &str| properties.get(name).and_then(Value::as_str).map(str::to_owned);
    assert_eq!(text("DeadLetterReason").as_deref(), Some("bad"));
    assert_eq!(text("DeadLetterErrorDescription").as_deref(), Some("very bad"));
    // On the link as well.
    let outcomes = dead.settle([&corpse], &Settlement::Release).await.unwrap();
    assert_eq!(outcomes, [Ok(())]);
    let corpse = dead.next().await.unwrap();
    assert_eq!(corpse.body().unwrap(), "one");
    let until = dead.renew_locks([&corpse]).await.unwrap();
    assert!(until[0] >= corpse.locked_until_ms().unwrap());
    dead.complete(&corpse).await.unwrap();
}

async fn client_settle(client: &Client, message: &malote_connectors::servicebus::Received) {
    let management = client.management("q").await.unwrap();
    let abandon = Settlement::Abandon { properties: Map::default() };
    management.settle(&[message.lock_token().unwrap()], &abandon).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_are_under_way_and_stay_in_order() {
    let world = World::new().await;
    let queue = world.queue("orders", true).await;
    let client = world.client().await;
    let sender = client.sender("orders").await.unwrap();
    let mut under_way = Vec::new();
    for n in 0..500 {
        under_way.push(sender.start(&of_session("a", n.to_string())).await.unwrap());
    }
    let mut batch = sender.batch();
    for n in 500..1000 {
        assert!(batch.add(&of_session("a", n.to_string())));
    }
    under_way.push(sender.start_batch(&batch).await.unwrap());
    for sent in under_way {
        sent.outcome().await.unwrap();
    }
    let mut session =
        client.next_session("orders", ahead(100), LONG).await.unwrap().expect("one that has some");
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
    assert_eq!(left(&world, &queue).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_has_one_holder_a_lock_and_a_state() {
    let world = World::new().await;
    world.queue("orders", true).await;
    let client = world.client().await;
    let other = world.client().await;
    let mut session = client.session("orders", "a", ahead(1)).await.unwrap();
    assert_eq!(session.state().await.unwrap(), None);
    session.set_state(Some("half-way".into())).await.unwrap();
    assert_eq!(session.state().await.unwrap().as_deref(), Some(&b"half-way"[..]));
    let until = session.locked_until_ms();
    assert!(until > 0 && session.renew().await.unwrap() >= until);
    let held = other.session("orders", "a", ahead(1)).await;
    assert_eq!(kind(held), Some(Kind::SessionCannotBeLocked));
    // Nothing is ready: the wait ends by itself.
    let none = other.next_session("orders", ahead(1), Duration::from_millis(50)).await.unwrap();
    assert!(none.is_none());
    let sender = client.sender("orders").await.unwrap();
    assert_eq!(kind(sender.send(&Message::new("x")).await), Some(Kind::NotAllowed), "no session");
    sender.send(&of_session("a", "x")).await.unwrap();
    assert_eq!(session.next().await.unwrap().body().unwrap(), "x");
    let listed = client.management("orders").await.unwrap().sessions(0, 10).await.unwrap();
    assert_eq!(listed, ["a"]);
    session.close().await;
    // Free at once, and its message was not counted.
    let mut session = other.session("orders", "a", ahead(1)).await.unwrap();
    assert_eq!(session.next().await.unwrap().delivery_count(), 0);
    assert_eq!(session.state().await.unwrap().as_deref(), Some(&b"half-way"[..]));
    session.set_state(None).await.unwrap();
    assert_eq!(session.state().await.unwrap(), None);
}

/// Long enough for a slow machine to have what it locks.
const SHORT_LOCK_MS: u64 = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_session_is_told() {
    let world = World::new().await;
    let spec = QueueSpec { lock_ms: SHORT_LOCK_MS, ..QueueSpec::default() };
    world.queue_of("s", QueueSpec { sessions: Sessions::Dynamic, ..spec }).await;
    let client = world.client().await;
    client.sender("s").await.unwrap().send(&of_session("a", "x")).await.unwrap();
    let mut session = client.session("s", "a", ahead(1)).await.unwrap();
    let message = session.next().await.unwrap();
    let lost = tokio::time::timeout(LONG, session.next()).await.unwrap();
    assert_eq!(kind(lost), Some(Kind::SessionLockLost));
    assert!(session.is_over());
    assert_eq!(kind(session.complete(&message).await), Some(Kind::SessionLockLost));
    assert_eq!(kind(session.renew().await), Some(Kind::SessionLockLost));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lock_is_told() {
    let world = World::new().await;
    world.queue_of("q", QueueSpec { lock_ms: SHORT_LOCK_MS, ..QueueSpec::default() }).await;
    let client = world.client().await;
    client.sender("q").await.unwrap().send(&Message::new("x")).await.unwrap();
    let mut receiver = client.receiver("q", ahead(2)).await.unwrap();
    let message = receiver.next().await.unwrap();
    let again = tokio::time::timeout(LONG, receiver.next()).await.unwrap().unwrap();
    assert_eq!(again.sequence_number(), message.sequence_number());
    assert_eq!(kind(receiver.complete(&message).await), Some(Kind::MessageLockLost));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduled_peeked_and_cancelled() {
    let world = World::new().await;
    world.queue("q", false).await;
    let client = world.client().await;
    let management = client.management("q").await.unwrap();
    assert!(management.peek(SequenceNumber(0), 10).await.unwrap().is_empty());
    let at = Some(world.engine.now().0 as i64 + 3_600_000);
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
    assert_eq!(kind(management.cancel(&numbers[..1]).await), Some(Kind::MessageNotFound));
    assert_eq!(management.peek(SequenceNumber(0), 10).await.unwrap().len(), 2);
    let unset = management.schedule(&[Message::new("when?")]).await;
    assert_eq!(kind(unset), Some(Kind::BadArgument));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_asked_for_believed_and_renewed() {
    let world = World::new().await;
    world.queue("q", false).await;
    let wrong = Credential::Key { name: "Root".to_owned(), key: "other".to_owned() };
    let client = Client::connect(Config { credential: wrong, ..world.config() }).await.unwrap();
    assert_eq!(kind(client.sender("q").await), Some(Kind::Unauthorized));
    assert!(!client.sender("q").await.err().unwrap().is_passing());

    // Renewed in time on a slow machine, too.
    let life = Duration::from_secs(10);
    let client = Client::connect(Config { token_life: life, ..world.config() }).await.unwrap();
    let sender = client.sender("q").await.unwrap();
    let before = world.keys.asked.load(Ordering::Relaxed);
    let renewed = async {
        while world.keys.asked.load(Ordering::Relaxed) < before + 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, renewed).await.expect("the token is renewed again and again");
    sender.send(&Message::new("still there")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_ends_its_links_and_is_made_again() {
    let world = World::new().await;
    world.queue("q", false).await;
    let client = world.client().await;
    let sender = client.sender("q").await.unwrap();
    let mut receiver = client.receiver("q", ahead(1)).await.unwrap();
    sender.send(&Message::new("before")).await.unwrap();
    let message = receiver.next().await.unwrap();
    world.hang_up();
    let lost = receiver.next().await;
    assert!(matches!(&lost, Err(error) if error.is_passing() && error.is_in_doubt()), "{lost:?}");
    assert!(sender.is_over() && receiver.is_over());
    assert!(sender.send(&Message::new("nowhere")).await.is_err());
    // The client itself is as good as new.
    client.sender("q").await.unwrap().send(&Message::new("after")).await.unwrap();
    let mut receiver = client.receiver("q", ahead(1)).await.unwrap();
    assert_eq!(receiver.next().await.unwrap().body().unwrap(), "after");
    // A lock outside of sessions stands free of the connection it came over.
    let token = message.lock_token().unwrap();
    let management = client.management("q").await.unwrap();
    management.settle(&[token], &Settlement::Complete).await.unwrap();
    client.close().await;
    assert!(receiver.is_over());
    assert!(client.sender("q").await.is_ok(), "closed is not the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_taken_goes_back() {
    let world = World::new().await;
    let queue = world.queue("q", false).await;
    let client = world.client().await;
    let sender = client.sender("q").await.unwrap();
    for n in 0..20 {
        sender.send(&Message::new(n.to_string())).await.unwrap();
    }
    let mut receiver = client.receiver("q", ahead(10)).await.unwrap();
    let first = receiver.next().await.unwrap();
    receiver.close().await;
    let facts = world.engine.describe(queue.clone()).await.unwrap();
    assert_eq!(
        (facts.ready, facts.ready + facts.locked),
        (19, 20),
        "all but the one that was taken"
    );
    let mut receiver = client.receiver("q", ReceiverOptions::default()).await.unwrap();
    receiver.complete(&first).await.unwrap();
    // Without prefetch nothing comes outside of the calls.
    let some = receiver.receive(7, LONG).await.unwrap();
    assert!(!some.is_empty() && some.len() <= 7);
    let facts = world.engine.describe(queue.clone()).await.unwrap();
    assert_eq!(facts.ready, 19 - some.len() as u64);
    let taking = ReceiverOptions { receive_and_delete: true, ..ReceiverOptions::default() };
    let mut taker = client.receiver("q", taking).await.unwrap();
    let taken = taker.receive(1, LONG).await.unwrap();
    assert_eq!((taken.len(), taken[0].lock_token()), (1, None));
    assert_eq!(kind(taker.complete(&taken[0]).await), Some(Kind::BadArgument));
    assert_eq!(left(&world, &queue).await, 18);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_have_their_kinds() {
    let world = World::new().await;
    world.queue("q", false).await;
    world.queue("s", true).await;
    let client = world.client().await;
    assert_eq!(kind(client.sender("missing").await), Some(Kind::EntityNotFound));
    assert_eq!(kind(client.receiver("s", ahead(1)).await), Some(Kind::NotAllowed));
    assert_eq!(kind(client.session("q", "a", ahead(1)).await), Some(Kind::NotAllowed));
    let sender = client.sender("q").await.unwrap();
    let large = vec![0; sender.message_bytes_max().unwrap() as usize + 1];
    assert_eq!(kind(sender.send(&Message::new(large)).await), Some(Kind::MessageTooLarge));
    sender.send(&Message::new("small")).await.unwrap();
    let empty = sender.batch();
    assert_eq!(kind(sender.send_batch(&empty).await), Some(Kind::BadArgument));

    let nobody = Config { attempts: 2, ..Config::plain("127.0.0.1", 1, Credential::Anonymous) };
    let unreachable = Client::connect(nobody).await.err();
    assert!(matches!(unreachable, Some(Error::Unreachable { .. })), "{unreachable:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_and_only_to_whom_is_trusted() {
    let (world, authority) = World::with_tls().await;
    world.queue("q", false).await;
    let config = world.config_with_tls(authority);
    let client = Client::connect(config.clone()).await.unwrap();
    client.sender("q").await.unwrap().send(&Message::new("x")).await.unwrap();
    let stranger = Config { tls: Tls::System, attempts: 1, ..config };
    assert!(Client::connect(stranger).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_amqp_without_tokens() {
    let world = World::new().await;
    world.queue("q", false).await;
    let credential = Credential::Plain { user: "Root".to_owned(), password: "secret".to_owned() };
    let config = Config::plain("127.0.0.1", world.port, credential);
    let client = Client::connect(config.clone()).await.unwrap();
    client.sender("q").await.unwrap().send(&Message::new("x")).await.unwrap();
    let once = ReceiverOptions { prefetch: 1, unconfirmed: true, ..ReceiverOptions::default() };
    let mut receiver = client.receiver("q", once).await.unwrap();
    let message = receiver.next().await.unwrap();
    receiver.complete(&message).await.unwrap();
    let credential = Credential::Plain { user: "Root".to_owned(), password: "wrong".to_owned() };
    let refused = Client::connect(Config { credential, ..config }).await.err();
    assert_eq!(refused.and_then(|error| error.kind()), Some(Kind::Unauthorized));
}
