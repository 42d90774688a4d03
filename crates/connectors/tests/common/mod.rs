//! A Malote server on its own port, and helpers for messages.
#![allow(dead_code)]

pub mod authority;
pub mod proxy;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use malote_engine::{Engine, Running, Settings};
use malote_front_http::{AllAnonymous, Api, Limits, Readiness, router, serve_connection};
use malote_model::access::AllowAll;
use malote_model::{Address, Body, BodyKind, Message, QueueName, SessionId};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// For waits that end with an event; slow machines need time.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than any test.
pub const LOCK: Duration = Duration::from_secs(3600);
/// Fetch only what is ready now.
pub const NO_WAIT: Duration = Duration::ZERO;

pub struct MaloteServer {
    pub at: SocketAddr,
    pub engine: Engine,
    _stop: DropGuard,
    _running: Running,
    _dir: tempfile::TempDir,
}

impl MaloteServer {
    pub async fn start() -> Self {
        Self::with_limits(Limits::default()).await
    }

    pub async fn with_limits(limits: Limits) -> Self {
        Self::start_with(limits, None).await
    }

    /// With TLS and a self-signed certificate for `localhost`, which is also returned.
    pub async fn with_tls() -> (Self, String) {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(pair.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![pair.cert.der().clone()], key.unwrap())
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        (Self::start_with(Limits::default(), Some(acceptor)).await, pair.cert.pem())
    }

    async fn start_with(limits: Limits, tls: Option<tokio_rustls::TlsAcceptor>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        let (ready, shutdown) = (Arc::new(Readiness::ready()), CancellationToken::new());
        let api = Api::new(
            engine.clone(),
            Arc::new(AllowAll),
            Arc::new(AllAnonymous),
            limits.clone(),
            ready,
            shutdown.clone(),
        );
        let router = router(api);
        let name = if tls.is_some() { "localhost:0" } else { "127.0.0.1:0" };
        let listener = TcpListener::bind(name).await.unwrap();
        let at = listener.local_addr().unwrap();
        let stop = shutdown.clone();
        tokio::spawn(async move {
            loop {
                let (stream, peer) = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap(),
                    () = stop.cancelled() => return,
                };
                let (router, limits, stop) = (router.clone(), limits.clone(), stop.clone());
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        None => serve_connection(stream, router, peer, &limits, stop).await,
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return Ok(()) };
                            serve_connection(stream, router, peer, &limits, stop).await
                        }
                    }
                });
            }
        });
        Self { at, engine, _stop: shutdown.drop_guard(), _running: running, _dir: dir }
    }

    pub fn url(&self) -> String {
        format!("malote://{}", self.at)
    }
}

pub fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub fn to(name: &str) -> Address {
    Address::Queue(queue(name))
}

pub fn session(name: &str) -> SessionId {
    SessionId::new(name).unwrap()
}

pub fn text(body: &str) -> Message {
    let body = Body { bytes: body.to_owned().into(), kind: BodyKind::Text };
    Message { body, ..Message::default() }
}

pub fn session_message(name: &str, body: &str) -> Message {
    Message { session: Some(session(name)), ..text(body) }
}
