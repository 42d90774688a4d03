//! Send: a message or a batch.
//!
//! Transfers that arrive while others are being stored wait, and go to the engine together. Clients that send one by
//! one therefore cost little more than those that send batches. Only one batch of a connection is in progress at a
//! time, so messages stay in order.

use std::collections::VecDeque;

use bytes::Bytes;
use malote_engine::{EncodedBatch, EngineError, IdFormat};
use malote_model::limits::SEND_BATCH_MAX;
use malote_model::{Address, Message, Timestamp};
use malote_wire_amqp::connection::{DeliveryId, Incoming, LinkId, UseError};
use malote_wire_amqp::message::{BATCH_FORMAT, Message as Wire, decode_batch};
use malote_wire_amqp::performative::{AmqpError, DeliveryState, condition};
use smallvec::{SmallVec, smallvec};

use super::transaction::transactional;
use crate::conn::link::LinkState;
use crate::conn::{Completion, Conn};
use crate::limits;
use crate::refusal::{LockKind, engine_error, servicebus};
use crate::wire::message::read as canonical;

/// A transfer that waits for the engine.
pub(crate) struct PendingTransfer {
    pub origin: TransferOrigin,
    pub batch: EncodedBatch,
}

/// Where to report the outcome.
pub(crate) struct TransferOrigin {
    pub link: LinkId,
    pub delivery: DeliveryId,
    /// The transfer was pre-settled: the client expects no outcome.
    pub settled: bool,
    pub bytes: usize,
}

/// Waiting transfers, bounded by the credit of the links and by `SENDING_BYTES_MAX`.
#[derive(Default)]
pub(crate) struct SendQueue {
    waiting: VecDeque<PendingTransfer>,
    in_progress: bool,
}

impl SendQueue {
    pub fn add(&mut self, transfer: PendingTransfer) {
        self.waiting.push_back(transfer);
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next batch; none while another is in progress.
    fn next(&mut self) -> Option<Vec<PendingTransfer>> {
        if self.in_progress || self.waiting.is_empty() {
            return None;
        }
        let (mut messages, mut bytes) = (0, 0);
        let fits = |transfer: &&PendingTransfer| {
            messages += transfer.batch.len();
            bytes += transfer.origin.bytes;
            messages <= SEND_BATCH_MAX && bytes <= limits::SEND_BATCH_BYTES_MAX
        };
        // The first transfer is always included, whatever its size.
        let count = self.waiting.iter().take_while(fits).count().max(1);
        self.in_progress = true;
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
            let text = "too many bytes are being sent on this connection; retry later";
            Err(AmqpError::new(servicebus::SERVER_BUSY, text))
        } else {
            read(&incoming, || self.front.engine.now())
        };
        self.sending_bytes += bytes;
        let batch = match (read, &txn_id) {
            (Ok(messages), None) => {
                let batch =
                    self.front.engine.encode_batch(&to, messages.into_iter(), IdFormat::Simple);
                batch.map_err(|error| Err(engine_error(error, LockKind::Message)))
            }
            (Ok(messages), Some(id)) => Err(self.transactions.send(id, &to, messages)),
            (Err(error), _) => Err(Err(error)),
        };
        let batch = match batch {
            Ok(batch) => batch,
            // Staged or refused: there is nothing to wait for.
            Err(sent) => {
                self.completed.push_back(Completion::Sent {
                    link,
                    delivery,
                    settled,
                    bytes,
                    txn_id,
                    sent,
                });
                return Ok(());
            }
        };
        self.send_queue.add(PendingTransfer {
            origin: TransferOrigin { link, delivery, settled, bytes },
            batch,
        });
        Ok(())
    }

    /// Sends the waiting transfers to the engine. Returns whether there were any.
    pub(crate) fn flush_sends(&mut self) -> bool {
        let Some(transfers) = self.send_queue.next() else { return false };
        let engine = self.front.engine.clone();
        self.start(async move {
            let parts = transfers.into_iter().map(|transfer| (transfer.origin, transfer.batch));
            let (origin, batches): (Vec<TransferOrigin>, Vec<EncodedBatch>) = parts.unzip();
            let error = |error: EngineError| engine_error(error, LockKind::Message);
            Completion::SentBatch(match engine.send_each(batches).await {
                Ok(each) => {
                    let each =
                        each.into_iter().map(|sent| sent.map(drop).map_err(|e| error(e.into())));
                    origin.into_iter().zip(each).collect()
                }
                Err(e) => {
                    origin.into_iter().map(|origin| (origin, Err(error(e.clone())))).collect()
                }
            })
        });
        true
    }

    /// After the connection has ended: sends what the client had sent before.
    pub fn complete_after_close(&mut self, completion: Completion) {
        if let Completion::SentBatch(_) = completion {
            self.send_queue.in_progress = false;
            self.flush_sends();
        }
    }

    pub(crate) fn finish_send_batch(&mut self, all: Vec<(TransferOrigin, Result<(), AmqpError>)>) {
        self.send_queue.in_progress = false;
        for (TransferOrigin { link, delivery, settled, bytes }, sent) in all {
            self.sending_bytes = self.sending_bytes.saturating_sub(bytes);
            self.finish_send(link, delivery, settled, None, sent);
        }
    }

    pub(crate) fn finish_send(
        &mut self,
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        txn_id: Option<Bytes>,
        sent: Result<(), AmqpError>,
    ) {
        if let Err(error) = &sent {
            tracing::debug!(%error, "message refused");
        }
        if !settled {
            let state = match (sent, txn_id) {
                (Ok(()), None) => DeliveryState::Accepted,
                (Ok(()), Some(txn_id)) => transactional(txn_id, DeliveryState::Accepted),
                (Err(error), _) => DeliveryState::rejected(error),
            };
            let _ = self.amqp.dispose(link, delivery, true, Some(state));
        }
        if let Some(LinkState::Sender(sender)) = self.links.get_mut(&link) {
            sender.in_progress = sender.in_progress.saturating_sub(1);
            let in_progress = sender.in_progress;
            self.grant_again(link, in_progress, limits::SEND_CREDIT);
        }
    }
}

/// Decodes the messages of a transfer. A batch is all or nothing.
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
            let text = format!("unsupported message format {other:#x}");
            Err(AmqpError::new(condition::NOT_IMPLEMENTED, text))
        }
    }
}
