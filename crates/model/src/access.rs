//! Who may do what on which queue.
//!
//! Every front end asks one [`Access`] before it calls the engine; the engine itself knows no
//! callers. How a caller proves who it is (password, token, signature) is the front end's task
//! and ends in a [`Principal`]. Users, grants and their storage live in the server.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

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
    name: Option<Arc<str>>,
}

impl Principal {
    /// A caller that showed no credential.
    pub const fn anonymous() -> Self {
        Principal { name: None }
    }

    /// A caller whose credential was verified.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Principal { name: Some(name.into()) }
    }

    /// The verified name; for an anonymous caller the word `anonymous`, which is for people to
    /// read and never to compare: a user may have that name too.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("anonymous")
    }

    /// Whether nobody has signed in.
    pub fn is_anonymous(&self) -> bool {
        self.name.is_none()
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "Principal({name:?})"),
            None => f.write_str("Principal(anonymous)"),
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

/// The one permission check, called by every front end for every operation.
///
/// A check sits on the path of each message: it must not block, wait or do I/O. Both refusals
/// look the same whether or not the queue exists, so that names cannot be guessed.
pub trait Access: Send + Sync {
    /// Whether `who` may do `action` on the queue named `queue`.
    fn check(&self, who: &Principal, action: Action, queue: &str) -> Result<(), Denied>;
}

/// Lets everyone do everything: for an engine inside one's own program, and for tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl Access for AllowAll {
    fn check(&self, _who: &Principal, _action: Action, _queue: &str) -> Result<(), Denied> {
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
    fn actions_read_back_as_written() {
        for action in Action::ALL {
            assert_eq!(action.to_string().parse(), Ok(action));
        }
        assert!("Send".parse::<Action>().is_err());
    }
}
