//! The command line's own door to files: what the user names as an argument. The data directory is reached
//! through the engine and the server only.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use anyhow::Context;

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

/// A new file; one that exists is left alone.
pub(crate) fn create(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    Ok(Box::new(file.with_context(|| format!("cannot create {}", path.display()))?))
}
