//! What happened, as the clients saw it, and what must never have happened.

use std::collections::{BTreeMap, BTreeSet};

use malote_model::LeaseToken;

/// The server's clock follows the machine's, a little apart.
const CLOCKS_APART_MS: u64 = 20;

/// What a message is known by: its id, and the queue that it comes out of. One that comes out of several is known by
/// several names, and must come out of each.
pub fn name(id: &str, queue: &str) -> String {
    format!("{id}@{queue}")
}

/// A message as a receiver got it.
#[derive(Clone)]
pub struct Got {
    /// See [`name`].
    pub id: String,
    /// Its sequence in the queue.
    pub seq: u64,
    pub session: Option<String>,
    /// Its number within its session, as its only sender counted.
    pub number: u64,
    pub lease: String,
    pub until: u64,
}

#[derive(Default)]
struct Sent {
    session: Option<String>,
    number: u64,
    acknowledged: bool,
    /// Refused: it must never come.
    refused: bool,
    /// When somebody began to complete it.
    completing: Option<u64>,
    /// When that was acknowledged.
    completed: Option<u64>,
    /// Under which sequence it came.
    seq: Option<u64>,
}

struct Lease {
    session: Option<String>,
    holder: u64,
    until: u64,
    bound: bool,
}

/// Everything. Times are milliseconds of the machine's clock, which the server shares.
#[derive(Default)]
pub struct History {
    messages: BTreeMap<String, Sent>,
    /// Of each session, what was acknowledged and nobody has begun to complete, by number.
    waiting: BTreeMap<String, BTreeMap<u64, String>>,
    /// Who holds what now, as far as the holders know.
    held: BTreeMap<String, Lease>,
    /// The newest start of the server that somebody has a lease of.
    epoch: u32,
    /// How often the server was killed.
    pub kills: u64,
    killed_at: u64,
    pub deliveries: u64,
    pub redeliveries: u64,
    /// Answers that said: sent before.
    pub recognised: u64,
    /// Messages that were refused, by the problem's code.
    pub refusals: BTreeMap<String, u64>,
    pub violations: BTreeMap<&'static str, Vec<String>>,
}

/// Everything that must never happen, in the order in which it is told.
const VIOLATIONS: [&str; 9] = [
    "lost",
    "duplicated",
    "stored twice",
    "out of order",
    "two holders",
    "invented",
    "changed",
    "refused and delivered",
    "settlement refused",
];

impl History {
    pub fn wrong(&mut self, what: &'static str, how: String) {
        self.violations.entry(what).or_default().push(how);
    }

    /// A send begins.
    pub fn sending(&mut self, id: &str, session: Option<&str>, number: u64) {
        let session = session.map(str::to_owned);
        self.messages.insert(id.to_owned(), Sent { session, number, ..Sent::default() });
    }

    pub fn acknowledged(&mut self, id: &str) {
        if let Some(sent) = self.messages.get_mut(id) {
            sent.acknowledged = true;
            if let (Some(session), None) = (&sent.session, sent.completing) {
                self.waiting.entry(session.clone()).or_default().insert(sent.number, id.to_owned());
            }
        }
    }

    /// A send was refused: it had no effect.
    pub fn refused(&mut self, ids: &[String], code: &str) {
        *self.refusals.entry(code.to_owned()).or_default() += ids.len() as u64;
        for id in ids {
            if let Some(sent) = self.messages.get_mut(id) {
                sent.refused = true;
            }
        }
    }

    /// Messages came in one answer to a question asked at `asked`; it is `now`.
    pub fn received(&mut self, holder: u64, bound: bool, asked: u64, now: u64, got: &[Got]) {
        let batch: BTreeSet<&str> = got.iter().map(|got| got.id.as_str()).collect();
        for got in got {
            self.deliveries += 1;
            if bound && self.is_stale(got) {
                continue; // said by a server that is no more: nobody has it
            }
            let Some(sent) = self.messages.get(&got.id) else {
                self.wrong("invented", format!("{} was never sent", got.id));
                continue;
            };
            let other = sent.session != got.session || sent.number != got.number;
            let done = sent.completed.is_some_and(|at| at < asked);
            let first = sent.seq.is_none();
            let twice = sent.seq.is_some_and(|seq| seq != got.seq);
            let refused = sent.refused;
            if other {
                self.wrong(
                    "changed",
                    format!("{} came as {:?} {}", got.id, got.session, got.number),
                );
            }
            if twice {
                self.wrong("stored twice", format!("{} came as {} too", got.id, got.seq));
            }
            if refused {
                self.wrong("refused and delivered", got.id.clone());
            }
            if done {
                self.wrong(
                    "duplicated",
                    format!("{} was delivered after its completion was acknowledged", got.id),
                );
            }
            self.redeliveries += u64::from(!first);
            self.check_holders(holder, now, got);
            if first {
                self.check_order(holder, got, &batch);
            }
            if let Some(sent) = self.messages.get_mut(&got.id) {
                sent.seq = Some(got.seq);
            }
            let (session, until) = (got.session.clone(), got.until);
            self.held.insert(got.id.clone(), Lease { session, holder, until, bound });
        }
        for pair in got.windows(2) {
            if pair[0].session.is_some()
                && pair[0].session == pair[1].session
                && pair[0].number >= pair[1].number
            {
                self.wrong(
                    "out of order",
                    format!("{} before {} in one answer", pair[0].id, pair[1].id),
                );
            }
        }
    }

    /// Leases tell by which start of the server they were granted; with a new start the old ones are over, if they
    /// were bound to a connection.
    fn is_stale(&mut self, got: &Got) -> bool {
        let epoch = got.lease.parse::<LeaseToken>().map_or(0, |lease| lease.epoch);
        if epoch > self.epoch {
            self.epoch = epoch;
            self.held.retain(|_, lease| !lease.bound);
        }
        epoch < self.epoch
    }

    fn check_holders(&mut self, holder: u64, now: u64, got: &Got) {
        let other = |lease: &&Lease| lease.holder != holder && lease.until > now + CLOCKS_APART_MS;
        let since = now.saturating_sub(self.killed_at);
        let tell = |what: &str, lease: &Lease| {
            let left = lease.until - now;
            format!(
                "{what} is with {} for {left} ms and with {holder}, {since} ms after the last kill",
                lease.holder
            )
        };
        if let Some(lease) = self.held.get(&got.id).filter(other) {
            let how = tell(&got.id, lease);
            self.wrong("two holders", how);
        }
        let Some(session) = &got.session else { return };
        let of_it = |(id, lease): &(&String, &Lease)| {
            **id != got.id && lease.session.as_ref() == Some(session) && other(lease)
        };
        if let Some((id, lease)) = self.held.iter().find(of_it) {
            let how = tell(&format!("session {session} ({id}, {})", got.id), lease);
            self.wrong("two holders", how);
        }
    }

    /// First delivered: every earlier one of the session is done, or in the same hands.
    fn check_order(&mut self, holder: u64, got: &Got, batch: &BTreeSet<&str>) {
        let Some(session) = &got.session else { return };
        let Some(line) = self.waiting.get(session) else { return };
        let waits = |id: &str| {
            let mine = self.held.get(id).is_some_and(|lease| lease.holder == holder);
            !mine && !batch.contains(id)
        };
        if let Some(id) = line.range(..got.number).map(|(_, id)| id.clone()).find(|id| waits(id)) {
            self.wrong("out of order", format!("{} came before {id}", got.id));
        }
    }

    /// Somebody begins to complete a message; true if nobody did before.
    pub fn completing(&mut self, id: &str, now: u64) -> bool {
        self.held.remove(id);
        let Some(sent) = self.messages.get_mut(id) else { return false };
        let first = sent.completing.is_none();
        sent.completing.get_or_insert(now);
        if let Some(line) = sent.session.as_ref().and_then(|session| self.waiting.get_mut(session))
        {
            line.remove(&sent.number);
        }
        first
    }

    /// A completion was answered. A refused one did nothing.
    pub fn completed(&mut self, id: &str, yes: bool, now: u64) {
        if let Some(sent) = self.messages.get_mut(id)
            && yes
        {
            sent.completed.get_or_insert(now);
        }
    }

    /// The server was killed: what was bound to its connections is over.
    pub fn killed(&mut self, now: u64) {
        self.kills += 1;
        self.killed_at = now;
        self.held.retain(|_, lease| !lease.bound);
    }

    /// A holder lets go of all it has.
    pub fn release(&mut self, holder: u64) {
        self.held.retain(|_, lease| lease.holder != holder);
    }

    /// Whoever has a message is about to let go of it.
    pub fn let_go(&mut self, id: &str) {
        self.held.remove(id);
    }

    /// Whoever has a message may keep it for longer.
    pub fn extended(&mut self, id: &str, until: u64) {
        if let Some(lease) = self.held.get_mut(id) {
            lease.until = lease.until.max(until);
        }
    }

    /// A connection ended: so did what was bound to it.
    pub fn disconnected(&mut self, holder: u64) {
        self.held.retain(|_, lease| !(lease.bound && lease.holder == holder));
    }

    pub fn count_acknowledged(&self) -> usize {
        self.messages.values().filter(|sent| sent.acknowledged).count()
    }

    pub fn count_completed(&self) -> usize {
        self.messages.values().filter(|sent| sent.completed.is_some()).count()
    }

    /// How many messages were completed, by the queue that they came out of.
    pub fn completed_by_queue(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (id, _) in self.messages.iter().filter(|(_, sent)| sent.completed.is_some()) {
            let queue = id.rsplit_once('@').map_or("", |(_, queue)| queue);
            *counts.entry(queue.to_owned()).or_default() += 1;
        }
        counts
    }

    /// Acknowledged, and nobody ever began to complete it.
    pub fn missing(&self) -> Vec<String> {
        let gone = |sent: &Sent| sent.acknowledged && sent.completing.is_none();
        self.messages.iter().filter(|(_, sent)| gone(sent)).map(|(id, _)| id.clone()).collect()
    }

    /// Prints what happened; says whether nothing is wrong and something was proved.
    pub fn report(&mut self) -> bool {
        println!(
            "acknowledged {}, completed {}, deliveries {}, redeliveries {}",
            self.count_acknowledged(),
            self.count_completed(),
            self.deliveries,
            self.redeliveries
        );
        println!("recognised as sent before {}", self.recognised);
        for (queue, count) in self.completed_by_queue() {
            println!("out of {queue} {count}");
        }
        for (code, count) in &self.refusals {
            println!("refused as {code} {count}");
        }
        let missing = self.missing();
        if !missing.is_empty() {
            self.violations.insert("lost", missing);
        }
        for what in VIOLATIONS {
            let how = self.violations.get(what).map_or(&[][..], |how| how);
            println!("{what} {}", how.len());
            how.iter().take(5).for_each(|how| println!("  {how}"));
        }
        let enough = self.count_acknowledged() > 0 && self.count_completed() > 0;
        if !enough {
            println!("nothing was acknowledged or completed: this proves nothing");
        }
        self.violations.is_empty() && enough
    }
}
