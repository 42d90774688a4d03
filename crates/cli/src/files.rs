//! The command line's own door to files: what the user names as an argument. The data directory is reached
//! through the engine and the server only.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Backups and exported messages are the user's alone to read, whatever the umask.
const PRIVATE: u32 = 0o600;

/// All of a file; `-` is standard input.
#[allow(clippy::disallowed_methods)] // this is the door
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(bytes);
    }
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// A file by lines; `-` is standard input.
#[allow(clippy::disallowed_methods)] // this is the door
pub(crate) fn lines(path: &Path) -> anyhow::Result<Box<dyn BufRead + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = std::fs::File::open(path);
    let file = file.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

/// A file piece by piece; `-` is standard input.
#[allow(clippy::disallowed_methods)] // this is the door
pub(crate) fn open(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let file = std::fs::File::open(path);
    Ok(Box::new(file.with_context(|| format!("cannot read {}", path.display()))?))
}

/// A file that gets its name when it is whole; until then, and if it never is, nothing has that name.
pub(crate) struct Unfinished {
    path: PathBuf,
    part: PathBuf,
    file: Option<File>,
}

impl Unfinished {
    /// Begins a file; one that exists is left alone.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        anyhow::ensure!(!path.exists(), "{} exists already", path.display());
        let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&part);
        let file = Some(file.with_context(|| format!("cannot create {}", part.display()))?);
        Ok(Self { path: path.to_owned(), part, file })
    }

    /// Adds to it.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().ok_or(io::ErrorKind::NotFound)?.write_all(bytes)
    }

    /// Where it stands until it is finished.
    pub(crate) fn part(&self) -> &Path {
        &self.part
    }

    /// It is whole: it is synced and gets its name.
    #[allow(clippy::disallowed_methods)] // this is the door
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        let what = || format!("cannot write {}", self.path.display());
        if let Some(file) = &self.file {
            file.sync_all().with_context(what)?;
        }
        std::fs::rename(&self.part, &self.path).with_context(what)?;
        self.file = None;
        Ok(())
    }
}

impl Drop for Unfinished {
    #[allow(clippy::disallowed_methods)] // this is the door
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = std::fs::remove_file(&self.part); // half of it is of no use
        }
    }
}

/// A new file; one that exists is left alone.
pub(crate) fn create(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path);
    Ok(Box::new(file.with_context(|| format!("cannot create {}", path.display()))?))
}
