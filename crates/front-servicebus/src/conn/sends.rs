//! Messages on their way to the engine. What comes while others are being stored waits and goes together: clients that
//! send one by one cost little more than those that send batches. And because no two sends of a connection are under way
//! at once, none can overtake another.

use std::collections::VecDeque;

use malote_engine::{EncodedBatch, EngineError};
use malote_model::limits::SEND_BATCH_MAX;
use malote_wire_amqp::connection::{DeliveryId, LinkId};
use malote_wire_amqp::performative::AmqpError;

use super::{Conn, Done};
use crate::limits;
use crate::refusal::{Lock, error_of};

/// A transfer whose messages wait for the engine.
pub(super) struct Transfer {
    pub whose: Whose,
    pub batch: EncodedBatch,
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
pub(super) struct Sends {
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
            messages += transfer.batch.len();
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
    /// Hands over what waits; tells whether there was anything to hand over.
    pub(super) fn flush_sends(&mut self) -> bool {
        let Some(transfers) = self.sends.next() else { return false };
        let engine = self.front.engine.clone();
        self.start(async move {
            let parts = transfers.into_iter().map(|transfer| (transfer.whose, transfer.batch));
            let (whose, batches): (Vec<Whose>, Vec<EncodedBatch>) = parts.unzip();
            let error = |error: EngineError| error_of(error, Lock::Message);
            Done::SentTogether(match engine.send_each(batches).await {
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

    pub(super) fn sent_together(&mut self, all: Vec<(Whose, Result<(), AmqpError>)>) {
        self.sends.under_way = false;
        for (Whose { link, delivery, settled, bytes }, sent) in all {
            self.sending_bytes = self.sending_bytes.saturating_sub(bytes);
            self.sent(link, delivery, settled, None, sent);
        }
    }
}
