//! Imports definitions, as RabbitMQ does it: kind by kind; within a kind, everything that can be imported. After a kind
//! with an error, the following kinds are not imported. A queue or exchange that exists with other settings is left alone.

use malote_model::AuditEntry;

use super::topology::Imported;
use super::{Definitions, UserDefinition, VhostDefinition};
use crate::Front;
use crate::administration::AdministrationError;
use crate::metadata::VhostFacts;
use crate::name_expression::NameExpression;
use crate::names::{DEFAULT_VHOST, VirtualHost};
use crate::policy::PolicyKind;
use crate::users::{NewPassword, StoredPassword, TopicPermission, UserChange, VhostPermission};

/// Errors that are listed; the rest is counted.
const ERRORS_SHOWN: usize = 20;

/// What an import did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Objects that were left alone, by name, with the reason.
    pub skipped: Vec<String>,
}

/// Objects that could not be imported, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportError {
    pub reasons: Vec<String>,
}

impl std::fmt::Display for ImportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.reasons[..self.reasons.len().min(ERRORS_SHOWN)];
        f.write_str(&shown.join("\n"))?;
        match self.reasons.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for ImportError {}

/// Collects the errors of one kind of objects.
#[derive(Default)]
struct Errors(Vec<String>);

impl Errors {
    fn note<T, E: std::fmt::Display>(&mut self, object: &str, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.push(format!("{object}: {error}"));
                None
            }
        }
    }

    fn finish(self) -> Result<(), ImportError> {
        if self.0.is_empty() { Ok(()) } else { Err(ImportError { reasons: self.0 }) }
    }
}

impl Front {
    /// Imports the definitions of a broker; into one virtual host, if it is given. `by` is the caller, for the audit log.
    pub async fn import_definitions(
        &self,
        definitions: Definitions,
        vhost: Option<&str>,
        by: &AuditEntry,
    ) -> Result<ImportReport, ImportError> {
        if vhost.is_none() {
            self.import_broker(&definitions, by).await?;
        }
        let host_of = |own: &Option<String>| -> VirtualHost {
            VirtualHost::new(vhost.or(own.as_deref()).unwrap_or(DEFAULT_VHOST))
        };
        let mut errors = Errors::default();
        for one in &definitions.parameters {
            let host = host_of(&one.vhost);
            let put = self.put_parameter(&one.component, host.name(), &one.name, one.value.clone());
            errors.note(&format!("parameter '{}'", one.name), put.await);
        }
        errors.finish()?;
        let mut errors = Errors::default();
        for one in definitions.global_parameters.iter().flatten().filter(|_| vhost.is_none()) {
            let put = self.put_global_parameter(&one.name, one.value.clone()).await;
            errors.note(&format!("global parameter '{}'", one.name), put);
        }
        errors.finish()?;
        let mut errors = Errors::default();
        for one in &definitions.policies {
            let host = host_of(&one.vhost);
            let put = self.put_policy(PolicyKind::User, host.name(), &one.name, &one.policy).await;
            errors.note(&format!("policy '{}' in vhost '{}'", one.name, host.name()), put);
        }
        errors.finish()?;
        self.import_topology(&definitions, host_of).await
    }

    async fn import_topology(
        &self,
        definitions: &Definitions,
        host_of: impl Fn(&Option<String>) -> VirtualHost,
    ) -> Result<ImportReport, ImportError> {
        let mut report = ImportReport::default();
        let mut note = |object: String, imported: Option<Imported>| {
            if let Some(Imported::Skipped(why)) = imported {
                tracing::warn!(%object, why, front = "rabbitmq", "not imported");
                report.skipped.push(format!("{object}: {why}"));
            }
        };
        let mut errors = Errors::default();
        for one in &definitions.queues {
            let host = host_of(&one.vhost);
            let object = format!("queue '{}' in vhost '{}'", one.name, host.name());
            if self.vhost_exists(&mut errors, &object, &host).await {
                let imported = self.import_queue(&host, one).await;
                note(object.clone(), errors.note(&object, imported));
            }
        }
        errors.finish()?;
        let mut errors = Errors::default();
        for one in &definitions.exchanges {
            let host = host_of(&one.vhost);
            let object = format!("exchange '{}' in vhost '{}'", one.name, host.name());
            if self.vhost_exists(&mut errors, &object, &host).await {
                let imported = self.import_exchange(&host, one).await;
                note(object.clone(), errors.note(&object, imported));
            }
        }
        errors.finish()?;
        let mut errors = Errors::default();
        for one in &definitions.bindings {
            let host = host_of(&one.vhost);
            let object = format!(
                "binding of {} '{}' to exchange '{}' in vhost '{}'",
                one.destination_type.as_str(),
                one.destination,
                one.source,
                host.name()
            );
            if self.vhost_exists(&mut errors, &object, &host).await {
                let imported = self.import_binding(&host, one).await;
                note(object.clone(), errors.note(&object, imported));
            }
        }
        errors.finish()?;
        Ok(report)
    }

    async fn vhost_exists(&self, errors: &mut Errors, object: &str, host: &VirtualHost) -> bool {
        let found = match self.has_vhost(host.name()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("no such vhost '{}'", host.name())),
            Err(error) => Err(error.to_string()),
        };
        errors.note(object, found).is_some()
    }

    /// Users, virtual hosts and permissions.
    async fn import_broker(
        &self,
        definitions: &Definitions,
        by: &AuditEntry,
    ) -> Result<(), ImportError> {
        let users = definitions.users.iter().flatten();
        let changes: Vec<UserChange> = users.map(user_change).collect();
        self.change_users("users", changes, by).await?;
        let mut errors = Errors::default();
        for one in definitions.vhosts.iter().flatten() {
            let put = self.import_vhost(one).await;
            errors.note(&format!("vhost '{}'", one.name), put);
        }
        errors.finish()?;
        let mut errors = Errors::default();
        let mut changes = Vec::new();
        for one in definitions.permissions.iter().flatten() {
            let object = format!("permission of user '{}' in vhost '{}'", one.user, one.vhost);
            if !self.vhost_exists(&mut errors, &object, &VirtualHost::new(&one.vhost)).await {
                continue;
            }
            let patterns =
                [&one.configure, &one.write, &one.read].map(|text| NameExpression::new(text));
            let [configure, write, read] = patterns.map(|pattern| errors.note(&object, pattern));
            if let (Some(configure), Some(write), Some(read)) = (configure, write, read) {
                let permission =
                    VhostPermission { vhost: one.vhost.clone(), configure, write, read };
                changes.push(UserChange::Permit { user: one.user.clone(), permission });
            }
        }
        errors.finish()?;
        self.change_users("permissions", changes, by).await?;
        let mut errors = Errors::default();
        let mut changes = Vec::new();
        for one in definitions.topic_permissions.iter().flatten() {
            let object =
                format!("topic permission of user '{}' in vhost '{}'", one.user, one.vhost);
            let [write, read] =
                [&one.write, &one.read].map(|text| errors.note(&object, NameExpression::new(text)));
            if let (Some(write), Some(read)) = (write, read) {
                let (vhost, exchange) = (one.vhost.clone(), one.exchange.clone());
                let permission = TopicPermission { vhost, exchange, write, read };
                changes.push(UserChange::PermitTopic { user: one.user.clone(), permission });
            }
        }
        errors.finish()?;
        self.change_users("topic permissions", changes, by).await
    }

    async fn change_users(
        &self,
        object: &str,
        changes: Vec<UserChange>,
        by: &AuditEntry,
    ) -> Result<(), ImportError> {
        if changes.is_empty() {
            return Ok(());
        }
        let changed = self.users.change(changes, by.clone()).await;
        changed.map_err(|error| ImportError { reasons: vec![format!("{object}: {error}")] })
    }

    async fn import_vhost(&self, one: &VhostDefinition) -> Result<bool, AdministrationError> {
        let text = |key: &str| one.metadata.get(key).and_then(serde_json::Value::as_str);
        let mut facts = VhostFacts {
            description: one.description.clone(),
            tags: one.tags.clone(),
            default_queue_type: one.default_queue_type.clone().filter(|kind| kind != "undefined"),
            deleting: false,
        };
        if facts.description.is_empty() {
            facts.description = text("description").unwrap_or_default().to_owned();
        }
        if facts.tags.is_empty() {
            let tags = one.metadata.get("tags").and_then(super::tags_of);
            facts.tags = tags.unwrap_or_default();
        }
        self.put_vhost(&one.name, facts).await
    }
}

fn user_change(user: &UserDefinition) -> UserChange {
    let password = match (&user.malote_password_hash, &user.password) {
        (Some(hash), _) => NewPassword::Stored(StoredPassword::Native(hash.clone())),
        (None, Some(password)) if user.password_hash.is_empty() && !password.is_empty() => {
            NewPassword::Plain(password.clone())
        }
        _ if user.password_hash.is_empty() => NewPassword::None,
        _ => NewPassword::Stored(StoredPassword::Rabbitmq {
            hash: user.password_hash.clone(),
            algorithm: user.hashing_algorithm,
        }),
    };
    UserChange::Put { name: user.name.clone(), password, tags: user.tags.clone() }
}
