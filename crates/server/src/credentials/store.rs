//! The store: a file, and a snapshot of it in memory that checks read without a lock.

use super::error::CredentialsError;
use super::file::{
    CredentialsFile, KeyKind, KeyRecord, ReadError, TokenRecord, UserRecord, is_name,
};
use super::grant::Grant;
use super::password::{self, PASSWORD_BYTES_MAX, PasswordChecker};
use super::random;
use super::snapshot::{CredentialsSnapshot, credential};
use super::types::{Holder, KeyInfo, KeySecret, Listing, NewKey, NewToken, TokenInfo, UserInfo};
use crate::files;
use crate::reload::Reload;
use crate::settings::Secret;
use arc_swap::ArcSwap;
use data_encoding::HEXLOWER;
use malote_model::AuditAction;
use malote_model::access::{Access, Action, Changed, Denied, Principal, Resource};
use sha2::{Digest, Sha256};
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use subtle::ConstantTimeEq;
use tokio::sync::watch;

pub const CREDENTIALS_FILE: &str = "credentials.toml";

/// Marker file: the data directory has, or had, credentials.
const REQUIRED_FILE: &str = "credentials.required";
const REQUIRED_TEXT: &[u8] =
    b"This data directory has had credentials: without any, Malote does not serve it.\n\
    To serve it to everyone again, remove all users, keys and tokens and run `malote user open`.\n";

/// The credentials of one server. Methods that change it write the file before they return, and block: on an async
/// thread, use `spawn_blocking`.
pub struct Store {
    path: PathBuf,
    pub(super) image: ArcSwap<CredentialsSnapshot>,
    /// The version of the snapshot; wakes tasks that must check permissions again.
    version: watch::Sender<u64>,
    /// An empty store must not mean "everyone": there were credentials, or a port is not on loopback.
    required: AtomicBool,
    checker: PasswordChecker,
    /// Called after every change made through this store.
    on_change: OnceLock<Box<OnChange>>,
}

/// Gets the action, the user, key or token that it applies to, and a detail without secrets.
type OnChange = dyn Fn(AuditAction, &str, &str) + Send + Sync;

impl Store {
    /// Reads the store in `path`. A missing file is an empty store.
    pub fn open(path: impl Into<PathBuf>) -> Result<Store, CredentialsError> {
        let path = path.into();
        let image = read(&path)?
            .unwrap_or_else(|| CredentialsSnapshot::of(CredentialsFile::default(), None));
        if files::readable_by_others(&path) {
            match files::make_private(&path) {
                true => {
                    tracing::warn!(path = %path.display(), "other users could read the credentials; set the mode to 0600")
                }
                false => {
                    tracing::warn!(path = %path.display(), "other users can read the credentials; run `chmod 600` on the file")
                }
            }
        }
        let store = Store {
            path,
            required: AtomicBool::new(!image.file.is_empty()),
            image: ArcSwap::from_pointee(image),
            version: watch::Sender::new(0),
            checker: PasswordChecker::new(),
            on_change: OnceLock::new(),
        };
        if store.had_credentials() {
            store.require_credentials();
        }
        Ok(store)
    }

    /// Calls `record` after every change made through this store. Only the first call of this method has an effect.
    pub fn on_change(&self, record: impl Fn(AuditAction, &str, &str) + Send + Sync + 'static) {
        let _ = self.on_change.set(Box::new(record));
    }

    pub(super) fn changed_by(&self, action: AuditAction, object: &str, detail: &str) {
        if let Some(record) = self.on_change.get() {
            record(action, object, detail);
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_empty(&self) -> bool {
        self.image.load().file.is_empty()
    }

    /// From now on, an empty store admits no caller. Call it once a port is open to other machines; otherwise, removing
    /// the last user would open the server.
    pub fn require_credentials(&self) {
        self.required.store(true, Ordering::Release);
        self.version.send_modify(|version| *version += 1);
    }

    /// Replaces the snapshot.
    fn put(&self, image: CredentialsSnapshot) {
        self.image.store(Arc::new(image));
        self.version.send_modify(|version| *version += 1);
    }

    /// Whether this directory has, or had, credentials. Outlives the credential file.
    pub fn had_credentials(&self) -> bool {
        files::exists(&self.required_file())
    }

    /// Creates the marker if there are credentials, also for a file that was created by hand or by an older version.
    pub fn remember_credentials(&self) -> Result<(), CredentialsError> {
        if self.is_empty() {
            return Ok(());
        }
        self.require_credentials();
        self.mark_required()
    }

    /// Removes the marker, so that the next start serves without credentials. Refused while there are any.
    pub fn reopen(&self) -> Result<(), CredentialsError> {
        let Listing { users, keys, tokens } = self.list();
        if !self.is_empty() {
            let count = users.len() + keys.len() + tokens.len();
            return Err(CredentialsError::NotEmpty { count });
        }
        let path = self.required_file();
        files::remove(&path).map_err(|source| CredentialsError::Unwritable { path, source })?;
        self.changed_by(AuditAction::Open, "", "");
        Ok(())
    }

    fn required_file(&self) -> PathBuf {
        self.path.with_file_name(REQUIRED_FILE)
    }

    fn mark_required(&self) -> Result<(), CredentialsError> {
        let path = self.required_file();
        if files::exists(&path) {
            return Ok(());
        }
        files::write_private(&path, REQUIRED_TEXT)
            .map_err(|source| CredentialsError::Unwritable { path, source })
    }

    /// Whether everyone may do everything. Front ends then accept any credential and skip signature checks, because
    /// tools that insist on signing are configured with invented keys.
    pub fn is_open(&self) -> bool {
        self.is_empty() && !self.required.load(Ordering::Acquire)
    }

    /// The user with this name and password. In an open store, everyone is the anonymous caller.
    pub async fn verify_password(
        &self,
        name: &str,
        password: &str,
        peer: IpAddr,
    ) -> Option<Principal> {
        if self.is_open() {
            return Some(Principal::anonymous());
        }
        let found =
            self.image.load().users.get_key_value(name).map(|(n, h)| (n.clone(), h.clone()));
        let (known, stored) = found.map_or((None, None), |(name, stored)| (Some(name), stored));
        let credential = stored.as_deref().map(|stored| credential("password", name, stored));
        let good = self.checker.check((peer, name), password, stored).await;
        known.filter(|_| good).zip(credential).map(|(name, by)| Principal::named(&*name).by(by))
    }

    /// The principal of a bearer token. In an open store, everyone is the anonymous caller.
    pub fn verify_token(&self, token: &str) -> Option<Principal> {
        if self.is_open() {
            return Some(Principal::anonymous());
        }
        let digest: [u8; 32] = Sha256::digest(token).into();
        let image = self.image.load();
        let (stored, principal) = image.tokens.get_key_value(&digest)?;
        bool::from(stored.ct_eq(&digest)).then(|| principal.clone())
    }

    /// The secret to verify a signature with.
    pub fn secret_of(&self, kind: KeyKind, id: &str) -> Option<KeySecret> {
        self.image.load().keys.get(&(kind, id.to_owned())).cloned()
    }

    /// Everything in the store, without secrets.
    pub fn list(&self) -> Listing {
        let image = self.image.load();
        let holder = |user: &Option<String>, grants: &[Grant]| match user {
            Some(user) => Holder::User(user.clone()),
            None => Holder::Own(grants.to_vec()),
        };
        let CredentialsFile { users, keys, tokens, .. } = &image.file;
        Listing {
            users: users
                .iter()
                .map(|user| UserInfo {
                    name: user.name.clone(),
                    has_password: user.password.is_some(),
                    grants: user.grants.clone(),
                    tags: user.tags.clone(),
                    permissions: user.permissions.clone(),
                })
                .collect(),
            keys: keys
                .iter()
                .map(|key| KeyInfo {
                    kind: key.kind,
                    id: key.id.clone(),
                    holder: holder(&key.user, &key.grants),
                })
                .collect(),
            tokens: tokens
                .iter()
                .map(|token| TokenInfo {
                    label: token.label.clone(),
                    holder: holder(&token.user, &token.grants),
                })
                .collect(),
        }
    }

    /// Adds a user. Without a password, it uses keys and tokens only.
    pub fn add_user(
        &self,
        name: &str,
        password: Option<&str>,
        grants: Vec<Grant>,
    ) -> Result<(), CredentialsError> {
        check_name(name)?;
        let password = password.map(hashed).transpose()?;
        let detail = shown_grants(&grants);
        self.change(|file| {
            if file.users.iter().any(|user| user.name == name) {
                return Err(CredentialsError::Exists { what: "user", name: name.to_owned() });
            }
            file.users.push(UserRecord::new(name, password, grants));
            Ok(())
        })?;
        self.changed_by(AuditAction::UserAdd, name, &detail);
        Ok(())
    }

    /// Creates the user `admin`, who may do everything, if there are no credentials. Returns whether it did.
    pub fn add_first_admin(&self, password: &Secret) -> Result<bool, CredentialsError> {
        if !self.is_empty() {
            return Ok(false);
        }
        match self.add_user("admin", Some(password.expose()), vec![Grant::everything()]) {
            Ok(()) => Ok(true),
            // Another process was faster.
            Err(CredentialsError::Exists { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a user with its keys and tokens.
    pub fn remove_user(&self, name: &str) -> Result<(), CredentialsError> {
        self.change(|file| {
            if !file.users.iter().any(|user| user.name == name) {
                return Err(not_found("user", name));
            }
            file.remove_user(name);
            Ok(())
        })?;
        self.changed_by(AuditAction::UserRemove, name, "");
        Ok(())
    }

    pub fn set_password(&self, name: &str, password: &str) -> Result<(), CredentialsError> {
        let hash = hashed(password)?;
        self.change(|file| {
            let user = file.users.iter_mut().find(|user| user.name == name);
            user.ok_or_else(|| not_found("user", name))?.password = Some(hash);
            Ok(())
        })?;
        self.changed_by(AuditAction::PasswordSet, name, "");
        Ok(())
    }

    /// Grants actions to `who`: a user, `key:ID` or `token:LABEL`.
    pub fn grant(&self, who: &str, grant: &Grant) -> Result<(), CredentialsError> {
        self.change(|file| {
            let grants = grants_of(file, who)?;
            if !grants.iter_mut().any(|held| held.merge(grant)) {
                grants.push(grant.clone());
            }
            Ok(())
        })?;
        self.changed_by(AuditAction::Grant, who, &grant.to_string());
        Ok(())
    }

    /// Revokes actions on exactly this pattern from `who`. Returns whether there were any.
    pub fn revoke(&self, who: &str, grant: &Grant) -> Result<bool, CredentialsError> {
        let taken = self.change(|file| {
            let grants = grants_of(file, who)?;
            let before = grants.clone();
            *grants = grants.drain(..).filter_map(|held| held.without(grant)).collect();
            Ok(*grants != before)
        })?;
        if taken {
            self.changed_by(AuditAction::Revoke, who, &grant.to_string());
        }
        Ok(taken)
    }

    /// Adds a key. `id` and `secret` are generated if they are not given.
    pub fn add_key(
        &self,
        kind: KeyKind,
        id: Option<&str>,
        secret: Option<&str>,
        holder: Holder,
    ) -> Result<NewKey, CredentialsError> {
        let id = id.map_or_else(
            || match kind {
                KeyKind::Aws => random::aws_key_id(),
                KeyKind::ServiceBus => "RootManageSharedAccessKey".to_owned(),
            },
            str::to_owned,
        );
        check_name(&id)?;
        let secret = secret.map_or_else(
            || match kind {
                KeyKind::Aws => random::aws_secret(),
                KeyKind::ServiceBus => random::sas_secret(),
            },
            str::to_owned,
        );
        if secret.is_empty() || secret.len() > PASSWORD_BYTES_MAX {
            return Err(CredentialsError::BadPassword);
        }
        let detail = format!("{kind}: {}", shown_holder(&holder));
        self.change(|file| {
            if file.keys.iter().any(|key| key.id == id) {
                return Err(CredentialsError::Exists { what: "key", name: id.clone() });
            }
            check_holder(file, &holder)?;
            let (user, grants) = holder.split();
            let (id, secret) = (id.clone(), secret.clone());
            file.keys.push(KeyRecord { kind, id, secret, user, grants });
            Ok(())
        })?;
        self.changed_by(AuditAction::KeyAdd, &id, &detail);
        Ok(NewKey { id, secret })
    }

    pub fn remove_key(&self, id: &str) -> Result<(), CredentialsError> {
        self.change(|file| {
            let before = file.keys.len();
            file.keys.retain(|key| key.id != id);
            if file.keys.len() == before { Err(not_found("key", id)) } else { Ok(()) }
        })?;
        self.changed_by(AuditAction::KeyRemove, id, "");
        Ok(())
    }

    /// Creates a bearer token.
    pub fn add_token(&self, label: &str, holder: Holder) -> Result<NewToken, CredentialsError> {
        check_name(label)?;
        let token = random::token();
        let sha256 = HEXLOWER.encode(&Sha256::digest(&token));
        let label = label.to_owned();
        let detail = shown_holder(&holder);
        self.change(|file| {
            if file.tokens.iter().any(|token| token.label == label) {
                return Err(CredentialsError::Exists { what: "token", name: label.clone() });
            }
            check_holder(file, &holder)?;
            let (user, grants) = holder.split();
            file.tokens.push(TokenRecord { label: label.clone(), sha256, user, grants });
            Ok(())
        })?;
        self.changed_by(AuditAction::TokenAdd, &label, &detail);
        Ok(NewToken { label, token })
    }

    pub fn remove_token(&self, label: &str) -> Result<(), CredentialsError> {
        self.change(|file| {
            let before = file.tokens.len();
            file.tokens.retain(|token| token.label != label);
            if file.tokens.len() == before { Err(not_found("token", label)) } else { Ok(()) }
        })?;
        self.changed_by(AuditAction::TokenRemove, label, "");
        Ok(())
    }

    /// Reads the current file, changes it and writes it, under a lock against other processes. A refused change has no
    /// effect.
    pub(super) fn change<T>(
        &self,
        change: impl FnOnce(&mut CredentialsFile) -> Result<T, CredentialsError>,
    ) -> Result<T, CredentialsError> {
        let unwritable = |source| CredentialsError::Unwritable { path: self.path.clone(), source };
        if let Some(dir) = self.path.parent() {
            files::create_private_dir(dir).map_err(unwritable)?;
        }
        let _lock = files::FileLock::exclusive(&self.path).map_err(unwritable)?;
        let mut file = read(&self.path)?.map_or_else(CredentialsFile::default, |image| image.file);
        let answer = change(&mut file)?;
        if !file.is_empty() {
            // First, because a crash in between must not leave credentials without the marker.
            self.mark_required()?;
            self.require_credentials();
        }
        file.write(&self.path).map_err(unwritable)?;
        let seen = files::fingerprint(&self.path);
        self.put(CredentialsSnapshot::of(file, seen));
        Ok(answer)
    }

    #[cfg(test)]
    pub(super) fn remembers(&self, name: &str) -> bool {
        self.checker.remembers(name)
    }
}

impl Access for Store {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        if self.is_open() {
            return Ok(());
        }
        let image = self.image.load();
        let grants = image.grants.get(who.name()).filter(|_| image.knows(who));
        let granted = grants.is_some_and(|held| held.iter().any(|grant| grant.allows(action, on)));
        if granted || grants.is_some() && image.rabbitmq.permits(who.name(), action, on) {
            return Ok(());
        }
        Err(Denied::new(who, action, on))
    }

    fn knows(&self, who: &Principal) -> bool {
        self.is_open() || self.image.load().knows(who)
    }

    fn version(&self) -> u64 {
        *self.version.borrow()
    }

    fn changed(&self, seen: u64) -> Changed<'_> {
        let mut version = self.version.subscribe();
        Box::pin(async move {
            let other = version.wait_for(|version| *version != seen).await.map(|version| *version);
            match other {
                Ok(version) => version,
                // The store is gone, so there is nothing to wait for.
                Err(_) => std::future::pending().await,
            }
        })
    }
}

impl Reload for Store {
    fn name(&self) -> &'static str {
        "credentials"
    }

    /// A removed file is an error and not an empty store, which would open the server.
    fn reload(&self, force: bool) -> Result<bool, String> {
        let seen = self.image.load().seen;
        if !force && files::fingerprint(&self.path) == seen {
            return Ok(false);
        }
        match read(&self.path).map_err(|error| error.to_string())? {
            Some(image) => {
                self.put(image);
                self.remember_credentials().map_err(|error| error.to_string())?;
                Ok(true)
            }
            None if seen.is_none() => Ok(false),
            None => Err(format!("{} does not exist any more", self.path.display())),
        }
    }
}

/// Prints only the path; the rest is secret.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Reads the file; `None` if there is none. The fingerprint is taken first, so that the next check notices a change in
/// between.
fn read(path: &Path) -> Result<Option<CredentialsSnapshot>, CredentialsError> {
    let seen = files::fingerprint(path);
    match CredentialsFile::read(path) {
        Ok(file) => Ok(Some(CredentialsSnapshot::of(file, seen))),
        Err(ReadError::Missing) => Ok(None),
        Err(ReadError::Unreadable(source)) => {
            Err(CredentialsError::Unreadable { path: path.to_owned(), source })
        }
        Err(ReadError::Malformed(why)) => {
            Err(CredentialsError::Malformed { path: path.to_owned(), why })
        }
    }
}

fn grants_of<'a>(
    file: &'a mut CredentialsFile,
    who: &str,
) -> Result<&'a mut Vec<Grant>, CredentialsError> {
    let acts_for =
        |user: &String| CredentialsError::ActsForUser { name: who.to_owned(), user: user.clone() };
    if let Some(id) = who.strip_prefix("key:") {
        let key = file.keys.iter_mut().find(|key| key.id == id);
        let key = key.ok_or_else(|| not_found("key", id))?;
        return key.user.as_ref().map_or(Ok(&mut key.grants), |user| Err(acts_for(user)));
    }
    if let Some(label) = who.strip_prefix("token:") {
        let token = file.tokens.iter_mut().find(|token| token.label == label);
        let token = token.ok_or_else(|| not_found("token", label))?;
        return token.user.as_ref().map_or(Ok(&mut token.grants), |user| Err(acts_for(user)));
    }
    let user = file.users.iter_mut().find(|user| user.name == who);
    Ok(&mut user.ok_or_else(|| not_found("user", who))?.grants)
}

fn check_holder(file: &CredentialsFile, holder: &Holder) -> Result<(), CredentialsError> {
    match holder {
        Holder::User(name) if !file.users.iter().any(|user| user.name == *name) => {
            Err(not_found("user", name))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_name(name: &str) -> Result<(), CredentialsError> {
    if is_name(name) { Ok(()) } else { Err(CredentialsError::BadName { name: name.to_owned() }) }
}

pub(super) fn hashed(password: &str) -> Result<String, CredentialsError> {
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        return Err(CredentialsError::BadPassword);
    }
    Ok(password::hash(password))
}

fn shown_grants(grants: &[Grant]) -> String {
    grants.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn shown_holder(holder: &Holder) -> String {
    match holder {
        Holder::User(user) => format!("for {user}"),
        Holder::Own(grants) => shown_grants(grants),
    }
}

pub(super) fn not_found(what: &'static str, name: &str) -> CredentialsError {
    CredentialsError::NotFound { what, name: name.to_owned() }
}
