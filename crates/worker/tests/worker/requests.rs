//! Requests: one answer to each, none after its time.

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
async fn a_hundred_requests_get_their_own_answers() {
    let broker = broker().await;
    let worker = Worker::new(broker.malote(), Q).handle(double).start().await.unwrap();
    let asked: Vec<_> = (0..100_u32)
        .map(|n| {
            let malote = broker.malote().clone();
            tokio::spawn(
                async move { (n, malote.request(Q, &n).await.unwrap().json::<u32>().unwrap()) },
            )
        })
        .collect();
    for one in asked {
        let (n, answer) = one.await.unwrap();
        assert_eq!(answer, 2 * n);
    }
    assert_eq!(broker.malote().late_answers(), 0);
    worker.stop();
    worker.ended().await.unwrap();
    broker.malote().close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dies_with_its_time_and_a_late_answer_is_dropped() {
    let broker = broker().await;
    let malote = broker.malote();
    let short = Duration::from_millis(50);
    let error = malote.request(Q, &1).timeout(short).await.unwrap_err();
    assert_eq!(error, Error::NoAnswer { queue: Q.into(), timeout: short });
    // It may have been sent when its time was over already: whoever asks now is answered behind it.
    broker.held(Q).await.unwrap();
    // Nobody works on it in vain.
    broker.advance(short);
    let report = broker.drain(Worker::new(malote, Q).handle(double)).await.unwrap();
    assert_eq!(report.counts.started, 0);
    // One whose worker was too slow: its answer finds nobody. It is sent in its time on any machine.
    malote.request(Q, &2).timeout(Duration::from_secs(5)).await.unwrap_err();
    let report = broker.drain(Worker::new(malote, Q).handle(double)).await.unwrap();
    assert_eq!(report.counts.done, 1);
    let late = async {
        while malote.late_answers() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), late).await.unwrap();
    assert_eq!(malote.late_answers(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_can_come_to_a_session_of_a_shared_queue() {
    let broker = broker().await;
    let sessions = malote::model::Sessions::Dynamic;
    let spec = QueueSpec { sessions, ..QueueSpec::default() };
    broker.malote().declare("answers", spec).await.unwrap();
    async fn tell(n: u32, meta: Meta, reply: Reply) -> Result<(), Failure> {
        let to = meta.message().reply_to_session.clone().unwrap_or_default();
        SessionId::new(&to)?;
        reply.send(&(n, to)).await
    }
    let worker = Worker::new(broker.malote(), Q).handle(tell).start().await.unwrap();
    let clients = [0, 1].map(|_| broker.malote().answers_through("answers"));
    let mut sessions = Vec::new();
    for (n, client) in clients.iter().cycle().take(10).enumerate() {
        let (same, session): (usize, String) = client.request(Q, &n).await.unwrap().json().unwrap();
        assert_eq!(same, n);
        sessions.push(session);
    }
    assert_eq!(sessions[0], sessions[2], "a client has one session");
    assert_ne!(sessions[0], sessions[1], "and no other client has it");
    drop(worker);
}

#[tokio::test]
async fn whoever_was_not_asked_does_not_answer_and_a_client_that_is_gone_is_no_failure() {
    let broker = broker().await;
    async fn answer(_: u32, reply: Reply) -> Result<(), Failure> {
        reply.send(&0).await
    }
    broker.malote().send(Q, &1).await.unwrap();
    let mut gone = malote::Message { reply_to: Some("reply-nobody".into()), ..Default::default() };
    gone.body.bytes = "1".into();
    let mut bad = gone.clone();
    bad.reply_to = Some("#".into());
    let to = malote::Address::Queue(malote::QueueName::new(Q).unwrap());
    broker.malote().send_all(vec![(to.clone(), gone), (to, bad)]).await.unwrap();
    let report = broker.drain(Worker::new(broker.malote(), Q).handle(answer)).await.unwrap();
    assert_eq!((report.counts.done, report.counts.dead), (2, 1));
    assert_eq!(broker.take_dead(Q).await.unwrap()[0].dead.as_ref().unwrap().0, "BadReplyTo");
}
