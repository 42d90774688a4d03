//! Errors in the settings. Each message says what to change.

use super::{Listen, Origin};
use std::fmt;
use std::path::PathBuf;

/// An error in the settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsProblem {
    /// A file cannot be read.
    #[error("cannot read {}: {why}", path.display())]
    Unreadable { path: PathBuf, why: String },
    /// The settings file is not valid TOML.
    #[error("{}, line {line}: {why}", path.display())]
    NotToml {
        path: PathBuf,
        /// Counted from one.
        line: usize,
        why: String,
    },
    /// An unknown setting.
    #[error("{}: unknown setting `{key}`{}", path.display(), did_you_mean(*nearest))]
    UnknownKey {
        path: PathBuf,
        /// With its section.
        key: String,
        /// A similar setting.
        nearest: Option<&'static str>,
    },
    /// A list or table instead of a single value.
    #[error("{}: `{key}` must be a single value", path.display())]
    NotScalar { path: PathBuf, key: &'static str },
    /// An unknown variable with Malote's prefix.
    #[error("unknown environment variable `{name}`{}", did_you_mean(*nearest))]
    UnknownVariable {
        name: String,
        /// A similar variable.
        nearest: Option<&'static str>,
    },
    /// Both a secret and its `_FILE` variant are set.
    #[error("`{variable}` and `{variable}_FILE` are both set: remove one")]
    SaidTwice {
        /// The variable without `_FILE`.
        variable: &'static str,
    },
    /// An invalid value.
    #[error("`{key}` is `{value}` (from {origin}): expected {expected}")]
    Invalid { key: &'static str, value: String, origin: Origin, expected: String },
    /// Values that exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
    /// No default data directory can be determined.
    #[error("no data directory: HOME is not set; use --data DIRECTORY")]
    NoDataDirectory,
    /// A listener that other machines can reach, without credentials.
    #[error(
        "`{key}` listens on {listen}, which other machines can reach, and there are no \
         credentials: add a user with `malote user add`, listen on 127.0.0.1, or force it with \
         --allow-open"
    )]
    Open {
        /// The listener's setting.
        key: &'static str,
        listen: Listen,
    },
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean `{nearest}`?"))
}

/// All errors in the settings, one per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError {
    /// At least one problem.
    pub problems: Vec<SettingsProblem>,
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

impl From<SettingsProblem> for SettingsError {
    fn from(problem: SettingsProblem) -> Self {
        SettingsError { problems: vec![problem] }
    }
}
