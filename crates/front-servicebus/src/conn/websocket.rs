//! AMQP over WebSocket: the same bytes in binary messages, for clients that reach only port 443.

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{ConnectInfo, State};
use axum::http::{Extensions, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::BytesMut;
use futures_util::{SinkExt, StreamExt};
use malote_model::{Foreign, WebGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{Front, Peer, limits, serve_peer};

/// What clients ask for: the service's own name, or the registered one.
const PROTOCOLS: [&str; 2] = ["AMQPWSB10", "amqp"];

/// What the server keeps about a connection that becomes a WebSocket: whether its peer is known, the wish to close it, and
/// its place among all connections.
type Kept = (Arc<AtomicBool>, CancellationToken, Arc<dyn Any + Send + Sync>);

/// Connections by WebSocket. The tracker knows of each until it has ended.
#[derive(Clone)]
struct Sockets {
    front: Arc<Front>,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    web: Arc<WebGuard>,
}

/// The route that upgrades: any method of HTTP, because what follows is not HTTP.
pub fn websocket(
    front: Arc<Front>,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    web: WebGuard,
) -> Router {
    let sockets = Sockets { front, shutdown, tasks, web: web.into() };
    Router::new()
        .route("/$servicebus/websocket", any(upgrade))
        .route("/$servicebus/websocket/", any(upgrade))
        .with_state(sockets)
}

async fn upgrade(
    State(sockets): State<Sockets>,
    headers: HeaderMap,
    extensions: Extensions,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    if let Err(foreign) = check_page(&sockets, &headers) {
        let why = format!("{foreign} while it has no credentials");
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return rejection.into_response(),
    };
    let token = sockets.tasks.token();
    let kept = extensions.get::<Kept>().cloned();
    let (known, evicted, place) =
        kept.unwrap_or_else(|| (Arc::default(), CancellationToken::new(), Arc::new(())));
    let address = extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    let peer = Peer { address: address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), known };
    // A message carries one frame or a part of the stream; nothing needs more than a few frames.
    let bytes_max = limits::FRAME_BYTES_MAX as usize * 16;
    let upgrade =
        upgrade.protocols(PROTOCOLS).max_message_size(bytes_max).max_frame_size(bytes_max);
    upgrade.on_upgrade(move |socket| async move {
        let (ours, theirs) = tokio::io::duplex(limits::FRAME_BYTES_MAX as usize);
        let served = serve_peer(theirs, sockets.front, sockets.shutdown, peer);
        // The server makes room by closing those that are not known yet.
        let carried = async {
            tokio::select! {
                () = carry(socket, ours) => {}
                () = evicted.cancelled() => {}
            }
        };
        let (served, ()) = tokio::join!(served, carried);
        if let Err(error) = served {
            tracing::debug!(front = "websocket", %error, "connection ended");
        }
        drop((token, place));
    })
}

/// Refuses pages from elsewhere: of another origin, or of a public name that was made to point here. With credentials
/// a page needs a token of its own, so any page may come.
fn check_page(sockets: &Sockets, headers: &HeaderMap) -> Result<(), Foreign> {
    if !sockets.front.keys.is_open() {
        return Ok(());
    }
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("(not ASCII)"));
    sockets.web.check(text)?;
    let host = text("host").unwrap_or_default();
    if text("origin").is_some() && !WebGuard::is_local_name(host) {
        return Err(Foreign::Host { host: host.to_owned() });
    }
    Ok(())
}

/// Carries bytes both ways until either end is done: neither way waits for the other.
async fn carry(socket: WebSocket, pipe: DuplexStream) {
    let (mut sink, mut stream) = socket.split();
    let (mut from_server, mut to_server) = tokio::io::split(pipe);
    let inwards = async {
        while let Some(Ok(message)) = stream.next().await {
            let written = match message {
                Message::Binary(bytes) => to_server.write_all(&bytes).await,
                Message::Ping(_) | Message::Pong(_) => Ok(()),
                // AMQP is not text.
                Message::Text(_) | Message::Close(_) => return,
            };
            if written.is_err() {
                return;
            }
        }
    };
    let outwards = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(limits::FRAME_BYTES_MAX as usize);
            match from_server.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if sink.send(Message::Binary(buffer.split().freeze())).await.is_err() {
                return;
            }
        }
        let _ = sink.send(Message::Close(None)).await;
    };
    tokio::select! {
        () = inwards => {}
        () = outwards => {}
    }
}
