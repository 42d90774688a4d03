//! The content of the credentials file, indexed so that checks need no lock.

use super::file::{CredentialsFile, KeyKind};
use super::grant::Grant;
use super::rights::RabbitmqRights;
use super::types::KeySecret;
use crate::files::Fingerprint;
use data_encoding::HEXLOWER_PERMISSIVE;
use malote_model::CallerKind;
use malote_model::access::{CredentialId, Principal};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The content of the file, indexed for checks.
pub(super) struct CredentialsSnapshot {
    pub file: CredentialsFile,
    pub seen: Option<Fingerprint>,
    /// By principal name: users, `key:ID`, `token:LABEL`.
    pub grants: HashMap<Arc<str>, Vec<Grant>>,
    pub users: HashMap<Arc<str>, Option<Arc<str>>>,
    pub keys: HashMap<(KeyKind, String), KeySecret>,
    pub tokens: HashMap<[u8; 32], Principal>,
    /// Passwords, keys and tokens that are valid.
    pub credentials: HashSet<CredentialId>,
    /// Tags and permissions of RabbitMQ.
    pub rabbitmq: RabbitmqRights,
}

impl CredentialsSnapshot {
    pub(super) fn of(file: CredentialsFile, seen: Option<Fingerprint>) -> CredentialsSnapshot {
        let mut image = CredentialsSnapshot {
            seen,
            grants: HashMap::new(),
            users: HashMap::new(),
            keys: HashMap::new(),
            tokens: HashMap::new(),
            credentials: HashSet::new(),
            rabbitmq: RabbitmqRights::of(&file.users),
            file: CredentialsFile::default(),
        };
        for user in &file.users {
            if let Some(stored) = &user.password {
                image.credentials.insert(credential("password", &user.name, stored));
            }
            let name: Arc<str> = user.name.as_str().into();
            image.grants.insert(Arc::clone(&name), user.grants.clone());
            image.users.insert(name, user.password.as_deref().map(Arc::from));
        }
        for key in &file.keys {
            let by = credential(key.kind.as_str(), &key.id, &key.secret);
            let own = format!("key:{}", key.id);
            let principal = image.holder(key.user.as_deref(), own, &key.grants, by);
            let principal = principal.through(CallerKind::Key, &key.id);
            let secret = KeySecret { secret: key.secret.as_str().into(), principal };
            image.keys.insert((key.kind, key.id.clone()), secret);
        }
        for token in &file.tokens {
            let own = format!("token:{}", token.label);
            let by = credential("token", &token.label, &token.sha256);
            let principal = image.holder(token.user.as_deref(), own, &token.grants, by);
            let principal = principal.through(CallerKind::Token, &token.label);
            // A malformed hash matches no token.
            if let Some(digest) = from_hex(&token.sha256) {
                image.tokens.insert(digest, principal);
            }
        }
        image.file = file;
        image
    }

    fn holder(
        &mut self,
        user: Option<&str>,
        own: String,
        grants: &[Grant],
        by: CredentialId,
    ) -> Principal {
        self.credentials.insert(by);
        match user {
            Some(user) => Principal::named(user).by(by),
            None => {
                let principal = Principal::named(own.as_str()).by(by);
                self.grants.insert(own.into(), grants.to_vec());
                principal
            }
        }
    }

    /// Whether the password, key or token of the caller is still valid.
    pub(super) fn knows(&self, who: &Principal) -> bool {
        who.credential().is_some_and(|credential| self.credentials.contains(&credential))
    }
}

/// Identifies a credential without revealing it. A new secret has a new id.
pub(super) fn credential(kind: &str, id: &str, secret: &str) -> CredentialId {
    let mut hash = Sha256::new();
    for part in [kind, id, secret] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let (half, _) = digest.split_at(16);
    CredentialId(half.try_into().expect("16 bytes are 16 bytes"))
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}
