//! Resolves addresses to entities that the caller may use. Names are case-insensitive for clients; permissions are
//! checked on the entity's own spelling. No other file resolves addresses.
//!
//! Callers learn nothing about entities they may not use: an entity that exists under another spelling, without a
//! permission for it, is reported as missing.

use malote_engine::{Engine, EngineError, QueueFacts, Resolution};
use malote_model::{Address, Denied, QueueName, Refusal, Resource, TopicName};
use malote_wire_amqp::performative::{AmqpError, condition};

use crate::wire::address::EntityPath;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Entity {
    Queue(QueueName),
    Topic(TopicName),
    /// The transfer dead-letter queue of this entity.
    Transfer(Address),
}

impl Entity {
    /// The resource for permission checks.
    pub fn resource(&self) -> Resource<'_> {
        match self {
            Entity::Queue(name) => name.into(),
            Entity::Topic(name) => name.into(),
            Entity::Transfer(of) => of.into(),
        }
    }

    /// The address that tokens are put for.
    pub fn path(&self) -> EntityPath {
        let dead_letters = match self {
            Entity::Queue(name) => name.is_dead_letters(),
            Entity::Topic(_) => false,
            Entity::Transfer(_) => true,
        };
        let name = self.resource().name().unwrap_or_default().to_owned();
        EntityPath { name, dead_letters, transfer: matches!(self, Entity::Transfer(_)) }
    }
}

impl From<&Address> for Entity {
    fn from(address: &Address) -> Entity {
        match address {
            Address::Queue(name) => Entity::Queue(name.clone()),
            Address::Topic(name) => Entity::Topic(name.clone()),
        }
    }
}

/// An entity that was found, with the facts of a queue.
pub(crate) enum EntityFacts {
    Queue(Box<QueueFacts>),
    Topic(TopicName),
    /// The transfer dead-letter queue of this entity.
    Transfer(Address),
}

impl EntityFacts {
    pub fn entity(self) -> Entity {
        match self {
            EntityFacts::Queue(facts) => Entity::Queue(facts.name),
            EntityFacts::Topic(name) => Entity::Topic(name),
            EntityFacts::Transfer(of) => Entity::Transfer(of),
        }
    }

    fn resource(&self) -> Resource<'_> {
        match self {
            EntityFacts::Queue(facts) => (&facts.name).into(),
            EntityFacts::Topic(name) => name.into(),
            EntityFacts::Transfer(of) => of.into(),
        }
    }
}

/// What an address means to a caller.
pub(crate) enum Resolved {
    /// It exists, and the caller may use it.
    Found(EntityFacts),
    /// It does not exist, or exists only under a spelling without permission. The caller may use the name.
    Missing,
    /// The caller may not use the name, whether or not it exists.
    Denied(Denied),
}

/// Resolves an address. `may` checks the caller's permission.
pub(crate) async fn resolve(
    engine: &Engine,
    path: &EntityPath,
    may: impl Fn(Resource<'_>) -> Result<(), Denied>,
) -> Result<Resolved, EngineError> {
    match find(engine, path).await {
        Ok(place) if may(place.resource()).is_ok() => return Ok(Resolved::Found(place)),
        Ok(_) => {}
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(error),
    }
    // An invalid name cannot exist.
    let Ok(asked) = QueueName::new(&path.name) else { return Ok(Resolved::Missing) };
    Ok(match may((&asked).into()) {
        Ok(()) => Resolved::Missing,
        Err(denied) => Resolved::Denied(denied),
    })
}

async fn find(engine: &Engine, path: &EntityPath) -> Result<EntityFacts, EngineError> {
    let name = QueueName::new(&path.name)?;
    let missing = || EngineError::from(Refusal::QueueNotFound { queue: name.clone() });
    let Resolution::Found(found) = engine.resolve(name.clone()).await? else {
        return Err(missing());
    };
    if path.transfer {
        // Messages that cannot be forwarded are refused when sent, or dead-lettered. The transfer queue is always
        // empty.
        return Ok(EntityFacts::Transfer(found));
    }
    match found {
        Address::Queue(name) => {
            let name = if path.dead_letters { name.dead_letters() } else { name };
            Ok(EntityFacts::Queue(Box::new(engine.describe(name).await?)))
        }
        Address::Topic(_) if path.dead_letters => Err(missing()),
        Address::Topic(name) => Ok(EntityFacts::Topic(name)),
    }
}

fn is_not_found(error: &EngineError) -> bool {
    let EngineError::Refused(refusal) = error else { return false };
    matches!(refusal, Refusal::QueueNotFound { .. } | Refusal::BadName { .. })
}

/// Clients match on this wording.
pub(crate) fn not_found(host: &str, path: &EntityPath) -> AmqpError {
    let text =
        format!("The messaging entity 'sb://{host}/{path}' could not be found. status-code: 404");
    AmqpError::new(condition::NOT_FOUND, text)
}
