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

/// What a caller wants to do with a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Send messages, schedule them, and cancel schedules.
    Send,
    /// Lease, settle, renew, peek, hold sessions and read or write their state.
    Receive,
    /// Declare, change, delete, purge, pause, redrive.
    Manage,
}

impl Action {
    /// Every action, in reading order.
    pub const ALL: [Action; 3] = [Action::Send, Action::Receive, Action::Manage];

    /// The name used in grants, commands and logs.
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

/// The text names no [`Action`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an action: use send, receive or manage")]
pub struct UnknownAction {
    /// The text as written.
    pub text: String,
}

/// The caller behind a connection or a request. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// `None` for an anonymous caller.
    named: Option<Arc<Named>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Named {
    name: Box<str>,
    credential: Option<CredentialId>,
    kind: CallerKind,
    /// The name of the key or token, if it was one.
    credential_name: Option<Box<str>>,
}

/// Identifies the password, key or token that a caller signed in with. A changed secret is a new credential, so that
/// open connections of the old one can be revoked.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CredentialId(pub [u8; 16]);

impl Principal {
    /// A caller without a credential.
    pub const fn anonymous() -> Self {
        Principal { named: None }
    }

    /// A caller with a verified credential.
    pub fn named(name: impl Into<Box<str>>) -> Self {
        let (credential, credential_name) = (None, None);
        let kind = CallerKind::User;
        let named = Named { name: name.into(), credential, kind, credential_name };
        Principal { named: Some(Arc::new(named)) }
    }

    /// The same caller, signed in with this credential.
    #[must_use]
    pub fn by(self, credential: CredentialId) -> Self {
        self.change(|named| named.credential = Some(credential))
    }

    /// The same caller, signed in with the key or token of this name.
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

    /// How the caller was authenticated.
    pub fn kind(&self) -> CallerKind {
        self.named.as_ref().map_or(CallerKind::Anonymous, |named| named.kind)
    }

    /// The name of the key or token that the caller signed in with, if any.
    pub fn credential_name(&self) -> Option<&str> {
        self.named.as_ref()?.credential_name.as_deref()
    }

    /// The verified name, or `anonymous`. For display only: a user may also be named `anonymous`.
    pub fn name(&self) -> &str {
        self.named.as_ref().map_or("anonymous", |named| &named.name)
    }

    /// The credential, if the store tracks it.
    pub fn credential(&self) -> Option<CredentialId> {
        self.named.as_ref().and_then(|named| named.credential)
    }

    /// Whether the caller has not signed in.
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

/// What a permission is checked on: a queue or topic, by its own name (see the table of this module).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a> {
    /// `None` for all queues and topics, existing or not.
    name: Option<&'a str>,
    /// The exchange that a message to a queue goes through.
    through: Option<&'a str>,
}

impl<'a> Resource<'a> {
    /// All queues and topics, existing or not.
    pub const EVERYTHING: Resource<'static> = Resource { name: None, through: None };

    /// The name; `None` for [`Resource::EVERYTHING`].
    pub fn name(self) -> Option<&'a str> {
        self.name
    }

    fn named(name: &'a str) -> Resource<'a> {
        Resource { name: Some(name), through: None }
    }

    /// The queue, as the target of a message that goes through an exchange which exists only by name, RabbitMQ's default
    /// exchange. Grants are checked on the queue, RabbitMQ's permissions on the exchange.
    #[must_use]
    pub fn through(self, exchange: &'a TopicName) -> Resource<'a> {
        Resource { through: Some(exchange.as_str()), ..self }
    }

    /// The name that RabbitMQ's permissions are checked on; `None` for [`Resource::EVERYTHING`].
    pub fn permission_name(self) -> Option<&'a str> {
        self.through.or(self.name)
    }
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.unwrap_or("*"))
    }
}

impl<'a> From<&'a QueueName> for Resource<'a> {
    /// A dead-letter set belongs to its queue.
    fn from(queue: &'a QueueName) -> Resource<'a> {
        Resource::named(queue.owner().unwrap_or(queue.as_str()))
    }
}

impl<'a> From<&'a TopicName> for Resource<'a> {
    fn from(topic: &'a TopicName) -> Resource<'a> {
        Resource::named(topic.as_str())
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

/// The refusal for a caller that lacks a grant. It names the caller, the action, the queue, and the command that grants
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The authenticated caller.
    pub who: Principal,
    /// The action asked for.
    pub action: Action,
    /// The queue that was refused.
    pub queue: String,
}

impl Denied {
    /// Builds the refusal.
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

/// The refusal for an anonymous caller that lists queues on a server with credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a list needs credentials and none were given: sign in, and it shows what your grants allow"
)]
pub struct SignInRequired;

/// Passed to a front end with each connection. The front end reports that the caller is authenticated; until then the
/// server may close the connection to make room for others.
#[derive(Debug, Clone, Default)]
pub struct PeerMark(pub Arc<AtomicBool>);

impl PeerMark {
    /// Reports that the caller is authenticated, or need not be.
    pub fn set_known(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Resolves to the new version of an [`Access`] when it changes.
pub type Changed<'a> = Pin<Box<dyn Future<Output = u64> + Send + 'a>>;

/// The permission check that every front end makes for every operation.
///
/// It is called for each message, so it must not block, wait or do I/O. A refusal looks the same whether or not the
/// queue exists, so that names cannot be guessed.
pub trait Access: Send + Sync {
    /// Checks whether `who` may do `action` on this queue or topic. A caller with an invalid credential may do nothing.
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied>;

    /// Checks whether `who` may list queues or topics. The list then shows only those that `who` may see. An anonymous
    /// caller may list them only if it may do everything; otherwise it must sign in.
    fn check_lists(&self, who: &Principal) -> Result<(), SignInRequired> {
        match who.is_anonymous() && self.check(who, Action::Manage, Resource::EVERYTHING).is_err() {
            true => Err(SignInRequired),
            false => Ok(()),
        }
    }

    /// Whether the caller's credential is still valid.
    fn knows(&self, _who: &Principal) -> bool {
        true
    }

    /// A version that changes with users, credentials and grants. Permissions granted under one version are checked
    /// again under the next.
    fn version(&self) -> u64 {
        0
    }

    /// Waits until the version differs from `seen`.
    fn changed(&self, _seen: u64) -> Changed<'_> {
        Box::pin(std::future::pending())
    }

    /// The audit log for logins and administrative operations.
    fn audit(&self) -> &dyn Audit {
        &NoAudit
    }
}

/// Allows everything: for an engine embedded in a program, and for tests.
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
