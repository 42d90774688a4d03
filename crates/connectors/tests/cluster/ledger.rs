//! What was sent in a trial, and what became of it as far as answers tell.

use std::collections::HashMap;

use malote_connectors::{Delivery, Held};
use malote_model::{LeaseToken, Message, QueueName, SessionId, Settlement, When};

/// A delay that is over before a trial is.
const SOON_MS: u64 = 1000;

/// Messages of one trial, by their ids.
#[derive(Default)]
pub struct Ledger {
    pub entries: HashMap<String, Entry>,
    /// What is in hand: messages, and holds of sessions without one.
    hands: HashMap<LeaseToken, Option<String>>,
    /// Sessions in hand, by their holds.
    sessions: HashMap<LeaseToken, SessionId>,
    sent: usize,
    given: u64,
}

pub struct Entry {
    pub queue: QueueName,
    /// Counts sends.
    pub number: usize,
    pub fate: Fate,
    /// How often it came.
    pub came: u32,
    /// Somebody had it, or it came later: in a queue without sessions it may stand anywhere now.
    pub moved: bool,
}

/// Where a message must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// In its queue: it was answered.
    There,
    /// Nobody can tell: no answer came, or it comes back much later.
    Unsure,
    /// Gone: its completion was answered.
    Done,
}

impl Ledger {
    /// An id for each that has none, so that a repeated send is known for one.
    pub fn name(&mut self, message: &mut Message) {
        let given = &mut self.given;
        message.message_id.get_or_insert_with(|| {
            *given += 1;
            format!("given-{given}")
        });
    }

    /// It is on its way: whether it comes, nobody knows before the answer.
    pub fn sending(&mut self, queue: &QueueName, message: &Message) {
        let Some(id) = &message.message_id else { return };
        let (number, fate) = (self.sent, Fate::Unsure);
        self.sent += 1;
        let entry = Entry { queue: queue.clone(), number, fate, came: 0, moved: false };
        // Of one that is sent twice, the first counts.
        self.entries.entry(id.clone()).or_insert(entry);
    }

    /// It is stored.
    pub fn sent(&mut self, message: &Message) {
        let entry = message.message_id.as_ref().and_then(|id| self.entries.get_mut(id));
        let soon = match message.when {
            When::Now => true,
            When::Delay(ms) => ms <= SOON_MS,
            When::At(_) => false,
        };
        if let Some(entry) = entry.filter(|_| soon) {
            (entry.fate, entry.moved) = (Fate::There, message.when != When::Now);
        }
    }

    /// It came. Says what is strange about that, if anything is.
    pub fn came(&mut self, delivery: &Delivery) -> Option<Strange> {
        let id = delivery.message.message_id.clone()?;
        let again = self.hands.values().any(|other| other.as_ref() == Some(&id));
        let (mut done, mut granted) = (false, false);
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.moved, entry.came) = (true, entry.came + 1);
            (done, granted) = (entry.fate == Fate::Done, delivery.receives > entry.came);
        }
        self.hands.insert(delivery.lease, Some(id));
        match (done, again, granted) {
            (true, _, _) => Some(Strange::Done),
            (_, true, _) => Some(Strange::InHand),
            (_, _, true) => Some(Strange::Granted),
            _ => None,
        }
    }

    /// A session was given to somebody. Says what is strange about that, if anything is.
    pub fn held(&mut self, held: &Held) -> Option<Strange> {
        let again = self.sessions.values().any(|other| *other == held.session);
        self.hands.insert(held.hold, None);
        self.sessions.insert(held.hold, held.session.clone());
        again.then_some(Strange::InHand)
    }

    /// Somebody let go of this.
    pub fn let_go(&mut self, lease: &LeaseToken) {
        self.hands.remove(lease);
        self.sessions.remove(lease);
    }

    /// Whether somebody had one of those that must be there, or it was to come later: only such a one may be late.
    pub fn may_be_late(&self) -> bool {
        self.entries.values().any(|entry| entry.fate == Fate::There && entry.moved)
    }

    /// Whether nobody has settled or let go of it yet.
    pub fn is_in_hand(&self, lease: &LeaseToken) -> bool {
        self.hands.contains_key(lease)
    }

    /// Its settlement was answered with yes, or not at all.
    pub fn settled(&mut self, queue: &QueueName, lease: &LeaseToken, how: &Settlement, sure: bool) {
        let hand = if sure { self.hands.remove(lease) } else { self.hands.get(lease).cloned() };
        let Some(entry) = hand.flatten().and_then(|id| self.entries.get_mut(&id)) else { return };
        match how {
            _ if !sure => entry.fate = Fate::Unsure,
            Settlement::Complete => entry.fate = Fate::Done,
            Settlement::DeadLetter { .. } => entry.queue = queue.dead_letters(),
            Settlement::Release { delay_ms } | Settlement::Abandon { delay_ms, .. }
                if *delay_ms <= SOON_MS => {}
            Settlement::Release { .. } | Settlement::Abandon { .. } | Settlement::Defer { .. } => {
                entry.fate = Fate::Unsure;
            }
        }
    }
}

/// What a fault may explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strange {
    /// It came although somebody has it.
    InHand,
    /// It was granted more often than it came: some grants got no further than the connector.
    Granted,
    /// It came although it was completed.
    Done,
}
