//! Examines a data directory without changing it: which files are segments, and which of them form the journal.
//!
//! Each segment's header contains the end of its predecessor, so the journal is found by walking back from the newest
//! segment. Other segments were given up by an earlier recovery.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::header::{HEADER_BYTES, Header, HeaderBlock, decode_header};
use super::segment::{Segment, SegmentFile, file_number, quarantine_number};
use super::snapshot::{SUFFIX, TEMPORARY_SUFFIX, named};
use super::{Pos, RecoverError};
use crate::disk::{DirEntry, Disk};
use crate::format::FORMAT;

/// The content of a data directory.
#[derive(Default)]
pub(super) struct Survey {
    /// The journal's segments in order; sealed where a successor gives their end.
    pub(super) chain: Vec<Arc<Segment>>,
    /// Segments that were given up earlier, but whose headers were not overwritten.
    pub(super) off_chain: Vec<SegmentFile>,
    pub(super) spares: Vec<SegmentFile>,
    /// Left as they are: the header is unreadable, or an earlier run found damage.
    pub(super) unreadable: Vec<String>,
    pub(super) unknown: Vec<String>,
    /// Files of snapshots that were not finished.
    pub(super) temporaries: Vec<String>,
    pub(super) next_number: u32,
    /// A generation that no frame in any file can have.
    pub(super) next_generation: u64,
    /// The highest durable position in any header.
    pub(super) durable: Pos,
}

pub(super) fn survey(disk: &dyn Disk) -> Result<Survey, RecoverError> {
    let mut found = Survey::default();
    let mut used: Vec<(Header, SegmentFile)> = Vec::new();
    let mut files = 0;
    let entries = disk.list()?;
    let quarantined: BTreeSet<u32> =
        entries.iter().filter_map(|entry| quarantine_number(&entry.name)).collect();
    for DirEntry { name, len } in entries {
        let Some(number) = file_number(&name) else {
            if named(&name, TEMPORARY_SUFFIX).is_some() {
                found.temporaries.push(name);
            } else if named(&name, SUFFIX).is_none()
                && quarantine_number(&name).is_none()
                && name != "lock"
            {
                found.unknown.push(name);
            }
            continue;
        };
        files += 1;
        found.next_number = found.next_number.max(number);
        let file = SegmentFile { file: disk.open(&name)?, number, len, fresh: false };
        match read_header(&file)? {
            HeaderBlock::Valid(header) if header.generation > 0 => used.push((header, file)),
            _ if quarantined.contains(&number) => found.unreadable.push(name),
            HeaderBlock::Valid(_) | HeaderBlock::Blank => found.spares.push(file),
            HeaderBlock::Damaged => found.unreadable.push(name),
            HeaderBlock::Newer(format) => {
                return Err(RecoverError::NewerFormat { file: name, format, known: FORMAT });
            }
        }
    }
    found.next_number += 1;
    used.sort_by_key(|(header, _)| header.generation);
    // After a crash, a file may contain frames of a generation whose header was lost, at most one per file: these
    // generations count as used.
    found.next_generation = used.last().map_or(0, |(header, _)| header.generation) + files + 1;
    found.link(used, &quarantined);
    Ok(found)
}

fn read_header(file: &SegmentFile) -> io::Result<HeaderBlock> {
    let mut block = [0; HEADER_BYTES];
    let got = file.file.read_at(&mut block, 0)?;
    Ok(decode_header(&block[..got]))
}

impl Survey {
    /// Walks back from the newest segment.
    fn link(&mut self, mut used: Vec<(Header, SegmentFile)>, quarantined: &BTreeSet<u32>) {
        let mut wanted = u64::MAX;
        let mut end = None;
        while let Some((header, file)) = used.pop() {
            if header.generation > wanted {
                if quarantined.contains(&file.number) {
                    self.unreadable.push(file.name());
                } else {
                    self.off_chain.push(file);
                }
                continue;
            }
            let damaged = quarantined.contains(&file.number);
            let segment = Segment::new(file, &header);
            // Only the predecessor that a segment refers to has a known end.
            if let Some(end) = end.filter(|end: &Pos| end.generation() == header.generation) {
                segment.seal(end.offset());
            }
            if damaged {
                segment.quarantine();
            }
            self.durable = self.durable.max(header.durable);
            wanted = header.previous_end.generation();
            end = Some(header.previous_end);
            self.chain.push(Arc::new(segment));
        }
        self.chain.reverse();
    }
}
