//! A full disk with one message in each segment: no segment can be recycled, but compaction must free space.
#![allow(clippy::unwrap_used)] // test code

use std::sync::Arc;

use bytes::Bytes;
use malote_engine::command::{Attach, Command, Reply};
use malote_engine::compact::{Compaction, LIVE_RECORDS_MAX};
use malote_engine::core::{Core, Effect, Turn};
use malote_engine::disk::Disk;
use malote_engine::journal::{Options, Recovered, recover};
use malote_engine::{ConsumerId, EncodedMessage, Peek, Stored, Wants};
use malote_model::{
    Address, Body, BodyKind, LeaseToken, Message, QueueName, QueueSpec, Refusal, Seq, Settlement,
    Timestamp,
};
use malote_sim::disk::{Faults, SimDisk};

struct Broker {
    core: Core,
    journal: Recovered,
    now: u64,
}

fn options() -> Options {
    Options {
        segment_bytes: 256 << 10,
        first_segment_bytes: 16 << 10,
        free_bytes_min: 0,
        snapshot_after_bytes: 1 << 30,
        compact_floor_bytes: 1 << 30,
        ..Options::default()
    }
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

impl Broker {
    fn open(disk: &SimDisk) -> Self {
        let mut core = Core::new(1);
        let mut journal = recover(Arc::new(disk.clone()), &options(), &mut core).unwrap();
        let now = core.last_at().0 + 1;
        core.go_live(&mut journal.appender, Timestamp(now), 3).unwrap();
        let mut broker = Self { core, journal, now };
        broker.flush();
        broker
    }

    fn flush(&mut self) {
        for chunk in self.journal.appender.take().unwrap_or_default() {
            self.journal.writer.write(&chunk).unwrap();
        }
        self.journal.syncer.sync().unwrap();
        // As many spares as the disk allows.
        while self.journal.spare_maker.step().unwrap() == malote_engine::journal::SpareStep::Worked
        {
        }
    }

    fn ask(&mut self, command: Command) -> Result<Reply, Refusal> {
        self.now += 1;
        let (now, mut out) = (Timestamp(self.now), Vec::new());
        let publish = self.journal.pool.publish_allowed();
        let mut turn =
            Turn::new(&mut self.core, &mut self.journal.appender, now, &mut out, publish);
        turn.expire();
        turn.command(1, command);
        turn.dispatch();
        self.flush();
        let answer = out.into_iter().find_map(|output| match output.effect {
            Effect::Request(1, answer) => Some(answer),
            _ => None,
        });
        answer.unwrap()
    }

    fn send(&mut self, n: u64) -> Result<Reply, Refusal> {
        let bytes = Bytes::from([&n.to_le_bytes()[..], &[n as u8; 4000]].concat());
        let body = Body { bytes, kind: BodyKind::Bytes };
        let message = Message { body, ..Message::default() };
        let outgoing = EncodedMessage::new(&message, false).unwrap();
        self.ask(Command::Send { items: vec![(Address::Queue(queue()), outgoing)] })
    }

    fn receive(&mut self, credit: u32) -> Vec<LeaseToken> {
        let attach = Attach {
            consumer: ConsumerId(self.now),
            connection: None,
            free_standing: true,
            queue: queue(),
            wants: Wants::Any { per_session: 1 },
            credit,
            take: false,
            lock_ms: Some(3_600_000),
            once_until: Some(Timestamp(self.now)),
            priority: 0,
            exclusive: false,
        };
        let Ok(Reply::Delivered(grants)) = self.ask(Command::Attach(attach)) else {
            panic!("the receive failed")
        };
        grants.into_iter().filter_map(|grant| grant.lease).collect()
    }

    /// Does what the housekeeping does when a snapshot is due. Returns the number of copied records.
    fn keep_house(&mut self) -> u64 {
        if !self.journal.snapshotter.due() {
            return 0;
        }
        let mut core = Core::new(1);
        self.journal.snapshotter.run(&mut core).unwrap();
        let victims = self.journal.snapshotter.victims();
        let residents = core.live_records_in(&victims, LIVE_RECORDS_MAX);
        let mut compaction = Compaction::new(residents, options().segment_bytes);
        let mut copied = 0;
        while let Some(items) = compaction.next_batch(&self.journal.segments) {
            match self.ask(Command::Relocate { items }) {
                Ok(Reply::Count(n)) => copied += n,
                other => panic!("{other:?}"),
            }
        }
        if copied > 0 {
            self.journal.snapshotter.relocated(&victims);
        }
        copied
    }
}

#[test]
fn a_full_disk_of_nearly_empty_segments_is_compacted_into_reserved_segments() {
    let disk = SimDisk::new();
    let mut broker = Broker::open(&disk);
    let spec = Box::new(QueueSpec::default());
    broker.ask(Command::Declare { name: queue(), spec, connection: None }).unwrap();
    disk.set_faults(Faults { capacity_bytes: Some(8 << 20), ..Faults::default() });
    let mut sent = 0;
    while broker.send(sent).is_ok() {
        sent += 1;
    }
    assert_eq!(broker.send(sent).unwrap_err(), Refusal::DiskFull);
    // One in thirty stays, so every segment has at least one. Settling always works.
    let mut kept = Vec::new();
    for n in 0..sent {
        let lease = broker.receive(1)[0];
        if n % 30 == 0 {
            kept.push(n);
            continue;
        }
        let (leases, settlement) = (vec![lease], Settlement::Complete);
        let settled = broker.ask(Command::Settle { leases, settlement, state: None });
        assert!(matches!(settled, Ok(Reply::Settled(each)) if each[0].is_ok()));
    }
    let used: u64 = disk.list().unwrap().iter().map(|entry| entry.len).sum();
    assert!(used > 7 << 20, "the disk is not full: {used}");
    let (mut copied, mut rounds) = (0, 0);
    while !broker.journal.pool.publish_allowed() || broker.journal.snapshotter.due() {
        copied += broker.keep_house();
        rounds += 1;
        assert!(rounds < 200, "the disk is still full after copying {copied} records");
    }
    assert!(copied > 0, "no record was copied");
    for n in 0..50 {
        broker.send(sent + n).unwrap();
    }
    // All remaining messages exist, now and after a crash.
    for round in 0..2 {
        let peek = Peek { queue: queue(), from: Seq(0), max: 1000, session: None, state: None };
        let Ok(Reply::Peeked { items, .. }) = broker.ask(Command::Peek(peek)) else {
            panic!("the peek failed")
        };
        let found: Vec<u64> = items
            .iter()
            .map(|item| {
                let stored = Stored::read_now(&broker.journal.segments, item.pos).unwrap();
                u64::from_le_bytes(stored.message.body.bytes[..8].try_into().unwrap())
            })
            .collect();
        let want: Vec<u64> = kept.iter().copied().chain(sent..sent + 50).collect();
        assert_eq!(found, want, "round {round}");
        broker = Broker::open(&disk.killed());
    }
}
