//! From a grant to a message in hand: what the core granted is read in the receiver's own task.

use std::sync::atomic::Ordering;

use malote_model::{QueueName, SessionId};

use crate::codec::{Stored, Unreadable};
use crate::command::{Command, Grant, Reply};
use crate::handle::{Delivery, Engine};
use crate::mailbox::Mailbox;

/// What became of grants.
#[derive(Default)]
pub(crate) struct ReadGrants {
    pub deliveries: Vec<Delivery>,
    /// How many could not be read.
    pub damaged: u32,
}

/// Grants that nobody has seen yet: if nobody ever does, they come back at once, not when their locks end.
struct Unseen<'a> {
    mailbox: &'a Mailbox,
    grants: Vec<Grant>,
}

impl Drop for Unseen<'_> {
    fn drop(&mut self) {
        self.mailbox.release(std::mem::take(&mut self.grants));
    }
}

impl Engine {
    /// Fetches what the grants stand for, in the caller's task. What cannot be read goes to the dead letters. A caller
    /// that goes away meanwhile takes no message with it.
    pub(crate) async fn deliveries(&self, queue: &QueueName, grants: Vec<Grant>) -> Vec<Delivery> {
        let mut unseen = Unseen { mailbox: &self.shared.mailbox, grants };
        let read = self.read(queue, &unseen.grants).await;
        unseen.grants.clear();
        read.deliveries
    }

    /// The same, for a caller that sees to what happens when it is given up half-way.
    pub(crate) async fn read(&self, queue: &QueueName, grants: &[Grant]) -> ReadGrants {
        let segments = &self.shared.segments;
        let mut read = Stored::load(segments, grants.iter().map(|grant| grant.pos).collect()).await;
        let gone = |stored: &Result<Stored, Unreadable>| stored.as_ref().is_err_and(|e| e.gone);
        if read.iter().any(gone) {
            // Whoever comes late finds that compaction moved messages away: they are where their leases say.
            let leases = grants.iter().map(|grant| grant.lease.unwrap_or_default()).collect();
            let Ok(Reply::Located(located)) = self.ask(Command::Locate { leases }).await else {
                return ReadGrants::default(); // stopping: nobody waits for it any more
            };
            for (stored, pos) in read.iter_mut().zip(located) {
                if let (true, Some(pos)) = (gone(stored), pos)
                    && let Some(again) = Stored::load(segments, vec![pos]).await.pop()
                {
                    *stored = again;
                }
            }
        }
        let mut all = Vec::with_capacity(grants.len());
        let (mut leases, mut damaged) = (Vec::new(), 0);
        for (grant, stored) in grants.iter().zip(read) {
            let Grant { seq, lease, until, receives, failed, first_at, last, .. } = *grant;
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
                Err(Unreadable { text, .. }) => {
                    let what = match lease {
                        Some(_) => "a message is damaged on disk: it goes to the dead letters",
                        None => "a message is damaged on disk: it was taken, and is gone",
                    };
                    tracing::error!(%queue, seq = seq.0, error = text, "{what}");
                    leases.extend(lease.map(|lease| (lease, text)));
                    damaged += 1;
                }
            }
        }
        if damaged > 0 {
            self.shared.damaged.fetch_add(damaged.into(), Ordering::Relaxed);
            self.shared.mailbox.tell(Command::Damaged { leases });
        }
        ReadGrants { deliveries: all, damaged }
    }
}
