//! Clients and what they ask. They know only what they were told, and forget nothing: old tokens are tried again.

use std::rc::Rc;

use bytes::Bytes;
use malote_engine::command::{Accept, Attach, ConnectionId, Grant, Reply};
use malote_engine::{ConsumerId, Wants};
use malote_model::{
    Body, BodyKind, Changes, DeadLetterTarget, Durability, LeaseToken, Message, Properties,
    QueueName, QueueSpec, Refusal, RetryOrder, Seq, SessionId, Sessions, Settlement, Timestamp,
    Value, When,
};

use crate::decide::Ask;
use crate::model::{Place, State};
use crate::rng::Rng;
use crate::world::World;

/// One who asks.
#[derive(Default)]
struct Client {
    /// Its leases and holds end with this.
    connection: Option<u64>,
    /// Messages in hand: token, queue, sequence.
    leases: Vec<(LeaseToken, QueueName, u64)>,
    /// Sessions in hand.
    holds: Vec<(LeaseToken, QueueName, SessionId)>,
    /// Consumers attached.
    consumers: Vec<(ConsumerId, QueueName)>,
    /// What it had in hand once.
    stale: Vec<LeaseToken>,
}

/// All of them, and the queues they use.
pub struct Clients {
    clients: Vec<Client>,
    pub queues: Vec<(QueueName, QueueSpec)>,
    next_consumer: u64,
    next_connection: u64,
    next_message: u64,
}

const SESSIONS: [&str; 4] = ["s1", "s2", "s3", "s4"];

/// A queue that comes and goes.
const PASSING: &str = "passing";

fn name(name: &str) -> QueueName {
    QueueName::new(name).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn session(id: &str) -> SessionId {
    SessionId::new(id).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> Option<&'a T> {
    if from.is_empty() { None } else { from.get(rng.below(from.len() as u64) as usize) }
}

fn spec(rng: &mut Rng, sessions: Sessions) -> QueueSpec {
    let lock_ms = [500, 2000, 5000, 30_000][rng.below(4) as usize];
    let failed_max = [None, Some(1), Some(2), Some(3)][rng.below(4) as usize];
    let receives_max = [None, None, Some(2), Some(4)][rng.below(4) as usize];
    let dead_letter = match rng.below(4) {
        0 => DeadLetterTarget::Drop,
        1 => DeadLetterTarget::Queue(name("graves")),
        _ => DeadLetterTarget::Own,
    };
    let durability = if rng.chance(20) { Durability::Relaxed } else { Durability::Fsync };
    let retry = if rng.chance(35) { RetryOrder::Skip } else { RetryOrder::Hold };
    let delay_ms = if rng.chance(10) { 200 } else { 0 };
    QueueSpec {
        sessions,
        lock_ms,
        failed_max,
        receives_max,
        dead_letter,
        durability,
        retry,
        delay_ms,
        ..QueueSpec::default()
    }
}

impl Clients {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let fixed = || Sessions::Fixed(SESSIONS[..3].iter().map(|id| session(id)).collect());
        let graves = match rng.below(3) {
            0 => Sessions::Dynamic,
            1 => fixed(),
            _ => Sessions::None,
        };
        let graves = QueueSpec { sessions: graves, lock_ms: 2000, ..QueueSpec::default() };
        let other = if rng.chance(50) { Sessions::Dynamic } else { Sessions::None };
        let queues = vec![
            (name("graves"), graves),
            (name("plain"), spec(rng, Sessions::None)),
            (name("dynamic"), spec(rng, Sessions::Dynamic)),
            (name("fixed"), spec(rng, fixed())),
            (name("other"), spec(rng, other)),
        ];
        let client = |n: u64| Client {
            connection: n.is_multiple_of(2).then_some(n + 1),
            ..Client::default()
        };
        let clients = (0..4).map(client).collect();
        Self { clients, queues, next_consumer: 1, next_connection: 100, next_message: 1 }
    }

    fn consumer(&mut self) -> ConsumerId {
        self.next_consumer += 1;
        ConsumerId(self.next_consumer)
    }

    /// The broker started again: connections are new, what was in hand is tried all the same.
    pub(crate) fn restarted(&mut self, _: &State) {
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

    pub(crate) fn delivered(&mut self, id: ConsumerId, grants: &[Grant]) {
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

    pub(crate) fn answered(
        &mut self,
        client: usize,
        ask: &Ask,
        answer: &Result<Reply, Refusal>,
        _: &State,
    ) {
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

    /// Somebody asks something.
    pub(crate) fn ask(world: &mut World) -> (usize, Ask) {
        let World { rng, clients: this, now, model, .. } = world;
        let (now, state) = (*now, &model.state);
        let who = rng.below(this.clients.len() as u64) as usize;
        let ask = loop {
            if let Some(ask) = this.one(rng, who, now, state) {
                break ask;
            }
        };
        (who, ask)
    }

    fn queue(&self, rng: &mut Rng) -> QueueName {
        let n = rng.below(self.queues.len() as u64 + 1) as usize;
        let queue = self.queues.get(n).map_or(name(PASSING), |(name, _)| name.clone());
        if rng.chance(12) { queue.dead_letters() } else { queue }
    }

    fn message(
        &mut self,
        rng: &mut Rng,
        queue: &QueueName,
        state: &State,
        now: u64,
    ) -> Rc<Message> {
        let number = self.next_message;
        self.next_message += 1;
        let len = [0, 20, 200, 1500][rng.below(4) as usize];
        let bytes: Vec<u8> = (0..len).map(|i: u64| (number * 31 + i) as u8).collect();
        let wants = state.queues.get(queue).is_some_and(|q| q.sessioned());
        let session = (wants || rng.chance(10)).then(|| session(SESSIONS[rng.below(4) as usize]));
        let session = session.filter(|_| !rng.chance(2));
        let when = match rng.below(20) {
            0 | 1 => When::Delay(rng.below(4000)),
            2 | 3 => When::At(Timestamp(now + rng.below(8000))),
            _ => When::Now,
        };
        let mut properties = Properties::new();
        for n in 0..rng.below(3) {
            properties.set(format!("p{n}"), Value::U64(number));
        }
        let body = Body { bytes: Bytes::from(bytes), kind: BodyKind::Bytes };
        let message_id = Some(format!("m{number}"));
        let subject = rng.chance(20).then(|| "a subject".to_owned());
        Rc::new(Message {
            message_id,
            session,
            subject,
            properties,
            when,
            body,
            ..Message::default()
        })
    }

    fn one(&mut self, rng: &mut Rng, who: usize, now: u64, state: &State) -> Option<Ask> {
        let connection = self.clients[who].connection;
        let bound = connection.filter(|_| rng.chance(80)).map(ConnectionId);
        let lock_ms = rng.chance(30).then(|| 300 + rng.below(4000));
        Some(match rng.below(100) {
            0..24 => {
                let several = rng.chance(15);
                let queue = self.queue(rng);
                let count = 1 + if rng.chance(30) { rng.below(6) } else { 0 };
                let items = (0..count).map(|_| {
                    let queue = if several { self.queue(rng) } else { queue.clone() };
                    let message = self.message(rng, &queue, state, now);
                    (queue, message)
                });
                Ask::Send { items: items.collect() }
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
                    free_standing: false,
                    consumer,
                    connection: bound,
                    queue,
                    wants,
                    credit: 1 + rng.below(8) as u32,
                    take: rng.chance(12),
                    lock_ms,
                    once_until: Some(until),
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
                    free_standing: false,
                    consumer,
                    connection: bound,
                    queue,
                    wants,
                    credit: rng.below(5) as u32,
                    take: rng.chance(10),
                    lock_ms,
                    once_until: None,
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
            54..74 => self.settle(rng, who, state)?,
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
                // Deferred messages, of one's own hold if there must be one.
                let (queue, q) = self.existing(rng, state)?;
                let client = &self.clients[who];
                let hold = client.holds.iter().find(|(_, of, _)| *of == queue);
                let mine = |msg: &crate::model::Msg| {
                    hold.is_none_or(|(_, _, s)| msg.session.as_ref() == Some(s))
                };
                let seqs: Vec<_> = q
                    .msgs
                    .iter()
                    .filter(|(_, m)| m.place == Place::Deferred && mine(m))
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
                let scheduled = |m: &crate::model::Msg| matches!(m.place, Place::Scheduled { .. });
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
            94..96 => {
                let (from, q) = self.existing(rng, state)?;
                let from_dead = q.owner.clone();
                let to = match from_dead {
                    Some(owner) if rng.chance(70) => owner,
                    _ => self.queue(rng),
                };
                if to.is_dead_letters() || from == to {
                    return None;
                }
                let items: Vec<_> = q
                    .msgs
                    .keys()
                    .map(|&s| (Seq(s), to.clone()))
                    .take(1 + rng.below(3) as usize)
                    .collect();
                Ask::Move { from, items }
            }
            96..97 => {
                let (from, q) = self.existing(rng, state)?;
                let seq = Seq(*q.msgs.keys().next()?);
                let to = q.owner.clone().unwrap_or(from.clone());
                let message = self.message(rng, &to, state, now);
                Ask::Replace { from, seq, to, message }
            }
            97..98 if rng.chance(20) => Ask::Purge { queue: self.queue(rng) },
            98..99 => {
                let (queue, q) = self.existing(rng, state)?;
                if q.paused || rng.chance(20) {
                    Ask::Pause { queue, paused: !q.paused }
                } else {
                    return None;
                }
            }
            99..100 => self.admin(rng, state),
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

    fn admin(&mut self, rng: &mut Rng, state: &State) -> Ask {
        let passing = name(PASSING);
        match (state.queues.contains_key(&passing), rng.below(4)) {
            (false, _) => {
                let sessions = if rng.chance(50) { Sessions::Dynamic } else { Sessions::None };
                Ask::Declare { name: passing, spec: spec(rng, sessions) }
            }
            (true, 0) => Ask::Delete { name: passing },
            (_, 1) => {
                let (name, had) = self.queues[rng.below(self.queues.len() as u64) as usize].clone();
                let (name, spec) =
                    if rng.chance(50) { (name, had) } else { (name, spec(rng, Sessions::None)) };
                Ask::Declare { name, spec }
            }
            (_, 2) => Ask::Delete { name: name("graves") },
            _ => {
                let at = 1 + rng.below(self.queues.len() as u64 - 1) as usize;
                let (name, old) = self.queues[at].clone();
                Ask::Update { name, spec: spec(rng, old.sessions) }
            }
        }
    }

    fn settle(&mut self, rng: &mut Rng, who: usize, state: &State) -> Option<Ask> {
        let client = &mut self.clients[who];
        let mut leases = Vec::new();
        let count = if rng.chance(30) { 1 + rng.below(5) as usize } else { 1 };
        let mut deferred = false;
        for _ in 0..count.min(client.leases.len()) {
            // Mostly the oldest first, as a worker would.
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
        let mut changes = Changes::default();
        if rng.chance(30) {
            changes.properties.set(format!("p{}", rng.below(3)), Value::U64(rng.below(1000)));
        }
        let delay_ms = if rng.chance(35) && !deferred { rng.below(4000) } else { 0 };
        let settlement = match rng.below(20) {
            0..9 => Settlement::Complete,
            9..14 => Settlement::Abandon { delay_ms, changes },
            14..16 => Settlement::Release { delay_ms },
            16..18 => Settlement::Defer { changes },
            _ => Settlement::DeadLetter { reason: "bad".into(), text: "it is bad".into(), changes },
        };
        let hold =
            pick(rng, &self.clients[who].holds).filter(|_| rng.chance(30)).map(|(hold, ..)| *hold);
        let state = hold.map(|hold| (hold, self.some_state(rng)));
        Some(Ask::Settle { leases, settlement, state })
    }
}
