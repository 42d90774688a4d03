//! Sessions in hand, as this process knows them.
//!
//! Handing out messages of a session writes nothing to their rows: the hold is the lease of all of them, and which are
//! out is known here. The session's row has how far it came, for whoever takes it over from a process that died.

use std::collections::BTreeSet;
use std::sync::Arc;

use malote_model::SessionId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Shared;
use super::queues::Queue;
use super::token::Token;
use crate::broker::Held;

/// A session in hand.
pub(super) struct Hold {
    pub queue: Arc<Queue>,
    /// The number of its row.
    pub num: i64,
    /// The number of this hold: it grows with every hold of any session.
    pub hold: i64,
    pub session: SessionId,
    /// Something new in it.
    pub called: Notify,
    /// One fetch at a time: another may go on with what a dropped one does not keep.
    pub fetching: tokio::sync::Mutex<()>,
    place: Mutex<Place>,
}

struct Place {
    /// All up to this one were handed out.
    after: i64,
    /// Those that are out.
    out: BTreeSet<i64>,
    over: bool,
}

impl Hold {
    pub(super) fn new(queue: Arc<Queue>, num: i64, hold: i64, session: SessionId) -> Self {
        let place = Mutex::new(Place { after: 0, out: BTreeSet::new(), over: false });
        Self {
            queue,
            num,
            hold,
            session,
            called: Notify::new(),
            fetching: Default::default(),
            place,
        }
    }

    pub(super) fn held(&self) -> Held {
        let hold = Token::Hold { num: self.num, hold: self.hold }.write();
        Held { session: self.session.clone(), hold, epoch: self.hold.unsigned_abs() }
    }

    pub(super) fn is_over(&self) -> bool {
        self.place.lock().over
    }

    pub(super) fn end(&self) {
        self.place.lock().over = true;
        self.called.notify_waiters();
    }

    pub(super) fn has_out(&self, seq: i64) -> bool {
        let place = self.place.lock();
        !place.over && place.out.contains(&seq)
    }

    pub(super) fn out(&self) -> Vec<i64> {
        self.place.lock().out.iter().copied().collect()
    }

    /// A message is out of hand; `again`: it is to be handed out once more.
    pub(super) fn ended(&self, seq: i64, again: bool) {
        let mut place = self.place.lock();
        place.out.remove(&seq);
        if again {
            place.after = place.after.min(seq - 1);
        }
    }

    /// Where to go on, and which of those behind it are out.
    pub(super) fn next(&self) -> (i64, Vec<i64>) {
        let place = self.place.lock();
        (place.after, place.out.range(place.after + 1..).copied().collect())
    }

    /// These are out now.
    pub(super) fn handed_out(&self, seqs: &[i64]) {
        let mut place = self.place.lock();
        for &seq in seqs {
            place.out.insert(seq);
            place.after = place.after.max(seq);
        }
    }
}

impl Shared {
    /// A hold that is not over, as far as this process knows.
    pub(super) fn hold(&self, hold: i64) -> Option<Arc<Hold>> {
        self.holds.lock().get(&hold).filter(|hold| !hold.is_over()).cloned()
    }

    pub(super) fn remember(&self, hold: &Arc<Hold>) {
        self.holds.lock().insert(hold.hold, hold.clone());
        self.called_by_session.lock().insert(hold.num, hold.clone());
    }

    pub(super) fn forget(&self, hold: &Hold) {
        hold.end();
        self.holds.lock().remove(&hold.hold);
        let mut called = self.called_by_session.lock();
        if called.get(&hold.num).is_some_and(|known| known.hold == hold.hold) {
            called.remove(&hold.num);
        }
    }
}
