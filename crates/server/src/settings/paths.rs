//! Default locations: XDG directories, or `$STATE_DIRECTORY` under systemd.

use crate::files;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The environment variables of the process, read once so that tests can provide their own.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process. Values that are not UTF-8 are converted lossily.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .map(|(name, value)| {
                (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
            })
            .collect()
    }

    /// The value of a variable. By the XDG rules, an empty one counts as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The directory in a variable. By the XDG rules, relative paths are ignored.
    fn directory(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Environment(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Values can be secrets, so only the names are printed.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The settings file to read. A file that was named must exist; the default locations may be empty.
pub(super) fn config_file(flag: Option<&Path>, env: &Environment) -> Option<PathBuf> {
    if let Some(path) = flag {
        return Some(path.to_owned());
    }
    if let Some(path) = env.get("MALOTE_CONFIG") {
        return Some(path.into());
    }
    let home = env
        .directory("XDG_CONFIG_HOME")
        .or_else(|| env.directory("HOME").map(|home| home.join(".config")))
        .map(|config| config.join("malote/malote.toml"));
    home.into_iter()
        .chain([PathBuf::from("/etc/malote/malote.toml")])
        .find(|path| files::exists(path))
}

/// The default data directory.
pub(super) fn data_directory(env: &Environment) -> Option<String> {
    // systemd separates several directories with colons; the first one is used.
    if let Some(state) = env.get("STATE_DIRECTORY") {
        return state.split(':').next().map(str::to_owned);
    }
    env.directory("XDG_DATA_HOME")
        .or_else(|| env.directory("HOME").map(|home| home.join(".local/share")))
        .map(|data| data.join("malote").to_string_lossy().into_owned())
}
