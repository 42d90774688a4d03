//! A small real file system: an ext4 image, mounted by a loop device.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Mounted while it lives.
pub(super) struct Image {
    dir: tempfile::TempDir,
    mounted: bool,
}

/// Why there is no image.
pub(super) enum Missing {
    /// The kernel cannot do it, whoever asks.
    Kernel,
    /// It could, for somebody else or with more tools.
    Machine(String),
}

impl From<anyhow::Error> for Missing {
    fn from(error: anyhow::Error) -> Missing {
        Missing::Machine(format!("{error:#}"))
    }
}

impl Image {
    pub fn mount(bytes: u64) -> Result<Image, Missing> {
        let devices = fs::read_to_string("/proc/devices").unwrap_or_default();
        let loaded = devices.lines().any(|line| line.trim().ends_with(" loop"));
        // A module that is not loaded yet has its door already.
        if !loaded && !Path::new("/dev/loop-control").exists() {
            return Err(Missing::Kernel);
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        if effective.and_then(|ids| ids.split_whitespace().nth(1)) != Some("0") {
            return Err(Missing::Machine("mounting a file system needs root".into()));
        }
        Ok(Image::make(bytes)?)
    }

    fn make(bytes: u64) -> Result<Image> {
        let dir = tempfile::tempdir().context("no room for an image")?;
        let file = dir.path().join("image");
        File::create(&file)?.set_len(bytes)?;
        // Nothing is kept for root: the last byte counts.
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

    /// Takes every byte that is left, as a neighbour on the same disk might.
    pub fn put_ballast(&self) -> Result<u64> {
        let mut file = File::create(self.root().join(BALLAST))?;
        let mut piece = vec![0xba; 1 << 20];
        let mut bytes = 0;
        while !piece.is_empty() {
            match file.write(&piece) {
                Ok(written) => bytes += written as u64,
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    piece.truncate(piece.len() / 2)
                }
                Err(error) => return Err(error).context("the ballast cannot be written"),
            }
        }
        file.sync_all()?;
        Ok(bytes)
    }

    pub fn remove_ballast(&self) -> Result<()> {
        fs::remove_file(self.root().join(BALLAST)).context("the ballast cannot be removed")
    }

    pub fn data(&self) -> PathBuf {
        self.root().join("data")
    }
}

const BALLAST: &str = "ballast";

impl Drop for Image {
    fn drop(&mut self) {
        if self.mounted && run(Command::new("umount").arg(self.root())).is_err() {
            // Somebody looks into it: it goes when they do.
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

/// Bytes free on the file system of a path, as `df` tells.
pub(super) fn free_mib(path: &Path) -> String {
    let df = Command::new("df").args(["-m", "--output=avail"]).arg(path).output();
    let text = df.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    text.lines().last().unwrap_or("?").trim().to_owned()
}
