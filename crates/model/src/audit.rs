//! Who did what: logins and administrative operations, as every front end reports them.
//!
//! A front end builds an [`AuditEntry`] and hands it to the [`Audit`] of its [`Access`]. The server keeps the entries
//! in memory and in a file. Sends, receives and settlements are not reported.
//!
//! Texts from clients are bounded and their control characters are escaped when an entry is built, so no reader of the
//! log has to. Reasons are stable words of ours: a body, a password or a token cannot get into an entry.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::access::{Access, Action, Principal, Resource};
use crate::ids::{QueueName, Timestamp};

/// Bytes of a caller's name and of a credential's; longer claims are cut.
pub const CALLER_BYTES_MAX: usize = 128;
/// Bytes of an object's name: the longest queue name fits, with some escapes.
pub const OBJECT_BYTES_MAX: usize = 512;
/// Bytes of a detail.
pub const DETAIL_BYTES_MAX: usize = 512;

/// A word that is not known in its place, such as an action that a newer version wrote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not one of: {known}")]
pub struct UnknownWord {
    /// The word as written.
    pub text: String,
    /// The words that are known.
    pub known: String,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// Every one of them.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The stable word.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                $name::ALL.iter().copied().find(|one| one.as_str() == text).ok_or_else(|| {
                    let known: Vec<&str> = $name::ALL.iter().map(|one| one.as_str()).collect();
                    UnknownWord { text: clean(text, CALLER_BYTES_MAX), known: known.join(", ") }
                })
            }
        }
    };
}

words! {
    /// How a caller proved who it is.
    CallerKind {
        /// It did not.
        Anonymous "anonymous",
        /// By a password.
        User "user",
        /// By a signature with a key.
        Key "key",
        /// By a bearer token.
        Token "token",
        /// A user of the operating system, on the machine of the data directory.
        OsUser "os_user",
        /// The server itself.
        Server "server",
    }
}

words! {
    /// What an operation came in by.
    AuditProtocol {
        /// The native HTTP API.
        Http "http",
        /// The native WebSocket connection.
        Native "native",
        /// SQS.
        Sqs "sqs",
        /// Service Bus over AMQP 1.0.
        ServiceBus "servicebus",
        /// The administration API of Service Bus.
        ServiceBusAdmin "servicebus_admin",
        /// A command that works on the data directory.
        Cli "cli",
        /// The server itself.
        Server "server",
    }
}

words! {
    /// What was done, or refused.
    AuditAction {
        /// Showing a credential.
        Login "login",
        /// Adding a user.
        UserAdd "user_add",
        /// Removing a user with its keys and tokens.
        UserRemove "user_remove",
        /// Changing a user's password.
        PasswordSet "password_set",
        /// Allowing something.
        Grant "grant",
        /// Taking a grant back.
        Revoke "revoke",
        /// Adding a key.
        KeyAdd "key_add",
        /// Removing a key.
        KeyRemove "key_remove",
        /// Adding a token.
        TokenAdd "token_add",
        /// Removing a token.
        TokenRemove "token_remove",
        /// Letting everyone in again.
        Open "open",
        /// Declaring a queue or topic.
        Declare "declare",
        /// Changing settings, tags or the policy of a queue or topic.
        Update "update",
        /// Deleting a queue, topic or subscription.
        Delete "delete",
        /// Deleting messages without receiving them.
        Purge "purge",
        /// Stopping delivery.
        Pause "pause",
        /// Resuming delivery.
        Resume "resume",
        /// Moving dead letters back.
        Redrive "redrive",
        /// Replacing a dead letter by a corrected message.
        Resend "resend",
        /// Starting a message move task of SQS.
        MoveStart "move_start",
        /// Cancelling a message move task of SQS.
        MoveCancel "move_cancel",
        /// Declaring a subscription.
        Subscribe "subscribe",
        /// Adding or changing a rule.
        Bind "bind",
        /// Removing a rule.
        Unbind "unbind",
        /// Taking a session from its holder.
        BreakSession "break_session",
        /// Reading the state of a session without holding it.
        ReadState "read_state",
        /// Looking at entities where that needs the permission to manage them.
        Read "read",
        /// Reading the audit log.
        ReadAudit "read_audit",
        /// Copying everything out.
        Backup "backup",
        /// Records that were lost because too many came at once.
        Dropped "dropped",
    }
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AuditOutcome {
    /// It was carried out.
    Done,
    /// It was refused and changed nothing.
    Refused(Cow<'static, str>),
    /// It failed, or the caller left before the answer: it may have been carried out.
    Unknown(Cow<'static, str>),
}

impl AuditOutcome {
    /// `done`, `refused` or `unknown`.
    pub fn as_str(&self) -> &'static str {
        match self {
            AuditOutcome::Done => "done",
            AuditOutcome::Refused(_) => "refused",
            AuditOutcome::Unknown(_) => "unknown",
        }
    }

    /// Why it was not carried out, as a stable word of the protocol's.
    pub fn reason(&self) -> Option<&str> {
        match self {
            AuditOutcome::Done => None,
            AuditOutcome::Refused(reason) | AuditOutcome::Unknown(reason) => Some(reason),
        }
    }
}

/// The reason when the caller has left before the answer.
pub const CALLER_LEFT: &str = "caller_left";

/// Who called, or claimed to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AuditCaller {
    /// The name; `anonymous` without one.
    pub name: String,
    /// How it proved who it is; for a refused login, how it tried to.
    pub kind: CallerKind,
    /// Which key or token, if it was one.
    pub credential: Option<String>,
}

/// One operation, as a front end reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Who.
    pub caller: AuditCaller,
    /// From where.
    pub peer: Option<IpAddr>,
    /// By which protocol.
    pub protocol: AuditProtocol,
    /// What.
    pub action: AuditAction,
    /// On which queue, topic, user, key or token; empty if on none.
    pub object: String,
    /// The protocol's own name of the operation, a rule's name or a grant.
    pub detail: String,
    /// How it ended.
    pub outcome: AuditOutcome,
}

impl AuditEntry {
    /// An anonymous operation that was carried out, on nothing, from nowhere.
    pub fn new(protocol: AuditProtocol, action: AuditAction) -> AuditEntry {
        AuditEntry {
            caller: AuditCaller {
                name: CallerKind::Anonymous.as_str().to_owned(),
                kind: CallerKind::Anonymous,
                credential: None,
            },
            peer: None,
            protocol,
            action,
            object: String::new(),
            detail: String::new(),
            outcome: AuditOutcome::Done,
        }
    }

    /// By a caller whose credential was verified, or by nobody.
    #[must_use]
    pub fn by(mut self, who: &Principal) -> AuditEntry {
        self.caller = AuditCaller {
            name: clean(who.name(), CALLER_BYTES_MAX),
            kind: who.kind(),
            credential: who.credential_name().map(|name| clean(name, CALLER_BYTES_MAX)),
        };
        self
    }

    /// By somebody who claims this name.
    #[must_use]
    pub fn claimed(mut self, name: &str, kind: CallerKind) -> AuditEntry {
        self.caller = AuditCaller { name: clean(name, CALLER_BYTES_MAX), kind, credential: None };
        self
    }

    /// From this address.
    #[must_use]
    pub fn from(mut self, peer: IpAddr) -> AuditEntry {
        self.peer = Some(peer.to_canonical());
        self
    }

    /// On this object.
    #[must_use]
    pub fn on(mut self, object: &str) -> AuditEntry {
        self.object = clean(object, OBJECT_BYTES_MAX);
        self
    }

    /// With this detail.
    #[must_use]
    pub fn detail(mut self, detail: &str) -> AuditEntry {
        self.detail = clean(detail, DETAIL_BYTES_MAX);
        self
    }

    /// With this outcome.
    #[must_use]
    pub fn outcome(mut self, outcome: AuditOutcome) -> AuditEntry {
        self.outcome = outcome;
        self
    }

    /// Refused, for this reason.
    #[must_use]
    pub fn refused(self, reason: &'static str) -> AuditEntry {
        self.outcome(AuditOutcome::Refused(reason.into()))
    }
}

/// An entry in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Its number: later records have greater ones, also after a restart.
    pub seq: u64,
    /// When it happened; the first time, if it happened repeatedly.
    pub at: Timestamp,
    /// How often it happened: identical refusals are counted and not repeated.
    pub count: u64,
    /// What happened.
    pub entry: AuditEntry,
}

/// Which records to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Those after this number, oldest first; without it, the newest that fit.
    pub after: Option<u64>,
    /// At most this number of them.
    pub max: usize,
    /// Only of callers with this name.
    pub caller: Option<String>,
    /// Only with this action.
    pub action: Option<AuditAction>,
    /// Only with this outcome: `done`, `refused` or `unknown`.
    pub outcome: Option<String>,
}

impl AuditQuery {
    /// Whether a record is one of those.
    pub fn fits(&self, entry: &AuditEntry) -> bool {
        self.caller.as_ref().is_none_or(|caller| entry.caller.name == *caller)
            && self.action.is_none_or(|action| entry.action == action)
            && self.outcome.as_ref().is_none_or(|outcome| entry.outcome.as_str() == outcome)
    }
}

/// Records that were asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditPage {
    /// By their numbers.
    pub records: Vec<AuditRecord>,
    /// The number up to which the log was searched: the next page begins after it.
    pub last: u64,
    /// Whether there are more after it.
    pub more: bool,
}

/// What became of the records since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditCounts {
    /// Records taken, with their repetitions.
    pub recorded: u64,
    /// Records that were lost because too many came at once.
    pub dropped: u64,
    /// Records that are in memory only, because the file could not be written.
    pub unwritten: u64,
}

/// Takes what front ends report. No method may block or wait: they are called on the path of requests.
pub trait Audit: Send + Sync {
    /// Takes an entry.
    fn record(&self, entry: AuditEntry);

    /// Whether this caller's action from this address is due to be recorded: the first time, and then once an hour.
    /// For what happens with every request.
    fn is_due(
        &self,
        who: &Principal,
        peer: IpAddr,
        protocol: AuditProtocol,
        action: AuditAction,
    ) -> bool;

    /// Reads the log.
    fn read(&self, query: &AuditQuery) -> AuditPage;

    /// Counts since the start.
    fn counts(&self) -> AuditCounts;

    /// A request was authenticated, by a protocol that authenticates every request.
    fn authenticated(&self, who: &Principal, peer: IpAddr, protocol: AuditProtocol) {
        let login = AuditAction::Login;
        if !who.is_anonymous() && self.is_due(who, peer, protocol, login) {
            self.record(AuditEntry::new(protocol, login).by(who).from(peer));
        }
    }

    /// A connection was authenticated.
    fn signed_in(&self, who: &Principal, peer: IpAddr, protocol: AuditProtocol) {
        if !who.is_anonymous() {
            self.record(AuditEntry::new(protocol, AuditAction::Login).by(who).from(peer));
        }
    }
}

/// Keeps nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoAudit;

impl Audit for NoAudit {
    fn record(&self, _: AuditEntry) {}

    fn is_due(&self, _: &Principal, _: IpAddr, _: AuditProtocol, _: AuditAction) -> bool {
        false
    }

    fn read(&self, _: &AuditQuery) -> AuditPage {
        AuditPage::default()
    }

    fn counts(&self) -> AuditCounts {
        AuditCounts::default()
    }
}

/// Keeps every entry, without a bound: for tests.
#[derive(Debug, Default)]
pub struct AuditList(Mutex<Vec<AuditEntry>>);

impl AuditList {
    /// Takes out what came since the last call.
    pub fn take(&self) -> Vec<AuditEntry> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Audit for AuditList {
    fn record(&self, entry: AuditEntry) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    fn is_due(&self, _: &Principal, _: IpAddr, _: AuditProtocol, _: AuditAction) -> bool {
        true
    }

    fn read(&self, query: &AuditQuery) -> AuditPage {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let records = (1..).zip(entries.iter()).filter(|(_, entry)| query.fits(entry));
        let record = |(seq, entry): (u64, &AuditEntry)| AuditRecord {
            seq,
            at: Timestamp(seq),
            count: 1,
            entry: entry.clone(),
        };
        let records = records.map(record).take(query.max).collect();
        AuditPage { records, last: entries.len() as u64, more: false }
    }

    fn counts(&self) -> AuditCounts {
        AuditCounts::default()
    }
}

/// An operation under way. Dropped without an outcome, because its caller left, it is recorded as unknown: closing the
/// connection must not hide what was done. If the caller may not do it, it is recorded as refused.
#[must_use]
pub struct AuditPending {
    access: Arc<dyn Access>,
    who: Principal,
    needs: Action,
    /// The object's name as it is, for the check.
    object: String,
    entry: Option<AuditEntry>,
}

impl AuditPending {
    /// Begins an operation of this caller that needs this permission.
    pub fn begin(
        access: &Arc<dyn Access>,
        (who, needs): (&Principal, Action),
        entry: AuditEntry,
        object: &str,
    ) -> AuditPending {
        let entry = Some(entry.by(who).on(object));
        let object = object.to_owned();
        AuditPending { access: access.clone(), who: who.clone(), needs, object, entry }
    }

    /// Says what it turned out to be about.
    pub fn on(&mut self, object: &str) {
        self.entry = self.entry.take().map(|entry| entry.on(object));
        self.object = object.to_owned();
    }

    /// It is over.
    pub fn end(mut self, outcome: AuditOutcome) {
        if let Some(entry) = self.entry.take() {
            self.access.audit().record(entry.outcome(outcome));
        }
    }

    /// It need not be recorded.
    pub fn forget(mut self) {
        self.entry = None;
    }

    fn is_permitted(&self) -> bool {
        let may = |on: Resource<'_>| self.access.check(&self.who, self.needs, on).is_ok();
        match self.object.as_str() {
            "" => may(Resource::EVERYTHING),
            // Queues and topics have one name space.
            name => QueueName::new(name).is_ok_and(|name| may((&name).into())),
        }
    }
}

impl Drop for AuditPending {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            let outcome = match self.is_permitted() {
                true => AuditOutcome::Unknown(CALLER_LEFT.into()),
                false => AuditOutcome::Refused(CALLER_LEFT.into()),
            };
            self.access.audit().record(entry.outcome(outcome));
        }
    }
}

/// Bounds a text and escapes what could break a line, move a cursor or turn the reading direction.
pub fn clean(text: &str, bytes_max: usize) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let start = out.len();
        match is_unsafe(c) {
            true => out.extend(c.escape_unicode()),
            false => out.push(c),
        }
        if out.len() > bytes_max {
            out.truncate(start);
            while out.len() + '…'.len_utf8() > bytes_max && out.pop().is_some() {}
            out.push('…');
            break;
        }
    }
    out
}

fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Denied;

    #[test]
    fn words_read_back_as_written() {
        for action in AuditAction::ALL {
            assert_eq!(action.as_str().parse(), Ok(*action));
        }
        for protocol in AuditProtocol::ALL {
            assert_eq!(protocol.as_str().parse(), Ok(*protocol));
        }
        let error = "fly".parse::<CallerKind>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`fly` is not one of: anonymous, user, key, token, os_user, server"
        );
    }

    #[test]
    fn texts_are_bounded_and_cannot_break_a_line() {
        assert_eq!(clean("orders/é", 128), "orders/é");
        assert_eq!(clean("a\nlogin ok\x1b[2J\u{202e}", 128), "a\\u{a}login ok\\u{1b}[2J\\u{202e}");
        assert_eq!(clean(&"x".repeat(9), 8), "xxxxx…");
        assert_eq!(clean(&"é".repeat(9), 8), "éé…");
        assert_eq!(clean("abc\n", 6), "abc…");
        for max in 3..40 {
            let long = clean(&"a\né\u{2028}".repeat(50), max);
            assert!(long.len() <= max, "{max}: {long:?}");
        }
        let entry = AuditEntry::new(AuditProtocol::Http, AuditAction::Login)
            .claimed(&"x\n".repeat(1000), CallerKind::User);
        assert!(entry.caller.name.len() <= CALLER_BYTES_MAX && !entry.caller.name.contains('\n'));
    }

    /// Ana may manage `orders`.
    struct Listed(AuditList);

    impl Access for Listed {
        fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
            match who.name() == "ana" && action == Action::Manage && on.name() == Some("orders") {
                true => Ok(()),
                false => Err(Denied::new(who, action, on)),
            }
        }

        fn audit(&self) -> &dyn Audit {
            &self.0
        }
    }

    #[test]
    fn an_operation_whose_caller_left_is_recorded() {
        let listed = Arc::new(Listed(AuditList::default()));
        let access: Arc<dyn Access> = listed.clone();
        let begin = |name: &str, object: &str| {
            let who = Principal::named(name);
            let entry = AuditEntry::new(AuditProtocol::Http, AuditAction::Delete);
            AuditPending::begin(&access, (&who, Action::Manage), entry, object)
        };
        begin("ana", "orders").end(AuditOutcome::Done);
        begin("ana", "orders").forget();
        for (name, object) in
            [("ana", "orders"), ("ana", "other"), ("ana", ""), ("ana", "\n"), ("eve", "orders")]
        {
            drop(begin(name, object));
        }
        let mut found = begin("ana", "ORDERS");
        found.on("orders");
        drop(found);
        let outcomes: Vec<_> = listed.0.take().iter().map(|entry| entry.outcome.as_str()).collect();
        assert_eq!(
            outcomes,
            ["done", "unknown", "refused", "refused", "refused", "refused", "unknown"]
        );
    }

    #[test]
    fn an_address_is_written_in_one_way() {
        let entry = AuditEntry::new(AuditProtocol::Http, AuditAction::Login)
            .from("::ffff:192.0.2.1".parse().unwrap());
        assert_eq!(entry.peer, Some("192.0.2.1".parse().unwrap()));
    }
}
