//! Some worlds begin with many messages: more than an index block holds, sessions longer than their inline list,
//! columns that begin late in a block, and batches of maximum size.

use std::rc::Rc;

use malote_engine::Wants;
use malote_engine::command::Attach;
use malote_model::{
    Message, QueueName, QueueSpec, SessionId, Sessions, Settlement, Timestamp, limits,
};

use super::World;
use crate::decide::Ask;
use crate::model::{Availability, SentMessage};

/// More than an index block holds.
const MANY: u64 = 4_300;
const BATCH: u64 = 300;

fn name(name: &str) -> QueueName {
    QueueName::new(name).unwrap_or_else(|refusal| panic!("{refusal}"))
}

impl World {
    pub(super) fn crowd(&mut self) {
        let lined = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
        let ranked = QueueSpec { priority_max: 3, ..QueueSpec::default() };
        let queues = [("crowd", QueueSpec::default()), ("lined", lined), ("ranked", ranked)];
        for (queue, spec) in queues {
            self.turn(vec![(0, Ask::Declare { name: name(queue), spec, connection: None })]);
        }
        self.send_many("crowd", MANY, |n, message| {
            // Messages with their own time to live, late in the first block.
            message.ttl_ms = (n > 3_900 && n.is_multiple_of(7)).then_some(3_600_000 + n);
        });
        self.send_many("lined", 2 * BATCH, |n, message| {
            let id = if n.is_multiple_of(9) { "s2" } else { "s1" };
            message.session = SessionId::new(id).ok();
        });
        self.send_many("ranked", 2 * BATCH, |n, message| {
            message.priority = if n > BATCH { (n % 5) as u8 } else { 0 };
        });
        self.settle_many();
        self.expire_many();
        self.met.count("worlds with many messages", 1);
        self.check_all();
    }

    /// More messages expire at the same moment than one turn removes.
    fn expire_many(&mut self) {
        let (queue, ttl_ms) = ("fading", 600_000);
        let spec = QueueSpec { ttl_ms: Some(ttl_ms), ..QueueSpec::default() };
        self.turn(vec![(0, Ask::Declare { name: name(queue), spec, connection: None })]);
        self.send_many(queue, MANY, |_, _| {});
        self.now += ttl_ms;
        self.turn(Vec::new());
        self.flush();
        self.make_room();
    }

    fn send_many(&mut self, queue: &str, count: u64, each: impl Fn(u64, &mut Message)) {
        let mut sent = 0;
        while sent < count {
            let batch: Vec<_> = (sent..(sent + BATCH).min(count)).collect();
            sent += batch.len() as u64;
            let sent_message = |n: u64| {
                let message_id = Some(format!("{queue} {n}"));
                let mut message = Message { message_id, ..Message::default() };
                each(n, &mut message);
                (name(queue).into(), Rc::new(SentMessage::new(message, false)))
            };
            let items = batch.into_iter().map(sent_message).collect();
            self.turn(vec![(0, Ask::Send { items })]);
            self.flush();
            self.make_room();
        }
    }

    /// Two receives and a settlement of maximum size, and a settlement with one lease too many.
    fn settle_many(&mut self) {
        for _ in 0..2 {
            let consumer = self.clients.new_consumer();
            let attach = Attach {
                free_standing: false,
                consumer,
                connection: None,
                queue: name("crowd"),
                wants: Wants::Any { per_session: 1 },
                credit: limits::RECEIVE_BATCH_MAX as u32,
                take: false,
                lock_ms: None,
                once_until: Some(Timestamp(self.now)),
                priority: 0,
                exclusive: false,
            };
            self.turn_at_once(vec![(1, Ask::Attach(attach))]);
            self.flush();
            self.make_room();
        }
        let q = self.model.state.queue(&name("crowd"));
        let out = q.msgs.values().filter_map(|msg| match msg.availability {
            Availability::Leased(token) => Some(token),
            _ => None,
        });
        let mut leases: Vec<_> = out.collect();
        // The same leases again, which have ended by then.
        leases.extend(leases.clone());
        leases.truncate(limits::SETTLE_BATCH_MAX);
        self.met.count("largest settlement", u64::from(leases.len() == limits::SETTLE_BATCH_MAX));
        let too_many = vec![leases[0]; limits::SETTLE_BATCH_MAX + 1];
        let settle =
            |leases| (1, Ask::Settle { leases, settlement: Settlement::Complete, state: None });
        self.turn_at_once(vec![settle(too_many)]);
        self.turn_at_once(vec![settle(leases)]);
        self.flush();
        self.make_room();
    }
}
