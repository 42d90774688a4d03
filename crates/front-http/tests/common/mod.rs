//! A broker in a temporary directory behind the real router, and a client that checks every exchange against the
//! OpenAPI document.
#![allow(dead_code)]

pub mod check;
pub mod client;
pub mod disk;
pub mod exposition;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt;
use malote_engine::chance::Chance;
use malote_engine::{Engine, Running, Settings};
use malote_front_http::{AllAnonymous, Api, Limits, Readiness, router};
use malote_model::access::AllowAll;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

pub struct Broker {
    /// Dropped first, because the engine cannot stop while a sync waits.
    switch: Option<disk::Switch>,
    pub api: Api,
    pub router: Router,
    pub running: Running,
    pub document: Value,
    _dir: tempfile::TempDir,
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|e| panic!("{e}: {:?}", String::from_utf8_lossy(&self.bytes)))
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap()
    }

    /// Checks the status and returns the body.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.bytes));
        if self.bytes.is_empty() { Value::Null } else { self.json() }
    }

    /// Checks the status and returns the code of the problem.
    #[track_caller]
    pub fn problem(&self, status: u16) -> String {
        let body = self.expect(status);
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/problem+json; charset=utf-8");
        body["code"].as_str().unwrap().to_owned()
    }
}

impl Broker {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Api)) -> Self {
        Self::limited(Limits::default(), change)
    }

    pub fn limited(limits: Limits, change: impl FnOnce(&mut Api)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        Self::over(dir, engine, running, limits, change)
    }

    /// A broker with a [`GatedDisk`].
    pub fn on_disk(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (disk, switch) = disk::GatedDisk::open(dir.path());
        let options = malote_engine::journal::Options::default();
        let (engine, running) = Engine::open_on(disk, &options, Chance::of_system()).unwrap();
        let broker = Self::over(dir, engine, running, limits, |_| {});
        Self { switch: Some(switch), ..broker }
    }

    /// The switch of a broker from [`Broker::on_disk`].
    pub fn disk(&self) -> &disk::Switch {
        self.switch.as_ref().expect("the disk has a switch")
    }

    fn over(
        dir: tempfile::TempDir,
        engine: Engine,
        running: Running,
        limits: Limits,
        change: impl FnOnce(&mut Api),
    ) -> Self {
        let ready = Arc::new(Readiness::ready());
        let shutdown = CancellationToken::new();
        let mut api =
            Api::new(engine, Arc::new(AllowAll), Arc::new(AllAnonymous), limits, ready, shutdown);
        change(&mut api);
        let router = router(api.clone());
        let document = malote_front_http::openapi::document();
        Self { switch: None, api, router, running, document, _dir: dir }
    }

    /// Sends a request and checks the exchange against the document.
    #[track_caller]
    pub fn request(&self, request: Request<Body>) -> impl Future<Output = Answer> + use<> {
        let router = self.router.clone();
        let document = self.document.clone();
        async move {
            let (parts, body) = request.into_parts();
            let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
            let sent = body.collect().await.unwrap().to_bytes();
            let request = Request::from_parts(parts, Body::from(sent.clone()));
            let response = router.oneshot(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes().to_vec();
            let answer = Answer { status: parts.status, headers: parts.headers, bytes };
            check::exchange(&document, method.as_str(), &path, &sent, &answer);
            answer
        }
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        let mut bytes = Vec::new();
        if let Some(body) = body {
            request = request.header(header::CONTENT_TYPE, "application/json");
            bytes = serde_json::to_vec(&body).unwrap();
        }
        self.request(request.body(Body::from(bytes)).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.call("PUT", path, Some(body)).await
    }

    /// Sends a raw body with headers.
    pub async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.request(request.body(body.into()).unwrap()).await
    }
}

/// The queue of most tests.
pub const Q: &str = "/api/v1/queues/orders";

/// A broker with the queue `orders`.
pub async fn with_queue(spec: Value) -> Broker {
    let broker = Broker::start();
    broker.put(Q, spec).await.expect(201);
    broker
}

/// Sends, and returns the sequence numbers.
pub async fn send(broker: &Broker, messages: Value) -> Vec<u64> {
    let sent = broker
        .post(&format!("{Q}/messages/batch"), json!({"messages": messages}))
        .await
        .expect(201);
    sent["messages"].as_array().unwrap().iter().map(|m| m["seq"].as_u64().unwrap()).collect()
}

pub async fn receive(broker: &Broker, asked: Value) -> Vec<Value> {
    let answer = broker.post(&format!("{Q}/receive"), asked).await.expect(200);
    answer["messages"].as_array().unwrap().clone()
}

pub async fn settle(broker: &Broker, asked: Value) -> Vec<Value> {
    let answer = broker.post(&format!("{Q}/settle"), asked).await.expect(200);
    answer["results"].as_array().unwrap().clone()
}
