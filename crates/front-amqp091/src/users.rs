//! Users, tags and permissions as RabbitMQ has them. The server keeps them with its other credentials and implements
//! [`Users`].
//!
//! | tag | may, over the management API |
//! |---|---|
//! | `management` | see and change objects in virtual hosts with permissions |
//! | `policymaker` | and change policies and parameters there |
//! | `monitoring` | see connections, nodes and all virtual hosts |
//! | `administrator` | everything, users included |
//! | `impersonator` | publish messages with the `user-id` of another user (over AMQP) |
//!
//! Any other tag is kept without a meaning.

use std::future::Future;
use std::pin::Pin;

use malote_model::{Action, AuditEntry, Principal};
use serde::{Deserialize, Serialize};

use crate::name_expression::NameExpression;

pub const ADMINISTRATOR: &str = "administrator";
pub const MONITORING: &str = "monitoring";
pub const POLICYMAKER: &str = "policymaker";
pub const MANAGEMENT: &str = "management";
pub const IMPERSONATOR: &str = "impersonator";

/// What a user may do in one virtual host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VhostPermission {
    pub vhost: String,
    /// Names that the user may declare and delete.
    pub configure: NameExpression,
    /// Names that the user may publish to, or bind as a destination.
    pub write: NameExpression,
    /// Names that the user may consume from, or bind as a source.
    pub read: NameExpression,
}

impl VhostPermission {
    /// The expression that decides about an action.
    pub fn pattern(&self, action: Action) -> &NameExpression {
        match action {
            Action::Manage => &self.configure,
            Action::Send => &self.write,
            Action::Receive => &self.read,
        }
    }
}

/// Which routing keys a user may use on one exchange, of any type. Without a topic permission, all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicPermission {
    pub vhost: String,
    pub exchange: String,
    pub write: NameExpression,
    pub read: NameExpression,
}

/// A user, as the management API and definitions show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserEntry {
    pub name: String,
    pub password: StoredPassword,
    pub tags: Vec<String>,
    pub permissions: Vec<VhostPermission>,
    pub topic_permissions: Vec<TopicPermission>,
}

/// How a password is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredPassword {
    /// The user cannot sign in with a password.
    None,
    /// RabbitMQ's form: base64 of a salt of four bytes and the hash.
    Rabbitmq { hash: String, algorithm: HashAlgorithm },
    /// Malote's own form, which RabbitMQ cannot check.
    Native(String),
}

/// RabbitMQ's hash functions for passwords.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum HashAlgorithm {
    #[default]
    #[serde(rename = "rabbit_password_hashing_sha256")]
    Sha256,
    #[serde(rename = "rabbit_password_hashing_sha512")]
    Sha512,
}

/// The password of a user that is created or replaced.
#[derive(Clone, PartialEq, Eq)]
pub enum NewPassword {
    /// No password: the user cannot sign in with one.
    None,
    Plain(String),
    Stored(StoredPassword),
}

/// A change of users or permissions.
#[derive(Clone, PartialEq, Eq)]
pub enum UserChange {
    /// Creates a user, or replaces the password and tags of an existing one.
    Put {
        name: String,
        password: NewPassword,
        tags: Vec<String>,
    },
    Delete {
        name: String,
    },
    Permit {
        user: String,
        permission: VhostPermission,
    },
    Forbid {
        user: String,
        vhost: String,
    },
    PermitTopic {
        user: String,
        permission: TopicPermission,
    },
    /// Removes the topic permissions of a virtual host; of one exchange, if it is given.
    ForbidTopic {
        user: String,
        vhost: String,
        exchange: Option<String>,
    },
    /// Removes all permissions in a virtual host, which is deleted.
    ForgetVhost {
        vhost: String,
    },
}

/// Why users could not be changed. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    #[error("user `{0}` does not exist")]
    NotFound(String),
    /// The change is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The store cannot be written.
    #[error("{0}")]
    Failed(String),
}

/// Future result of a change.
pub type Changing<'a> = Pin<Box<dyn Future<Output = Result<(), UserError>> + Send + 'a>>;

/// The users of the broker and what they may do.
pub trait Users: Send + Sync {
    /// The tags of a caller.
    fn tags(&self, who: &Principal) -> Vec<String>;
    /// Whether the caller may open a connection to the virtual host.
    fn may_enter(&self, who: &Principal, vhost: &str) -> bool;
    /// Whether the caller has permissions, not only grants, in the virtual host.
    fn has_permission(&self, who: &Principal, vhost: &str) -> bool;
    /// Whether the caller's topic permissions allow a routing key.
    fn may_use_key(
        &self,
        who: &Principal,
        action: Action,
        vhost: &str,
        exchange: &str,
        key: &str,
    ) -> bool;
    /// All users, by name.
    fn list(&self) -> Vec<UserEntry>;
    /// Makes all changes or none, and stores them before it returns. Each change is recorded in the audit log as an entry
    /// of the caller of `by`, whose action and object are ignored.
    fn change(&self, changes: Vec<UserChange>, by: AuditEntry) -> Changing<'_>;
}

/// A broker without users: everyone may do everything. For tests, and for an engine embedded in a program.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoUsers;

impl Users for NoUsers {
    fn tags(&self, _: &Principal) -> Vec<String> {
        vec![MANAGEMENT.to_owned()]
    }

    fn may_enter(&self, _: &Principal, _: &str) -> bool {
        true
    }

    fn has_permission(&self, _: &Principal, _: &str) -> bool {
        false
    }

    fn may_use_key(&self, _: &Principal, _: Action, _: &str, _: &str, _: &str) -> bool {
        true
    }

    fn list(&self) -> Vec<UserEntry> {
        Vec::new()
    }

    fn change(&self, _: Vec<UserChange>, _: AuditEntry) -> Changing<'_> {
        let error = UserError::Failed("this broker keeps no users".to_owned());
        Box::pin(async { Err(error) })
    }
}
