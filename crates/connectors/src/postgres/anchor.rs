//! The connection by which others know that this process is there: it has an advisory lock for as long as it lives.
//!
//! It also listens, tells others what came, and keeps house. If it breaks, the owner's row stays for a moment, and so do
//! the leases: whoever comes back in time goes on with them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::bells::{NOTIFY, POLL};
use super::link::{Link, Sql};
use super::{Shared, error, keeper};
use crate::broker::BrokerError;

const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Notifications go out no faster than that: a busy queue needs no bell.
const SAY_EVERY: Duration = Duration::from_millis(4);

/// The first half of the names of all our advisory locks: `malo`.
pub(super) const LOCKS: i32 = 0x6d61_6c6f;

const NEW_OWNER: Sql = Sql {
    text: "insert into malote.owners (bound) values ($1) returning id",
    types: &[Type::BOOL],
};
/// The row is seen by others when the lock is there: both happen in one transaction.
const LOCK_OWNER: Sql = Sql {
    text: "select pg_try_advisory_lock($1, $2) from malote.owners where id = $2 for update",
    types: &[Type::INT4, Type::INT4],
};
const BACK_AGAIN: Sql = Sql {
    text: "update malote.owners set gone_at = null, seen_at = now() where id = $1 returning id",
    types: &[Type::INT4],
};

/// Keeps the connection until the end. Tells whether it came about the first time.
pub(super) async fn keep(shared: Arc<Shared>, started: oneshot::Sender<Result<(), BrokerError>>) {
    let mut started = Some(started);
    let mut pause = PAUSE_FIRST;
    loop {
        match open(&shared).await {
            Ok(link) => {
                pause = PAUSE_FIRST;
                if let Some(started) = started.take() {
                    let _ = started.send(Ok(()));
                }
                shared.wake_all();
                let error = serve(&shared, &link).await;
                shared.anchored.store(false, Ordering::Release);
                tracing::warn!(%error, "the connection to PostgreSQL is lost");
            }
            Err(error) => {
                if let Some(started) = started.take() {
                    let _ = started.send(Err(error));
                    return;
                }
                tracing::warn!(%error, "PostgreSQL cannot be reached");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

async fn open(shared: &Arc<Shared>) -> Result<Link, BrokerError> {
    let hearing = Arc::downgrade(shared);
    let hears = Arc::new(move |notification: &tokio_postgres::Notification| {
        if let Some(shared) = hearing.upgrade() {
            shared.hear(notification);
        }
    });
    let mut statements = keeper::STATEMENTS.to_vec();
    statements.extend([&NEW_OWNER, &LOCK_OWNER, &BACK_AGAIN, &NOTIFY]);
    let link = Link::open(&shared.config, true, &statements, Some(hears)).await?;
    let before = shared.owner.load(Ordering::Acquire);
    if before == 0 || !resume(&link, before, shared.config.pooled).await? {
        let bound = !shared.config.pooled;
        // Its number must never be given twice: a crash of the server may not forget it.
        link.run("begin; set local synchronous_commit = on").await?;
        let rows = link.rows(&NEW_OWNER, &[&bound]).await?;
        let id: i32 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
        if bound {
            link.rows(&LOCK_OWNER, &[&LOCKS, &id]).await?;
        }
        link.run("commit").await?;
        if before != 0 {
            tracing::warn!("leases were lost with the connection to PostgreSQL");
            shared.lose_all();
        }
        shared.owner.store(id, Ordering::Release);
    }
    shared.listen(&link, true).await?;
    shared.anchored.store(true, Ordering::Release);
    Ok(link)
}

/// Whether the leases of before are still ours.
async fn resume(link: &Link, owner: i32, pooled: bool) -> Result<bool, tokio_postgres::Error> {
    if !pooled {
        let locked = link.rows(&LOCK_OWNER, &[&LOCKS, &owner]).await?;
        // The server may not know yet that the old connection is gone.
        if !locked.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
            return Ok(false);
        }
    }
    Ok(!link.rows(&BACK_AGAIN, &[&owner]).await?.is_empty())
}

/// Serves until the connection breaks.
async fn serve(shared: &Arc<Shared>, link: &Link) -> BrokerError {
    let mut tick = Instant::now();
    loop {
        let done = async {
            shared.listen(link, false).await?;
            shared.say(link).await?;
            if Instant::now() >= tick {
                let next = keeper::keep(shared, link).await?;
                tick = Instant::now() + next.min(POLL);
            }
            Ok::<_, tokio_postgres::Error>(())
        };
        match done.await {
            Ok(()) => {}
            // Two who keep house stood in each other's way.
            Err(error) if error::is_conflict(&error) => {
                let _ = link.run("rollback").await;
                tick = Instant::now() + PAUSE_FIRST;
            }
            Err(error) => return error.into(),
        }
        let said = Instant::now();
        let due = shared.due.lock().take();
        if let Some(due) = due {
            tick = tick.min(due);
        }
        tokio::select! {
            () = link.closed() => {
                return BrokerError::Unreachable { text: "the server closed the connection".into() };
            }
            () = tokio::time::sleep_until(tick) => {}
            () = shared.anchor_called.notified() => {
                // What comes in the meantime goes with it.
                tokio::time::sleep_until(tick.min(said + SAY_EVERY)).await;
            }
        }
    }
}

impl Shared {
    /// Something is due in so many milliseconds.
    pub(super) fn due_in(&self, ms: i64) {
        let ms = ms.unsigned_abs();
        if ms < 2 * POLL.as_millis() as u64 {
            let at = Instant::now() + Duration::from_millis(ms + 1);
            let mut due = self.due.lock();
            *due = Some(due.map_or(at, |before| before.min(at)));
            drop(due);
            self.anchor_called.notify_one();
        }
    }

    /// Whoever claims: known to others, or not at all.
    pub(super) fn owner(&self) -> Result<i32, BrokerError> {
        match self.owner.load(Ordering::Acquire) {
            owner if owner != 0 && self.anchored.load(Ordering::Acquire) => Ok(owner),
            _ => {
                Err(BrokerError::Unreachable { text: "its connection is being made again".into() })
            }
        }
    }

    /// Nothing of what was in hand is any more.
    fn lose_all(&self) {
        self.plain.lock().clear();
        let holds: Vec<_> = self.holds.lock().values().cloned().collect();
        for hold in holds {
            self.forget(&hold);
        }
    }
}
