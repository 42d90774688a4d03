//! Publishers with confirms. Each numbers its messages for every queue and session.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};
use tokio::time::{sleep, timeout};

use super::{EXCHANGE, Load, PATIENCE, count, text};
use crate::crash::history::name;
use crate::rng::Rng;

const SESSIONS_EACH: u64 = 4;
/// Publications that are sent before their confirms are awaited.
const BURST_MAX: u64 = 12;
const PERSISTENT: u8 = 2;
/// Every fifth message to the exchange is rejected by the consumer of `judged`, counted over all messages of a publisher.
pub(super) const REJECTED_EACH: u64 = 5;

/// A publisher of messages: their numbers go on after a reconnect.
struct Publisher {
    me: u64,
    rng: Rng,
    total: u64,
    lines: u64,
    plain: u64,
    sessions: Vec<u64>,
}

pub(super) async fn publish(load: Arc<Load>, me: u64, seed: u64) {
    let rng = Rng::new(seed ^ (0x5e4d_0000 + me));
    let sessions = vec![0; SESSIONS_EACH as usize];
    let mut publisher = Publisher { me, rng, total: 0, lines: 0, plain: 0, sessions };
    while let Some((connection, _)) = load.reconnect().await {
        // The connection fails when the server is killed. The outcome of the last publications is then unknown.
        let _ = publisher.serve(&load, &connection).await;
    }
}

impl Publisher {
    async fn serve(&mut self, load: &Load, connection: &lapin::Connection) -> Result<()> {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        while !load.shared.is_done() {
            if load.shared.is_paused() {
                sleep(Duration::from_millis(5)).await;
                continue;
            }
            let mut sent = Vec::new();
            for _ in 0..1 + self.rng.below(BURST_MAX) {
                sent.push(self.publish_one(load, &channel).await?);
            }
            for (names, confirm) in sent {
                match timeout(PATIENCE, confirm).await?? {
                    Confirmation::Ack(None) => {
                        let mut history = load.shared.history();
                        names.iter().for_each(|name| history.acknowledged(name));
                    }
                    // Every message is routed to a queue that accepts it.
                    other => {
                        let what = format!("{}: {other:?}", names.join(", "));
                        load.shared.history().violation("settlement refused", what);
                    }
                }
            }
            sleep(Duration::from_millis(self.rng.below(6))).await;
        }
        Ok(())
    }

    /// Publishes one message. Returns its names in the history and the confirm to await.
    async fn publish_one(
        &mut self,
        load: &Load,
        channel: &Channel,
    ) -> Result<(Vec<String>, PublisherConfirm)> {
        self.total += 1;
        let id = format!("{}-{}", self.me, self.total);
        let (mut exchange, mut key, mut session) = ("", "", None);
        let (number, queues): (u64, &[&str]) = match self.rng.below(10) {
            0..3 => {
                (key, self.lines) = ("line", self.lines + 1);
                // The history treats the messages of one publisher in this queue as a session.
                session = Some(format!("line-{}", self.me));
                (self.lines, &["line"])
            }
            3..5 => {
                (key, self.plain) = ("plain", self.plain + 1);
                (self.plain, &["plain"])
            }
            5..8 => {
                let at = self.rng.below(SESSIONS_EACH) as usize;
                self.sessions[at] += 1;
                (key, session) = ("ordered", Some(format!("s{}-{at}", self.me)));
                (self.sessions[at], &["ordered"])
            }
            _ if self.total.is_multiple_of(REJECTED_EACH) => {
                exchange = EXCHANGE;
                (self.total, &["copy", "dead"])
            }
            _ => {
                exchange = EXCHANGE;
                (self.total, &["copy", "judged"])
            }
        };
        let names: Vec<String> = queues.iter().map(|queue| name(&id, queue)).collect();
        {
            let mut history = load.shared.history();
            names.iter().for_each(|name| history.sending(name, session.as_deref(), number));
        }
        load.record.published(names.iter().cloned().chain([name(&id, "judged")]));
        let body = format!("{}/{number}/{}", self.me, load.shared.padding(&mut self.rng));
        let mut headers = FieldTable::default();
        if let Some(session) = &session {
            headers.insert("x-session".into(), text(session));
        }
        let properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(id.into())
            .with_headers(headers);
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let sent = channel.basic_publish(
            exchange.into(),
            key.into(),
            options,
            body.as_bytes(),
            properties,
        );
        let confirm = timeout(PATIENCE, sent).await??;
        count(&load.record.publications);
        Ok((names, confirm))
    }
}
