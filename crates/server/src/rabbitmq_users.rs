//! The credential store, as the RabbitMQ front end uses it.

use std::net::IpAddr;
use std::sync::Arc;

use malote_front_amqp091 as rabbitmq;
use malote_model::AuditEntry;
use malote_model::access::{Access, Action, Principal};
use rabbitmq::users::{Changing, UserChange, UserEntry, UserError};

use crate::credentials::{CredentialsError, Store};

/// Users of RabbitMQ clients and of the management API.
pub(crate) struct RabbitmqUsers {
    pub store: Arc<Store>,
    /// Its audit log gets the changes.
    pub access: Arc<dyn Access>,
}

impl rabbitmq::Keys for RabbitmqUsers {
    fn is_open(&self) -> bool {
        self.store.is_open()
    }

    fn verify_password<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        peer: IpAddr,
    ) -> rabbitmq::Verified<'a> {
        Box::pin(self.store.verify_password(user, password, peer))
    }
}

impl rabbitmq::users::Users for RabbitmqUsers {
    fn tags(&self, who: &Principal) -> Vec<String> {
        self.store.tags(who)
    }

    fn may_enter(&self, who: &Principal, vhost: &str) -> bool {
        self.store.may_enter(who, vhost)
    }

    fn has_permission(&self, who: &Principal, vhost: &str) -> bool {
        self.store.has_permission(who, vhost)
    }

    fn may_use_key(
        &self,
        who: &Principal,
        action: Action,
        vhost: &str,
        exchange: &str,
        key: &str,
    ) -> bool {
        self.store.may_use_key(who, action, vhost, exchange, key)
    }

    fn list(&self) -> Vec<UserEntry> {
        self.store.user_entries()
    }

    fn change(&self, changes: Vec<UserChange>, by: AuditEntry) -> Changing<'_> {
        let (store, access) = (self.store.clone(), self.access.clone());
        // Recorded by the same task: the caller may leave before the answer.
        let work = move || {
            store.change_users_as(changes, |action, object, detail| {
                let entry = AuditEntry { action, ..by.clone() };
                access.audit().record(entry.on(object).detail(detail));
            })
        };
        Box::pin(async move {
            match tokio::task::spawn_blocking(work).await {
                Ok(changed) => changed.map_err(user_error),
                Err(_) => Err(UserError::Failed("the change was interrupted".to_owned())),
            }
        })
    }
}

fn user_error(error: CredentialsError) -> UserError {
    match error {
        CredentialsError::NotFound { name, .. } => UserError::NotFound(name),
        CredentialsError::BadName { .. }
        | CredentialsError::BadPassword
        | CredentialsError::BadPermission { .. } => UserError::Invalid(error.to_string()),
        CredentialsError::Unreadable { .. }
        | CredentialsError::Unwritable { .. }
        | CredentialsError::Malformed { .. }
        | CredentialsError::Exists { .. }
        | CredentialsError::NotEmpty { .. }
        | CredentialsError::ActsForUser { .. } => UserError::Failed(error.to_string()),
    }
}
