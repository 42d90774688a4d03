//! Virtual hosts: their predeclared exchanges.

use malote_engine::EngineError;
use malote_model::{Refusal, TopicKind, TopicSpec};

use crate::Front;
use crate::names::{DEFAULT_EXCHANGE, DEFAULT_VHOST, VirtualHost};

/// Exchanges that every virtual host has: name, kind, and whether it is internal.
pub(crate) const PREDECLARED: [(&str, TopicKind, bool); 7] = [
    (DEFAULT_EXCHANGE, TopicKind::Queue, true),
    ("amq.direct", TopicKind::Direct, false),
    ("amq.fanout", TopicKind::Fanout, false),
    ("amq.topic", TopicKind::Topic, false),
    ("amq.headers", TopicKind::Headers, false),
    ("amq.match", TopicKind::Headers, false),
    ("amq.rabbitmq.trace", TopicKind::Topic, true),
];

impl Front {
    /// Creates a virtual host: its predeclared exchanges.
    pub async fn create_vhost(&self, name: &str) -> Result<(), EngineError> {
        let host = VirtualHost::new(name);
        for (exchange, kind, internal) in PREDECLARED {
            let Ok(topic) = host.topic(exchange) else {
                let why = "is too long for a virtual host";
                return Err(Refusal::BadName { name: name.to_owned(), why }.into());
            };
            let spec = TopicSpec { kind, internal, ..TopicSpec::default() };
            match self.engine.declare_topic(topic, spec).await {
                Ok(_) | Err(EngineError::Refused(Refusal::TopicDiffers { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        self.vhosts.lock().insert(name.to_owned());
        Ok(())
    }

    /// Whether a virtual host exists. The default one is created when it is first used.
    pub(crate) async fn has_vhost(&self, name: &str) -> Result<bool, EngineError> {
        if self.vhosts.lock().contains(name) {
            return Ok(true);
        }
        if self.is_deleting(name) {
            return Ok(false);
        }
        if name == DEFAULT_VHOST {
            self.create_vhost(name).await?;
            return Ok(true);
        }
        let Ok(topic) = VirtualHost::new(name).topic(PREDECLARED[0].0) else { return Ok(false) };
        match self.engine.topic(topic).await {
            Ok(_) => {
                self.vhosts.lock().insert(name.to_owned());
                Ok(true)
            }
            Err(EngineError::Refused(Refusal::TopicNotFound { .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
