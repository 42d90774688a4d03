//! The state of a link: names, credit, and a partially received message.

use bytes::{Bytes, BytesMut};

use crate::performative::{
    Attach, DeliveryState, Flow, ReceiverSettleMode, Role, SenderSettleMode,
};
use crate::types::Str;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) serial: u32,
    pub(super) name: Str,
    /// The role of this side of the link.
    pub(super) role: Role,
    pub(super) snd_settle_mode: SenderSettleMode,
    pub(super) rcv_settle_mode: ReceiverSettleMode,
    pub(super) attach_sent: bool,
    pub(super) attach_received: bool,
    pub(super) detach_sent: bool,
    pub(super) detach_received: bool,
    /// The peer's handle, while it is attached there.
    pub(super) remote_handle: Option<u32>,
    /// Sender: the initial delivery count.
    pub(super) initial_count: u32,
    /// Deliveries begun, as counted by the sender.
    pub(super) delivery_count: u32,
    /// Deliveries that may still begin.
    pub(super) credit: u32,
    /// Receiver: the highest delivery count that the sender was ever allowed. Credit can be lowered, but deliveries
    /// sent before the sender learned of it still arrive.
    pub(super) limit: u32,
    /// Sender: deliveries that were accepted from the owner and have not begun.
    pub(super) queued: u32,
    /// The receiver wants the credit used up.
    pub(super) drain: bool,
    /// Sender: the owner has nothing more, and what is queued goes first.
    pub(super) drained_after_queue: bool,
    pub(super) available: u32,
    /// Receiver: the largest message; zero is any.
    pub(super) max_message_size: u64,
    /// Sender: the largest message that the peer takes; zero is any.
    pub(super) remote_max_message_size: u64,
    pub(super) partial: Option<Box<PartialDelivery>>,
    /// Another link of its name was attached: it was detached for that, and the peer has not answered yet.
    pub(super) stolen: bool,
    /// The peer's attach, until the link that had the name is gone.
    pub(super) waiting: Option<Box<Attach>>,
}

/// A message of which some frames are missing.
#[derive(Debug)]
pub(super) struct PartialDelivery {
    pub(super) delivery: u32,
    pub(super) tag: Bytes,
    pub(super) message_format: u32,
    pub(super) settled: bool,
    pub(super) state: Option<DeliveryState>,
    pub(super) payload: BytesMut,
}

impl Link {
    pub(super) fn new(serial: u32, name: Str, role: Role) -> Link {
        Link {
            serial,
            name,
            role,
            snd_settle_mode: SenderSettleMode::Mixed,
            rcv_settle_mode: ReceiverSettleMode::First,
            attach_sent: false,
            attach_received: false,
            detach_sent: false,
            detach_received: false,
            remote_handle: None,
            initial_count: 0,
            delivery_count: 0,
            credit: 0,
            limit: 0,
            queued: 0,
            drain: false,
            drained_after_queue: false,
            available: 0,
            max_message_size: 0,
            remote_max_message_size: 0,
            partial: None,
            stolen: false,
            waiting: None,
        }
    }

    /// Whether both ends have attached and neither has detached.
    pub(super) fn is_attached(&self) -> bool {
        self.attach_sent && self.attach_received && !self.detach_sent && !self.detach_received
    }

    /// Credit of a sender, minus queued deliveries.
    pub(super) fn free_credit(&self) -> u32 {
        self.credit.saturating_sub(self.queued)
    }

    /// Receiver: sets the sender's credit.
    pub(super) fn set_credit(&mut self, credit: u32) {
        self.credit = credit;
        let limit = self.delivery_count.wrapping_add(credit);
        if limit.wrapping_sub(self.limit) <= u32::MAX / 2 {
            self.limit = limit;
        }
    }

    /// Receiver: a delivery begins. False if the sender exceeded its credit.
    pub(super) fn take_delivery(&mut self) -> bool {
        if self.delivery_count == self.limit {
            return false;
        }
        self.credit = self.credit.saturating_sub(1);
        self.delivery_count = self.delivery_count.wrapping_add(1);
        true
    }

    /// Applies a flow of the peer.
    pub(super) fn take_flow(&mut self, flow: &Flow) {
        match self.role {
            Role::Sender => {
                // Before the receiver has seen our attach, it counts from our initial count (section 2.6.7).
                let count = flow.delivery_count.unwrap_or(self.initial_count);
                if let Some(credit) = flow.link_credit {
                    // Deliveries on their way use up credit. A receiver that is ahead of us has miscounted.
                    let unseen = self.delivery_count.wrapping_sub(count);
                    let unseen = if unseen > u32::MAX / 2 { 0 } else { unseen };
                    self.credit = credit.saturating_sub(unseen);
                }
                self.drain = flow.drain;
                // A cancelled drain does not use up the credit granted now.
                self.drained_after_queue &= flow.drain;
            }
            Role::Receiver => {
                if let Some(count) = flow.delivery_count {
                    let used = count.wrapping_sub(self.delivery_count);
                    // The count cannot decrease, nor exceed the credit.
                    if used <= self.limit.wrapping_sub(self.delivery_count) {
                        self.credit = self.credit.saturating_sub(used);
                        self.delivery_count = count;
                    }
                }
                self.available = flow.available.unwrap_or(0);
            }
        }
    }
}
