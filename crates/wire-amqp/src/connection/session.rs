//! One session: windows, handles, unsettled deliveries, and transfers that wait.

use std::collections::{BTreeMap, VecDeque, btree_map};

use bytes::Bytes;

use crate::performative::{DeliveryState, Flow};

use super::config::Config;
use super::event::LinkId;
use super::link::Link;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) serial: u32,
    /// The peer's channel, once it has begun and until it ends.
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
    pub(super) outgoing: Unsettled,
    pub(super) incoming: Unsettled,
    pub(super) outbox: VecDeque<Queued>,
    /// Whether the owner was left with transfers that wait.
    pub(super) waits: bool,
}

/// A delivery that waits for the peer's window.
#[derive(Debug)]
pub(super) struct Queued {
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
            outgoing: Unsettled::default(),
            incoming: Unsettled::default(),
            outbox: VecDeque::new(),
            waits: false,
        }
    }

    /// A flow that tells our windows and nothing of a link.
    pub(super) fn flow(&self, config: &Config) -> Flow {
        Flow {
            // Unknown before the peer has begun.
            next_incoming_id: self.remote_channel.map(|_| self.next_incoming_id),
            incoming_window: self.incoming_window,
            next_outgoing_id: self.next_outgoing_id,
            outgoing_window: config.outgoing_window,
            ..Flow::default()
        }
    }

    pub(super) fn take_flow(&mut self, flow: &Flow) {
        // What the peer has not seen yet uses up its window (section 2.5.6). Before it has seen our begin, that is all.
        let unseen = match flow.next_incoming_id {
            Some(next) => self.next_outgoing_id.wrapping_sub(next),
            None => self.next_outgoing_id,
        };
        let unseen = if unseen > u32::MAX / 2 { 0 } else { unseen };
        self.remote_incoming_window = flow.incoming_window.saturating_sub(unseen);
    }

    /// The lowest free handle of ours.
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

    /// Our handle for a handle of the peer's.
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

/// An unsettled delivery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) link: LinkId,
    pub(super) key: u64,
}

/// Unsettled deliveries of one direction. Ids are serial numbers that wrap; inside they are long ones that do not, so
/// that a range is a range.
#[derive(Debug)]
pub(super) struct Unsettled {
    entries: BTreeMap<u64, Entry>,
    newest: u64,
}

impl Default for Unsettled {
    fn default() -> Unsettled {
        // Far from zero: ids before the first one are below it.
        Unsettled { entries: BTreeMap::new(), newest: 1 << 32 }
    }
}

impl Unsettled {
    /// The long form of an id: the one nearest to the newest.
    pub(super) fn long(&self, id: u32) -> u64 {
        let ahead = id.wrapping_sub(self.newest as u32) as i32;
        self.newest.wrapping_add_signed(ahead.into())
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Says which one had this id before.
    pub(super) fn insert(&mut self, id: u32, entry: Entry) -> Option<Entry> {
        let long = self.long(id);
        self.newest = self.newest.max(long);
        self.entries.insert(long, entry)
    }

    pub(super) fn get(&self, id: u32) -> Option<&Entry> {
        self.entries.get(&self.long(id))
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Entry> {
        self.entries.remove(&self.long(id))
    }

    /// Removes one if it is of this link; tells whether it was.
    pub(super) fn remove_of(&mut self, id: u32, link: LinkId) -> bool {
        match self.entries.entry(self.long(id)) {
            btree_map::Entry::Occupied(entry) if entry.get().link == link => {
                entry.remove();
                true
            }
            _ => false,
        }
    }

    /// The first in a range of long ids.
    pub(super) fn first_in(&self, from: u64, to: u64) -> Option<(u64, Entry)> {
        if from > to {
            return None;
        }
        self.entries.range(from..=to).next().map(|(&long, &entry)| (long, entry))
    }

    /// Forgets those of a link.
    pub(super) fn forget_link(&mut self, link: LinkId) {
        self.entries.retain(|_, entry| entry.link != link);
    }
}
