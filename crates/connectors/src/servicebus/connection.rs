//! One connection, as its handles see it: links, desks, tokens.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use malote_wire_amqp::connection::{DeliveryId, LinkId, SessionId};
use malote_wire_amqp::performative::Attach;
use malote_wire_amqp::types::Str;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::claims::Claims;
use super::config::Config;
use super::desk::Desk;
use super::dial::dial;
use super::driver::{Command, Driver, Gone, Opened, Wanted, Why, open};
use super::error::{Error, Result};
use super::limits;

/// Numbers for links, over all connections: what came over one is never taken for what came over another.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A desk that is opened once, by whoever comes first, and again when it has gone.
type DeskSlot = Arc<tokio::sync::Mutex<Option<Arc<Desk>>>>;

/// A connection. Dropped with its last handle, it says good-bye by itself.
pub(super) struct Connection {
    pub config: Arc<Config>,
    commands: mpsc::Sender<Command>,
    gone: mpsc::UnboundedSender<Gone>,
    why: Why,
    /// Room for bytes that are being sent.
    pub sending: Arc<Semaphore>,
    claims: Claims,
    desks: Mutex<HashMap<String, DeskSlot>>,
    container: String,
    named: AtomicU64,
}

impl Connection {
    /// Connects once, and opens.
    pub async fn connect(config: Arc<Config>, container: String) -> Result<Arc<Connection>> {
        let mut stream = dial(&config).await?;
        let opening = open(&config, &container, &mut stream);
        let (amqp, begun) = tokio::time::timeout(config.timeout, opening)
            .await
            .unwrap_or_else(|_| Err(Error::timeout("the server has not opened in time")))?;
        let (commands, asked) = mpsc::channel(limits::COMMANDS_MAX);
        let (gone, dropped) = mpsc::unbounded_channel();
        let why = Why::default();
        let driver = Driver::new(amqp, begun, asked, dropped, why.clone());
        tokio::spawn(driver.run(stream));
        let connection = Arc::new(Connection {
            claims: Claims::new(&config),
            config,
            commands,
            gone,
            why,
            sending: Arc::new(Semaphore::new(limits::SENDING_BYTES_MAX)),
            desks: Mutex::default(),
            container,
            named: AtomicU64::new(1),
        });
        connection.claims.keep_fresh(&connection);
        Ok(connection)
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.commands.is_closed()
    }

    /// Why nothing comes any more.
    pub fn why(&self) -> Error {
        self.why.get().cloned().unwrap_or(Error::Closed)
    }

    /// Asks the connection's task. Waits while too much is asked.
    pub async fn command(&self, command: Command) -> Result<()> {
        self.commands.send(command).await.map_err(|_| self.why())
    }

    /// The same, if there is room at once.
    pub fn try_command(&self, command: Command) -> bool {
        self.commands.try_send(command).is_ok()
    }

    /// A name for a link that no other has.
    pub fn name(&self, what: &str) -> String {
        format!("{}-{what}-{}", self.container, self.named.fetch_add(1, Ordering::Relaxed))
    }

    /// Its tokens.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Sees to it that a token allows what is about to be done with an entity.
    pub async fn authorize(self: &Arc<Self>, address: &str) -> Result<()> {
        self.claims.authorize(self, address).await
    }

    /// Attaches a link. The server may take so long to answer.
    pub async fn attach(
        self: &Arc<Self>,
        session: Option<SessionId>,
        attach: Attach,
        wanted: Wanted,
        wait: Duration,
    ) -> Result<LinkHandle> {
        let name = attach.name.clone();
        let (reply, answer) = oneshot::channel();
        let attach = Box::new(attach);
        self.command(Command::Attach { session, attach, wanted, reply }).await?;
        // Whoever gives up drops the answer's place: the task then detaches what comes late.
        let opened = tokio::time::timeout(wait.saturating_add(limits::GRACE), answer)
            .await
            .map_err(|_| Error::timeout("the link was not answered in time"))?;
        let Opened { link, attach, why } = opened.map_err(|_| self.why())??;
        let (connection, released) = (self.clone(), AtomicBool::new(false));
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Ok(LinkHandle { connection, link, number, name, attach, why, released })
    }

    /// The desk of an entity.
    pub async fn desk(self: &Arc<Self>, address: &str) -> Result<Arc<Desk>> {
        let slot = {
            let mut desks = self.desks.lock();
            if !desks.contains_key(address) && desks.len() >= limits::AUDIENCES_MAX {
                return Err(Error::TooMany("entities"));
            }
            desks.entry(address.to_owned()).or_default().clone()
        };
        let mut slot = slot.lock().await;
        if let Some(desk) = slot.as_ref().filter(|desk| !desk.is_over()) {
            return Ok(desk.clone());
        }
        self.authorize(address).await?;
        let desk = Arc::new(Desk::open(self, address).await?);
        *slot = Some(desk.clone());
        Ok(desk)
    }

    /// Says good-bye, and waits until it is said.
    pub async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.command(Command::Close { reply }).await.is_ok() {
            let _ = answer.await;
        }
    }
}

/// A link that is attached. Dropped, it is detached.
pub(super) struct LinkHandle {
    pub connection: Arc<Connection>,
    pub link: LinkId,
    pub number: u64,
    pub name: Str,
    /// As the server has it.
    pub attach: Box<Attach>,
    why: Why,
    released: AtomicBool,
}

impl LinkHandle {
    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.why.get().is_some() || self.connection.is_over()
    }

    /// Why nothing comes any more.
    pub fn why(&self) -> Error {
        self.why.get().cloned().unwrap_or_else(|| self.connection.why())
    }

    /// Lets the link stay for as long as its connection does.
    pub fn stay(&self) -> Why {
        self.released.store(true, Ordering::Relaxed);
        self.why.clone()
    }

    /// Lets go at once. What came and was not looked at goes back.
    pub fn release(&self, unseen: Vec<DeliveryId>) {
        if !self.released.swap(true, Ordering::Relaxed) {
            let _ = self.connection.gone.send(Gone { link: self.link, unseen });
        }
    }

    /// Detaches, and waits until the server has answered. What came and was not looked at goes back.
    pub async fn close(&self, unseen: Vec<DeliveryId>) {
        if self.released.swap(true, Ordering::Relaxed) {
            return;
        }
        let (reply, answer) = oneshot::channel();
        let gone = Gone { link: self.link, unseen };
        if self.connection.command(Command::Detach { gone, reply }).await.is_ok() {
            let _ = tokio::time::timeout(limits::FAREWELL, answer).await;
        }
    }
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        self.release(Vec::new());
    }
}
