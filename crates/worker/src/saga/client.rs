//! Starts sagas and reads their state.

use malote_connectors::{BrokerError, Sent};
use malote_model::{Address, Message, SessionId};
use serde::Serialize;

use super::step::check_size;
use super::{SagaState, queue_of, queue_spec};
use crate::Error;
use crate::client::{Malote, json_message, one_sent, queue_name};

/// Maximum number of sagas on a page. Each needs one call to read its state.
const PAGE_MAX: usize = 1024;

/// A page of sagas.
#[derive(Debug)]
pub struct SagaPage {
    /// Ids and states, in no particular order.
    pub sagas: Vec<(String, SagaState)>,
    /// The `from` of the next page. `None` on the last page.
    pub next: Option<u32>,
}

fn session_id(id: &str) -> Result<SessionId, Error> {
    SessionId::new(id)
        .map_err(|refusal| Error::Settings(format!("invalid saga id `{id}`: {refusal}")))
}

/// The message that starts a saga.
pub(crate) fn start<T: Serialize>(id: &str, data: &T) -> Result<Message, Error> {
    let message = json_message(data)?;
    check_size(message.body.bytes.len()).map_err(Error::Encode)?;
    Ok(Message {
        message_id: Some(format!("start:{id}")),
        session: Some(session_id(id)?),
        correlation_id: Some(id.to_owned()),
        ..message
    })
}

fn unreadable(id: &str, error: &str) -> Error {
    Error::Settings(format!("the state of session `{id}` is not the state of a saga: {error}"))
}

impl Malote {
    /// Starts a saga. Does nothing if a saga with this name and id was started before. Creates the queue of the saga if
    /// it does not exist.
    pub async fn start_saga<T: Serialize>(
        &self,
        saga: &str,
        id: &str,
        data: &T,
    ) -> Result<Sent, Error> {
        let queue = queue_name(&queue_of(saga))?;
        let message = start(id, data)?;
        let item = vec![(Address::Queue(queue.clone()), message)];
        match self.broker().send(item.clone()).await {
            Err(BrokerError::Refused { code, .. }) if code == "queue_not_found" => {
                let queue_spec = queue_spec(self.broker().capabilities());
                self.broker().declare(&queue, queue_spec).await?;
                one_sent(self.broker().send(item).await?)
            }
            sent => one_sent(sent?),
        }
    }

    /// The state of a saga. `None` if it was never started, no worker has begun it, or it was removed after its end.
    pub async fn saga(&self, saga: &str, id: &str) -> Result<Option<SagaState>, Error> {
        let (queue, session) = (queue_name(&queue_of(saga))?, session_id(id)?);
        let state = self.broker().peek_state(&queue, &session).await?;
        let state = state.map(|state| SagaState::read(&state)).transpose();
        state.map_err(|error| unreadable(id, &error))
    }

    /// A page of at most `max` sagas with this name. `from` is 0 for the first page, then the `next` of the page
    /// before. Sagas that no worker has begun are left out.
    pub async fn sagas(&self, saga: &str, from: u32, max: usize) -> Result<SagaPage, Error> {
        let queue = queue_name(&queue_of(saga))?;
        let (ids, next) = self.broker().list_sessions(&queue, from, max.clamp(1, PAGE_MAX)).await?;
        let mut sagas = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some(state) = self.broker().peek_state(&queue, &id).await? {
                let id = id.as_str().to_owned();
                let state = SagaState::read(&state).map_err(|error| unreadable(&id, &error))?;
                sagas.push((id, state));
            }
        }
        Ok(SagaPage { sagas, next })
    }
}
