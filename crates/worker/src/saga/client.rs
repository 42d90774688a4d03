//! Sagas from outside: started, and looked at.

use malote_connectors::{BrokerError, Sent};
use malote_model::{Address, Message, SessionId};
use serde::Serialize;

use super::step::check_size;
use super::{SagaState, prefixed, spec};
use crate::Error;
use crate::client::{Malote, json_message, name, one_sent};

/// Sagas that are read at once: each has a state of its own.
const PAGE_MAX: usize = 1024;

/// Some sagas, and from where to go on.
#[derive(Debug)]
pub struct Sagas {
    /// Id and state, in no order that means anything.
    pub sagas: Vec<(String, SagaState)>,
    /// What to give to the next look; none at the end.
    pub next: Option<u32>,
}

fn session(id: &str) -> Result<SessionId, Error> {
    SessionId::new(id).map_err(|refusal| Error::Settings(format!("the saga's id: {refusal}")))
}

/// The message that starts a saga.
pub(crate) fn start<T: Serialize>(id: &str, data: &T) -> Result<Message, Error> {
    let message = json_message(data)?;
    check_size(message.body.bytes.len()).map_err(Error::Encode)?;
    Ok(Message {
        message_id: Some(format!("start:{id}")),
        session: Some(session(id)?),
        correlation_id: Some(id.to_owned()),
        ..message
    })
}

fn unreadable(id: &str, error: &str) -> Error {
    Error::Settings(format!("the state of session `{id}` is no saga's: {error}"))
}

impl Malote {
    /// Starts a saga, unless one of this name and id was started before: then nothing happens. Its queue is made where
    /// it is missing.
    pub async fn start_saga<T: Serialize>(
        &self,
        saga: &str,
        id: &str,
        data: &T,
    ) -> Result<Sent, Error> {
        let queue = name(&prefixed(saga))?;
        let message = start(id, data)?;
        let item = vec![(Address::Queue(queue.clone()), message)];
        match self.broker().send(item.clone()).await {
            Err(BrokerError::Refused { code, .. }) if code == "queue_not_found" => {
                let spec = spec(self.broker().capabilities());
                self.broker().declare(&queue, spec).await?;
                one_sent(self.broker().send(item).await?)
            }
            sent => one_sent(sent?),
        }
    }

    /// Where a saga stands; none if it was never started, is not begun yet, or is over for longer than it is kept.
    pub async fn saga(&self, saga: &str, id: &str) -> Result<Option<SagaState>, Error> {
        let (queue, session) = (name(&prefixed(saga))?, session(id)?);
        let state = self.broker().look_at_state(&queue, &session).await?;
        let state = state.map(|state| SagaState::read(&state)).transpose();
        state.map_err(|error| unreadable(id, &error))
    }

    /// Some sagas of a name: `from` is 0, then the `next` of the look before. At most `max` at once, and fewer where
    /// some have not begun.
    pub async fn sagas(&self, saga: &str, from: u32, max: usize) -> Result<Sagas, Error> {
        let queue = name(&prefixed(saga))?;
        let (ids, next) =
            self.broker().look_at_sessions(&queue, from, max.clamp(1, PAGE_MAX)).await?;
        let mut sagas = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some(state) = self.broker().look_at_state(&queue, &id).await? {
                let id = id.as_str().to_owned();
                let state = SagaState::read(&state).map_err(|error| unreadable(&id, &error))?;
                sagas.push((id, state));
            }
        }
        Ok(Sagas { sagas, next })
    }
}
