//! One journal over many runs: random steps, crashes, and the checks after each.

use std::collections::VecDeque;
use std::sync::Arc;

use malote_engine::journal::{
    Chunk, GroupPosition, Options, Pos, RecoverError, Recovered, RecoveryReport, recover,
};
use malote_sim::disk::SimDisk;
use malote_sim::rng::Rng;

use crate::toy::{self, PUT, SETTLE, Toy};

/// Small, so that a few hundred steps reach every situation.
pub fn options() -> Options {
    Options {
        segment_bytes: 24 << 10,
        first_segment_bytes: 8 << 10,
        spares: 3,
        spares_reserved: 2,
        free_bytes_min: 0,
        salt: 0x5a17,
        snapshot_after_bytes: 64 << 10,
        snapshot_after_ratio: 1,
        compact_floor_bytes: 0,
        scrub_bytes_per_s: 0,
    }
}

pub struct World {
    pub disk: SimDisk,
    pub journal: Recovered,
    /// The core as the engine would have it: with every appended group.
    pub core: Toy,
    /// Groups appended in this run, with their end positions.
    appended: Vec<(u64, Pos)>,
    unwritten: VecDeque<Chunk>,
    pub next_id: u64,
    pub snapshots: u64,
    pub recycled: u64,
}

impl World {
    pub fn open(disk: SimDisk) -> Result<World, RecoverError> {
        let mut core = Toy::default();
        let journal = recover(Arc::new(disk.clone()), &options(), &mut core)?;
        let next_id = core.order.last().map_or(1, |last| last + 1);
        let (appended, unwritten) = (Vec::new(), VecDeque::new());
        Ok(World { disk, journal, core, appended, unwritten, next_id, snapshots: 0, recycled: 0 })
    }

    /// The next process on this disk. Ids are never reused, so that old frames are noticed.
    pub fn reopen(&self, disk: SimDisk) -> Result<World, RecoverError> {
        let mut world = World::open(disk)?;
        world.next_id = world.next_id.max(self.next_id);
        (world.snapshots, world.recycled) = (self.snapshots, self.recycled);
        Ok(world)
    }

    pub fn report(&self) -> &RecoveryReport {
        &self.journal.report
    }

    /// Appends a group of one to four frames, some of which settle an earlier group.
    pub fn append(&mut self, rng: &mut Rng) -> Option<GroupPosition> {
        let count = 1 + rng.below(4) as u8;
        let settled = self.core.live.keys().next().copied();
        let target = settled.filter(|_| self.core.live.len() > 6 || rng.chance(40));
        self.append_group(count, target, rng.chance(20))
    }

    /// Settles `target`, or appends a new group.
    pub fn append_group(
        &mut self,
        count: u8,
        target: Option<u64>,
        lazy: bool,
    ) -> Option<GroupPosition> {
        let id = self.next_id;
        let kind = if target.is_some() { SETTLE } else { PUT };
        let target = target.unwrap_or(0);
        let appender = &mut self.journal.appender;
        appender.begin();
        let refs: Vec<_> = (0..count)
            .map(|index| appender.frame(kind, |out| toy::body(id, index, count, target, out)))
            .collect();
        let place = appender.end(lazy).ok()?;
        self.next_id += 1;
        for (index, frame) in refs.into_iter().enumerate() {
            let mut body = Vec::new();
            toy::body(id, index as u8, count, target, &mut body);
            malote_engine::journal::Replay::apply(&mut self.core, place.pos(frame), kind, &body);
        }
        self.appended.push((id, place.end));
        Some(place)
    }

    pub fn take(&mut self) {
        self.unwritten.extend(self.journal.appender.take().into_iter().flatten());
    }

    pub fn write_one(&mut self) -> std::io::Result<()> {
        match self.unwritten.pop_front() {
            Some(chunk) => self.journal.writer.write(&chunk),
            None => Ok(()),
        }
    }

    pub fn unwritten(&self) -> usize {
        self.unwritten.len()
    }

    pub fn flush(&mut self) -> std::io::Result<()> {
        self.take();
        while !self.unwritten.is_empty() {
            self.write_one()?;
        }
        self.journal.syncer.sync().map(drop)
    }

    pub fn snapshot(&mut self) {
        if let Ok(Some(done)) = self.journal.snapshotter.run(&mut Toy::default()) {
            self.snapshots += 1;
            self.recycled += done.recycled as u64;
        }
    }

    /// A random step. Errors are ignored here, because the journal remembers them.
    pub fn step(&mut self, rng: &mut Rng) {
        match rng.below(100) {
            0..45 => drop(self.append(rng)),
            45..60 => self.take(),
            60..80 => drop(self.write_one()),
            80..92 => drop(self.journal.syncer.sync()),
            92..96 => drop(self.journal.spare_maker.step()),
            96..97 => self.journal.appender.mark(),
            _ if self.journal.snapshotter.due() || rng.chance(20) => self.snapshot(),
            _ => {}
        }
    }

    /// Groups that must survive a crash now.
    pub fn durable(&self) -> Vec<u64> {
        let durable = self.journal.marks.durable();
        let lost = self.appended.iter().filter(|(_, end)| *end > durable).count();
        self.core.order[..self.core.order.len() - lost].to_vec()
    }

    /// Checks the next run.
    pub fn check_next(&self, next: &World) {
        let (durable, all, found) = (self.durable(), &self.core.order, &next.core.order);
        assert!(found.len() >= durable.len(), "lost: {:?}", &durable[found.len()..]);
        assert!(
            found.len() <= all.len() && found[..] == all[..found.len()],
            "replayed an unknown group"
        );
        assert_eq!(next.report().damaged, [], "damage was reported after a crash");
        next.check_live();
    }

    /// Every live body can be read and is unchanged.
    pub fn check_live(&self) {
        for (&id, &pos) in &self.core.live {
            let (kind, body) = self.journal.segments.read(pos).unwrap();
            assert_eq!((kind, toy::parse(&body).0), (PUT, id));
        }
    }
}
