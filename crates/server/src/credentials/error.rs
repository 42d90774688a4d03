//! Errors of the credential store.

use super::password::PASSWORD_BYTES_MAX;
use std::io;
use std::path::PathBuf;

/// Why the store could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// Nothing was changed.
    #[error("cannot write {}: {source}", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    /// The file is malformed.
    #[error("{} cannot be used: {why}", path.display())]
    Malformed { path: PathBuf, why: String },
    #[error("{what} `{name}` already exists")]
    Exists {
        /// User, key or token.
        what: &'static str,
        name: String,
    },
    #[error(
        "{what} `{name}` does not exist; `malote user ls`, `malote key ls` and `malote token ls` list what exists"
    )]
    NotFound {
        /// User, key or token.
        what: &'static str,
        name: String,
    },
    #[error("invalid name `{name}`: use up to 128 letters, digits or . _ @ + - / = $")]
    BadName { name: String },
    /// A tag, permission or password hash of RabbitMQ.
    #[error("{why}")]
    BadPermission { why: String },
    #[error("a password must have 1 to {PASSWORD_BYTES_MAX} bytes")]
    BadPassword,
    /// A store with credentials cannot be opened to everyone.
    #[error(
        "there are {count} users, keys and tokens: remove them first to serve everyone without credentials; \
         `malote user ls`, `malote key ls` and `malote token ls` show them"
    )]
    NotEmpty { count: usize },
    /// Grants belong to the user that a key or token acts for.
    #[error("`{name}` acts for the user `{user}`: change the grants of `{user}`")]
    ActsForUser {
        /// The key or token.
        name: String,
        user: String,
    },
}
