//! The format of `credentials.toml`, and its validation.

use super::grant::Grant;
use crate::files;
use malote_front_amqp091::users::{TopicPermission, VhostPermission};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

/// The version that is written. A newer version is refused; so an older server refuses this one.
///
/// | version | meaning |
/// |---|---|
/// | 1 | `*` in a grant crossed slashes; it is converted to `**` with the next change |
/// | 2 | `*` stays within a segment, `**` crosses slashes |
/// | 3 | users have tags and permissions of RabbitMQ, and may have passwords hashed by RabbitMQ |
const VERSION: u32 = 3;

const HEADER: &str = "# Users, keys and tokens of Malote. Written by `malote user` and `malote key`;\n\
                      # a running server takes changes up within a second. Keys hold plain secrets.\n\n";

/// The protocol of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyKind {
    /// Access key id and secret access key, for SQS.
    Aws,
    /// Shared access key name and key, for Service Bus.
    ServiceBus,
}

impl KeyKind {
    /// The word used in the file and in commands.
    pub fn as_str(self) -> &'static str {
        match self {
            KeyKind::Aws => "aws",
            KeyKind::ServiceBus => "servicebus",
        }
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for KeyKind {
    type Err = UnknownKeyKind;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [KeyKind::Aws, KeyKind::ServiceBus]
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownKeyKind { text: text.to_owned() })
    }
}

/// An unknown [`KeyKind`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a kind of key: use aws or servicebus")]
pub struct UnknownKeyKind {
    pub text: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CredentialsFile {
    pub version: u32,
    #[serde(default, rename = "user", skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserRecord>,
    #[serde(default, rename = "key", skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyRecord>,
    #[serde(default, rename = "token", skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<TokenRecord>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UserRecord {
    pub name: String,
    /// argon2id in PHC format, or a hash of RabbitMQ. A user without a password uses keys and tokens only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// Tags of RabbitMQ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// Permissions of RabbitMQ, one for each virtual host.
    #[serde(default, rename = "permission", skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<VhostPermission>,
    #[serde(default, rename = "topic_permission", skip_serializing_if = "Vec::is_empty")]
    pub topic_permissions: Vec<TopicPermission>,
}

impl UserRecord {
    pub fn new(name: &str, password: Option<String>, grants: Vec<Grant>) -> UserRecord {
        UserRecord {
            name: name.to_owned(),
            password,
            tags: Vec::new(),
            grants,
            permissions: Vec::new(),
            topic_permissions: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyRecord {
    pub kind: KeyKind,
    pub id: String,
    pub secret: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenRecord {
    pub label: String,
    /// The hash of the secret, in hexadecimal.
    pub sha256: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
}

impl Default for CredentialsFile {
    fn default() -> Self {
        CredentialsFile {
            version: VERSION,
            users: Vec::new(),
            keys: Vec::new(),
            tokens: Vec::new(),
        }
    }
}

/// Why the file cannot be used.
pub(super) enum ReadError {
    Missing,
    Unreadable(io::Error),
    Malformed(String),
}

impl CredentialsFile {
    pub(super) fn read(path: &Path) -> Result<CredentialsFile, ReadError> {
        let text = files::read_text(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ReadError::Missing,
            _ => ReadError::Unreadable(error),
        })?;
        let mut file: CredentialsFile = toml::from_str(&text).map_err(|error| {
            // Not the text of the parser, which quotes the line; the line may contain a secret.
            let line = error.span().map_or(1, |span| files::line_at(&text, span.start));
            ReadError::Malformed(format!("line {line}: {}", error.message()))
        })?;
        file.check().map_err(ReadError::Malformed)?;
        file.bring_up_to_date();
        Ok(file)
    }

    /// Converts the grants of an older version.
    fn bring_up_to_date(&mut self) {
        if self.version < 2 {
            let grants = self.users.iter_mut().map(|user| &mut user.grants);
            let grants = grants.chain(self.keys.iter_mut().map(|key| &mut key.grants));
            for grants in grants.chain(self.tokens.iter_mut().map(|token| &mut token.grants)) {
                *grants = grants.drain(..).map(Grant::of_version_1).collect();
            }
        }
        self.version = VERSION;
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let text = toml::to_string(self).map_err(io::Error::other)?;
        let text = format!("{HEADER}{text}");
        // A file that cannot be read would stop the next start.
        files::check_size(text.len() as u64)?;
        files::write_private(path, text.as_bytes())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.keys.is_empty() && self.tokens.is_empty()
    }

    /// Removes a user with its keys and tokens.
    pub(super) fn remove_user(&mut self, name: &str) {
        self.users.retain(|user| user.name != name);
        self.keys.retain(|key| key.user.as_deref() != Some(name));
        self.tokens.retain(|token| token.user.as_deref() != Some(name));
    }

    fn check(&self) -> Result<(), String> {
        if !(1..=VERSION).contains(&self.version) {
            let is = self.version;
            return Err(format!(
                "unsupported version {is}: the file was written by a newer Malote"
            ));
        }
        let mut seen = HashSet::new();
        for name in self.users.iter().map(|user| &user.name) {
            if !is_name(name) || !seen.insert(("user", name)) {
                return Err(format!("the user name `{name}` is duplicate or invalid"));
            }
        }
        for (id, user, grants) in self.keys.iter().map(|key| (&key.id, &key.user, &key.grants)) {
            if !is_name(id) || !seen.insert(("key", id)) {
                return Err(format!("the key id `{id}` is duplicate or invalid"));
            }
            self.check_holder("key", id, user, grants)?;
        }
        for token in &self.tokens {
            let label = &token.label;
            if !is_name(label) || !seen.insert(("token", label)) {
                return Err(format!("the token label `{label}` is duplicate or invalid"));
            }
            self.check_holder("token", label, &token.user, &token.grants)?;
        }
        Ok(())
    }

    fn check_holder(
        &self,
        what: &str,
        id: &str,
        user: &Option<String>,
        grants: &[Grant],
    ) -> Result<(), String> {
        match user {
            Some(_) if !grants.is_empty() => {
                Err(format!("the {what} `{id}` has both a user and its own grants: remove one"))
            }
            Some(user) if !self.users.iter().any(|known| known.name == *user) => {
                Err(format!("the {what} `{id}` acts for `{user}`, who does not exist"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a name is valid for a user, key or token. Colons are not allowed: HTTP Basic ends the name at a colon, and
/// principals are named `key:…` and `token:…`.
pub(super) fn is_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._@+-/=$".contains(&b))
}
