//! AMQP over WebSocket, in binary messages, for clients that can reach only port 443.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{ConnectInfo, State};
use axum::http::{Extensions, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::BytesMut;
use futures_util::{SinkExt, StreamExt};
use malote_http::{ConnectionSlot, check_origin, header_text};
use malote_model::{Foreign, WebGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{Front, Peer, limits, serve_peer};

/// Subprotocols that clients request: the name of the service and the registered one.
const PROTOCOLS: [&str; 2] = ["AMQPWSB10", "amqp"];

/// The tracker holds each connection until it ends.
#[derive(Clone)]
struct WebSocketState {
    front: Arc<Front>,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    web: Arc<WebGuard>,
}

/// The route of the WebSocket upgrade. It accepts any HTTP method.
pub fn websocket(
    front: Arc<Front>,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    web: WebGuard,
) -> Router {
    let state = WebSocketState { front, shutdown, tasks, web: web.into() };
    Router::new()
        .route("/$servicebus/websocket", any(upgrade))
        .route("/$servicebus/websocket/", any(upgrade))
        .with_state(state)
}

async fn upgrade(
    State(state): State<WebSocketState>,
    headers: HeaderMap,
    extensions: Extensions,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    if let Err(foreign) = check_upgrade(&state, &headers) {
        let why = format!("{foreign}; the server runs without credentials");
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return rejection.into_response(),
    };
    let token = state.tasks.token();
    let ConnectionSlot { authenticated: known, evicted, permit } =
        extensions.get::<ConnectionSlot>().cloned().unwrap_or_default();
    let address = extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    let peer = Peer { address: address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), known };
    // A message carries one frame or a part of the stream, so a few frames are enough.
    let bytes_max = limits::FRAME_BYTES_MAX as usize * 16;
    let upgrade =
        upgrade.protocols(PROTOCOLS).max_message_size(bytes_max).max_frame_size(bytes_max);
    upgrade.on_upgrade(move |socket| async move {
        let (ours, theirs) = tokio::io::duplex(limits::FRAME_BYTES_MAX as usize);
        let served = serve_peer(theirs, state.front, state.shutdown, peer);
        // The server evicts unauthenticated connections to make room.
        let carried = async {
            tokio::select! {
                () = copy_both_ways(socket, ours) => {}
                () = evicted.cancelled() => {}
            }
        };
        let (served, ()) = tokio::join!(served, carried);
        if let Err(error) = served {
            tracing::debug!(front = "websocket", %error, "connection ended");
        }
        drop((token, permit));
    })
}

/// Refuses cross-origin pages, and public host names that were made to resolve to this server (DNS rebinding). With
/// credentials, a page needs its own token, so any origin is allowed.
fn check_upgrade(state: &WebSocketState, headers: &HeaderMap) -> Result<(), Foreign> {
    if !state.front.keys.is_open() {
        return Ok(());
    }
    check_origin(&state.web, headers)?;
    let host = header_text(headers, "host").unwrap_or_default();
    if headers.contains_key("origin") && !WebGuard::is_local_name(host) {
        return Err(Foreign::Host { host: host.to_owned() });
    }
    Ok(())
}

/// Copies bytes in both directions until either end is closed.
async fn copy_both_ways(socket: WebSocket, pipe: DuplexStream) {
    let (mut sink, mut stream) = socket.split();
    let (mut from_server, mut to_server) = tokio::io::split(pipe);
    let inwards = async {
        while let Some(Ok(message)) = stream.next().await {
            let written = match message {
                Message::Binary(bytes) => to_server.write_all(&bytes).await,
                Message::Ping(_) | Message::Pong(_) => Ok(()),
                // AMQP is binary.
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
