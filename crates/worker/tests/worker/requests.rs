//! Requests get one reply each, and none after their time-out.

use std::time::Duration;

use malote::testing::TestBroker;
use malote::{Error, Failure, Meta, QueueSpec, Reply, SessionId, Worker};

const Q: &str = "sums";

async fn double(n: u32, reply: Reply) -> Result<(), Failure> {
    assert!(reply.is_wanted());
    reply.send(&(2 * n)).await
}

async fn broker() -> TestBroker {
    let broker = TestBroker::new().unwrap();
    broker.malote().declare(Q, QueueSpec::default()).await.unwrap();
    broker
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_get_their_own_replies() {
    let broker = broker().await;
    let worker = Worker::new(broker.malote(), Q).handle(double).start().await.unwrap();
    let requests: Vec<_> = (0..100_u32)
        .map(|n| {
            let malote = broker.malote().clone();
            tokio::spawn(
                async move { (n, malote.request(Q, &n).await.unwrap().json::<u32>().unwrap()) },
            )
        })
        .collect();
    for one in requests {
        let (n, reply_value) = one.await.unwrap();
        assert_eq!(reply_value, 2 * n);
    }
    assert_eq!(broker.malote().late_replies(), 0);
    worker.stop();
    worker.ended().await.unwrap();
    broker.malote().close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_expires_with_its_time_out_and_a_late_reply_is_dropped() {
    let broker = broker().await;
    let malote = broker.malote();
    let short = Duration::from_millis(50);
    let error = malote.request(Q, &1).timeout(short).await.unwrap_err();
    assert_eq!(error, Error::NoReply { queue: Q.into(), timeout: short });
    // The request may have been sent after its time-out. This call is processed after it.
    broker.counts(Q).await.unwrap();
    // The request has expired, and no handler runs.
    broker.advance(short);
    let report = broker.drain(Worker::new(malote, Q).handle(double)).await.unwrap();
    assert_eq!(report.counts.started, 0);
    // The worker is too slow, and the reply comes too late. The time-out is long enough to send the request.
    malote.request(Q, &2).timeout(Duration::from_secs(5)).await.unwrap_err();
    let report = broker.drain(Worker::new(malote, Q).handle(double)).await.unwrap();
    assert_eq!(report.counts.done, 1);
    let late = async {
        while malote.late_replies() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), late).await.unwrap();
    assert_eq!(malote.late_replies(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_can_come_through_a_session_of_a_shared_queue() {
    let broker = broker().await;
    let sessions = malote::model::Sessions::Dynamic;
    let spec = QueueSpec { sessions, ..QueueSpec::default() };
    broker.malote().declare("replies", spec).await.unwrap();
    async fn reply_with_session(n: u32, meta: Meta, reply: Reply) -> Result<(), Failure> {
        let to = meta.message().reply_to_session.clone().unwrap_or_default();
        SessionId::new(&to)?;
        reply.send(&(n, to)).await
    }
    let worker = Worker::new(broker.malote(), Q).handle(reply_with_session).start().await.unwrap();
    let clients = [0, 1].map(|_| broker.malote().replies_through("replies"));
    let mut sessions = Vec::new();
    for (n, client) in clients.iter().cycle().take(10).enumerate() {
        let (same, session): (usize, String) = client.request(Q, &n).await.unwrap().json().unwrap();
        assert_eq!(same, n);
        sessions.push(session);
    }
    assert_eq!(sessions[0], sessions[2], "a client has one session");
    assert_ne!(sessions[0], sessions[1], "each client has its own session");
    drop(worker);
}

#[tokio::test]
async fn a_reply_without_an_address_or_to_a_deleted_queue_succeeds() {
    let broker = broker().await;
    async fn reply_value(_: u32, reply: Reply) -> Result<(), Failure> {
        reply.send(&0).await
    }
    broker.malote().send(Q, &1).await.unwrap();
    let mut gone = malote::Message { reply_to: Some("reply-nobody".into()), ..Default::default() };
    gone.body.bytes = "1".into();
    let mut bad = gone.clone();
    bad.reply_to = Some("#".into());
    let to = malote::Address::Queue(malote::QueueName::new(Q).unwrap());
    broker.malote().send_all(vec![(to.clone(), gone), (to, bad)]).await.unwrap();
    let report = broker.drain(Worker::new(broker.malote(), Q).handle(reply_value)).await.unwrap();
    assert_eq!((report.counts.done, report.counts.dead), (2, 1));
    assert_eq!(
        broker.take_dead_letters(Q).await.unwrap()[0].dead.as_ref().unwrap().0,
        "BadReplyTo"
    );
}
