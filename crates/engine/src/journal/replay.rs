//! Replays the journal and decides where it ends.
//!
//! An incomplete group is a torn tail if nothing indicates that it was durable: the journal is cut there. If anything
//! does (a snapshot, a later segment's header, a mark in a later intact frame), it is damage: it is reported, its
//! segment is quarantined, and reading continues after it.

use std::io;
use std::sync::Arc;

use super::report::Damage;
use super::scan::{Lookahead, ScanStep, Scanner, walk};
use super::segment::Segment;
use super::{HEADER_BYTES, Pos, RecoverError, Replay};
use crate::format::NotUnderstood;

/// The result of a replay.
#[derive(Default)]
pub(super) struct Replayed {
    /// The number of segments with data before the cut.
    pub(super) segments: usize,
    pub(super) cut: Pos,
    pub(super) durable: Pos,
    pub(super) frames: u64,
    pub(super) groups: u64,
    pub(super) discarded_frames: u64,
    pub(super) damaged: Vec<Damage>,
    /// The first record that the core could not decode. Nothing after it was applied.
    not_understood: Option<(Pos, NotUnderstood)>,
}

/// Applies everything after `covered` to `core`.
pub(super) fn replay(
    chain: &[Arc<Segment>],
    covered: Pos,
    durable: Pos,
    core: &mut dyn Replay,
) -> Result<Replayed, RecoverError> {
    let behind = |segment: &Arc<Segment>| {
        segment.generation > covered.generation()
            || segment.generation == covered.generation()
                && segment.end().is_none_or(|end| end > covered)
    };
    let first = chain.iter().position(behind).unwrap_or(chain.len());
    let durable = durable.max(covered);
    let mut run = ReplayRun {
        chain,
        core,
        bytes: Vec::new(),
        out: Replayed { segments: first, cut: covered, durable, ..Replayed::default() },
    };
    for (index, segment) in chain.iter().enumerate().skip(first) {
        let same = segment.generation == covered.generation();
        if !same && segment.previous_end != run.out.cut {
            // Something is missing in between. It is only a tail if none of it was durable.
            run.look_ahead(index)?;
            if run.out.durable > run.out.cut || covered == Pos::ZERO && index == first {
                return Err(RecoverError::Gap {
                    from: run.out.cut,
                    to: Pos::new(segment.generation, 0),
                });
            }
            break;
        }
        let from = if same { covered.offset() } else { HEADER_BYTES as u32 };
        let whole = run.segment(index, from)?;
        if let Some((pos, why)) = run.out.not_understood {
            return Err(RecoverError::NotUnderstood { file: segment.file.name(), pos, why });
        }
        let start = Pos::new(segment.generation, HEADER_BYTES as u32);
        if !whole && run.out.cut == start && start > covered {
            run.out.cut = segment.previous_end; // it is empty, as if it had not been begun
        } else {
            run.out.segments = index + 1;
        }
        if !whole {
            break;
        }
    }
    Ok(run.out)
}

struct ReplayRun<'a> {
    chain: &'a [Arc<Segment>],
    core: &'a mut dyn Replay,
    bytes: Vec<u8>,
    out: Replayed,
}

impl ReplayRun<'_> {
    /// Replays one segment. Returns false if the journal ends in it.
    fn segment(&mut self, index: usize, from: u32) -> io::Result<bool> {
        let chain = self.chain;
        let segment = &chain[index];
        let known_end = segment.end();
        let end = known_end.map_or(segment.file.limit(), Pos::offset);
        let mut bytes = std::mem::take(&mut self.bytes);
        let from = walk(segment, from, end, &mut bytes, &mut |scan| self.apply(scan))?;
        let reached = Pos::new(segment.generation, from);
        let blank = from < end && segment.is_blank(from, end, &mut bytes)?;
        if blank && reached >= self.out.durable {
            self.look_ahead(index + 1)?;
        }
        // The usual ends. Anything else requires reading the whole segment.
        if from >= end || blank && reached >= self.out.durable {
            self.out.cut = reached;
            self.bytes = bytes;
            return Ok(from >= end);
        }
        segment.read_all(end, &mut bytes)?;
        let mut scan = Scanner::new(&bytes, segment, from, end);
        let whole = loop {
            match scan.next() {
                ScanStep::Group => {
                    self.apply(&scan);
                    continue;
                }
                ScanStep::End => break true,
                ScanStep::Broken => {}
            }
            let at = scan.pos();
            if at >= self.out.durable {
                let mut ahead = Lookahead::default();
                ahead.look(&bytes, segment, at.offset(), end);
                self.note(ahead);
                self.look_ahead(index + 1)?;
            }
            if at >= self.out.durable {
                break false;
            }
            self.out.discarded_frames = 0;
            scan.skip_damage();
            let mut to = scan.pos();
            // After the durable position, a bad frame is again only a torn tail.
            let tail = known_end.is_none() && to > self.out.durable;
            if tail && self.out.durable.generation() == segment.generation {
                to = self.out.durable;
            }
            segment.quarantine();
            self.out.damaged.push(Damage { file: segment.file.name(), from: at, to });
            self.core.damage_skipped(at, to);
            if tail {
                self.out.cut = to;
                self.bytes = bytes;
                return Ok(false);
            }
        };
        self.out.cut = scan.pos();
        self.bytes = bytes;
        Ok(whole)
    }

    fn apply(&mut self, scan: &Scanner<'_>) {
        if let Some(mark) = scan.mark() {
            self.out.durable = self.out.durable.max(mark);
            return;
        }
        for (pos, kind, body) in scan.group() {
            if self.out.not_understood.is_some() {
                return;
            }
            let applied = self.core.try_apply(pos, kind, body);
            self.out.not_understood = applied.err().map(|why| (pos, why));
            self.out.frames += 1;
        }
        self.out.groups += 1;
    }

    /// Collects what later segments know about the durable position.
    fn look_ahead(&mut self, index: usize) -> io::Result<()> {
        let mut bytes = Vec::new();
        for segment in self.chain.iter().skip(index) {
            let end = segment.end().map_or(segment.file.limit(), Pos::offset);
            segment.read_all(end, &mut bytes)?;
            let mut ahead = Lookahead::default();
            ahead.look(&bytes, segment, HEADER_BYTES as u32, end);
            self.note(ahead);
        }
        Ok(())
    }

    fn note(&mut self, ahead: Lookahead) {
        self.out.durable = self.out.durable.max(ahead.durable);
        self.out.discarded_frames += ahead.frames;
    }
}
