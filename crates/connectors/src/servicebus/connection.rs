//! One connection with its links and tokens. The handles of links share it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use malote_wire_amqp::connection::{DeliveryId, LinkId, SessionId};
use malote_wire_amqp::performative::Attach;
use malote_wire_amqp::types::Str;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::claims::ClientClaims;
use super::config::Config;
use super::dial::dial;
use super::driver::{
    AmqpDriver, AttachedLink, DriverCommand, DroppedLink, EndReason, LinkPurpose, open,
};
use super::error::{Error, Result};
use super::limits;
use super::request_links::RequestLinks;

/// Numbers of links, unique over all connections, so that messages of different links are never confused.
static NEXT_LINK_NUMBER: AtomicU64 = AtomicU64::new(1);

/// Request links that are opened on first use, and again after they closed.
type RequestLinksSlot = Arc<tokio::sync::Mutex<Option<Arc<RequestLinks>>>>;

/// A connection. It closes when the last handle is dropped.
pub(super) struct ClientConnection {
    pub config: Arc<Config>,
    commands: mpsc::Sender<DriverCommand>,
    dropped: mpsc::UnboundedSender<DroppedLink>,
    end_reason: EndReason,
    /// Permits for the bytes being sent.
    pub sending: Arc<Semaphore>,
    claims: ClientClaims,
    request_links: Mutex<HashMap<String, RequestLinksSlot>>,
    container: String,
    next_name: AtomicU64,
}

impl ClientConnection {
    /// Connects, without another attempt after an error.
    pub async fn connect(config: Arc<Config>, container: String) -> Result<Arc<ClientConnection>> {
        let mut stream = dial(&config).await?;
        let opening = open(&config, &container, &mut stream);
        let (amqp, started) =
            tokio::time::timeout(config.timeout, opening).await.unwrap_or_else(|_| {
                Err(Error::timeout("the server did not open the connection in time"))
            })?;
        let (commands, command_queue) = mpsc::channel(limits::COMMANDS_MAX);
        let (dropped, dropped_links) = mpsc::unbounded_channel();
        let end_reason = EndReason::default();
        let driver =
            AmqpDriver::new(amqp, started, command_queue, dropped_links, end_reason.clone());
        tokio::spawn(driver.run(stream));
        let connection = Arc::new(ClientConnection {
            claims: ClientClaims::new(&config),
            config,
            commands,
            dropped,
            end_reason,
            sending: Arc::new(Semaphore::new(limits::SENDING_BYTES_MAX)),
            request_links: Mutex::default(),
            container,
            next_name: AtomicU64::new(1),
        });
        connection.claims.start_renewal(&connection);
        Ok(connection)
    }

    pub fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }

    /// Why the connection ended.
    pub fn end_error(&self) -> Error {
        self.end_reason.get().cloned().unwrap_or(Error::Closed)
    }

    /// Sends a command to the driver. Waits while its channel is full.
    pub async fn command(&self, command: DriverCommand) -> Result<()> {
        self.commands.send(command).await.map_err(|_| self.end_error())
    }

    /// Sends a command if the channel is not full.
    pub fn try_command(&self, command: DriverCommand) -> bool {
        self.commands.try_send(command).is_ok()
    }

    /// A unique name for a link.
    pub fn link_name(&self, what: &str) -> String {
        format!("{}-{what}-{}", self.container, self.next_name.fetch_add(1, Ordering::Relaxed))
    }

    pub fn claims(&self) -> &ClientClaims {
        &self.claims
    }

    /// Makes sure that a token for an entity was sent.
    pub async fn authorize(self: &Arc<Self>, address: &str) -> Result<()> {
        self.claims.authorize(self, address).await
    }

    /// Attaches a link. `wait` is the time that the server has to answer.
    pub async fn attach(
        self: &Arc<Self>,
        session: Option<SessionId>,
        attach: Attach,
        purpose: LinkPurpose,
        wait: Duration,
    ) -> Result<LinkHandle> {
        let name = attach.name.clone();
        let (reply, answer) = oneshot::channel();
        let attach = Box::new(attach);
        self.command(DriverCommand::Attach { session, attach, purpose, reply }).await?;
        // If the caller gives up, the receiver of the answer is dropped, and the driver detaches the link.
        let opened = tokio::time::timeout(wait.saturating_add(limits::REPLY_GRACE), answer)
            .await
            .map_err(|_| Error::timeout("the server did not answer the attach in time"))?;
        let AttachedLink { link, attach, end_reason } = opened.map_err(|_| self.end_error())??;
        let (connection, released) = (self.clone(), AtomicBool::new(false));
        let number = NEXT_LINK_NUMBER.fetch_add(1, Ordering::Relaxed);
        Ok(LinkHandle { connection, link, number, name, attach, end_reason, released })
    }

    /// The request links of an entity's node.
    pub async fn request_links(self: &Arc<Self>, address: &str) -> Result<Arc<RequestLinks>> {
        let slot = {
            let mut request_links = self.request_links.lock();
            if !request_links.contains_key(address) && request_links.len() >= limits::AUDIENCES_MAX
            {
                return Err(Error::TooMany("entities"));
            }
            request_links.entry(address.to_owned()).or_default().clone()
        };
        let mut slot = slot.lock().await;
        if let Some(request_links) =
            slot.as_ref().filter(|request_links| !request_links.is_closed())
        {
            return Ok(request_links.clone());
        }
        self.authorize(address).await?;
        let request_links = Arc::new(RequestLinks::open(self, address).await?);
        *slot = Some(request_links.clone());
        Ok(request_links)
    }

    /// Closes the connection and waits for the end.
    pub async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.command(DriverCommand::Close { reply }).await.is_ok() {
            let _ = answer.await;
        }
    }
}

/// An attached link. Dropping it detaches the link.
pub(super) struct LinkHandle {
    pub connection: Arc<ClientConnection>,
    pub link: LinkId,
    pub number: u64,
    pub name: Str,
    /// The server's attach frame.
    pub attach: Box<Attach>,
    end_reason: EndReason,
    released: AtomicBool,
}

impl LinkHandle {
    pub fn is_closed(&self) -> bool {
        self.end_reason.get().is_some() || self.connection.is_closed()
    }

    /// Why the link ended.
    pub fn end_error(&self) -> Error {
        self.end_reason.get().cloned().unwrap_or_else(|| self.connection.end_error())
    }

    /// Keeps the link attached until the connection ends.
    pub fn keep_attached(&self) -> EndReason {
        self.released.store(true, Ordering::Relaxed);
        self.end_reason.clone()
    }

    /// Detaches without waiting. Unread messages are released.
    pub fn release(&self, unread: Vec<DeliveryId>) {
        if !self.released.swap(true, Ordering::Relaxed) {
            let _ = self.connection.dropped.send(DroppedLink { link: self.link, unread });
        }
    }

    /// Detaches and waits for the server's answer. Unread messages are released.
    pub async fn close(&self, unread: Vec<DeliveryId>) {
        if self.released.swap(true, Ordering::Relaxed) {
            return;
        }
        let (reply, answer) = oneshot::channel();
        let dropped = DroppedLink { link: self.link, unread };
        if self.connection.command(DriverCommand::Detach { dropped, reply }).await.is_ok() {
            let _ = tokio::time::timeout(limits::CLOSE_MAX, answer).await;
        }
    }
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        self.release(Vec::new());
    }
}
