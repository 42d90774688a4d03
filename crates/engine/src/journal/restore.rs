//! Verifies a backup and restores it into a directory.

use std::io::{self, Read};

use super::backup::{MAGIC, PIECE_BYTES, VERSION};
use super::header::{HEADER_BYTES, HeaderBlock, decode_header};
use super::segment::file_number;
use super::snapshot::{self, SUFFIX};
use super::{Pos, verify};
use crate::disk::Disk;

const NAME_BYTES_MAX: usize = 64;
/// Until the restore is complete, files have names that no server reads.
const UNFINISHED: &str = ".restoring";

/// Why a backup cannot be restored. Each message is a sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A server uses the directory.
    #[error("data directory `{0}` is in use by another process")]
    InUse(String),
    /// The directory already contains a journal.
    #[error("data directory `{0}` already contains a journal: restore into an empty directory")]
    NotEmpty(String),
    /// It is something else.
    #[error("this is not a backup of Malote")]
    NotABackup,
    /// A later version made it.
    #[error(
        "the backup has format {0}, which this version of Malote does not know: restore it with the version that made it, or a later one"
    )]
    Newer(u32),
    /// It is truncated.
    #[error("the backup is cut short: its end is missing")]
    CutShort,
    /// A checksum is wrong, or the content is inconsistent.
    #[error("the backup is damaged: {0}")]
    Damaged(String),
    /// The restored directory differs from the backup.
    #[error("the restored directory cannot be used: {0}")]
    Unusable(String),
    /// Reading the backup or writing the directory failed.
    #[error("the backup could not be restored: {0}")]
    Io(#[from] io::Error),
}

/// The content of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// It contains everything before this position.
    pub position: Pos,
    pub files: u64,
    /// The size of the backup.
    pub bytes: u64,
}

/// Reads a backup to its end and verifies its checksums, without storing it.
pub fn check_backup(backup: &mut dyn Read) -> Result<Restored, RestoreError> {
    read(backup, None)
}

/// Restores a backup into a directory without a journal, and verifies that a server would find exactly its content.
/// After an interruption, the directory is unchanged, or a server refuses to start there.
pub fn restore(backup: &mut dyn Read, disk: &dyn Disk) -> Result<Restored, RestoreError> {
    if !disk.try_lock()? {
        return Err(RestoreError::InUse(disk.place()));
    }
    let done = restore_locked(backup, disk);
    disk.unlock();
    done
}

fn restore_locked(backup: &mut dyn Read, disk: &dyn Disk) -> Result<Restored, RestoreError> {
    if disk.list()?.iter().any(|entry| is_journal(&entry.name)) {
        return Err(RestoreError::NotEmpty(disk.place()));
    }
    remove_all(disk, |name| name.strip_suffix(UNFINISHED).is_some_and(is_journal))?;
    let done = read(backup, Some(disk)).and_then(|restored| {
        disk.sync_dir()?;
        put_in_place(disk)?;
        check(disk, &restored)?;
        Ok(restored)
    });
    if done.is_err() {
        // All of it is ours: there was no journal before.
        let _ = remove_all(disk, |name| is_journal(name.strip_suffix(UNFINISHED).unwrap_or(name)));
    }
    done
}

fn is_journal(name: &str) -> bool {
    file_number(name).is_some() || snapshot::named(name, SUFFIX).is_some()
}

fn remove_all(disk: &dyn Disk, which: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in disk.list()?.iter().filter(|entry| which(&entry.name)) {
        disk.remove(&entry.name)?;
    }
    disk.sync_dir()
}

/// Renames the files: the newest segment first, the snapshot last. A server that starts in the middle finds a journal
/// without its beginning, and refuses it.
fn put_in_place(disk: &dyn Disk) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in disk.list()? {
        let Some(name) = entry.name.strip_suffix(UNFINISHED) else { continue };
        let mut block = [0; HEADER_BYTES];
        let got = disk.open(&entry.name)?.read_at(&mut block, 0)?;
        let generation = match decode_header(&block[..got]) {
            HeaderBlock::Valid(header) if file_number(name).is_some() => header.generation,
            _ => 0,
        };
        files.push((generation, name.to_owned()));
    }
    files.sort_unstable();
    for (_, name) in files.iter().rev() {
        disk.rename(&format!("{name}{UNFINISHED}"), name)?;
        disk.sync_dir()?;
    }
    Ok(())
}

/// Checks that a server finds what was backed up.
fn check(disk: &dyn Disk, restored: &Restored) -> Result<(), RestoreError> {
    let found = verify(disk).map_err(|error| RestoreError::Unusable(error.to_string()))?;
    if let Some(why) = found.refused {
        return Err(RestoreError::Unusable(why));
    }
    let report = found.recovery;
    let whole = report.damaged.is_empty()
        && report.unreadable_segments.is_empty()
        && report.invalid_snapshots.is_empty();
    if !whole || report.cut != restored.position {
        let why = format!("its journal ends at {} and not at {}", report.cut, restored.position);
        return Err(RestoreError::Unusable(why));
    }
    Ok(())
}

fn read(backup: &mut dyn Read, disk: Option<&dyn Disk>) -> Result<Restored, RestoreError> {
    let mut input = Input { from: backup, crc: 0, bytes: 0 };
    let magic: [u8; 8] = match input.fixed() {
        Err(RestoreError::CutShort) => return Err(RestoreError::NotABackup),
        other => other?,
    };
    if &magic != MAGIC {
        return Err(RestoreError::NotABackup);
    }
    let version = u32::from_le_bytes(input.fixed()?);
    if version != VERSION {
        return Err(RestoreError::Newer(version));
    }
    let _reserved: [u8; 4] = input.fixed()?;
    let position = Pos::from_u64(u64::from_le_bytes(input.fixed()?));
    let (mut files, mut reached) = (0, false);
    loop {
        let name_len = usize::from(u16::from_le_bytes(input.fixed()?));
        if name_len == 0 {
            let count = u64::from_le_bytes(input.fixed()?);
            input.check("its end")?;
            if count != files || input.more()? {
                return Err(RestoreError::Damaged(String::from("it contains more than it should")));
            }
            if !reached {
                let text = format!("no segment in it reaches position {position}");
                return Err(RestoreError::Damaged(text));
            }
            return Ok(Restored { position, files, bytes: input.bytes });
        }
        let name = input.name(name_len)?;
        let len = u64::from_le_bytes(input.fixed()?);
        let generation = input.content(&name, len, disk)?;
        reached |= generation == position.generation() && len == u64::from(position.offset());
        files += 1;
    }
}

struct Input<'a> {
    from: &'a mut dyn Read,
    crc: u32,
    bytes: u64,
}

impl Input<'_> {
    fn fill(&mut self, buf: &mut [u8]) -> Result<(), RestoreError> {
        self.from.read_exact(buf).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => RestoreError::CutShort,
            _ => RestoreError::Io(error),
        })?;
        self.crc = crc32c::crc32c_append(self.crc, buf);
        self.bytes += buf.len() as u64;
        Ok(())
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], RestoreError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Verifies the checksum of everything so far.
    fn check(&mut self, what: &str) -> Result<(), RestoreError> {
        let have = self.crc;
        if u32::from_le_bytes(self.fixed()?) != have {
            return Err(RestoreError::Damaged(format!("the checksum after {what} does not hold")));
        }
        Ok(())
    }

    fn more(&mut self) -> Result<bool, RestoreError> {
        Ok(self.from.read(&mut [0])? > 0)
    }

    /// Accepts only the journal's file names, so that a backup never writes anywhere else.
    fn name(&mut self, len: usize) -> Result<String, RestoreError> {
        let mut bytes = [0; NAME_BYTES_MAX];
        let strange = || RestoreError::Damaged(String::from("a file in it has an unexpected name"));
        let name = bytes.get_mut(..len).ok_or_else(strange)?;
        self.fill(name)?;
        let name = std::str::from_utf8(name).map_err(|_| strange())?;
        if !is_journal(name) {
            return Err(strange());
        }
        Ok(name.to_owned())
    }

    /// Reads one file. Returns the generation of a segment, or 0.
    fn content(
        &mut self,
        name: &str,
        len: u64,
        disk: Option<&dyn Disk>,
    ) -> Result<u64, RestoreError> {
        let file = disk.map(|disk| disk.create(&format!("{name}{UNFINISHED}"))).transpose()?;
        let mut piece = vec![0; PIECE_BYTES];
        let (mut at, mut generation) = (0, 0);
        while at < len {
            let n = PIECE_BYTES.min(usize::try_from(len - at).unwrap_or(PIECE_BYTES));
            self.fill(&mut piece[..n])?;
            if at == 0 && file_number(name).is_some() {
                match decode_header(&piece[..n]) {
                    HeaderBlock::Valid(header) => generation = header.generation,
                    HeaderBlock::Newer(format) => return Err(RestoreError::Newer(format)),
                    HeaderBlock::Blank | HeaderBlock::Damaged => {}
                }
            }
            if let Some(file) = &file {
                file.write_at(&piece[..n], at)?;
            }
            at += n as u64;
        }
        if let Some(file) = file {
            file.sync_all()?;
        }
        self.check(name)?;
        Ok(generation)
    }
}
