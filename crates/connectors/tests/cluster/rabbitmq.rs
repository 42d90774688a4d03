//! What only three nodes of RabbitMQ can show.

use std::collections::HashSet;
use std::time::Duration;

use malote_connectors::rabbitmq::RabbitMq;
use malote_connectors::{Broker as _, Delivery, Settle};
use malote_model::QueueSpec;
use tokio::time::Instant;

use crate::TURN;
use crate::common::{LOCK, PATIENCE, queue, text, to};
use crate::servers::NODES;

const Q: &str = "more";
const MESSAGES: usize = 100;
/// The nodes that are left have to notice first, and choose who leads. Far less than a node that never comes back.
const AT_ONCE: Duration = Duration::from_secs(60);
/// Long enough to tell the server so, and not as long as what is in hand is waited for.
const ENDS_FOR: Duration = Duration::from_millis(500);

fn body(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message.body.bytes.to_vec()).unwrap()
}

/// A worker that asked for more and more has all of it over the node that dies, from its first message on, and is about to
/// end: it takes nothing more, and has not finished.
#[tokio::test]
#[allow(clippy::await_holding_lock)] // the other tests are not async
async fn rabbitmq_gives_again_at_once_what_was_in_hand_over_a_lost_node() {
    let _turn = TURN.lock();
    let mut nodes = malote_services::RabbitMq::cluster(NODES).unwrap_or_else(|why| panic!("{why}"));
    let broker = RabbitMq::connect(&nodes.url_of_all(&[0], 0)).await.unwrap();
    broker.declare(&queue(Q), QueueSpec::default()).await.unwrap();
    let all: HashSet<String> = (0..MESSAGES).map(|n| n.to_string()).collect();
    broker.send(all.iter().map(|n| (to(Q), text(n))).collect()).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let mut in_hand = 0;
    while in_hand < MESSAGES {
        // One at first, then as many as it has: it has to grow several times.
        let got = source.fetch(in_hand.max(1) as u32, PATIENCE).await.unwrap();
        assert!(!got.is_empty(), "{in_hand} of {MESSAGES} came");
        in_hand += got.len();
    }
    let ending = tokio::spawn(source.close());
    tokio::time::sleep(ENDS_FOR).await;
    nodes.kill(0);
    ending.await.unwrap().unwrap();
    let began = Instant::now();
    let other = RabbitMq::connect(&nodes.url_of_all(&[1, 2], 0)).await.unwrap();
    let mut missing = all;
    let source = loop {
        match other.open(&queue(Q), LOCK).await {
            Ok(source) => break source,
            Err(error) => assert!(error.is_transient() && began.elapsed() < AT_ONCE, "{error}"),
        }
    };
    while !missing.is_empty() {
        let left = AT_ONCE.saturating_sub(began.elapsed());
        assert!(!left.is_zero(), "{} still wait for the node that is away", missing.len());
        let Ok(got) = source.fetch(64, left).await else { continue };
        for delivery in &got {
            missing.remove(&body(delivery));
        }
        let done = got.iter().map(|delivery| Settle::complete(delivery.lease)).collect();
        let _ = other.settle(&queue(Q), done).await; // what is not settled comes again, and is known
    }
    println!(
        "{MESSAGES} messages over a node that was killed came again after {:?}",
        began.elapsed()
    );
}
