//! A small real file system: an ext4 image on a loop device.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A mounted image; dropping it unmounts it.
pub(super) struct Image {
    dir: tempfile::TempDir,
    mounted: bool,
}

/// Why the image could not be mounted.
pub(super) enum MountError {
    /// The kernel has no loop devices.
    Unsupported,
    /// Root privileges or a program are missing.
    Unavailable(String),
}

impl From<anyhow::Error> for MountError {
    fn from(error: anyhow::Error) -> MountError {
        MountError::Unavailable(format!("{error:#}"))
    }
}

impl Image {
    pub fn mount(bytes: u64) -> Result<Image, MountError> {
        let devices = fs::read_to_string("/proc/devices").unwrap_or_default();
        let loaded = devices.lines().any(|line| line.trim().ends_with(" loop"));
        // The control device exists even if the module is not loaded yet.
        if !loaded && !Path::new("/dev/loop-control").exists() {
            return Err(MountError::Unsupported);
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        if effective.and_then(|ids| ids.split_whitespace().nth(1)) != Some("0") {
            return Err(MountError::Unavailable("mounting a file system needs root".into()));
        }
        Ok(Image::make(bytes)?)
    }

    fn make(bytes: u64) -> Result<Image> {
        let dir = tempfile::tempdir().context("cannot create a directory for the image")?;
        let file = dir.path().join("image");
        File::create(&file)?.set_len(bytes)?;
        // No blocks are reserved for root, so that the disk can be filled to the last byte.
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&file))?;
        let mut image = Image { dir, mounted: false };
        fs::create_dir(image.root())?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(image.root()))?;
        image.mounted = true;
        Ok(image)
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Fills all free space, as another program on the same disk might.
    pub fn fill_disk(&self) -> Result<u64> {
        let mut file = File::create(self.root().join(FILLER))?;
        let mut piece = vec![0xba; 1 << 20];
        let mut bytes = 0;
        while !piece.is_empty() {
            match file.write(&piece) {
                Ok(written) => bytes += written as u64,
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    piece.truncate(piece.len() / 2)
                }
                Err(error) => return Err(error).context("cannot write the filler file"),
            }
        }
        file.sync_all()?;
        Ok(bytes)
    }

    pub fn remove_filler(&self) -> Result<()> {
        fs::remove_file(self.root().join(FILLER)).context("cannot remove the filler file")
    }

    pub fn data(&self) -> PathBuf {
        self.root().join("data")
    }
}

const FILLER: &str = "filler";

impl Drop for Image {
    fn drop(&mut self) {
        if self.mounted && run(Command::new("umount").arg(self.root())).is_err() {
            // Another process uses it: detach it now, so that it is unmounted later.
            let _ = run(Command::new("umount").arg("-l").arg(self.root()));
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Free space on the file system of a path in MiB, from `df`.
pub(super) fn free_mib(path: &Path) -> String {
    let df = Command::new("df").args(["-m", "--output=avail"]).arg(path).output();
    let text = df.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    text.lines().last().unwrap_or("?").trim().to_owned()
}
