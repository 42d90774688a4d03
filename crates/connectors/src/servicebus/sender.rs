//! A link that sends messages.

use std::sync::Arc;

use bytes::Bytes;
use malote_wire_amqp::performative::{Attach, Role, SenderSettleMode, Source, Target};
use malote_wire_amqp::types::{Str, Value};
use tokio::sync::oneshot;

use super::connection::{ClientConnection, LinkHandle};
use super::driver::{DriverCommand, LinkPurpose, SendMessage};
use super::error::{Error, ErrorKind, Result};
use super::limits;
use super::message::{Batch, Message};

/// Sends to a queue or a topic, in the order of the calls. Several sends can be in flight.
pub struct Sender {
    link: LinkHandle,
}

/// A message in flight.
#[must_use = "the outcome shows whether the message was accepted"]
pub struct PendingSend<'a> {
    link: &'a LinkHandle,
    outcome: oneshot::Receiver<Result<()>>,
}

impl Sender {
    pub(super) async fn open(connection: &Arc<ClientConnection>, address: &str) -> Result<Sender> {
        connection.authorize(address).await?;
        let name = Str::from(connection.link_name("sender"));
        let attach = Attach {
            name: name.clone(),
            role: Role::Sender,
            snd_settle_mode: SenderSettleMode::Unsettled,
            source: Some(Source::at(Value::String(name))),
            target: Some(Target::at(address).into()),
            ..Attach::default()
        };
        let wait = connection.config.timeout;
        let link = connection.attach(None, attach, LinkPurpose::Sender, wait).await?;
        Ok(Sender { link })
    }

    /// The largest message or batch that the entity allows; None if it has no limit.
    pub fn message_bytes_max(&self) -> Option<u64> {
        self.link.attach.max_message_size.filter(|&max| max > 0)
    }

    /// An empty batch with the entity's size limit.
    pub fn batch(&self) -> Batch {
        let max = self.message_bytes_max().unwrap_or(limits::MESSAGE_BYTES_MAX);
        Batch::new(usize::try_from(max).unwrap_or(usize::MAX))
    }

    /// Whether the sender must be opened again.
    pub fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    /// Sends a message and waits until it is accepted.
    pub async fn send(&self, message: &Message) -> Result<()> {
        self.start(message).await?.outcome().await
    }

    /// Sends a batch and waits until it is accepted: completely or not at all.
    pub async fn send_batch(&self, batch: &Batch) -> Result<()> {
        self.start_batch(batch).await?.outcome().await
    }

    /// Starts sending a message. Waits only while too many bytes are in flight.
    pub async fn start(&self, message: &Message) -> Result<PendingSend<'_>> {
        self.start_payload(0, message.encode()).await
    }

    /// Starts sending a batch. Waits only while too many bytes are in flight.
    pub async fn start_batch(&self, batch: &Batch) -> Result<PendingSend<'_>> {
        if batch.is_empty() {
            let text = "the batch is empty: add a message";
            return Err(Error::new(ErrorKind::BadArgument, "com.microsoft:argument-error", text));
        }
        let (format, payload) = batch.encode();
        self.start_payload(format, payload).await
    }

    /// Starts sending an encoded message, or an encoded batch with its message format.
    pub async fn start_encoded(
        &self,
        message_format: u32,
        payload: Bytes,
    ) -> Result<PendingSend<'_>> {
        self.start_payload(message_format, payload).await
    }

    async fn start_payload(&self, message_format: u32, payload: Bytes) -> Result<PendingSend<'_>> {
        // On a closed link, the caller would wait for a permit without need.
        if self.link.is_closed() {
            return Err(self.link.end_error());
        }
        let size = payload.len().clamp(1, limits::SENDING_BYTES_MAX) as u32;
        let room = self.link.connection.sending.clone();
        let permit = room.acquire_many_owned(size).await.map_err(|_| Error::Closed)?;
        let (reply, outcome) = oneshot::channel();
        let (link, permit) = (self.link.link, Some(permit));
        let sending = SendMessage { link, message_format, payload, reply, permit };
        self.link.connection.command(DriverCommand::Send(sending)).await?;
        Ok(PendingSend { link: &self.link, outcome })
    }

    /// Detaches, and waits for the server's answer.
    pub async fn close(self) {
        self.link.close(Vec::new()).await;
    }
}

impl PendingSend<'_> {
    /// Waits until the message is accepted or refused.
    pub async fn outcome(self) -> Result<()> {
        match self.outcome.await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.link.end_error()),
        }
    }
}
