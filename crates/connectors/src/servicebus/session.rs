//! A session that this receiver holds.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::connection::Connection;
use super::error::{Error, Result};
use super::receiver::{Receiver, ReceiverOptions, SessionWish};

/// Receives the messages of one session, in order; nobody else does meanwhile. When its lock is lost, receiving and
/// settling say so ([`super::Kind::SessionLockLost`]). Dropped, it is free for others at once.
pub struct SessionReceiver {
    receiver: Receiver,
    id: String,
    locked_until_ms: i64,
}

impl SessionReceiver {
    pub(super) async fn open(
        connection: &Arc<Connection>,
        address: &str,
        options: ReceiverOptions,
        wish: SessionWish<'_>,
        wait: Duration,
    ) -> Result<SessionReceiver> {
        let mut receiver = Receiver::open(connection, address, options, Some(wish), wait).await?;
        let Some((id, locked_until_ms)) = receiver.granted() else {
            return Err(Error::Unreadable("a session was granted without its id".to_owned()));
        };
        receiver.settler_mut().of_session(&id);
        Ok(SessionReceiver { receiver, id, locked_until_ms })
    }

    /// Which session it is.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// When its lock ends, as last heard, in milliseconds since 1970.
    pub fn locked_until_ms(&self) -> i64 {
        self.locked_until_ms
    }

    /// Renews its lock; tells until when it holds.
    pub async fn renew(&mut self) -> Result<i64> {
        self.locked_until_ms = self.receiver.management().renew_session().await?;
        Ok(self.locked_until_ms)
    }

    /// Its state, if it has one.
    pub async fn state(&self) -> Result<Option<Bytes>> {
        self.receiver.management().state().await
    }

    /// Sets its state, or clears it.
    pub async fn set_state(&self, state: Option<Bytes>) -> Result<()> {
        self.receiver.management().set_state(state).await
    }

    /// Gives it back.
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
