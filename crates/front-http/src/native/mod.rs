//! The native connection (docs/protocols/http.md): one WebSocket, pipelined and batched both ways.
//!
//! The frames are types of `wire-native`; `codec.rs` encodes and decodes them. `sends.rs` handles sends,
//! `transactions.rs` transactions and `request.rs` all other frames. `link.rs` is the state that outlives a socket, and
//! `socket.rs` serves one socket. This file accepts connections and lists them.
//!
//! Bounds: the size of a message (the socket ends), requests without an answer (nothing more is read), sends without
//! an answer (they wait or are refused, and what stands behind them is read), bytes on their way out (deliveries stop,
//! because the engine gets credit only for what was written), silence (pings, then the connection is lost). A lost
//! connection keeps its leases for `reconnect_grace`; `resume` takes it up again.

mod codec;
mod link;
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
use malote_http::KeptConnection;
use malote_model::Principal;
use parking_lot::Mutex;
use socket::Session;
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

/// What a socket reads and writes at a time.
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
        // Small: thousands of idle connections must cost little, and large messages grow them.
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(api.limits.frame_bytes_max)
        .max_frame_size(api.limits.frame_bytes_max);
    let encoding = match upgrade.selected_protocol().and_then(|chosen| chosen.to_str().ok()) {
        Some(MESSAGE_PACK) => Encoding::MessagePack,
        Some(_) => Encoding::Json,
        // A client that names none is a person with a tool: JSON can be read.
        None if !headers.contains_key(header::SEC_WEBSOCKET_PROTOCOL) => Encoding::Json,
        None => {
            let why = format!("none of the sub-protocols is known: offer {JSON} or {MESSAGE_PACK}");
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
    // It is counted as a connection for as long as it lasts.
    let kept = extensions.get::<KeptConnection>().cloned();
    let task = api.tasks.token();
    Ok(upgrade.on_upgrade(move |socket| async move {
        socket::run(api, (caller, address), encoding, socket).await;
        drop((task, kept));
    }))
}

/// Every native connection, with a socket or waiting for one.
#[derive(Default)]
pub(crate) struct Connections {
    next: AtomicU64,
    all: Mutex<HashMap<u64, Entry>>,
}

struct Entry {
    secret: String,
    caller: Principal,
    encoding: Encoding,
    /// Present while the connection has no socket.
    parked: Option<Session>,
    /// Tells the task of the socket to let go.
    kick: CancellationToken,
    /// Tells whoever waits that it has.
    let_go: Arc<Notify>,
}

/// How long a half-dead socket may take to let go of a connection that is resumed.
const KICK_PATIENCE: Duration = Duration::from_secs(1);

impl Connections {
    /// A number and a secret for a new connection, and the signal that ends its socket.
    fn register(&self, caller: &Principal, encoding: Encoding) -> (u64, String, CancellationToken) {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        // A secret is not part of any run that a seed replays.
        #[allow(clippy::disallowed_methods)]
        let secret = uuid::Uuid::new_v4().simple().to_string();
        let kick = CancellationToken::new();
        let entry = Entry {
            secret: secret.clone(),
            caller: caller.clone(),
            encoding,
            parked: None,
            kick: kick.clone(),
            let_go: Arc::default(),
        };
        self.all.lock().insert(id, entry);
        (id, secret, kick)
    }

    /// The socket is gone: the connection waits to be resumed.
    fn park(&self, id: u64, session: Session) {
        if let Some(entry) = self.all.lock().get_mut(&id) {
            entry.parked = Some(session);
            entry.let_go.notify_one();
        }
    }

    /// Nobody came: the connection is over, unless it has a socket again.
    fn give_up(&self, id: u64, kick: &CancellationToken) -> Option<Session> {
        let mut all = self.all.lock();
        // Whoever takes a connection up signals the one before: then it is not ours to end.
        if kick.is_cancelled() {
            return None;
        }
        all.remove(&id).and_then(|entry| entry.parked)
    }

    fn remove(&self, id: u64) {
        self.all.lock().remove(&id);
    }

    /// Takes a connection up again, from its old socket if need be.
    async fn claim(
        &self,
        id: u64,
        secret: &str,
        caller: &Principal,
        encoding: Encoding,
    ) -> Result<(Session, CancellationToken), Problem> {
        let refused = |why: &str| Problem::new(Code::ResumeRefused, why);
        let deadline = tokio::time::Instant::now() + KICK_PATIENCE;
        loop {
            let let_go = {
                let mut all = self.all.lock();
                let unknown = || {
                    refused("there is no such connection, or it is over, or the secret is wrong")
                };
                let entry = all.get_mut(&id).ok_or_else(unknown)?;
                if !bool::from(entry.secret.as_bytes().ct_eq(secret.as_bytes()))
                    || entry.caller != *caller
                {
                    return Err(unknown());
                }
                if entry.encoding != encoding {
                    return Err(refused(
                        "it speaks the other sub-protocol: resume it with the same",
                    ));
                }
                entry.kick.cancel();
                if let Some(session) = entry.parked.take() {
                    entry.kick = CancellationToken::new();
                    entry.let_go = Arc::default();
                    return Ok((session, entry.kick.clone()));
                }
                entry.let_go.clone()
            };
            if tokio::time::timeout_at(deadline, let_go.notified()).await.is_err() {
                return Err(refused("its old socket does not let go of it"));
            }
        }
    }
}
