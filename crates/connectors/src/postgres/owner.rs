//! Registers this process in `malote.owners`. Its connection holds an advisory lock, which is free as soon as the
//! process ends.
//!
//! The same connection listens, sends notifications and does maintenance. If it breaks, the owner's row and the
//! leases remain for a second: a process that reconnects in time keeps them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::connection::{PgConnection, Sql};
use super::wakeups::{NOTIFY, POLL_INTERVAL};
use super::{PgShared, error, maintenance};
use crate::broker::BrokerError;
use crate::retry_delay::RetryDelay;

const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// The shortest interval between notifications: receivers of a busy queue do not wait.
const NOTIFY_INTERVAL: Duration = Duration::from_millis(4);

/// The first key of all advisory locks of Malote: `malo`.
pub(super) const ADVISORY_LOCK_CLASS: i32 = 0x6d61_6c6f;

const NEW_OWNER: Sql = Sql {
    text: "insert into malote.owners (bound) values ($1) returning id",
    types: &[Type::BOOL],
};
/// In one transaction, so that others see the row only together with its lock.
const LOCK_OWNER: Sql = Sql {
    text: "select pg_try_advisory_lock($1, $2) from malote.owners where id = $2 for update",
    types: &[Type::INT4, Type::INT4],
};
const RETURN_OWNER: Sql = Sql {
    text: "update malote.owners set gone_at = null, seen_at = now() where id = $1 returning id",
    types: &[Type::INT4],
};

/// Keeps the owner registered, and reconnects. Reports the outcome of the first attempt.
pub(super) async fn run(shared: Arc<PgShared>, started: oneshot::Sender<Result<(), BrokerError>>) {
    let mut started = Some(started);
    let mut backoff = RetryDelay::new(RETRY_FIRST, RETRY_MAX);
    loop {
        match open(&shared).await {
            Ok(connection) => {
                backoff.reset();
                if let Some(started) = started.take() {
                    let _ = started.send(Ok(()));
                }
                shared.wake_all();
                let error = serve(&shared, &connection).await;
                shared.owner_registered.store(false, Ordering::Release);
                tracing::warn!(%error, "the connection to PostgreSQL is lost; reconnecting");
            }
            Err(error) => {
                if let Some(started) = started.take() {
                    let _ = started.send(Err(error));
                    return;
                }
                let pause = backoff.pause();
                tracing::warn!(%error, ?pause, "PostgreSQL cannot be reached; retrying");
                tokio::time::sleep(pause).await;
            }
        }
    }
}

async fn open(shared: &Arc<PgShared>) -> Result<PgConnection, BrokerError> {
    let weak = Arc::downgrade(shared);
    let on_notification = Arc::new(move |notification: &tokio_postgres::Notification| {
        if let Some(shared) = weak.upgrade() {
            shared.handle_notification(notification);
        }
    });
    let mut statements = maintenance::STATEMENTS.to_vec();
    statements.extend([&NEW_OWNER, &LOCK_OWNER, &RETURN_OWNER, &NOTIFY]);
    let connection =
        PgConnection::open(&shared.config, true, &statements, Some(on_notification)).await?;
    let previous = shared.owner.load(Ordering::Acquire);
    if previous == 0 || !resume(&connection, previous, shared.config.pooled).await? {
        let bound = !shared.config.pooled;
        // An owner id must never be used twice, so it must survive a crash of the server.
        connection.execute("begin; set local synchronous_commit = on").await?;
        let rows = connection.query(&NEW_OWNER, &[&bound]).await?;
        let id: i32 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
        if bound {
            connection.query(&LOCK_OWNER, &[&ADVISORY_LOCK_CLASS, &id]).await?;
        }
        connection.execute("commit").await?;
        if previous != 0 {
            tracing::warn!("leases were lost with the connection to PostgreSQL");
            shared.lose_leases();
        }
        shared.owner.store(id, Ordering::Release);
    }
    shared.listen(&connection, true).await?;
    shared.owner_registered.store(true, Ordering::Release);
    Ok(connection)
}

/// Registers the previous owner again. False if its leases are lost.
async fn resume(
    connection: &PgConnection,
    owner: i32,
    pooled: bool,
) -> Result<bool, tokio_postgres::Error> {
    if !pooled {
        let locked = connection.query(&LOCK_OWNER, &[&ADVISORY_LOCK_CLASS, &owner]).await?;
        // The server may not have noticed yet that the old connection is gone.
        if !locked.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
            return Ok(false);
        }
    }
    Ok(!connection.query(&RETURN_OWNER, &[&owner]).await?.is_empty())
}

/// Listens, notifies and does maintenance until the connection breaks.
async fn serve(shared: &Arc<PgShared>, connection: &PgConnection) -> BrokerError {
    let mut tick = Instant::now();
    loop {
        let done = async {
            shared.listen(connection, false).await?;
            shared.send_notifications(connection).await?;
            if Instant::now() >= tick {
                let next = maintenance::run_once(shared, connection).await?;
                tick = Instant::now() + next.min(POLL_INTERVAL);
            }
            Ok::<_, tokio_postgres::Error>(())
        };
        match done.await {
            Ok(()) => {}
            // Maintenance of another process conflicted.
            Err(error) if error::is_conflict(&error) => {
                let _ = connection.execute("rollback").await;
                tick = Instant::now() + RETRY_FIRST;
            }
            Err(error) => return error.into(),
        }
        let notified_at = Instant::now();
        let due = shared.next_due.lock().take();
        if let Some(due) = due {
            tick = tick.min(due);
        }
        tokio::select! {
            () = connection.closed() => {
                return BrokerError::Unreachable { text: "the server closed the connection".into() };
            }
            () = tokio::time::sleep_until(tick) => {}
            () = shared.owner_wakeup.notified() => {
                // Arrivals within the interval share a notification.
                tokio::time::sleep_until(tick.min(notified_at + NOTIFY_INTERVAL)).await;
            }
        }
    }
}

impl PgShared {
    /// Makes maintenance run when a message is due, in `ms` milliseconds.
    pub(super) fn due_in(&self, ms: i64) {
        let ms = ms.unsigned_abs();
        if ms < 2 * POLL_INTERVAL.as_millis() as u64 {
            let at = Instant::now() + Duration::from_millis(ms + 1);
            let mut due = self.next_due.lock();
            *due = Some(due.map_or(at, |previous| previous.min(at)));
            drop(due);
            self.owner_wakeup.notify_one();
        }
    }

    /// The id for new leases. Fails while the owner is not registered.
    pub(super) fn owner(&self) -> Result<i32, BrokerError> {
        match self.owner.load(Ordering::Acquire) {
            owner if owner != 0 && self.owner_registered.load(Ordering::Acquire) => Ok(owner),
            _ => Err(BrokerError::Unreachable { text: "reconnecting to PostgreSQL".into() }),
        }
    }

    /// Forgets all leases and holds.
    fn lose_leases(&self) {
        self.plain_leases.lock().clear();
        let holds: Vec<_> = self.holds.lock().values().cloned().collect();
        for hold in holds {
            self.remove_hold(&hold);
        }
    }
}
