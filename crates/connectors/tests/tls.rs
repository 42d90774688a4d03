//! The native connection over TLS accepts only trusted certificates with the right name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)] // test code

mod common;

use common::{LOCK, MaloteServer, TIMEOUT, queue, text, to};
use malote_connectors::{Broker, BrokerError, NativeBroker, Settle};
use malote_model::QueueSpec;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_server_with_a_trusted_certificate_is_accepted() {
    let (server, authority) = MaloteServer::with_tls().await;
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("our ca.pem");
    std::fs::write(&ca, authority).unwrap();
    let port = server.at.port();
    let ca = ca.display().to_string().replace(' ', "%20");

    let broker =
        NativeBroker::connect(&format!("malote+tls://localhost:{port}?ca={ca}")).await.unwrap();
    broker.declare(&queue("q"), QueueSpec::default()).await.unwrap();
    broker.send(vec![(to("q"), text("x"))]).await.unwrap();
    let source = broker.open(&queue("q"), LOCK).await.unwrap();
    let some = source.fetch(1, TIMEOUT).await.unwrap();
    assert_eq!(&some[0].message.body.bytes[..], b"x");
    let settled = broker.settle(&queue("q"), vec![Settle::complete(some[0].lease)]).await.unwrap();
    assert_eq!(settled, [Ok(())]);
    broker.close().await.unwrap();

    let connect = async |url: String| match NativeBroker::connect(&url).await {
        Ok(_) => panic!("{url} was accepted"),
        Err(error) => error,
    };
    // The certificate is not trusted, or has another name.
    for url in
        [format!("malote+tls://localhost:{port}"), format!("malote+tls://{}?ca={ca}", server.at)]
    {
        let error = connect(url).await;
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    // The server does not answer without TLS.
    assert!(matches!(
        connect(format!("malote://localhost:{port}")).await,
        BrokerError::Unreachable { .. }
    ));
    let nothing = connect(format!("malote+tls://localhost:{port}?ca=/nowhere.pem")).await;
    assert!(matches!(nothing, BrokerError::Refused { ref code, .. } if code == "bad_tls"));
}
