//! Why the store could not be read or changed, each as one sentence.

use super::password::PASSWORD_BYTES_MAX;
use std::io;
use std::path::PathBuf;

/// Why the store could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be written; nothing has changed.
    #[error("cannot write {}: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{} cannot be used: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The name is taken.
    #[error("the {what} `{name}` exists already")]
    Exists {
        /// User, key or token.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Nothing has that name.
    #[error("there is no {what} `{name}`; `malote user ls` shows what there is")]
    NotFound {
        /// User, key or token.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The name cannot be used.
    #[error("`{name}` cannot be a name: use up to 128 letters, digits or . _ @ + - / = $")]
    BadName {
        /// As given.
        name: String,
    },
    /// The password cannot be used.
    #[error("a password has 1 to {PASSWORD_BYTES_MAX} bytes")]
    BadPassword,
    /// A store with credentials cannot be opened to everyone.
    #[error(
        "there are {count} users, keys and tokens: remove them first if everyone shall be let in; \
         `malote user ls`, `malote key ls` and `malote token ls` show them"
    )]
    NotEmpty {
        /// How many.
        count: usize,
    },
    /// Grants belong to the user that a key or token acts for.
    #[error("`{name}` acts for the user `{user}`: change the grants of `{user}`")]
    ActsForUser {
        /// The key or token.
        name: String,
        /// Its user.
        user: String,
    },
}
