//! Consumes partitions while there is demand for sessions. Returns them without demand, or when other processes have
//! too few.
//!
//! A partition is returned by closing its channel: RabbitMQ then requeues its messages in order, before the next
//! process becomes the active consumer. If the consumer were only cancelled, the next process would start while this
//! one still has unsettled messages.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use lapin::options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use malote_model::{DeadReason, SessionId};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{LOST_ATTEMPTS_MAX, PartitionedQueue, PartitionedState, SessionEntry, SessionMessage};
use crate::broker::BrokerError;
use crate::rabbitmq::connection::await_answer;
use crate::rabbitmq::convert::{DecodedDelivery, InboundMessage, decode_delivery};
use crate::rabbitmq::delay_queues;
use crate::rabbitmq::settle::dead_letter;
use crate::rabbitmq::tracked_channel::TrackedChannel;
use crate::retry_delay::RetryDelay;

/// How long partitions are kept without demand: a worker between two sessions needs them again.
const LINGER: Duration = Duration::from_millis(250);
/// How often to balance partitions between processes. More often at first, because the first of several processes
/// that start together gets all. Less often while balancing has no effect: RabbitMQ also counts consumers of nodes
/// that are down, and their share comes back.
const BALANCE_FIRST: Duration = Duration::from_millis(250);
const BALANCE_EVERY: Duration = Duration::from_secs(3);
const BALANCE_MAX: Duration = Duration::from_secs(300);
/// Pauses after failed attempts to consume.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A partition as this process sees it.
#[derive(Default)]
pub(super) struct Partition {
    /// The channel that consumes it.
    pub tracked: Option<Arc<TrackedChannel>>,
    /// A message arrived: this process is the active consumer.
    active: bool,
    /// It is returned as soon as none of its messages is leased.
    pub leaving: bool,
}

/// Whether this process consumes all partitions.
pub(super) enum PartitionStatus {
    Nothing,
    All(Instant),
    /// The number of the attempt and its error.
    Failed(u64, BrokerError),
}

/// This process as a member of those that share the partitions.
struct Membership {
    /// The consumer of `NAME.members`, which RabbitMQ counts.
    consumer: Option<(lapin::Channel, lapin::Consumer)>,
    /// The number of members at the last check.
    count: u32,
    balance_at: Instant,
    pause: Duration,
}

impl Default for Membership {
    /// Joins at once, so that the others count this process at their next check.
    fn default() -> Self {
        Self { consumer: None, count: 0, balance_at: Instant::now(), pause: BALANCE_FIRST }
    }
}

enum SupervisorStep {
    Wait,
    WaitUntil(Instant),
    Consume(Vec<usize>),
    Return(Vec<Arc<TrackedChannel>>),
}

pub(super) async fn supervise(partitioned: Weak<PartitionedQueue>, wakeup: Arc<Notify>) {
    let (mut backoff, mut failures) = (RetryDelay::new(RETRY_FIRST, RETRY_MAX), 0);
    let mut member = Membership::default();
    loop {
        let Some(queue) = partitioned.upgrade() else { return };
        let step = queue.step(member.balance_at);
        match step {
            SupervisorStep::Wait => {
                drop(queue);
                wakeup.notified().await;
            }
            SupervisorStep::WaitUntil(at) => {
                drop(queue);
                let _ = tokio::time::timeout_at(at, wakeup.notified()).await; // both are reasons to continue
                let Some(queue) = partitioned.upgrade() else { return };
                if Instant::now() >= member.balance_at {
                    if let Err(error) = queue.balance(&mut member).await {
                        tracing::debug!(%error, "the members that share the partitions cannot be counted");
                    }
                    member.balance_at = Instant::now() + member.pause;
                    if member.pause < BALANCE_EVERY {
                        member.pause = (member.pause * 2).min(BALANCE_EVERY);
                    }
                }
            }
            SupervisorStep::Return(channels) => {
                if channels.len() == queue.topology.partitions {
                    member = Membership::default();
                }
                for closed in join_all(channels.iter().map(|tracked| tracked.close())).await {
                    if let Err(error) = closed {
                        tracing::debug!(%error, "a partition was not returned; it returns when the connection ends");
                    }
                }
            }
            SupervisorStep::Consume(missing) => match queue.consume_partitions(&missing).await {
                Ok(()) => {
                    backoff.reset();
                    queue.partition_status.send_replace(PartitionStatus::All(Instant::now()));
                }
                Err(error) => {
                    failures += 1;
                    queue.partition_status.send_replace(PartitionStatus::Failed(failures, error));
                    drop(queue);
                    tokio::time::sleep(backoff.pause()).await;
                }
            },
        }
    }
}

impl PartitionedQueue {
    fn step(&self, balance_at: Instant) -> SupervisorStep {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.demand == 0 {
            if state.partitions.iter().all(|partition| partition.tracked.is_none()) {
                return SupervisorStep::Wait;
            }
            let until = state.idle_since + LINGER;
            if Instant::now() < until {
                return SupervisorStep::WaitUntil(until);
            }
            self.partition_status.send_replace(PartitionStatus::Nothing);
            let all = 0..state.partitions.len();
            return SupervisorStep::Return(
                all.filter_map(|number| state.forget_partition(number)).collect(),
            );
        }
        let held: Vec<usize> = state
            .sessions
            .values()
            .filter(|one| one.hold.is_some())
            .map(|one| one.partition)
            .collect();
        let leaving: Vec<usize> = (0..state.partitions.len())
            .filter(|number| state.partitions[*number].leaving && !held.contains(number))
            .collect();
        if !leaving.is_empty() {
            return SupervisorStep::Return(
                leaving.into_iter().filter_map(|one| state.forget_partition(one)).collect(),
            );
        }
        let numbered = state.partitions.iter().enumerate();
        let missing: Vec<usize> =
            numbered.filter(|(_, one)| one.tracked.is_none()).map(|(number, _)| number).collect();
        match missing.is_empty() {
            true => SupervisorStep::WaitUntil(balance_at),
            false => SupervisorStep::Consume(missing),
        }
    }

    async fn consume_partitions(self: &Arc<Self>, missing: &[usize]) -> Result<(), BrokerError> {
        let results = join_all(missing.iter().map(|&number| self.consume_partition(number))).await;
        results.into_iter().collect()
    }

    async fn consume_partition(self: &Arc<Self>, number: usize) -> Result<(), BrokerError> {
        let tracked = Arc::new(TrackedChannel::new(
            self.context.consume_connection.channel().await?,
            self.context.next_channel_number(),
        ));
        let consumer = match self.consume(&tracked, number).await {
            Ok(consumer) => consumer,
            Err(error) => {
                // The server may still start the consumer, whose messages would not be received.
                tokio::spawn(async move { tracked.close().await });
                return Err(error);
            }
        };
        if let Some(partition) = self.state.lock().partitions.get_mut(number) {
            *partition =
                Partition { tracked: Some(tracked.clone()), active: false, leaving: false };
        }
        tokio::spawn(pump(Arc::downgrade(self), number, tracked, consumer));
        Ok(())
    }

    async fn consume(
        &self,
        tracked: &TrackedChannel,
        number: usize,
    ) -> Result<lapin::Consumer, BrokerError> {
        let prefetch = self.context.url.prefetch;
        await_answer(tracked.channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        let queue = self.topology.names.partition(number);
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consume =
            tracked.channel.basic_consume(queue, ShortString::default(), options, arguments);
        await_answer(consume).await
    }

    /// Counts the members and returns partitions beyond this process's share. The consumers of a partition itself
    /// cannot be counted: with a single active consumer, RabbitMQ reports only the active one.
    async fn balance(self: &Arc<Self>, member: &mut Membership) -> Result<(), BrokerError> {
        let members = self.topology.names.members();
        if member.consumer.as_ref().is_none_or(|(channel, _)| !channel.status().connected()) {
            let channel = self.context.consume_connection.channel().await?;
            let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
            let consume =
                channel.basic_consume(members.clone(), ShortString::default(), options, arguments);
            let consumer = await_answer(consume).await?;
            member.consumer = Some((channel, consumer));
        }
        let channel = self.context.consume_connection.channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(members, options, FieldTable::default());
        let count = await_answer(queue).await?.consumer_count().max(1);
        let share = self.topology.partitions.div_ceil(count as usize);
        let mut state = self.state.lock();
        let active = state.partitions.iter_mut().filter(|one| one.active && one.tracked.is_some());
        let mut returns_any = false;
        for partition in active.skip(share) {
            partition.leaving = true;
            returns_any = true;
        }
        let held: Vec<SessionId> = state.holds.values().cloned().collect();
        for id in held {
            if state.is_leaving(&id) {
                self.end_hold_if_idle(&mut state, &id);
            }
        }
        if count != member.count {
            (member.count, member.pause) = (count, member.pause.min(BALANCE_EVERY));
        } else if returns_any {
            member.pause = (member.pause * 2).min(BALANCE_MAX);
        }
        Ok(())
    }

    /// Handles the loss of a partition's channel: all its holds and leases end.
    fn partition_lost(&self, number: usize, tracked: &Arc<TrackedChannel>) {
        tracked.lost.cancel();
        let mut state = self.state.lock();
        let is_current = |one: &Partition| {
            one.tracked.as_ref().is_some_and(|current| Arc::ptr_eq(current, tracked))
        };
        if state.partitions.get(number).is_some_and(is_current) {
            state.forget_partition(number);
            self.partition_status.send_replace(PartitionStatus::Nothing);
            self.wakeup.notify_one();
        }
    }

    fn add_message(
        self: &Arc<Self>,
        number: usize,
        tracked: &Arc<TrackedChannel>,
        tag: u64,
        inbound: InboundMessage,
    ) {
        let id = inbound.message.session.clone();
        let Some(id) = id.filter(|id| inbound.at.is_none() && self.accepts_session(id)) else {
            tokio::spawn(self.clone().republish_elsewhere(tracked.clone(), tag, inbound));
            return;
        };
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(partition) = state.partitions.get_mut(number) else { return };
        if partition.tracked.as_ref().is_none_or(|current| !Arc::ptr_eq(current, tracked)) {
            return; // RabbitMQ requeues it with its channel
        }
        partition.active = true;
        state.arrivals += 1;
        let origin = inbound.message.origin_id.as_deref();
        let known = origin.and_then(|origin| state.lost_attempts.remove(origin));
        let changed_locally = known.is_some();
        let inbound = match known {
            Some(known) => known.merge_redelivery(inbound),
            None => inbound,
        };
        let item = SessionMessage { tracked: tracked.clone(), tag, inbound, changed_locally };
        let session = state.sessions.entry(id.clone()).or_insert_with(|| SessionEntry::new(number));
        session.buffered.insert(state.arrivals, item);
        match &session.hold {
            Some(hold) => hold.arrival.notify_one(),
            None => self.update_ready(state, &id),
        }
    }

    /// Delays a message that is not due yet once more. Dead-letters a message whose session the queue does not accept.
    async fn republish_elsewhere(
        self: Arc<Self>,
        tracked: Arc<TrackedChannel>,
        tag: u64,
        inbound: InboundMessage,
    ) {
        let publication = match inbound.at {
            Some(at) => {
                delay_queues::publication(&self.context, &self.topology, &inbound, at).await
            }
            None => {
                let reason = DeadReason::NoSession;
                let republish = dead_letter(inbound, reason.word().to_owned(), reason.text());
                republish.publication(&self.context, &self.topology).await
            }
        };
        let stored = match publication {
            Ok(publication) => self.context.publisher.publish_one(publication).await,
            Err(error) => Err(error),
        };
        let settled = match stored {
            Ok(()) => tracked.ack(&[tag]).await,
            Err(error) => {
                tracing::warn!(%error, "a message that must be moved could not be published; it is requeued");
                tracked.requeue(&[tag]).await
            }
        };
        if settled.is_err() {
            tracing::debug!("the channel of the message is lost: RabbitMQ redelivers it");
        }
    }

    async fn answer_probe(
        &self,
        number: usize,
        tracked: &Arc<TrackedChannel>,
        tag: u64,
        probe: u64,
    ) {
        let asked = self.state.lock().probes.remove(&probe);
        if let Some(to) = asked {
            let _ = to.send(number); // the caller gave up
        }
        let _ = tracked.ack(&[tag]).await; // a probe of a lost channel expires
    }
}

async fn pump(
    partitioned: Weak<PartitionedQueue>,
    number: usize,
    tracked: Arc<TrackedChannel>,
    mut consumer: lapin::Consumer,
) {
    while let Some(Ok(delivery)) = consumer.next().await {
        let Some(partitioned) = partitioned.upgrade() else { return };
        let tag = delivery.delivery_tag;
        tracked.track(tag);
        match decode_delivery(delivery, true) {
            DecodedDelivery::Message(inbound) => {
                partitioned.add_message(number, &tracked, tag, inbound)
            }
            DecodedDelivery::Probe(probe) => {
                partitioned.answer_probe(number, &tracked, tag, probe).await
            }
        }
    }
    if let Some(partitioned) = partitioned.upgrade() {
        partitioned.partition_lost(number, &tracked);
    }
}

impl PartitionedState {
    /// Forgets a partition, its sessions and its messages.
    fn forget_partition(&mut self, number: usize) -> Option<Arc<TrackedChannel>> {
        let tracked = std::mem::take(self.partitions.get_mut(number)?).tracked?;
        let session_ids: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.partition == number)
            .map(|(id, _)| id.clone())
            .collect();
        for id in session_ids {
            let Some(session) = self.sessions.remove(&id) else { continue };
            if let Some(hold) = session.hold {
                hold.lost.cancel();
                self.holds.remove(&hold.held.hold);
            }
            for (lease, _) in session.leased.values() {
                self.leases.remove(lease);
            }
            let items = session.buffered.into_values();
            let items = items.chain(session.leased.into_values().map(|(_, item)| item));
            for item in items.filter(|item| item.changed_locally) {
                let origin = item.inbound.message.origin_id.clone();
                if let Some(origin) =
                    origin.filter(|_| self.lost_attempts.len() < LOST_ATTEMPTS_MAX)
                {
                    self.lost_attempts.insert(origin, item.inbound);
                }
            }
        }
        Some(tracked)
    }
}
