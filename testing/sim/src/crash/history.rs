//! The history as the clients saw it, and the violations found in it.

use std::collections::{BTreeMap, BTreeSet};

use malote_model::LeaseToken;

/// Allowance for the difference between the server's clock and the machine's.
const CLOCKS_APART_MS: u64 = 20;

/// The name of a message in the history: its id and the queue that delivers it. A message that passes through several
/// queues has one name for each.
pub fn name(id: &str, queue: &str) -> String {
    format!("{id}@{queue}")
}

/// A received message.
#[derive(Clone)]
pub struct ReceivedMessage {
    /// See [`name`].
    pub id: String,
    /// Its sequence in the queue.
    pub seq: u64,
    pub session: Option<String>,
    /// Its number within its session; each session has one sender.
    pub number: u64,
    pub lease: String,
    pub until: u64,
}

#[derive(Default)]
struct Sent {
    session: Option<String>,
    number: u64,
    acknowledged: bool,
    /// Refused messages must never be delivered.
    refused: bool,
    /// Time of the first attempt to complete it.
    completing: Option<u64>,
    /// Time at which the completion was acknowledged.
    completed: Option<u64>,
    /// The sequence number of its first delivery.
    seq: Option<u64>,
}

struct Lease {
    session: Option<String>,
    holder: u64,
    until: u64,
    bound: bool,
}

/// All messages. Times are milliseconds of the machine's clock, which the server shares.
#[derive(Default)]
pub struct History {
    messages: BTreeMap<String, Sent>,
    /// Acknowledged messages of each session that no client has begun to complete, by number.
    uncompleted: BTreeMap<String, BTreeMap<u64, String>>,
    /// Leases that the clients know of, by message.
    leases: BTreeMap<String, Lease>,
    /// The newest epoch (start of the server) in any lease.
    epoch: u32,
    pub kills: u64,
    killed_at: u64,
    pub deliveries: u64,
    pub redeliveries: u64,
    /// Sends that were answered as duplicates.
    pub duplicates: u64,
    /// Refused messages, by problem code.
    pub refusals: BTreeMap<String, u64>,
    pub violations: BTreeMap<&'static str, Vec<String>>,
}

/// All kinds of violations, in the order of the report.
const VIOLATIONS: [&str; 10] = [
    "lost",
    "duplicated",
    "stored twice",
    "out of order",
    "two holders",
    "never sent",
    "changed",
    "wrong flag",
    "refused and delivered",
    "settlement refused",
];

impl History {
    pub fn violation(&mut self, what: &'static str, how: String) {
        self.violations.entry(what).or_default().push(how);
    }

    /// A send was started.
    pub fn sending(&mut self, id: &str, session: Option<&str>, number: u64) {
        let session = session.map(str::to_owned);
        self.messages.insert(id.to_owned(), Sent { session, number, ..Sent::default() });
    }

    pub fn acknowledged(&mut self, id: &str) {
        if let Some(sent) = self.messages.get_mut(id) {
            sent.acknowledged = true;
            if let (Some(session), None) = (&sent.session, sent.completing) {
                self.uncompleted
                    .entry(session.clone())
                    .or_default()
                    .insert(sent.number, id.to_owned());
            }
        }
    }

    /// A send was refused, so it had no effect.
    pub fn refused(&mut self, ids: &[String], code: &str) {
        *self.refusals.entry(code.to_owned()).or_default() += ids.len() as u64;
        for id in ids {
            if let Some(sent) = self.messages.get_mut(id) {
                sent.refused = true;
            }
        }
    }

    /// Messages were received at `now`, in the answer to a request sent at `asked`.
    pub fn received(
        &mut self,
        holder: u64,
        bound: bool,
        asked: u64,
        now: u64,
        got: &[ReceivedMessage],
    ) {
        let batch: BTreeSet<&str> = got.iter().map(|got| got.id.as_str()).collect();
        for got in got {
            self.deliveries += 1;
            if bound && self.is_stale(got) {
                continue; // sent by a server that was killed: no client holds it
            }
            let Some(sent) = self.messages.get(&got.id) else {
                self.violation("never sent", format!("{} was never sent", got.id));
                continue;
            };
            let other = sent.session != got.session || sent.number != got.number;
            let done = sent.completed.is_some_and(|at| at < asked);
            let first = sent.seq.is_none();
            let twice = sent.seq.is_some_and(|seq| seq != got.seq);
            let refused = sent.refused;
            if other {
                self.violation(
                    "changed",
                    format!("{} was delivered as {:?} {}", got.id, got.session, got.number),
                );
            }
            if twice {
                self.violation(
                    "stored twice",
                    format!("{} was also delivered as {}", got.id, got.seq),
                );
            }
            if refused {
                self.violation("refused and delivered", got.id.clone());
            }
            if done {
                self.violation(
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
            self.leases.insert(got.id.clone(), Lease { session, holder, until, bound });
        }
        for pair in got.windows(2) {
            if pair[0].session.is_some()
                && pair[0].session == pair[1].session
                && pair[0].number >= pair[1].number
            {
                self.violation(
                    "out of order",
                    format!("{} before {} in one answer", pair[0].id, pair[1].id),
                );
            }
        }
    }

    /// Each lease contains the epoch of the server that granted it. A new epoch ends all older leases that were bound
    /// to a connection.
    fn is_stale(&mut self, got: &ReceivedMessage) -> bool {
        let epoch = got.lease.parse::<LeaseToken>().map_or(0, |lease| lease.epoch);
        if epoch > self.epoch {
            self.epoch = epoch;
            self.leases.retain(|_, lease| !lease.bound);
        }
        epoch < self.epoch
    }

    fn check_holders(&mut self, holder: u64, now: u64, got: &ReceivedMessage) {
        let other = |lease: &&Lease| lease.holder != holder && lease.until > now + CLOCKS_APART_MS;
        let since = now.saturating_sub(self.killed_at);
        let tell = |what: &str, lease: &Lease| {
            let left = lease.until - now;
            format!(
                "{what} is held by {} for {left} ms and by {holder}, {since} ms after the last kill",
                lease.holder
            )
        };
        if let Some(lease) = self.leases.get(&got.id).filter(other) {
            let how = tell(&got.id, lease);
            self.violation("two holders", how);
        }
        let Some(session) = &got.session else { return };
        let of_it = |(id, lease): &(&String, &Lease)| {
            **id != got.id && lease.session.as_ref() == Some(session) && other(lease)
        };
        if let Some((id, lease)) = self.leases.iter().find(of_it) {
            let how = tell(&format!("session {session} ({id}, {})", got.id), lease);
            self.violation("two holders", how);
        }
    }

    /// At its first delivery, all earlier messages of the session are completed or held by the same client.
    fn check_order(&mut self, holder: u64, got: &ReceivedMessage, batch: &BTreeSet<&str>) {
        let Some(session) = &got.session else { return };
        let Some(uncompleted) = self.uncompleted.get(session) else { return };
        let waits = |id: &str| {
            let mine = self.leases.get(id).is_some_and(|lease| lease.holder == holder);
            !mine && !batch.contains(id)
        };
        if let Some(id) =
            uncompleted.range(..got.number).map(|(_, id)| id.clone()).find(|id| waits(id))
        {
            self.violation("out of order", format!("{} was delivered before {id}", got.id));
        }
    }

    /// A client begins to complete a message. Returns whether it is the first attempt.
    pub fn completing(&mut self, id: &str, now: u64) -> bool {
        self.leases.remove(id);
        let Some(sent) = self.messages.get_mut(id) else { return false };
        let first = sent.completing.is_none();
        sent.completing.get_or_insert(now);
        if let Some(uncompleted) =
            sent.session.as_ref().and_then(|session| self.uncompleted.get_mut(session))
        {
            uncompleted.remove(&sent.number);
        }
        first
    }

    /// A completion was answered. A refused completion had no effect.
    pub fn completed(&mut self, id: &str, yes: bool, now: u64) {
        if let Some(sent) = self.messages.get_mut(id)
            && yes
        {
            sent.completed.get_or_insert(now);
        }
    }

    /// The server was killed, which ends all leases that were bound to its connections.
    pub fn killed(&mut self, now: u64) {
        self.kills += 1;
        self.killed_at = now;
        self.leases.retain(|_, lease| !lease.bound);
    }

    /// A client releases all its leases.
    pub fn release_all(&mut self, holder: u64) {
        self.leases.retain(|_, lease| lease.holder != holder);
    }

    /// A client is about to release the lease of a message.
    pub fn release(&mut self, id: &str) {
        self.leases.remove(id);
    }

    /// A client extended the lease of a message.
    pub fn extended(&mut self, id: &str, until: u64) {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.until = lease.until.max(until);
        }
    }

    /// A connection ended, and with it the leases that were bound to it.
    pub fn disconnected(&mut self, holder: u64) {
        self.leases.retain(|_, lease| !(lease.bound && lease.holder == holder));
    }

    pub fn count_acknowledged(&self) -> usize {
        self.messages.values().filter(|sent| sent.acknowledged).count()
    }

    pub fn count_completed(&self) -> usize {
        self.messages.values().filter(|sent| sent.completed.is_some()).count()
    }

    /// Number of completed messages by queue.
    pub fn completed_by_queue(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (id, _) in self.messages.iter().filter(|(_, sent)| sent.completed.is_some()) {
            let queue = id.rsplit_once('@').map_or("", |(_, queue)| queue);
            *counts.entry(queue.to_owned()).or_default() += 1;
        }
        counts
    }

    /// Acknowledged messages that no client began to complete.
    pub fn missing(&self) -> Vec<String> {
        let gone = |sent: &Sent| sent.acknowledged && sent.completing.is_none();
        self.messages.iter().filter(|(_, sent)| gone(sent)).map(|(id, _)| id.clone()).collect()
    }

    /// Prints the history. Returns whether there is no violation and at least one message was completed.
    pub fn report(&mut self) -> bool {
        println!(
            "acknowledged {}, completed {}, deliveries {}, redeliveries {}",
            self.count_acknowledged(),
            self.count_completed(),
            self.deliveries,
            self.redeliveries
        );
        println!("duplicates detected {}", self.duplicates);
        for (queue, count) in self.completed_by_queue() {
            println!("completed from {queue} {count}");
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
