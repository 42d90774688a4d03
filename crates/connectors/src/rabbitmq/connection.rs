//! A connection that reconnects after a loss, on a thread that handlers cannot block.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPSoftError};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind};
use tokio::time::Instant;

use super::url::AmqpUrl;
use super::{refused, transport};
use crate::broker::BrokerError;
use crate::dial::{DialError, TlsMode, dial};
use crate::io_thread::IoThread;
use crate::retry_delay::RetryDelay;

/// How long the server may take to answer any request.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How long connecting to one node may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Pauses after failed attempts.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Connects when needed and again after a loss.
pub(super) struct AmqpConnection {
    url: Arc<AmqpUrl>,
    name: &'static str,
    io: tokio::runtime::Handle,
    slot: tokio::sync::Mutex<ConnectionSlot>,
    closed: AtomicBool,
}

struct ConnectionSlot {
    connection: Option<Arc<Connection>>,
    /// The time of the next attempt, after a failed one.
    retry_at: Option<Instant>,
    backoff: RetryDelay,
    last_error: BrokerError,
}

impl AmqpConnection {
    pub(super) fn new(url: Arc<AmqpUrl>, name: &'static str, io: &IoThread) -> Self {
        let slot = ConnectionSlot {
            connection: None,
            retry_at: None,
            backoff: RetryDelay::new(RETRY_FIRST, RETRY_MAX),
            last_error: BrokerError::Closed,
        };
        let (slot, closed) = (tokio::sync::Mutex::new(slot), AtomicBool::new(false));
        Self { url, name, io: io.handle.clone(), slot, closed }
    }

    /// Returns the connection, and connects first if there is none. For a while after a failed attempt, returns the
    /// same error without another attempt.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, BrokerError> {
        let mut slot = self.slot.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(BrokerError::Closed);
        }
        if let Some(connection) = slot.connection.as_ref().filter(|one| one.status().connected()) {
            return Ok(connection.clone());
        }
        slot.connection = None;
        if slot.retry_at.is_some_and(|at| Instant::now() < at) {
            return Err(slot.last_error.clone());
        }
        let connecting = self.io.spawn(connect(self.url.clone(), self.name));
        match connecting.await.unwrap_or(Err(BrokerError::Closed)) {
            Ok(connection) => {
                let connection = Arc::new(connection);
                slot.connection = Some(connection.clone());
                slot.retry_at = None;
                slot.backoff.reset();
                Ok(connection)
            }
            Err(error) => {
                slot.retry_at = Some(Instant::now() + slot.backoff.pause());
                slot.last_error = error.clone();
                Err(error)
            }
        }
    }

    /// A new channel. RabbitMQ closes a channel on an error, so no two callers share one.
    pub(super) async fn channel(&self) -> Result<Channel, BrokerError> {
        let connection = self.connection().await?;
        await_answer(connection.create_channel()).await
    }

    /// Closes the connection for good.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(connection) = self.slot.lock().await.connection.take() {
            let _ = await_answer(connection.close(200, "closed".into())).await; // lost means closed as well
        }
    }
}

/// Connects to the first node that accepts the connection.
async fn connect(url: Arc<AmqpUrl>, name: &'static str) -> Result<Connection, BrokerError> {
    let mut last_error = BrokerError::Closed;
    for node in &url.nodes {
        match connect_to(node.clone(), &url.tls, name).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

async fn connect_to(
    node: AMQPUri,
    tls: &TlsMode,
    name: &'static str,
) -> Result<Connection, BrokerError> {
    let connecting = async {
        let dialed = dial(&node.authority.host, node.authority.port, tls).await;
        let stream = dialed.map_err(|error| match error {
            DialError::Unreachable(text) => BrokerError::Unreachable { text },
            DialError::Misconfigured(last_error) => refused("bad_tls", last_error),
        })?;
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        transport::connect(stream, node, properties).await.map_err(|cause| match cause.kind() {
            // These do not pass by themselves: a login that is refused, and a virtual host that does not exist.
            ErrorKind::ProtocolError(reply) if is_permanent(reply) => {
                refused("access_refused", reply.get_message().to_string())
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

/// RabbitMQ uses code 530 for a connection limit, which passes, and for a virtual host that does not exist.
fn is_permanent(reply: &AMQPError) -> bool {
    match reply.get_id() {
        403 => true,
        530 => reply.get_message().as_str().ends_with(" not found"),
        _ => false,
    }
}

pub(super) fn no_answer() -> BrokerError {
    BrokerError::Unreachable { text: format!("RabbitMQ did not answer within {ANSWER_MAX:?}") }
}

/// Waits for an answer, at most [`ANSWER_MAX`].
pub(super) async fn await_answer<T>(
    asked: impl Future<Output = lapin::Result<T>>,
) -> Result<T, BrokerError> {
    match tokio::time::timeout(ANSWER_MAX, asked).await {
        Ok(answer) => answer.map_err(error),
        Err(_) => Err(no_answer()),
    }
}

/// Part of RabbitMQ's error for a stream that has no replica on this node yet.
const NO_LOCAL_REPLICA: &str = "does not have a replica on the local node";

/// The broker error for an error of the client library.
pub(super) fn error(error: lapin::Error) -> BrokerError {
    let text = error.to_string();
    let ErrorKind::ProtocolError(reply) = error.kind() else {
        return BrokerError::Unreachable { text };
    };
    let text = reply.get_message().to_string();
    match reply.kind() {
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => refused("queue_not_found", text),
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => refused("access_refused", text),
        // Queue records are read from streams, and a node reads only its own replica. A node that has just joined or
        // restarted has none for a while.
        AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED)
            if text.contains(NO_LOCAL_REPLICA) =>
        {
            BrokerError::Busy { text }
        }
        AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => refused("queue_differs", text),
        AMQPErrorKind::Soft(_) => refused("refused", text),
        // The server closed the connection: an operator did it, the node stopped, or a resource ran out.
        AMQPErrorKind::Hard(_) if text.starts_with("COMMAND_INVALID") => {
            refused("not_supported", text)
        }
        AMQPErrorKind::Hard(_) => BrokerError::Unreachable { text },
    }
}
