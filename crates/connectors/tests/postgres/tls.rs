//! TLS connections accept only trusted certificates with the right name.

use malote_connectors::postgres::PostgresBroker;
use malote_connectors::{Broker, Settle};
use malote_model::QueueSpec;

use crate::common::authority::TestAuthority;
use crate::common::{LOCK, TIMEOUT, queue, text, to};
use crate::{client, server};

async fn refused(url: String) -> String {
    match PostgresBroker::connect(&url).await {
        Ok(_) => panic!("{url} was accepted"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn only_a_server_with_a_trusted_certificate_is_accepted() {
    let (ours, others) = (TestAuthority::new(), TestAuthority::new());
    let tls = malote_services::Postgres::start_with_tls(&ours.certificate, &ours.key);
    let tls = tls.unwrap_or_else(|why| panic!("{why}"));
    let here = tls.url("postgres");
    let named = here.replace("127.0.0.1", "localhost");
    let url = format!("{named}?sslmode=verify-full&sslrootcert={}", ours.in_url());

    let broker = PostgresBroker::connect(&url).await.unwrap();
    broker.declare(&queue("q"), QueueSpec::default()).await.unwrap();
    broker.send(vec![(to("q"), text("x"))]).await.unwrap();
    let source = broker.open(&queue("q"), LOCK).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    let done = broker.settle(&queue("q"), vec![Settle::complete(received.lease)]).await.unwrap();
    assert_eq!(done, [Ok(())]);
    let admin = client(&here).await;
    let open =
        "select count(*) filter (where ssl), count(*) filter (where not ssl) from pg_stat_ssl
        join pg_stat_activity using (pid) where application_name = 'malote'";
    let open = admin.query_one(open, &[]).await.unwrap();
    assert!(open.get::<_, i64>(0) > 0, "no connection uses TLS");
    assert_eq!(open.get::<_, i64>(1), 0, "a connection does not use TLS");
    broker.close().await.unwrap();

    // An authority implies TLS.
    PostgresBroker::connect(&format!("{named}?sslrootcert={}", ours.in_url())).await.unwrap();
    // The certificate is not trusted, or has another name.
    for url in [
        format!("{named}?sslmode=require"),
        format!("{named}?sslmode=verify-full&sslrootcert={}", others.in_url()),
        format!("{here}?sslmode=verify-full&sslrootcert={}", ours.in_url()),
    ] {
        let error = refused(url).await;
        assert!(error.contains("certificate"), "{error}");
    }
    let error = refused(format!("{named}?sslmode=require&sslrootcert=/nowhere.pem")).await;
    assert!(error.contains("/nowhere.pem"), "{error}");
    // A server without TLS is refused.
    let plain = tokio::task::spawn_blocking(server).await.unwrap().url("postgres");
    let error = refused(format!("{plain}?sslmode=require&sslrootcert={}", ours.in_url())).await;
    assert!(error.contains("does not support TLS"), "{error}");
}
