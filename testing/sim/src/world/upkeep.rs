//! What the engine's housekeeping does, at moments of the world's choosing.

use malote_engine::command::{Command, Reply};
use malote_engine::compact::{Compaction, LIVE_RECORDS_MAX};
use malote_engine::core::{Core, Effect, Output};
use malote_engine::event::Event;
use malote_engine::journal::{SnapshotError, restore};
use malote_model::Refusal;

use super::{LOOK, World};
use crate::disk::SimDisk;

impl World {
    pub(super) fn snapshot(&mut self) {
        let mut core = Core::new(1);
        let made = self.journal.snapshotter.run(&mut core);
        self.met.count("digests compared", core.digests_compared());
        match made {
            Ok(Some(done)) => {
                self.met.count("snapshots", 1);
                self.met.count("recycled", done.recycled as u64);
                let victims = self.journal.snapshotter.victims();
                self.say(|| format!("snapshot {done:?}, victims {victims:?}"));
                // What an earlier snapshot's core found still holds: the serving core checks each.
                if !victims.is_empty() && self.compaction.is_none() {
                    let residents = core.live_records_in(&victims, LIVE_RECORDS_MAX);
                    let compaction = Compaction::new(residents, self.options.segment_bytes);
                    self.compaction = Some((compaction, victims));
                    self.met.count("compactions", 1);
                }
                if self.rng.chance(20) {
                    let trimmed = self.journal.snapshotter.trim(false);
                    self.say(|| format!("trimmed {trimmed:?}"));
                }
            }
            Ok(None) => {}
            Err(error @ SnapshotError::Diverged(_)) => panic!("{error}"),
            Err(error) => self.say(|| format!("no snapshot: {error}")),
        }
    }

    /// One batch of copies, as the engine's housekeeping asks for it.
    pub(super) fn compact(&mut self) {
        let Some((compaction, victims)) = &mut self.compaction else { return };
        let Some(items) = compaction.next_batch(&self.journal.segments) else {
            self.journal.snapshotter.relocated(victims);
            self.compaction = None;
            return;
        };
        let count = items.len();
        let (groups, out) = self.call(|turn| turn.command(LOOK, Command::Relocate { items }));
        let mut events = groups.iter().flat_map(|group| &group.events);
        let other =
            events.find(|event| !matches!(event, Event::Relocated(_) | Event::State { .. }));
        assert_eq!(other, None, "copying messages and states does nothing else");
        let hi = self.journal.appender.end_pos();
        let Some(Output { effect: Effect::Request(LOOK, answer), durable, .. }) =
            out.into_iter().next()
        else {
            panic!("a relocation is answered");
        };
        self.say(|| format!("{count} copies up to {hi}: {answer:?}"));
        match answer {
            Ok(Reply::Count(copied)) => {
                assert!(copied == 0 || durable == hi, "a copy is told of when it is durable");
                self.met.count("copied", copied);
            }
            Err(Refusal::DiskFull | Refusal::NoSegment { .. }) if self.tight => {
                self.compaction = None;
            }
            other => panic!("a relocation was answered with {other:?}"),
        }
        self.end_turn();
        self.release();
    }

    /// A round of reading everything again: a crash leaves torn ends, and no damage.
    pub(super) fn scrub(&mut self) {
        loop {
            let done = self.journal.scrubber.step();
            let done = done.unwrap_or_else(|error| panic!("scrubbing failed: {error}"));
            assert!(self.damaged || done.damage.is_none(), "damage from nowhere: {done:?}");
            self.met.count("scrubbed", done.bytes);
            if done.round {
                return;
            }
        }
    }

    /// A new disk, made of a backup of this one.
    pub(super) fn restored(&mut self) -> Option<SimDisk> {
        let backup = match self.journal.backups.begin() {
            Ok(backup) => backup,
            Err(error) => {
                assert!(self.damaged, "no backup can be made: {error}");
                return None;
            }
        };
        let mut bytes = Vec::new();
        for piece in backup {
            match piece {
                Ok(piece) => bytes.extend(piece),
                Err(error) if self.damaged => {
                    self.say(|| format!("no backup of damaged data: {error}"));
                    return None;
                }
                Err(error) => panic!("a backup failed: {error}"),
            }
        }
        let disk = SimDisk::new();
        let done = match restore(&mut bytes.as_slice(), &disk) {
            Ok(done) => done,
            // A snapshot or segment that it needs is damaged, and that is said when it is restored.
            Err(error) if self.damaged => {
                self.say(|| format!("no restore of damaged data: {error}"));
                return None;
            }
            Err(error) => panic!("a backup cannot be restored: {error}"),
        };
        self.say(|| format!("restored {done:?}"));
        self.met.count("restores", 1);
        Some(disk)
    }
}
