//! The native connection loses its socket: leases and holds survive, or are reported as lost.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test code

mod common;

use std::time::Duration;

use common::proxy::CuttableProxy;
use common::{LOCK, MaloteServer, TIMEOUT, queue, session, session_message, text, to};
use malote_connectors::{Broker, BrokerError, NativeBroker, Settle};
use malote_front_http::Limits;
use malote_model::{QueueSpec, Sessions};
use tokio::net::{TcpListener, TcpStream};

/// Retries until the broker can be reached.
async fn settle_with_retries(broker: &NativeBroker, item: Settle) -> Result<(), BrokerError> {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
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
async fn a_resumed_connection_keeps_its_leases_and_sessions() {
    // Slow machines need time to reconnect.
    let server =
        MaloteServer::with_limits(Limits { reconnect_grace: TIMEOUT, ..Limits::default() }).await;
    let proxy = CuttableProxy::to(server.at).await;
    let broker = NativeBroker::connect(&format!("malote://{}", proxy.at)).await.unwrap();
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    broker.declare(&queue("q"), spec).await.unwrap();
    let messages = ["1", "2", "3"].map(|body| (to("q"), session_message("a", body)));
    broker.send(messages.to_vec()).await.unwrap();
    let held = broker.accept(&queue("q"), None, LOCK, TIMEOUT).await.unwrap().unwrap();
    let first = held.fetch(1, TIMEOUT).await.unwrap().remove(0);
    for _ in 0..3 {
        proxy.cut(true);
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
    settle_with_retries(&broker, Settle::complete(first.lease)).await.unwrap();
    let second = held.fetch(1, TIMEOUT).await.unwrap().remove(0);
    assert_eq!((&second.message.body.bytes[..], second.receives), (&b"2"[..], 1));
    held.close().await.unwrap();
}

#[tokio::test]
async fn a_connection_that_cannot_be_resumed_loses_its_leases() {
    let grace = Duration::from_millis(1);
    let server =
        MaloteServer::with_limits(Limits { reconnect_grace: grace, ..Limits::default() }).await;
    let proxy = CuttableProxy::to(server.at).await;
    let broker = NativeBroker::connect(&format!("malote://{}", proxy.at)).await.unwrap();
    broker.declare(&queue("q"), QueueSpec::default()).await.unwrap();
    broker.send(vec![(to("q"), text("x"))]).await.unwrap();
    let source = broker.open(&queue("q"), LOCK).await.unwrap();
    let first = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    proxy.cut(false);
    // The connection stays cut until another receiver has the message.
    let other = NativeBroker::connect(&server.url()).await.unwrap();
    let again = other.open(&queue("q"), LOCK).await.unwrap();
    let second = again.fetch(1, TIMEOUT).await.unwrap().remove(0);
    assert_eq!((second.seq, second.failed), (first.seq, 1));
    proxy.cut(true);
    assert_eq!(source.fetch(1, TIMEOUT).await, Err(BrokerError::LockLost));
    let late = settle_with_retries(&broker, Settle::complete(first.lease)).await;
    assert_eq!(late, Err(BrokerError::LockLost));
    // The broker itself stays usable.
    broker.send(vec![(to("q"), text("y"))]).await.unwrap();
    let fresh = broker.open(&queue("q"), LOCK).await.unwrap();
    assert_eq!(fresh.fetch(1, TIMEOUT).await.unwrap().len(), 1);
}

/// A process may end after `close`: by then the server must have released everything.
#[tokio::test]
async fn close_returns_after_all_messages_were_released_uncounted() {
    let server = MaloteServer::start().await;
    let proxy = CuttableProxy::to(server.at).await;
    for round in 0..20 {
        let broker = NativeBroker::connect(&format!("malote://{}", proxy.at)).await.unwrap();
        broker.declare(&queue("q"), QueueSpec::default()).await.unwrap();
        if round == 0 {
            broker.send(vec![(to("q"), text("x")), (to("q"), text("y"))]).await.unwrap();
        }
        let source = broker.open(&queue("q"), LOCK).await.unwrap();
        let mut received = source.fetch(2, TIMEOUT).await.unwrap();
        while received.len() < 2 {
            received.extend(source.fetch(2, TIMEOUT).await.unwrap());
        }
        assert!(
            received.iter().all(|one| (one.receives, one.failed) == (round + 1, 0)),
            "{received:?}"
        );
        broker.close().await.unwrap();
        let facts = server.engine.describe(queue("q")).await.unwrap();
        assert_eq!((facts.ready, facts.locked), (2, 0), "round {round}");
    }
}

/// The server may deliver messages after its reply to the detach.
#[tokio::test]
async fn messages_that_arrive_for_a_closed_source_are_released() {
    let server = MaloteServer::start().await;
    let broker = NativeBroker::connect(&server.url()).await.unwrap();
    broker.declare(&queue("q"), QueueSpec::default()).await.unwrap();
    broker.send((0..100).map(|_| (to("q"), text("x"))).collect()).await.unwrap();
    for _ in 0..60 {
        let source = broker.open(&queue("q"), LOCK).await.unwrap();
        let received = source.fetch(100, Duration::ZERO).await.unwrap();
        let back = received.iter().map(|one| Settle::release(one.lease)).collect();
        broker.settle(&queue("q"), back).await.unwrap();
        source.close().await.unwrap();
    }
    let started = tokio::time::Instant::now();
    let source = broker.open(&queue("q"), LOCK).await.unwrap();
    let mut received = 0;
    while received < 100 {
        assert!(started.elapsed() < TIMEOUT, "only {received} of 100 messages arrived");
        received += source.fetch(100, Duration::from_secs(1)).await.unwrap().len();
    }
}

#[tokio::test]
async fn an_unreachable_server_and_an_unknown_queue_are_different_errors() {
    // The local port of an open connection is in use, but has no listener.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let local = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let unused = format!("malote://{}", local.local_addr().unwrap());
    let Err(error) = NativeBroker::connect(&unused).await else { panic!() };
    assert!(matches!(error, BrokerError::Unreachable { .. }), "{error}");
    let server = MaloteServer::start().await;
    let held = NativeBroker::connect(&server.url()).await.unwrap();
    let accepted = held.accept(&queue("q"), Some(session("a")), LOCK, TIMEOUT).await;
    assert!(matches!(accepted, Err(BrokerError::Refused { .. })));
}
