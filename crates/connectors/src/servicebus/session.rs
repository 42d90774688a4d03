//! A receiver that holds a session.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::connection::ClientConnection;
use super::error::{Error, Result};
use super::receiver::{Receiver, ReceiverOptions, SessionChoice};

/// Receives the messages of one session in order. No other receiver gets them meanwhile. When the lock is lost,
/// receiving and settling fail with [`super::ErrorKind::SessionLockLost`]. Dropping it releases the session at once.
pub struct SessionReceiver {
    receiver: Receiver,
    id: String,
    locked_until_ms: i64,
}

impl SessionReceiver {
    pub(super) async fn open(
        connection: &Arc<ClientConnection>,
        address: &str,
        options: ReceiverOptions,
        choice: SessionChoice<'_>,
        wait: Duration,
    ) -> Result<SessionReceiver> {
        let mut receiver = Receiver::open(connection, address, options, Some(choice), wait).await?;
        let Some((id, locked_until_ms)) = receiver.granted_session() else {
            return Err(Error::Unreadable(
                "the server granted a session without its id".to_owned(),
            ));
        };
        receiver.settler_mut().set_session(&id);
        Ok(SessionReceiver { receiver, id, locked_until_ms })
    }

    /// The id of the session.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// When the lock ends, as last reported, in milliseconds since 1970.
    pub fn locked_until_ms(&self) -> i64 {
        self.locked_until_ms
    }

    /// Renews the lock. Returns when it ends.
    pub async fn renew(&mut self) -> Result<i64> {
        self.locked_until_ms = self.receiver.management().renew_session().await?;
        Ok(self.locked_until_ms)
    }

    /// The session state, if there is one.
    pub async fn state(&self) -> Result<Option<Bytes>> {
        self.receiver.management().state().await
    }

    /// Sets or clears the session state.
    pub async fn set_state(&self, state: Option<Bytes>) -> Result<()> {
        self.receiver.management().set_state(state).await
    }

    /// Releases the session.
    pub async fn close(self) {
        self.receiver.close().await;
    }
}

impl Deref for SessionReceiver {
    type Target = Receiver;

    fn deref(&self) -> &Receiver {
        &self.receiver
    }
}

impl DerefMut for SessionReceiver {
    fn deref_mut(&mut self) -> &mut Receiver {
        &mut self.receiver
    }
}
