//! The overview, once and as events, groups of dead letters, the history of all queues, and the files of the dashboard.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use common::{Broker, Q, receive, send, settle, with_queue};
use http_body_util::BodyExt;
use malote_front_http::{Authenticate, Authenticated, Limits};
use malote_model::{Access, Action, Denied, Principal, Resource};
use malote_wire_native::overview::Endpoint;
use serde_json::{Value, json};
use tower::ServiceExt;

async fn dead_letter(broker: &Broker, reason: &str, texts: &[&str]) {
    for text in texts {
        let got = receive(broker, json!({"max": 1})).await;
        let lease = got[0]["lease"].clone();
        let outcome =
            json!({"leases": [lease], "outcome": "dead_letter", "reason": reason, "text": text});
        settle(broker, outcome).await;
    }
}

fn names(overview: &Value) -> Vec<&str> {
    overview["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_overview_has_sums_and_a_sorted_page() {
    let broker = with_queue(json!({})).await;
    broker.api.set_endpoints(vec![Endpoint {
        protocol: "http".into(),
        address: "127.0.0.1:8080".into(),
        tls: false,
    }]);
    broker.put("/api/v1/queues/emails", json!({"sessions": "dynamic"})).await.expect(201);
    broker.put("/api/v1/queues/archive", json!({})).await.expect(201);
    send(&broker, json!([{"body": "a"}, {"body": "b"}, {"body": "c"}])).await;
    dead_letter(&broker, "Bad", &["no"]).await;
    broker.post("/api/v1/queues/archive/pause", json!({})).await.expect(204);

    let all = broker.get("/api/v1/overview").await.expect(200);
    assert_eq!(
        (&all["queues"], &all["matched"], &all["open"]),
        (&3.into(), &3.into(), &true.into())
    );
    assert_eq!(names(&all), ["archive", "emails", "orders"]);
    assert_eq!((&all["counts"]["ready"], &all["counts"]["dead_lettered"]), (&2.into(), &1.into()));
    assert_eq!(all["endpoints"][0]["address"], "127.0.0.1:8080");
    assert_eq!(all["rows"][0]["paused"], true);
    assert_eq!(all["rows"][1]["with_sessions"], true);
    assert_eq!(all["attention"], json!([{"kind": "dead_letters", "queue": "orders", "count": 1}]));

    let sorted = "/api/v1/overview?sort=ready&descending=true&max=1";
    let first = broker.get(sorted).await.expect(200);
    assert_eq!((names(&first), &first["matched"]), (vec!["orders"], &3.into()));
    let rest = broker.get(&format!("{sorted}&offset=1")).await.expect(200);
    assert_eq!(names(&rest), ["archive"]);
    let found = broker.get("/api/v1/overview?search=*s&max=10").await.expect(200);
    assert_eq!((names(&found), &found["queues"]), (vec!["emails", "orders"], &3.into()));
    assert_eq!(names(&broker.get("/api/v1/overview?queue=emails").await.expect(200)), ["emails"]);
    assert_eq!(broker.get("/api/v1/overview?max=501").await.problem(400), "out_of_range");
    assert_eq!(broker.get("/api/v1/overview?sort=size").await.problem(400), "bad_query");
}

/// May send to `orders` and receive from it if the switch is on, and nothing else. Known until it is revoked.
struct OnlyOrders {
    may_receive: bool,
    known: AtomicBool,
}

impl Access for OnlyOrders {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        let may = action == Action::Send || (action == Action::Receive && self.may_receive);
        match may && on.name() == Some("orders") {
            true => Ok(()),
            false => Err(Denied::new(who, action, on)),
        }
    }

    fn knows(&self, _: &Principal) -> bool {
        self.known.load(Ordering::Relaxed)
    }
}

struct Ana;

impl Authenticate for Ana {
    fn authenticate<'a>(&'a self, _: &'a HeaderMap, _: std::net::IpAddr) -> Authenticated<'a> {
        Box::pin(async { Ok(Principal::named("ana")) })
    }
}

/// A broker with dead letters in `orders` and `secret`, and the same broker for Ana.
async fn for_ana(may_receive: bool) -> (Broker, axum::Router, Arc<OnlyOrders>) {
    let broker = with_queue(json!({})).await;
    broker.put("/api/v1/queues/secret", json!({})).await.expect(201);
    send(&broker, json!([{"body": "a"}])).await;
    dead_letter(&broker, "Bad", &["no"]).await;
    let access = Arc::new(OnlyOrders { may_receive, known: AtomicBool::new(true) });
    let mut api = broker.api.clone();
    api.access = access.clone();
    api.authenticate = Arc::new(Ana);
    let router = malote_front_http::router(api);
    (broker, router, access)
}

async fn ask(router: &axum::Router, path: &str) -> (u16, Value) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap())
}

#[tokio::test]
async fn callers_see_only_their_queues() {
    let (_broker, router, _) = for_ana(false).await;
    let (_, overview) = ask(&router, "/api/v1/overview").await;
    assert_eq!((names(&overview), &overview["queues"]), (vec!["orders"], &1.into()));
    assert_eq!((&overview["caller"], &overview["open"]), (&"ana".into(), &false.into()));
    let (_, groups) = ask(&router, "/api/v1/dead-letters").await;
    assert_eq!((&groups["groups"], &groups["hidden_queues"]), (&json!([]), &1.into()));
    let (status, _) = ask(&router, "/api/v1/dead-letters?queue=orders").await;
    assert_eq!(status, 403);
    let (_, history) = ask(&router, "/api/v1/history").await;
    assert_eq!(history["step_ms"], 10_000);

    let (_broker, router, _) = for_ana(true).await;
    let (_, groups) = ask(&router, "/api/v1/dead-letters").await;
    assert_eq!(groups["groups"][0]["reason"], "Bad");
    assert_eq!((&groups["total"], &groups["hidden_queues"]), (&1.into(), &0.into()));
}

#[tokio::test]
async fn dead_letters_are_grouped_by_queue_reason_and_text() {
    let broker = with_queue(json!({})).await;
    let bodies: Vec<Value> = (0..6).map(|n| json!({"body": n})).collect();
    send(&broker, bodies.into()).await;
    dead_letter(&broker, "Declined", &["order 1 refused", "order 27 refused", "no card"]).await;
    dead_letter(&broker, "Timeout", &["after 5 s"]).await;
    let found = broker.get("/api/v1/dead-letters").await.expect(200);
    assert_eq!((&found["read"], &found["total"]), (&4.into(), &4.into()));
    let groups: Vec<_> = found["groups"].as_array().unwrap().iter().collect();
    let texts: Vec<&str> = groups.iter().map(|group| group["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["order 27 refused", "no card", "after 5 s"]);
    assert_eq!(groups[0]["seqs"], json!([1, 2]));
    let few = broker.get("/api/v1/dead-letters?queue=orders&max=1").await.expect(200);
    assert_eq!((&few["read"], &few["total"]), (&1.into(), &4.into()));
    let moved = json!({"seqs": groups[0]["seqs"]});
    broker.post(&format!("{Q}/dead-letters/redrive"), moved).await.expect(200);
    let left = broker.get("/api/v1/dead-letters?queue=orders").await.expect(200);
    assert_eq!(left["total"], 2);
}

/// The next event that is no comment: its name and data.
async fn next_event(body: &mut Body) -> Option<(String, Value)> {
    loop {
        let frame = body.frame().await?.unwrap().into_data().unwrap();
        let text = std::str::from_utf8(&frame).unwrap();
        if let Some(rest) = text.strip_prefix("event: ") {
            let (name, data) = rest.trim_end().split_once("\ndata: ").unwrap();
            return Some((name.to_owned(), serde_json::from_str(data).unwrap()));
        }
    }
}

#[tokio::test]
async fn events_follow_changes_until_the_caller_is_revoked() {
    let (broker, router, access) = for_ana(true).await;
    let request = Request::get("/api/v1/overview/events?queue=orders").body(Body::empty()).unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let (name, first) = next_event(&mut body).await.unwrap();
    assert_eq!((name.as_str(), &first["rows"][0]["counts"]["ready"]), ("overview", &0.into()));
    send(&broker, json!([{"body": "a"}, {"body": "b"}])).await;
    loop {
        let (_, next) = next_event(&mut body).await.unwrap();
        if next["rows"][0]["counts"]["ready"] == 2 {
            break;
        }
    }
    access.known.store(false, Ordering::Relaxed);
    let last = loop {
        let (name, data) = next_event(&mut body).await.unwrap();
        if name == "ended" {
            break data;
        }
    };
    assert_eq!(last["code"], "unauthenticated");
    assert!(next_event(&mut body).await.is_none());
}

#[tokio::test]
async fn streams_are_limited_and_end_with_the_server() {
    let limits = Limits { streams_max: 1, ..Limits::default() };
    let broker = Broker::limited(limits, |_| {});
    let open = || Request::get("/api/v1/overview/events").body(Body::empty()).unwrap();
    let first = broker.router.clone().oneshot(open()).await.unwrap();
    let second = broker.router.clone().oneshot(open()).await.unwrap();
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 429));
    let mut body = first.into_body();
    next_event(&mut body).await.unwrap();
    broker.api.shutdown.cancel();
    while next_event(&mut body).await.is_some() {}
}

#[tokio::test]
async fn the_dashboard_is_served_without_credentials_and_with_a_strict_policy() {
    let (_broker, router, access) = for_ana(false).await;
    access.known.store(false, Ordering::Relaxed);
    let get = async |path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/ui/queues/a%2Fb/sessions/c", "text/html; charset=utf-8"),
        ("/ui/app.js", "text/javascript; charset=utf-8"),
        ("/ui/screens/queue.js", "text/javascript; charset=utf-8"),
        ("/ui/style.css", "text/css; charset=utf-8"),
        ("/ui/icon.svg", "image/svg+xml"),
    ] {
        let answer = get(path, &[]).await;
        assert_eq!(
            (answer.status().as_u16(), answer.headers()["content-type"].to_str().unwrap()),
            (200, kind)
        );
        let policy = answer.headers()["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'self';") && !policy.contains("unsafe"),
            "{policy}"
        );
    }
    assert_eq!(get("/ui/missing.js", &[]).await.status(), 404);

    let plain = get("/ui/app.js", &[]).await;
    let tag = plain.headers()["etag"].to_str().unwrap().to_owned();
    let plain = plain.into_body().collect().await.unwrap().to_bytes();
    let zipped = get("/ui/app.js", &[("accept-encoding", "br, gzip")]).await;
    assert_eq!(zipped.headers()["content-encoding"], "gzip");
    let zipped = zipped.into_body().collect().await.unwrap().to_bytes();
    assert!(zipped.len() < plain.len() / 2);
    let mut unzipped = Vec::new();
    flate2::read::GzDecoder::new(&zipped[..]).read_to_end(&mut unzipped).unwrap();
    assert_eq!(unzipped, plain);
    assert_eq!(get("/ui/app.js", &[("if-none-match", &tag)]).await.status(), 304);
}

#[tokio::test]
async fn foreign_pages_may_link_to_the_dashboard_and_nothing_else() {
    let broker = Broker::start();
    let status = async |path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::get(path).header("host", "localhost:8080");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        broker.router.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    let script = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")];
    let fetch = [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")];
    assert_eq!(status("/ui/queues", &link).await, 200);
    assert_eq!(status("/ui/app.js", &script).await, 403);
    assert_eq!(status("/", &fetch).await, 403);
    for headers in [&link[..], &script, &fetch] {
        assert_eq!(status("/api/v1/overview", headers).await, 403);
        assert_eq!(status("/api/v1/overview/events", headers).await, 403);
    }
}
