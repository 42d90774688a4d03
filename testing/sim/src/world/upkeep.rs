//! The engine's housekeeping, at random times.

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
                self.met.count("segments recycled", done.recycled as u64);
                let victims = self.journal.snapshotter.victims();
                self.say(|| format!("snapshot {done:?}, victims {victims:?}"));
                // An earlier result is still usable, because the serving core checks each record.
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
            Err(error) => self.say(|| format!("snapshot failed: {error}")),
        }
    }

    /// One batch of copies, as in the engine's housekeeping.
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
        assert_eq!(other, None, "a compaction only copies messages and states");
        let hi = self.journal.appender.end_pos();
        let Some(Output { effect: Effect::Request(LOOK, answer), durable, .. }) =
            out.into_iter().next()
        else {
            panic!("a relocation was not answered");
        };
        self.say(|| format!("{count} copies up to {hi}: {answer:?}"));
        match answer {
            Ok(Reply::Count(copied)) => {
                assert!(copied == 0 || durable == hi, "a copy is reported when it is durable");
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

    /// Verifies all segments: crashes leave torn ends but no damage.
    pub(super) fn scrub(&mut self) {
        loop {
            let done = self.journal.scrubber.step();
            let done = done.unwrap_or_else(|error| panic!("scrubbing failed: {error}"));
            assert!(self.damaged || done.damage.is_none(), "unexpected damage: {done:?}");
            self.met.count("scrubbed", done.bytes);
            if done.round {
                return;
            }
        }
    }

    /// A new disk, restored from a backup of this one.
    pub(super) fn restored(&mut self) -> Option<SimDisk> {
        let backup = match self.journal.backups.begin() {
            Ok(backup) => backup,
            Err(error) => {
                assert!(self.damaged, "the backup failed: {error}");
                return None;
            }
        };
        let mut bytes = Vec::new();
        for piece in backup {
            match piece {
                Ok(piece) => bytes.extend(piece),
                Err(error) if self.damaged => {
                    self.say(|| format!("cannot back up damaged data: {error}"));
                    return None;
                }
                Err(error) => panic!("the backup failed: {error}"),
            }
        }
        let disk = SimDisk::new();
        let done = match restore(&mut bytes.as_slice(), &disk) {
            Ok(done) => done,
            // A snapshot or segment in the backup is damaged, which the restore reports.
            Err(error) if self.damaged => {
                self.say(|| format!("cannot restore damaged data: {error}"));
                return None;
            }
            Err(error) => panic!("the restore failed: {error}"),
        };
        self.say(|| format!("restored {done:?}"));
        self.met.count("backups restored", 1);
        Some(disk)
    }
}
