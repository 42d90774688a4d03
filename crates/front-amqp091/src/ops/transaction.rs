//! `tx.commit` and `tx.rollback`. As in RabbitMQ, a transaction is not atomic across queues: it only holds publications
//! and acknowledgements back until the commit.

use crate::conn::Conn;
use crate::conn::channel::{Mode, Staged, Verdict};
use crate::conn::completion::Done;
use crate::refusal::precondition;
use crate::wire::error::Exception;
use crate::wire::method::{DecodeMethod as _, tx};

use super::publish::send;
use super::settle::{acknowledged, settlement};

impl Conn {
    fn staged(&mut self, number: u16) -> Result<&mut Staged, Exception> {
        match &mut self.channel(number).mode {
            Mode::Transaction(staged) => Ok(staged),
            Mode::Plain | Mode::Confirm(_) => Err(precondition("channel is not transactional")),
        }
    }

    pub(crate) fn commit(&mut self, number: u16) -> Result<(), Exception> {
        // Taken from the channel for the check: a refusal ends the channel, and with it the rest of the transaction.
        let permissions = std::mem::take(&mut self.staged(number)?.permissions);
        self.allow_staged(&permissions)?;
        let Staged { publications, bytes, settled, .. } = std::mem::take(self.staged(number)?);
        acknowledged(self.channel(number), settled.iter().map(|(one, _)| one));
        self.forget_unacked(settled.len());
        self.staged_bytes = self.staged_bytes.saturating_sub(bytes);
        self.feed(number);
        let (engine, session) = (self.front.engine.clone(), self.session.clone());
        self.sending_bytes += bytes;
        self.start_request(number, tx::Commit::ID, async move {
            let outcomes = send(&engine, &session.host, publications).await;
            for verdict in [Verdict::Complete, Verdict::Requeue, Verdict::Reject] {
                let leases = settled.iter().filter(|(_, have)| *have == verdict);
                let leases: Vec<_> = leases.map(|(one, _)| one.lease).collect();
                for part in leases.chunks(malote_model::limits::SETTLE_BATCH_MAX) {
                    let settled = engine.settle(None, part.to_vec(), settlement(verdict), None);
                    settled.await.map_err(|error| crate::refusal::failed(&session.host, &error))?;
                }
            }
            Ok(Done::Committed { bytes, outcomes })
        });
        Ok(())
    }

    /// Drops publications, and takes acknowledgements back. Deliveries stay with the client.
    pub(crate) fn roll_back(&mut self, number: u16) -> Result<(), Exception> {
        let staged = std::mem::take(self.staged(number)?);
        self.staged_bytes = self.staged_bytes.saturating_sub(staged.bytes);
        let returned = staged.settled.into_iter().map(|(one, _)| (one.tag, one));
        self.channel(number).unacked.extend(returned);
        self.put(number, &tx::RollbackOk {});
        Ok(())
    }
}
