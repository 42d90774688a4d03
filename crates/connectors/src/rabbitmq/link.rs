//! A connection that is made anew when it is lost, on a thread that no handler can starve.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPSoftError};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::target::Target;
use super::{refused, transport};
use crate::broker::BrokerError;
use crate::dial::{DialError, Tls, dial};

/// How long a server may take for anything that it answers.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How long one node may take to let somebody in.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long after a failed attempt nobody tries again; doubled each time.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A thread with a runtime: connections and what arrives over them go on whatever handlers do.
pub(super) struct Io {
    pub handle: tokio::runtime::Handle,
    _end: DropGuard,
}

impl Io {
    pub(super) fn start() -> Result<Self, BrokerError> {
        let start = |error: std::io::Error| {
            refused("no_thread", format!("the connection's thread cannot be started: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(start)?;
        let (handle, end) = (runtime.handle().clone(), CancellationToken::new());
        let until = end.clone();
        std::thread::Builder::new()
            .name("malote-rabbitmq".into())
            .spawn(move || runtime.block_on(until.cancelled()))
            .map_err(start)?;
        Ok(Self { handle, _end: end.drop_guard() })
    }

    /// Runs there, to its end: what nobody waits for any more is dropped then, and so let go.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        what: impl Future<Output = Result<T, BrokerError>> + Send + 'static,
    ) -> Result<T, BrokerError> {
        self.handle.spawn(what).await.unwrap_or(Err(BrokerError::Closed))
    }
}

/// A connection, as long as there is one.
pub(super) struct Link {
    target: Arc<Target>,
    name: &'static str,
    io: tokio::runtime::Handle,
    slot: tokio::sync::Mutex<Slot>,
    closed: AtomicBool,
}

struct Slot {
    connection: Option<Arc<Connection>>,
    /// When the next attempt may be made, after one that failed.
    again_at: Option<Instant>,
    pause: Duration,
    why: BrokerError,
}

impl Link {
    pub(super) fn new(target: Arc<Target>, name: &'static str, io: &Io) -> Self {
        let slot =
            Slot { connection: None, again_at: None, pause: PAUSE_FIRST, why: BrokerError::Closed };
        let (slot, closed) = (tokio::sync::Mutex::new(slot), AtomicBool::new(false));
        Self { target, name, io: io.handle.clone(), slot, closed }
    }

    /// The connection, made anew if it was lost. For a while after a failure, the same failure.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, BrokerError> {
        let mut slot = self.slot.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(BrokerError::Closed);
        }
        if let Some(connection) = slot.connection.as_ref().filter(|one| one.status().connected()) {
            return Ok(connection.clone());
        }
        slot.connection = None;
        if slot.again_at.is_some_and(|at| Instant::now() < at) {
            return Err(slot.why.clone());
        }
        let connecting = self.io.spawn(connect(self.target.clone(), self.name));
        match connecting.await.unwrap_or(Err(BrokerError::Closed)) {
            Ok(connection) => {
                let connection = Arc::new(connection);
                slot.connection = Some(connection.clone());
                (slot.again_at, slot.pause) = (None, PAUSE_FIRST);
                Ok(connection)
            }
            Err(error) => {
                slot.again_at = Some(Instant::now() + slot.pause);
                slot.pause = (slot.pause * 2).min(PAUSE_MAX);
                slot.why = error.clone();
                Err(error)
            }
        }
    }

    /// A channel of its own: what is refused on it closes no other.
    pub(super) async fn channel(&self) -> Result<Channel, BrokerError> {
        let connection = self.connection().await?;
        answered(connection.create_channel()).await
    }

    /// An orderly end: nothing is made anew after it.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(connection) = self.slot.lock().await.connection.take() {
            let _ = answered(connection.close(200, "closed".into())).await; // gone is closed, too
        }
    }
}

/// Connects to the first node that answers.
async fn connect(target: Arc<Target>, name: &'static str) -> Result<Connection, BrokerError> {
    let mut why = BrokerError::Closed;
    for node in &target.nodes {
        match connect_to(node.clone(), &target.tls, name).await {
            Ok(connection) => return Ok(connection),
            Err(error) => why = error,
        }
    }
    Err(why)
}

async fn connect_to(
    node: AMQPUri,
    tls: &Tls,
    name: &'static str,
) -> Result<Connection, BrokerError> {
    let connecting = async {
        let dialed = dial(&node.authority.host, node.authority.port, tls).await;
        let stream = dialed.map_err(|error| match error {
            DialError::Unreachable(text) => BrokerError::Unreachable { text },
            DialError::Wrong(why) => refused("bad_tls", why),
        })?;
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        transport::over(stream, node, properties).await.map_err(|cause| match cause.kind() {
            // Who may not log in will not a little later either, nor to a virtual host that is not there.
            ErrorKind::ProtocolError(said) if is_shut(said) => {
                refused("access_refused", said.get_message().to_string())
            }
            _ => error(cause),
        })
    };
    match tokio::time::timeout(CONNECT_MAX, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(BrokerError::Unreachable {
            text: format!("RabbitMQ did not answer within {CONNECT_MAX:?}"),
        }),
    }
}

/// A limit of connections, which passes, has the same number as a virtual host that is not there.
fn is_shut(said: &AMQPError) -> bool {
    match said.get_id() {
        403 => true,
        530 => said.get_message().as_str().ends_with(" not found"),
        _ => false,
    }
}

pub(super) fn silent() -> BrokerError {
    BrokerError::Unreachable { text: format!("RabbitMQ did not answer within {PATIENCE:?}") }
}

/// Waits for an answer, but not for ever.
pub(super) async fn answered<T>(
    asked: impl Future<Output = lapin::Result<T>>,
) -> Result<T, BrokerError> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(error),
        Err(_) => Err(silent()),
    }
}

/// How RabbitMQ says that a stream cannot be read over this node yet.
const NO_COPY_HERE: &str = "does not have a replica on the local node";

/// What a failure means to a worker.
pub(super) fn error(error: lapin::Error) -> BrokerError {
    let text = error.to_string();
    let ErrorKind::ProtocolError(said) = error.kind() else {
        return BrokerError::Unreachable { text };
    };
    let text = said.get_message().to_string();
    match said.kind() {
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => refused("queue_not_found", text),
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => refused("access_refused", text),
        // What a queue is, its stream tells, and a node reads only its own copy: one that has just come back, or joined,
        // has none for a while.
        AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) if text.contains(NO_COPY_HERE) => {
            BrokerError::Busy { text }
        }
        AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => refused("queue_differs", text),
        AMQPErrorKind::Soft(_) => refused("refused", text),
        // The connection was closed: by an operator, by the end of a node, by a resource that is missing.
        AMQPErrorKind::Hard(_) if text.starts_with("COMMAND_INVALID") => {
            refused("not_supported", text)
        }
        AMQPErrorKind::Hard(_) => BrokerError::Unreachable { text },
    }
}
