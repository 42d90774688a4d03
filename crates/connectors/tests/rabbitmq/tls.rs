//! TLS connections accept only trusted certificates with the right name.

use malote_connectors::rabbitmq::RabbitMq;
use malote_connectors::{Broker, Settle};
use malote_model::QueueSpec;

use crate::common::authority::TestAuthority;
use crate::common::{LOCK, TIMEOUT, queue, text, to};

async fn refused(url: String) -> String {
    match RabbitMq::connect(&url).await {
        Ok(_) => panic!("{url} was accepted"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn only_a_server_with_a_trusted_certificate_is_accepted() {
    let (ours, others) = (TestAuthority::new(), TestAuthority::new());
    let (certificate, key) = (ours.certificate.clone(), ours.key.clone());
    let start = move || malote_services::RabbitMq::start_with_tls(&certificate, &key);
    let started = tokio::task::spawn_blocking(start).await.unwrap();
    let server = started.unwrap_or_else(|why| panic!("{why}"));
    let url = format!("{}?ca={}", server.tls_url("localhost"), ours.in_url());

    let broker = RabbitMq::connect(&url).await.unwrap();
    broker.declare(&queue("q"), QueueSpec::default()).await.unwrap();
    broker.send(vec![(to("q"), text("x"))]).await.unwrap();
    let source = broker.open(&queue("q"), LOCK).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    let done = broker.settle(&queue("q"), vec![Settle::complete(received.lease)]).await.unwrap();
    assert_eq!(done, [Ok(())]);
    broker.close().await.unwrap();

    // The certificate is not trusted, or has another name.
    for url in [
        server.tls_url("localhost"),
        format!("{}?ca={}", server.tls_url("localhost"), others.in_url()),
        format!("{}?ca={}", server.tls_url("127.0.0.1"), ours.in_url()),
    ] {
        let error = refused(url).await;
        assert!(error.contains("certificate"), "{error}");
    }
    let error = refused(format!("{}?ca=/nowhere.pem", server.tls_url("localhost"))).await;
    assert!(error.contains("/nowhere.pem"), "{error}");
    // TLS to a port without TLS fails, and so does plain AMQP to a port with TLS.
    let plain = server.url(0).replace("amqp:", "amqps:").replace("127.0.0.1", "localhost");
    let error = refused(format!("{plain}?ca={}", ours.in_url())).await;
    assert!(error.contains("TLS"), "{error}");
    let error = refused(server.tls_url("localhost").replace("amqps:", "amqp:")).await;
    assert!(error.contains("cannot be reached"), "{error}");
}
