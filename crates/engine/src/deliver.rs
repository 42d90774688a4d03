//! From a grant to a message in hand: what the core granted is read in the receiver's own task.

use std::sync::atomic::Ordering;

use malote_model::{LeaseToken, QueueName, SessionId};

use crate::codec::{Stored, Unreadable};
use crate::command::{Command, Grant, Reply};
use crate::handle::{Delivery, Engine};
use crate::mailbox::Mailbox;

/// What became of grants.
#[derive(Default)]
pub(crate) struct ReadGrants {
    pub deliveries: Vec<Delivery>,
    /// How many did not become deliveries: they could not be read, or their leases were over by then.
    pub missing: u32,
}

/// How often a leased message is looked for that compaction moved away while it was being read.
const LOCATE_TRIES: u32 = 4;

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
        // Whoever comes late finds that compaction moved messages away, or that their leases ended meanwhile.
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
            let Ok(Reply::Located(located)) = self.ask(Command::Locate { leases }).await else {
                return ReadGrants::default(); // stopping: nobody waits for it any more
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
                // Nothing is damaged: another holder completed the message, or it moved on.
                Err(_) if over.contains(&nth) => {
                    tracing::debug!(%queue, seq = seq.0, "the lease was over before the message was read");
                    missing += 1;
                }
                Err(Unreadable { text, .. }) => {
                    let what = match lease {
                        Some(_) => "a message is damaged on disk: it goes to the dead letters",
                        None => "a message is damaged on disk: it was taken, and is gone",
                    };
                    tracing::error!(%queue, seq = seq.0, error = text, "{what}");
                    leases.extend(lease.map(|lease| (lease, text)));
                    (missing, damaged) = (missing + 1, damaged + 1);
                }
            }
        }
        if damaged > 0 {
            self.shared.damaged.fetch_add(damaged, Ordering::Relaxed);
            self.shared.mailbox.tell(Command::Damaged { leases });
        }
        ReadGrants { deliveries: all, missing }
    }
}
