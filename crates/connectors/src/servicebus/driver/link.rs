//! What the connection's task knows of a link.

use std::collections::{HashMap, VecDeque};

use malote_wire_amqp::connection::{DeliveryId, Incoming};
use malote_wire_amqp::message::Message as Wire;
use malote_wire_amqp::performative::{DeliveryState, Rejected};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::super::error::{Error, Kind, Result};
use super::command::{Opened, Reply, Sending, Wanted, Why};

pub(super) struct Link {
    pub why: Why,
    pub state: State,
    /// Who waits for its end.
    pub ending: Vec<Reply<()>>,
}

pub(super) enum State {
    /// The server has not answered yet.
    Attaching {
        wanted: Wanted,
        reply: Reply<Result<Opened>>,
    },
    Sender(Outbound),
    Receiver(Inbound),
    Answers(HashMap<u64, Reply<Result<Wire>>>),
    /// We have detached; the server has not answered.
    Ending,
}

/// A link on which messages go out.
#[derive(Default)]
pub(super) struct Outbound {
    /// They wait for credit or room.
    pub waiting: VecDeque<Sending>,
    /// They wait for their outcomes, by key.
    pub in_flight: HashMap<u64, (Reply<Result<()>>, Option<OwnedSemaphorePermit>)>,
}

/// A link on which messages come in.
pub(super) struct Inbound {
    pub deliveries: mpsc::Sender<Incoming>,
    /// What was settled and not confirmed yet, and its place in a group.
    settling: HashMap<DeliveryId, (u64, usize)>,
    groups: HashMap<u64, Group>,
    next_group: u64,
    /// Who waits for the end of a drain.
    pub drains: Vec<Reply<()>>,
}

/// Deliveries that were settled in one call.
struct Group {
    left: usize,
    results: Vec<Result<()>>,
    reply: Reply<Vec<Result<()>>>,
}

impl Link {
    pub fn new(wanted: Wanted, reply: Reply<Result<Opened>>) -> Link {
        let state = State::Attaching { wanted, reply };
        Link { why: Why::default(), state, ending: Vec::new() }
    }

    /// The link is over: whoever waits hears why.
    pub fn end(self, error: Error) {
        let _ = self.why.set(error.clone());
        match self.state {
            State::Attaching { reply, .. } => {
                let _ = reply.send(Err(error));
            }
            State::Sender(outbound) => {
                for sending in outbound.waiting {
                    let _ = sending.reply.send(Err(error.clone()));
                }
                for (reply, _) in outbound.in_flight.into_values() {
                    let _ = reply.send(Err(error.on_the_way()));
                }
            }
            State::Receiver(inbound) => inbound.end(&error),
            State::Answers(asking) => {
                for reply in asking.into_values() {
                    let _ = reply.send(Err(error.clone()));
                }
            }
            State::Ending => {}
        }
        for reply in self.ending {
            let _ = reply.send(());
        }
    }
}

impl Inbound {
    pub fn new(deliveries: mpsc::Sender<Incoming>) -> Inbound {
        Inbound {
            deliveries,
            settling: HashMap::new(),
            groups: HashMap::new(),
            next_group: 0,
            drains: Vec::new(),
        }
    }

    /// Remembers a group; those whose places are given have been sent to the server.
    pub fn settling(
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
                self.settling.insert(deliveries[at], (id, at));
                Ok(())
            })
        });
        let results: Vec<Result<()>> = known.collect();
        if left == 0 {
            let _ = reply.send(results);
        } else {
            self.groups.insert(id, Group { left, results, reply });
        }
    }

    /// The server has confirmed one.
    pub fn settled(&mut self, delivery: DeliveryId, result: Result<()>) {
        let Some((id, at)) = self.settling.remove(&delivery) else { return };
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
        for delivery in self.settling.keys().copied().collect::<Vec<_>>() {
            self.settled(delivery, Err(error.clone()));
        }
        for reply in self.drains {
            let _ = reply.send(());
        }
    }
}

/// What an outcome means to a sender.
pub(super) fn sent(state: Option<&DeliveryState>) -> Result<()> {
    let released = |text: &str| Err(Error::of(Kind::Released, "amqp:released", text));
    match state {
        Some(DeliveryState::Accepted) => Ok(()),
        Some(DeliveryState::Rejected(Rejected { error: Some(error) })) => {
            Err(Error::refused(error))
        }
        Some(DeliveryState::Rejected(Rejected { error: None })) => {
            Err(Error::of(Kind::Other, "amqp:rejected", "the message was rejected"))
        }
        Some(DeliveryState::Released | DeliveryState::Modified(_)) => {
            released("the message was given back")
        }
        _ => released("the message was settled without an outcome"),
    }
}

/// What the server's echo of a settlement means: only an error in it says that it failed.
pub(super) fn confirmed(state: Option<&DeliveryState>) -> Result<()> {
    match state {
        Some(DeliveryState::Rejected(Rejected { error: Some(error) })) => {
            Err(Error::refused(error))
        }
        _ => Ok(()),
    }
}
