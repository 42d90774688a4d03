//! Simple checks of the repository's files, so that reviewers need not look for these things.
//!
//! Only files that git tracks or would add are checked, not build output or downloads.

mod dependencies;
mod modules;
mod names;
mod prose;
mod readme;
mod text;

use crate::cargo;
use crate::steps::Outcome;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of the repository, as git sees them.
pub(crate) struct Tree {
    root: PathBuf,
    /// Relative to the root, sorted.
    files: Vec<PathBuf>,
}

impl Tree {
    fn open() -> Result<Tree> {
        let root = cargo::root();
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&root)
            .output()
            .context("cannot start git")?;
        if !output.status.success() {
            bail!("`git ls-files` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let mut files: Vec<PathBuf> = String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(PathBuf::from)
            // Deleted but not yet committed.
            .filter(|path| root.join(path).is_file())
            .collect();
        files.sort();
        files.dedup();
        Ok(Tree { root, files })
    }

    fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a Path> {
        self.files
            .iter()
            .map(PathBuf::as_path)
            .filter(move |path| path.extension().is_some_and(|found| found == extension))
    }

    fn contains(&self, path: &Path) -> bool {
        self.files.binary_search_by(|known| known.as_path().cmp(path)).is_ok()
    }

    fn read(&self, path: &Path) -> Result<String> {
        std::fs::read_to_string(self.root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))
    }
}

/// Runs all checks and prints what they found.
pub(crate) fn run() -> Result<Outcome> {
    let tree = Tree::open()?;
    let mut found = Vec::new();
    dependencies::check(&tree, &mut found)?;
    text::check(&tree, &mut found)?;
    prose::check(&tree, &mut found)?;
    names::check(&tree, &mut found)?;
    modules::check(&tree, &mut found)?;
    readme::check(&tree, &mut found)?;
    for line in &found {
        eprintln!("{line}");
    }
    match found.len() {
        0 => Ok(Outcome::one()),
        count => bail!("{count} problems found"),
    }
}
