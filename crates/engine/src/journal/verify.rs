//! Verifies a data directory: every frame of every segment, every snapshot, and what a recovery would report. It takes
//! no lock and changes nothing, so in a directory in use the end may look torn.

use std::collections::BTreeMap;

use super::frame::{decode_frame, find_frame};
use super::recovery::report;
use super::replay::replay;
use super::report::{SegmentReport, SegmentState, VerifyReport};
use super::segment::{Segment, SegmentFile};
use super::snapshot::{list, restore_newest};
use super::survey::survey;
use super::{HEADER_BYTES, Pos, RecoverError, Replay};
use crate::disk::Disk;

/// Verifies everything, without interpreting records.
pub fn verify(disk: &dyn Disk) -> Result<VerifyReport, RecoverError> {
    verify_with(disk, &mut NullReplay)
}

/// Like [`verify`], with a core that replays the journal. It also reports records that a start would refuse, or whose
/// queue is missing. `core` must be empty.
pub fn verify_with(disk: &dyn Disk, core: &mut dyn Replay) -> Result<VerifyReport, RecoverError> {
    let found = survey(disk)?;
    let kept = restore_newest(disk, core)?;
    kept.check_format()?;
    let mut verified = VerifyReport::default();
    for (covered, name) in list(disk)? {
        let valid = kept.covered.contains(&covered);
        verified.snapshots.push((name, valid.then_some(covered)));
    }
    for segment in &found.chain {
        verified.segments.push(used(segment)?);
    }
    let state = SegmentState::Spare;
    for file in found.off_chain.iter().chain(&found.spares) {
        verified.segments.push(SegmentReport { state, ..unused(file.name(), file) });
    }
    for name in &found.unreadable {
        let bytes = disk.open(name)?.len()?;
        let (file, frames) = (name.clone(), BTreeMap::new());
        verified.segments.push(SegmentReport {
            file,
            bytes,
            state: SegmentState::Unreadable,
            frames,
        });
    }
    verified.segments.sort_by(|a, b| a.file.cmp(&b.file));

    let covered = kept.covered.first().copied();
    match replay(&found.chain, covered.unwrap_or(Pos::ZERO), found.durable, core) {
        Ok(replayed) => {
            verified.recovery = report(&found, &replayed, &kept.invalid);
            verified.recovery.orphans = core.orphans();
        }
        Err(error) => verified.refused = Some(error.to_string()),
    }
    verified.recovery.snapshot = covered;
    verified.recovery.segments = found.chain.len();
    verified.recovery.spares = found.spares.len() + found.off_chain.len();
    Ok(verified)
}

fn unused(file: String, from: &SegmentFile) -> SegmentReport {
    SegmentReport { file, bytes: from.len, state: SegmentState::Spare, frames: BTreeMap::new() }
}

fn used(segment: &Segment) -> Result<SegmentReport, RecoverError> {
    let mut out = unused(segment.file.name(), &segment.file);
    out.state = SegmentState::Used(segment.generation);
    let mut bytes = Vec::new();
    let end = segment.end().map_or(segment.file.limit(), Pos::offset);
    segment.read_all(end, &mut bytes)?;
    let mut from = HEADER_BYTES;
    while let Some(at) = find_frame(&bytes, segment.generation, segment.salt, from, bytes.len()) {
        let Ok(frame) =
            decode_frame(&bytes[at..], Pos::new(segment.generation, at as u32), segment.salt)
        else {
            break;
        };
        *out.frames.entry(frame.kind).or_default() += 1;
        from = at + frame.len_bytes();
    }
    Ok(out)
}

/// A replay that keeps nothing: only checksums and structure are verified.
struct NullReplay;

impl Replay for NullReplay {
    fn restore(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
    fn apply(&mut self, _: Pos, _: u8, _: &[u8]) {}
    fn save(&self, _: &mut Vec<u8>) {}
    fn live(&self, _: &mut dyn FnMut(Pos, u64)) {}
}
