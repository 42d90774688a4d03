//! Crashes: the disk after a crash is opened again and compared with the model.

use std::collections::BTreeMap;
use std::hash::Hash;

use malote_engine::core::Core;

use super::World;
use super::journal::Journal;
use super::receivers::Receivers;
use crate::disk::{Faults, SimDisk};
use crate::rng::Rng;

impl World {
    /// Crashes, and opens the disk again.
    pub(super) fn crash(&mut self) {
        let power = self.rng.chance(70);
        let (durable, written) = (self.journal.marks.durable(), self.journal.marks.written());
        let poisoned = self.journal.marks.poisoned();
        let mut rng = Rng::new(self.rng.next_u64());
        let restored = if rng.chance(10) && !poisoned { self.restored() } else { None };
        let from_backup = restored.is_some();
        let mut disk = match restored {
            Some(restored) => restored,
            None if power => self.disk.crashed(&mut rng),
            None => self.disk.killed(),
        };
        self.met.count("crashes", 1);
        if power {
            self.met.count("power losses", 1);
        } else {
            self.met.count("kills", 1);
        }
        disk.state_hash().hash(&mut self.hasher);
        let flipped = if rng.chance(8) { self.flip(&disk, &mut rng) } else { None };
        self.say(|| {
            format!(
                "crash, power {power}, durable {durable}, written {written}, flipped {flipped:?}"
            )
        });
        self.tight = false;
        let mut again = 0;
        let (core, journal, unread) = loop {
            let mut faults = Faults::default();
            if again < 3 && rng.chance(20) {
                match rng.below(4) {
                    0 => faults.read_fails_in = Some(rng.below(20)),
                    1 => faults.write_fails_in = Some(rng.below(6)),
                    _ => faults.sync_fails_in = Some(rng.below(6)),
                }
            }
            let unread = faults.read_fails_in.is_some();
            disk.set_faults(faults);
            let mut core = Core::new(1);
            let opened = Journal::open(&disk, &self.options, &mut core);
            disk.set_faults(Faults::default());
            match opened {
                Ok(journal) => break (core, journal, unread),
                Err(error) if again < 3 => {
                    self.say(|| format!("recovery failed: {error}"));
                    again += 1;
                    disk = if power && rng.chance(50) {
                        disk.crashed(&mut rng)
                    } else {
                        disk.killed()
                    };
                }
                Err(error) if flipped.is_some() => {
                    // The refusal is correct, because data is missing. Continue with a new world.
                    self.say(|| format!("recovery refused after a flipped bit: {error}"));
                    self.met.count("damaged", 1);
                    return self.begin_anew();
                }
                Err(error) => panic!("recovery failed without a fault: {error}"),
            }
        };
        self.met.count("digests compared", core.digests_compared());
        (self.core, self.journal, self.disk) = (core, journal, disk);
        (self.pending, self.asked) = (BTreeMap::new(), BTreeMap::new());
        (self.turn_chunks, self.turn_outputs) = Default::default();
        self.receivers = Receivers::default();
        self.reads.clear();
        self.compaction = None;
        let report = self.journal.report.clone();
        self.say(|| format!("{report:?}"));
        assert_eq!(report.diverged, None, "the replay differs from the served state");
        self.met.count("snapshots restored", u64::from(report.snapshot.is_some()));
        self.met.count("torn tails", u64::from(report.discarded_frames > 0));
        let said_damage = !report.damaged.is_empty()
            || !report.unreadable_segments.is_empty()
            || !report.invalid_snapshots.is_empty();
        if flipped.is_some()
            && (!report.damaged.is_empty() || !report.unreadable_segments.is_empty())
        {
            self.met.count("damaged", 1);
            let at =
                self.boot().unwrap_or_else(|error| panic!("cannot boot after damage: {error}"));
            return self.go_on_after_damage(report.cut, at);
        }
        // Unreadable data is reported like damage, and earlier damage is reported again.
        let fine = flipped.is_some() || self.damaged || unread && report.damaged.is_empty();
        assert!(fine || !said_damage, "damage was reported after a crash: {report:?}");
        let cut = report.cut;
        // A flipped bit after the last mark looks like a torn tail.
        if flipped.is_none() || cut >= durable {
            let lossy = power || poisoned || from_backup || flipped.is_some();
            let keep = if lossy { durable } else { written };
            assert!(
                !from_backup || flipped.is_some() || cut == durable,
                "a backup made at {durable} ends at {cut}"
            );
            assert!(
                cut >= keep,
                "lost: the journal ends at {cut}, but must reach {keep} (power {power})"
            );
        } else {
            self.met.count("damaged", 1);
            return self.begin_anew();
        }
        let at = self.boot().unwrap_or_else(|error| panic!("cannot boot after a crash: {error}"));
        self.model.crash(cut, at);
        self.clients.restarted();
        self.flipped = flipped.is_some();
        let (groups, out) = self.call(|turn| turn.expire());
        let left = self.model.expire(self.now, &groups, true);
        assert!(out.is_empty(), "there are no clients to notify");
        self.model.check_journal(&groups);
        self.end_turn();
        self.finish_expiry(left);
        // Messages returned by the restart may exceed the limit of their queue.
        self.one_turn(Vec::new());
        // The names must agree before the queues can be compared.
        let names: Vec<_> =
            self.model.state.queues.keys().filter(|n| !n.is_dead_letters()).cloned().collect();
        assert_eq!(self.engine_queues(), names, "queue names after a crash");
        self.check_all();
        if self.flipped {
            // Damaged data may not have been read yet.
            self.flipped = false;
            return self.begin_anew_here();
        }
        if self.rng.chance(30) {
            self.flush();
        }
    }

    fn begin_anew(&mut self) {
        let seed = self.rng.next_u64();
        let mut world = World::new(seed, self.verbose);
        world.met = std::mem::take(&mut self.met);
        world.hasher = self.hasher.clone();
        world.trace = std::mem::take(&mut self.trace);
        *self = world;
    }

    fn flip(&mut self, disk: &SimDisk, rng: &mut Rng) -> Option<String> {
        use malote_engine::disk::Disk;
        let files: Vec<_> = disk.list().ok()?.into_iter().filter(|e| e.len > 0).collect();
        let file = files.get(rng.below(files.len().max(1) as u64) as usize)?;
        let byte = rng.below(file.len);
        disk.flip_bit(&file.name, byte, rng.below(8) as u8);
        self.met.count("flipped bits", 1);
        Some(format!("{} at {byte}", file.name))
    }
}
