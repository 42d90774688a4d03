//! A test front end behind real sockets: protocol detection with and without TLS, the connection limit, timeouts, and
//! shutdown.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test, in all its functions")]

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use malote_server::net::{
    Admission, ConnectionHandler, ConnectionLimit, DetectedProtocol, PeerInfo, Port, Router,
    Stream, Tls, handler,
};
use malote_server::reload::Reload;
use malote_server::settings::Certificate;
use malote_server::shutdown::{Drained, Shutdown, ShutdownToken, StopSignals};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Replies to every request with what it knows about the connection.
fn toy_http() -> ConnectionHandler {
    handler(async |stream: Stream, peer: PeerInfo, shutdown: ShutdownToken| {
        let text = format!("{} tls={}", peer.front, peer.tls.is_some());
        let service = service_fn(move |_| {
            let text = text.clone();
            async move { Ok::<_, std::convert::Infallible>(hyper::Response::new(body(text))) }
        });
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            _ = serving.as_mut() => return,
            () = shutdown.draining() => serving.as_mut().graceful_shutdown(),
        }
        let _ = serving.await;
    })
}

fn body(text: String) -> Full<Bytes> {
    Full::new(Bytes::from(text))
}

/// Reads the header again, to show that no byte was lost, and replies with its name.
fn toy_amqp(name: &'static str) -> ConnectionHandler {
    handler(async move |mut stream: Stream, _: PeerInfo, _: ShutdownToken| {
        let mut header = [0; 8];
        if stream.read_exact(&mut header).await.is_ok() && header.starts_with(b"AMQP") {
            let _ = stream.write_all(name.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    })
}

struct Server {
    addr: SocketAddr,
    limit: Arc<ConnectionLimit>,
    tls: Arc<Tls>,
    shutdown: Shutdown,
    _data: tempfile::TempDir,
}

struct Options {
    connections_max: usize,
    handshake_timeout: Duration,
    tls_required: bool,
    router: Router,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            connections_max: 100,
            handshake_timeout: Duration::from_secs(10),
            tls_required: false,
            router: Router {
                http: Some(toy_http()),
                amqp10: Some(toy_amqp("amqp10")),
                amqp091: Some(toy_amqp("amqp091")),
                health: false,
            },
        }
    }
}

async fn serve(options: Options) -> Server {
    let data = tempfile::tempdir().unwrap();
    let tls =
        Tls::open(&Certificate::SelfSigned { names: Vec::new() }, data.path()).unwrap().unwrap();
    let limit = ConnectionLimit::new(options.connections_max);
    let admission = Admission {
        tls: Some(Arc::clone(&tls)),
        tls_required: options.tls_required,
        limit: Arc::clone(&limit),
        handshake_timeout: options.handshake_timeout,
    };
    let any = "0".parse().unwrap();
    let port = Port::open("http", &any, options.router, admission).await.unwrap().unwrap();
    let addr = port.local_addr();
    let shutdown = Shutdown::new();
    shutdown.spawn(port.serve(shutdown.clone()));
    shutdown.set_ready();
    Server { addr, limit, tls, shutdown, _data: data }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// Trusts only the certificate in the server's data directory.
    async fn connect_tls(&self) -> tokio_rustls::client::TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        let cert = CertificateDer::from_pem_file(self.tls.certificate_path()).unwrap();
        roots.add(cert).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        connector.connect(name, self.connect().await).await.unwrap()
    }
}

async fn get(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// The reply. Whether the connection ends with FIN or reset depends on the system.
async fn said(mut stream: impl AsyncRead + AsyncWrite + Unpin, header: &[u8]) -> String {
    let _ = stream.write_all(header).await; // who is too slow may find it closed
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn one_port_serves_plain_tls_and_every_protocol() {
    let server = serve(Options::default()).await;
    assert!(get(server.connect().await).await.ends_with("http tls=false"));
    assert!(get(server.connect_tls().await).await.ends_with("http tls=true"));
    let (v091, v10) = (b"AMQP\x00\x00\x09\x01", b"AMQP\x03\x01\x00\x00");
    assert_eq!(said(server.connect().await, v091).await, "amqp091");
    assert_eq!(said(server.connect().await, v10).await, "amqp10");
    assert_eq!(said(server.connect_tls().await, v10).await, "amqp10");
    assert_eq!(said(server.connect().await, b"AMQP\x01\x01\x00\x09").await, "amqp10");
    assert_eq!(said(server.connect().await, b"\0\0\0\x05nobody").await, "");
}

#[tokio::test]
async fn a_reloaded_certificate_serves_the_next_connection() {
    let server = serve(Options::default()).await;
    let mut old = server.connect_tls().await;
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let cert = server.tls.certificate_path();
    std::fs::write(cert.with_extension("key"), other.signing_key.serialize_pem()).unwrap();
    std::fs::write(cert, other.cert.pem()).unwrap();
    assert_eq!(server.tls.reload(false), Ok(true));
    assert!(get(server.connect_tls().await).await.ends_with("tls=true"));
    assert!(get(&mut old).await.ends_with("tls=true"));
}

#[tokio::test]
async fn at_the_limit_a_new_connection_replaces_the_oldest_unauthenticated_one() {
    let server = serve(Options { connections_max: 2, ..Options::default() }).await;
    let mut first = server.connect().await;
    let second = server.connect().await;
    let third = server.connect().await;
    // Closed without a reply. Whether it ends with FIN or reset depends on the system.
    assert!(!matches!(first.read(&mut [0; 1]).await, Ok(1..)));
    assert!(get(third).await.ends_with("http tls=false"));
    assert!(get(second).await.ends_with("http tls=false"));
    assert_eq!(server.limit.counts().refused, 0);
}

#[tokio::test]
async fn silent_and_slow_peers_are_disconnected() {
    let handshake_timeout = Duration::from_millis(100);
    let server = serve(Options { handshake_timeout, ..Options::default() }).await;
    assert_eq!(said(server.connect().await, b"").await, "");
    assert_eq!(said(server.connect().await, b"GE").await, "");
    // A client hello that never continues.
    assert_eq!(said(server.connect().await, b"\x16\x03\x01\x02\x00").await, "");
    while server.limit.counts().open > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn plain_http_is_refused_with_a_hint_if_tls_is_required() {
    let server = serve(Options { tls_required: true, ..Options::default() }).await;
    let answer = get(server.connect().await).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
    assert_eq!(said(server.connect().await, b"AMQP\x03\x01\x00\x00").await, "");
    assert!(get(server.connect_tls().await).await.ends_with("tls=true"));
}

#[tokio::test]
async fn a_single_front_end_refuses_other_protocols_itself() {
    let router = Router { http: Some(toy_http()), ..Router::default() };
    let server = serve(Options { router, ..Options::default() }).await;
    let answer = said(server.connect().await, b"nonsense\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[tokio::test]
async fn a_panic_in_a_handler_costs_one_connection() {
    let broken = handler(async |_: Stream, _: PeerInfo, _: ShutdownToken| panic!("a bug"));
    let router = Router { amqp10: Some(broken), ..Options::default().router };
    let server = serve(Options { router, ..Options::default() }).await;
    assert_eq!(said(server.connect().await, b"AMQP\x03\x01\x00\x00").await, "");
    assert!(get(server.connect().await).await.ends_with("http tls=false"));
    while server.limit.counts().open > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn draining_finishes_requests_and_takes_no_more() {
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
    // Replies when the test says so, like a long poll.
    let (answer, waiting) = tokio::sync::watch::channel(false);
    let (begun, mut begins) = tokio::sync::mpsc::channel(1);
    let slow = handler(move |mut stream: Stream, peer: PeerInfo, _: ShutdownToken| {
        let (mut waiting, begun) = (waiting.clone(), begun.clone());
        async move {
            assert_eq!(peer.protocol, DetectedProtocol::Http);
            stream.read_exact(&mut [0; REQUEST.len()]).await.unwrap();
            begun.send(()).await.unwrap();
            waiting.wait_for(|now| *now).await.unwrap();
            stream.write_all(b"done").await.unwrap();
        }
    });
    let router = Router { http: Some(slow), ..Router::default() };
    let server = serve(Options { router, ..Options::default() }).await;
    let busy = server.connect().await;
    let busy = tokio::spawn(async move { said(busy, REQUEST).await });
    // The handler must have the connection: one without a request may be dropped.
    begins.recv().await.unwrap();

    let (signal, signals) = StopSignals::manual();
    let shutdown = server.shutdown.clone();
    assert!(shutdown.is_ready());
    let run = tokio::spawn(async move { shutdown.run(signals, Duration::from_secs(30)).await });
    signal.send(()).await.unwrap();
    server.shutdown.token().draining().await;
    assert!(!server.shutdown.is_ready());
    // The listener is closed as soon as its task has seen the token.
    while TcpStream::connect(server.addr).await.is_ok() {
        tokio::task::yield_now().await;
    }
    answer.send(true).unwrap();
    assert_eq!(busy.await.unwrap(), "done");
    assert_eq!(run.await.unwrap(), Drained::All);
}

#[tokio::test]
async fn a_second_signal_drops_connections_at_once() {
    let (begun, mut begins) = tokio::sync::mpsc::channel(1);
    let stuck = handler(move |stream: Stream, _: PeerInfo, _: ShutdownToken| {
        let begun = begun.clone();
        async move {
            begun.send(()).await.unwrap();
            std::future::pending::<()>().await;
            drop(stream);
        }
    });
    let router = Router { http: Some(stuck), ..Router::default() };
    let server = serve(Options { router, ..Options::default() }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    begins.recv().await.unwrap();
    let (signal, signals) = StopSignals::manual();
    signal.send(()).await.unwrap();
    signal.send(()).await.unwrap();
    let drained = server.shutdown.run(signals, Duration::from_secs(30)).await;
    assert!(matches!(drained, Drained::Forced { left: 1.. }), "{drained:?}");
    assert!(!matches!(stream.read(&mut [0; 1]).await, Ok(1..)));
}

#[tokio::test]
async fn a_port_without_handlers_is_not_opened() {
    let admission = Admission {
        tls: None,
        tls_required: false,
        limit: ConnectionLimit::new(1),
        handshake_timeout: Duration::from_secs(1),
    };
    let any = "0".parse().unwrap();
    let port = Port::open("sqs", &any, Router::default(), admission.clone()).await.unwrap();
    assert!(port.is_none());
    let off = "off".parse().unwrap();
    let router = Options::default().router;
    assert!(Port::open("sqs", &off, router, admission).await.unwrap().is_none());
}
