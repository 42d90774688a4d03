//! Gets partitions while somebody wants sessions, and gives them back when nobody does, or when others have too few.
//!
//! A partition is given back by the end of its channel: only then does RabbitMQ return what came over it, in order, and
//! before it makes the next process the active one. A consumer that is only cancelled would have a successor while its
//! last messages are still in hand.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use lapin::options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use malote_model::{DeadReason, SessionId};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Hall, Item, REMEMBERED_MAX, Session, State};
use crate::broker::BrokerError;
use crate::rabbitmq::convert::{Arrived, Came, incoming};
use crate::rabbitmq::link::answered;
use crate::rabbitmq::settle::letter;
use crate::rabbitmq::wait;
use crate::rabbitmq::way::Way;

/// How long partitions that nobody wants are kept: a worker between two sessions wants them again.
const LINGER: Duration = Duration::from_millis(250);
/// How often it is looked whether others have too few. More often at first: of several that begin together one has all. More
/// rarely while that changes nothing: RabbitMQ also counts those whose node is gone, and what is meant for them comes back.
const BALANCE_FIRST: Duration = Duration::from_millis(250);
const BALANCE_EVERY: Duration = Duration::from_secs(3);
const BALANCE_MAX: Duration = Duration::from_secs(300);
/// How long to wait after a failure; doubled each time.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What this process has of one partition.
#[derive(Default)]
pub(super) struct Partition {
    /// Its channel, while it is asked for.
    pub way: Option<Arc<Way>>,
    /// Something came: this process is the active one.
    active: bool,
    /// It goes to another process as soon as nothing of it is in hand here.
    pub leaving: bool,
}

/// Whether all partitions were asked for.
pub(super) enum Have {
    Nothing,
    All(Instant),
    /// The attempt of this number failed.
    Failed(u64, BrokerError),
}

/// This process among those that share the partitions.
struct Membership {
    /// It is counted as long as this lives.
    link: Option<(lapin::Channel, lapin::Consumer)>,
    /// How many there were when it was looked last.
    count: u32,
    look_at: Instant,
    pause: Duration,
}

impl Default for Membership {
    /// It is to be counted at once: the others look when their time has come.
    fn default() -> Self {
        Self { link: None, count: 0, look_at: Instant::now(), pause: BALANCE_FIRST }
    }
}

enum Step {
    Wait,
    WaitUntil(Instant),
    Ask(Vec<usize>),
    GiveBack(Vec<Arc<Way>>),
}

pub(super) async fn supervise(hall: Weak<Hall>, wanted: Arc<Notify>) {
    let (mut pause, mut failures) = (PAUSE_FIRST, 0);
    let mut member = Membership::default();
    loop {
        let Some(here) = hall.upgrade() else { return };
        let step = here.step(member.look_at);
        match step {
            Step::Wait => {
                drop(here);
                wanted.notified().await;
            }
            Step::WaitUntil(at) => {
                drop(here);
                let _ = tokio::time::timeout_at(at, wanted.notified()).await; // either is a reason to look
                let Some(here) = hall.upgrade() else { return };
                if Instant::now() >= member.look_at {
                    if let Err(error) = here.balance(&mut member).await {
                        tracing::debug!(%error, "nobody knows who shares the partitions");
                    }
                    member.look_at = Instant::now() + member.pause;
                    if member.pause < BALANCE_EVERY {
                        member.pause = (member.pause * 2).min(BALANCE_EVERY);
                    }
                }
            }
            Step::GiveBack(ways) => {
                if ways.len() == here.topology.partitions {
                    member = Membership::default();
                }
                for closed in join_all(ways.iter().map(|way| way.close())).await {
                    if let Err(error) = closed {
                        tracing::debug!(%error, "a partition was not given back; the connection's end does it");
                    }
                }
            }
            Step::Ask(missing) => match here.ask(&missing).await {
                Ok(()) => {
                    pause = PAUSE_FIRST;
                    here.have.send_replace(Have::All(Instant::now()));
                }
                Err(error) => {
                    failures += 1;
                    here.have.send_replace(Have::Failed(failures, error));
                    drop(here);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            },
        }
    }
}

impl Hall {
    fn step(&self, look_at: Instant) -> Step {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.demand == 0 {
            if state.partitions.iter().all(|partition| partition.way.is_none()) {
                return Step::Wait;
            }
            let until = state.idle_since + LINGER;
            if Instant::now() < until {
                return Step::WaitUntil(until);
            }
            self.have.send_replace(Have::Nothing);
            let all = 0..state.partitions.len();
            return Step::GiveBack(all.filter_map(|number| state.forget(number)).collect());
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
            return Step::GiveBack(
                leaving.into_iter().filter_map(|one| state.forget(one)).collect(),
            );
        }
        let numbered = state.partitions.iter().enumerate();
        let missing: Vec<usize> =
            numbered.filter(|(_, one)| one.way.is_none()).map(|(number, _)| number).collect();
        match missing.is_empty() {
            true => Step::WaitUntil(look_at),
            false => Step::Ask(missing),
        }
    }

    async fn ask(self: &Arc<Self>, missing: &[usize]) -> Result<(), BrokerError> {
        let asked = join_all(missing.iter().map(|&number| self.ask_one(number))).await;
        asked.into_iter().collect()
    }

    async fn ask_one(self: &Arc<Self>, number: usize) -> Result<(), BrokerError> {
        let way = Arc::new(Way::new(self.tools.inn.channel().await?, self.tools.number()));
        let consumer = match self.consume(&way, number).await {
            Ok(consumer) => consumer,
            Err(error) => {
                // What was asked for may be given late: nobody would take what comes then.
                tokio::spawn(async move { way.close().await });
                return Err(error);
            }
        };
        if let Some(partition) = self.state.lock().partitions.get_mut(number) {
            *partition = Partition { way: Some(way.clone()), active: false, leaving: false };
        }
        tokio::spawn(pump(Arc::downgrade(self), number, way, consumer));
        Ok(())
    }

    async fn consume(&self, way: &Way, number: usize) -> Result<lapin::Consumer, BrokerError> {
        let prefetch = self.tools.target.prefetch;
        answered(way.channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        let queue = self.topology.names.partition(number);
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consume = way.channel.basic_consume(queue, ShortString::default(), options, arguments);
        answered(consume).await
    }

    /// Sees how many share the partitions, and gives away what is more than this process's share. How many ask for a
    /// partition itself RabbitMQ does not tell: of a single active consumer it counts the active one.
    async fn balance(self: &Arc<Self>, member: &mut Membership) -> Result<(), BrokerError> {
        let members = self.topology.names.members();
        if member.link.as_ref().is_none_or(|(channel, _)| !channel.status().connected()) {
            let channel = self.tools.inn.channel().await?;
            let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
            let consume =
                channel.basic_consume(members.clone(), ShortString::default(), options, arguments);
            let consumer = answered(consume).await?;
            member.link = Some((channel, consumer));
        }
        let channel = self.tools.inn.channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(members, options, FieldTable::default());
        let count = answered(queue).await?.consumer_count().max(1);
        let share = self.topology.partitions.div_ceil(count as usize);
        let mut state = self.state.lock();
        let active = state.partitions.iter_mut().filter(|one| one.active && one.way.is_some());
        let mut gives = false;
        for partition in active.skip(share) {
            partition.leaving = true;
            gives = true;
        }
        let held: Vec<SessionId> = state.holds.values().cloned().collect();
        for id in held {
            if state.is_leaving(&id) {
                self.end_idle(&mut state, &id);
            }
        }
        if count != member.count {
            (member.count, member.pause) = (count, member.pause.min(BALANCE_EVERY));
        } else if gives {
            member.pause = (member.pause * 2).min(BALANCE_MAX);
        }
        Ok(())
    }

    /// A partition's channel is lost: with it every hold and every lease.
    fn lose(&self, number: usize, way: &Arc<Way>) {
        way.lost.cancel();
        let mut state = self.state.lock();
        let ours = |one: &Partition| one.way.as_ref().is_some_and(|have| Arc::ptr_eq(have, way));
        if state.partitions.get(number).is_some_and(ours) {
            state.forget(number);
            self.have.send_replace(Have::Nothing);
            self.wanted.notify_one();
        }
    }

    fn arrived(self: &Arc<Self>, number: usize, way: &Arc<Way>, tag: u64, arrived: Arrived) {
        let id = arrived.message.session.clone();
        let Some(id) = id.filter(|id| arrived.at.is_none() && self.takes(id)) else {
            tokio::spawn(self.clone().not_here(way.clone(), tag, arrived));
            return;
        };
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(partition) = state.partitions.get_mut(number) else { return };
        if partition.way.as_ref().is_none_or(|have| !Arc::ptr_eq(have, way)) {
            return; // it goes back with its channel
        }
        partition.active = true;
        state.arrivals += 1;
        let origin = arrived.message.origin_id.as_deref();
        let known = origin.and_then(|origin| state.remembered.remove(origin));
        let altered = known.is_some();
        let arrived = match known {
            Some(known) => known.again(arrived),
            None => arrived,
        };
        let item = Item { way: way.clone(), tag, arrived, altered };
        let session = state.sessions.entry(id.clone()).or_insert_with(|| Session::new(number));
        session.here.insert(state.arrivals, item);
        match &session.hold {
            Some(hold) => hold.came.notify_one(),
            None => self.look(state, &id),
        }
    }

    /// What came too early waits once more; what has no session that the queue takes is dead.
    async fn not_here(self: Arc<Self>, way: Arc<Way>, tag: u64, arrived: Arrived) {
        let parcel = match arrived.at {
            Some(at) => wait::parcel(&self.tools, &self.topology, &arrived, at).await,
            None => {
                let reason = DeadReason::NoSession;
                let letter = letter(arrived, reason.word().to_owned(), reason.text());
                letter.parcel(&self.tools, &self.topology).await
            }
        };
        let stored = match parcel {
            Ok(parcel) => self.tools.publisher.publish_one(parcel).await,
            Err(error) => Err(error),
        };
        let told = match stored {
            Ok(()) => way.ack(&[tag]).await,
            Err(error) => {
                tracing::warn!(%error, "a message that belongs elsewhere goes back");
                way.requeue(&[tag]).await
            }
        };
        if told.is_err() {
            tracing::debug!("its channel is lost: it comes again");
        }
    }

    async fn probed(&self, number: usize, way: &Arc<Way>, tag: u64, probe: u64) {
        let asked = self.state.lock().probes.remove(&probe);
        if let Some(to) = asked {
            let _ = to.send(number); // whoever asked may have gone
        }
        let _ = way.ack(&[tag]).await; // a channel that is lost takes it with it
    }
}

async fn pump(hall: Weak<Hall>, number: usize, way: Arc<Way>, mut consumer: lapin::Consumer) {
    while let Some(Ok(delivery)) = consumer.next().await {
        let Some(hall) = hall.upgrade() else { return };
        let tag = delivery.delivery_tag;
        way.arrived(tag);
        match incoming(delivery, true, &hall.tools.chance) {
            Came::Message(arrived) => hall.arrived(number, &way, tag, arrived),
            Came::Probe(probe) => hall.probed(number, &way, tag, probe).await,
        }
    }
    if let Some(hall) = hall.upgrade() {
        hall.lose(number, &way);
    }
}

impl State {
    /// Forgets a partition and all that came of it.
    fn forget(&mut self, number: usize) -> Option<Arc<Way>> {
        let way = std::mem::take(self.partitions.get_mut(number)?).way?;
        let gone: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.partition == number)
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            let Some(session) = self.sessions.remove(&id) else { continue };
            if let Some(hold) = session.hold {
                hold.lost.cancel();
                self.holds.remove(&hold.held.hold);
            }
            for (lease, _) in session.out.values() {
                self.leases.remove(lease);
            }
            let items = session.here.into_values();
            let items = items.chain(session.out.into_values().map(|(_, item)| item));
            for item in items.filter(|item| item.altered) {
                let origin = item.arrived.message.origin_id.clone();
                if let Some(origin) = origin.filter(|_| self.remembered.len() < REMEMBERED_MAX) {
                    self.remembered.insert(origin, item.arrived);
                }
            }
        }
        Some(way)
    }
}
