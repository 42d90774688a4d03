//! The file with RabbitMQ's virtual hosts, policies and parameters.

use std::io;
use std::path::PathBuf;

use malote_front_amqp091::metadata::MetadataFile;

use crate::files;

/// The name of the file in the data directory.
pub(crate) const RABBITMQ_FILE: &str = "rabbitmq.json";

pub(crate) struct RabbitmqFile(pub PathBuf);

impl MetadataFile for RabbitmqFile {
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match files::read(&self.0) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        files::write_private(&self.0, bytes)
    }
}
