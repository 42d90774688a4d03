//! Behaviour of a RabbitMQ cluster beyond the contract.

use std::collections::HashSet;
use std::time::Duration;

use malote_connectors::rabbitmq::RabbitMq;
use malote_connectors::{Broker as _, Delivery, Settle};
use malote_model::QueueSpec;
use tokio::time::Instant;

use crate::SERIAL;
use crate::common::{LOCK, TIMEOUT, queue, text, to};
use crate::servers::NODES;

const Q: &str = "more";
const MESSAGES: usize = 100;
/// Time for the other nodes to notice the failure and elect a leader, much less than the node's absence.
const REDELIVERED_WITHIN: Duration = Duration::from_secs(60);
/// Long enough to start closing, and shorter than the wait for leased messages.
const CLOSE_HEAD_START: Duration = Duration::from_millis(500);

fn body(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message.body.bytes.to_vec()).unwrap()
}

/// A worker with a grown prefetch has leased all messages over one node and is closing its source when the node dies.
#[tokio::test]
#[allow(clippy::await_holding_lock)] // the other tests are not async
async fn rabbitmq_redelivers_messages_of_a_lost_node_at_once() {
    let _turn = SERIAL.lock();
    let mut nodes = malote_services::RabbitMq::cluster(NODES).unwrap_or_else(|why| panic!("{why}"));
    let broker = RabbitMq::connect(&nodes.url_of_all(&[0], 0)).await.unwrap();
    broker.declare(&queue(Q), QueueSpec::default()).await.unwrap();
    let all: HashSet<String> = (0..MESSAGES).map(|n| n.to_string()).collect();
    broker.send(all.iter().map(|n| (to(Q), text(n))).collect()).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let mut leased = 0;
    while leased < MESSAGES {
        // The prefetch grows several times.
        let received = source.fetch(leased.max(1) as u32, TIMEOUT).await.unwrap();
        assert!(!received.is_empty(), "only {leased} of {MESSAGES} messages arrived");
        leased += received.len();
    }
    let ending = tokio::spawn(source.close());
    tokio::time::sleep(CLOSE_HEAD_START).await;
    nodes.kill(0);
    ending.await.unwrap().unwrap();
    let began = Instant::now();
    let other = RabbitMq::connect(&nodes.url_of_all(&[1, 2], 0)).await.unwrap();
    let mut missing = all;
    let source = loop {
        match other.open(&queue(Q), LOCK).await {
            Ok(source) => break source,
            Err(error) => {
                assert!(error.is_transient() && began.elapsed() < REDELIVERED_WITHIN, "{error}")
            }
        }
    };
    while !missing.is_empty() {
        let left = REDELIVERED_WITHIN.saturating_sub(began.elapsed());
        assert!(!left.is_zero(), "{} messages still wait for the killed node", missing.len());
        let Ok(received) = source.fetch(64, left).await else { continue };
        for delivery in &received {
            missing.remove(&body(delivery));
        }
        let done = received.iter().map(|delivery| Settle::complete(delivery.lease)).collect();
        let _ = other.settle(&queue(Q), done).await; // unsettled messages are delivered again, which is harmless
    }
    println!("{MESSAGES} messages of a killed node were redelivered after {:?}", began.elapsed());
}
