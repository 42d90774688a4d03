//! Deleting messages without receiving them, and completing messages whose leases have ended.

use malote_model::{QueueName, Seq, SessionId, Timestamp};

use crate::command::{Command, MessageState, Peek, Reply};
use crate::handle::{Engine, EngineError};

/// Messages read at once before they are purged.
const LOOK_MAX: usize = 64;

impl Engine {
    /// Deletes all messages that are not leased. Returns how many.
    pub async fn purge(&self, queue: QueueName) -> Result<u64, EngineError> {
        self.count(Command::Purge { queue, leased: false }).await
    }

    /// Deletes all messages, including leased ones. Returns how many.
    pub async fn purge_all(&self, queue: QueueName) -> Result<u64, EngineError> {
        self.count(Command::Purge { queue, leased: true }).await
    }

    /// Deletes ready messages that were enqueued before a time, oldest first and at most `max`, of one session or of
    /// all. Returns how many.
    pub async fn purge_older(
        &self,
        queue: QueueName,
        session: Option<SessionId>,
        before: Timestamp,
        max: u64,
    ) -> Result<u64, EngineError> {
        let (mut purged, mut from) = (0, Some(Seq(0)));
        while let Some(at) = from
            && purged < max
        {
            let most = usize::try_from(max - purged).unwrap_or(usize::MAX).min(LOOK_MAX);
            let (queue, session) = (queue.clone(), session.clone());
            let state = Some(MessageState::Ready);
            let peek = Peek { queue: queue.clone(), from: at, max: most, session, state };
            let (seen, next) = self.seen(peek).await?;
            from = next;
            let mut items = Vec::with_capacity(seen.len());
            for message in seen {
                // Damaged messages are handled when they are received.
                let Ok(stored) = message.stored else { continue };
                if stored.enqueued_at >= before {
                    from = None; // later messages are newer
                    break;
                }
                items.push((message.seq, stored.message.session));
            }
            if !items.is_empty() {
                purged += self.count(Command::PurgeThese { queue, items }).await?;
            }
        }
        Ok(purged)
    }

    /// Completes messages whose leases have ended and that no other receiver has, if they were received no earlier than
    /// the given time. Returns how many. Refused in queues with sessions.
    pub async fn complete_late(
        &self,
        queue: QueueName,
        items: Vec<(Seq, Timestamp)>,
    ) -> Result<u64, EngineError> {
        self.count(Command::CompleteLate { queue, items }).await
    }

    async fn count(&self, command: Command) -> Result<u64, EngineError> {
        match self.ask(command).await? {
            Reply::Count(n) => Ok(n),
            other => unreachable!("the core answered {other:?}"),
        }
    }
}
