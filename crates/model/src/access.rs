//! Who may do what on which queue.
//!
//! Every front end asks one [`Access`] before it calls the engine; the engine itself knows no
//! callers. How a caller proves who it is (password, token, signature) is the front end's task
//! and ends in a [`Principal`]. Users, grants and their storage live in the server.
//!
//! # Which name is checked
//!
//! A grant names queues and topics in the spelling they were made with; case counts. Permissions
//! are checked on a [`Resource`], never on the text of a request:
//!
//! | the request names | the resource is |
//! |---|---|
//! | a queue, topic or subscription that exists | its own spelling, also where the protocol ignores case |
//! | the dead letters of a queue (`orders/$deadletterqueue`) | the queue, `orders` |
//! | the management node of an entity (`orders/$management`) | the entity |
//! | a FIFO alias of SQS (`orders.fifo` for a queue `orders` with sessions) | the queue it stands for |
//! | the target of forwarding, dead letters or a redrive | the target; configuring it needs `send` there |
//! | something that does not exist | the name as asked, so that a miss and a denial look alike |
//!
//! A link or a consumer that was allowed is checked again when [`Access::version`] changes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::audit::{Audit, CallerKind, NoAudit};
use crate::ids::{QueueName, TopicName};
use crate::topic::Address;

/// What a caller wants to do to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Put messages in, schedule them, cancel the own schedule.
    Send,
    /// Lease, settle, renew, peek, hold sessions and read or write their state.
    Receive,
    /// Declare, change, delete, purge, pause, redrive.
    Manage,
}

impl Action {
    /// Every action, in the order people read them.
    pub const ALL: [Action; 3] = [Action::Send, Action::Receive, Action::Manage];

    /// The word used in grants, commands and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Send => "send",
            Action::Receive => "receive",
            Action::Manage => "manage",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Action {
    type Err = UnknownAction;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Action::ALL
            .into_iter()
            .find(|action| action.as_str() == text)
            .ok_or_else(|| UnknownAction { text: text.to_owned() })
    }
}

/// A word that names no [`Action`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an action: use send, receive or manage")]
pub struct UnknownAction {
    /// The word as written.
    pub text: String,
}

/// The caller behind a connection or a request. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// `None`: nobody has signed in.
    named: Option<Arc<Named>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Named {
    name: Box<str>,
    credential: Option<CredentialId>,
    kind: CallerKind,
    /// Which key or token, if it was one.
    credential_name: Option<Box<str>>,
}

/// Stands for the password, key or token that a caller signed in with. A changed secret is another
/// credential, so that what the old one allowed can be taken back from connections that are open.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CredentialId(pub [u8; 16]);

impl Principal {
    /// A caller that showed no credential.
    pub const fn anonymous() -> Self {
        Principal { named: None }
    }

    /// A caller whose credential was verified.
    pub fn named(name: impl Into<Box<str>>) -> Self {
        let (credential, credential_name) = (None, None);
        let kind = CallerKind::User;
        let named = Named { name: name.into(), credential, kind, credential_name };
        Principal { named: Some(Arc::new(named)) }
    }

    /// The same caller by this credential.
    #[must_use]
    pub fn by(self, credential: CredentialId) -> Self {
        self.change(|named| named.credential = Some(credential))
    }

    /// The same caller by the key or token of this name.
    #[must_use]
    pub fn through(self, kind: CallerKind, credential_name: &str) -> Self {
        self.change(|named| {
            (named.kind, named.credential_name) = (kind, Some(credential_name.into()));
        })
    }

    fn change(self, change: impl FnOnce(&mut Named)) -> Self {
        let named = self.named.map(|named| {
            let mut changed = Named {
                name: named.name.clone(),
                credential: named.credential,
                kind: named.kind,
                credential_name: named.credential_name.clone(),
            };
            change(&mut changed);
            Arc::new(changed)
        });
        Principal { named }
    }

    /// How it proved who it is.
    pub fn kind(&self) -> CallerKind {
        self.named.as_ref().map_or(CallerKind::Anonymous, |named| named.kind)
    }

    /// Which key or token it signed in with, if it was one.
    pub fn credential_name(&self) -> Option<&str> {
        self.named.as_ref()?.credential_name.as_deref()
    }

    /// The verified name; for an anonymous caller the word `anonymous`, which is for people to
    /// read and never to compare: a user may have that name too.
    pub fn name(&self) -> &str {
        self.named.as_ref().map_or("anonymous", |named| &named.name)
    }

    /// What it signed in with, where the store keeps track of that.
    pub fn credential(&self) -> Option<CredentialId> {
        self.named.as_ref().and_then(|named| named.credential)
    }

    /// Whether nobody has signed in.
    pub fn is_anonymous(&self) -> bool {
        self.named.is_none()
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.named {
            Some(named) => write!(f, "Principal({:?})", named.name),
            None => f.write_str("Principal(anonymous)"),
        }
    }
}

/// What a permission is checked on: a queue or topic by its own name (see the module's table).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a> {
    /// `None`: every name that there is or may ever be.
    name: Option<&'a str>,
}

impl<'a> Resource<'a> {
    /// Every queue and topic that there is or may ever be.
    pub const EVERYTHING: Resource<'static> = Resource { name: None };

    /// The name; `None` for [`Resource::EVERYTHING`].
    pub fn name(self) -> Option<&'a str> {
        self.name
    }
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.unwrap_or("*"))
    }
}

impl<'a> From<&'a QueueName> for Resource<'a> {
    /// Dead letters belong to their queue.
    fn from(queue: &'a QueueName) -> Resource<'a> {
        Resource { name: Some(queue.owner().unwrap_or(queue.as_str())) }
    }
}

impl<'a> From<&'a TopicName> for Resource<'a> {
    fn from(topic: &'a TopicName) -> Resource<'a> {
        Resource { name: Some(topic.as_str()) }
    }
}

impl<'a> From<&'a Address> for Resource<'a> {
    fn from(address: &'a Address) -> Resource<'a> {
        match address {
            Address::Queue(queue) => queue.into(),
            Address::Topic(topic) => topic.into(),
        }
    }
}

/// The answer to a caller that lacks a grant. Says who, what, where, and the command that helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// Who asked.
    pub who: Principal,
    /// What was asked for.
    pub action: Action,
    /// On which queue.
    pub queue: String,
}

impl Denied {
    /// The answer to this request.
    pub fn new(who: &Principal, action: Action, on: Resource<'_>) -> Denied {
        Denied { who: who.clone(), action, queue: on.to_string() }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denied { who, action, queue } = self;
        if who.is_anonymous() {
            return write!(
                f,
                "{action} on queue `{queue}` needs credentials and none were given: \
                 sign in as a user that holds the grant `{action} {queue}`"
            );
        }
        write!(
            f,
            "`{who}` may not {action} on queue `{queue}`: \
             `malote user grant {who} {action} '{queue}'` would allow it"
        )
    }
}

impl std::error::Error for Denied {}

/// The answer to an anonymous caller that asks for a list on a server with credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a list needs credentials and none were given: sign in, and it shows what your grants allow"
)]
pub struct SignInRequired;

/// Given to a front end with each request, to say that its caller is authenticated. Until then the server may close the
/// connection to make room for others.
#[derive(Debug, Clone, Default)]
pub struct PeerMark(pub Arc<AtomicBool>);

impl PeerMark {
    /// The caller is authenticated, or need not be.
    pub fn set_known(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Resolves to the version of an [`Access`] once it is another one.
pub type Changed<'a> = Pin<Box<dyn Future<Output = u64> + Send + 'a>>;

/// The one permission check, called by every front end for every operation.
///
/// A check sits on the path of each message: it must not block, wait or do I/O. Both refusals
/// look the same whether or not the queue exists, so that names cannot be guessed.
pub trait Access: Send + Sync {
    /// Whether `who` may do `action` on this queue or topic. A caller whose credential is no
    /// longer valid may do nothing.
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied>;

    /// Whether `who` may ask for a list of queues or topics, which then shows those that `who` may see. An anonymous
    /// caller may where it may do everything; elsewhere it can see nothing, and must sign in.
    fn check_lists(&self, who: &Principal) -> Result<(), SignInRequired> {
        match who.is_anonymous() && self.check(who, Action::Manage, Resource::EVERYTHING).is_err() {
            true => Err(SignInRequired),
            false => Ok(()),
        }
    }

    /// Whether the caller's credential is valid now: nobody who is not known may hold anything.
    fn knows(&self, _who: &Principal) -> bool {
        true
    }

    /// Counts the changes of users, credentials and grants. What was allowed under one version is
    /// checked again under the next.
    fn version(&self) -> u64 {
        0
    }

    /// Waits until the version is another one than `seen`.
    fn changed(&self, _seen: u64) -> Changed<'_> {
        Box::pin(std::future::pending())
    }

    /// Where logins and administrative operations are recorded.
    fn audit(&self) -> &dyn Audit {
        &NoAudit
    }
}

/// Lets everyone do everything: for an engine inside one's own program, and for tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl Access for AllowAll {
    fn check(&self, _who: &Principal, _action: Action, _on: Resource<'_>) -> Result<(), Denied> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_says_who_lacks_what_and_what_would_grant_it() {
        let denied = Denied {
            who: Principal::named("ana"),
            action: Action::Receive,
            queue: "orders".to_owned(),
        };
        assert_eq!(
            denied.to_string(),
            "`ana` may not receive on queue `orders`: \
             `malote user grant ana receive 'orders'` would allow it"
        );
    }

    #[test]
    fn an_anonymous_caller_is_told_to_sign_in() {
        let denied = Denied {
            who: Principal::anonymous(),
            action: Action::Send,
            queue: "orders".to_owned(),
        };
        assert_eq!(
            denied.to_string(),
            "send on queue `orders` needs credentials and none were given: \
             sign in as a user that holds the grant `send orders`"
        );
    }

    #[test]
    fn a_user_called_anonymous_is_not_the_anonymous_caller() {
        assert_ne!(Principal::named("anonymous"), Principal::anonymous());
    }

    #[test]
    fn dead_letters_are_checked_as_their_queue() {
        let queue = QueueName::new("orders").unwrap();
        assert_eq!(Resource::from(&queue.dead_letters()), Resource::from(&queue));
        assert_eq!(Resource::from(&queue).name(), Some("orders"));
        assert_eq!(Resource::EVERYTHING.name(), None);
    }

    #[test]
    fn another_credential_is_another_caller() {
        let ana = |byte: u8| Principal::named("ana").by(CredentialId([byte; 16]));
        assert_eq!(ana(1), ana(1));
        assert_ne!(ana(1), ana(2));
        assert!(Principal::anonymous().by(CredentialId([1; 16])).is_anonymous());
    }

    #[test]
    fn actions_read_back_as_written() {
        for action in Action::ALL {
            assert_eq!(action.to_string().parse(), Ok(action));
        }
        assert!("Send".parse::<Action>().is_err());
    }
}
