//! An exclusive consumer is the only consumer of its queue, even if several clients ask at the same time.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Client, World, short};
use malote_front_amqp091::wire::method::{Method, basic};
use malote_front_amqp091::wire::table::FieldTable;

/// Each round is a race that a check before attaching would sometimes lose.
const ROUNDS: usize = 40;
const CLIENTS: usize = 4;

fn consume(exclusive: bool) -> basic::Consume {
    basic::Consume { queue: short("q"), exclusive, ..basic::Consume::default() }
}

/// Whether the broker accepted the consumer. A refusal must be the one for queues in exclusive use.
async fn is_accepted(client: &mut Client, consume: basic::Consume) -> bool {
    match client.call(consume).await {
        Method::BasicConsumeOk(_) => true,
        Method::ChannelClose(close) => {
            assert_eq!(close.reply_code, 403);
            assert!(close.reply_text.ends_with("in exclusive use"), "{}", close.reply_text);
            false
        }
        other => panic!("unexpected answer: {other:?}"),
    }
}

/// Clients consume at the same time. Returns how many were accepted: exclusive ones and others.
async fn race(exclusive: [bool; CLIENTS]) -> (usize, usize) {
    let world = World::new();
    let mut owner = world.channel().await;
    owner.declare("q", FieldTable::default()).await;
    let mut racing = Vec::new();
    for exclusive in exclusive {
        let mut client = world.channel().await;
        racing.push(tokio::spawn(async move {
            let accepted = is_accepted(&mut client, consume(exclusive)).await;
            // The connection stays open until all have been answered.
            (exclusive, accepted, client)
        }));
    }
    let (mut alone, mut others, mut open) = (0, 0, Vec::new());
    for client in racing {
        let (exclusive, accepted, client) = client.await.unwrap();
        alone += usize::from(accepted && exclusive);
        others += usize::from(accepted && !exclusive);
        open.push(client);
    }
    (alone, others)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_racing_exclusive_consumers_is_accepted() {
    for _ in 0..ROUNDS {
        assert_eq!(race([true; CLIENTS]).await, (1, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exclusive_consumer_and_others_are_never_accepted_together() {
    for _ in 0..ROUNDS {
        match race([true, false, true, false]).await {
            (1, 0) | (0, 1..) => {}
            accepted => panic!("{accepted:?}"),
        }
    }
}
