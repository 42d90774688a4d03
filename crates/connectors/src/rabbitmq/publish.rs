//! Publishing with confirms. All messages of a batch are published before the first confirm is awaited.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};

use super::connection::{ANSWER_MAX, AmqpConnection, await_answer, error};
use super::refused;
use crate::broker::BrokerError;

/// A message with its exchange and routing key.
pub(super) struct Publication {
    /// Empty: the default exchange, which routes by queue name.
    pub exchange: ShortString,
    pub key: ShortString,
    pub properties: BasicProperties,
    pub body: Bytes,
}

/// Publishes over a connection of its own: a server that blocks publishers still reads settlements.
pub(super) struct Publisher {
    connection: Arc<AmqpConnection>,
    channel: tokio::sync::Mutex<Option<Channel>>,
}

impl Publisher {
    pub(super) fn new(connection: Arc<AmqpConnection>) -> Self {
        Self { connection, channel: tokio::sync::Mutex::new(None) }
    }

    async fn channel(&self) -> Result<Channel, BrokerError> {
        let mut slot = self.channel.lock().await;
        if let Some(channel) = slot.as_ref().filter(|channel| channel.status().connected()) {
            return Ok(channel.clone());
        }
        let channel = self.connection.channel().await?;
        await_answer(channel.confirm_select(ConfirmSelectOptions::default())).await?;
        *slot = Some(channel.clone());
        Ok(channel)
    }

    /// Publishes messages and waits for their confirms, one result for each.
    pub(super) async fn publish(
        &self,
        publications: Vec<Publication>,
    ) -> Result<Vec<Result<(), BrokerError>>, BrokerError> {
        let channel = self.channel().await?;
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let sending = publications.iter().map(|publication| {
            let (exchange, key) = (publication.exchange.clone(), publication.key.clone());
            channel.basic_publish(
                exchange,
                key,
                options,
                &publication.body,
                publication.properties.clone(),
            )
        });
        let stored = async {
            let confirms = join_all(sending).await;
            join_all(confirms.into_iter().map(confirmed)).await
        };
        let Ok(stored) = tokio::time::timeout(ANSWER_MAX, stored).await else {
            let text = format!(
                "RabbitMQ did not confirm within {ANSWER_MAX:?}: a memory or disk alarm may block it"
            );
            return Err(BrokerError::Unreachable { text });
        };
        if stored.iter().any(|one| matches!(one, Ok(Confirmation::Nack(_)))) {
            // After a queue was without a leader, a channel may refuse its messages permanently. Use a new channel.
            self.channel.lock().await.take_if(|have| have.id() == channel.id());
        }
        Ok(stored
            .into_iter()
            .zip(&publications)
            .map(|(one, publication)| outcome(one, publication))
            .collect())
    }

    pub(super) async fn publish_one(&self, publication: Publication) -> Result<(), BrokerError> {
        self.publish(vec![publication]).await?.pop().unwrap_or(Ok(()))
    }
}

async fn confirmed(sent: lapin::Result<PublisherConfirm>) -> lapin::Result<Confirmation> {
    sent?.await
}

fn outcome(
    stored: lapin::Result<Confirmation>,
    publication: &Publication,
) -> Result<(), BrokerError> {
    match stored {
        Ok(Confirmation::Ack(None) | Confirmation::NotRequested) => Ok(()),
        Ok(Confirmation::Ack(Some(back)) | Confirmation::Nack(Some(back))) => {
            let Publication { exchange, key, .. } = publication;
            let (to, why) =
                (if exchange.as_str().is_empty() { key } else { exchange }, back.reply_text);
            Err(refused("queue_not_found", format!("RabbitMQ has no queue for `{to}`: {why}")))
        }
        Ok(Confirmation::Nack(None)) => Err(BrokerError::Busy {
            text:
                "RabbitMQ refused the message (basic.nack): its queue is full or lacks a majority"
                    .into(),
        }),
        Err(cause) => Err(error(cause)),
    }
}
