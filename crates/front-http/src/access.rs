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

    /// Whether the caller may do this to every queue there is or may ever be: only a grant on `*` says so.
    pub(crate) fn allow_everywhere(
        &self,
        caller: &Principal,
        action: Action,
    ) -> Result<(), Problem> {
        Ok(self.access.check(caller, action, Resource::EVERYTHING)?)
    }

    /// Whether the caller may do this to the topic. Topics and queues have one name space, and so do their grants.
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

    /// Whether the caller may ask for lists, which then show what it may see. Without credentials, on a server that has
    /// some, it may see nothing: it is told to sign in, since an empty list would look like an answer.
    pub(crate) fn allow_lists(&self, caller: &Principal) -> Result<(), Problem> {
        Ok(self.access.check_lists(caller)?)
    }

    /// Whether the caller may see that the queue exists: any grant on it will do.
    pub(crate) fn allow_look(&self, caller: &Principal, queue: &QueueName) -> Result<(), Problem> {
        self.allow_look_at(caller, &queue.clone().into())
    }

    /// Whether the caller may see that the queue or topic exists: any grant on it will do.
    pub(crate) fn allow_look_at(&self, caller: &Principal, at: &Address) -> Result<(), Problem> {
        let mut last = Ok(());
        for action in [Action::Manage, Action::Send, Action::Receive] {
            last = self.allow_at(caller, action, at);
            if last.is_ok() {
                return Ok(());
            }
        }
        last
    }

    /// Does what may take long, as long as the caller is allowed to: permission is checked again when it may have
    /// changed. What is given up in the middle must not have happened.
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

    /// Whether the caller may let messages of a queue go where its new specification sends them: whoever manages one
    /// queue must not reach another through it. What was so before was allowed to somebody.
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
