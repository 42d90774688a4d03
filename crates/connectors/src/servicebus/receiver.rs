//! A link that receives messages.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use malote_wire_amqp::connection::Incoming;
use malote_wire_amqp::performative::{
    Attach, ReceiverSettleMode, Role, SenderSettleMode, Source, Target,
};
use malote_wire_amqp::types::{Map, Str, Symbol, Value};
use tokio::sync::{mpsc, oneshot};

use super::connection::{ClientConnection, LinkHandle};
use super::driver::{DriverCommand, LinkPurpose};
use super::error::Result;
use super::limits;
use super::management::Management;
use super::message::{Received, SettleVia};
use super::settle::Settler;

const SESSION_FILTER: &str = "com.microsoft:session-filter";
const TIMEOUT: &str = "com.microsoft:timeout";

/// Options of a receiver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiverOptions {
    /// The number of prefetched messages. With 0, only [`Receiver::grant`] and [`Receiver::receive`] request messages.
    pub prefetch: u32,
    /// Delete messages when they are sent to the receiver. Otherwise they are locked until settled.
    pub receive_and_delete: bool,
    /// Settle without waiting for a confirmation: for brokers other than Service Bus, which do not confirm.
    pub unconfirmed: bool,
}

/// The session to accept.
pub(super) enum SessionChoice<'a> {
    Named(&'a str),
    Next,
}

/// Receives from a queue or a subscription. Dropping it detaches the link: unread messages are released, and read
/// messages stay locked until they are settled or their lock ends.
pub struct Receiver {
    settler: Settler,
    deliveries: mpsc::Receiver<Incoming>,
    options: ReceiverOptions,
    /// Credit for messages that were not read yet.
    credit: u32,
    /// Messages read since credit was last granted.
    taken: u32,
}

impl Receiver {
    pub(super) async fn open(
        connection: &Arc<ClientConnection>,
        address: &str,
        options: ReceiverOptions,
        session: Option<SessionChoice<'_>>,
        wait: Duration,
    ) -> Result<Receiver> {
        connection.authorize(address).await?;
        let options =
            ReceiverOptions { prefetch: options.prefetch.min(limits::PREFETCH_MAX), ..options };
        let name = Str::from(connection.link_name("receiver"));
        let mut source = Source::at(address);
        let mut properties = None;
        if let Some(session) = &session {
            let key = Value::Symbol(Symbol::from_static(SESSION_FILTER));
            let which = match session {
                SessionChoice::Named(id) => Value::from(*id),
                SessionChoice::Next => Value::Null,
            };
            source.filter = Some(Map(vec![(key, which)]));
            let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            properties = Some(Map::default().with(TIMEOUT, wait_ms));
        }
        let second = !options.receive_and_delete && !options.unconfirmed;
        let attach = Attach {
            name: name.clone(),
            role: Role::Receiver,
            snd_settle_mode: match options.receive_and_delete {
                true => SenderSettleMode::Settled,
                false => SenderSettleMode::Unsettled,
            },
            rcv_settle_mode: match second {
                true => ReceiverSettleMode::Second,
                false => ReceiverSettleMode::First,
            },
            source: Some(source),
            target: Some(Target::at(Value::String(name)).into()),
            properties,
            ..Attach::default()
        };
        let room = options.prefetch.max(1_024) as usize;
        let (to, deliveries) = mpsc::channel(room);
        let link = connection.attach(None, attach, LinkPurpose::Receiver(to), wait).await?;
        let management = Management::for_link(connection.clone(), address, link.name.as_str());
        let settler = Settler::new(Arc::new(link), management, options.unconfirmed);
        let mut receiver = Receiver { settler, deliveries, options, credit: 0, taken: 0 };
        if receiver.options.prefetch > 0 {
            receiver.grant(receiver.options.prefetch).await?;
        }
        Ok(receiver)
    }

    fn link(&self) -> &LinkHandle {
        self.settler.link()
    }

    /// The session's id and the end of its lock, from the server's attach.
    pub(super) fn granted_session(&self) -> Option<(String, i64)> {
        let attach = &self.link().attach;
        let filter = attach.source.as_ref()?.filter.as_ref()?.get(SESSION_FILTER)?;
        let id = match filter {
            Value::Described(described) => described.value.as_str()?,
            value => value.as_str()?,
        };
        let until = attach.properties.as_ref()?.get("com.microsoft:locked-until-utc");
        Some((id.to_owned(), until.and_then(Value::as_i64).map_or(0, ticks_to_unix_ms)))
    }

    pub(super) fn settler_mut(&mut self) -> &mut Settler {
        &mut self.settler
    }

    /// Whether the receiver must be opened again.
    pub fn is_closed(&self) -> bool {
        self.link().is_closed()
    }

    /// Settles messages of this receiver. It also works after the receiver was dropped, as far as the server allows.
    pub fn settler(&self) -> Settler {
        self.settler.clone()
    }

    /// Grants credit for `more` messages, limited by the room for unread messages.
    pub async fn grant(&mut self, more: u32) -> Result<()> {
        let room = u32::try_from(self.deliveries.max_capacity()).unwrap_or(u32::MAX);
        let more = more.min(room.saturating_sub(self.credit));
        if more > 0 {
            self.credit += more;
            let link = self.link().link;
            self.link().connection.command(DriverCommand::Credit { link, more }).await?;
        }
        Ok(())
    }

    /// Withdraws unused credit. Messages that arrived before can still be read.
    pub async fn drain(&mut self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        let link = self.link().link;
        self.link().connection.command(DriverCommand::Drain { link, reply }).await?;
        answer.await.map_err(|_| self.link().end_error())?;
        self.credit = self.deliveries.len() as u32;
        Ok(())
    }

    /// Waits for the next message. Cancel-safe: dropping the future loses no message.
    pub async fn next(&mut self) -> Result<Received> {
        self.grant_pending().await?;
        match self.deliveries.recv().await {
            Some(incoming) => {
                self.note_taken(1);
                Received::from_delivery(self.link().number, incoming)
            }
            None => Err(self.link().end_error()),
        }
    }

    /// Waits for messages and returns those that have arrived, at most `max`. Cancel-safe.
    pub async fn next_many(&mut self, max: usize) -> Result<Vec<Received>> {
        self.grant_pending().await?;
        let mut incoming = Vec::new();
        if self.deliveries.recv_many(&mut incoming, max.max(1)).await == 0 {
            return Err(self.link().end_error());
        }
        self.note_taken(incoming.len());
        self.read(incoming)
    }

    /// Returns up to `max` messages as soon as there are some, or none after `wait`. Without prefetch, unused credit
    /// is withdrawn before it returns.
    pub async fn receive(&mut self, max: u32, wait: Duration) -> Result<Vec<Received>> {
        let limit = max.clamp(1, limits::PREFETCH_MAX) as usize;
        let by_call = self.options.prefetch == 0;
        if by_call {
            self.grant((limit as u32).saturating_sub(self.credit)).await?;
        } else {
            self.grant_pending().await?;
        }
        let mut incoming = Vec::new();
        let waited = self.deliveries.recv_many(&mut incoming, limit);
        if tokio::time::timeout(wait, waited).await == Ok(0) {
            return Err(self.link().end_error());
        }
        self.note_taken(incoming.len());
        if by_call && self.credit > 0 {
            self.drain().await?;
            let before = incoming.len();
            while incoming.len() < limit
                && let Ok(next) = self.deliveries.try_recv()
            {
                incoming.push(next);
            }
            self.note_taken(incoming.len() - before);
        }
        self.read(incoming)
    }

    fn read(&self, incoming: Vec<Incoming>) -> Result<Vec<Received>> {
        let link = self.link().number;
        incoming.into_iter().map(|incoming| Received::from_delivery(link, incoming)).collect()
    }

    fn note_taken(&mut self, count: usize) {
        let count = count as u32;
        self.credit = self.credit.saturating_sub(count);
        if self.options.prefetch == 0 {
            return;
        }
        self.taken += count;
        if self.taken * 2 >= self.options.prefetch && self.try_grant(self.taken) {
            self.taken = 0;
        }
    }

    /// Grants credit if the driver's channel is not full.
    fn try_grant(&mut self, more: u32) -> bool {
        let link = self.link().link;
        let sent = self.link().connection.try_command(DriverCommand::Credit { link, more });
        self.credit += if sent { more } else { 0 };
        sent
    }

    /// Grants credit that could not be granted before. Otherwise no message would arrive.
    async fn grant_pending(&mut self) -> Result<()> {
        if self.taken * 2 >= self.options.prefetch && self.taken > 0 {
            let more = self.taken;
            self.taken = 0;
            self.grant(more).await?;
        }
        Ok(())
    }

    /// Withdraws credit, releases unread messages, and detaches.
    pub async fn close(mut self) {
        // On failure, messages in transit stay locked until their lock ends.
        let _ = tokio::time::timeout(limits::CLOSE_MAX, self.drain()).await;
        let unread = self.unread();
        self.settler.close(unread).await;
    }

    fn unread(&mut self) -> Vec<malote_wire_amqp::connection::DeliveryId> {
        self.deliveries.close();
        let mut unread = Vec::new();
        while let Ok(incoming) = self.deliveries.try_recv() {
            if !incoming.settled {
                unread.push(incoming.delivery);
            }
        }
        unread
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let unread = self.unread();
        self.settler.release(unread);
    }
}

/// Messages are settled through the receiver.
impl Deref for Receiver {
    type Target = Settler;

    fn deref(&self) -> &Settler {
        &self.settler
    }
}

/// Converts ticks of .NET: 100 ns since the year 1.
fn ticks_to_unix_ms(ticks: i64) -> i64 {
    const UNIX_EPOCH: i64 = 621_355_968_000_000_000;
    const TICKS_PER_MS: i64 = 10_000;
    ticks.saturating_sub(UNIX_EPOCH) / TICKS_PER_MS
}

impl Received {
    pub(super) fn is_locked(&self) -> bool {
        self.settle_via != SettleVia::NotLocked
    }
}
