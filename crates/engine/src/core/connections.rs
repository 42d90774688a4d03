//! What is bound to a connection, and how it ends with the connection.

use std::collections::BTreeSet;

use super::background::BackgroundWork;
use super::leases::{Lease, LeaseTarget, NONE};
use super::{Decided, Stalled, Turn, WaitFor};
use crate::command::{ConnectionId, ConsumerId, Reply};
use crate::event::{LeaseEnd, QueueId};

/// What is bound to a connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    pub consumers: BTreeSet<ConsumerId>,
    /// The first lease or hold in its list.
    pub first: u32,
    pub queues: Vec<QueueId>,
}

impl Default for ConnectionState {
    fn default() -> Self {
        Self { consumers: BTreeSet::new(), first: NONE, queues: Vec::new() }
    }
}

impl Turn<'_> {
    pub(super) fn disconnect(&mut self, connection: ConnectionId, clean: bool) -> Decided {
        if self.core.live().connections.contains_key(&connection) {
            self.end_connection(connection, clean);
        }
        Ok(Some((Reply::Done, WaitFor::Settled)))
    }

    /// Ends what is bound to a closed connection, in slices. If the journal has no room, the rest ends later.
    pub(super) fn end_connection(&mut self, connection: ConnectionId, clean: bool) {
        while let Some(id) =
            self.core.live().connections.get_mut(&connection).and_then(|c| c.consumers.pop_first())
        {
            if self.left == 0 {
                if let Some(connected) = self.core.live().connections.get_mut(&connection) {
                    connected.consumers.insert(id);
                }
                return self
                    .core
                    .add_background_work(BackgroundWork::Disconnect(connection, clean));
            }
            self.left -= 1;
            self.core.count_processed(1);
            self.end_wait(id);
        }
        let cause = if clean { LeaseEnd::Released } else { LeaseEnd::Lost };
        // The list shrinks from its head. A hold ends together with its messages.
        while let Some(slot) =
            self.core.live().connections.get(&connection).map(|c| c.first).filter(|&s| s != NONE)
        {
            if self.left == 0 {
                return self
                    .core
                    .add_background_work(BackgroundWork::Disconnect(connection, clean));
            }
            self.left -= 1;
            let Some(&Lease { queue, what, .. }) = self.core.leases.at(slot) else { break };
            if !self.core.queues.contains_key(&queue) {
                self.core.revoke(slot);
                continue;
            }
            let ended = match what {
                LeaseTarget::Session { session } => {
                    let sessions = self.core.queues.get(&queue).and_then(|q| q.sessions.as_ref());
                    let out = sessions.and_then(|s| s.at(session)).map_or(0, |s| s.locked);
                    self.left = self.left.saturating_sub(out as usize);
                    self.end_hold(slot, cause)
                }
                LeaseTarget::Message { .. } => self.end_lease(slot, cause),
            };
            self.end();
            if ended.is_err() {
                return self.stall(Stalled::Connection(connection, clean));
            }
        }
        while let Some(&queue) =
            self.core.live().connections.get(&connection).and_then(|c| c.queues.last())
        {
            if self.left == 0 {
                return self
                    .core
                    .add_background_work(BackgroundWork::Disconnect(connection, clean));
            }
            self.left -= 1;
            if self.remove_queue(queue).is_err() {
                return self.stall(Stalled::Connection(connection, clean));
            }
            if let Some(connected) = self.core.live().connections.get_mut(&connection) {
                connected.queues.pop();
            }
        }
        self.core.live().connections.remove(&connection);
    }

    /// Makes an exclusive queue belong to a connection.
    pub(super) fn bind_queue(&mut self, connection: ConnectionId, queue: QueueId) {
        if let Some(q) = self.core.queues.get_mut(&queue) {
            q.connection = Some(connection);
        }
        self.core.live().connections.entry(connection).or_default().queues.push(queue);
    }
}
