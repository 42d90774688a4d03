//! AMQP over WebSocket: the same bytes in binary messages, for clients that reach only port 443.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::BytesMut;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{Front, limits, serve_connection};

/// What clients ask for: the service's own name, or the registered one.
const PROTOCOLS: [&str; 2] = ["AMQPWSB10", "amqp"];

/// Connections by WebSocket. The tracker knows of each until it has ended.
#[derive(Clone)]
struct Sockets {
    front: Arc<Front>,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

/// The route that upgrades: any method of HTTP, because what follows is not HTTP.
pub fn websocket(front: Arc<Front>, shutdown: CancellationToken, tasks: TaskTracker) -> Router {
    let sockets = Sockets { front, shutdown, tasks };
    Router::new()
        .route("/$servicebus/websocket", any(upgrade))
        .route("/$servicebus/websocket/", any(upgrade))
        .with_state(sockets)
}

async fn upgrade(
    State(sockets): State<Sockets>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    if sockets.front.keys.is_open() && is_foreign_page(&headers) {
        let why = "pages of other origins are let in only where credentials are needed";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return rejection.into_response(),
    };
    let token = sockets.tasks.token();
    // A message carries one frame or a part of the stream; nothing needs more than a few frames.
    let bytes_max = limits::FRAME_BYTES_MAX as usize * 16;
    let upgrade =
        upgrade.protocols(PROTOCOLS).max_message_size(bytes_max).max_frame_size(bytes_max);
    upgrade.on_upgrade(move |socket| async move {
        let (ours, theirs) = tokio::io::duplex(limits::FRAME_BYTES_MAX as usize);
        let served = serve_connection(theirs, sockets.front, sockets.shutdown);
        let (served, ()) = tokio::join!(served, carry(socket, ours));
        if let Err(error) = served {
            tracing::debug!(front = "websocket", %error, "connection ended");
        }
        drop(token);
    })
}

/// Whether a browser comes on behalf of a page from elsewhere: of another host, or of a public name that was made to
/// point here. Everyone else may leave `Origin` out.
fn is_foreign_page(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(origin) = text(header::ORIGIN) else { return false };
    let host = text(header::HOST).unwrap_or_default();
    let same = origin.split_once("://").is_some_and(|(_, authority)| authority == host);
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let ours = !name.contains('.') || name.parse::<IpAddr>().is_ok();
    !same || !ours
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
