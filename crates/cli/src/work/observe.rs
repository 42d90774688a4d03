//! `--metrics`: a small HTTP server with the metrics and health of a worker.

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

/// Maximum number of connections; others wait.
const CONNECTIONS_MAX: usize = 32;
/// Time limit for the head of a request.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// The state of a worker at one moment.
pub(super) struct WorkerStatus {
    /// Metrics for Prometheus.
    pub page: Page,
    /// Whether the worker fetches messages.
    pub ready: bool,
}

impl WorkerStatus {
    pub(super) fn of(metrics: &Metrics) -> Self {
        let mut page = Page::default();
        metrics.write(&mut page);
        Self { page, ready: metrics.taking }
    }
}

/// Stops the HTTP server when dropped.
pub(super) struct MetricsServer(JoinHandle<()>);

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) async fn serve(
    at: SocketAddr,
    status: impl Fn() -> WorkerStatus + Send + Sync + 'static,
) -> Result<MetricsServer> {
    let listener = TcpListener::bind(at).await.with_context(|| format!("--metrics {at}"))?;
    note(format_args!("metrics at http://{}/metrics", listener.local_addr()?));
    let (status, room) = (Arc::new(status), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    Ok(MetricsServer(tokio::spawn(async move {
        // Dropping this task closes its connections.
        let mut connections = tokio::task::JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(room) = room.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                // Probably too many open files: some will be closed.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let status = status.clone();
            connections.spawn(async move {
                let answer = service_fn(|request| {
                    let answer = answer(&request, &*status);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let mut http = hyper::server::conn::http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
                // A client may disconnect at any time.
                let _ = http.serve_connection(TokioIo::new(stream), answer).await;
                drop(room);
            });
        }
    })))
}

fn answer(request: &Request<Incoming>, status: &dyn Fn() -> WorkerStatus) -> Response<Full<Bytes>> {
    let plain = "text/plain; charset=utf-8";
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
            let format = Format::of_accept(accept.unwrap_or_default());
            (StatusCode::OK, format.content_type(), status().page.render(format))
        }
        (&Method::GET | &Method::HEAD, "/healthz") => (StatusCode::OK, plain, "ok\n".into()),
        (&Method::GET | &Method::HEAD, "/readyz") => match status().ready {
            true => (StatusCode::OK, plain, "ok\n".into()),
            false => {
                (StatusCode::SERVICE_UNAVAILABLE, plain, "the worker fetches no messages\n".into())
            }
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
