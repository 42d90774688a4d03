//! Changes of tags, permissions and users as RabbitMQ makes them, and passwords that RabbitMQ hashed.

use super::error::CredentialsError;
use super::file::{CredentialsFile, UserRecord};
use super::store::{Store, check_name, hashed, not_found};
use data_encoding::BASE64;
use malote_front_amqp091::limits;
use malote_front_amqp091::users::{
    ADMINISTRATOR, HashAlgorithm, NewPassword, StoredPassword, TopicPermission, UserChange,
    UserEntry, VhostPermission,
};
use malote_model::AuditAction;
use malote_model::access::{Access as _, Action, Principal, Resource};
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;

const SHA256_PREFIX: &str = "$rabbitmq-sha256$";
const SHA512_PREFIX: &str = "$rabbitmq-sha512$";
const SALT_BYTES: usize = 4;

/// A password hashed by RabbitMQ: base64 of a salt of four bytes and the hash of salt and password. Weaker than
/// argon2id; it is kept because it cannot be converted.
pub(super) struct RabbitmqHash {
    algorithm: HashAlgorithm,
    salt: [u8; SALT_BYTES],
    hash: Vec<u8>,
}

impl RabbitmqHash {
    /// Reads the form of the credential file.
    pub fn parse(stored: &str) -> Option<RabbitmqHash> {
        let (algorithm, text) = match stored.strip_prefix(SHA256_PREFIX) {
            Some(text) => (HashAlgorithm::Sha256, text),
            None => (HashAlgorithm::Sha512, stored.strip_prefix(SHA512_PREFIX)?),
        };
        Self::decode(text, algorithm)
    }

    /// Reads RabbitMQ's form.
    fn decode(text: &str, algorithm: HashAlgorithm) -> Option<RabbitmqHash> {
        let bytes = BASE64.decode(text.as_bytes()).ok()?;
        let (salt, hash) = bytes.split_first_chunk::<SALT_BYTES>()?;
        let size = match algorithm {
            HashAlgorithm::Sha256 => 32,
            HashAlgorithm::Sha512 => 64,
        };
        (hash.len() == size).then(|| RabbitmqHash { algorithm, salt: *salt, hash: hash.to_vec() })
    }

    pub fn verify(&self, password: &str) -> bool {
        let salted = [&self.salt[..], password.as_bytes()].concat();
        let found: Vec<u8> = match self.algorithm {
            HashAlgorithm::Sha256 => Sha256::digest(&salted).to_vec(),
            HashAlgorithm::Sha512 => Sha512::digest(&salted).to_vec(),
        };
        // RabbitMQ refuses empty passwords, whatever the hash.
        !password.is_empty() && bool::from(found.ct_eq(&self.hash))
    }

    fn prefix(algorithm: HashAlgorithm) -> &'static str {
        match algorithm {
            HashAlgorithm::Sha256 => SHA256_PREFIX,
            HashAlgorithm::Sha512 => SHA512_PREFIX,
        }
    }
}

/// The form of the credential file.
fn to_stored(name: &str, password: NewPassword) -> Result<Option<String>, CredentialsError> {
    let bad = |why: &str| CredentialsError::BadPermission {
        why: format!("the password hash of user `{name}` {why}"),
    };
    match password {
        NewPassword::None | NewPassword::Stored(StoredPassword::None) => Ok(None),
        NewPassword::Plain(password) => hashed(&password).map(Some),
        NewPassword::Stored(StoredPassword::Rabbitmq { hash, algorithm }) => {
            match RabbitmqHash::decode(&hash, algorithm) {
                Some(_) => Ok(Some(format!("{}{hash}", RabbitmqHash::prefix(algorithm)))),
                None => Err(bad("must be base64 of a salt of 4 bytes and the SHA-256 or SHA-512")),
            }
        }
        NewPassword::Stored(StoredPassword::Native(hash)) => {
            match argon2::password_hash::PasswordHash::new(&hash) {
                Ok(found) if found.algorithm.as_str() == "argon2id" => Ok(Some(hash)),
                _ => Err(bad("is not argon2id in PHC format")),
            }
        }
    }
}

fn from_stored(stored: Option<&str>) -> StoredPassword {
    match stored.map(|stored| (stored, RabbitmqHash::parse(stored))) {
        None => StoredPassword::None,
        Some((stored, Some(hash))) => {
            let prefix = RabbitmqHash::prefix(hash.algorithm);
            let text = stored.strip_prefix(prefix).unwrap_or(stored);
            StoredPassword::Rabbitmq { hash: text.to_owned(), algorithm: hash.algorithm }
        }
        Some((stored, None)) => StoredPassword::Native(stored.to_owned()),
    }
}

/// A checked change, with what the audit log says about it.
struct Prepared {
    change: UserChange,
    /// The new password in the form of the file.
    password: Option<String>,
}

impl Store {
    /// All users, by name, with their password hashes.
    pub fn user_entries(&self) -> Vec<UserEntry> {
        let image = self.image.load();
        let mut users: Vec<UserEntry> = image
            .file
            .users
            .iter()
            .map(|user| UserEntry {
                name: user.name.clone(),
                password: from_stored(user.password.as_deref()),
                tags: user.tags.clone(),
                permissions: user.permissions.clone(),
                topic_permissions: user.topic_permissions.clone(),
            })
            .collect();
        users.sort_by(|a, b| a.name.cmp(&b.name));
        users
    }

    /// Makes all changes or none.
    pub fn change_users(&self, changes: Vec<UserChange>) -> Result<(), CredentialsError> {
        self.change_users_as(changes, |action, object, detail| {
            self.changed_by(action, object, detail);
        })
    }

    /// Makes all changes or none. What they did is recorded by `record`, and not by the store.
    pub fn change_users_as(
        &self,
        changes: Vec<UserChange>,
        record: impl Fn(AuditAction, &str, &str),
    ) -> Result<(), CredentialsError> {
        let mut prepared = Vec::with_capacity(changes.len());
        for mut change in changes {
            let mut password = None;
            if let UserChange::Put { name, password: given, tags } = &mut change {
                check_name(name)?;
                check_tags(tags)?;
                // Hashed before the file is locked.
                password = to_stored(name, std::mem::replace(given, NewPassword::None))?;
            }
            prepared.push(Prepared { change, password });
        }
        let mut done = Vec::with_capacity(prepared.len());
        self.change(|file| prepared.into_iter().try_for_each(|one| apply(file, one, &mut done)))?;
        for (action, object, detail) in done {
            record(action, &object, &detail);
        }
        Ok(())
    }

    pub fn set_tags(&self, user: &str, tags: Vec<String>) -> Result<(), CredentialsError> {
        check_tags(&tags)?;
        let detail = format!("tags {}", tags.join(","));
        self.change(|file| {
            find(file, user)?.tags = tags;
            Ok(())
        })?;
        self.changed_by(AuditAction::Grant, user, &detail);
        Ok(())
    }

    /// The tags of a caller. Who may manage everything is an administrator.
    pub fn tags(&self, who: &Principal) -> Vec<String> {
        let image = self.image.load();
        let mut tags = image.rabbitmq.tags(who.name());
        let all = self.check(who, Action::Manage, Resource::EVERYTHING).is_ok();
        if all && !tags.iter().any(|tag| tag == ADMINISTRATOR) {
            tags.push(ADMINISTRATOR.to_owned());
        }
        tags
    }

    pub fn has_permission(&self, who: &Principal, vhost: &str) -> bool {
        self.image.load().rabbitmq.has_permission(who.name(), vhost)
    }

    /// Whether a caller may open a connection to a virtual host: with a permission there, or with any grant.
    pub fn may_enter(&self, who: &Principal, vhost: &str) -> bool {
        if self.is_open() {
            return true;
        }
        let image = self.image.load();
        image.rabbitmq.has_permission(who.name(), vhost)
            || image
                .file
                .users
                .iter()
                .any(|user| user.name == who.name() && !user.grants.is_empty())
    }

    pub fn may_use_key(
        &self,
        who: &Principal,
        action: Action,
        vhost: &str,
        exchange: &str,
        key: &str,
    ) -> bool {
        let image = self.image.load();
        image.rabbitmq.may_use_key(who.name(), action, vhost, exchange, key)
    }
}

fn find<'a>(
    file: &'a mut CredentialsFile,
    name: &str,
) -> Result<&'a mut UserRecord, CredentialsError> {
    let user = file.users.iter_mut().find(|user| user.name == name);
    user.ok_or_else(|| not_found("user", name))
}

type AuditNote = (AuditAction, String, String);

fn apply(
    file: &mut CredentialsFile,
    Prepared { change, password }: Prepared,
    done: &mut Vec<AuditNote>,
) -> Result<(), CredentialsError> {
    match change {
        UserChange::Put { name, tags, .. } => {
            let detail = format!("tags {}", tags.join(","));
            match file.users.iter_mut().find(|user| user.name == name) {
                Some(user) => {
                    if user.password != password {
                        done.push((AuditAction::PasswordSet, name.clone(), String::new()));
                    }
                    if user.tags != tags {
                        done.push((AuditAction::Grant, name, detail));
                    }
                    (user.password, user.tags) = (password, tags);
                }
                None => {
                    let mut user = UserRecord::new(&name, password, Vec::new());
                    user.tags = tags;
                    file.users.push(user);
                    done.push((AuditAction::UserAdd, name, detail));
                }
            }
        }
        UserChange::Delete { name } => {
            find(file, &name)?;
            file.remove_user(&name);
            done.push((AuditAction::UserRemove, name, String::new()));
        }
        UserChange::Permit { user, permission } => {
            let detail = shown_permission(&permission);
            let held = &mut find(file, &user)?.permissions;
            held.retain(|one| one.vhost != permission.vhost);
            held.push(permission);
            check_count(&user, held.len())?;
            done.push((AuditAction::Grant, user, detail));
        }
        UserChange::Forbid { user, vhost } => {
            find(file, &user)?.permissions.retain(|one| one.vhost != vhost);
            done.push((AuditAction::Revoke, user, format!("permissions in vhost {vhost}")));
        }
        UserChange::PermitTopic { user, permission } => {
            let TopicPermission { vhost, exchange, write, read } = &permission;
            let detail = format!("topics of {exchange} in vhost {vhost}: {write} {read}");
            let held = &mut find(file, &user)?.topic_permissions;
            held.retain(|one| one.vhost != *vhost || one.exchange != *exchange);
            held.push(permission);
            check_count(&user, held.len())?;
            done.push((AuditAction::Grant, user, detail));
        }
        UserChange::ForbidTopic { user, vhost, exchange } => {
            let of = |one: &TopicPermission| {
                one.vhost == vhost && exchange.as_ref().is_none_or(|name| *name == one.exchange)
            };
            find(file, &user)?.topic_permissions.retain(|one| !of(one));
            done.push((AuditAction::Revoke, user, format!("topic permissions in vhost {vhost}")));
        }
        UserChange::ForgetVhost { vhost } => {
            for user in &mut file.users {
                let before = user.permissions.len() + user.topic_permissions.len();
                user.permissions.retain(|one| one.vhost != vhost);
                user.topic_permissions.retain(|one| one.vhost != vhost);
                if user.permissions.len() + user.topic_permissions.len() < before {
                    let detail = format!("permissions in vhost {vhost}, which is deleted");
                    done.push((AuditAction::Revoke, user.name.clone(), detail));
                }
            }
        }
    }
    Ok(())
}

fn check_count(user: &str, count: usize) -> Result<(), CredentialsError> {
    match count > limits::PERMISSIONS_MAX {
        true => Err(CredentialsError::BadPermission {
            why: format!("user `{user}` has more than {} permissions", limits::PERMISSIONS_MAX),
        }),
        false => Ok(()),
    }
}

fn shown_permission(permission: &VhostPermission) -> String {
    let VhostPermission { vhost, configure, write, read } = permission;
    format!("vhost {vhost}: configure {configure}, write {write}, read {read}")
}

/// A tag is a word; RabbitMQ separates tags by commas.
fn check_tags(tags: &[String]) -> Result<(), CredentialsError> {
    let bad = |tag: &String| {
        tag.is_empty()
            || tag.len() > limits::TAG_BYTES_MAX
            || tag.chars().any(|c| c == ',' || c.is_control())
    };
    let why = match tags.iter().find(|tag| bad(tag)) {
        Some(tag) => {
            format!("`{tag}` is not a tag: use 1 to {} bytes, no comma", limits::TAG_BYTES_MAX)
        }
        None if tags.len() > limits::TAGS_MAX => {
            format!("a user can have {} tags", limits::TAGS_MAX)
        }
        None => return Ok(()),
    };
    Err(CredentialsError::BadPermission { why })
}
