//! Permissions of callers. `Access` (model) decides.

use std::future::Future;

use malote_http::Unauthenticated;
use malote_model::{
    Action, Address, DeadLetterTarget, Principal, QueueName, QueueSpec, Resource, TopicName,
};

use crate::Api;
use crate::problem::{Code, Problem};

impl Api {
    /// Whether the caller may do this to the queue. Dead letters belong to their queue.
    pub(crate) fn allow(
        &self,
        caller: &Principal,
        action: Action,
        queue: &QueueName,
    ) -> Result<(), Problem> {
        Ok(self.access.check(caller, action, queue.into())?)
    }

    /// Whether the caller may do this to every existing and future queue. That needs a grant on `*`.
    pub(crate) fn allow_everywhere(
        &self,
        caller: &Principal,
        action: Action,
    ) -> Result<(), Problem> {
        Ok(self.access.check(caller, action, Resource::EVERYTHING)?)
    }

    /// Whether the caller may do this to the topic. Topics and queues share one name space, also in grants.
    pub(crate) fn allow_topic(
        &self,
        caller: &Principal,
        action: Action,
        topic: &TopicName,
    ) -> Result<(), Problem> {
        Ok(self.access.check(caller, action, topic.into())?)
    }

    /// Whether the caller may do this to the queue or topic.
    pub(crate) fn allow_at(
        &self,
        caller: &Principal,
        action: Action,
        at: &Address,
    ) -> Result<(), Problem> {
        Ok(self.access.check(caller, action, at.into())?)
    }

    /// Whether the caller may request lists, which contain only what it may see. A caller without credentials is
    /// refused on a server that has credentials, because an empty list would be misleading.
    pub(crate) fn allow_lists(&self, caller: &Principal) -> Result<(), Problem> {
        Ok(self.access.check_lists(caller)?)
    }

    /// Whether the caller may see that the queue exists. Any grant on it suffices.
    pub(crate) fn allow_view(&self, caller: &Principal, queue: &QueueName) -> Result<(), Problem> {
        self.allow_view_of(caller, &queue.clone().into())
    }

    /// Whether the caller may see that the queue or topic exists. Any grant on it suffices.
    pub(crate) fn allow_view_of(&self, caller: &Principal, at: &Address) -> Result<(), Problem> {
        let mut last = Ok(());
        for action in [Action::Manage, Action::Send, Action::Receive] {
            last = self.allow_at(caller, action, at);
            if last.is_ok() {
                return Ok(());
            }
        }
        last
    }

    /// Runs a long operation as long as the caller is allowed to. The permission is checked again after every change of
    /// permissions. An operation that is dropped must have no effect.
    pub(crate) async fn while_allowed<T>(
        &self,
        caller: &Principal,
        action: Action,
        queue: &QueueName,
        work: impl Future<Output = T>,
    ) -> Result<T, Problem> {
        let mut work = std::pin::pin!(work);
        loop {
            let seen = self.access.version();
            self.allow(caller, action, queue)?;
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                _ = self.access.changed(seen) => {}
            }
        }
    }

    /// Whether the caller may send to the new targets of a queue. Otherwise a caller that manages one queue could send
    /// to others through it. Targets that the queue already has are not checked.
    pub(crate) fn allow_targets(
        &self,
        caller: &Principal,
        before: &QueueSpec,
        spec: &QueueSpec,
    ) -> Result<(), Problem> {
        let dead_letters = match &spec.dead_letter {
            target if *target == before.dead_letter => None,
            DeadLetterTarget::Queue(queue) => Some(queue.clone().into()),
            DeadLetterTarget::Topic { topic, .. } => Some(topic.clone().into()),
            DeadLetterTarget::Own | DeadLetterTarget::Drop => None,
        };
        let forward_to = spec.forward_to.clone().filter(|_| spec.forward_to != before.forward_to);
        for target in dead_letters.into_iter().chain(forward_to) {
            self.allow_at(caller, Action::Send, &target)?;
        }
        Ok(())
    }
}

impl From<Unauthenticated> for Problem {
    fn from(error: Unauthenticated) -> Self {
        Problem::new(Code::Unauthenticated, error.why)
    }
}
