//! Settling, and letting go of sessions: what waits at the same time goes in one transaction.
//!
//! Both take one way, in the order in which they were asked for, so that a session is never let go before what was
//! settled of it. `write.rs` has the statements.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use malote_model::{Settlement, limits};
use tokio::sync::{mpsc, oneshot};

use super::holds::Hold;
use super::token::Token;
use super::write::{self, Back, Kind, Plan, StateItem};
use super::{Shared, error, message};
use crate::broker::{BrokerError, Settle};

/// Settlements of one transaction.
const BATCH_MAX: usize = 2048;
/// Calls that wait.
const CALLS_MAX: usize = 4096;
/// How often a transaction that met another one is tried again.
const TRIES: usize = 5;

type Answers = Vec<Result<(), BrokerError>>;

/// How long after a failure what nobody waits for is asked for again.
const AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(200);

/// What is asked for.
pub(super) enum Work {
    Settle { items: Vec<Settle>, reply: Option<oneshot::Sender<Answers>> },
    LetGo { hold: Arc<Hold>, reply: Option<oneshot::Sender<Result<(), BrokerError>>> },
}

impl Work {
    fn len(&self) -> usize {
        match self {
            Self::Settle { items, .. } => items.len(),
            Self::LetGo { .. } => 1,
        }
    }
}

pub(super) fn channel() -> (mpsc::Sender<Work>, mpsc::Receiver<Work>) {
    mpsc::channel(CALLS_MAX)
}

/// An answer that waits for the transaction: whether the message was the caller's.
enum Waits {
    Is(Result<(), BrokerError>),
    For { seq: i64, lease: Option<i64>, hold: Option<Arc<Hold>>, again: bool },
}

/// A transaction in the making.
#[derive(Default)]
struct Batch {
    plan: Plan,
    /// Sessions whose rows are locked.
    locked: BTreeMap<i64, ()>,
    /// Holds that end with it.
    ending: HashMap<i64, Arc<Hold>>,
    delay_ms: Option<i64>,
}

impl Shared {
    pub(super) async fn settle(&self, items: Vec<Settle>) -> Result<Answers, BrokerError> {
        let (reply, answer) = oneshot::channel();
        let work = Work::Settle { items, reply: Some(reply) };
        self.settles.send(work).await.map_err(|_| BrokerError::Closed)?;
        answer.await.map_err(|_| BrokerError::Closed)
    }

    /// Settles and lets go until nobody can ask for it any more.
    pub(super) async fn write_settlements(self: Arc<Self>, mut asked: mpsc::Receiver<Work>) {
        while let Some(first) = asked.recv().await {
            let mut count = first.len();
            let mut all = vec![first];
            while count < BATCH_MAX
                && let Ok(work) = asked.try_recv()
            {
                count += work.len();
                all.push(work);
            }
            self.settle_batch(all).await;
        }
    }

    async fn settle_batch(&self, all: Vec<Work>) {
        let mut batch = Batch::default();
        let mut waiting = Vec::with_capacity(all.len());
        let mut unheard = Vec::new();
        for work in all {
            match work {
                Work::Settle { items, reply } => {
                    if reply.is_none() {
                        unheard.push(Work::Settle { items: items.clone(), reply: None });
                    }
                    let waits: Vec<_> =
                        items.into_iter().map(|item| self.plan(&mut batch, item)).collect();
                    waiting.push((waits, reply));
                }
                Work::LetGo { hold, reply } => {
                    batch.locked.insert(hold.num, ());
                    unheard.push(Work::LetGo { hold: hold.clone(), reply: None });
                    batch.ending.insert(hold.hold, hold);
                    if let Some(reply) = reply {
                        batch.plan.told.push(reply);
                    }
                }
            }
        }
        batch.plan.locked = batch.locked.into_keys().collect();
        let done = self.settle_transaction(&mut batch.plan, &batch.ending).await;
        let mut settled: HashSet<i64> = done.as_ref().ok().cloned().unwrap_or_default();
        for (waits, reply) in waiting {
            let answers: Answers = waits
                .into_iter()
                .map(|waits| match waits {
                    Waits::Is(answer) => answer,
                    Waits::For { seq, lease, hold, again } => match &done {
                        Err(error) => Err(error.clone()),
                        // A second one for the same message finds nothing.
                        Ok(_) if settled.remove(&seq) => {
                            self.ended(seq, lease, hold.as_deref(), again);
                            Ok(())
                        }
                        Ok(_) => {
                            self.ended(seq, lease, hold.as_deref(), false);
                            Err(BrokerError::LockLost)
                        }
                    },
                })
                .collect();
            if let Some(reply) = reply {
                let _ = reply.send(answers); // whoever asked may be gone
            }
        }
        if done.is_ok() {
            for hold in batch.ending.values() {
                self.forget(hold);
            }
            if let Some(delay) = batch.delay_ms {
                self.due_in(delay);
            }
        }
        if done.as_ref().is_err_and(BrokerError::is_transient) && !unheard.is_empty() {
            self.ask_again(unheard);
        }
        for reply in std::mem::take(&mut batch.plan.told) {
            let _ = reply.send(done.as_ref().map(drop).map_err(Clone::clone));
        }
    }

    /// Nobody else would: what is in nobody's hand any more would stay locked, because this process lives.
    fn ask_again(&self, unheard: Vec<Work>) {
        let settles = self.settles.clone();
        self.handle.spawn(async move {
            tokio::time::sleep(AGAIN_AFTER).await;
            for work in unheard {
                let _ = settles.try_send(work); // a full line: its lock ends it
            }
        });
    }

    /// A message is out of hand.
    fn ended(&self, seq: i64, lease: Option<i64>, hold: Option<&Hold>, again: bool) {
        match (hold, lease) {
            (Some(hold), _) => hold.ended(seq, again),
            (None, Some(lease)) => self.let_go(seq, lease),
            (None, None) => {}
        }
    }

    /// A message of a queue without sessions is not in hand by this lease any more.
    pub(super) fn let_go(&self, seq: i64, lease: i64) {
        let mut plain = self.plain.lock();
        if plain.get(&seq) == Some(&lease) {
            plain.remove(&seq);
        }
    }

    /// Puts a settlement where it belongs in the transaction.
    fn plan(&self, batch: &mut Batch, Settle { lease, settlement, state }: Settle) -> Waits {
        let (seq, lease, hold) = match Token::read(lease) {
            Some(Token::Plain { seq, lease }) => (seq, Some(lease), None),
            Some(Token::Held { seq, hold }) => match self.hold(hold) {
                Some(hold) if hold.has_out(seq) => (seq, None, Some(hold)),
                _ => return Waits::Is(Err(BrokerError::LockLost)),
            },
            Some(Token::Hold { .. }) | None => return Waits::Is(Err(BrokerError::LockLost)),
        };
        if let Some(hold) = &hold {
            batch.locked.insert(hold.num, ());
        }
        let hold_id = hold.as_ref().map(|hold| hold.hold);
        let back = match back(seq, lease, hold_id, settlement) {
            Ok(back) => back,
            Err(error) => return Waits::Is(Err(error)),
        };
        let again = back.as_ref().is_some_and(|back| back.kind != Kind::Dead);
        if let (Some(back), Some(hold)) = (&back, &hold)
            && back.delay_ms > 0
        {
            // The rest of the session waits for it: nobody holds it until then.
            batch.ending.insert(hold.hold, hold.clone());
        }
        if let Some(back) = &back
            && back.delay_ms > 0
        {
            let least = batch.delay_ms.unwrap_or(i64::MAX).min(back.delay_ms);
            batch.delay_ms = Some(least);
        }
        if let Some(new) = state {
            let of = Token::read(new.hold);
            let (Some(Token::Hold { num, hold: id }), Some(held)) = (of, hold_id) else {
                return Waits::Is(Err(BrokerError::LockLost));
            };
            if id != held {
                return Waits::Is(Err(BrokerError::LockLost));
            }
            if new.state.as_ref().is_some_and(|s| s.len() > limits::SESSION_STATE_BYTES_MAX) {
                let text = format!("a state has at most {} bytes", limits::SESSION_STATE_BYTES_MAX);
                return Waits::Is(Err(BrokerError::Refused {
                    code: "state_too_large".into(),
                    text,
                }));
            }
            batch.plan.states.push(StateItem { seq, num, hold: id, back, state: new.state });
        } else if let Some(back) = back {
            batch.plan.backs.push(back);
        } else if let Some(lease) = lease {
            batch.plan.plain.push((seq, lease));
        } else if let Some(hold) = hold_id {
            batch.plan.held.push((seq, hold));
        }
        Waits::For { seq, lease, hold, again }
    }

    async fn settle_transaction(
        &self,
        plan: &mut Plan,
        ending: &HashMap<i64, Arc<Hold>>,
    ) -> Result<HashSet<i64>, BrokerError> {
        // Rows are locked in one order, as far as the server follows it.
        plan.plain.sort_unstable();
        plan.held.sort_unstable();
        plan.backs.sort_unstable_by_key(|back| back.seq);
        // What is still out goes back with its session, uncounted; what is settled here is not.
        let settled: HashSet<i64> = plan.seqs().collect();
        let mut ends: Vec<&Arc<Hold>> = ending.values().collect();
        ends.sort_unstable_by_key(|hold| hold.num);
        for hold in ends {
            plan.ends.push((hold.num, hold.hold));
            plan.returned.extend(hold.out().into_iter().filter(|seq| !settled.contains(seq)));
        }
        if plan.is_empty() {
            return Ok(HashSet::new());
        }
        let mut tries = 0;
        loop {
            let link = self.settling.link().await?;
            tries += 1;
            match write::transaction(&link, plan).await {
                Ok(written) => {
                    self.ring(written.rung);
                    return Ok(written.done);
                }
                Err(wrong) => {
                    let _ = link.run("rollback").await; // a connection that is gone has rolled back
                    self.settling.note(&link, Some(&wrong)).await;
                    if !error::is_conflict(&wrong) || tries == TRIES {
                        return Err(wrong.into());
                    }
                }
            }
        }
    }
}

/// What does not complete a message. None completes it.
fn back(
    seq: i64,
    lease: Option<i64>,
    hold: Option<i64>,
    settlement: Settlement,
) -> Result<Option<Back>, BrokerError> {
    let ms = |delay: u64| i64::try_from(delay.min(limits::DELAY_MS_MAX)).unwrap_or(i64::MAX);
    let mut back = Back {
        seq,
        lease,
        hold,
        kind: Kind::Release,
        delay_ms: 0,
        changes: None,
        reason: None,
        text: None,
    };
    let changes = match settlement {
        Settlement::Complete => return Ok(None),
        Settlement::Release { delay_ms } => {
            back.delay_ms = ms(delay_ms);
            return Ok(Some(back));
        }
        Settlement::Abandon { delay_ms, changes } => {
            (back.kind, back.delay_ms) = (Kind::Abandon, ms(delay_ms));
            changes
        }
        Settlement::DeadLetter { reason, text, changes } => {
            back.kind = Kind::Dead;
            (back.reason, back.text) = (Some(clip(&reason)), Some(clip(&text)));
            changes
        }
        Settlement::Defer { .. } => {
            return Err(BrokerError::Unsupported {
                broker: super::NAME,
                what: "deferred messages",
                fix: "release it with a delay instead",
            });
        }
    };
    if changes.size() > limits::CHANGES_BYTES_MAX {
        let text = format!("changes of a message have at most {} bytes", limits::CHANGES_BYTES_MAX);
        return Err(BrokerError::Refused { code: "changes_too_large".into(), text });
    }
    back.changes = message::encode_changes(changes.properties)?;
    Ok(Some(back))
}

/// As much of a text as is for people, without what the database cannot keep.
fn clip(text: &str) -> String {
    let mut end = text.len().min(limits::DEAD_LETTER_TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace('\0', "\u{fffd}")
}
