//! Invalid, too large, too slow or forbidden requests: they are explained and have no effect.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use common::{Broker, Q, receive, send, with_queue};
use malote_model::WebGuard;
use serde_json::{Value, json};

#[tokio::test]
async fn wrong_requests_are_explained_and_change_nothing() {
    let broker = with_queue(json!({})).await;
    let lost = broker.get("/api/v1/queue").await;
    assert_eq!(lost.problem(404), "route_not_found");
    assert!(lost.json()["fix"].as_str().unwrap().contains("/api/v1/queues"));
    let method = broker.call("DELETE", &format!("{Q}/messages"), None).await;
    assert_eq!(method.problem(405), "method_not_allowed");
    assert_eq!(method.headers[header::ALLOW], "POST, GET, HEAD");
    let json_type = [("content-type", "application/json")];
    let malformed =
        broker.raw("POST", &format!("{Q}/receive"), &json_type, "{\n  \"max\": }").await;
    assert_eq!(malformed.problem(400), "malformed_json");
    assert!(malformed.json()["detail"].as_str().unwrap().contains("line 2 column 10"));
    let unknown = broker.post(&format!("{Q}/receive"), json!({"waitms": 1})).await;
    assert_eq!(unknown.problem(400), "unknown_field");
    assert!(unknown.json()["detail"].as_str().unwrap().contains("did you mean `wait_ms`?"));
    assert_eq!(
        broker.post(&format!("{Q}/receive"), json!({"max": "1"})).await.problem(400),
        "bad_field"
    );
    assert_eq!(
        broker.post(&format!("{Q}/receive"), json!({"max": -1})).await.problem(400),
        "bad_field"
    );
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let media = broker.raw("POST", &format!("{Q}/receive"), &form, "{}").await;
    assert_eq!(media.problem(415), "unsupported_media_type");
    let foreign = [
        ("content-type", "text/plain"),
        ("origin", "https://evil.example"),
        ("host", "localhost:8080"),
    ];
    assert_eq!(
        broker.raw("POST", &format!("{Q}/messages"), &foreign, "x").await.problem(403),
        "cross_origin"
    );
    let own = [("origin", "http://localhost:8080"), ("host", "localhost:8080")];
    broker.raw("GET", Q, &own, "").await.expect(200);
    for site in ["cross-site", "same-site"] {
        // An image or a frame of a page: a GET without `Origin`.
        let page = [("sec-fetch-site", site), ("host", "localhost:8080")];
        assert_eq!(broker.raw("GET", Q, &page, "").await.problem(403), "cross_origin");
        let connect = broker.raw("GET", "/api/v1/connect", &page, "").await;
        assert_eq!(connect.problem(403), "cross_origin");
    }
    broker.raw("GET", Q, &[("sec-fetch-site", "none")], "").await.expect(200);
    assert_eq!(broker.get("/api/v1/connect").await.problem(426), "not_websocket");
    assert_eq!(broker.get(Q).await.expect(200)["totals"]["sent"], 0);
}

#[tokio::test]
async fn bodies_are_bounded_in_size_and_time() {
    let limits = malote_front_http::Limits {
        message_body_bytes_max: 1000,
        control_body_bytes_max: 100,
        bodies_bytes_max: 2048,
        body_pause_max: Duration::from_millis(50),
        ..Default::default()
    };
    let broker = Broker::limited(limits, |_| {});
    broker.put(Q, json!({})).await.expect(201);
    let messages = format!("{Q}/messages");
    assert_eq!(
        broker.raw("POST", &messages, &[], vec![0; 1001]).await.problem(413),
        "body_too_large"
    );
    broker.raw("POST", &messages, &[], vec![0; 1000]).await.expect(201);
    let long = json!({"session_token": "x".repeat(100)});
    assert_eq!(broker.post(&format!("{Q}/receive"), long).await.problem(413), "body_too_large");
    // A body that announces too many bytes is refused before it is read.
    let announced = broker.raw("POST", &messages, &[("content-length", "5000")], "x").await;
    assert_eq!(announced.problem(413), "body_too_large");
    let never =
        Body::from_stream(futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
    let request = Request::post(&messages).body(never).unwrap();
    let answer = tower::ServiceExt::oneshot(broker.router.clone(), request).await.unwrap();
    assert_eq!(answer.status(), 408);
}

#[tokio::test]
async fn foreign_host_names_are_refused_if_own_names_are_set() {
    let web = WebGuard { hosts: vec!["localhost".to_owned()], origins: Vec::new() };
    let limits = malote_front_http::Limits { web, ..Default::default() };
    let broker = Broker::limited(limits, |_| {});
    for (host, fine) in [
        ("localhost:8080", true),
        ("localhost", true),
        ("127.0.0.1:8080", true),
        ("[::1]:8080", true),
        ("[::1]", true),
        ("rebound.example", false),
        ("localhost.evil.example:8080", false),
    ] {
        let answer = broker.raw("GET", "/api/v1/queues", &[("host", host)], "").await;
        assert_eq!(answer.status, if fine { 200 } else { 421 }, "{host}");
    }
}

#[tokio::test]
async fn answers_are_bounded_in_bytes_without_losing_messages() {
    // Locks that do not expire during the test, even on a slow machine.
    let broker = with_queue(json!({"lock_ms": 3_600_000})).await;
    let body = "x".repeat(300_000);
    let small: Vec<Value> = (0..200).map(|n| json!({"body": n.to_string()})).collect();
    send(&broker, Value::Array(small)).await;
    let got = receive(&broker, json!({"max": 1000})).await;
    assert_eq!(got.len(), 200);
    let seen = broker.get(&format!("{Q}/messages?max=150")).await.expect(200);
    assert_eq!(
        (seen["messages"].as_array().unwrap().len(), &seen["next"]),
        (150, &json!(got[150]["seq"]))
    );
    for _ in 0..10 {
        send(&broker, Value::Array(vec![json!({"body": body}); 10])).await;
    }
    let got = receive(&broker, json!({"max": 1000})).await;
    assert!((25..30).contains(&got.len()), "{}", got.len());
    let mut taken = got.len();
    while taken < 100 {
        taken += receive(&broker, json!({"max": 1000})).await.len();
    }
    assert_eq!(taken, 100);
    let page =
        broker.get(&format!("{Q}/messages?max=1000&from={}", got[0]["seq"])).await.expect(200);
    let (some, next) = (page["messages"].as_array().unwrap().len(), page["next"].as_u64().unwrap());
    let page = broker.get(&format!("{Q}/messages?max=1000&from={next}")).await.expect(200);
    assert_eq!(some + page["messages"].as_array().unwrap().len(), 100);
}

mod access {
    use std::sync::Arc;

    use axum::http::HeaderMap;
    use malote_front_http::{Authenticate, Authenticated, Credential, Unauthenticated};
    use malote_model::{Access, Action, Denied, Principal, Resource};

    use super::*;

    /// Ana may do everything on `orders`; Bob may send there; Eve may manage it; the password is the name.
    struct Rules;

    impl Access for Rules {
        fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
            let fine = on.name() == Some("orders")
                && !who.is_anonymous()
                && match who.name() {
                    "ana" => true,
                    "eve" => action == Action::Manage,
                    _ => action == Action::Send,
                };
            if fine { Ok(()) } else { Err(Denied::new(who, action, on)) }
        }
    }

    impl Authenticate for Rules {
        fn authenticate<'a>(
            &'a self,
            headers: &'a HeaderMap,
            _: std::net::IpAddr,
        ) -> Authenticated<'a> {
            Box::pin(async {
                match Credential::of(headers)? {
                    Credential::None => Ok(Principal::anonymous()),
                    Credential::Basic { user, password } if user == password => {
                        Ok(Principal::named(user))
                    }
                    _ => Err(Unauthenticated { why: "unknown user or wrong password".into() }),
                }
            })
        }
    }

    const ANA: (&str, &str) = ("authorization", "Basic YW5hOmFuYQ==");
    const BOB: (&str, &str) = ("authorization", "Basic Ym9iOmJvYg==");
    const JSON: (&str, &str) = ("content-type", "application/json");

    #[tokio::test]
    async fn a_redrive_needs_the_permission_to_send() {
        let broker = Broker::with(|api| {
            api.access = Arc::new(Rules);
            api.authenticate = Arc::new(Rules);
        });
        const EVE: (&str, &str) = ("authorization", "Basic ZXZlOmV2ZQ==");
        broker.raw("PUT", Q, &[EVE, JSON], "{}").await.expect(201);
        let redrive = format!("{Q}/dead-letters/redrive");
        for body in ["{}", r#"{"to": "orders"}"#, r#"{"dry_run": true}"#] {
            let denied = broker.raw("POST", &redrive, &[EVE, JSON], body).await;
            assert_eq!(denied.problem(403), "forbidden", "{body}");
            broker.raw("POST", &redrive, &[ANA, JSON], body).await.expect(200);
        }
    }

    #[tokio::test]
    async fn every_route_checks_caller_and_permission() {
        let broker = Broker::with(|api| {
            api.access = Arc::new(Rules);
            api.authenticate = Arc::new(Rules);
        });
        let anonymous = broker.put(Q, json!({})).await;
        assert_eq!(anonymous.problem(401), "unauthenticated");
        assert_eq!(anonymous.headers.get_all("www-authenticate").iter().count(), 2);
        let wrong = broker.raw("GET", Q, &[("authorization", "Basic YW5hOmJvYg==")], "").await;
        assert_eq!(wrong.problem(401), "unauthenticated");
        broker.raw("PUT", Q, &[ANA, JSON], "{}").await.expect(201);
        broker.raw("POST", &format!("{Q}/messages"), &[BOB], "x").await.expect(201);
        assert_eq!(
            broker.raw("POST", &format!("{Q}/receive"), &[BOB], "").await.problem(403),
            "forbidden"
        );
        assert_eq!(
            broker.raw("GET", &format!("{Q}/dead-letters"), &[BOB], "").await.problem(403),
            "forbidden"
        );
        // Dead letters belong to their queue.
        broker
            .raw("GET", &format!("{Q}%2F$deadletterqueue/messages"), &[ANA], "")
            .await
            .expect(200);
        // A missing and a forbidden queue give the same answer.
        assert_eq!(
            broker.raw("GET", "/api/v1/queues/secret", &[BOB], "").await.problem(403),
            "forbidden"
        );
        let batch =
            r#"{"messages": [{"queue": "orders", "body": "1"}, {"queue": "other", "body": "2"}]}"#;
        assert_eq!(
            broker.raw("POST", "/api/v1/send", &[BOB, JSON], batch).await.problem(403),
            "forbidden"
        );
        // A backup contains every queue: grants on one queue are not enough.
        let backup = broker.raw("GET", "/api/v1/backup", &[ANA], "").await;
        assert_eq!(backup.problem(403), "forbidden");
        assert!(backup.json()["detail"].as_str().unwrap().contains("manage '*'"));
        // Every route with a queue checks the permission first.
        let document = broker.document.clone();
        for (path, item) in document["paths"].as_object().unwrap() {
            for method in item.as_object().unwrap().keys().filter(|_| path.contains("{queue}")) {
                let path = path
                    .replace("{queue}", "secret")
                    .replace("{session}", "s")
                    .replace("{seq}", "1");
                let path = if path.ends_with("partition") { format!("{path}?key=k") } else { path };
                let body = match item[method]["requestBody"]["required"].as_bool() {
                    Some(true) if path.ends_with("batch") => r#"{"messages": [{}]}"#,
                    Some(true) if path.ends_with("resend") => r#"{"message": {}}"#,
                    Some(true) if path.ends_with("settle") => {
                        r#"{"leases": ["x"], "outcome": "complete"}"#
                    }
                    Some(true) => r#"{"leases": ["x"]}"#,
                    _ if path.ends_with("release") || path.ends_with("s/renew") => {
                        r#"{"token": "x"}"#
                    }
                    _ if path.ends_with("deferred/receive") || path.ends_with("cancel") => {
                        r#"{"seqs": [1]}"#
                    }
                    _ => "",
                };
                let answer = broker.raw(&method.to_uppercase(), &path, &[BOB, JSON], body).await;
                assert_eq!(
                    answer.status,
                    403,
                    "{method} {path}: {}",
                    String::from_utf8_lossy(&answer.bytes)
                );
            }
        }
        let list = broker.raw("GET", "/api/v1/queues", &[BOB], "").await.expect(200);
        assert_eq!(list["queues"].as_array().unwrap().len(), 1);
        assert_eq!(broker.get("/livez").await.status, 200);
    }

    /// An empty list would be misleading.
    #[tokio::test]
    async fn lists_need_a_caller_and_contain_what_it_may_see() {
        let broker = Broker::with(|api| {
            api.access = Arc::new(Rules);
            api.authenticate = Arc::new(Rules);
        });
        broker.raw("PUT", Q, &[ANA, JSON], "{}").await.expect(201);
        for path in [
            "/api/v1/queues",
            "/api/v1/topics",
            "/api/v1/topics/sales/subscriptions",
            "/api/v1/topics/sales/rules",
            "/api/v1/topics/sales/subscriptions/all/rules",
            "/api/v1/queues/orders/sessions",
            "/api/v1/queues/orders/dead-letters",
            "/api/v1/queues/orders/messages",
            "/api/v1/sagas/pay",
            "/health/queue",
            "/metrics",
            "/metrics/per-object",
            "/metrics/queues",
        ] {
            let answer = broker.get(path).await;
            assert_eq!(answer.problem(401), "unauthenticated", "{path}");
            assert_eq!(answer.headers.get_all("www-authenticate").iter().count(), 2, "{path}");
            assert!(answer.json()["detail"].as_str().unwrap().contains("sign in"), "{path}");
        }
        let queues = |list: serde_json::Value| list["queues"].as_array().unwrap().len();
        // Another queue, which no caller may see.
        let secret = malote_model::QueueName::new("secret").unwrap();
        broker.api.engine.declare(secret, Default::default()).await.unwrap();
        let seen = broker.raw("GET", "/api/v1/queues", &[BOB], "").await.expect(200);
        assert_eq!(queues(seen), 1);
        let page = broker.raw("GET", "/metrics/per-object", &[BOB], "").await;
        assert!(page.text().contains("queue=\"orders\"") && !page.text().contains("secret"));
        assert_eq!(
            broker.raw("GET", "/api/v1/topics", &[BOB], "").await.expect(200)["topics"],
            json!([])
        );
    }
}
