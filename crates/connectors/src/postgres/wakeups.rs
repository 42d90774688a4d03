//! Wakes receivers when messages arrive: at once in this process, with `notify` in others.
//!
//! A notification has its own transaction after the one that it announces: the server commits only one transaction
//! with a notification at a time, and senders must not wait for that. Several notifications are combined. If one is
//! lost because a process died in between, receivers look again within a second.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_postgres::Notification;
use tokio_postgres::types::Type;

use super::PgShared;
use super::connection::{PgConnection, Sql};

/// How often waiting receivers look for messages without a notification.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The most sessions in one notification; more are announced as `*`.
const SESSIONS_PER_NOTIFICATION_MAX: usize = 200;

const CHANNEL_PREFIX: &str = "malote_";

pub(super) const NOTIFY: Sql = Sql {
    text: "select pg_notify('malote_' || w.queue, w.sessions) from unnest($1::int4[], $2::text[]) as w (queue, sessions)",
    types: &[Type::INT4_ARRAY, Type::TEXT_ARRAY],
};

/// Queues and sessions that must be announced to other processes.
pub(super) type PendingNotifications = HashMap<i32, BTreeSet<i64>>;

impl PgShared {
    /// Subscribes to arrivals in a queue.
    pub(super) fn subscribe(&self, queue: i32) -> watch::Receiver<u64> {
        let wakeup = {
            let mut wakeups = self.wakeups.lock();
            let new = !wakeups.contains_key(&queue);
            let wakeup =
                wakeups.entry(queue).or_insert_with(|| Arc::new(watch::channel(0).0)).clone();
            if new {
                self.unlistened.lock().push(queue);
                self.owner_wakeup.notify_one();
            }
            wakeup
        };
        wakeup.subscribe()
    }

    /// Announces new ready messages in these queues and sessions.
    pub(super) fn notify_arrivals(&self, all: Vec<(i32, Option<i64>)>) {
        if all.is_empty() {
            return;
        }
        {
            let mut pending = self.pending_notifications.lock();
            for &(queue, session) in &all {
                let sessions = pending.entry(queue).or_default();
                if sessions.len() <= SESSIONS_PER_NOTIFICATION_MAX {
                    sessions.extend(session);
                }
            }
        }
        self.owner_wakeup.notify_one();
        let queues: BTreeSet<i32> = all.iter().map(|one| one.0).collect();
        for queue in queues {
            self.wake_local(queue);
        }
        let holds = self.holds_by_session.lock();
        for session in all.into_iter().filter_map(|one| one.1) {
            if let Some(hold) = holds.get(&session) {
                hold.arrival.notify_waiters();
            }
        }
    }

    fn wake_local(&self, queue: i32) {
        if let Some(wakeup) = self.wakeups.lock().get(&queue) {
            wakeup.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Handles a notification of another process.
    pub(super) fn handle_notification(&self, notification: &Notification) {
        let queue =
            notification.channel().strip_prefix(CHANNEL_PREFIX).and_then(|id| id.parse().ok());
        let Some(queue) = queue else { return };
        self.wake_local(queue);
        let holds = self.holds_by_session.lock();
        match notification.payload() {
            "" => {}
            "*" => holds.values().for_each(|hold| {
                if hold.queue.id == queue {
                    hold.arrival.notify_waiters();
                }
            }),
            named => {
                for session in named.split(',').filter_map(|num| num.parse::<i64>().ok()) {
                    if let Some(hold) = holds.get(&session) {
                        hold.arrival.notify_waiters();
                    }
                }
            }
        }
    }

    /// Wakes all receivers, because notifications may have been missed.
    pub(super) fn wake_all(&self) {
        for wakeup in self.wakeups.lock().values() {
            wakeup.send_modify(|count| *count = count.wrapping_add(1));
        }
        for hold in self.holds_by_session.lock().values() {
            hold.arrival.notify_waiters();
        }
    }

    /// Sends the pending notifications.
    pub(super) async fn send_notifications(
        &self,
        connection: &PgConnection,
    ) -> Result<(), tokio_postgres::Error> {
        let pending = std::mem::take(&mut *self.pending_notifications.lock());
        if pending.is_empty() {
            return Ok(());
        }
        let (mut queues, mut payloads) = (Vec::new(), Vec::new());
        for (queue, sessions) in pending {
            queues.push(queue);
            payloads.push(if sessions.len() > SESSIONS_PER_NOTIFICATION_MAX {
                "*".to_owned()
            } else {
                let named: Vec<String> = sessions.iter().map(i64::to_string).collect();
                named.join(",")
            });
        }
        connection.query(&NOTIFY, &[&queues, &payloads]).await.map(drop)
    }

    /// Listens to the queues with new subscribers; with `all`, to every queue with subscribers.
    pub(super) async fn listen(
        &self,
        connection: &PgConnection,
        all: bool,
    ) -> Result<(), tokio_postgres::Error> {
        let new = std::mem::take(&mut *self.unlistened.lock());
        let queues = if all { self.wakeups.lock().keys().copied().collect() } else { new };
        if queues.is_empty() || self.config.pooled {
            return Ok(());
        }
        // The id may be negative, so the name is quoted.
        let listens: Vec<String> =
            queues.iter().map(|queue| format!("listen \"{CHANNEL_PREFIX}{queue}\"")).collect();
        connection.execute(&listens.join("; ")).await?;
        // Messages may have arrived before.
        for queue in queues {
            self.wake_local(queue);
        }
        Ok(())
    }
}
