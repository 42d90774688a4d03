//! Dead letters: moving them back, and editing and resending one.

use malote_model::{Address, Message, QueueName, Refusal, Seq, limits};

use crate::command::{Command, MessageState, MoveItem, MoveWhy, Peek, Reply};
use crate::handle::{Engine, EngineResult, Sent, answer};

/// Which dead letters to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLetterSelection {
    /// The oldest ones, up to this number.
    Oldest(usize),
    /// Those with these sequence numbers. If one does not exist, none is moved.
    Seqs(Vec<Seq>),
}

impl Engine {
    /// Moves dead letters of `queue` to `to`, or to the queues that they came from. Returns how many were moved.
    pub async fn redrive(
        &self,
        queue: QueueName,
        which: DeadLetterSelection,
        to: Option<QueueName>,
    ) -> EngineResult<u64> {
        self.redrive_permitted(queue, which, to, |_| true).await
    }

    /// Like [`Engine::redrive`], but skips messages whose destination is not permitted. Dead letters of one queue may
    /// come from several queues.
    pub async fn redrive_permitted(
        &self,
        queue: QueueName,
        which: DeadLetterSelection,
        to: Option<QueueName>,
        permitted: impl Fn(&QueueName) -> bool + Send,
    ) -> EngineResult<u64> {
        let from = queue.dead_letters();
        let mut moved = 0;
        let mut next = Seq(0);
        loop {
            let batch = match &which {
                DeadLetterSelection::Oldest(max) => {
                    let left = max.saturating_sub(moved as usize).min(limits::RECEIVE_BATCH_MAX);
                    if left == 0 {
                        return Ok(moved);
                    }
                    let peek = Peek {
                        queue: from.clone(),
                        from: next,
                        max: left,
                        session: None,
                        state: Some(MessageState::Ready),
                    };
                    self.seen(peek).await?
                }
                DeadLetterSelection::Seqs(seqs) => {
                    let mut all = Vec::with_capacity(seqs.len());
                    for &seq in seqs {
                        let peek = Peek {
                            queue: from.clone(),
                            from: seq,
                            max: 1,
                            session: None,
                            state: None,
                        };
                        let mut seen = self.seen(peek).await?;
                        if seen.0.first().is_none_or(|first| first.seq != seq) {
                            let what = "dead-lettered";
                            return Err(Refusal::MessageNotFound { queue: from, seq, what }.into());
                        }
                        all.append(&mut seen.0);
                    }
                    (all, None)
                }
            };
            let (seen, more) = batch;
            let items = seen.iter().filter_map(|s| {
                let home = s.dead().map(|dead| dead.from.clone());
                let to = to.clone().or(home).filter(|to| permitted(to))?;
                Some(MoveItem::unchanged(s.seq, to))
            });
            let items: Vec<_> = items.collect();
            if !items.is_empty() {
                let command = Command::Move { from: from.clone(), items, why: MoveWhy::Redrive };
                moved += answer!(self.ask(command).await, Reply::Count(n) => n)?;
            }
            match more {
                Some(more) if matches!(which, DeadLetterSelection::Oldest(_)) => next = more,
                _ => return Ok(moved),
            }
        }
    }

    /// Moves ready messages of one queue, each to its own target. If one cannot be moved, none is. Their counters are
    /// reset, as by a redrive.
    pub async fn move_ready(&self, from: QueueName, items: Vec<MoveItem>) -> EngineResult<u64> {
        let command = Command::Move { from, items, why: MoveWhy::Redrive };
        answer!(self.ask(command).await, Reply::Count(n) => n)
    }

    /// Atomically removes one message of `from` and sends another one to `to`: edit and resend.
    pub async fn resend(
        &self,
        from: QueueName,
        seq: Seq,
        to: QueueName,
        message: Message,
    ) -> EngineResult<Sent> {
        let (mut items, mut ids) = self.outgoing(vec![(to.into(), message)])?;
        let (Some((Address::Queue(to), message)), Some(message_id)) = (items.pop(), ids.pop())
        else {
            unreachable!("one message in, one out")
        };
        let command = Command::Replace { from, seq, to, message };
        match answer!(self.ask(command).await, Reply::Sent(sent) => sent)?[..] {
            [receipt] => Ok(Sent::of(receipt, message_id)),
            _ => unreachable!("one message in, one out"),
        }
    }
}
