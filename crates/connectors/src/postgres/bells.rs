//! Who waits is told that something came: within this process at once, in others by `notify`.
//!
//! A notification is a transaction of its own, after the one that it tells of: the server lets one transaction with a
//! notification commit at a time, and senders must not queue up for that. Several go as one. If one is lost, because a
//! process died in between, those who wait look again within a second.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_postgres::Notification;
use tokio_postgres::types::Type;

use super::Shared;
use super::link::{Link, Sql};

/// Who waits looks again after so long.
pub(super) const POLL: Duration = Duration::from_secs(1);

/// Sessions that one notification names; of more it says that there are some.
const NAMED_MAX: usize = 200;

const PREFIX: &str = "malote_";

pub(super) const NOTIFY: Sql = Sql {
    text: "select pg_notify('malote_' || w.queue, w.sessions) from unnest($1::int4[], $2::text[]) as w (queue, sessions)",
    types: &[Type::INT4_ARRAY, Type::TEXT_ARRAY],
};

/// What other processes are still to be told: queues, and sessions in them.
pub(super) type Unsaid = HashMap<i32, BTreeSet<i64>>;

impl Shared {
    /// Sees every ring from now on.
    pub(super) fn bell(&self, queue: i32) -> watch::Receiver<u64> {
        let bell = {
            let mut bells = self.bells.lock();
            let new = !bells.contains_key(&queue);
            let bell = bells.entry(queue).or_insert_with(|| Arc::new(watch::channel(0).0)).clone();
            if new {
                self.unheard.lock().push(queue);
                self.anchor_called.notify_one();
            }
            bell
        };
        bell.subscribe()
    }

    /// Something came into these queues and sessions.
    pub(super) fn ring(&self, all: Vec<(i32, Option<i64>)>) {
        if all.is_empty() {
            return;
        }
        {
            let mut unsaid = self.unsaid.lock();
            for &(queue, session) in &all {
                let sessions = unsaid.entry(queue).or_default();
                if sessions.len() <= NAMED_MAX {
                    sessions.extend(session);
                }
            }
        }
        self.anchor_called.notify_one();
        let queues: BTreeSet<i32> = all.iter().map(|one| one.0).collect();
        for queue in queues {
            self.wake(queue);
        }
        let called = self.called_by_session.lock();
        for session in all.into_iter().filter_map(|one| one.1) {
            if let Some(hold) = called.get(&session) {
                hold.called.notify_waiters();
            }
        }
    }

    fn wake(&self, queue: i32) {
        if let Some(bell) = self.bells.lock().get(&queue) {
            bell.send_modify(|rings| *rings = rings.wrapping_add(1));
        }
    }

    /// Another process rang.
    pub(super) fn hear(&self, notification: &Notification) {
        let queue = notification.channel().strip_prefix(PREFIX).and_then(|id| id.parse().ok());
        let Some(queue) = queue else { return };
        self.wake(queue);
        let called = self.called_by_session.lock();
        match notification.payload() {
            "" => {}
            "*" => called.values().for_each(|hold| {
                if hold.queue.id == queue {
                    hold.called.notify_waiters();
                }
            }),
            named => {
                for session in named.split(',').filter_map(|num| num.parse::<i64>().ok()) {
                    if let Some(hold) = called.get(&session) {
                        hold.called.notify_waiters();
                    }
                }
            }
        }
    }

    /// Whoever waits for anything looks again: notifications may have been missed.
    pub(super) fn wake_all(&self) {
        for bell in self.bells.lock().values() {
            bell.send_modify(|rings| *rings = rings.wrapping_add(1));
        }
        for hold in self.called_by_session.lock().values() {
            hold.called.notify_waiters();
        }
    }

    /// Tells other processes what they were not told yet.
    pub(super) async fn say(&self, link: &Link) -> Result<(), tokio_postgres::Error> {
        let unsaid = std::mem::take(&mut *self.unsaid.lock());
        if unsaid.is_empty() {
            return Ok(());
        }
        let (mut queues, mut payloads) = (Vec::new(), Vec::new());
        for (queue, sessions) in unsaid {
            queues.push(queue);
            payloads.push(if sessions.len() > NAMED_MAX {
                "*".to_owned()
            } else {
                let named: Vec<String> = sessions.iter().map(i64::to_string).collect();
                named.join(",")
            });
        }
        link.rows(&NOTIFY, &[&queues, &payloads]).await.map(drop)
    }

    /// Listens to queues that somebody waits for since.
    pub(super) async fn listen(&self, link: &Link, all: bool) -> Result<(), tokio_postgres::Error> {
        let new = std::mem::take(&mut *self.unheard.lock());
        let queues = if all { self.bells.lock().keys().copied().collect() } else { new };
        if queues.is_empty() || self.config.pooled {
            return Ok(());
        }
        // Its name is a number, behind a minus or not.
        let listens: Vec<String> =
            queues.iter().map(|queue| format!("listen \"{PREFIX}{queue}\"")).collect();
        link.run(&listens.join("; ")).await?;
        // What came before we listened.
        for queue in queues {
            self.wake(queue);
        }
        Ok(())
    }
}
