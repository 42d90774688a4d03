//! Servers of others that tests need: started on a port of their own with data of their own, and gone with the process
//! that started them, however that ends.
//!
//! Each is found on the machine; what installs it is `cargo xtask`. One file for each.

mod pair;
mod postgres;
mod rabbitmq;

pub use pair::PostgresPair;
pub use postgres::Postgres;
pub use rabbitmq::RabbitMq;

/// Why a server is not there.
#[derive(Debug)]
pub enum Trouble {
    /// It is not on this machine: what to install.
    Missing(String),
    /// It did not start: what it said.
    Failed(String),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing(what) => write!(f, "{what}"),
            Self::Failed(said) => write!(f, "it did not start: {said}"),
        }
    }
}

impl std::error::Error for Trouble {}
