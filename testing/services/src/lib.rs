//! Third-party servers for tests. Each has its own port and data directory, and stops when the process that started
//! it ends, even if that process is killed.
//!
//! The servers must be installed on the machine.

mod postgres;
mod postgres_pair;
mod rabbitmq;

pub use postgres::Postgres;
pub use postgres_pair::PostgresPair;
pub use rabbitmq::RabbitMq;

/// Why a server could not be started.
#[derive(Debug)]
pub enum StartError {
    /// The server is not installed; says what to install.
    NotInstalled(String),
    /// The server did not start, with its output.
    Failed(String),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotInstalled(what) => write!(f, "{what}"),
            Self::Failed(error) => write!(f, "the server did not start: {error}"),
        }
    }
}

impl std::error::Error for StartError {}
