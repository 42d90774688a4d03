//! The state of a session: windows, handles, unsettled deliveries, and queued transfers.

use std::collections::{BTreeMap, VecDeque, btree_map};

use bytes::Bytes;

use crate::performative::{DeliveryState, Flow};

use super::config::Config;
use super::event::LinkId;
use super::link::Link;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) serial: u32,
    /// The peer's channel, from its begin to its end.
    pub(super) remote_channel: Option<u16>,
    pub(super) end_sent: bool,
    pub(super) end_received: bool,
    pub(super) next_outgoing_id: u32,
    pub(super) remote_incoming_window: u32,
    pub(super) remote_handle_max: u32,
    pub(super) next_incoming_id: u32,
    pub(super) incoming_window: u32,
    /// By our handle.
    pub(super) links: Vec<Option<Link>>,
    /// Our handle, by the peer's.
    pub(super) by_remote_handle: Vec<Option<u32>>,
    pub(super) next_delivery_id: u32,
    pub(super) outgoing: UnsettledDeliveries,
    pub(super) incoming: UnsettledDeliveries,
    pub(super) outbox: VecDeque<QueuedTransfer>,
    /// Whether transfers were left in the queue.
    pub(super) waits: bool,
}

/// A delivery that waits for the peer's window.
#[derive(Debug)]
pub(super) struct QueuedTransfer {
    pub(super) link: LinkId,
    pub(super) key: u64,
    pub(super) tag: Bytes,
    pub(super) message_format: u32,
    pub(super) settled: bool,
    pub(super) state: Option<DeliveryState>,
    pub(super) batchable: bool,
    /// Set once its first frame is written.
    pub(super) delivery: Option<u32>,
    pub(super) payload: Bytes,
}

impl Session {
    pub(super) fn new(serial: u32, config: &Config) -> Session {
        Session {
            serial,
            remote_channel: None,
            end_sent: false,
            end_received: false,
            next_outgoing_id: 0,
            remote_incoming_window: 0,
            remote_handle_max: u32::MAX,
            next_incoming_id: 0,
            incoming_window: config.incoming_window,
            links: Vec::new(),
            by_remote_handle: Vec::new(),
            next_delivery_id: 0,
            outgoing: UnsettledDeliveries::default(),
            incoming: UnsettledDeliveries::default(),
            outbox: VecDeque::new(),
            waits: false,
        }
    }

    /// A flow with our windows, without a link.
    pub(super) fn flow(&self, config: &Config) -> Flow {
        Flow {
            // Unknown before the begin of the peer.
            next_incoming_id: self.remote_channel.map(|_| self.next_incoming_id),
            incoming_window: self.incoming_window,
            next_outgoing_id: self.next_outgoing_id,
            outgoing_window: config.outgoing_window,
            ..Flow::default()
        }
    }

    pub(super) fn take_flow(&mut self, flow: &Flow) {
        // Transfers that the peer has not seen yet use up its window (section 2.5.6). Before it has seen our begin,
        // that is all of them.
        let unseen = match flow.next_incoming_id {
            Some(next) => self.next_outgoing_id.wrapping_sub(next),
            None => self.next_outgoing_id,
        };
        let unseen = if unseen > u32::MAX / 2 { 0 } else { unseen };
        self.remote_incoming_window = flow.incoming_window.saturating_sub(unseen);
    }

    /// The lowest free handle.
    pub(super) fn free_handle(&self, handle_max: u32) -> Option<u32> {
        let free = self.links.iter().position(Option::is_none).unwrap_or(self.links.len());
        u32::try_from(free).ok().filter(|&free| free <= handle_max.min(self.remote_handle_max))
    }

    pub(super) fn put_link(&mut self, handle: u32, link: Link) {
        let at = handle as usize;
        if at == self.links.len() {
            self.links.push(Some(link));
        } else {
            self.links[at] = Some(link);
        }
    }

    pub(super) fn link_mut(&mut self, handle: u32) -> Option<&mut Link> {
        self.links.get_mut(handle as usize)?.as_mut()
    }

    /// Our handle for a handle of the peer.
    pub(super) fn local_handle(&self, remote: u32) -> Option<u32> {
        self.by_remote_handle.get(remote as usize).copied().flatten()
    }

    /// The caller has checked the handle against its limit.
    pub(super) fn bind_handle(&mut self, remote: u32, local: u32) {
        let at = remote as usize;
        if self.by_remote_handle.len() <= at {
            self.by_remote_handle.resize(at + 1, None);
        }
        self.by_remote_handle[at] = Some(local);
    }

    pub(super) fn unbind_handle(&mut self, remote: u32) {
        if let Some(slot) = self.by_remote_handle.get_mut(remote as usize) {
            *slot = None;
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct UnsettledDelivery {
    pub(super) link: LinkId,
    pub(super) key: u64,
}

/// Unsettled deliveries of one direction. Ids are 32-bit serial numbers that wrap; they are stored as 64-bit ids that
/// do not, so that ranges work.
#[derive(Debug)]
pub(super) struct UnsettledDeliveries {
    entries: BTreeMap<u64, UnsettledDelivery>,
    newest: u64,
}

impl Default for UnsettledDeliveries {
    fn default() -> UnsettledDeliveries {
        // Far from zero, because earlier ids are lower.
        UnsettledDeliveries { entries: BTreeMap::new(), newest: 1 << 32 }
    }
}

impl UnsettledDeliveries {
    /// The 64-bit form of an id: the one closest to the newest.
    pub(super) fn long(&self, id: u32) -> u64 {
        let ahead = id.wrapping_sub(self.newest as u32) as i32;
        self.newest.wrapping_add_signed(ahead.into())
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the delivery that had this id before.
    pub(super) fn insert(
        &mut self,
        id: u32,
        entry: UnsettledDelivery,
    ) -> Option<UnsettledDelivery> {
        let long = self.long(id);
        self.newest = self.newest.max(long);
        self.entries.insert(long, entry)
    }

    pub(super) fn get(&self, id: u32) -> Option<&UnsettledDelivery> {
        self.entries.get(&self.long(id))
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<UnsettledDelivery> {
        self.entries.remove(&self.long(id))
    }

    /// Removes a delivery if it belongs to this link. Returns whether it did.
    pub(super) fn remove_of(&mut self, id: u32, link: LinkId) -> bool {
        match self.entries.entry(self.long(id)) {
            btree_map::Entry::Occupied(entry) if entry.get().link == link => {
                entry.remove();
                true
            }
            _ => false,
        }
    }

    /// The first delivery in a range of 64-bit ids.
    pub(super) fn first_in(&self, from: u64, to: u64) -> Option<(u64, UnsettledDelivery)> {
        if from > to {
            return None;
        }
        self.entries.range(from..=to).next().map(|(&long, &entry)| (long, entry))
    }

    /// Removes the deliveries of a link.
    pub(super) fn forget_link(&mut self, link: LinkId) {
        self.entries.retain(|_, entry| entry.link != link);
    }
}
