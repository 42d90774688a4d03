//! `--metrics`: a small HTTP server with what a worker has to say about itself.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use malote::Metrics;
use malote::metrics::{Format, Page};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::output::note;

/// Connections at once; others wait.
const CONNECTIONS_MAX: usize = 32;
/// How long a request's head may take.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// What there is to see.
pub(super) struct Observed {
    /// For Prometheus.
    pub page: Page,
    /// It takes messages.
    pub ready: bool,
}

impl Observed {
    /// Of a worker.
    pub(super) fn of(metrics: &Metrics) -> Self {
        let mut page = Page::default();
        metrics.write(&mut page);
        Self { page, ready: metrics.taking }
    }
}

/// Serves until this is dropped.
pub(super) struct Serving(JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) async fn serve(
    at: SocketAddr,
    look: impl Fn() -> Observed + Send + Sync + 'static,
) -> Result<Serving> {
    let listener = TcpListener::bind(at).await.with_context(|| format!("--metrics {at}"))?;
    note(format_args!("metrics at http://{}/metrics", listener.local_addr()?));
    let (look, room) = (Arc::new(look), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    Ok(Serving(tokio::spawn(async move {
        // Connections end with this task.
        let mut connections = tokio::task::JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(room) = room.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                // Too many open files, most likely: some will be closed.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let look = look.clone();
            connections.spawn(async move {
                let answer = service_fn(|request| {
                    let answer = answer(&request, &*look);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let mut http = hyper::server::conn::http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
                // A client that breaks off has its own reasons.
                let _ = http.serve_connection(TokioIo::new(stream), answer).await;
                drop(room);
            });
        }
    })))
}

fn answer(request: &Request<Incoming>, look: &dyn Fn() -> Observed) -> Response<Full<Bytes>> {
    let plain = "text/plain; charset=utf-8";
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
            let format = Format::of_accept(accept.unwrap_or_default());
            (StatusCode::OK, format.content_type(), look().page.render(format))
        }
        (&Method::GET | &Method::HEAD, "/healthz") => (StatusCode::OK, plain, "ok\n".into()),
        (&Method::GET | &Method::HEAD, "/readyz") => match look().ready {
            true => (StatusCode::OK, plain, "ok\n".into()),
            false => (StatusCode::SERVICE_UNAVAILABLE, plain, "no messages are taken\n".into()),
        },
        _ => (StatusCode::NOT_FOUND, plain, "use /metrics, /healthz or /readyz\n".into()),
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    if let Ok(kind) = kind.parse() {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}
