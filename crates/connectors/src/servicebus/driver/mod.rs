//! The connection's one task: the socket, the protocol's engine, and what handles ask of it.
//!
//! | file | what |
//! |---|---|
//! | `command.rs` | what handles ask |
//! | `handshake.rs` | SASL and open |
//! | `link.rs` | what is known of a link |
//! | `event.rs` | what the server says |
//!
//! Handles wait, the task does not: what it holds for them is bounded by credit, by permits, and by the queue of
//! commands, all of which are taken before something is asked.

mod command;
mod event;
mod handshake;
mod link;

use std::collections::{HashMap, HashSet};
use std::io;

use bytes::{Buf, Bytes};
use malote_wire_amqp::connection::{Connection, LinkId, Outgoing, SendError, SessionId};
use malote_wire_amqp::performative::DeliveryState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant, sleep_until};

use super::error::{Error, Kind};
use super::limits;
use crate::dial::Stream;

pub(super) use command::{Asking, Command, Gone, Opened, Reply, Sending, Settling, Wanted, Why};
pub(super) use handshake::open;
use link::{Link, State};

/// Nothing is due.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// The task.
pub(super) struct Driver {
    amqp: Connection,
    begun: Instant,
    commands: mpsc::Receiver<Command>,
    /// One word at most for each link, so it needs no bound of its own.
    gone: mpsc::UnboundedReceiver<Gone>,
    links: HashMap<LinkId, Link>,
    /// Links of each session; it ends with the last.
    sessions: HashMap<SessionId, usize>,
    /// Senders that have something to send.
    sending: HashSet<LinkId>,
    next_key: u64,
    closing: Vec<Reply<()>>,
    /// The time at which a farewell is cut short.
    deadline: Option<Instant>,
    why: Why,
}

impl Driver {
    pub fn new(
        amqp: Connection,
        begun: Instant,
        commands: mpsc::Receiver<Command>,
        gone: mpsc::UnboundedReceiver<Gone>,
        why: Why,
    ) -> Driver {
        Driver {
            amqp,
            begun,
            commands,
            gone,
            links: HashMap::new(),
            sessions: HashMap::new(),
            sending: HashSet::new(),
            next_key: 1,
            closing: Vec::new(),
            deadline: None,
            why,
        }
    }

    /// Runs to the connection's end. Everyone who waits hears why.
    pub async fn run(mut self, stream: Box<dyn Stream>) {
        let ended = self.serve(stream).await;
        let error = match ended {
            Ok(error) => error,
            Err(error) => Error::Lost(error.to_string()),
        };
        // Before anybody hears of it, all links are over.
        let _ = self.why.set(error.clone());
        self.commands.close();
        for (_, link) in self.links.drain() {
            link.end(error.clone());
        }
        // Replies that are dropped tell their askers to look at `why`.
        while self.commands.try_recv().is_ok() {}
        for reply in self.closing {
            let _ = reply.send(());
        }
    }

    async fn serve(&mut self, stream: Box<dyn Stream>) -> io::Result<Error> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut unwritten = Bytes::new();
        let mut over = None;
        loop {
            if let Some(error) = self.turn() {
                over = Some(error);
            }
            if unwritten.is_empty() {
                unwritten = self.amqp.take_output();
            }
            if self.amqp.is_finished() {
                // The last words may be lost; nobody waits for them.
                let last = async {
                    writer.write_all(&unwritten).await?;
                    writer.write_all(&self.amqp.take_output()).await?;
                    writer.shutdown().await
                };
                let _ = tokio::time::timeout(limits::FAREWELL, last).await;
                return Ok(over.unwrap_or(Error::Closed));
            }
            let tick = self.amqp.next_tick_ms().map_or(FAR, Duration::from_millis);
            let mut wake = self.begun + tick;
            if let Some(deadline) = self.deadline {
                wake = wake.min(deadline);
            }
            let wants_input = self.amqp.wants_input();
            let open = self.deadline.is_none();
            tokio::select! {
                written = writer.write(&unwritten), if !unwritten.is_empty() => match written? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    count => unwritten.advance(count),
                },
                read = reader.read_buf(self.amqp.input()), if wants_input => match read? {
                    0 if !open => return Ok(Error::Closed),
                    0 => return Ok(Error::Lost("the server hung up".to_owned())),
                    _ => {
                        let now_ms = self.now_ms();
                        self.amqp.received(now_ms);
                    }
                },
                command = self.commands.recv(), if open => match command {
                    Some(command) => {
                        self.command(command);
                        // What waits beside it goes out with it.
                        for _ in 1..limits::COMMANDS_AT_ONCE {
                            let Ok(command) = self.commands.try_recv() else { break };
                            self.command(command);
                        }
                    }
                    // Nobody holds a handle any more.
                    None => self.farewell(),
                },
                Some(gone) = self.gone.recv(), if open => self.gone(gone, None),
                () = sleep_until(wake) => {
                    if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        return Ok(Error::Closed);
                    }
                    let now_ms = self.now_ms();
                    self.amqp.tick(now_ms);
                }
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// Does all that can be done without waiting; tells when the connection is over.
    fn turn(&mut self) -> Option<Error> {
        let mut over = None;
        while let Some(event) = self.amqp.next_event() {
            over = self.event(event).or(over);
        }
        for link in std::mem::take(&mut self.sending) {
            self.transmit(link);
        }
        over
    }

    fn farewell(&mut self) {
        self.deadline.get_or_insert(Instant::now() + limits::FAREWELL);
        let _ = self.amqp.close(None);
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Attach { session, attach, wanted, reply } => {
                let session = session.map_or_else(|| self.amqp.begin(), Ok);
                let attached = session.and_then(|session| self.amqp.attach(session, *attach));
                match attached {
                    Ok(link) => {
                        *self.sessions.entry(link.session()).or_default() += 1;
                        self.links.insert(link, Link::new(wanted, reply));
                    }
                    Err(error) => {
                        let _ = reply.send(Err(error.into()));
                    }
                }
            }
            Command::Send(sending) => {
                let link = sending.link;
                match self.links.get_mut(&link) {
                    Some(Link { state: State::Sender(outbound), .. }) => {
                        outbound.waiting.push_back(sending);
                        self.sending.insert(link);
                    }
                    // Dropped: the asker looks at the link's `why`.
                    _ => drop(sending),
                }
            }
            Command::Credit { link, more } => {
                if let Some(Link { state: State::Receiver(inbound), .. }) = self.links.get(&link) {
                    let room = u32::try_from(inbound.deliveries.capacity()).unwrap_or(u32::MAX);
                    let credit = self.amqp.credit(link).saturating_add(more).min(room);
                    let _ = self.amqp.grant(link, credit);
                }
            }
            Command::Drain { link, reply } => {
                let Some(Link { state: State::Receiver(inbound), .. }) = self.links.get_mut(&link)
                else {
                    return;
                };
                if self.amqp.credit(link) == 0 {
                    let _ = reply.send(());
                } else if self.amqp.drain(link).is_ok() {
                    inbound.drains.push(reply);
                }
            }
            Command::Settle(settling) => self.settle(settling),
            Command::Ask(asking) => self.ask(asking),
            Command::Detach { gone, reply } => self.gone(gone, Some(reply)),
            Command::Close { reply } => {
                self.closing.push(reply);
                self.farewell();
            }
        }
    }

    fn settle(&mut self, settling: Settling) {
        let Settling { link, deliveries, state, forget, reply } = settling;
        let Some(Link { state: State::Receiver(inbound), .. }) = self.links.get_mut(&link) else {
            return;
        };
        let lost = || {
            let text = "the message is settled already, or its lock is over";
            Err(Error::of(Kind::MessageLockLost, "com.microsoft:message-lock-lost", text))
        };
        let mut results = Vec::with_capacity(deliveries.len());
        for delivery in &deliveries {
            let told = self.amqp.dispose(link, *delivery, forget, Some(state.clone()));
            results.push(match told {
                Ok(true) if forget => Some(Ok(())),
                Ok(true) => None,
                Ok(false) => Some(lost()),
                Err(error) => Some(Err(error.into())),
            });
        }
        inbound.settling(&deliveries, results, reply);
    }

    fn ask(&mut self, asking: Asking) {
        let Asking { requests, answers, id, payload, reply } = asking;
        let Some(Link { state: State::Answers(waiting), .. }) = self.links.get_mut(&answers) else {
            return;
        };
        waiting.retain(|_, reply| !reply.is_closed());
        if waiting.len() >= limits::ASKING_MAX {
            let _ = reply.send(Err(Error::TooMany("requests")));
            return;
        }
        let Some(Link { state: State::Sender(outbound), .. }) = self.links.get_mut(&requests)
        else {
            return;
        };
        // What becomes of the request itself is nobody's concern: the answer tells.
        let (ignored, _) = tokio::sync::oneshot::channel();
        let sending =
            Sending { link: requests, message_format: 0, payload, reply: ignored, permit: None };
        outbound.waiting.push_back(sending);
        self.sending.insert(requests);
        if let Some(Link { state: State::Answers(waiting), .. }) = self.links.get_mut(&answers) {
            waiting.insert(id, reply);
        }
    }

    /// Sends what credit and room allow.
    fn transmit(&mut self, link: LinkId) {
        let Some(Link { state: State::Sender(outbound), .. }) = self.links.get_mut(&link) else {
            return;
        };
        while let Some(sending) = outbound.waiting.front() {
            let key = self.next_key;
            let outgoing = Outgoing {
                key,
                tag: Bytes::copy_from_slice(&key.to_be_bytes()),
                message_format: sending.message_format,
                batchable: true,
                payload: sending.payload.clone(),
                ..Outgoing::default()
            };
            let taken = self.amqp.send(link, outgoing);
            if let Err(SendError::Full) = taken {
                // Room comes with writing and with outcomes, each of which is followed by a turn.
                self.sending.insert(link);
                return;
            }
            if let Err(SendError::NoCredit) = taken {
                // Credit comes with a flow.
                return;
            }
            let Some(Sending { reply, permit, .. }) = outbound.waiting.pop_front() else { return };
            match taken {
                Ok(()) => {
                    self.next_key += 1;
                    outbound.in_flight.insert(key, (reply, permit));
                }
                Err(error) => {
                    let _ = reply.send(Err(error.into()));
                }
            }
        }
    }

    fn detach(&mut self, link: LinkId, reply: Option<Reply<()>>) {
        let Some(state) = self.links.get_mut(&link) else { return };
        state.ending.extend(reply);
        if matches!(state.state, State::Ending) || self.amqp.detach(link, true, None).is_err() {
            return;
        }
        let ended = Link {
            why: state.why.clone(),
            state: std::mem::replace(&mut state.state, State::Ending),
            ending: Vec::new(),
        };
        ended.end(Error::Closed);
    }

    fn gone(&mut self, gone: Gone, reply: Option<Reply<()>>) {
        for delivery in gone.unseen {
            let _ = self.amqp.dispose(gone.link, delivery, true, Some(DeliveryState::Released));
        }
        self.detach(gone.link, reply);
    }

    /// A link is no more; its session ends with the last.
    fn forget(&mut self, link: LinkId, error: Error) {
        self.sending.remove(&link);
        if let Some(link) = self.links.remove(&link) {
            link.end(error);
        }
        let session = link.session();
        let Some(count) = self.sessions.get_mut(&session) else { return };
        *count -= 1;
        if *count == 0 {
            self.sessions.remove(&session);
            let _ = self.amqp.end(session, None);
        }
    }
}
