//! The file with the contexts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::files;

/// A named server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// A PEM file with certificates to trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Whether the server's certificate is accepted without verification.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
}

impl Context {
    /// Refuses what could not be used later.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        crate::api::check_url(&self.url)?;
        if !self.url.starts_with("https://") && (self.ca.is_some() || self.insecure) {
            let why = format!("--ca and --insecure need https://, not {}", self.url);
            return Err(Failure::Usage(why).into());
        }
        Ok(())
    }
}

/// All contexts of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContextFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

impl ContextFile {
    /// Reads the file. Without a file there are no contexts.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let Some(path) = path() else { return Ok(Self::default()) };
        let Some(text) = files::read_if_exists(&path)? else { return Ok(Self::default()) };
        toml::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Replaces the file. Only its owner can read it, because it may contain tokens.
    pub(crate) fn save(&self) -> anyhow::Result<()> {
        let path = path().ok_or_else(|| {
            Failure::Usage("no place for contexts: set HOME or XDG_CONFIG_HOME".into())
        })?;
        files::replace_private(&path, toml::to_string(self)?.as_bytes())
    }

    pub(crate) fn find(&self, name: &str) -> anyhow::Result<&Context> {
        self.contexts.get(name).ok_or_else(|| {
            let why = format!("no context `{name}`; `malote context ls` lists the contexts");
            Failure::NotFound(why).into()
        })
    }
}

/// `malote/contexts.toml` in the XDG configuration directory.
fn path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    // The specification says to ignore a relative path.
    let xdg = set("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = xdg.or_else(|| Some(PathBuf::from(set("HOME")?).join(".config")))?;
    Some(home.join("malote").join("contexts.toml"))
}
