//! What goes into the store and what comes out of it.

use super::file::KeyKind;
use super::grant::Grant;
use malote_model::access::Principal;
use std::sync::Arc;

/// Whose grants a key or token has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// It acts for this user.
    User(String),
    /// It has its own.
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

/// A key that was made: show it once.
#[derive(Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Access key id, or key name.
    pub id: String,
    /// The secret.
    pub secret: String,
}

/// A token that was made: show it once, it is stored as a hash.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    /// What it is called.
    pub label: String,
    /// The token.
    pub token: String,
}

/// What a signature is checked with, and who made it if it fits.
#[derive(Clone)]
pub struct KeySecret {
    /// The plain secret.
    pub secret: Arc<str>,
    /// Who signed.
    pub principal: Principal,
}

/// Everything in the store, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// In the order they were added.
    pub users: Vec<UserInfo>,
    /// In the order they were added.
    pub keys: Vec<KeyInfo>,
    /// In the order they were added.
    pub tokens: Vec<TokenInfo>,
}

/// A user as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInfo {
    /// Its name.
    pub name: String,
    /// Whether it can sign in with a password.
    pub has_password: bool,
    /// What it may do.
    pub grants: Vec<Grant>,
}

/// A key as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// Which protocol it is for.
    pub kind: KeyKind,
    /// Access key id, or key name.
    pub id: String,
    /// Whose grants it has.
    pub holder: Holder,
}

/// A token as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenInfo {
    /// What it is called.
    pub label: String,
    /// Whose grants it has.
    pub holder: Holder,
}
