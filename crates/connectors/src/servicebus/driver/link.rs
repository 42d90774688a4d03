//! The driver's state of a link.

use std::collections::{HashMap, VecDeque};

use malote_wire_amqp::connection::{DeliveryId, Incoming};
use malote_wire_amqp::message::Message as Wire;
use malote_wire_amqp::performative::{DeliveryState, Rejected};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::super::error::{Error, ErrorKind, Result};
use super::command::{AttachedLink, EndReason, LinkPurpose, Reply, SendMessage};

pub(super) struct LinkEntry {
    pub end_reason: EndReason,
    pub state: DriverLinkState,
    /// Callers that wait for the end of the link.
    pub ending: Vec<Reply<()>>,
}

pub(super) enum DriverLinkState {
    /// The server has not answered the attach yet.
    Attaching {
        purpose: LinkPurpose,
        reply: Reply<Result<AttachedLink>>,
    },
    Sender(OutboundLink),
    Receiver(InboundLink),
    Responses(HashMap<u64, Reply<Result<Wire>>>),
    /// Detached by this side; the server has not answered yet.
    Ending,
}

/// A link that sends messages.
#[derive(Default)]
pub(super) struct OutboundLink {
    /// Messages that wait for credit or room.
    pub waiting: VecDeque<SendMessage>,
    /// Messages that wait for their outcomes, by key.
    pub in_flight: HashMap<u64, (Reply<Result<()>>, Option<OwnedSemaphorePermit>)>,
}

/// A link that receives messages.
pub(super) struct InboundLink {
    pub deliveries: mpsc::Sender<Incoming>,
    /// Unconfirmed settlements: their group, and the index in it.
    unconfirmed: HashMap<DeliveryId, (u64, usize)>,
    groups: HashMap<u64, SettleGroup>,
    next_group: u64,
    /// Callers that wait for the end of a drain.
    pub drains: Vec<Reply<()>>,
}

/// Deliveries settled in one call.
struct SettleGroup {
    left: usize,
    results: Vec<Result<()>>,
    reply: Reply<Vec<Result<()>>>,
}

impl LinkEntry {
    pub fn new(purpose: LinkPurpose, reply: Reply<Result<AttachedLink>>) -> LinkEntry {
        let state = DriverLinkState::Attaching { purpose, reply };
        LinkEntry { end_reason: EndReason::default(), state, ending: Vec::new() }
    }

    /// Ends the link and fails all waiting callers.
    pub fn end(self, error: Error) {
        let _ = self.end_reason.set(error.clone());
        match self.state {
            DriverLinkState::Attaching { reply, .. } => {
                let _ = reply.send(Err(error));
            }
            DriverLinkState::Sender(outbound) => {
                for sending in outbound.waiting {
                    let _ = sending.reply.send(Err(error.clone()));
                }
                for (reply, _) in outbound.in_flight.into_values() {
                    let _ = reply.send(Err(error.for_in_flight()));
                }
            }
            DriverLinkState::Receiver(inbound) => inbound.end(&error),
            DriverLinkState::Responses(pending) => {
                for reply in pending.into_values() {
                    let _ = reply.send(Err(error.clone()));
                }
            }
            DriverLinkState::Ending => {}
        }
        for reply in self.ending {
            let _ = reply.send(());
        }
    }
}

impl InboundLink {
    pub fn new(deliveries: mpsc::Sender<Incoming>) -> InboundLink {
        InboundLink {
            deliveries,
            unconfirmed: HashMap::new(),
            groups: HashMap::new(),
            next_group: 0,
            drains: Vec::new(),
        }
    }

    /// Adds a group. Results that are None wait for the server's confirmation.
    pub fn add_group(
        &mut self,
        deliveries: &[DeliveryId],
        results: Vec<Option<Result<()>>>,
        reply: Reply<Vec<Result<()>>>,
    ) {
        let id = self.next_group;
        self.next_group += 1;
        let mut left = 0;
        let known = results.into_iter().enumerate().map(|(at, result)| {
            result.unwrap_or_else(|| {
                left += 1;
                self.unconfirmed.insert(deliveries[at], (id, at));
                Ok(())
            })
        });
        let results: Vec<Result<()>> = known.collect();
        if left == 0 {
            let _ = reply.send(results);
        } else {
            self.groups.insert(id, SettleGroup { left, results, reply });
        }
    }

    /// Records a confirmation of the server.
    pub fn confirm(&mut self, delivery: DeliveryId, result: Result<()>) {
        let Some((id, at)) = self.unconfirmed.remove(&delivery) else { return };
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.results[at] = result;
        group.left -= 1;
        if group.left == 0
            && let Some(group) = self.groups.remove(&id)
        {
            let _ = group.reply.send(group.results);
        }
    }

    fn end(mut self, error: &Error) {
        for delivery in self.unconfirmed.keys().copied().collect::<Vec<_>>() {
            self.confirm(delivery, Err(error.clone()));
        }
        for reply in self.drains {
            let _ = reply.send(());
        }
    }
}

/// The result of a send.
pub(super) fn sent(state: Option<&DeliveryState>) -> Result<()> {
    let released = |text: &str| Err(Error::new(ErrorKind::Released, "amqp:released", text));
    match state {
        Some(DeliveryState::Accepted) => Ok(()),
        Some(DeliveryState::Rejected(Rejected { error: Some(error) })) => {
            Err(Error::refused(error))
        }
        Some(DeliveryState::Rejected(Rejected { error: None })) => {
            Err(Error::new(ErrorKind::Other, "amqp:rejected", "the message was rejected"))
        }
        Some(DeliveryState::Released | DeliveryState::Modified(_)) => {
            released("the server released the message")
        }
        _ => released("the server settled the message without an outcome"),
    }
}

/// The result of a settlement: the server's confirmation means success unless it contains an error.
pub(super) fn confirmed(state: Option<&DeliveryState>) -> Result<()> {
    match state {
        Some(DeliveryState::Rejected(Rejected { error: Some(error) })) => {
            Err(Error::refused(error))
        }
        _ => Ok(()),
    }
}
