//! Consumers. Each has a connection of its own, and starts again when that ends.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection};
use tokio::time::timeout;

use super::publishers::REJECTED_EACH;
use super::record::FirstDeliveries;
use super::{Load, PATIENCE, count};
use crate::crash::clients::now;
use crate::crash::history::{ReceivedMessage, name};
use crate::rng::Rng;

const PREFETCH: u16 = 20;
/// A consumer without messages looks this often whether it should stop.
const IDLE: Duration = Duration::from_millis(100);
/// A delivery belongs to the consumer until it ends; the history compares times.
const FOREVER_MS: u64 = 3_600_000;

/// What a consumer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Acknowledges in order, and leaves now and then.
    Line,
    /// Acknowledges, requeues and leaves.
    Plain,
    /// The same with sessions.
    Ordered,
    /// Acknowledges in transactions.
    Transaction,
    /// Acknowledges many messages at once.
    Copy,
    /// Rejects some messages.
    Judged,
    /// Acknowledges dead letters.
    Dead,
}

impl Role {
    fn queue(self) -> &'static str {
        match self {
            Role::Line => "line",
            Role::Plain | Role::Transaction => "plain",
            Role::Ordered => "ordered",
            Role::Copy => "copy",
            Role::Judged => "judged",
            Role::Dead => "dead",
        }
    }
}

/// How a consumer goes on after a message.
#[derive(PartialEq, Eq)]
enum Next {
    Go,
    /// Closes the channel or the connection, with messages that are not acknowledged.
    Leave,
}

/// A consumer on one connection.
struct Worker<'a> {
    load: &'a Load,
    role: Role,
    channel: &'a Channel,
    /// The number of the connection, for the history.
    holder: u64,
    /// Kills of the server before the connection was opened.
    kills: u64,
    first: FirstDeliveries,
    /// A message was requeued, so that first deliveries of this consumer can overtake it.
    requeued: bool,
    /// Delivered and not yet acknowledged, with their names.
    open: Vec<(u64, String)>,
}

pub(super) async fn consume(load: Arc<Load>, role: Role, seed: u64) {
    let mut rng = Rng::new(seed);
    while let Some((connection, kills)) = load.reconnect().await {
        let holder = load.shared.new_holder();
        let ended = serve(&load, role, &connection, (holder, kills), &mut rng).await;
        load.record.leaving();
        load.shared.history().disconnected(holder);
        if ended.is_ok() {
            let _ = timeout(PATIENCE, connection.close(200, "leaving".into())).await;
        }
        load.record.left();
    }
}

async fn serve(
    load: &Load,
    role: Role,
    connection: &Connection,
    (holder, kills): (u64, u64),
    rng: &mut Rng,
) -> Result<()> {
    loop {
        let channel = connection.create_channel().await?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        if role == Role::Transaction {
            channel.tx_select().await?;
        }
        let first = FirstDeliveries::default();
        let (requeued, open) = (false, Vec::new());
        let channel_ = &channel;
        let mut worker =
            Worker { load, role, channel: channel_, holder, kills, first, requeued, open };
        worker.run(rng).await?;
        if load.shared.is_done() {
            return Ok(());
        }
        load.shared.history().disconnected(holder);
        if rng.chance(50) {
            count(&load.record.connections_left);
            return Ok(());
        }
        count(&load.record.channels_left);
        load.record.leaving();
        let closed = channel.close(200, "leaving".into()).await;
        load.record.left();
        closed?;
    }
}

impl Worker<'_> {
    /// Consumes until the clients stop or this one leaves.
    async fn run(&mut self, rng: &mut Rng) -> Result<()> {
        let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
        let queue = self.role.queue();
        let mut consumer =
            self.channel.basic_consume(queue.into(), "".into(), options, none).await?;
        while !self.load.shared.is_done() {
            let next = match timeout(IDLE, consumer.next()).await {
                Ok(delivery) => {
                    let delivery = delivery.context("the consumer was cancelled")??;
                    self.handle(delivery, rng).await?
                }
                // What was collected is acknowledged when nothing more comes.
                Err(_) => self.acknowledge_open().await?,
            };
            if next == Next::Leave {
                return Ok(());
            }
        }
        self.acknowledge_open().await.map(drop)
    }

    async fn handle(&mut self, delivery: Delivery, rng: &mut Rng) -> Result<Next> {
        let tag = delivery.delivery_tag;
        let Some(name) = self.received(&delivery) else {
            // One of the messages that this consumer always rejects.
            self.channel.basic_reject(tag, BasicRejectOptions { requeue: false }).await?;
            count(&self.load.record.rejected);
            return Ok(Next::Go);
        };
        self.open.push((tag, name));
        // At the end, no consumer leaves or requeues any more.
        let calm = self.load.shared.is_paused();
        let chance = rng.below(200);
        match self.role {
            Role::Line | Role::Plain | Role::Ordered if chance == 0 && !calm => {
                return Ok(Next::Leave);
            }
            Role::Plain | Role::Ordered if chance < 12 && !calm => self.requeue().await?,
            Role::Transaction if self.open.len() >= 5 => return self.commit(rng).await,
            Role::Copy | Role::Line if self.open.len() < 1 + rng.below(10) as usize => {}
            Role::Transaction => {}
            _ => return self.acknowledge_open().await,
        }
        Ok(Next::Go)
    }

    /// Checks and records a delivery. Returns its name, or none if it must be rejected.
    fn received(&mut self, delivery: &Delivery) -> Option<String> {
        let id = delivery.properties.message_id().as_ref().map_or("", |id| id.as_str());
        let name = name(id, self.role.queue());
        let mut history = self.load.shared.history();
        // From a server that was killed meanwhile: other consumers may have the message already.
        let stale = history.kills != self.kills;
        let text = String::from_utf8_lossy(&delivery.data);
        let mut parts = text.split('/').map(str::parse::<u64>);
        let (publisher, number) = match (parts.next(), parts.next()) {
            (Some(Ok(publisher)), Some(Ok(number))) => (publisher, number),
            _ => {
                history.violation("changed", format!("{name} has the body {text}"));
                (0, 0)
            }
        };
        let rejects = self.role == Role::Judged && number.is_multiple_of(REJECTED_EACH);
        if !stale {
            self.load.record.delivered(&mut history, &name, delivery.redelivered);
            let ordered = !self.requeued && !delivery.redelivered;
            if ordered && matches!(self.role, Role::Plain | Role::Transaction | Role::Copy) {
                self.first.check(&mut history, &name, publisher, number);
            }
        }
        if rejects {
            return None;
        }
        if self.role == Role::Dead && !is_rejected_once(delivery) {
            history.violation("changed", format!("{name} has a wrong x-death"));
        }
        if !stale {
            let headers = delivery.properties.headers().as_ref();
            let session = headers.and_then(|headers| headers.inner().get("x-session"));
            let session = match session {
                Some(AMQPValue::LongString(text)) => Some(text.to_string()),
                _ => None,
            };
            let (at, lease, seq) = (now(), String::new(), 0);
            let until = at + FOREVER_MS;
            let got = ReceivedMessage { id: name.clone(), seq, session, number, lease, until };
            history.received(self.holder, true, at, at, &[got]);
        }
        Some(name)
    }

    /// Acknowledges everything up to the last delivery.
    async fn acknowledge_open(&mut self) -> Result<Next> {
        let Some(&(tag, _)) = self.open.last() else { return Ok(Next::Go) };
        if self.role == Role::Transaction {
            return self.finish_transaction(tag).await;
        }
        let multiple = self.open.len() > 1;
        self.completing();
        if multiple {
            count(&self.load.record.multiple);
        }
        self.channel.basic_ack(tag, BasicAckOptions { multiple }).await?;
        self.open.clear();
        Ok(Next::Go)
    }

    fn completing(&self) {
        let mut history = self.load.shared.history();
        for (_, name) in &self.open {
            history.completing(name, now());
        }
    }

    /// Acknowledges in a transaction. Sometimes it is rolled back first, which changes nothing.
    async fn commit(&mut self, rng: &mut Rng) -> Result<Next> {
        let Some(&(tag, _)) = self.open.last() else { return Ok(Next::Go) };
        if rng.chance(20) {
            self.channel.basic_ack(tag, BasicAckOptions { multiple: true }).await?;
            timeout(PATIENCE, self.channel.tx_rollback()).await??;
            count(&self.load.record.rollbacks);
        }
        self.finish_transaction(tag).await
    }

    async fn finish_transaction(&mut self, tag: u64) -> Result<Next> {
        self.completing();
        self.channel.basic_ack(tag, BasicAckOptions { multiple: true }).await?;
        timeout(PATIENCE, self.channel.tx_commit()).await??;
        count(&self.load.record.commits);
        let mut history = self.load.shared.history();
        for (_, name) in self.open.drain(..) {
            // The answer of a server that is gone still holds: it was sent after the disk had the commit.
            history.completed(&name, true, now());
        }
        Ok(Next::Go)
    }

    /// Returns everything that is open.
    async fn requeue(&mut self) -> Result<()> {
        let Some(&(tag, _)) = self.open.last() else { return Ok(()) };
        self.load.record.losing();
        self.requeued = true;
        {
            let mut history = self.load.shared.history();
            self.open.iter().for_each(|(_, name)| history.release(name));
        }
        count(&self.load.record.requeued);
        let options = BasicNackOptions { multiple: true, requeue: true };
        self.channel.basic_nack(tag, options).await?;
        self.open.clear();
        Ok(())
    }
}

/// Whether the history of a dead letter names exactly one rejection, in the queue `judged`.
fn is_rejected_once(delivery: &Delivery) -> bool {
    let headers = delivery.properties.headers().as_ref();
    let Some(AMQPValue::FieldArray(deaths)) = headers.and_then(|all| all.inner().get("x-death"))
    else {
        return false;
    };
    let [AMQPValue::FieldTable(death)] = deaths.as_slice() else { return false };
    let is = |key: &str, expected: &str| {
        let value = death.inner().get(key);
        matches!(value, Some(AMQPValue::LongString(text)) if text.to_string() == expected)
    };
    let count = death.inner().get("count");
    is("reason", "rejected")
        && is("queue", "judged")
        && matches!(count, Some(AMQPValue::LongLongInt(1)))
}
