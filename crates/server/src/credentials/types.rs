//! Parameters and results of the credential store.

use super::file::KeyKind;
use super::grant::Grant;
use malote_front_amqp091::users::VhostPermission;
use malote_model::access::Principal;
use std::sync::Arc;

/// The source of the grants of a key or token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// It acts for this user.
    User(String),
    /// It has its own grants.
    Own(Vec<Grant>),
}

impl Holder {
    pub(super) fn split(self) -> (Option<String>, Vec<Grant>) {
        match self {
            Holder::User(user) => (Some(user), Vec::new()),
            Holder::Own(grants) => (None, grants),
        }
    }
}

/// A new key. The secret is shown once.
#[derive(Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Access key id, or key name.
    pub id: String,
    pub secret: String,
}

/// A new token. It is shown once and stored as a hash.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    pub label: String,
    pub token: String,
}

/// The secret to verify a signature with, and the principal of the key.
#[derive(Clone)]
pub struct KeySecret {
    pub secret: Arc<str>,
    pub principal: Principal,
}

/// Everything in the store, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    pub users: Vec<UserInfo>,
    pub keys: Vec<KeyInfo>,
    pub tokens: Vec<TokenInfo>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    /// Whether it can log in with a password.
    pub has_password: bool,
    pub grants: Vec<Grant>,
    /// Tags of RabbitMQ.
    pub tags: Vec<String>,
    /// Permissions of RabbitMQ.
    pub permissions: Vec<VhostPermission>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    pub kind: KeyKind,
    /// Access key id, or key name.
    pub id: String,
    pub holder: Holder,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenInfo {
    pub label: String,
    pub holder: Holder,
}
