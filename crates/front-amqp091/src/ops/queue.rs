//! `queue.bind`, `queue.unbind`, `queue.purge`, `queue.delete`.

use malote_engine::EngineError;
use malote_model::{Action, Address, AuditAction, QueueName, Refusal};

use super::exchange::{binding_rule, not_on_default, rule_name};
use super::queue_declare::check_owner;
use crate::conn::completion::Done;
use crate::conn::{Conn, allow_key};
use crate::refusal::{failed, no_exchange, precondition};
use crate::wire::error::Exception;
use crate::wire::method::{DecodeMethod as _, queue};

impl Conn {
    /// An empty routing key together with an empty queue name stands for the queue's name, as the specification says.
    fn binding_key(queue: &str, key: &str, shown: &str) -> String {
        match (queue, key) {
            ("", "") => shown.to_owned(),
            (_, key) => key.to_owned(),
        }
    }

    pub(crate) fn bind_queue(&mut self, number: u16, bind: queue::Bind) -> Result<(), Exception> {
        let (shown, queue) = self.queue_name(number, &bind.queue)?;
        not_on_default(&bind.exchange)?;
        let key = Self::binding_key(&bind.queue, &bind.routing_key, &shown);
        let topic = self.session.host.topic(&bind.exchange)?;
        self.allow(Action::Send, &queue, "queue", &shown)?;
        self.allow(Action::Receive, &topic, "exchange", &bind.exchange)?;
        allow_key(&self.front, &self.session, Action::Receive, &bind.exchange, &key)?;
        let owned = self.own_queues.contains(&queue);
        let entry = self.audit(AuditAction::Bind, topic.as_str()).detail(queue.as_str());
        let (front, session) = (self.front.clone(), self.session.clone());
        self.start_request(number, queue::Bind::ID, async move {
            let failed = |error: EngineError| failed(&session.host, &error);
            let facts = front.engine.describe(queue.clone()).await.map_err(failed)?;
            check_owner(&session.host, &facts, &shown, owned)?;
            let kind = front.engine.topic(topic.clone()).await.map_err(failed)?.spec.kind;
            let rule = binding_rule(kind, &key, &bind.arguments)?;
            front.engine.bind(topic, queue, rule).await.map_err(failed)?;
            front.access.audit().record(entry);
            Ok(Done::Reply((!bind.no_wait).then(|| queue::BindOk {}.into())))
        });
        Ok(())
    }

    pub(crate) fn unbind_queue(
        &mut self,
        number: u16,
        unbind: queue::Unbind,
    ) -> Result<(), Exception> {
        let (shown, queue) = self.queue_name(number, &unbind.queue)?;
        not_on_default(&unbind.exchange)?;
        let key = Self::binding_key(&unbind.queue, &unbind.routing_key, &shown);
        let topic = self.session.host.topic(&unbind.exchange)?;
        self.allow(Action::Send, &queue, "queue", &shown)?;
        self.allow(Action::Receive, &topic, "exchange", &unbind.exchange)?;
        allow_key(&self.front, &self.session, Action::Receive, &unbind.exchange, &key)?;
        let owned = self.own_queues.contains(&queue);
        let entry = self.audit(AuditAction::Unbind, topic.as_str()).detail(queue.as_str());
        let (front, session) = (self.front.clone(), self.session.clone());
        self.start_request(number, queue::Unbind::ID, async move {
            let reply = Done::Reply(Some(queue::UnbindOk {}.into()));
            let failed = |error: EngineError| failed(&session.host, &error);
            match front.engine.describe(queue.clone()).await {
                Ok(facts) => check_owner(&session.host, &facts, &shown, owned)?,
                // Nothing to remove.
                Err(EngineError::Refused(Refusal::QueueNotFound { .. })) => return Ok(reply),
                Err(error) => return Err(failed(error)),
            }
            let rule = rule_name(&key, &unbind.arguments);
            match front.engine.unbind(topic, Address::Queue(queue), rule).await {
                Ok(()) => front.access.audit().record(entry),
                Err(EngineError::Refused(Refusal::RuleNotFound { .. })) => {}
                Err(EngineError::Refused(Refusal::TopicNotFound { .. })) => {
                    return Err(no_exchange(&session.host, &unbind.exchange));
                }
                Err(error) => return Err(failed(error)),
            }
            Ok(reply)
        });
        Ok(())
    }

    pub(crate) fn purge_queue(
        &mut self,
        number: u16,
        purge: queue::Purge,
    ) -> Result<(), Exception> {
        let (shown, queue) = self.queue_name(number, &purge.queue)?;
        self.allow(Action::Receive, &queue, "queue", &shown)?;
        let owned = self.own_queues.contains(&queue);
        let entry = self.audit(AuditAction::Purge, queue.as_str());
        let (front, session) = (self.front.clone(), self.session.clone());
        self.start_request(number, queue::Purge::ID, async move {
            let failed = |error: EngineError| failed(&session.host, &error);
            let facts = front.engine.describe(queue.clone()).await.map_err(failed)?;
            check_owner(&session.host, &facts, &shown, owned)?;
            let count = front.engine.purge(queue).await.map_err(failed)?;
            front.access.audit().record(entry);
            let message_count = u32::try_from(count).unwrap_or(u32::MAX);
            let reply = (!purge.no_wait).then(|| queue::PurgeOk { message_count }.into());
            Ok(Done::Reply(reply))
        });
        Ok(())
    }

    pub(crate) fn delete_queue(
        &mut self,
        number: u16,
        delete: queue::Delete,
    ) -> Result<(), Exception> {
        let (shown, queue) = self.queue_name(number, &delete.queue)?;
        self.allow(Action::Manage, &queue, "queue", &shown)?;
        let owned = self.own_queues.contains(&queue);
        let entry = self.audit(AuditAction::Delete, queue.as_str());
        let (front, session) = (self.front.clone(), self.session.clone());
        self.start_request(number, queue::Delete::ID, async move {
            let failed = |error: EngineError| failed(&session.host, &error);
            let done = |queue: QueueName, count: u64| {
                let message_count = u32::try_from(count).unwrap_or(u32::MAX);
                let reply = (!delete.no_wait).then(|| queue::DeleteOk { message_count }.into());
                Ok(Done::Deleted { queue, reply })
            };
            let facts = match front.engine.describe(queue.clone()).await {
                Ok(facts) => facts,
                Err(EngineError::Refused(Refusal::QueueNotFound { .. })) => return done(queue, 0),
                Err(error) => return Err(failed(error)),
            };
            check_owner(&session.host, &facts, &shown, owned)?;
            let host = session.host.name();
            if delete.if_unused && facts.consumers > 0 {
                return Err(precondition(format!("queue '{shown}' in vhost '{host}' in use")));
            }
            if delete.if_empty && facts.ready + facts.locked + facts.delayed > 0 {
                return Err(precondition(format!("queue '{shown}' in vhost '{host}' not empty")));
            }
            match front.engine.delete(queue.clone()).await {
                Ok(()) => front.access.audit().record(entry),
                Err(EngineError::Refused(Refusal::QueueNotFound { .. })) => {}
                Err(error) => return Err(failed(error)),
            }
            done(queue, facts.ready)
        });
        Ok(())
    }
}
