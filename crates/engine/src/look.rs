//! What a caller can see without changing anything: messages, queues, sessions.

use malote_model::{QueueName, Refusal, Seq, SessionId, limits};

use crate::codec::Stored;
use crate::command::{Command, Peek, QueueFacts, Reply, Resolution, SessionFacts};
use crate::handle::{Answer, Engine, EngineError, Seen, answer};

impl Engine {
    /// Looks at messages without touching them. The second value continues where this ended.
    pub async fn peek(&self, peek: Peek) -> Answer<(Vec<Seen>, Option<Seq>)> {
        self.seen(peek).await
    }

    pub(crate) async fn seen(&self, peek: Peek) -> Answer<(Vec<Seen>, Option<Seq>)> {
        let (queue, session) = (peek.queue.clone(), peek.session.clone());
        let reply = self.ask(Command::Peek(peek)).await;
        let (items, next) = answer!(reply, Reply::Peeked { items, next } => (items, next))?;
        let mut all = Vec::with_capacity(items.len());
        let read =
            Stored::load(&self.shared.segments, items.iter().map(|item| item.pos).collect()).await;
        for (mut item, mut stored) in items.into_iter().zip(read) {
            // Completed, or moved by compaction, before it was read: it is looked for once more.
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
            all.push(Seen {
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

    /// Facts about one queue.
    pub async fn describe(&self, queue: QueueName) -> Answer<QueueFacts> {
        let missing = Refusal::QueueNotFound { queue: queue.clone() };
        let reply = self.ask(Command::Describe { queue }).await;
        let mut facts = answer!(reply, Reply::Queues(facts) => facts)?;
        facts.pop().ok_or(EngineError::Refused(missing))
    }

    /// Facts about every queue, by name; dead-letter sets are counted with their queues.
    ///
    /// They are asked for a page at a time: a queue that is created or deleted meanwhile may or may not be among them.
    pub async fn list(&self) -> Answer<Vec<QueueFacts>> {
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

    /// The next [`limits::LIST_MAX`] queues by name, from after one. A page with fewer is the last.
    pub async fn list_page(&self, after: Option<QueueName>) -> Answer<Vec<QueueFacts>> {
        let command = Command::List { after, max: limits::LIST_MAX };
        answer!(self.ask(command).await, Reply::Queues(facts) => facts)
    }

    /// The queue of that name, else the topic; exactly, else in another case if only one is spelled so. Its own spelling
    /// is returned: that name, and not the one asked for, is what permissions are checked on.
    pub async fn resolve(&self, name: QueueName) -> Answer<Resolution> {
        answer!(self.ask(Command::Resolve { name }).await, Reply::Resolved(found) => found)
    }

    /// Sessions of a queue, in no order that means anything, from 0 or from where the last look ended: the second value
    /// says where, also after a look that found few. Sessions that come or go meanwhile, and a restart between two
    /// looks, may make it miss some or show some twice.
    pub async fn sessions(
        &self,
        queue: QueueName,
        from: u32,
        max: usize,
    ) -> Answer<(Vec<SessionFacts>, Option<u32>)> {
        let reply = self.ask(Command::Sessions { queue, from, max }).await;
        answer!(reply, Reply::Sessions { sessions, next } => (sessions, next))
    }

    /// Facts about one session; none if it has no message, hold or state.
    pub async fn session(
        &self,
        queue: QueueName,
        session: SessionId,
    ) -> Answer<Option<SessionFacts>> {
        let reply = self.ask(Command::Session { queue, session }).await;
        answer!(reply, Reply::Sessions { mut sessions, .. } => sessions.pop())
    }
}
