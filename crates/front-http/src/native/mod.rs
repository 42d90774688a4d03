//! The native connection (docs/protocols/http.md): one WebSocket, pipelined and batched both ways.
//!
//! The frames are types of `wire-native`; `codec.rs` encodes and decodes them. `sends.rs` handles sends,
//! `transactions.rs` transactions and `request.rs` all other frames. `connection.rs` is the state that outlives a socket,
//! and `socket.rs` serves one socket. This file accepts connections and lists them.
//!
//! Bounds: size of a message (the socket is closed), pending requests (nothing more is read), pending sends (they wait
//! or are refused, and the frames after them are read), unwritten bytes (deliveries stop, because the engine gets credit
//! only for written messages), silence (pings, then the connection is lost). A lost connection keeps its leases for
//! `reconnect_grace`, and can be resumed.

mod codec;
mod connection;
mod request;
mod sends;
mod socket;
mod transactions;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{Extensions, HeaderMap, header};
use axum::response::Response;
use malote_http::ConnectionSlot;
use malote_model::Principal;
use parking_lot::Mutex;
use socket::ResumableConnection;
use subtle::ConstantTimeEq;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Api;
use crate::extract::{Caller, address_of};
use crate::problem::{Code, Problem};

pub use codec::{Rejected, decode_frame};
pub use malote_wire_native::frame::Encoding;

const JSON: &str = "malote.v1.json";
const MESSAGE_PACK: &str = "malote.v1.msgpack";

/// Size of the buffers of a socket.
const BUFFER_BYTES: usize = 8 << 10;

/// Opens a native connection.
pub async fn connect(
    State(api): State<Api>,
    Caller(caller): Caller,
    headers: HeaderMap,
    extensions: Extensions,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let upgrade = upgrade.map_err(|rejection| {
        Problem::new(Code::NotWebSocket, rejection.body_text()).header(header::UPGRADE, "websocket")
    })?;
    let upgrade = upgrade
        .protocols([JSON, MESSAGE_PACK])
        // Small, because thousands of connections can be idle. Large messages grow the buffers.
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(api.limits.frame_bytes_max)
        .max_frame_size(api.limits.frame_bytes_max);
    let encoding = match upgrade.selected_protocol().and_then(|chosen| chosen.to_str().ok()) {
        Some(MESSAGE_PACK) => Encoding::MessagePack,
        Some(_) => Encoding::Json,
        // A client without a sub-protocol is usually a person with a tool, who can read JSON.
        None if !headers.contains_key(header::SEC_WEBSOCKET_PROTOCOL) => Encoding::Json,
        None => {
            let why = format!("no known sub-protocol: offer {JSON} or {MESSAGE_PACK}");
            return Err(Problem::new(Code::BadHeader, why));
        }
    };
    if api.shutdown.is_cancelled() {
        return Err(Problem::new(Code::Stopping, "the broker is stopping"));
    }
    if api.native.all.lock().len() >= api.limits.connections_max {
        return Err(Problem::new(Code::Busy, "too many native connections are open"));
    }
    let address = address_of(&extensions);
    // Keeps the connection counted until it ends.
    let slot = extensions.get::<ConnectionSlot>().cloned();
    let task = api.tasks.token();
    Ok(upgrade.on_upgrade(move |socket| async move {
        socket::run(api, (caller, address), encoding, socket).await;
        drop((task, slot));
    }))
}

/// All native connections, including those that wait to be resumed.
#[derive(Default)]
pub(crate) struct Connections {
    next: AtomicU64,
    all: Mutex<HashMap<u64, ConnectionEntry>>,
}

struct ConnectionEntry {
    secret: String,
    caller: Principal,
    encoding: Encoding,
    /// The connection, while it has no socket.
    parked: Option<ResumableConnection>,
    /// Tells the task of the socket to detach, because another socket takes over.
    taken_over: CancellationToken,
    /// Notified when the socket is detached.
    detached: Arc<Notify>,
}

/// Time limit for the old socket to detach when the connection is resumed.
const TAKE_OVER_TIME_MAX: Duration = Duration::from_secs(1);

impl Connections {
    /// Registers a new connection. Returns its id, its secret and the take-over signal.
    fn register(&self, caller: &Principal, encoding: Encoding) -> (u64, String, CancellationToken) {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        // A secret must not depend on the seed of a simulation.
        #[allow(clippy::disallowed_methods)]
        let secret = uuid::Uuid::new_v4().simple().to_string();
        let taken_over = CancellationToken::new();
        let entry = ConnectionEntry {
            secret: secret.clone(),
            caller: caller.clone(),
            encoding,
            parked: None,
            taken_over: taken_over.clone(),
            detached: Arc::default(),
        };
        self.all.lock().insert(id, entry);
        (id, secret, taken_over)
    }

    /// Stores a connection without a socket until it is resumed.
    fn park(&self, id: u64, session: ResumableConnection) {
        if let Some(entry) = self.all.lock().get_mut(&id) {
            entry.parked = Some(session);
            entry.detached.notify_one();
        }
    }

    /// Removes a connection that was not resumed in time.
    fn give_up(&self, id: u64, taken_over: &CancellationToken) -> Option<ResumableConnection> {
        let mut all = self.all.lock();
        // If another socket took the connection over, it must not be removed.
        if taken_over.is_cancelled() {
            return None;
        }
        all.remove(&id).and_then(|entry| entry.parked)
    }

    fn remove(&self, id: u64) {
        self.all.lock().remove(&id);
    }

    /// Takes a connection over, from its old socket if needed.
    async fn claim(
        &self,
        id: u64,
        secret: &str,
        caller: &Principal,
        encoding: Encoding,
    ) -> Result<(ResumableConnection, CancellationToken), Problem> {
        let refused = |why: &str| Problem::new(Code::ResumeRefused, why);
        let deadline = tokio::time::Instant::now() + TAKE_OVER_TIME_MAX;
        loop {
            let detached = {
                let mut all = self.all.lock();
                let unknown =
                    || refused("the connection does not exist, has ended, or the secret is wrong");
                let entry = all.get_mut(&id).ok_or_else(unknown)?;
                if !bool::from(entry.secret.as_bytes().ct_eq(secret.as_bytes()))
                    || entry.caller != *caller
                {
                    return Err(unknown());
                }
                if entry.encoding != encoding {
                    return Err(refused(
                        "the connection uses the other sub-protocol: resume it with the same one",
                    ));
                }
                entry.taken_over.cancel();
                if let Some(session) = entry.parked.take() {
                    entry.taken_over = CancellationToken::new();
                    entry.detached = Arc::default();
                    return Ok((session, entry.taken_over.clone()));
                }
                entry.detached.clone()
            };
            if tokio::time::timeout_at(deadline, detached.notified()).await.is_err() {
                return Err(refused("its old socket did not close in time"));
            }
        }
    }
}
