//! Read-only operations: peek at messages, describe and list queues and sessions.

use malote_model::{QueueName, Refusal, Seq, SessionId, limits};

use crate::codec::Stored;
use crate::command::{Command, Peek, Reply, Resolution};
use crate::facts::{QueueFacts, SessionFacts};
use crate::handle::{Engine, EngineError, EngineResult, PeekedMessage, answer};

impl Engine {
    /// Reads messages without changing them. The second value is where the next page begins.
    pub async fn peek(&self, peek: Peek) -> EngineResult<(Vec<PeekedMessage>, Option<Seq>)> {
        self.seen(peek).await
    }

    pub(crate) async fn seen(&self, peek: Peek) -> EngineResult<(Vec<PeekedMessage>, Option<Seq>)> {
        let (queue, session) = (peek.queue.clone(), peek.session.clone());
        let reply = self.ask(Command::Peek(peek)).await;
        let (items, next) = answer!(reply, Reply::Peeked { items, next } => (items, next))?;
        let mut all = Vec::with_capacity(items.len());
        let read =
            Stored::load(&self.shared.segments, items.iter().map(|item| item.pos).collect()).await;
        for (mut item, mut stored) in items.into_iter().zip(read) {
            // The message was completed, or moved by compaction, before it was read: look it up again.
            if stored.as_ref().is_err_and(|unreadable| unreadable.gone) {
                let (queue, from, max) = (queue.clone(), item.seq, 1);
                let again = Peek { queue, from, max, session: None, state: None };
                let reply = self.ask(Command::Peek(again)).await;
                let (mut found, _) =
                    answer!(reply, Reply::Peeked { items, next } => (items, next))?;
                match found.pop().filter(|found| found.seq == item.seq) {
                    Some(found) => item = found,
                    None => continue,
                }
                let read = Stored::load(&self.shared.segments, vec![item.pos]).await;
                stored = read.into_iter().next().unwrap_or(stored);
            }
            if session.is_some() && stored.as_ref().is_ok_and(|s| s.message.session != session) {
                continue;
            }
            let (seq, state, due) = (item.seq, item.state, item.due);
            all.push(PeekedMessage {
                seq,
                state,
                deferred: item.deferred,
                receives: item.receives,
                failed: item.failed,
                first_at: item.first_at,
                due,
                stored,
            });
        }
        Ok((all, next))
    }

    /// Describes one queue.
    pub async fn describe(&self, queue: QueueName) -> EngineResult<QueueFacts> {
        let missing = Refusal::QueueNotFound { queue: queue.clone() };
        let reply = self.ask(Command::Describe { queue }).await;
        let mut facts = answer!(reply, Reply::Queues(facts) => facts)?;
        facts.pop().ok_or(EngineError::Refused(missing))
    }

    /// Lists all queues by name. Dead-letter sets are counted with their queues.
    ///
    /// The list is read page by page: a queue that is created or deleted meanwhile may or may not be included.
    pub async fn list(&self) -> EngineResult<Vec<QueueFacts>> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map(|last: &QueueFacts| last.name.clone());
            let page = self.list_page(after).await?;
            let is_last = page.len() < limits::LIST_MAX;
            all.extend(page);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// The next [`limits::LIST_MAX`] queues by name, after a given one. A shorter page is the last one.
    pub async fn list_page(&self, after: Option<QueueName>) -> EngineResult<Vec<QueueFacts>> {
        let command = Command::List { after, max: limits::LIST_MAX };
        answer!(self.ask(command).await, Reply::Queues(facts) => facts)
    }

    /// Finds the queue or else the topic of a name: by exact name, otherwise ignoring case if only one matches. Returns
    /// its own spelling, which is the name to check permissions on.
    pub async fn resolve(&self, name: QueueName) -> EngineResult<Resolution> {
        answer!(self.ask(Command::Resolve { name }).await, Reply::Resolved(found) => found)
    }

    /// Lists sessions of a queue in no meaningful order, from slot 0 or from where the last page ended. The second
    /// value is where the next page begins, even after a short page. Sessions that appear or disappear meanwhile, and a
    /// restart between two pages, may cause gaps or repetitions.
    pub async fn sessions(
        &self,
        queue: QueueName,
        from: u32,
        max: usize,
    ) -> EngineResult<(Vec<SessionFacts>, Option<u32>)> {
        let reply = self.ask(Command::Sessions { queue, from, max }).await;
        answer!(reply, Reply::Sessions { sessions, next } => (sessions, next))
    }

    /// Describes one session; `None` if it has no message, hold or state.
    pub async fn session(
        &self,
        queue: QueueName,
        session: SessionId,
    ) -> EngineResult<Option<SessionFacts>> {
        let reply = self.ask(Command::Session { queue, session }).await;
        answer!(reply, Reply::Sessions { mut sessions, .. } => sessions.pop())
    }
}
