//! Tags and permissions of RabbitMQ, indexed for checks.
//!
//! A permission names a virtual host and three expressions. It is checked on a name as RabbitMQ's clients see it: the
//! queue `~dev/orders` is `orders` in the virtual host `dev`. Queues and topics of other protocols are in `/`.

use super::file::UserRecord;
use malote_front_amqp091::names;
use malote_front_amqp091::users::{TopicPermission, VhostPermission};
use malote_model::access::{Action, Resource};
use std::collections::HashMap;
use std::sync::Arc;

/// The rights of all users that have tags or permissions.
#[derive(Default)]
pub(super) struct RabbitmqRights {
    users: HashMap<Arc<str>, UserRights>,
}

#[derive(Default)]
struct UserRights {
    tags: Vec<String>,
    permissions: HashMap<String, VhostPermission>,
    topics: HashMap<(String, String), TopicPermission>,
}

impl RabbitmqRights {
    pub fn of(users: &[UserRecord]) -> RabbitmqRights {
        let mut rights = RabbitmqRights::default();
        for user in users {
            let UserRecord { name, tags, permissions, topic_permissions, .. } = user;
            if tags.is_empty() && permissions.is_empty() && topic_permissions.is_empty() {
                continue;
            }
            let of_user = UserRights {
                tags: tags.clone(),
                permissions: permissions
                    .iter()
                    .map(|one| (one.vhost.clone(), one.clone()))
                    .collect(),
                topics: topic_permissions
                    .iter()
                    .map(|one| ((one.vhost.clone(), one.exchange.clone()), one.clone()))
                    .collect(),
            };
            rights.users.insert(name.as_str().into(), of_user);
        }
        rights
    }

    /// Whether a permission allows the action. A permission never covers the whole server.
    pub fn permits(&self, user: &str, action: Action, on: Resource<'_>) -> bool {
        let Some(rights) = self.users.get(user).filter(|rights| !rights.permissions.is_empty())
        else {
            return false;
        };
        let Some(name) = on.permission_name() else { return false };
        let (vhost, shown) = names::split(name);
        let permission = rights.permissions.get(vhost.as_ref());
        permission.is_some_and(|permission| permission.pattern(action).permits(&shown))
    }

    pub fn has_permission(&self, user: &str, vhost: &str) -> bool {
        self.users.get(user).is_some_and(|rights| rights.permissions.contains_key(vhost))
    }

    pub fn tags(&self, user: &str) -> Vec<String> {
        self.users.get(user).map_or_else(Vec::new, |rights| rights.tags.clone())
    }

    /// Whether a routing key is allowed. An exchange without a topic permission allows every key.
    pub fn may_use_key(
        &self,
        user: &str,
        action: Action,
        vhost: &str,
        exchange: &str,
        key: &str,
    ) -> bool {
        let Some(rights) = self.users.get(user).filter(|rights| !rights.topics.is_empty()) else {
            return true;
        };
        let topic = rights.topics.get(&(vhost.to_owned(), exchange.to_owned()));
        topic.is_none_or(|topic| match action {
            Action::Send => topic.write.permits(key),
            Action::Receive => topic.read.permits(key),
            Action::Manage => true,
        })
    }
}
