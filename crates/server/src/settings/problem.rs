//! What can be wrong with the settings, each as one sentence that says what to change.

use super::{Listen, Origin};
use std::fmt;
use std::path::PathBuf;

/// Something wrong with the settings, as one sentence that says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A file that was named, or found in its usual place, cannot be read.
    #[error("cannot read {}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// The settings file is not TOML.
    #[error("{}, line {line}: {why}", path.display())]
    NotToml {
        /// The file.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// What the parser said.
        why: String,
    },
    /// A key that names no setting.
    #[error("{}: there is no setting `{key}`{}", path.display(), did_you_mean(*nearest))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// As written, with its section.
        key: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
    },
    /// A list or table where one value belongs.
    #[error("{}: `{key}` takes one value", path.display())]
    NotScalar {
        /// The file.
        path: PathBuf,
        /// The setting.
        key: &'static str,
    },
    /// A variable with our prefix that means nothing.
    #[error("there is no environment variable `{name}`{}", did_you_mean(*nearest))]
    UnknownVariable {
        /// As set.
        name: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
    },
    /// A secret and its `_FILE` twin.
    #[error("`{variable}` and `{variable}_FILE` are both set: remove one")]
    SaidTwice {
        /// The variable without `_FILE`.
        variable: &'static str,
    },
    /// A value that cannot be read.
    #[error("`{key}` is `{value}` (from {origin}): expected {expected}")]
    Invalid {
        /// The setting.
        key: &'static str,
        /// As written.
        value: String,
        /// Where it came from.
        origin: Origin,
        /// What it could have been.
        expected: String,
    },
    /// Values that cannot stand together.
    #[error("{0}")]
    Conflict(&'static str),
    /// The environment does not say where a home is.
    #[error("there is no place for the data: HOME is not set, so say --data DIRECTORY")]
    NoDataDirectory,
    /// Reachable by others, and nobody needs a password.
    #[error(
        "`{key}` listens on {listen}, which other machines can reach, and there are no \
         credentials: add a user with `malote user add`, listen on 127.0.0.1, or force it with \
         --allow-open"
    )]
    Open {
        /// The listener's setting.
        key: &'static str,
        /// Its address.
        listen: Listen,
    },
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean `{nearest}`?"))
}

/// All that is wrong with the settings, one sentence per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError {
    /// Never empty.
    pub problems: Vec<Problem>,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SettingsError {}

impl From<Problem> for SettingsError {
    fn from(problem: Problem) -> Self {
        SettingsError { problems: vec![problem] }
    }
}
