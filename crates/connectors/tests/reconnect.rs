//! The native connection loses its socket: leases and holds live on, or are known to be lost.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

mod common;

use std::time::Duration;

use common::wire::Wire;
use common::{LOCK, PATIENCE, Server, of_session, queue, session, text, to};
use malote_connectors::{Broker, BrokerError, Native, Settle};
use malote_front_http::Limits;
use malote_model::{QueueSpec, Sessions};
use tokio::net::{TcpListener, TcpStream};

/// Asks until the broker can be reached again.
async fn settled(broker: &Native, item: Settle) -> Result<(), BrokerError> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match broker.settle(&queue("q"), vec![item.clone()]).await {
            Ok(mut each) => return each.remove(0),
            Err(error) if error.is_transient() && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

#[tokio::test]
async fn a_cut_socket_keeps_its_leases_and_sessions() {
    // Slow machines reconnect slowly.
    let server = Server::limited(Limits { reconnect_grace: PATIENCE, ..Limits::default() }).await;
    let wire = Wire::to(server.at).await;
    let broker = Native::connect(&format!("malote://{}", wire.at)).await.unwrap();
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    broker.declare(&queue("q"), spec).await.unwrap();
    let messages = ["1", "2", "3"].map(|body| (to("q"), of_session("a", body)));
    broker.send(messages.to_vec()).await.unwrap();
    let held = broker.accept(&queue("q"), None, LOCK, PATIENCE).await.unwrap().unwrap();
    let first = held.fetch(1, PATIENCE).await.unwrap().remove(0);
    for _ in 0..3 {
        wire.cut(true);
        let hold = held.held().unwrap().hold;
        let renewed = loop {
            match broker.renew(&queue("q"), vec![hold], LOCK).await {
                Ok(each) => break each,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert_eq!(renewed, [Ok(())]);
    }
    settled(&broker, Settle::complete(first.lease)).await.unwrap();
    let second = held.fetch(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!((&second.message.body.bytes[..], second.receives), (&b"2"[..], 1));
    held.close().await.unwrap();
}

#[tokio::test]
async fn a_connection_that_cannot_be_resumed_has_lost_everything() {
    let grace = Duration::from_millis(1);
    let server = Server::limited(Limits { reconnect_grace: grace, ..Limits::default() }).await;
    let wire = Wire::to(server.at).await;
    let broker = Native::connect(&format!("malote://{}", wire.at)).await.unwrap();
    broker.declare(&queue("q"), QueueSpec::default()).await.unwrap();
    broker.send(vec![(to("q"), text("x"))]).await.unwrap();
    let source = broker.open(&queue("q"), LOCK).await.unwrap();
    let first = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    wire.cut(false);
    // Until somebody else has the message, the wire stays cut.
    let other = Native::connect(&server.url()).await.unwrap();
    let again = other.open(&queue("q"), LOCK).await.unwrap();
    let second = again.fetch(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!((second.seq, second.failed), (first.seq, 1));
    wire.cut(true);
    assert_eq!(source.fetch(1, PATIENCE).await, Err(BrokerError::LockLost));
    let late = settled(&broker, Settle::complete(first.lease)).await;
    assert_eq!(late, Err(BrokerError::LockLost));
    // The broker itself goes on.
    broker.send(vec![(to("q"), text("y"))]).await.unwrap();
    let fresh = broker.open(&queue("q"), LOCK).await.unwrap();
    assert_eq!(fresh.fetch(1, PATIENCE).await.unwrap().len(), 1);
}

/// Whoever closes its connection and ends has lost nothing: the server must have heard of it by then.
#[tokio::test]
async fn a_close_is_over_when_all_is_given_back_uncounted() {
    let server = Server::start().await;
    let wire = Wire::to(server.at).await;
    for round in 0..20 {
        let broker = Native::connect(&format!("malote://{}", wire.at)).await.unwrap();
        broker.declare(&queue("q"), QueueSpec::default()).await.unwrap();
        if round == 0 {
            broker.send(vec![(to("q"), text("x")), (to("q"), text("y"))]).await.unwrap();
        }
        let source = broker.open(&queue("q"), LOCK).await.unwrap();
        let mut got = source.fetch(2, PATIENCE).await.unwrap();
        while got.len() < 2 {
            got.extend(source.fetch(2, PATIENCE).await.unwrap());
        }
        assert!(got.iter().all(|one| (one.receives, one.failed) == (round + 1, 0)), "{got:?}");
        broker.close().await.unwrap();
        let facts = server.engine.describe(queue("q")).await.unwrap();
        assert_eq!((facts.ready, facts.locked), (2, 0), "round {round}");
    }
}

/// Messages may come behind the server's answer that a source is let go: they go back, too.
#[tokio::test]
async fn what_comes_for_a_source_that_is_gone_goes_back() {
    let server = Server::start().await;
    let broker = Native::connect(&server.url()).await.unwrap();
    broker.declare(&queue("q"), QueueSpec::default()).await.unwrap();
    broker.send((0..100).map(|_| (to("q"), text("x"))).collect()).await.unwrap();
    for _ in 0..60 {
        let source = broker.open(&queue("q"), LOCK).await.unwrap();
        let got = source.fetch(100, Duration::ZERO).await.unwrap();
        let back = got.iter().map(|one| Settle::release(one.lease)).collect();
        broker.settle(&queue("q"), back).await.unwrap();
        source.close().await.unwrap();
    }
    let begun = tokio::time::Instant::now();
    let source = broker.open(&queue("q"), LOCK).await.unwrap();
    let mut got = 0;
    while got < 100 {
        assert!(begun.elapsed() < PATIENCE, "{got} of 100 are there");
        got += source.fetch(100, Duration::from_secs(1)).await.unwrap().len();
    }
}

#[tokio::test]
async fn nobody_there_and_a_stranger_there_are_errors_that_say_so() {
    // The near end of a connection has a port, on which nobody else listens for as long as it is open.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let nobody = format!("malote://{}", near.local_addr().unwrap());
    let Err(error) = Native::connect(&nobody).await else { panic!() };
    assert!(matches!(error, BrokerError::Unreachable { .. }), "{error}");
    let server = Server::start().await;
    let held = Native::connect(&server.url()).await.unwrap();
    let accepted = held.accept(&queue("q"), Some(session("a")), LOCK, PATIENCE).await;
    assert!(matches!(accepted, Err(BrokerError::Refused { .. })));
}
