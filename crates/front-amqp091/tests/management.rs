//! The management API, over a socket.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
mod management_client;

use std::sync::Arc;

use common::{Ana, World};
use malote_model::access::AllowAll;
use management_client::Management;

#[tokio::test]
async fn the_overview_names_the_version_and_the_node() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    let overview = api.get("/api/overview").await;
    assert_eq!(overview["rabbitmq_version"], "3.13.7");
    assert_eq!(overview["node"], "malote@localhost");
    let only = api.get("/api/overview?columns=node").await;
    assert_eq!(only, serde_json::json!({ "node": "malote@localhost" }));
    assert_eq!(api.get("/api/whoami").await["tags"][0], "administrator");
}

#[tokio::test]
async fn requests_are_authenticated_and_foreign_pages_are_refused() {
    let world = World::with(Arc::new(AllowAll), Arc::new(Ana));
    let mut api = Management::of(&world).await;
    api.credential = None;
    let (head, body) = api.send("GET", "/api/overview", "").await;
    assert!(head.starts_with("HTTP/1.1 401"), "{head}");
    assert!(head.contains("www-authenticate: Basic realm=\"RabbitMQ Management\""), "{head}");
    assert_eq!(body, "");
    api.credential = Some("ana:wrong".into());
    let (head, body) = api.send("GET", "/api/overview", "").await;
    assert!(head.starts_with("HTTP/1.1 401"), "{head}");
    assert_eq!(body, r#"{"error":"not_authorized","reason":"Login failed"}"#);
    api.credential = Some("ana:secret".into());
    assert_eq!(api.get("/api/whoami").await["name"], "ana");
    api.headers = vec!["Origin: http://evil.example".into()];
    let (head, _) = api.send("DELETE", "/api/queues/%2F/q", "").await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    api.headers = vec!["Sec-Fetch-Site: cross-site".into()];
    let (head, _) = api.send("GET", "/api/overview", "").await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
}

#[tokio::test]
async fn errors_have_the_json_of_rabbitmq() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    let (head, body) = api.send("GET", "/api/nope", "").await;
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    assert_eq!(body, r#"{"error":"Object Not Found","reason":"Not Found"}"#);
    let (head, body) = api.send("POST", "/api/overview", "").await;
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
    assert!(head.contains("allow: HEAD, GET, OPTIONS"), "{head}");
    assert_eq!(body, "");
}
