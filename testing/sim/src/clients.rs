//! Simulated clients and their requests. They know only the answers they got, and they try old tokens again.

mod specs;
pub(crate) mod topics;

use std::rc::Rc;

use bytes::Bytes;
use malote_engine::command::{Accept, Attach, ConnectionId, MessageGrant, Reply};
use malote_engine::{ConsumerId, MoveItem, Wants};
use malote_model::{
    Address, Body, BodyKind, Changes, LeaseToken, Message, Properties, QueueName, QueueSpec,
    Refusal, Seq, SessionId, Sessions, Settlement, Timestamp, Value, When,
};

use self::specs::{lifetime, spec, updated};
use crate::decide::Ask;
use crate::model::{Availability, SentMessage, State};
use crate::rng::Rng;
use crate::world::World;

#[derive(Default)]
struct Client {
    /// Its leases and holds end with this connection.
    connection: Option<u64>,
    /// Leased messages: token, queue, sequence number.
    leases: Vec<(LeaseToken, QueueName, u64)>,
    holds: Vec<(LeaseToken, QueueName, SessionId)>,
    consumers: Vec<(ConsumerId, QueueName)>,
    /// Tokens of earlier leases and holds.
    stale: Vec<LeaseToken>,
}

/// All clients, and the queues that they use.
pub struct Clients {
    clients: Vec<Client>,
    pub queues: Vec<(QueueName, QueueSpec)>,
    /// The temporary queues that exist now.
    passing: Vec<QueueName>,
    subscriptions: Vec<QueueName>,
    next_consumer: u64,
    next_connection: u64,
    next_message: u64,
}

const SESSIONS: [&str; 4] = ["s1", "s2", "s3", "s4"];

/// A temporary queue, and a queue that belongs to one connection.
pub(super) const PASSING: &str = "passing";
const PRIVATE: &str = "private";

/// Queues that forward their messages, also to each other.
const RELAYS: [&str; 2] = ["relay", "onward"];

/// Few de-duplication keys, so that they collide often.
const KEYS: u64 = 8;

/// One of this number of attached consumers is exclusive.
const EXCLUSIVE_EVERY: u64 = 16;

fn name(name: &str) -> QueueName {
    QueueName::new(name).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn session(id: &str) -> SessionId {
    SessionId::new(id).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> Option<&'a T> {
    if from.is_empty() { None } else { from.get(rng.below(from.len() as u64) as usize) }
}

impl Clients {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let fixed = || Sessions::Fixed(SESSIONS[..3].iter().map(|id| session(id)).collect());
        let graves = match rng.below(3) {
            0 => Sessions::Dynamic,
            1 => fixed(),
            _ => Sessions::None,
        };
        let graves = specs::graves(rng, graves);
        let other = if rng.chance(50) { Sessions::Dynamic } else { Sessions::None };
        let queues = vec![
            (name("graves"), graves),
            (name("plain"), spec(rng, Sessions::None)),
            (name("dynamic"), spec(rng, Sessions::Dynamic)),
            (name("fixed"), spec(rng, fixed())),
            (name("other"), spec(rng, other)),
            (name(RELAYS[0]), specs::relay(rng)),
            (name(RELAYS[1]), specs::relay(rng)),
        ];
        let client = |n: u64| Client {
            connection: n.is_multiple_of(2).then_some(n + 1),
            ..Client::default()
        };
        let clients = (0..4).map(client).collect();
        let (passing, subscriptions) = (Vec::new(), Vec::new());
        Self {
            clients,
            queues,
            passing,
            subscriptions,
            next_consumer: 1,
            next_connection: 100,
            next_message: 1,
        }
    }

    /// A consumer for the world itself.
    pub(crate) fn new_consumer(&mut self) -> ConsumerId {
        self.consumer()
    }

    fn consumer(&mut self) -> ConsumerId {
        self.next_consumer += 1;
        ConsumerId(self.next_consumer)
    }

    /// The broker restarted: connections are new, and old tokens are kept so that clients try them again.
    pub(crate) fn restarted(&mut self) {
        for client in &mut self.clients {
            client.consumers.clear();
            if client.connection.is_some() {
                self.next_connection += 1;
                client.connection = Some(self.next_connection);
                client.stale.extend(client.leases.drain(..).map(|(token, ..)| token));
                client.stale.extend(client.holds.drain(..).map(|(token, ..)| token));
            }
        }
    }

    pub(crate) fn delivered(&mut self, id: ConsumerId, grants: &[MessageGrant]) {
        for client in &mut self.clients {
            let Some((_, queue)) = client.consumers.iter().find(|(have, _)| *have == id) else {
                continue;
            };
            let queue = queue.clone();
            let leases =
                grants.iter().filter_map(|grant| Some((grant.lease?, queue.clone(), grant.seq.0)));
            client.leases.extend(leases);
        }
    }

    pub(crate) fn ended(&mut self, id: ConsumerId) {
        self.clients.iter_mut().for_each(|client| client.consumers.retain(|(have, _)| *have != id));
    }

    pub(crate) fn answered(&mut self, client: usize, ask: &Ask, answer: &Result<Reply, Refusal>) {
        let client = &mut self.clients[client];
        match (ask, answer) {
            (
                Ask::Attach(Attach { queue, .. }) | Ask::ReceiveDeferred { queue, .. },
                Ok(Reply::Delivered(grants)),
            ) => {
                let leases = grants.iter().filter_map(|g| Some((g.lease?, queue.clone(), g.seq.0)));
                client.leases.extend(leases);
            }
            (Ask::Attach(attach), Ok(Reply::Done)) if attach.once_until.is_none() => {}
            (Ask::Attach(attach), _) => client.consumers.retain(|(id, _)| *id != attach.consumer),
            (Ask::Accept(accept), Ok(Reply::Accepted(Some(held)))) => {
                client.holds.push((held.hold, accept.queue.clone(), held.session.clone()));
            }
            _ => {}
        }
    }

    /// The next request of a random client.
    pub(crate) fn ask(world: &mut World) -> (usize, Ask) {
        let World { rng, clients: this, now, model, .. } = world;
        let (now, state) = (*now, &model.state);
        let who = rng.below(this.clients.len() as u64) as usize;
        this.passing = [PASSING, PRIVATE].map(name).into();
        this.passing.retain(|name| state.queues.contains_key(name));
        let subscriptions = state.queues.keys().filter(|name| name.subscription_of().is_some());
        this.subscriptions = subscriptions.cloned().collect();
        let ask = loop {
            if let Some(ask) = this.one(rng, who, now, state) {
                break ask;
            }
        };
        (who, ask)
    }

    /// A time at which a condition just begins or ends, with requests for that time.
    pub(crate) fn at_the_edge(world: &mut World) -> Option<(u64, Vec<(usize, Ask)>)> {
        let World { rng, clients: this, now, model, .. } = world;
        let (now, queues) = (*now, &model.state.queues);
        if rng.chance(50) {
            // Send a message again at the end of the de-duplication window.
            let known: Vec<_> = queues
                .iter()
                .filter_map(|(name, q)| Some((name, q.spec.dedup?, q)))
                .flat_map(|(name, dedup, q)| q.seen.values().map(move |k| (name, dedup, k)))
                .filter(|(_, dedup, known)| known.at + dedup.window_ms > now)
                .collect();
            let (name, dedup, known) = pick(rng, &known)?;
            let at = known.at + dedup.window_ms - rng.below(2);
            let again =
                Ask::Send { items: vec![((*name).clone().into(), known.sent_message.clone())] };
            return Some((at.max(now), vec![(0, again)]));
        }
        if rng.chance(50) {
            return Some((now, this.last_rules(rng, &model.state)?));
        }
        // The last consumers of a queue detach, and perhaps another one attaches before the turn ends.
        let auto: Vec<_> = queues.iter().filter(|(_, q)| q.spec.auto_delete).collect();
        let queue = (*pick(rng, &auto)?.0).clone();
        let of = model.consumers.iter().filter(|(_, c)| c.queue == queue);
        let mut asks: Vec<_> = of.map(|(&consumer, _)| (0, Ask::Detach { consumer })).collect();
        let consumer = this.consumer();
        let wants = Wants::Any { per_session: 1 };
        let attach = Attach {
            free_standing: false,
            consumer,
            connection: None,
            queue: queue.clone(),
            wants,
            credit: 1,
            take: false,
            lock_ms: None,
            once_until: None,
            priority: 0,
            exclusive: false,
        };
        if rng.chance(60) {
            this.clients[0].consumers.push((consumer, queue));
            asks.push((0, Ask::Attach(attach)));
        }
        Some((now, asks))
    }

    /// A tenant sends many messages and most of them are delivered at once; then other tenants send.
    pub(crate) fn noise(World { rng, clients: this, now, .. }: &mut World) -> Vec<(usize, Ask)> {
        let (queue, until) = (name("plain"), Timestamp(*now));
        let noisy = SESSIONS[rng.below(2) as usize];
        let mut send = |count: u64, of: Option<&str>| {
            let items = (0..count).map(|_| {
                let number = this.next_message;
                this.next_message += 1;
                let message_id = Some(format!("m{number}"));
                let session = of.map(session);
                let message = Message { message_id, session, ..Message::default() };
                (queue.clone().into(), Rc::new(SentMessage::new(message, false)))
            });
            Ask::Send { items: items.collect() }
        };
        let many = send(30 + rng.below(40), Some(noisy));
        let quiet = pick(rng, &SESSIONS).copied().filter(|_| rng.chance(60));
        let few = send(1 + rng.below(5), quiet);
        let mut receive = |credit: u64| {
            let consumer = this.consumer();
            Ask::Attach(Attach {
                free_standing: false,
                consumer,
                connection: None,
                queue: queue.clone(),
                wants: Wants::Any { per_session: 1 },
                credit: credit as u32,
                take: false,
                lock_ms: Some(20_000),
                once_until: Some(until),
                priority: 0,
                exclusive: false,
            })
        };
        let (most, some) = (receive(20 + rng.below(40)), receive(1 + rng.below(9)));
        vec![(1, many), (1, most), (1, few), (1, some)]
    }

    fn queue(&self, rng: &mut Rng) -> QueueName {
        if let Some(queue) = pick(rng, &self.subscriptions).filter(|_| rng.chance(25)) {
            return if rng.chance(12) { queue.dead_letters() } else { queue.clone() };
        }
        let n = rng.below(self.queues.len() as u64 + 2) as usize;
        let passing = name(if n == self.queues.len() { PASSING } else { PRIVATE });
        let there = self.passing.contains(&passing) || rng.chance(10);
        let passing = if there { passing } else { name("plain") };
        let queue = self.queues.get(n).map_or(passing, |(name, _)| name.clone());
        if rng.chance(12) { queue.dead_letters() } else { queue }
    }

    fn message(
        &mut self,
        rng: &mut Rng,
        queue: &QueueName,
        state: &State,
        now: u64,
    ) -> Rc<SentMessage> {
        let queue = state.queues.get(queue);
        let wants = queue.is_some_and(|q| q.sessioned());
        let known = queue.is_some_and(|q| q.spec.dedup.is_some());
        self.sent_message(rng, wants, known, now)
    }

    /// A message: with a session if the queue wants one, often with a key if the queue remembers keys.
    fn sent_message(
        &mut self,
        rng: &mut Rng,
        wants: bool,
        known: bool,
        now: u64,
    ) -> Rc<SentMessage> {
        let number = self.next_message;
        self.next_message += 1;
        let len = [0, 20, 200, 1500][rng.below(4) as usize];
        // A body that others may have too, and a generated id: only the content identifies the message.
        let (id_given, salt) = if rng.chance(15) { (true, rng.below(8)) } else { (false, number) };
        let bytes: Vec<u8> = (0..len).map(|i: u64| (salt * 31 + i) as u8).collect();
        let session = (wants || rng.chance(10)).then(|| session(SESSIONS[rng.below(4) as usize]));
        let session = session.filter(|_| !rng.chance(2));
        let when = match rng.below(20) {
            0 | 1 => When::Delay(rng.below(4000)),
            // Often the same time as other messages.
            2 | 3 => When::At(Timestamp((now + rng.below(8000)).next_multiple_of(500))),
            _ => When::Now,
        };
        let mut properties = Properties::new();
        for n in 0..rng.below(3) {
            properties.set(format!("p{n}"), Value::U64(number));
        }
        topics::properties(rng, &mut properties);
        if rng.chance(60) {
            let id = SESSIONS[rng.below(4) as usize];
            properties.set(specs::SESSION_PROPERTY, Value::String(id.to_owned()));
        }
        let body = Body { bytes: Bytes::from(bytes), kind: BodyKind::Bytes };
        let message_id = Some(format!("m{number}"));
        let subject = rng.chance(30).then(|| topics::SUBJECT.to_owned());
        let keyed = !id_given && rng.chance(if known { 60 } else { 10 });
        let dedup_id = keyed.then(|| format!("key {}", rng.below(KEYS)));
        let priority = if rng.chance(40) { rng.below(12) as u8 } else { 0 };
        let ttl_ms = rng.chance(20).then(|| lifetime(rng));
        let message = Message {
            message_id,
            session,
            subject,
            properties,
            when,
            body,
            dedup_id,
            priority,
            ttl_ms,
            key: topics::key(rng),
            ..Message::default()
        };
        Rc::new(SentMessage::new(message, id_given))
    }

    fn letters(
        &mut self,
        rng: &mut Rng,
        state: &State,
        now: u64,
        several: bool,
        count: u64,
    ) -> Vec<(Address, Rc<SentMessage>)> {
        let to = self.address(rng);
        let items = (0..count).map(|_| {
            let to = if several { self.address(rng) } else { to.clone() };
            let message = match &to {
                Address::Queue(queue) => self.message(rng, queue, state, now),
                Address::Topic(topic) => self.publication(rng, topic, state, now),
            };
            (to, message)
        });
        items.collect()
    }

    fn one(&mut self, rng: &mut Rng, who: usize, now: u64, state: &State) -> Option<Ask> {
        let connection = self.clients[who].connection;
        let bound = connection.filter(|_| rng.chance(80)).map(ConnectionId);
        let lock_ms = rng.chance(30).then(|| 300 + rng.below(4000));
        Some(match rng.below(100) {
            0..24 => {
                let several = rng.chance(15);
                let count = 1 + if rng.chance(30) { rng.below(6) } else { 0 };
                Ask::Send { items: self.letters(rng, state, now, several, count) }
            }
            24..40 => {
                // A long poll.
                let queue = self.queue(rng);
                let consumer = self.consumer();
                let client = &self.clients[who];
                let hold = pick(rng, &client.holds).filter(|_| rng.chance(50));
                let (queue, wants) = match hold {
                    Some((token, queue, _)) => (queue.clone(), Wants::Held(*token)),
                    None => {
                        (queue, Wants::Any { per_session: [1, 1, 3, 10][rng.below(4) as usize] })
                    }
                };
                let until = Timestamp(now + if rng.chance(40) { rng.below(3000) } else { 0 });
                Ask::Attach(Attach {
                    free_standing: rng.chance(30),
                    consumer,
                    connection: bound,
                    queue,
                    wants,
                    credit: 1 + rng.below(8) as u32,
                    take: rng.chance(12),
                    lock_ms,
                    once_until: Some(until),
                    priority: 0,
                    exclusive: false,
                })
            }
            40..46 => {
                let queue = self.queue(rng);
                let consumer = self.consumer();
                let client = &mut self.clients[who];
                let hold = pick(rng, &client.holds).filter(|_| rng.chance(60));
                let (queue, wants) = match hold {
                    Some((token, queue, _)) => (queue.clone(), Wants::Held(*token)),
                    None => (queue, Wants::Any { per_session: 1 + rng.below(3) as u32 }),
                };
                client.consumers.push((consumer, queue.clone()));
                Ask::Attach(Attach {
                    free_standing: rng.chance(30),
                    consumer,
                    connection: bound,
                    queue,
                    wants,
                    credit: rng.below(5) as u32,
                    take: rng.chance(10),
                    lock_ms,
                    once_until: None,
                    priority: 0,
                    // No choice of its own, so that the other choices of a seed stay the same.
                    exclusive: consumer.0 % EXCLUSIVE_EVERY == 1,
                })
            }
            46..50 => {
                let &(consumer, _) = pick(rng, &self.clients[who].consumers)?;
                Ask::Credit { consumer, credit: rng.below(5) as u32, replace: rng.chance(40) }
            }
            50..52 => {
                let client = &mut self.clients[who];
                let &(consumer, _) = pick(rng, &client.consumers)?;
                client.consumers.retain(|(id, _)| *id != consumer);
                Ask::Detach { consumer }
            }
            52..54 => {
                let client = &mut self.clients[who];
                let connection = client.connection?;
                self.next_connection += 1;
                client.connection = Some(self.next_connection);
                client.consumers.clear();
                client.stale.extend(client.leases.drain(..).map(|(token, ..)| token));
                client.stale.extend(client.holds.drain(..).map(|(token, ..)| token));
                Ask::Disconnect { connection, clean: rng.chance(50) }
            }
            54..70 => self.settle(rng, who, state)?,
            70..74 => self.commit(rng, who, state, now)?,
            74..78 => {
                let client = &self.clients[who];
                let mut leases: Vec<_> = client.leases.iter().map(|(token, ..)| *token).collect();
                leases.extend(client.holds.iter().map(|(token, ..)| *token));
                leases.retain(|_| rng.chance(50));
                leases.extend(pick(rng, &client.stale).filter(|_| rng.chance(20)));
                if leases.is_empty() {
                    return None;
                }
                Ask::Renew { leases, lock_ms }
            }
            78..84 => {
                let queue = self.queue(rng);
                let consumer = self.consumer();
                let session = rng.chance(50).then(|| session(SESSIONS[rng.below(4) as usize]));
                let until = Timestamp(now + if rng.chance(50) { rng.below(3000) } else { 0 });
                Ask::Accept(Accept { consumer, connection: bound, queue, session, lock_ms, until })
            }
            84..86 => {
                let client = &mut self.clients[who];
                let &(hold, ..) = pick(rng, &client.holds)?;
                client.holds.retain(|(token, ..)| *token != hold);
                client.stale.push(hold);
                Ask::ReleaseSession { hold }
            }
            86..89 => {
                let client = &self.clients[who];
                let hold = match pick(rng, &client.holds) {
                    Some((hold, ..)) => *hold,
                    None => *pick(rng, &client.stale)?,
                };
                Ask::SetState { hold, state: self.some_state(rng) }
            }
            89..90 => {
                let (hold, queue, session) = pick(rng, &self.clients[who].holds)?.clone();
                Ask::GetState { queue, session, hold: Some(hold) }
            }
            90..91 => Ask::BreakSession {
                queue: self.queue(rng),
                session: session(SESSIONS[rng.below(4) as usize]),
            },
            91..93 => {
                // Deferred messages; if the client holds a session of the queue, only those of that session.
                let (queue, q) = self.existing(rng, state)?;
                let client = &self.clients[who];
                let hold = client.holds.iter().find(|(_, of, _)| *of == queue);
                let mine = |msg: &crate::model::Msg| {
                    hold.is_none_or(|(_, _, s)| msg.session.as_ref() == Some(s))
                };
                let seqs: Vec<_> = q
                    .msgs
                    .iter()
                    .filter(|(_, m)| m.availability == Availability::Deferred && mine(m))
                    .map(|(&s, _)| Seq(s))
                    .take(3)
                    .collect();
                if seqs.is_empty() {
                    return None;
                }
                let hold = hold.map(|(token, ..)| *token);
                Ask::ReceiveDeferred {
                    queue,
                    seqs,
                    hold,
                    lock_ms,
                    take: rng.chance(15),
                    connection: bound.map(|c| c.0),
                }
            }
            93..94 => {
                let (queue, q) = self.existing(rng, state)?;
                let scheduled = |m: &crate::model::Msg| {
                    matches!(m.availability, Availability::Scheduled { .. })
                };
                let mut seqs: Vec<_> = q
                    .msgs
                    .iter()
                    .filter(|(_, m)| scheduled(m))
                    .map(|(&s, _)| Seq(s))
                    .take(2)
                    .collect();
                if rng.chance(10) {
                    seqs.push(Seq(1));
                }
                Ask::Cancel { queue, seqs }
            }
            94..95 => {
                let (from, q) = self.existing(rng, state)?;
                let from_dead = q.owner.clone();
                let to = match from_dead {
                    Some(owner) if rng.chance(70) => owner,
                    _ => self.queue(rng),
                };
                if to.is_dead_letters() || from == to {
                    return None;
                }
                let count = 1 + rng.below(3) as usize;
                let mut items = Vec::new();
                for &seq in q.msgs.keys().take(count) {
                    self.next_message += 1;
                    let id = rng.chance(40).then(|| format!("renamed {}", self.next_message));
                    items.push(MoveItem {
                        message_id: id,
                        ..MoveItem::unchanged(Seq(seq), to.clone())
                    });
                }
                Ask::Move { from, items }
            }
            96..97 => {
                let (from, q) = self.existing(rng, state)?;
                let seq = Seq(*q.msgs.keys().next()?);
                let to = q.owner.clone().unwrap_or(from.clone());
                let message = self.message(rng, &to, state, now);
                Ask::Replace { from, seq, to, message }
            }
            95..96 => Ask::Topic(self.topic(rng, state)?),
            97..98 if rng.chance(20) => {
                Ask::Purge { queue: self.queue(rng), leased: rng.chance(50) }
            }
            97..98 if rng.chance(30) => {
                let (queue, q) = self.existing(rng, state)?;
                let some = q.msgs.keys().map(|&seq| Seq(seq)).take(1 + rng.below(4) as usize);
                Ask::CompleteLate { queue, seqs: some.collect() }
            }
            97..98 if rng.chance(20) => {
                let (queue, q) = self.existing(rng, state)?;
                let item =
                    |(&seq, msg): (&u64, &crate::model::Msg)| (Seq(seq), msg.session.clone());
                let some = q.msgs.iter().map(item).take(1 + rng.below(4) as usize);
                Ask::PurgeThese { queue, items: some.collect() }
            }
            97..98 => self.admin(rng, who, state, now)?,
            98..99 => {
                let (queue, q) = self.existing(rng, state)?;
                if q.paused || rng.chance(20) {
                    Ask::Pause { queue, paused: !q.paused }
                } else {
                    return None;
                }
            }
            99..100 => self.admin(rng, who, state, now)?,
            _ => return None,
        })
    }

    fn existing<'a>(
        &self,
        rng: &mut Rng,
        state: &'a State,
    ) -> Option<(QueueName, &'a crate::model::Queue)> {
        let names: Vec<_> = state.queues.iter().collect();
        pick(rng, &names).map(|(name, q)| ((*name).clone(), *q))
    }

    fn some_state(&self, rng: &mut Rng) -> Option<Bytes> {
        rng.chance(75).then(|| Bytes::from(vec![rng.below(256) as u8; rng.below(100) as usize + 1]))
    }

    fn admin(&mut self, rng: &mut Rng, who: usize, state: &State, now: u64) -> Option<Ask> {
        let (passing, private) = (name(PASSING), name(PRIVATE));
        let declare = |name, spec, connection| Some(Ask::Declare { name, spec, connection });
        let connection = self.clients[who].connection;
        match (state.queues.contains_key(&passing), rng.below(8)) {
            (false, _) => {
                let sessions = if rng.chance(50) { Sessions::Dynamic } else { Sessions::None };
                declare(passing, specs::passing(rng, sessions), None)
            }
            (_, 0) if state.queues.contains_key(&private) => {
                // Declared again without changes, by its owner or by another client.
                declare(private.clone(), state.queue(&private).spec.clone(), connection)
            }
            (_, 0 | 1) => declare(private, specs::private(rng), connection),
            (_, 2) => Some(Ask::Delete { name: passing }),
            (_, 3) => {
                let (name, had) = self.queues[rng.below(self.queues.len() as u64) as usize].clone();
                let spec = if rng.chance(50) { had } else { spec(rng, Sessions::None) };
                declare(name, spec, None)
            }
            (_, 4) if rng.chance(30) => Some(Ask::Delete { name: name("graves") }),
            _ => {
                let (name, q) = self.existing(rng, state)?;
                (q.owner.is_none()).then(|| Ask::Update { name, spec: updated(rng, q, now) })
            }
        }
    }

    /// A transaction of sends, settlements and states; most are valid.
    fn commit(&mut self, rng: &mut Rng, who: usize, state: &State, now: u64) -> Option<Ask> {
        let sends = match rng.below(4) {
            0 => Vec::new(),
            count => self.letters(rng, state, now, true, count),
        };
        let mut settles = Vec::new();
        let client = &mut self.clients[who];
        let take = (rng.below(4) as usize).min(client.leases.len());
        for (token, queue, seq) in client.leases.drain(..take).collect::<Vec<_>>() {
            let deferred = state.leases.get(&token).is_some_and(|lease| lease.deferred);
            let within = rng.chance(50).then(|| queue.clone());
            settles.push((within, token, some_settlement(rng, deferred)));
            // If it is refused, the lease continues.
            match rng.chance(50) {
                true => client.leases.push((token, queue, seq)),
                false => client.stale.push(token),
            }
        }
        if rng.chance(15) {
            let stale = *pick(rng, &client.stale)?;
            settles.push((None, stale, Settlement::Complete));
        }
        if rng.chance(3)
            && let Some((within, ..)) = settles.first_mut()
        {
            *within = Some(name("plain"));
        }
        let mut states = Vec::new();
        for (hold, queue, _) in &self.clients[who].holds {
            if rng.chance(40) {
                let within = rng.chance(50).then(|| queue.clone());
                states.push((within, *hold, self.some_state(rng)));
            }
        }
        Some(Ask::Commit { sends, settles, states })
    }

    fn settle(&mut self, rng: &mut Rng, who: usize, state: &State) -> Option<Ask> {
        let client = &mut self.clients[who];
        let mut leases = Vec::new();
        let count = if rng.chance(30) { 1 + rng.below(5) as usize } else { 1 };
        let mut deferred = false;
        for _ in 0..count.min(client.leases.len()) {
            // Usually the oldest first, as a worker would.
            let at =
                if rng.chance(70) { 0 } else { rng.below(client.leases.len() as u64) as usize };
            let (token, ..) = client.leases.remove(at);
            deferred |= state.leases.get(&token).is_some_and(|lease| lease.deferred);
            client.stale.push(token);
            leases.push(token);
        }
        if leases.is_empty() || rng.chance(8) {
            leases.push(*pick(rng, &client.stale)?);
        }
        if client.stale.len() > 64 {
            client.stale.drain(..16);
        }
        let settlement = some_settlement(rng, deferred);
        let hold =
            pick(rng, &self.clients[who].holds).filter(|_| rng.chance(30)).map(|(hold, ..)| *hold);
        let state = hold.map(|hold| (hold, self.some_state(rng)));
        Some(Ask::Settle { leases, settlement, state })
    }
}

fn some_settlement(rng: &mut Rng, deferred: bool) -> Settlement {
    let mut changes = Changes::default();
    if rng.chance(30) {
        changes.properties.set(format!("p{}", rng.below(3)), Value::U64(rng.below(1000)));
    }
    let delay_ms = if rng.chance(35) && !deferred { rng.below(4000) } else { 0 };
    match rng.below(20) {
        0..9 => Settlement::Complete,
        9..14 => Settlement::Abandon { delay_ms, changes },
        14..16 => Settlement::Release { delay_ms },
        16..18 => Settlement::Defer { changes },
        _ => Settlement::DeadLetter { reason: "bad".into(), text: "it is bad".into(), changes },
    }
}
