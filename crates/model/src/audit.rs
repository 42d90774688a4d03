//! Who did what: logins and administrative operations, as every front end reports them.
//!
//! A front end builds an [`AuditEntry`] and hands it to the [`Audit`] of its [`Access`](crate::access::Access). The server keeps the entries
//! in memory and in a file. Sends, receives and settlements are not reported.
//!
//! Texts from clients are bounded and their control characters are escaped when an entry is built, so no reader of the
//! log has to. Reasons are stable words of ours: a body, a password or a token cannot get into an entry.

mod pending;
mod words;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

pub use self::pending::AuditPending;
pub use self::words::{AuditAction, AuditProtocol, CallerKind, UnknownWord};
use crate::access::Principal;
use crate::ids::Timestamp;

/// Bytes of a caller's name and of a credential's; longer claims are cut.
pub const CALLER_BYTES_MAX: usize = 128;
/// Bytes of an object's name: the longest queue name fits, with some escapes.
pub const OBJECT_BYTES_MAX: usize = 512;
/// Bytes of a detail.
pub const DETAIL_BYTES_MAX: usize = 512;

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AuditOutcome {
    /// It was carried out.
    Done,
    /// It was refused and changed nothing.
    Refused(Cow<'static, str>),
    /// It failed, or the caller disconnected before the answer: it may have been carried out.
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

    /// Why it was not carried out, as a stable identifier.
    pub fn reason(&self) -> Option<&str> {
        match self {
            AuditOutcome::Done => None,
            AuditOutcome::Refused(reason) | AuditOutcome::Unknown(reason) => Some(reason),
        }
    }
}

/// The reason when the caller disconnected before the answer.
pub const CALLER_LEFT: &str = "caller_left";

/// The caller, authenticated or claimed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AuditCaller {
    /// The name; `anonymous` without one.
    pub name: String,
    /// How it was authenticated; for a refused login, how it tried to.
    pub kind: CallerKind,
    /// The name of the key or token, if any.
    pub credential: Option<String>,
}

/// One operation, as a front end reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Who made the request.
    pub caller: AuditCaller,
    /// The network address of the caller, if known.
    pub peer: Option<IpAddr>,
    /// The protocol of the request.
    pub protocol: AuditProtocol,
    /// What the caller requested.
    pub action: AuditAction,
    /// The queue, topic, user, key or token; empty if there is none.
    pub object: String,
    /// The protocol's name for the operation, a rule's name, or a grant.
    pub detail: String,
    /// How it ended.
    pub outcome: AuditOutcome,
}

impl AuditEntry {
    /// A successful anonymous operation without an object or address.
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

    /// Sets the authenticated caller.
    #[must_use]
    pub fn by(mut self, who: &Principal) -> AuditEntry {
        self.caller = AuditCaller {
            name: clean(who.name(), CALLER_BYTES_MAX),
            kind: who.kind(),
            credential: who.credential_name().map(|name| clean(name, CALLER_BYTES_MAX)),
        };
        self
    }

    /// Sets the name that the caller claims.
    #[must_use]
    pub fn claimed(mut self, name: &str, kind: CallerKind) -> AuditEntry {
        self.caller = AuditCaller { name: clean(name, CALLER_BYTES_MAX), kind, credential: None };
        self
    }

    /// Sets the caller's address.
    #[must_use]
    pub fn from(mut self, peer: IpAddr) -> AuditEntry {
        self.peer = Some(peer.to_canonical());
        self
    }

    /// Sets the object.
    #[must_use]
    pub fn on(mut self, object: &str) -> AuditEntry {
        self.object = clean(object, OBJECT_BYTES_MAX);
        self
    }

    /// Sets the detail.
    #[must_use]
    pub fn detail(mut self, detail: &str) -> AuditEntry {
        self.detail = clean(detail, DETAIL_BYTES_MAX);
        self
    }

    /// Sets the outcome.
    #[must_use]
    pub fn outcome(mut self, outcome: AuditOutcome) -> AuditEntry {
        self.outcome = outcome;
        self
    }

    /// Sets the outcome to refused, with this reason.
    #[must_use]
    pub fn refused(self, reason: &'static str) -> AuditEntry {
        self.outcome(AuditOutcome::Refused(reason.into()))
    }
}

/// An entry in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// A number that grows with every record, also across restarts.
    pub seq: u64,
    /// When it happened; for repeated entries, the first time.
    pub at: Timestamp,
    /// How often it happened. Identical refusals are counted, not repeated.
    pub count: u64,
    /// The entry as it was recorded.
    pub entry: AuditEntry,
}

/// Which records to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Records after this number, oldest first. Without it: the newest.
    pub after: Option<u64>,
    /// The maximum number of records.
    pub max: usize,
    /// Only records of this caller.
    pub caller: Option<String>,
    /// Only records with this action.
    pub action: Option<AuditAction>,
    /// Only records with this outcome: `done`, `refused` or `unknown`.
    pub outcome: Option<String>,
}

impl AuditQuery {
    /// Whether an entry matches.
    pub fn fits(&self, entry: &AuditEntry) -> bool {
        self.caller.as_ref().is_none_or(|caller| entry.caller.name == *caller)
            && self.action.is_none_or(|action| entry.action == action)
            && self.outcome.as_ref().is_none_or(|outcome| entry.outcome.as_str() == outcome)
    }
}

/// A page of records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditPage {
    /// The records, by number.
    pub records: Vec<AuditRecord>,
    /// The number up to which the log was searched. The next page begins after it.
    pub last: u64,
    /// Whether more records follow.
    pub more: bool,
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditCounts {
    /// Records accepted, including repetitions.
    pub recorded: u64,
    /// Records that were lost because too many arrived at once.
    pub dropped: u64,
    /// Records that are only in memory, because the file could not be written.
    pub unwritten: u64,
}

/// Receives audit entries from front ends. Methods must not block or wait: they are called for requests.
pub trait Audit: Send + Sync {
    /// Records an entry.
    fn record(&self, entry: AuditEntry);

    /// Whether this caller's action from this address should be recorded now: the first time, and then once an hour.
    /// For actions that happen with every request.
    fn is_due(
        &self,
        who: &Principal,
        peer: IpAddr,
        protocol: AuditProtocol,
        action: AuditAction,
    ) -> bool;

    /// Reads the log.
    fn read(&self, query: &AuditQuery) -> AuditPage;

    /// Counters since the start.
    fn counts(&self) -> AuditCounts;

    /// Records that a request was authenticated, for a protocol that authenticates each request.
    fn authenticated(&self, who: &Principal, peer: IpAddr, protocol: AuditProtocol) {
        let login = AuditAction::Login;
        if !who.is_anonymous() && self.is_due(who, peer, protocol, login) {
            self.record(AuditEntry::new(protocol, login).by(who).from(peer));
        }
    }

    /// Records that a connection was authenticated.
    fn signed_in(&self, who: &Principal, peer: IpAddr, protocol: AuditProtocol) {
        if !who.is_anonymous() {
            self.record(AuditEntry::new(protocol, AuditAction::Login).by(who).from(peer));
        }
    }
}

/// Discards all entries.
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

/// Keeps all entries, without a limit: for tests.
#[derive(Debug, Default)]
pub struct AuditList(Mutex<Vec<AuditEntry>>);

impl AuditList {
    /// Removes and returns the entries since the last call.
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

/// Shortens a text and escapes characters that could break a line, move a cursor or change the reading direction.
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
    use std::sync::Arc;

    use super::*;
    use crate::access::{Access, Action, Denied, Resource};

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
