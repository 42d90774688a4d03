//! Send: a message or a batch, as it was received, for the engine. What comes while others are being stored waits and goes together: clients that
//! send one by one cost little more than those that send batches. And because no two sends of a connection are under way
//! at once, none can overtake another.

use std::collections::VecDeque;

use bytes::Bytes;
use malote_engine::{EngineError, Parcel};
use malote_model::limits::SEND_BATCH_MAX;
use malote_model::{Address, Message, Timestamp};
use malote_wire_amqp::connection::{DeliveryId, Incoming, LinkId, UseError};
use malote_wire_amqp::message::{BATCH_FORMAT, Message as Wire, decode_batch};
use malote_wire_amqp::performative::{AmqpError, DeliveryState, condition};
use smallvec::{SmallVec, smallvec};

use super::transaction::within;
use crate::conn::link::Link;
use crate::conn::{Conn, Done};
use crate::limits;
use crate::refusal::{Lock, error_of, servicebus};
use crate::wire::message::read as canonical;

/// A transfer whose messages wait for the engine.
pub(crate) struct Transfer {
    pub whose: Whose,
    pub parcel: Parcel,
}

/// Whom to answer.
pub(crate) struct Whose {
    pub link: LinkId,
    pub delivery: DeliveryId,
    /// The client has forgotten it and hears nothing.
    pub settled: bool,
    pub bytes: usize,
}

/// What waits; bounded by the credit of its links and by the bytes that a connection may be sending.
#[derive(Default)]
pub(crate) struct Sends {
    waiting: VecDeque<Transfer>,
    under_way: bool,
}

impl Sends {
    pub fn add(&mut self, transfer: Transfer) {
        self.waiting.push_back(transfer);
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What may go now: nothing while others are under way.
    fn next(&mut self) -> Option<Vec<Transfer>> {
        if self.under_way || self.waiting.is_empty() {
            return None;
        }
        let (mut messages, mut bytes) = (0, 0);
        let fits = |transfer: &&Transfer| {
            messages += transfer.parcel.len();
            bytes += transfer.whose.bytes;
            messages <= SEND_BATCH_MAX && bytes <= limits::TOGETHER_BYTES_MAX
        };
        // The first goes however large it is.
        let count = self.waiting.iter().take_while(fits).count().max(1);
        self.under_way = true;
        Some(self.waiting.drain(..count).collect())
    }
}

impl Conn {
    pub(crate) fn send(
        &mut self,
        to: Address,
        size_max: u64,
        incoming: Incoming,
    ) -> Result<(), UseError> {
        let bytes = incoming.payload.len();
        let Incoming { link, delivery, settled, .. } = incoming;
        let txn_id = match &incoming.state {
            Some(DeliveryState::Transactional(state)) => Some(state.txn_id.clone()),
            _ => None,
        };
        let read = if bytes as u64 > size_max {
            let text = format!("The received message has {bytes} bytes; the limit is {size_max}.");
            Err(AmqpError::new(condition::MESSAGE_SIZE_EXCEEDED, text))
        } else if self.sending_bytes > limits::SENDING_BYTES_MAX {
            let text = "too much is being sent on this connection";
            Err(AmqpError::new(servicebus::SERVER_BUSY, text))
        } else {
            read(&incoming, || self.front.engine.now())
        };
        self.sending_bytes += bytes;
        let parcel = match (read, &txn_id) {
            (Ok(messages), None) => {
                let parcel = self.front.engine.parcel(&to, messages.into_iter());
                parcel.map_err(|error| Err(error_of(error, Lock::Message)))
            }
            (Ok(messages), Some(id)) => Err(self.transactions.send(id, &to, messages)),
            (Err(error), _) => Err(Err(error)),
        };
        let parcel = match parcel {
            Ok(parcel) => parcel,
            // Staged, or refused: either way there is nothing to wait for.
            Err(sent) => {
                self.ready.push_back(Done::Sent { link, delivery, settled, bytes, txn_id, sent });
                return Ok(());
            }
        };
        self.sends.add(Transfer { whose: Whose { link, delivery, settled, bytes }, parcel });
        Ok(())
    }

    /// Hands over what waits; tells whether there was anything to hand over.
    pub(crate) fn flush_sends(&mut self) -> bool {
        let Some(transfers) = self.sends.next() else { return false };
        let engine = self.front.engine.clone();
        self.start(async move {
            let parts = transfers.into_iter().map(|transfer| (transfer.whose, transfer.parcel));
            let (whose, parcels): (Vec<Whose>, Vec<Parcel>) = parts.unzip();
            let error = |error: EngineError| error_of(error, Lock::Message);
            Done::SentTogether(match engine.send_each(parcels).await {
                Ok(each) => {
                    let each = each.into_iter().map(|sent| sent.map_err(|e| error(e.into())));
                    whose.into_iter().zip(each).collect()
                }
                Err(e) => whose.into_iter().map(|whose| (whose, Err(error(e.clone())))).collect(),
            })
        });
        true
    }

    /// Something is over whose client is gone: the next of what it sent is handed over.
    pub fn done_after_all(&mut self, done: Done) {
        if let Done::SentTogether(_) = done {
            self.sends.under_way = false;
            self.flush_sends();
        }
    }

    pub(crate) fn sent_together(&mut self, all: Vec<(Whose, Result<(), AmqpError>)>) {
        self.sends.under_way = false;
        for (Whose { link, delivery, settled, bytes }, sent) in all {
            self.sending_bytes = self.sending_bytes.saturating_sub(bytes);
            self.sent(link, delivery, settled, None, sent);
        }
    }

    pub(crate) fn sent(
        &mut self,
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        txn_id: Option<Bytes>,
        sent: Result<(), AmqpError>,
    ) {
        if let Err(error) = &sent {
            tracing::debug!(%error, "a message was refused");
        }
        if !settled {
            let state = match (sent, txn_id) {
                (Ok(()), None) => DeliveryState::Accepted,
                (Ok(()), Some(txn_id)) => within(txn_id, DeliveryState::Accepted),
                (Err(error), _) => DeliveryState::rejected(error),
            };
            let _ = self.amqp.dispose(link, delivery, true, Some(state));
        }
        if let Some(Link::Sender(sender)) = self.links.get_mut(&link) {
            sender.under_way = sender.under_way.saturating_sub(1);
            let under_way = sender.under_way;
            self.grant_again(link, under_way, limits::SEND_CREDIT);
        }
    }
}

/// The messages of a transfer, in order. A batch is all or nothing.
fn read(
    incoming: &Incoming,
    now: impl Fn() -> Timestamp,
) -> Result<SmallVec<[Message; 1]>, AmqpError> {
    let wire = Wire::parse_any_order(incoming.payload.clone())?;
    match incoming.message_format {
        BATCH_FORMAT => {
            let batch = decode_batch(&wire, limits::BATCH_MAX)?;
            let batch = batch.map_err(|error| {
                AmqpError::new(servicebus::ARGUMENT_OUT_OF_RANGE, error.to_string())
            })?;
            batch.iter().map(|wire| canonical(wire, &now)).collect()
        }
        0 => Ok(smallvec![canonical(&wire, now)?]),
        other => {
            let text = format!("message format {other:#x} is not known");
            Err(AmqpError::new(condition::NOT_IMPLEMENTED, text))
        }
    }
}
