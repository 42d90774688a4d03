//! Looks at a data directory without changing it: which files are segments, and which of
//! those form the journal.
//!
//! Each segment's header names the place where its predecessor ended, so the
//! journal is found by walking back from the newest. What is off that walk was given up by an
//! earlier recovery.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::header::{HEADER_BYTES, Header, HeaderBlock, decode_header};
use super::segment::{Segment, SegmentFile, file_number, quarantine_number};
use super::snapshot::{SUFFIX, TEMPORARY_SUFFIX, named};
use super::{OpenError, Pos};
use crate::disk::{Disk, Entry};
use crate::format::FORMAT;

/// What is in a data directory.
#[derive(Default)]
pub(super) struct Survey {
    /// The journal's segments in order; sealed where a successor says where they end.
    pub(super) chain: Vec<Arc<Segment>>,
    /// Given up earlier, but their headers still say otherwise.
    pub(super) off_chain: Vec<SegmentFile>,
    pub(super) spares: Vec<SegmentFile>,
    /// Left alone: the header cannot be read, or an earlier run found damage.
    pub(super) unreadable: Vec<String>,
    pub(super) unknown: Vec<String>,
    /// Snapshots that were never finished.
    pub(super) temporaries: Vec<String>,
    pub(super) next_number: u32,
    /// The next generation that no frame in any file can have.
    pub(super) next_generation: u64,
    /// The highest durable position that a header knows of.
    pub(super) durable: Pos,
}

pub(super) fn survey(disk: &dyn Disk) -> Result<Survey, OpenError> {
    let mut found = Survey::default();
    let mut used: Vec<(Header, SegmentFile)> = Vec::new();
    let mut files = 0;
    let entries = disk.list()?;
    let quarantined: BTreeSet<u32> =
        entries.iter().filter_map(|entry| quarantine_number(&entry.name)).collect();
    for Entry { name, len } in entries {
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
                return Err(OpenError::NewerFormat { file: name, format, known: FORMAT });
            }
        }
    }
    found.next_number += 1;
    used.sort_by_key(|(header, _)| header.generation);
    // A crash may have kept frames of a generation and lost its header, one per file at
    // most: those generations count as used.
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
            // Only the predecessor that a segment names has a known end.
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
