//! Reads granted messages, in the receiver's own task.

use std::sync::atomic::Ordering;

use malote_model::{LeaseToken, QueueName, SessionId};

use crate::codec::{Stored, Unreadable};
use crate::command::{Command, MessageGrant, Reply};
use crate::handle::{Delivery, Engine, EngineResult};
use crate::mailbox::Mailbox;

/// The result of reading grants.
pub(crate) struct ReadGrants {
    pub deliveries: Vec<Delivery>,
    /// The number of grants without a delivery: the message could not be read, or its lease had ended.
    pub missing: u32,
}

/// How often a leased message is located again, if compaction moves it while it is being read.
const LOCATE_TRIES: u32 = 4;

/// Grants that have not reached a receiver. If they are dropped, they are returned at once instead of when their locks
/// expire.
struct UndeliveredGrants<'a> {
    mailbox: &'a Mailbox,
    grants: Vec<MessageGrant>,
}

impl Drop for UndeliveredGrants<'_> {
    fn drop(&mut self) {
        self.mailbox.release(std::mem::take(&mut self.grants));
    }
}

impl Engine {
    /// Reads the granted messages in the caller's task. Unreadable messages are dead-lettered. Dropping the future
    /// loses no message. An error means that the engine has stopped.
    pub(crate) async fn deliveries(
        &self,
        queue: &QueueName,
        grants: Vec<MessageGrant>,
    ) -> EngineResult<Vec<Delivery>> {
        let mut unseen = UndeliveredGrants { mailbox: &self.shared.mailbox, grants };
        let read = self.read(queue, &unseen.grants).await?;
        unseen.grants.clear();
        Ok(read.deliveries)
    }

    /// Like [`Engine::deliveries`], for a caller that handles cancellation itself.
    pub(crate) async fn read(
        &self,
        queue: &QueueName,
        grants: &[MessageGrant],
    ) -> EngineResult<ReadGrants> {
        let segments = &self.shared.segments;
        let mut read = Stored::load(segments, grants.iter().map(|grant| grant.pos).collect()).await;
        // Meanwhile, compaction may have moved messages, or leases may have ended.
        let mut over: Vec<usize> = Vec::new();
        for _ in 0..LOCATE_TRIES {
            let late = |nth: usize| {
                let stored: &Result<Stored, Unreadable> = &read[nth];
                let gone = stored.as_ref().is_err_and(|unreadable| unreadable.gone);
                grants[nth].lease.filter(|_| gone && !over.contains(&nth)).map(|lease| (nth, lease))
            };
            let late: Vec<(usize, LeaseToken)> = (0..grants.len()).filter_map(late).collect();
            if late.is_empty() {
                break;
            }
            let leases = late.iter().map(|(_, lease)| *lease).collect();
            // If the engine has stopped, nothing is delivered: a later message must not overtake the missing one.
            let located = match self.ask(Command::Locate { leases }).await? {
                Reply::Located(located) => located,
                other => unreachable!("the core answered {other:?}"),
            };
            for ((nth, _), pos) in late.into_iter().zip(located) {
                let Some(pos) = pos else {
                    over.push(nth);
                    continue;
                };
                if let Some(again) = Stored::load(segments, vec![pos]).await.pop() {
                    read[nth] = again;
                }
            }
        }
        let mut all = Vec::with_capacity(grants.len());
        let (mut leases, mut missing, mut damaged) = (Vec::new(), 0, 0_u64);
        for (nth, (grant, stored)) in grants.iter().zip(read).enumerate() {
            let MessageGrant { seq, lease, until, receives, failed, first_at, last, .. } = *grant;
            match stored {
                Ok(stored) => {
                    let message = &stored.message;
                    let session = message.session.as_ref().map(SessionId::as_str);
                    let (id, token) =
                        (message.message_id.as_deref(), lease.map(tracing::field::display));
                    tracing::debug!(%queue, session, message_id = id, seq = seq.0, lease = token, attempt = receives, "delivered");
                    all.push(Delivery {
                        seq,
                        lease,
                        until,
                        receives,
                        failed,
                        first_at,
                        last,
                        stored,
                    });
                }
                // Not damaged: another receiver completed the message, or it was moved.
                Err(_) if over.contains(&nth) => {
                    tracing::debug!(%queue, seq = seq.0, "the lease ended before the message was read");
                    missing += 1;
                }
                Err(Unreadable { text, .. }) => {
                    let what = match lease {
                        Some(_) => "a message is damaged on disk: it is dead-lettered",
                        None => {
                            "a message is damaged on disk: it was removed on delivery and is lost"
                        }
                    };
                    tracing::error!(%queue, seq = seq.0, error = text, "{what}");
                    leases.extend(lease.map(|lease| (lease, text)));
                    (missing, damaged) = (missing + 1, damaged + 1);
                }
            }
        }
        if damaged > 0 {
            self.shared.damaged.fetch_add(damaged, Ordering::Relaxed);
            self.shared.mailbox.post(Command::Damaged { leases });
        }
        Ok(ReadGrants { deliveries: all, missing })
    }
}
