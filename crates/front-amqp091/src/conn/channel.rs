//! The state of one channel.

use std::collections::{BTreeMap, HashMap, VecDeque};

use malote_engine::{ConsumerId, Delivery};
use malote_model::{Address, LeaseToken, QueueName};
use tokio::time::Instant;

use super::confirms::Confirms;
use crate::limits;
use crate::ops::publish::{Outgoing, SendPermission};
use crate::wire::content::{Assembled, ContentAssembler};
use crate::wire::table::FieldTable;
use crate::wire::text::ShortString;

pub(crate) struct Channel {
    /// Unique in the connection: a channel number can be used again.
    pub serial: u64,
    pub assembler: ContentAssembler,
    /// The server closed the channel, and waits for the client's `close-ok`.
    pub closing: bool,
    /// A request is in progress. Later ones wait, so that replies keep their order.
    pub busy: bool,
    /// With the memory that each takes.
    pub waiting: VecDeque<(Assembled, usize)>,
    /// Consumers that ended during the request. RabbitMQ announces them after its reply, at most one for each consumer.
    pub ended: Vec<ShortString>,
    pub mode: Mode,
    /// The delivery tag of the last delivery.
    pub last_tag: u64,
    pub unacked: BTreeMap<u64, Unacked>,
    pub consumers: HashMap<ShortString, Consumer>,
    /// The prefetch limit of consumers that are started from now on; 0 for none.
    pub prefetch: u16,
    /// The prefetch limit of all consumers together; 0 for none.
    pub prefetch_all: u16,
    /// Messages that the shared prefetch limit holds back.
    pub held: VecDeque<(ConsumerId, Delivery)>,
    /// The queue that an empty name stands for.
    pub last_queue: Option<String>,
    /// The consumer of direct replies.
    pub reply_to: Option<ReplyConsumer>,
    /// Where the last publication went, because the next one usually goes there too.
    pub last_target: Option<Target>,
}

/// Where publications with an exchange and a routing key go, and that the caller may send there.
pub(crate) struct Target {
    pub exchange: ShortString,
    pub key: ShortString,
    pub address: Address,
    /// The permissions under which it was allowed. Newer ones are checked again.
    pub permissions: u64,
}

/// What a channel does with publications.
pub(crate) enum Mode {
    Plain,
    Confirm(Confirms),
    Transaction(Staged),
}

/// What a transaction has collected.
#[derive(Default)]
pub(crate) struct Staged {
    pub publications: Vec<Outgoing>,
    /// What the publications need, at most one for each of their copies.
    pub permissions: Vec<SendPermission>,
    pub bytes: usize,
    /// Deliveries that were acknowledged or rejected.
    pub settled: Vec<(Unacked, Verdict)>,
}

/// How a client settled a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Complete,
    /// Back to the queue; counts as a failed delivery.
    Requeue,
    /// Back to the queue; counts nothing.
    Release,
    Reject,
}

/// A delivered message that is not acknowledged.
pub(crate) struct Unacked {
    pub tag: u64,
    pub lease: LeaseToken,
    /// The consumer that got it; `None` for `basic.get`.
    pub consumer: Option<ShortString>,
    pub since: Instant,
}

pub(crate) struct ReplyConsumer {
    /// The name that publications get as `reply_to`.
    pub name: String,
    pub tag: ShortString,
}

pub(crate) struct Consumer {
    pub id: ConsumerId,
    pub queue: QueueName,
    pub no_ack: bool,
    pub exclusive: bool,
    /// As the client gave them.
    pub arguments: FieldTable,
    /// The queue has no single active consumer.
    pub always_active: bool,
    /// Deliveries have the header `x-delivery-count`.
    pub counts_deliveries: bool,
    /// The prefetch limit; 0 for none.
    pub limit: u32,
    /// Delivered and not acknowledged.
    pub outstanding: u32,
    /// Credit that the engine has not used yet.
    pub given: u32,
}

impl Consumer {
    /// The credit to add now.
    pub fn missing_credit(&self) -> u32 {
        let wanted = match self.limit {
            0 => limits::WINDOW,
            limit => limit.saturating_sub(self.outstanding).min(limits::WINDOW),
        };
        let missing = wanted.saturating_sub(self.given);
        // A consumer that still has credit gets more in portions.
        if self.given == 0 || missing >= wanted / 4 { missing } else { 0 }
    }
}

impl Channel {
    pub fn new(serial: u64) -> Self {
        Self {
            serial,
            assembler: ContentAssembler::new(limits::MESSAGE_BYTES_MAX),
            closing: false,
            busy: false,
            ended: Vec::new(),
            waiting: VecDeque::new(),
            mode: Mode::Plain,
            last_tag: 0,
            unacked: BTreeMap::new(),
            consumers: HashMap::new(),
            prefetch: 0,
            prefetch_all: 0,
            held: VecDeque::new(),
            last_queue: None,
            reply_to: None,
            last_target: None,
        }
    }

    /// The next delivery tag.
    pub fn next_tag(&mut self) -> u64 {
        self.last_tag += 1;
        self.last_tag
    }

    /// Whether the shared prefetch limit allows another delivery that must be acknowledged.
    pub fn allows_delivery(&self) -> bool {
        self.prefetch_all == 0 || self.unacked.len() < usize::from(self.prefetch_all)
    }

    /// Removes all unacknowledged deliveries up to a tag (0: all). `None` if there is no such delivery.
    pub fn take_unacked_up_to(&mut self, tag: u64) -> Option<BTreeMap<u64, Unacked>> {
        if tag == 0 {
            return Some(std::mem::take(&mut self.unacked));
        }
        // A tag of the past or the future is an error, unless something older is still unacknowledged.
        let first = *self.unacked.first_key_value()?.0;
        if tag > self.last_tag || tag < first {
            return None;
        }
        let later = self.unacked.split_off(&(tag + 1));
        Some(std::mem::replace(&mut self.unacked, later))
    }
}
