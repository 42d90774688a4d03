//! `queue.declare`.

use data_encoding::BASE64URL_NOPAD;
use malote_engine::{EngineError, QueueFacts};
use malote_model::{Action, AuditAction, DeadLetterTarget, QueueName, Refusal};

use super::reply_to::{REPLY_TO, is_reply_name};
use crate::arguments::{check_equivalent, queue_spec};
use crate::conn::Conn;
use crate::conn::completion::Done;
use crate::conn::handshake::Session;
use crate::names::VirtualHost;
use crate::policy::queue_spec_with;
use crate::refusal::{failed, locked, no_queue};
use crate::wire::error::{Exception, ReplyCode};
use crate::wire::method::{DecodeMethod as _, Method, queue};
use crate::wire::text::ShortString;

/// Names that begin with this belong to the broker.
pub(crate) const RESERVED: &str = "amq.";

impl Conn {
    pub(crate) fn declare_queue(
        &mut self,
        number: u16,
        declare: queue::Declare,
    ) -> Result<(), Exception> {
        let (front, engine, session) =
            (self.front.clone(), self.engine.clone(), self.session.clone());
        if declare.queue == REPLY_TO || is_reply_name(&declare.queue) {
            return self.declare_reply_queue(number, declare);
        }
        if declare.passive {
            let (shown, name) = self.queue_name(number, &declare.queue)?;
            self.allow_any(&name, &shown)?;
            let owned = self.own_queues.contains(&name);
            self.start_request(number, queue::Declare::ID, async move {
                let facts = front.engine.describe(name).await;
                let facts = facts.map_err(|error| failed(&session.host, &error))?;
                let reply = declared(&session, &facts, &shown, owned, declare.no_wait)?;
                Ok(Done::Declared { shown, own: None, reply })
            });
            return Ok(());
        }
        let shown = match declare.queue.as_str() {
            "" => {
                let id = BASE64URL_NOPAD.encode(self.front.engine.new_id().as_bytes());
                format!("amq.gen-{id}")
            }
            name => name.to_owned(),
        };
        let name = session.host.queue(&shown)?;
        self.allow(Action::Manage, &name, "queue", &shown)?;
        let seen = front.metadata.version();
        let spec = queue_spec_with(&front.metadata.current(), &session.host, &shown, &declare)?;
        let by_arguments = queue_spec(&session.host, &shown, &declare)?;
        // A new queue needs these, an existing one does not.
        let may_create = match &by_arguments.dead_letter {
            DeadLetterTarget::Topic { topic, .. } => {
                self.allow(Action::Receive, &name, "queue", &shown).and_then(|()| {
                    let exchange = session.host.shown(topic.as_str());
                    self.allow(Action::Send, topic, "exchange", &exchange)
                })
            }
            _ => Ok(()),
        };
        let (owned, entry) =
            (self.own_queues.contains(&name), self.audit(AuditAction::Declare, name.as_str()));
        self.start_request(number, queue::Declare::ID, async move {
            let host = &session.host;
            let failed = |error: EngineError| failed(host, &error);
            loop {
                match front.engine.describe(name.clone()).await {
                    Ok(facts) => {
                        if facts.spec.exclusive != declare.exclusive {
                            return Err(locked(host, &shown));
                        }
                        let reply = declared(&session, &facts, &shown, owned, declare.no_wait)?;
                        check_equivalent(host, &shown, &facts.spec, &declare)?;
                        // The queue counts as used.
                        let _ = engine.declare(name.clone(), facts.spec).await;
                        return Ok(Done::Declared { shown, own: None, reply });
                    }
                    Err(EngineError::Refused(Refusal::QueueNotFound { .. })) => {}
                    Err(error) => return Err(failed(error)),
                }
                if declare.queue.starts_with(RESERVED) {
                    let detail = format!("queue name '{shown}' contains reserved prefix 'amq.*'");
                    return Err(Exception::new(ReplyCode::AccessRefused, detail));
                }
                may_create.clone()?;
                match engine.declare(name.clone(), spec.clone()).await {
                    Ok(_) => {
                        front.access.audit().record(entry);
                        if front.metadata.version() != seen {
                            // A policy changed meanwhile.
                            let _ = front.reapply_to_queue(name.clone()).await;
                        }
                        let reply = (!declare.no_wait).then(|| declare_ok(&shown, 0, 0));
                        let own = declare.exclusive.then(|| name.clone());
                        return Ok(Done::Declared { shown, own, reply });
                    }
                    // Another connection has just declared it: compare again.
                    Err(EngineError::Refused(Refusal::QueueDiffers { .. })) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
        });
        Ok(())
    }

    /// The queue of direct replies does not exist, but can be declared.
    fn declare_reply_queue(
        &mut self,
        number: u16,
        declare: queue::Declare,
    ) -> Result<(), Exception> {
        let known = declare.queue == REPLY_TO || self.has_requester(&declare.queue);
        if !known {
            return Err(no_queue(&self.session.host, &declare.queue));
        }
        if !declare.no_wait {
            let reply = declare_ok(&declare.queue, 0, 1);
            self.put(number, &reply);
        }
        Ok(())
    }

    /// In RabbitMQ, everyone who may enter a virtual host may ask whether a queue or exchange exists. Users with only
    /// grants must have one for it.
    pub(crate) fn sees_names(&self) -> bool {
        self.front.users.has_permission(&self.session.who, self.session.host.name())
    }

    /// A passive declaration needs any permission.
    fn allow_any(&self, name: &QueueName, shown: &str) -> Result<(), Exception> {
        let any = [Action::Manage, Action::Receive, Action::Send];
        let allowed = self.sees_names()
            || any.into_iter().any(|action| self.allow(action, name, "queue", shown).is_ok());
        if allowed { Ok(()) } else { self.allow(Action::Manage, name, "queue", shown) }
    }

    /// The queue that a request names; an empty name is the last one that the channel declared.
    pub(crate) fn queue_name(
        &mut self,
        number: u16,
        name: &str,
    ) -> Result<(String, QueueName), Exception> {
        let shown = match name {
            "" => self.channel(number).last_queue.clone().ok_or_else(|| {
                Exception::new(ReplyCode::NotFound, "no previously declared queue")
            })?,
            name => name.to_owned(),
        };
        // A name that no queue can have.
        let queue = self.session.host.queue(&shown);
        let queue = queue.map_err(|_| no_queue(&self.session.host, &shown))?;
        Ok((shown, queue))
    }
}

/// The reply for an existing queue, unless it belongs to another connection.
fn declared(
    session: &Session,
    facts: &QueueFacts,
    shown: &str,
    owned: bool,
    no_wait: bool,
) -> Result<Option<Method>, Exception> {
    check_owner(&session.host, facts, shown, owned)?;
    Ok((!no_wait).then(|| declare_ok(shown, facts.ready, facts.consumers)))
}

/// Refuses an exclusive queue of another connection.
pub(crate) fn check_owner(
    host: &VirtualHost,
    facts: &QueueFacts,
    shown: &str,
    owned: bool,
) -> Result<(), Exception> {
    if facts.spec.exclusive && !owned { Err(locked(host, shown)) } else { Ok(()) }
}

fn declare_ok(shown: &str, ready: u64, consumers: u64) -> Method {
    let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    queue::DeclareOk {
        queue: ShortString::truncated(shown),
        message_count: count(ready),
        consumer_count: count(consumers),
    }
    .into()
}
