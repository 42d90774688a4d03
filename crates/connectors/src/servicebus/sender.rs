//! A link on which messages are sent.

use std::sync::Arc;

use bytes::Bytes;
use malote_wire_amqp::performative::{Attach, Role, SenderSettleMode, Source, Target};
use malote_wire_amqp::types::{Str, Value};
use tokio::sync::oneshot;

use super::connection::{Connection, LinkHandle};
use super::driver::{Command, Sending, Wanted};
use super::error::{Error, Kind, Result};
use super::limits;
use super::message::{Batch, Message};

/// Sends to a queue or a topic. In order of the calls; outcomes may be waited for together.
pub struct Sender {
    link: LinkHandle,
}

/// A message that was handed over, and its outcome.
#[must_use = "the outcome tells whether the message was taken"]
pub struct Sent<'a> {
    link: &'a LinkHandle,
    outcome: oneshot::Receiver<Result<()>>,
}

impl Sender {
    pub(super) async fn open(connection: &Arc<Connection>, address: &str) -> Result<Sender> {
        connection.authorize(address).await?;
        let name = Str::from(connection.name("sender"));
        let attach = Attach {
            name: name.clone(),
            role: Role::Sender,
            snd_settle_mode: SenderSettleMode::Unsettled,
            source: Some(Source::at(Value::String(name))),
            target: Some(Target::at(address).into()),
            ..Attach::default()
        };
        let wait = connection.config.timeout;
        let link = connection.attach(None, attach, Wanted::Sender, wait).await?;
        Ok(Sender { link })
    }

    /// The largest message or batch that the entity takes; none if it does not say.
    pub fn message_bytes_max(&self) -> Option<u64> {
        self.link.attach.max_message_size.filter(|&max| max > 0)
    }

    /// An empty batch, which takes as much as the entity does.
    pub fn batch(&self) -> Batch {
        let max = self.message_bytes_max().unwrap_or(limits::MESSAGE_BYTES_MAX);
        Batch::new(usize::try_from(max).unwrap_or(usize::MAX))
    }

    /// Whether it has to be opened again.
    pub fn is_over(&self) -> bool {
        self.link.is_over()
    }

    /// Sends a message and waits until it is taken.
    pub async fn send(&self, message: &Message) -> Result<()> {
        self.start(message).await?.outcome().await
    }

    /// Sends a batch and waits until it is taken: all of it, or nothing.
    pub async fn send_batch(&self, batch: &Batch) -> Result<()> {
        self.start_batch(batch).await?.outcome().await
    }

    /// Hands a message over. Waits only while too much is under way.
    pub async fn start(&self, message: &Message) -> Result<Sent<'_>> {
        self.hand_over(0, message.encode()).await
    }

    /// Hands a batch over. Waits only while too much is under way.
    pub async fn start_batch(&self, batch: &Batch) -> Result<Sent<'_>> {
        if batch.is_empty() {
            let text = "there is nothing in the batch";
            return Err(Error::of(Kind::BadArgument, "com.microsoft:argument-error", text));
        }
        let (format, payload) = batch.encode();
        self.hand_over(format, payload).await
    }

    /// Hands over what is encoded already: a message, or with the batch's format several.
    pub async fn start_encoded(&self, message_format: u32, payload: Bytes) -> Result<Sent<'_>> {
        self.hand_over(message_format, payload).await
    }

    async fn hand_over(&self, message_format: u32, payload: Bytes) -> Result<Sent<'_>> {
        // A link that is over would let the permit and the order wait for nothing.
        if self.link.is_over() {
            return Err(self.link.why());
        }
        let size = payload.len().clamp(1, limits::SENDING_BYTES_MAX) as u32;
        let room = self.link.connection.sending.clone();
        let permit = room.acquire_many_owned(size).await.map_err(|_| Error::Closed)?;
        let (reply, outcome) = oneshot::channel();
        let (link, permit) = (self.link.link, Some(permit));
        let sending = Sending { link, message_format, payload, reply, permit };
        self.link.connection.command(Command::Send(sending)).await?;
        Ok(Sent { link: &self.link, outcome })
    }

    /// Detaches, once the server has answered.
    pub async fn close(self) {
        self.link.close(Vec::new()).await;
    }
}

impl Sent<'_> {
    /// Waits until it is taken, or not.
    pub async fn outcome(self) -> Result<()> {
        match self.outcome.await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.link.why()),
        }
    }
}
