//! Changes of virtual hosts, policies and parameters: checked, stored, recorded.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use malote_engine::EngineError;
use malote_model::{AuditAction, AuditEntry, AuditProtocol, CallerKind};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::Front;
use crate::metadata::{MetadataError, VhostFacts};
use crate::names::{DEFAULT_VHOST, VirtualHost};
use crate::policy::{Policy, PolicyKind};
use crate::users::{UserChange, UserError};
use crate::vhosts::PREDECLARED;

/// Components of runtime parameters. Others belong to plugins that do not exist here.
const VHOST_LIMITS: &str = "vhost-limits";
pub(crate) const POLICY: &str = "policy";
pub(crate) const OPERATOR_POLICY: &str = "operator_policy";

/// Passes over a virtual host that is deleted. Its connections are closed, but may still declare something.
const DELETE_PASSES_MAX: usize = 16;

/// Queues that are deleted at the same time.
const DELETE_TOGETHER_MAX: usize = 64;

/// The pause after a deletion that failed.
const RETRY: Duration = Duration::from_secs(5);

/// Why something could not be administered.
#[derive(Debug, thiserror::Error)]
pub enum AdministrationError {
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error(transparent)]
    Users(#[from] UserError),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

fn invalid(why: impl Into<String>) -> AdministrationError {
    MetadataError::Invalid(why.into()).into()
}

/// The caller of changes that the server makes itself, for the audit log.
pub fn by_server() -> AuditEntry {
    let entry = AuditEntry::new(AuditProtocol::Server, AuditAction::Update);
    entry.claimed(CallerKind::Server.as_str(), CallerKind::Server)
}

impl Front {
    /// Finds the virtual hosts that exist.
    pub async fn load_vhosts(&self) -> Result<(), AdministrationError> {
        let mut after = None;
        loop {
            let page = self.engine.topics_page(after).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.name.clone());
            for facts in &page {
                let (vhost, shown) = crate::names::split(facts.name.as_str());
                if shown == PREDECLARED[0].0 && !self.is_deleting(&vhost) {
                    self.vhosts.lock().insert(vhost.into_owned());
                }
            }
        }
        Ok(())
    }

    /// Continues deletions of virtual hosts that were interrupted or failed, until `stop`: at start, after every change,
    /// and after a pause.
    pub async fn keep_vhosts_deleted(self: Arc<Self>, stop: CancellationToken) {
        let mut changes = self.metadata.subscribe();
        loop {
            changes.borrow_and_update();
            let again = async {
                match self.finish_deletions().await {
                    Ok(()) => drop(changes.changed().await),
                    Err(error) => {
                        tracing::warn!(%error, front = "rabbitmq", "a virtual host could not be deleted; trying again");
                        tokio::time::sleep(RETRY).await;
                    }
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = again => {}
            }
        }
    }

    /// Deletes what is left of virtual hosts that are being deleted.
    pub async fn finish_deletions(&self) -> Result<(), AdministrationError> {
        let metadata = self.metadata.current();
        for (name, _) in metadata.vhosts.iter().filter(|(_, facts)| facts.deleting) {
            self.finish_deletion(name).await?;
        }
        Ok(())
    }

    /// The virtual hosts, by name. The default one always exists; its exchanges are created when it is first used.
    pub fn vhost_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.vhosts.lock().iter().cloned().collect();
        names.push(DEFAULT_VHOST.to_owned());
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What is stored about a virtual host.
    pub fn vhost_facts(&self, name: &str) -> VhostFacts {
        let facts = self.metadata.current().vhosts.get(name).cloned();
        facts.unwrap_or_else(|| match name {
            DEFAULT_VHOST => {
                let description = "Default virtual host".to_owned();
                VhostFacts { description, ..VhostFacts::default() }
            }
            _ => VhostFacts::default(),
        })
    }

    pub(crate) fn is_deleting(&self, name: &str) -> bool {
        self.metadata.current().vhosts.get(name).is_some_and(|facts| facts.deleting)
    }

    /// Creates a virtual host, or changes what is stored about it. Returns whether it is new.
    pub async fn put_vhost(
        &self,
        name: &str,
        facts: VhostFacts,
    ) -> Result<bool, AdministrationError> {
        if self.is_deleting(name) {
            return Err(invalid(format!("virtual host '{name}' is being deleted: try again")));
        }
        let is_new = !self.has_vhost(name).await?;
        let key = name.to_owned();
        self.metadata.change(move |metadata| metadata.put_vhost(&key, facts)).await?;
        if is_new {
            self.create_vhost(name).await?;
        }
        Ok(is_new)
    }

    /// Deletes a virtual host with its queues, exchanges, policies, parameters and permissions. Returns whether it
    /// existed. Once the deletion is stored and `entry` is recorded, it continues even if the caller stops waiting. After
    /// an error, it can be asked for again.
    pub async fn delete_vhost(
        self: &Arc<Self>,
        name: &str,
        entry: AuditEntry,
    ) -> Result<bool, AdministrationError> {
        let (front, name) = (self.clone(), name.to_owned());
        let deleting = tokio::spawn(async move { front.delete_whole_vhost(&name, entry).await });
        deleting.await.unwrap_or_else(|_| Err(invalid("the deletion was interrupted")))
    }

    async fn delete_whole_vhost(
        &self,
        name: &str,
        entry: AuditEntry,
    ) -> Result<bool, AdministrationError> {
        if name == DEFAULT_VHOST {
            return Err(invalid(
                "the virtual host '/' cannot be deleted: it contains the queues of all protocols",
            ));
        }
        if self.is_deleting(name) {
            self.finish_deletion(name).await?;
            return Ok(true);
        }
        if !self.has_vhost(name).await? {
            return Ok(false);
        }
        let (key, facts) = (name.to_owned(), self.vhost_facts(name));
        let deleting = VhostFacts { deleting: true, ..facts };
        self.metadata.change(move |metadata| metadata.put_vhost(&key, deleting)).await?;
        self.access.audit().record(entry);
        // Connections learn of it and close.
        self.vhosts.lock().remove(name);
        self.finish_deletion(name).await?;
        Ok(true)
    }

    async fn finish_deletion(&self, name: &str) -> Result<(), AdministrationError> {
        // One at a time: the virtual host may be created again as soon as the first has finished.
        let _turn = self.deletions.lock().await;
        if !self.is_deleting(name) {
            return Ok(());
        }
        self.vhosts.lock().remove(name);
        let forget = UserChange::ForgetVhost { vhost: name.to_owned() };
        if self.users.list().iter().any(|user| {
            user.permissions.iter().any(|one| one.vhost == name)
                || user.topic_permissions.iter().any(|one| one.vhost == name)
        }) {
            self.users.change(vec![forget], by_server()).await?;
        }
        let mut is_empty = false;
        for _ in 0..DELETE_PASSES_MAX {
            is_empty = self.delete_objects(name).await?;
            if is_empty {
                break;
            }
        }
        if !is_empty {
            return Err(invalid(format!("virtual host '{name}' is in use: try again")));
        }
        let key = name.to_owned();
        let removed = self.metadata.change(move |metadata| {
            metadata.remove_vhost(&key);
            Ok(())
        });
        Ok(removed.await?)
    }

    /// Deletes the queues and exchanges of a virtual host, page by page. Returns whether there were none.
    async fn delete_objects(&self, name: &str) -> Result<bool, EngineError> {
        let host = VirtualHost::new(name);
        let (mut is_empty, mut after) = (true, None);
        loop {
            let page = self.engine.list_page(after).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.name.clone());
            let own: Vec<_> = page.iter().filter(|facts| host.owns(facts.name.as_str())).collect();
            is_empty &= own.is_empty();
            // Together, so that they share the syncs of the disk.
            for some in own.chunks(DELETE_TOGETHER_MAX) {
                let deleted = some.iter().map(|facts| self.engine.delete(facts.name.clone()));
                join_all(deleted).await.into_iter().try_for_each(gone)?;
            }
        }
        let mut after = None;
        loop {
            let page = self.engine.topics_page(after).await?;
            let Some(last) = page.last() else { return Ok(is_empty) };
            after = Some(last.name.clone());
            for facts in page.iter().filter(|facts| host.owns(facts.name.as_str())) {
                is_empty = false;
                gone(self.engine.delete_topic(facts.name.clone()).await)?;
            }
        }
    }

    /// Sets a policy from RabbitMQ's JSON. Returns whether it is new.
    pub async fn put_policy(
        &self,
        kind: PolicyKind,
        vhost: &str,
        name: &str,
        object: &Map<String, Value>,
    ) -> Result<bool, AdministrationError> {
        self.require_vhost(vhost).await?;
        let policy = Policy::from_json(kind, object).map_err(invalid)?;
        let (vhost, name) = (vhost.to_owned(), name.to_owned());
        let changed =
            self.metadata.change(move |data| data.put_policy(kind, &vhost, &name, policy));
        Ok(changed.await?)
    }

    /// Returns whether the policy existed.
    pub async fn delete_policy(
        &self,
        kind: PolicyKind,
        vhost: &str,
        name: &str,
    ) -> Result<bool, AdministrationError> {
        let (vhost, name) = (vhost.to_owned(), name.to_owned());
        let changed = self.metadata.change(move |data| Ok(data.remove_policy(kind, &vhost, &name)));
        Ok(changed.await?)
    }

    /// Sets a runtime parameter. Policies are parameters, too. Returns whether it is new.
    pub async fn put_parameter(
        &self,
        component: &str,
        vhost: &str,
        name: &str,
        value: Value,
    ) -> Result<bool, AdministrationError> {
        let kind = match component {
            POLICY => Some(PolicyKind::User),
            OPERATOR_POLICY => Some(PolicyKind::Operator),
            VHOST_LIMITS => None,
            _ => {
                let why = format!("Validation failed\n\ncomponent {component} not found\n");
                return Err(invalid(why));
            }
        };
        if let Some(kind) = kind {
            let Value::Object(object) = value else {
                return Err(invalid("Validation failed\n\nthe value of a policy is an object\n"));
            };
            return self.put_policy(kind, vhost, name, &object).await;
        }
        self.require_vhost(vhost).await?;
        let key = [component, vhost, name].map(str::to_owned);
        let changed =
            self.metadata.change(move |data| data.put_parameter(&key[0], &key[1], &key[2], value));
        Ok(changed.await?)
    }

    /// Returns whether the parameter existed.
    pub async fn delete_parameter(
        &self,
        component: &str,
        vhost: &str,
        name: &str,
    ) -> Result<bool, AdministrationError> {
        let kind = match component {
            POLICY => Some(PolicyKind::User),
            OPERATOR_POLICY => Some(PolicyKind::Operator),
            _ => None,
        };
        if let Some(kind) = kind {
            return self.delete_policy(kind, vhost, name).await;
        }
        let key = (component.to_owned(), vhost.to_owned(), name.to_owned());
        Ok(self.metadata.change(move |data| Ok(data.parameters.remove(&key).is_some())).await?)
    }

    pub async fn put_global_parameter(
        &self,
        name: &str,
        value: Value,
    ) -> Result<bool, AdministrationError> {
        let name = name.to_owned();
        Ok(self.metadata.change(move |data| data.put_global_parameter(&name, value)).await?)
    }

    pub async fn delete_global_parameter(&self, name: &str) -> Result<bool, AdministrationError> {
        let name = name.to_owned();
        let changed =
            self.metadata.change(move |data| Ok(data.global_parameters.remove(&name).is_some()));
        Ok(changed.await?)
    }

    async fn require_vhost(&self, vhost: &str) -> Result<(), AdministrationError> {
        match self.has_vhost(vhost).await? {
            true => Ok(()),
            false => Err(MetadataError::NoVhost(vhost.to_owned()).into()),
        }
    }
}

/// Success if the object no longer exists: another client may have deleted it.
fn gone(result: Result<(), EngineError>) -> Result<(), EngineError> {
    use malote_model::Refusal;
    match result {
        Err(EngineError::Refused(
            Refusal::QueueNotFound { .. } | Refusal::TopicNotFound { .. },
        )) => Ok(()),
        other => other,
    }
}
