//! Keeps the metadata in memory for checks, and writes each change before it is visible.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Metadata, MetadataError};

/// Where the document is stored. Both methods block.
pub trait MetadataFile: Send + Sync {
    /// The stored document; `None` if there is none yet.
    fn read(&self) -> io::Result<Option<Vec<u8>>>;
    /// Replaces the document. When it returns, the document is on the disk.
    fn write(&self, bytes: &[u8]) -> io::Result<()>;
}

/// Stores nothing: the metadata ends with the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFile;

impl MetadataFile for NoFile {
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn write(&self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// The metadata of a broker.
pub struct MetadataStore {
    current: ArcSwap<Metadata>,
    file: Box<dyn MetadataFile>,
    /// Changes are made one at a time, on blocking threads.
    writing: Mutex<()>,
    /// Counts the changes.
    version: watch::Sender<u64>,
}

impl MetadataStore {
    /// Reads the stored document. Blocks.
    pub fn open(file: impl MetadataFile + 'static) -> Result<Self, MetadataError> {
        let stored = file.read().map_err(|error| MetadataError::Malformed(error.to_string()))?;
        let current = match stored {
            Some(bytes) => Metadata::parse(&bytes)?,
            None => Metadata::default(),
        };
        Ok(Self {
            current: ArcSwap::from_pointee(current),
            file: Box::new(file),
            writing: Mutex::new(()),
            version: watch::Sender::new(0),
        })
    }

    pub fn current(&self) -> Arc<Metadata> {
        self.current.load_full()
    }

    /// A number that every change increases.
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Notified of every change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Changes the metadata. The change is on the disk when it becomes visible; after an error, nothing has changed.
    pub async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Metadata) -> Result<T, MetadataError> + Send + 'static,
    ) -> Result<T, MetadataError> {
        let store = self.clone();
        let changed = tokio::task::spawn_blocking(move || {
            let _turn = store.writing.lock();
            let mut metadata = Metadata::clone(&store.current.load());
            let answer = change(&mut metadata)?;
            if metadata != **store.current.load() {
                let bytes = metadata.to_bytes()?;
                let written = store.file.write(&bytes);
                written.map_err(|error| MetadataError::Unwritable(error.to_string()))?;
                store.current.store(Arc::new(metadata));
                store.version.send_modify(|version| *version += 1);
            }
            Ok(answer)
        });
        changed.await.map_err(|_| MetadataError::Unwritable("interrupted".to_owned()))?
    }
}
