//! The messages of a trial, and where they must be according to the broker's answers.

use std::collections::HashMap;

use malote_connectors::{Delivery, SessionHold};
use malote_model::{LeaseToken, Message, QueueName, SessionId, Settlement, When};

/// A shorter delay ends before the trial does.
const SHORT_DELAY_MS: u64 = 1000;

/// The messages of one trial by id.
#[derive(Default)]
pub struct ExpectedMessages {
    pub entries: HashMap<String, Entry>,
    /// Leased messages; None for holds of sessions.
    leases: HashMap<LeaseToken, Option<String>>,
    /// Held sessions by their holds.
    sessions: HashMap<LeaseToken, SessionId>,
    sent: usize,
    generated_ids: u64,
}

pub struct Entry {
    pub queue: QueueName,
    /// The position among all sends.
    pub number: usize,
    pub state: ExpectedState,
    /// The number of deliveries.
    pub delivered: u32,
    /// It was delivered or delayed, so its position in a queue without sessions may have changed.
    pub moved: bool,
}

/// Where a message must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedState {
    /// In its queue: the broker confirmed it.
    InQueue,
    /// Unknown: an answer is missing, or the message returns much later.
    Unknown,
    /// Removed: the broker confirmed its completion.
    Completed,
}

impl ExpectedMessages {
    /// Gives a message an id, so that a repeated send can be recognized.
    pub fn assign_id(&mut self, message: &mut Message) {
        let generated_ids = &mut self.generated_ids;
        message.message_id.get_or_insert_with(|| {
            *generated_ids += 1;
            format!("generated-{generated_ids}")
        });
    }

    /// Records a send that is not confirmed yet.
    pub fn sending(&mut self, queue: &QueueName, message: &Message) {
        let Some(id) = &message.message_id else { return };
        let (number, state) = (self.sent, ExpectedState::Unknown);
        self.sent += 1;
        let entry = Entry { queue: queue.clone(), number, state, delivered: 0, moved: false };
        // For a repeated send, the first one counts.
        self.entries.entry(id.clone()).or_insert(entry);
    }

    /// Records the confirmation of a send.
    pub fn sent(&mut self, message: &Message) {
        let entry = message.message_id.as_ref().and_then(|id| self.entries.get_mut(id));
        let soon = match message.when {
            When::Now => true,
            When::Delay(ms) => ms <= SHORT_DELAY_MS,
            When::At(_) => false,
        };
        if let Some(entry) = entry.filter(|_| soon) {
            (entry.state, entry.moved) = (ExpectedState::InQueue, message.when != When::Now);
        }
    }

    /// Records a delivery. Returns an anomaly if there is one.
    pub fn delivered(&mut self, delivery: &Delivery) -> Option<Anomaly> {
        let id = delivery.message.message_id.clone()?;
        let leased = self.leases.values().any(|other| other.as_ref() == Some(&id));
        let (mut completed, mut lost) = (false, false);
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.moved, entry.delivered) = (true, entry.delivered + 1);
            (completed, lost) =
                (entry.state == ExpectedState::Completed, delivery.receives > entry.delivered);
        }
        self.leases.insert(delivery.lease, Some(id));
        match (completed, leased, lost) {
            (true, _, _) => Some(Anomaly::DeliveredAfterCompletion),
            (_, true, _) => Some(Anomaly::LeasedTwice),
            (_, _, true) => Some(Anomaly::DeliveryLost),
            _ => None,
        }
    }

    /// Records a hold. Returns an anomaly if there is one.
    pub fn held(&mut self, held: &SessionHold) -> Option<Anomaly> {
        let leased = self.sessions.values().any(|other| *other == held.session);
        self.leases.insert(held.hold, None);
        self.sessions.insert(held.hold, held.session.clone());
        leased.then_some(Anomaly::LeasedTwice)
    }

    /// Records the end of a lease or hold without a settlement.
    pub fn released(&mut self, lease: &LeaseToken) {
        self.leases.remove(lease);
        self.sessions.remove(lease);
    }

    /// Whether a message in a queue was delivered or delayed before: only such a message may be late.
    pub fn may_be_late(&self) -> bool {
        self.entries.values().any(|entry| entry.state == ExpectedState::InQueue && entry.moved)
    }

    /// Whether a lease has neither been settled nor released.
    pub fn is_leased(&self, lease: &LeaseToken) -> bool {
        self.leases.contains_key(lease)
    }

    /// Records a settlement; `confirmed` if the broker answered with success.
    pub fn settled(
        &mut self,
        queue: &QueueName,
        lease: &LeaseToken,
        settlement: &Settlement,
        confirmed: bool,
    ) {
        let message_id =
            if confirmed { self.leases.remove(lease) } else { self.leases.get(lease).cloned() };
        let Some(entry) = message_id.flatten().and_then(|id| self.entries.get_mut(&id)) else {
            return;
        };
        match settlement {
            _ if !confirmed => entry.state = ExpectedState::Unknown,
            Settlement::Complete => entry.state = ExpectedState::Completed,
            Settlement::DeadLetter { .. } => entry.queue = queue.dead_letters(),
            Settlement::Release { delay_ms } | Settlement::Abandon { delay_ms, .. }
                if *delay_ms <= SHORT_DELAY_MS => {}
            Settlement::Release { .. } | Settlement::Abandon { .. } | Settlement::Defer { .. } => {
                entry.state = ExpectedState::Unknown;
            }
        }
    }
}

/// Behaviour that only a fault explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// It was delivered while another lease exists.
    LeasedTwice,
    /// The broker counts more deliveries than arrived: some were lost on the way.
    DeliveryLost,
    /// It was delivered after its completion.
    DeliveredAfterCompletion,
}
