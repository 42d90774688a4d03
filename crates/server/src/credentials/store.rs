//! The store: a file, and an image of it in memory that every check reads without a lock.

use super::error::CredentialsError;
use super::file::{
    CredentialsFile, KeyKind, KeyRecord, ReadError, TokenRecord, UserRecord, is_name,
};
use super::grant::Grant;
use super::password::{self, Checker, PASSWORD_BYTES_MAX};
use super::random;
use super::words::{Holder, KeyInfo, KeySecret, Listing, NewKey, NewToken, TokenInfo, UserInfo};
use crate::files::{self, Fingerprint};
use crate::reload::Reload;
use crate::settings::Secret;
use arc_swap::ArcSwap;
use malote_model::access::{Access, Action, Changed, CredentialId, Denied, Principal, Resource};
use malote_model::{AuditAction, CallerKind};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use subtle::ConstantTimeEq;
use tokio::sync::watch;

/// Name of the file in the data directory.
pub const CREDENTIALS_FILE: &str = "credentials.toml";

/// Name of the file that says that the data directory has, or had, credentials.
const REQUIRED_FILE: &str = "credentials.required";
const REQUIRED_TEXT: &[u8] =
    b"This data directory has had credentials: without any, Malote does not serve it.\n\
    To serve it to everyone again, remove all users, keys and tokens and run `malote user open`.\n";

/// The credentials of one server. Methods that change it write the file before they return and
/// block while they do so: on an async thread, use `spawn_blocking`.
pub struct Store {
    path: PathBuf,
    image: ArcSwap<Image>,
    /// Counts images, and wakes up those who have to look at permissions again.
    version: watch::Sender<u64>,
    /// Set where an empty store must not mean «everyone»: there were credentials, or the port is not on loopback.
    required: AtomicBool,
    checker: Checker,
    /// Told of every change made through this store, with its object and a detail without secrets.
    on_change: OnceLock<Box<OnChange>>,
}

/// Takes an action, the user, key or token that it was done to, and what was granted.
type OnChange = dyn Fn(AuditAction, &str, &str) + Send + Sync;

/// The file, indexed for checks.
struct Image {
    file: CredentialsFile,
    seen: Option<Fingerprint>,
    /// By principal name: users, `key:ID`, `token:LABEL`.
    grants: HashMap<Arc<str>, Vec<Grant>>,
    users: HashMap<Arc<str>, Option<Arc<str>>>,
    keys: HashMap<(KeyKind, String), KeySecret>,
    tokens: HashMap<[u8; 32], Principal>,
    /// Passwords, keys and tokens that are valid.
    credentials: HashSet<CredentialId>,
}

impl Store {
    /// Reads the store in `path`; a missing file is an empty store.
    pub fn open(path: impl Into<PathBuf>) -> Result<Store, CredentialsError> {
        let path = path.into();
        let image = read(&path)?.unwrap_or_else(|| Image::of(CredentialsFile::default(), None));
        if files::readable_by_others(&path) {
            match files::make_private(&path) {
                true => {
                    tracing::warn!(path = %path.display(), "others could read the credentials: the mode is 0600 now")
                }
                false => {
                    tracing::warn!(path = %path.display(), "others may read the credentials: `chmod 600` it")
                }
            }
        }
        let store = Store {
            path,
            required: AtomicBool::new(!image.file.is_empty()),
            image: ArcSwap::from_pointee(image),
            version: watch::Sender::new(0),
            checker: Checker::new(),
            on_change: OnceLock::new(),
        };
        if store.had_credentials() {
            store.require_credentials();
        }
        Ok(store)
    }

    /// Calls `record` after every change that is made through this store; the first such call counts.
    pub fn on_change(&self, record: impl Fn(AuditAction, &str, &str) + Send + Sync + 'static) {
        let _ = self.on_change.set(Box::new(record));
    }

    fn changed_by(&self, action: AuditAction, object: &str, detail: &str) {
        if let Some(record) = self.on_change.get() {
            record(action, object, detail);
        }
    }

    /// Where the store is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there are no credentials at all.
    pub fn is_empty(&self) -> bool {
        self.image.load().file.is_empty()
    }

    /// From now on an empty store lets nobody in. Call it once a port is open to other machines,
    /// or removing the last user would open the door.
    pub fn require_credentials(&self) {
        self.required.store(true, Ordering::Release);
        self.version.send_modify(|version| *version += 1);
    }

    /// Puts another image in force.
    fn put(&self, image: Image) {
        self.image.store(Arc::new(image));
        self.version.send_modify(|version| *version += 1);
    }

    /// Whether this directory has, or had, credentials: it outlives the credential file.
    pub fn had_credentials(&self) -> bool {
        files::exists(&self.required_file())
    }

    /// Writes down that there are credentials, if there are: also for a file that was put there by hand or by an older
    /// version.
    pub fn remember_credentials(&self) -> Result<(), CredentialsError> {
        if self.is_empty() {
            return Ok(());
        }
        self.require_credentials();
        self.mark_required()
    }

    /// Forgets that there were credentials: the next start serves without. Refused while there are any.
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

    /// Whether everyone may do everything. Front ends then take any credential, and signatures
    /// need no check: tools that insist on signing are configured with made-up keys.
    pub fn is_open(&self) -> bool {
        self.is_empty() && !self.required.load(Ordering::Acquire)
    }

    /// Who has this name and password; `peer` says so. In an open store: anyone, as the anonymous caller.
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

    /// Who has this bearer token. In an open store: anyone, as the anonymous caller.
    pub fn verify_token(&self, token: &str) -> Option<Principal> {
        if self.is_open() {
            return Some(Principal::anonymous());
        }
        let digest: [u8; 32] = Sha256::digest(token).into();
        let image = self.image.load();
        let (stored, principal) = image.tokens.get_key_value(&digest)?;
        bool::from(stored.ct_eq(&digest)).then(|| principal.clone())
    }

    /// What a signature by this key is checked with.
    pub fn secret_of(&self, kind: KeyKind, id: &str) -> Option<KeySecret> {
        self.image.load().keys.get(&(kind, id.to_owned())).cloned()
    }

    /// Everything there is, without secrets.
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

    /// Adds a user; without a password it acts by keys and tokens only.
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
            file.users.push(UserRecord { name: name.to_owned(), password, grants });
            Ok(())
        })?;
        self.changed_by(AuditAction::UserAdd, name, &detail);
        Ok(())
    }

    /// Makes the user `admin`, who may do everything, if there are no credentials yet. Says
    /// whether it did.
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
            let before = file.users.len();
            file.users.retain(|user| user.name != name);
            if file.users.len() == before {
                return Err(not_found("user", name));
            }
            file.keys.retain(|key| key.user.as_deref() != Some(name));
            file.tokens.retain(|token| token.user.as_deref() != Some(name));
            Ok(())
        })?;
        self.changed_by(AuditAction::UserRemove, name, "");
        Ok(())
    }

    /// Sets a user's password.
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

    /// Allows something to `who`: a user, `key:ID` or `token:LABEL`.
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

    /// Takes actions on exactly this pattern back from `who`. Says whether there was anything to
    /// take.
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

    /// Adds a key, made up where `id` or `secret` is not given.
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

    /// Removes a key.
    pub fn remove_key(&self, id: &str) -> Result<(), CredentialsError> {
        self.change(|file| {
            let before = file.keys.len();
            file.keys.retain(|key| key.id != id);
            if file.keys.len() == before { Err(not_found("key", id)) } else { Ok(()) }
        })?;
        self.changed_by(AuditAction::KeyRemove, id, "");
        Ok(())
    }

    /// Makes a bearer token.
    pub fn add_token(&self, label: &str, holder: Holder) -> Result<NewToken, CredentialsError> {
        check_name(label)?;
        let token = random::token();
        let sha256 = Sha256::digest(&token).iter().map(|byte| format!("{byte:02x}")).collect();
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

    /// Removes a token.
    pub fn remove_token(&self, label: &str) -> Result<(), CredentialsError> {
        self.change(|file| {
            let before = file.tokens.len();
            file.tokens.retain(|token| token.label != label);
            if file.tokens.len() == before { Err(not_found("token", label)) } else { Ok(()) }
        })?;
        self.changed_by(AuditAction::TokenRemove, label, "");
        Ok(())
    }

    /// Reads the file as it is now, changes it, writes it. A lock keeps two processes apart; what
    /// the change refuses leaves no trace.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut CredentialsFile) -> Result<T, CredentialsError>,
    ) -> Result<T, CredentialsError> {
        let unwritable = |source| CredentialsError::Unwritable { path: self.path.clone(), source };
        if let Some(dir) = self.path.parent() {
            files::create_private_dir(dir).map_err(unwritable)?;
        }
        let _lock = files::Lock::exclusive(&self.path).map_err(unwritable)?;
        let mut file = read(&self.path)?.map_or_else(CredentialsFile::default, |image| image.file);
        let answer = change(&mut file)?;
        if !file.is_empty() {
            // First: a crash in between must not leave credentials that can be lost silently.
            self.mark_required()?;
            self.require_credentials();
        }
        file.write(&self.path).map_err(unwritable)?;
        let seen = files::fingerprint(&self.path);
        self.put(Image::of(file, seen));
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
        if grants.is_some_and(|grants| grants.iter().any(|grant| grant.allows(action, on))) {
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
                // The store is gone, and with it whoever could ask again.
                Err(_) => std::future::pending().await,
            }
        })
    }
}

impl Reload for Store {
    fn name(&self) -> &'static str {
        "credentials"
    }

    /// A file that went away is an error and not an empty store: emptiness would open the door.
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
            None => Err(format!("{} is gone", self.path.display())),
        }
    }
}

/// Nothing but the place: the rest is secret.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Image {
    fn of(file: CredentialsFile, seen: Option<Fingerprint>) -> Image {
        let mut image = Image {
            seen,
            grants: HashMap::new(),
            users: HashMap::new(),
            keys: HashMap::new(),
            tokens: HashMap::new(),
            credentials: HashSet::new(),
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
            // A hash that cannot be read fits no token.
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

    /// Whether the password, key or token that the caller signed in with is valid.
    fn knows(&self, who: &Principal) -> bool {
        who.credential().is_some_and(|credential| self.credentials.contains(&credential))
    }
}

/// Stands for a credential without telling it. A new secret makes another one.
fn credential(kind: &str, id: &str, secret: &str) -> CredentialId {
    let mut hash = Sha256::new();
    for part in [kind, id, secret] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let (half, _) = digest.split_at(16);
    CredentialId(half.try_into().expect("16 bytes are 16 bytes"))
}

/// The file's image; `None` when there is no file. The fingerprint is taken first, so a change in
/// between is noticed at the next look.
fn read(path: &Path) -> Result<Option<Image>, CredentialsError> {
    let seen = files::fingerprint(path);
    match CredentialsFile::read(path) {
        Ok(file) => Ok(Some(Image::of(file, seen))),
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

fn check_name(name: &str) -> Result<(), CredentialsError> {
    if is_name(name) { Ok(()) } else { Err(CredentialsError::BadName { name: name.to_owned() }) }
}

fn hashed(password: &str) -> Result<String, CredentialsError> {
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

fn not_found(what: &'static str, name: &str) -> CredentialsError {
    CredentialsError::NotFound { what, name: name.to_owned() }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}
