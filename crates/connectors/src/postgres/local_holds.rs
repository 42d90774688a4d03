//! The sessions held by this process.
//!
//! Leasing messages of a session does not write to their rows: the hold is the lease of all of them, and only this
//! process knows which ones are leased. The session's row stores the last leased message, for maintenance after a
//! crash.

use std::collections::BTreeSet;
use std::sync::Arc;

use malote_model::SessionId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::PgShared;
use super::queues::PgQueue;
use super::token::PgToken;
use crate::broker::SessionHold;

/// A held session.
pub(super) struct LocalHold {
    pub queue: Arc<PgQueue>,
    /// The id of the session's row.
    pub num: i64,
    /// The id of this hold. It grows with every hold of any session.
    pub hold: i64,
    pub session: SessionId,
    /// Notified when the session gets messages.
    pub arrival: Notify,
    /// Allows one fetch at a time: an abandoned fetch may return messages that the next one must see.
    pub fetching: tokio::sync::Mutex<()>,
    state: Mutex<HoldState>,
}

struct HoldState {
    /// All messages up to this one were handed out.
    after: i64,
    /// The leased messages.
    leased: BTreeSet<i64>,
    ended: bool,
}

impl LocalHold {
    pub(super) fn new(queue: Arc<PgQueue>, num: i64, hold: i64, session: SessionId) -> Self {
        let state = Mutex::new(HoldState { after: 0, leased: BTreeSet::new(), ended: false });
        Self {
            queue,
            num,
            hold,
            session,
            arrival: Notify::new(),
            fetching: Default::default(),
            state,
        }
    }

    pub(super) fn held(&self) -> SessionHold {
        let hold = PgToken::Session { num: self.num, hold: self.hold }.encode();
        SessionHold { session: self.session.clone(), hold, epoch: self.hold.unsigned_abs() }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.arrival.notify_waiters();
    }

    pub(super) fn is_leased(&self, seq: i64) -> bool {
        let state = self.state.lock();
        !state.ended && state.leased.contains(&seq)
    }

    pub(super) fn leased(&self) -> Vec<i64> {
        self.state.lock().leased.iter().copied().collect()
    }

    /// Ends the lease of a message; `again` if it must be delivered again.
    pub(super) fn finish(&self, seq: i64, again: bool) {
        let mut state = self.state.lock();
        state.leased.remove(&seq);
        if again {
            state.after = state.after.min(seq - 1);
        }
    }

    /// The last message that was handed out, and the leased messages after it.
    pub(super) fn position(&self) -> (i64, Vec<i64>) {
        let state = self.state.lock();
        (state.after, state.leased.range(state.after + 1..).copied().collect())
    }

    pub(super) fn mark_leased(&self, seqs: &[i64]) {
        let mut state = self.state.lock();
        for &seq in seqs {
            state.leased.insert(seq);
            state.after = state.after.max(seq);
        }
    }
}

impl PgShared {
    /// A hold that has not ended as far as this process knows.
    pub(super) fn hold(&self, hold: i64) -> Option<Arc<LocalHold>> {
        self.holds.lock().get(&hold).filter(|hold| !hold.has_ended()).cloned()
    }

    pub(super) fn add_hold(&self, hold: &Arc<LocalHold>) {
        self.holds.lock().insert(hold.hold, hold.clone());
        self.holds_by_session.lock().insert(hold.num, hold.clone());
    }

    pub(super) fn remove_hold(&self, hold: &LocalHold) {
        hold.end();
        self.holds.lock().remove(&hold.hold);
        let mut arrival = self.holds_by_session.lock();
        if arrival.get(&hold.num).is_some_and(|known| known.hold == hold.hold) {
            arrival.remove(&hold.num);
        }
    }
}
