//! Sends, and hears that it is stored: every message of a batch is on its way before the first is waited for.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};

use super::link::{Link, PATIENCE, answered, error};
use super::refused;
use crate::broker::BrokerError;

/// A message and where it goes.
pub(super) struct Parcel {
    /// The empty name is the exchange that knows every queue by its name.
    pub exchange: ShortString,
    pub key: ShortString,
    pub properties: BasicProperties,
    pub body: Bytes,
}

/// The way out, over a connection of its own: a server that takes no more messages still hears of settlements.
pub(super) struct Publisher {
    link: Arc<Link>,
    channel: tokio::sync::Mutex<Option<Channel>>,
}

impl Publisher {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { link, channel: tokio::sync::Mutex::new(None) }
    }

    async fn channel(&self) -> Result<Channel, BrokerError> {
        let mut slot = self.channel.lock().await;
        if let Some(channel) = slot.as_ref().filter(|channel| channel.status().connected()) {
            return Ok(channel.clone());
        }
        let channel = self.link.channel().await?;
        answered(channel.confirm_select(ConfirmSelectOptions::default())).await?;
        *slot = Some(channel.clone());
        Ok(channel)
    }

    /// Each with its own answer, once it is stored where it was sent.
    pub(super) async fn publish(
        &self,
        parcels: Vec<Parcel>,
    ) -> Result<Vec<Result<(), BrokerError>>, BrokerError> {
        let channel = self.channel().await?;
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let sending = parcels.iter().map(|parcel| {
            let (exchange, key) = (parcel.exchange.clone(), parcel.key.clone());
            channel.basic_publish(exchange, key, options, &parcel.body, parcel.properties.clone())
        });
        let stored = async {
            let confirms = join_all(sending).await;
            join_all(confirms.into_iter().map(confirmed)).await
        };
        let Ok(stored) = tokio::time::timeout(PATIENCE, stored).await else {
            let text = format!(
                "RabbitMQ did not confirm within {PATIENCE:?}: it may be blocked by an alarm"
            );
            return Err(BrokerError::Unreachable { text });
        };
        Ok(stored.into_iter().zip(&parcels).map(|(one, parcel)| outcome(one, parcel)).collect())
    }

    /// Of one that goes alone.
    pub(super) async fn publish_one(&self, parcel: Parcel) -> Result<(), BrokerError> {
        self.publish(vec![parcel]).await?.pop().unwrap_or(Ok(()))
    }
}

async fn confirmed(sent: lapin::Result<PublisherConfirm>) -> lapin::Result<Confirmation> {
    sent?.await
}

fn outcome(stored: lapin::Result<Confirmation>, parcel: &Parcel) -> Result<(), BrokerError> {
    match stored {
        Ok(Confirmation::Ack(None) | Confirmation::NotRequested) => Ok(()),
        Ok(Confirmation::Ack(Some(back)) | Confirmation::Nack(Some(back))) => {
            let (to, why) = (if parcel.exchange.as_str().is_empty() { &parcel.key } else { &parcel.exchange }, back.reply_text);
            Err(refused("queue_not_found", format!("RabbitMQ knows no queue for `{to}`: {why}")))
        }
        Ok(Confirmation::Nack(None)) => Err(BrokerError::Busy {
            text: "RabbitMQ refused the message (basic.nack): its queue is full or has no majority of nodes".into(),
        }),
        Err(cause) => Err(error(cause)),
    }
}
