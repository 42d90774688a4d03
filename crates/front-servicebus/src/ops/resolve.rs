//! Addresses → entities that the caller may use. Clients write names in any case; permissions are checked on the entity's
//! own spelling, and only here is an address turned into one.
//!
//! A caller is told nothing of what it may not use: an entity that exists under another spelling and is not allowed is
//! answered as if it did not exist.

use malote_engine::{Engine, EngineError, QueueFacts, Resolution};
use malote_model::{Address, Denied, QueueName, Refusal, Resource, TopicName};
use malote_wire_amqp::performative::{AmqpError, condition};

use crate::wire::address::Path;

/// A queue or topic that was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Entity {
    Queue(QueueName),
    Topic(TopicName),
    /// Where this entity would have what could not be forwarded.
    Transfer(Address),
}

impl Entity {
    /// What permissions are checked on.
    pub fn resource(&self) -> Resource<'_> {
        match self {
            Entity::Queue(name) => name.into(),
            Entity::Topic(name) => name.into(),
            Entity::Transfer(of) => of.into(),
        }
    }

    /// Its address, as tokens are put for it.
    pub fn path(&self) -> Path {
        let dead_letters = match self {
            Entity::Queue(name) => name.is_dead_letters(),
            Entity::Topic(_) => false,
            Entity::Transfer(_) => true,
        };
        let name = self.resource().name().unwrap_or_default().to_owned();
        Path { name, dead_letters, transfer: matches!(self, Entity::Transfer(_)) }
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

/// A queue with its facts, or a topic.
pub(crate) enum Place {
    Queue(Box<QueueFacts>),
    Topic(TopicName),
    /// What could not be forwarded, of an entity that exists.
    Transfer(Address),
}

impl Place {
    pub fn entity(self) -> Entity {
        match self {
            Place::Queue(facts) => Entity::Queue(facts.name),
            Place::Topic(name) => Entity::Topic(name),
            Place::Transfer(of) => Entity::Transfer(of),
        }
    }

    fn resource(&self) -> Resource<'_> {
        match self {
            Place::Queue(facts) => (&facts.name).into(),
            Place::Topic(name) => name.into(),
            Place::Transfer(of) => of.into(),
        }
    }
}

/// What an address means to a caller.
pub(crate) enum Resolved {
    /// It exists, and the caller may use it.
    Found(Place),
    /// It does not exist, or might as well not; the caller could use it if it existed by this name.
    Missing,
    /// The caller may not use that, whether or not it exists.
    Denied(Denied),
}

/// Finds what an address means to the caller whose permission `may` checks.
pub(crate) async fn resolve(
    engine: &Engine,
    path: &Path,
    may: impl Fn(Resource<'_>) -> Result<(), Denied>,
) -> Result<Resolved, EngineError> {
    match find(engine, path).await {
        Ok(place) if may(place.resource()).is_ok() => return Ok(Resolved::Found(place)),
        Ok(_) => {}
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(error),
    }
    // What cannot be a name is nobody's.
    let Ok(asked) = QueueName::new(&path.name) else { return Ok(Resolved::Missing) };
    Ok(match may((&asked).into()) {
        Ok(()) => Resolved::Missing,
        Err(denied) => Resolved::Denied(denied),
    })
}

async fn find(engine: &Engine, path: &Path) -> Result<Place, EngineError> {
    let name = QueueName::new(&path.name)?;
    let missing = || EngineError::from(Refusal::QueueNotFound { queue: name.clone() });
    let Resolution::Found(found) = engine.resolve(name.clone()).await? else {
        return Err(missing());
    };
    if path.transfer {
        // What cannot be forwarded is refused when it is sent, or lies with the dead letters.
        return Ok(Place::Transfer(found));
    }
    match found {
        Address::Queue(name) => {
            let name = if path.dead_letters { name.dead_letters() } else { name };
            Ok(Place::Queue(Box::new(engine.describe(name).await?)))
        }
        Address::Topic(_) if path.dead_letters => Err(missing()),
        Address::Topic(name) => Ok(Place::Topic(name)),
    }
}

fn is_not_found(error: &EngineError) -> bool {
    let EngineError::Refused(refusal) = error else { return false };
    matches!(refusal, Refusal::QueueNotFound { .. } | Refusal::BadName { .. })
}

/// In words that clients look for.
pub(crate) fn not_found(host: &str, path: &Path) -> AmqpError {
    let text =
        format!("The messaging entity 'sb://{host}/{path}' could not be found. status-code: 404");
    AmqpError::new(condition::NOT_FOUND, text)
}
