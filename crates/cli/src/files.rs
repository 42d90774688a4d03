//! Access to files that the user names as arguments. The data directory is accessed through the engine and the server
//! only.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Only the user can read backups and exported messages, whatever the umask.
const PRIVATE: u32 = 0o600;

/// Reads a whole file; `-` is standard input.
#[allow(clippy::disallowed_methods)] // the only place with file access
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(bytes);
    }
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The text of a file, or nothing if it does not exist.
#[allow(clippy::disallowed_methods)] // the only place with file access
pub(crate) fn read_if_exists(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Replaces a file that only its owner can read, and creates its directory. A crash leaves the old or the new file.
#[allow(clippy::disallowed_methods)] // the only place with file access
pub(crate) fn replace_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let what = || format!("cannot write {}", path.display());
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).with_context(what)?;
    // Created with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(dir).with_context(what)?;
    file.write_all(bytes).with_context(what)?;
    file.as_file().sync_all().with_context(what)?;
    file.persist(path).with_context(what)?;
    Ok(())
}

/// Opens a file for reading by lines; `-` is standard input.
#[allow(clippy::disallowed_methods)] // the only place with file access
pub(crate) fn lines(path: &Path) -> anyhow::Result<Box<dyn BufRead + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = std::fs::File::open(path);
    let file = file.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

/// Opens a file for reading; `-` is standard input.
#[allow(clippy::disallowed_methods)] // the only place with file access
pub(crate) fn open(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let file = std::fs::File::open(path);
    Ok(Box::new(file.with_context(|| format!("cannot read {}", path.display()))?))
}

/// A file that gets its final name when it is complete.
pub(crate) struct Unfinished {
    path: PathBuf,
    part: PathBuf,
    file: Option<File>,
}

impl Unfinished {
    /// Starts a new file. An existing file is refused.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        anyhow::ensure!(!path.exists(), "{} already exists", path.display());
        let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&part);
        let file = Some(file.with_context(|| format!("cannot create {}", part.display()))?);
        Ok(Self { path: path.to_owned(), part, file })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().ok_or(io::ErrorKind::NotFound)?.write_all(bytes)
    }

    /// The temporary name.
    pub(crate) fn part(&self) -> &Path {
        &self.part
    }

    /// Syncs the file and gives it its final name.
    #[allow(clippy::disallowed_methods)] // the only place with file access
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
    #[allow(clippy::disallowed_methods)] // the only place with file access
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = std::fs::remove_file(&self.part); // an incomplete file is useless
        }
    }
}

/// Creates a new file. An existing file is refused.
pub(crate) fn create(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path);
    Ok(Box::new(file.with_context(|| format!("cannot create {}", path.display()))?))
}
