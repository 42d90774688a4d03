//! The front end over a real engine and the real router, without a network.
#![allow(clippy::unwrap_used, dead_code)]

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt;
use malote_engine::chance::Chance;
use malote_engine::clock::ManualClock;
use malote_engine::disk::OsDisk;
use malote_engine::{Engine, Running, Settings};
use malote_front_sqs::{Keys, Sqs, router};
use malote_model::access::AllowAll;
use malote_model::{Principal, Timestamp};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

struct Open;

impl Keys for Open {
    fn open(&self) -> bool {
        true
    }
    fn secret(&self, _: &str) -> Option<(Arc<str>, Principal)> {
        None
    }
}

pub struct Broker {
    router: Router,
    engine: Engine,
    clock: Arc<ManualClock>,
    running: Running,
    dir: tempfile::TempDir,
}

impl Broker {
    /// On the clock of the system.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        Self::over(engine, running, Arc::new(ManualClock::starting_at(Timestamp(0))), dir)
    }

    /// On a clock that only [`Broker::advance_ms`] moves.
    pub fn with_manual_clock() -> Self {
        let clock = Arc::new(ManualClock::starting_at(Timestamp(1_700_000_000_000)));
        let dir = tempfile::tempdir().unwrap();
        let (engine, running) = open_at(dir.path(), &clock);
        Self::over(engine, running, clock, dir)
    }

    /// Stops the broker and starts it again on the same data.
    pub fn restart(self) -> Self {
        let Self { router, engine, clock, running, dir } = self;
        drop((router, engine, running));
        let (engine, running) = open_at(dir.path(), &clock);
        Self::over(engine, running, clock, dir)
    }

    fn over(
        engine: Engine,
        running: Running,
        clock: Arc<ManualClock>,
        dir: tempfile::TempDir,
    ) -> Self {
        let web = malote_model::WebGuard { hosts: vec!["localhost".into()], origins: Vec::new() };
        let settings = malote_front_sqs::Settings { web, ..Default::default() };
        let (access, keys, history) = (Arc::new(AllowAll), Arc::new(Open), Arc::default());
        let shutdown = CancellationToken::new();
        let sqs = Sqs::new(engine.clone(), access, keys, history, settings, shutdown);
        Self { router: router(sqs, false), engine, clock, running, dir }
    }

    /// Moves the clock and lets the engine act on what is due.
    pub fn advance_ms(&self, ms: u64) {
        self.clock.advance_ms(ms);
        self.engine.wake();
    }

    pub async fn ask(&self, request: Request<Body>) -> (u16, HeaderMap, String) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), parts.headers, String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// Calls an action in the JSON protocol.
    pub async fn json(&self, action: &str, body: Value) -> (u16, Value) {
        let (status, _, body) = self.json_with_head(action, body).await;
        (status, body)
    }

    pub async fn json_with_head(&self, action: &str, body: Value) -> (u16, HeaderMap, Value) {
        let request = Request::post("/")
            .header("host", "localhost:9324")
            .header("x-amz-target", format!("AmazonSQS.{action}"));
        let (status, headers, text) =
            self.ask(request.body(body.to_string().into()).unwrap()).await;
        assert_eq!(headers["content-type"], "application/x-amz-json-1.0");
        (status, headers, serde_json::from_str(&text).unwrap())
    }

    /// Calls an action in the Query protocol.
    pub async fn form(&self, path: &str, form: &str) -> (u16, String) {
        let request = Request::post(path).header("host", "localhost:9324");
        let (status, headers, text) = self.ask(request.body(form.to_owned().into()).unwrap()).await;
        assert_eq!(headers["content-type"], "text/xml");
        (status, text)
    }

    /// An action that must succeed.
    pub async fn done(&self, action: &str, body: Value) -> Value {
        let (status, answer) = self.json(action, body).await;
        assert_eq!(status, 200, "{action}: {answer}");
        answer
    }

    /// Creates a queue and returns its URL.
    pub async fn queue(&self, name: &str, attributes: Value) -> String {
        let body = json!({ "QueueName": name, "Attributes": attributes });
        self.done("CreateQueue", body).await["QueueUrl"].as_str().unwrap().to_owned()
    }
}

fn open_at(data: &Path, clock: &Arc<ManualClock>) -> (Engine, Running) {
    let clock = clock.clone();
    let disk = Arc::new(OsDisk::open(data).unwrap());
    let options = Settings::at(data).journal;
    Engine::open_at(disk, &options, Chance::of_system(), move |_| clock).unwrap()
}

/// The text of the first element of that name.
pub fn element<'a>(xml: &'a str, name: &str) -> &'a str {
    let (_, rest) =
        xml.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("no {name}: {xml}"));
    rest.split_once("</").unwrap().0
}
