//! Origin and host checks of AMQP over WebSocket.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use common::World;
use malote_front_servicebus::websocket;
use malote_model::WebGuard;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_without_credentials_refuses_cross_origin_pages() {
    let world = World::new().await;
    let router = websocket(
        world.front.clone(),
        world.shutdown.clone(),
        TaskTracker::new(),
        Default::default(),
    );
    let ask = async |origin: Option<&str>, host: &str, path: &str| {
        let mut request = Request::get(path)
            .header("host", host)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status()
    };
    // Without a connection nothing can be upgraded, so this status means that the check passed.
    let let_in = StatusCode::UPGRADE_REQUIRED;
    let path = "/$servicebus/websocket";
    assert_eq!(ask(None, "localhost:5672", path).await, let_in);
    assert_eq!(ask(None, "localhost:5672", "/$servicebus/websocket/").await, let_in);
    for host in ["localhost:5672", "malote:5672", "127.0.0.1:5672", "[::1]:5672"] {
        assert_eq!(ask(Some(&format!("https://{host}")), host, path).await, let_in, "{host}");
    }
    let shut_out = StatusCode::FORBIDDEN;
    assert_eq!(ask(Some("https://evil.example"), "localhost:5672", path).await, shut_out);
    assert_eq!(ask(Some("null"), "localhost:5672", path).await, shut_out);
    let rebound = "evil.example:5672";
    assert_eq!(ask(Some(&format!("http://{rebound}")), rebound, path).await, shut_out);
    assert_eq!(ask(None, "localhost:5672", "/other").await, StatusCode::NOT_FOUND);
    // A foreign host name, where the broker's names are known, without a browser's headers.
    let web = WebGuard { hosts: vec!["localhost".into()], origins: Vec::new() };
    let router = websocket(world.front.clone(), world.shutdown.clone(), TaskTracker::new(), web);
    let request = Request::get(path).header("host", rebound).body(Body::empty()).unwrap();
    assert_eq!(router.oneshot(request).await.unwrap().status(), shut_out);
}
