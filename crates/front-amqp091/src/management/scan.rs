//! Queues, exchanges and bindings of one virtual host or of all, page by page of the engine.

use std::sync::Arc;

use malote_engine::{Engine, EngineError, QueueFacts, TopicFacts};
use malote_model::{Action, Address, QueueName, Refusal, Resource, TopicName, limits::LIST_MAX};

use super::error::ApiError;
use super::request::Caller;
use super::state::ManagementState;
use crate::Front;
use crate::names::VirtualHost;

/// What a list covers, and who sees it.
#[derive(Clone)]
pub(crate) struct Scope {
    pub engine: Engine,
    front: Arc<Front>,
    caller: Caller,
    /// None for all virtual hosts.
    pub host: Option<VirtualHost>,
}

impl Scope {
    pub fn new(state: &ManagementState, caller: &Caller, host: Option<VirtualHost>) -> Self {
        let (engine, front) = (state.front.engine.clone(), state.front.clone());
        Self { engine, front, caller: caller.clone(), host }
    }

    fn sees(&self, name: &str, on: Resource<'_>) -> bool {
        let in_scope = match &self.host {
            Some(host) => host.has(name),
            None => self.caller.sees_vhost(&self.front, VirtualHost::of(name).name()),
        };
        in_scope && self.may_see(on)
    }

    /// Whether the caller may do anything with a queue or topic.
    pub fn may_see(&self, on: Resource<'_>) -> bool {
        let who = &self.caller.principal;
        self.caller.is_monitoring()
            || Action::ALL
                .into_iter()
                .any(|action| self.front.access.check(who, action, on).is_ok())
    }
}

/// The virtual host that a path names, if it exists.
pub(crate) async fn find_host(
    state: &ManagementState,
    caller: &Caller,
    name: &str,
) -> Result<VirtualHost, ApiError> {
    caller.require_vhost(&state.front, name).await?;
    Ok(VirtualHost::new(name))
}

/// The facts of a queue that a path names.
pub(crate) async fn find_queue(
    state: &ManagementState,
    caller: &Caller,
    host: &VirtualHost,
    name: &str,
) -> Result<QueueFacts, ApiError> {
    let queue = host.queue(name).map_err(|_| ApiError::not_found())?;
    if !Scope::new(state, caller, None).may_see((&queue).into()) {
        return Err(ApiError::not_found());
    }
    Ok(state.front.engine.describe(queue).await?)
}

/// The facts of an exchange that a path names. The default exchange may be named `amq.default`.
pub(crate) async fn find_topic(
    state: &ManagementState,
    caller: &Caller,
    host: &VirtualHost,
    name: &str,
) -> Result<TopicFacts, ApiError> {
    let topic = host.topic(name).map_err(|_| ApiError::not_found())?;
    if !Scope::new(state, caller, None).may_see((&topic).into()) {
        return Err(ApiError::not_found());
    }
    Ok(state.front.engine.topic(topic).await?)
}

/// Walks through names in order.
struct Walk<N> {
    after: Option<N>,
    end: Option<String>,
    is_over: bool,
}

impl<N: Clone> Walk<N> {
    fn new(host: Option<&VirtualHost>, name: impl FnOnce(&str) -> Option<N>) -> Self {
        let bounds = host.and_then(VirtualHost::bounds);
        let after = bounds.as_ref().and_then(|(first, _)| name(first));
        Self { after, end: bounds.map(|(_, end)| end), is_over: false }
    }

    /// Notes how far a page reaches.
    fn passed(&mut self, count: usize, last: Option<(N, &str)>) {
        let is_past = |last: &str| self.end.as_deref().is_some_and(|end| last >= end);
        self.is_over = count < LIST_MAX || last.as_ref().is_some_and(|(_, text)| is_past(text));
        self.after = last.map(|(name, _)| name);
    }
}

pub(crate) struct QueueScan {
    pub scope: Scope,
    walk: Walk<QueueName>,
}

impl QueueScan {
    pub fn new(scope: Scope) -> Self {
        let walk = Walk::new(scope.host.as_ref(), |first| QueueName::new(first).ok());
        Self { scope, walk }
    }

    pub async fn next(&mut self) -> Result<Option<Vec<QueueFacts>>, ApiError> {
        if self.walk.is_over {
            return Ok(None);
        }
        let mut page = self.scope.engine.list_page(self.walk.after.clone()).await?;
        let last = page.last().map(|last| last.name.clone());
        let last = last.as_ref().map(|name| (name.clone(), name.as_str()));
        self.walk.passed(page.len(), last);
        page.retain(|facts| self.scope.sees(facts.name.as_str(), (&facts.name).into()));
        Ok(Some(page))
    }
}

pub(crate) struct TopicScan {
    pub scope: Scope,
    walk: Walk<TopicName>,
}

impl TopicScan {
    pub fn new(scope: Scope) -> Self {
        let walk = Walk::new(scope.host.as_ref(), |first| TopicName::new(first).ok());
        Self { scope, walk }
    }

    pub async fn next(&mut self) -> Result<Option<Vec<TopicFacts>>, ApiError> {
        if self.walk.is_over {
            return Ok(None);
        }
        let mut page = self.scope.engine.topics_page(self.walk.after.clone()).await?;
        let last = page.last().map(|last| last.name.clone());
        let last = last.as_ref().map(|name| (name.clone(), name.as_str()));
        self.walk.passed(page.len(), last);
        page.retain(|facts| self.scope.sees(facts.name.as_str(), (&facts.name).into()));
        Ok(Some(page))
    }
}

/// A binding of an exchange.
pub(crate) struct FoundBinding {
    pub source: TopicName,
    pub binding: malote_engine::Binding,
}

/// The rules of one topic, or of one target of it.
pub(crate) struct RuleScan {
    engine: Engine,
    topic: TopicName,
    target: Option<Address>,
    after: Option<(Address, String)>,
    is_over: bool,
}

impl RuleScan {
    pub fn new(engine: Engine, topic: TopicName, target: Option<Address>) -> Self {
        Self { engine, topic, target, after: None, is_over: false }
    }

    pub async fn next(&mut self) -> Result<Option<Vec<FoundBinding>>, ApiError> {
        if self.is_over {
            return Ok(None);
        }
        let (topic, target) = (self.topic.clone(), self.target.clone());
        let page = match self.engine.rules(topic, target, self.after.take(), LIST_MAX).await {
            Ok(page) => page,
            // Deleted meanwhile, or never there: it has no bindings.
            Err(EngineError::Refused(
                Refusal::TopicNotFound { .. } | Refusal::QueueNotFound { .. },
            )) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        self.is_over = page.len() < LIST_MAX;
        self.after = page.last().map(|last| (last.target.clone(), last.rule.name.clone()));
        let source = &self.topic;
        let found = |binding| FoundBinding { source: source.clone(), binding };
        Ok(Some(page.into_iter().map(found).collect()))
    }
}
