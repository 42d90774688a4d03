//! What a run went through.

use crate::decide::Happened;

/// What a run went through: one that meets nothing proves nothing.
#[derive(Default, Debug, Clone, Copy)]
pub struct Met {
    pub crashes: u64,
    pub power: u64,
    pub kills: u64,
    pub faults: u64,
    pub torn: u64,
    pub flips: u64,
    pub damaged: u64,
    pub steps: u64,
    pub commands: u64,
    pub refused: u64,
    pub sent: u64,
    pub granted: u64,
    pub settled: u64,
    pub stale: u64,
    pub held: u64,
    pub lost: u64,
    pub snapshots: u64,
    pub restored: u64,
    pub recycled: u64,
    pub full: u64,
    pub duplicates: u64,
    pub expired: u64,
    pub overflowed: u64,
    pub went: u64,
    pub committed: u64,
    pub compactions: u64,
    pub copied: u64,
    pub restores: u64,
    pub scrubbed: u64,
    pub published: u64,
    pub copies: u64,
    pub routed: u64,
    pub changed: u64,
    pub misfits: u64,
    pub dead_topics: u64,
    pub cycles: u64,
}

impl Met {
    /// Adds another run.
    pub fn add(&mut self, o: &Met) {
        for (a, b) in self.all().into_iter().zip(o.values()) {
            *a += b;
        }
    }

    /// Takes over what the model counted.
    pub(super) fn note(&mut self, happened: &mut Happened) {
        let Happened {
            duplicates,
            expired,
            overflowed,
            went,
            committed,
            published,
            copies,
            routed,
            changed,
            misfits,
            dead_topics,
            cycles,
        } = std::mem::take(happened);
        self.duplicates += duplicates;
        self.expired += expired;
        self.overflowed += overflowed;
        self.went += went;
        self.committed += committed;
        self.published += published;
        self.copies += copies;
        self.routed += routed;
        self.changed += changed;
        self.misfits += misfits;
        self.dead_topics += dead_topics;
        self.cycles += cycles;
    }

    fn all(&mut self) -> [&mut u64; 36] {
        [
            &mut self.crashes,
            &mut self.power,
            &mut self.kills,
            &mut self.faults,
            &mut self.torn,
            &mut self.flips,
            &mut self.damaged,
            &mut self.steps,
            &mut self.commands,
            &mut self.refused,
            &mut self.sent,
            &mut self.granted,
            &mut self.settled,
            &mut self.stale,
            &mut self.held,
            &mut self.lost,
            &mut self.snapshots,
            &mut self.restored,
            &mut self.recycled,
            &mut self.full,
            &mut self.duplicates,
            &mut self.expired,
            &mut self.overflowed,
            &mut self.went,
            &mut self.committed,
            &mut self.compactions,
            &mut self.copied,
            &mut self.restores,
            &mut self.scrubbed,
            &mut self.published,
            &mut self.copies,
            &mut self.routed,
            &mut self.changed,
            &mut self.misfits,
            &mut self.dead_topics,
            &mut self.cycles,
        ]
    }

    fn values(&self) -> [u64; 36] {
        let mut copy = *self;
        copy.all().map(|n| *n)
    }
}
