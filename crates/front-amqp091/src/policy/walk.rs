//! Applies changed policies to queues and exchanges that exist.
//!
//! One task reads the lists page by page and updates what differs, so that nothing waits for it. It runs at start, too: a
//! policy that changed shortly before a crash is applied then.

use std::sync::Arc;

use malote_engine::{EngineError, QueueFacts, TopicFacts};
use malote_model::{QueueName, Refusal, TopicKind, TopicName, TopicSpec};
use tokio_util::sync::CancellationToken;

use super::overlay::{ALTERNATE_LABEL, topic_spec_with, wanted};
use super::{EffectivePolicy, overlay};
use crate::Front;
use crate::metadata::Metadata;
use crate::names::{DEFAULT_EXCHANGE, VirtualHost};

/// Pauses after a failure, before the walk is tried again.
const RETRY: std::time::Duration = std::time::Duration::from_secs(5);

impl Front {
    /// The policies of a queue.
    pub fn policy_of_queue(&self, facts: &QueueFacts) -> EffectivePolicy {
        let host = VirtualHost::of(facts.name.as_str());
        let name = host.shown(facts.name.as_str()).into_owned();
        match crate::arguments::stored(&facts.spec) {
            Some(arguments) => {
                overlay::of_queue(&self.metadata.current(), &host, &name, &arguments)
            }
            None => EffectivePolicy::default(),
        }
    }

    /// The policies of an exchange.
    pub fn policy_of_exchange(&self, facts: &TopicFacts) -> EffectivePolicy {
        let host = VirtualHost::of(facts.name.as_str());
        let name = host.shown_exchange(facts.name.as_str());
        match name.is_empty() || facts.spec.kind == TopicKind::Filter {
            true => EffectivePolicy::default(),
            false => overlay::of_exchange(&self.metadata.current(), &host, &name),
        }
    }

    /// Applies policies until `stop`: at start, and after every change.
    pub async fn keep_policies_applied(self: Arc<Self>, stop: CancellationToken) {
        let mut changes = self.metadata.subscribe();
        loop {
            changes.borrow_and_update();
            let applied = tokio::select! {
                () = stop.cancelled() => return,
                applied = self.apply_policies() => applied,
            };
            let again = async {
                match &applied {
                    Ok(()) => drop(changes.changed().await),
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            };
            if let Err(error) = &applied {
                tracing::warn!(%error, front = "rabbitmq", "policies could not be applied; trying again");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = again => {}
            }
        }
    }

    /// Applies the current policies to everything that exists.
    pub async fn apply_policies(&self) -> Result<(), EngineError> {
        let mut after: Option<QueueName> = None;
        loop {
            let page = self.engine.list_page(after).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.name.clone());
            let metadata = self.metadata.current();
            for facts in page {
                self.apply_to_queue(&metadata, facts).await?;
            }
        }
        let mut after: Option<TopicName> = None;
        loop {
            let page = self.engine.topics_page(after).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.name.clone());
            let metadata = self.metadata.current();
            for facts in page {
                self.apply_to_exchange(&metadata, facts).await?;
            }
        }
    }

    async fn apply_to_queue(
        &self,
        metadata: &Metadata,
        facts: QueueFacts,
    ) -> Result<(), EngineError> {
        let host = VirtualHost::of(facts.name.as_str());
        let shown = host.shown(facts.name.as_str()).into_owned();
        let Some(spec) = wanted(metadata, &host, &shown, &facts.spec) else { return Ok(()) };
        harmless(&facts.name, self.engine.update(facts.name.clone(), spec).await)
    }

    /// Applies the policies to a queue that was declared while they changed.
    pub(crate) async fn reapply_to_queue(&self, name: QueueName) -> Result<(), EngineError> {
        let facts = self.engine.describe(name).await?;
        self.apply_to_queue(&self.metadata.current(), facts).await
    }

    async fn apply_to_exchange(
        &self,
        metadata: &Metadata,
        facts: TopicFacts,
    ) -> Result<(), EngineError> {
        let host = VirtualHost::of(facts.name.as_str());
        let shown = host.shown(facts.name.as_str()).into_owned();
        if shown == DEFAULT_EXCHANGE
            || matches!(facts.spec.kind, TopicKind::Filter | TopicKind::Queue)
        {
            return Ok(());
        }
        let declared = declared_alternate(&host, &facts);
        let spec = topic_spec_with(metadata, &host, &shown, declared.clone());
        let mut labels = facts.labels.clone();
        match spec == declared {
            true => labels.remove(ALTERNATE_LABEL),
            false => {
                let alternate = declared.alternate.as_ref().map_or("", |topic| topic.as_str());
                labels.insert(ALTERNATE_LABEL.to_owned(), alternate.to_owned())
            }
        };
        // The label comes first and goes last: while it is there, the declared value is known.
        if !labels.is_empty() && labels != facts.labels && spec != declared {
            harmless(
                &facts.name,
                self.engine.label_topic(facts.name.clone(), labels.clone()).await,
            )?;
        }
        if spec != facts.spec {
            harmless(
                &facts.name,
                self.engine.update_topic(facts.name.clone(), spec.clone()).await,
            )?;
        }
        if labels != facts.labels && spec == declared {
            harmless(&facts.name, self.engine.label_topic(facts.name.clone(), labels).await)?;
        }
        Ok(())
    }

    /// Applies the policies to an exchange that was just declared.
    pub(crate) async fn reapply_to_exchange(&self, name: TopicName) -> Result<(), EngineError> {
        let facts = self.engine.topic(name).await?;
        self.apply_to_exchange(&self.metadata.current(), facts).await
    }
}

/// The settings that an exchange was declared with.
pub(crate) fn declared_alternate(host: &VirtualHost, facts: &TopicFacts) -> TopicSpec {
    let alternate = match facts.labels.get(ALTERNATE_LABEL).map(String::as_str) {
        None => facts.spec.alternate.clone(),
        Some("") => None,
        Some(name) => host.topic(&host.shown(name)).ok(),
    };
    TopicSpec { alternate, ..facts.spec.clone() }
}

/// The queue or exchange may be gone, or forbid the change: others still get theirs.
fn harmless(
    name: &impl std::fmt::Display,
    result: Result<(), EngineError>,
) -> Result<(), EngineError> {
    match result {
        Err(EngineError::Refused(
            Refusal::QueueNotFound { .. } | Refusal::TopicNotFound { .. },
        )) => Ok(()),
        Err(EngineError::Refused(refusal)) if !is_temporary(&refusal) => {
            tracing::warn!(%name, %refusal, front = "rabbitmq", "a policy cannot be applied");
            Ok(())
        }
        other => other,
    }
}

fn is_temporary(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Busy | Refusal::DiskFull | Refusal::NoSegment { .. })
}
