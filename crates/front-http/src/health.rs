//! Liveness, readiness and the backlog of queues. The formats are in docs/concepts/model.md.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json as Answer;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use malote_engine::{EngineError, QueueFacts};
use malote_model::QueueName;
use malote_wire_native::about::HealthReport;

use crate::Api;
use crate::extract::{Caller, Queue};
use crate::problem::Problem;

/// The state of the process, which the server sets.
#[derive(Debug, Default)]
pub struct Readiness {
    /// The journal has been recovered.
    pub recovered: AtomicBool,
    /// Every port is open.
    pub listening: AtomicBool,
    /// The process is stopping.
    pub draining: AtomicBool,
}

impl Readiness {
    /// A ready process, for tests and embedded use.
    pub fn ready() -> Self {
        Self { recovered: true.into(), listening: true.into(), draining: false.into() }
    }
}

/// The process is alive. Only a failed disk or engine needs a restart.
pub async fn livez(State(api): State<Api>) -> (StatusCode, &'static str) {
    if api.engine.is_poisoned() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the broker failed: restart it\n");
    }
    (StatusCode::OK, "ok\n")
}

/// Time limit for the answer of the engine.
const ENGINE_PATIENCE: Duration = Duration::from_secs(1);

/// Ready: recovery done, ports open, not draining, engine answering. `?verbose` lists the checks.
pub async fn readyz(State(api): State<Api>, RawQuery(query): RawQuery) -> Response {
    let on = |flag: &AtomicBool| flag.load(Ordering::Acquire);
    let checks = [
        ("recovered", on(&api.readiness.recovered)),
        ("listening", on(&api.readiness.listening)),
        ("not-draining", !on(&api.readiness.draining) && !api.shutdown.is_cancelled()),
        ("engine", engine_answers(&api).await),
    ];
    let ready = checks.iter().all(|(_, ok)| *ok);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let verbose = query.is_some_and(|q| {
        q.split('&').any(|part| part == "verbose" || part.starts_with("verbose="))
    });
    let mut text = String::new();
    for (name, ok) in checks.iter().filter(|(_, ok)| verbose || !ok) {
        text.push_str(&format!(
            "[{}]{name} {}\n",
            if *ok { '+' } else { '-' },
            if *ok { "ok" } else { "failed" }
        ));
    }
    // The server works, so it is ready. But the journal grows, and an operator must act.
    if api.engine.disk().diverged > 0 {
        text.push_str("[!]replay degraded: a replay gave another state, and nothing is recycled\n");
    }
    text.push_str(if ready { "ok\n" } else { "not ready\n" });
    (status, text).into_response()
}

/// Asks for a queue that need not exist: any answer shows that the engine works.
async fn engine_answers(api: &Api) -> bool {
    let Ok(probe) = QueueName::new("malote-readiness-probe") else { return false };
    match tokio::time::timeout(ENGINE_PATIENCE, api.engine.describe(probe)).await {
        Ok(Ok(_) | Err(EngineError::Refused(_))) => true,
        Ok(Err(_)) | Err(_) => false,
    }
}

fn health_of(facts: &QueueFacts) -> HealthReport {
    let count = facts.ready + facts.locked;
    if count > facts.spec.backlog_warning {
        let message = Some("Queue backlog is high".into());
        return HealthReport { status: "Warning".into(), message, message_count: Some(count) };
    }
    HealthReport { status: "OK".into(), message: None, message_count: Some(count) }
}

fn respond(health: HealthReport) -> Response {
    let status =
        if health.status == "OK" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Answer(health)).into_response()
}

fn failed(error: &EngineError) -> Response {
    respond(HealthReport {
        status: "Error".into(),
        message: Some(error.to_string()),
        message_count: None,
    })
}

pub async fn one(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<Response, Problem> {
    api.allow_view(&caller, &queue)?;
    Ok(match api.engine.describe(queue).await {
        Ok(facts) => respond(health_of(&facts)),
        Err(error) => failed(&error),
    })
}

/// The least healthy queue that the caller may see: the one closest to its limit.
pub async fn all(State(api): State<Api>, Caller(caller): Caller) -> Result<Response, Problem> {
    api.allow_lists(&caller)?;
    let facts = match api.engine.list().await {
        Ok(facts) => facts,
        Err(error) => return Ok(failed(&error)),
    };
    let fill = |f: &QueueFacts| (f.ready + f.locked) as f64 / f.spec.backlog_warning.max(1) as f64;
    let seen = facts.iter().filter(|f| api.allow_view(&caller, &f.name).is_ok());
    let worst = seen.max_by(|a, b| {
        let warns = |f: &QueueFacts| health_of(f).status != "OK";
        warns(a).cmp(&warns(b)).then(fill(a).total_cmp(&fill(b)))
    });
    Ok(respond(worst.map_or(
        HealthReport { status: "OK".into(), message: None, message_count: Some(0) },
        health_of,
    )))
}
