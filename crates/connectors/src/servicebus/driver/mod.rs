//! The task of a connection: the socket, the protocol engine, and the commands of handles.
//!
//! | file | contains |
//! |---|---|
//! | `command.rs` | the commands |
//! | `handshake.rs` | SASL and open |
//! | `link.rs` | the state of a link |
//! | `event.rs` | protocol events |
//!
//! Handles wait, the task never does. Credit, permits and the bounded channel of commands limit the task's memory;
//! handles acquire them before they send a command.

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

use super::error::{Error, ErrorKind};
use super::limits;
use crate::dial::ByteStream;

pub(super) use command::{
    AttachedLink, DriverCommand, DroppedLink, EndReason, LinkPurpose, Reply, SendMessage,
    SendRequest, SettleDeliveries,
};
pub(super) use handshake::open;
use link::{DriverLinkState, LinkEntry};

/// For a wait without a deadline.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) struct AmqpDriver {
    amqp: Connection,
    started: Instant,
    commands: mpsc::Receiver<DriverCommand>,
    /// At most one entry per link, so the channel needs no bound of its own.
    dropped: mpsc::UnboundedReceiver<DroppedLink>,
    links: HashMap<LinkId, LinkEntry>,
    /// The number of links of each session; a session ends with its last link.
    sessions: HashMap<SessionId, usize>,
    /// Senders with messages to send.
    sending: HashSet<LinkId>,
    next_key: u64,
    closing: Vec<Reply<()>>,
    /// When closing is cut short.
    deadline: Option<Instant>,
    end_reason: EndReason,
}

impl AmqpDriver {
    pub fn new(
        amqp: Connection,
        started: Instant,
        commands: mpsc::Receiver<DriverCommand>,
        dropped: mpsc::UnboundedReceiver<DroppedLink>,
        end_reason: EndReason,
    ) -> AmqpDriver {
        AmqpDriver {
            amqp,
            started,
            commands,
            dropped,
            links: HashMap::new(),
            sessions: HashMap::new(),
            sending: HashSet::new(),
            next_key: 1,
            closing: Vec::new(),
            deadline: None,
            end_reason,
        }
    }

    /// Runs until the connection ends. Fails all waiting callers.
    pub async fn run(mut self, stream: Box<dyn ByteStream>) {
        let ended = self.serve(stream).await;
        let error = match ended {
            Ok(error) => error,
            Err(error) => Error::Lost(error.to_string()),
        };
        // Ends all links before any caller is woken.
        let _ = self.end_reason.set(error.clone());
        self.commands.close();
        for (_, link) in self.links.drain() {
            link.end(error.clone());
        }
        // Dropping a reply makes its caller read `end_reason`.
        while self.commands.try_recv().is_ok() {}
        for reply in self.closing {
            let _ = reply.send(());
        }
    }

    async fn serve(&mut self, stream: Box<dyn ByteStream>) -> io::Result<Error> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut unwritten = Bytes::new();
        let mut end_error = None;
        loop {
            if let Some(error) = self.turn() {
                end_error = Some(error);
            }
            if unwritten.is_empty() {
                unwritten = self.amqp.take_output();
            }
            if self.amqp.is_finished() {
                // Best effort: no caller waits for the last bytes.
                let last = async {
                    writer.write_all(&unwritten).await?;
                    writer.write_all(&self.amqp.take_output()).await?;
                    writer.shutdown().await
                };
                let _ = tokio::time::timeout(limits::CLOSE_MAX, last).await;
                return Ok(end_error.unwrap_or(Error::Closed));
            }
            let tick = self.amqp.next_tick_ms().map_or(NEVER, Duration::from_millis);
            let mut wake = self.started + tick;
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
                    0 => return Ok(Error::Lost("the server closed the socket".to_owned())),
                    _ => {
                        let now_ms = self.now_ms();
                        self.amqp.received(now_ms);
                    }
                },
                command = self.commands.recv(), if open => match command {
                    Some(command) => {
                        self.command(command);
                        // Commands that wait are handled together.
                        for _ in 1..limits::COMMANDS_PER_TURN {
                            let Ok(command) = self.commands.try_recv() else { break };
                            self.command(command);
                        }
                    }
                    // All handles were dropped.
                    None => self.begin_close(),
                },
                Some(dropped) = self.dropped.recv(), if open => self.dropped(dropped, None),
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
        self.started.elapsed().as_millis() as u64
    }

    /// Does all work that needs no waiting. Returns an error if the connection has ended.
    fn turn(&mut self) -> Option<Error> {
        let mut end_error = None;
        while let Some(event) = self.amqp.next_event() {
            end_error = self.event(event).or(end_error);
        }
        for link in std::mem::take(&mut self.sending) {
            self.transmit(link);
        }
        end_error
    }

    fn begin_close(&mut self) {
        self.deadline.get_or_insert(Instant::now() + limits::CLOSE_MAX);
        let _ = self.amqp.close(None);
    }

    fn command(&mut self, command: DriverCommand) {
        match command {
            DriverCommand::Attach { session, attach, purpose, reply } => {
                let session = session.map_or_else(|| self.amqp.begin(), Ok);
                let attached = session.and_then(|session| self.amqp.attach(session, *attach));
                match attached {
                    Ok(link) => {
                        *self.sessions.entry(link.session()).or_default() += 1;
                        self.links.insert(link, LinkEntry::new(purpose, reply));
                    }
                    Err(error) => {
                        let _ = reply.send(Err(error.into()));
                    }
                }
            }
            DriverCommand::Send(sending) => {
                let link = sending.link;
                match self.links.get_mut(&link) {
                    Some(LinkEntry { state: DriverLinkState::Sender(outbound), .. }) => {
                        outbound.waiting.push_back(sending);
                        self.sending.insert(link);
                    }
                    // Dropping the reply makes the caller read the link's `end_reason`.
                    _ => drop(sending),
                }
            }
            DriverCommand::Credit { link, more } => {
                if let Some(LinkEntry { state: DriverLinkState::Receiver(inbound), .. }) =
                    self.links.get(&link)
                {
                    let room = u32::try_from(inbound.deliveries.capacity()).unwrap_or(u32::MAX);
                    let credit = self.amqp.credit(link).saturating_add(more).min(room);
                    let _ = self.amqp.grant(link, credit);
                }
            }
            DriverCommand::Drain { link, reply } => {
                let Some(LinkEntry { state: DriverLinkState::Receiver(inbound), .. }) =
                    self.links.get_mut(&link)
                else {
                    return;
                };
                if self.amqp.credit(link) == 0 {
                    let _ = reply.send(());
                } else if self.amqp.drain(link).is_ok() {
                    inbound.drains.push(reply);
                }
            }
            DriverCommand::Settle(request) => self.settle(request),
            DriverCommand::Request(request) => self.request(request),
            DriverCommand::Detach { dropped, reply } => self.dropped(dropped, Some(reply)),
            DriverCommand::Close { reply } => {
                self.closing.push(reply);
                self.begin_close();
            }
        }
    }

    fn settle(&mut self, request: SettleDeliveries) {
        let SettleDeliveries { link, deliveries, state, forget, reply } = request;
        let Some(LinkEntry { state: DriverLinkState::Receiver(inbound), .. }) =
            self.links.get_mut(&link)
        else {
            return;
        };
        let lost = || {
            let text = "the message is already settled, or its lock has ended";
            Err(Error::new(ErrorKind::MessageLockLost, "com.microsoft:message-lock-lost", text))
        };
        let mut results = Vec::with_capacity(deliveries.len());
        for delivery in &deliveries {
            let sent = self.amqp.dispose(link, *delivery, forget, Some(state.clone()));
            results.push(match sent {
                Ok(true) if forget => Some(Ok(())),
                Ok(true) => None,
                Ok(false) => Some(lost()),
                Err(error) => Some(Err(error.into())),
            });
        }
        inbound.add_group(&deliveries, results, reply);
    }

    fn request(&mut self, request: SendRequest) {
        let SendRequest { requests, responses, id, payload, reply } = request;
        let Some(LinkEntry { state: DriverLinkState::Responses(waiting), .. }) =
            self.links.get_mut(&responses)
        else {
            return;
        };
        waiting.retain(|_, reply| !reply.is_closed());
        if waiting.len() >= limits::REQUESTS_MAX {
            let _ = reply.send(Err(Error::TooMany("requests")));
            return;
        }
        let Some(LinkEntry { state: DriverLinkState::Sender(outbound), .. }) =
            self.links.get_mut(&requests)
        else {
            return;
        };
        // The outcome of the request itself does not matter, only the response.
        let (ignored, _) = tokio::sync::oneshot::channel();
        let sending = SendMessage {
            link: requests,
            message_format: 0,
            payload,
            reply: ignored,
            permit: None,
        };
        outbound.waiting.push_back(sending);
        self.sending.insert(requests);
        if let Some(LinkEntry { state: DriverLinkState::Responses(waiting), .. }) =
            self.links.get_mut(&responses)
        {
            waiting.insert(id, reply);
        }
    }

    /// Sends what credit and room allow.
    fn transmit(&mut self, link: LinkId) {
        let Some(LinkEntry { state: DriverLinkState::Sender(outbound), .. }) =
            self.links.get_mut(&link)
        else {
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
                // Writing and outcomes make room, and a turn follows both.
                self.sending.insert(link);
                return;
            }
            if let Err(SendError::NoCredit) = taken {
                // A flow frame brings credit.
                return;
            }
            let Some(SendMessage { reply, permit, .. }) = outbound.waiting.pop_front() else {
                return;
            };
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
        if matches!(state.state, DriverLinkState::Ending)
            || self.amqp.detach(link, true, None).is_err()
        {
            return;
        }
        let ended = LinkEntry {
            end_reason: state.end_reason.clone(),
            state: std::mem::replace(&mut state.state, DriverLinkState::Ending),
            ending: Vec::new(),
        };
        ended.end(Error::Closed);
    }

    fn dropped(&mut self, dropped: DroppedLink, reply: Option<Reply<()>>) {
        for delivery in dropped.unread {
            let _ = self.amqp.dispose(dropped.link, delivery, true, Some(DeliveryState::Released));
        }
        self.detach(dropped.link, reply);
    }

    /// Forgets a link, and ends its session with the last one.
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
