//! A connection without I/O: bytes and time go in, bytes and events come out.
//!
//! The owner's loop: read into [`Connection::input`] and call [`Connection::received`]; handle
//! [`Connection::next_event`] until there is none; write [`Connection::take_output`]; call [`Connection::tick`] at
//! [`Connection::next_tick_ms`]. Frames are processed one by one as events are requested, so a slow owner, or unwritten
//! output, slows down the peer.
//!
//! | file | what |
//! |---|---|
//! | `handshake.rs` | protocol headers, SASL |
//! | `lifecycle.rs` | open, begin, end, close, protocol violations |
//! | `attach.rs` | attach, accept, refuse, detach |
//! | `flow.rs` | windows, credit, drain |
//! | `receive.rs`, `send.rs` | transfers in and out |
//! | `settle.rs` | dispositions |
//! | `idle.rs` | idle timeouts |

mod attach;
mod config;
mod event;
mod flow;
mod handshake;
mod idle;
mod lifecycle;
mod link;
mod receive;
mod send;
mod session;
mod settle;
mod writer;

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::frame::{Frame, FrameKind, Protocol, take_frame};
use crate::performative::{AmqpError, Performative, condition};

pub use config::{Config, PeerLimits};
pub use event::{DeliveryId, Disposed, Event, Incoming, LinkFlow, LinkId, SessionId};
pub use send::{Outgoing, SendError};

use link::Link;
use send::UnsentDeliveries;
use session::Session;
use settle::DispositionRange;
use writer::FrameWriter;

/// Bounds of the read buffer, which grows for peers that fill it.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 64 << 10;

/// Why a method had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UseError {
    #[error("the session or link has ended")]
    Gone,
    /// Out of order, or already done.
    #[error("not possible in this state")]
    OutOfTurn,
    #[error("all channels or handles are in use")]
    TooMany,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// The phase of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A protocol header is expected.
    Header(Protocol),
    /// The SASL layer.
    Sasl,
    /// The owner must reply in the SASL layer.
    SaslAnswer,
    /// The handshake is over, and frames are exchanged.
    Running,
    /// Nothing is read any more.
    Over,
}

/// What a protocol violation ends.
#[derive(Debug)]
enum ProtocolViolation {
    Connection(AmqpError),
    Session(u16, AmqpError),
    Link(LinkId, AmqpError),
}

impl From<AmqpError> for ProtocolViolation {
    fn from(error: AmqpError) -> ProtocolViolation {
        ProtocolViolation::Connection(error)
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    side: Side,
    config: Config,
    phase: Phase,
    open_sent: bool,
    open_received: bool,
    close_sent: bool,
    close_received: bool,
    remote_channel_max: u16,
    remote_idle_ms: Option<u32>,
    now_ms: u64,
    received_ms: u64,
    sent_ms: u64,
    input: BytesMut,
    /// Length of the input when the buffer was last requested.
    input_had: usize,
    /// Capacity for the next read.
    read_bytes: usize,
    wire: FrameWriter,
    events: VecDeque<Event>,
    /// A disposition whose deliveries were not all reported yet.
    range: Option<DispositionRange>,
    /// By our channel.
    sessions: Vec<Option<Session>>,
    /// Our channel, by the peer's.
    by_remote_channel: Vec<Option<u16>>,
    /// Limit of sessions, in addition to the limit of channels.
    sessions_max: usize,
    /// Links of all sessions.
    links: usize,
    /// Bytes of incomplete messages.
    partial_bytes: usize,
    /// Bytes of transfers that wait for a window.
    queued_bytes: usize,
    /// Unsettled deliveries that were not written yet.
    unsent: UnsentDeliveries,
    next_serial: u32,
}

impl Connection {
    /// The server end.
    pub fn server(config: Config, now_ms: u64) -> Connection {
        let first = if config.sasl { Protocol::Sasl } else { Protocol::Amqp };
        Connection::new(Side::Server, config, Phase::Header(first), now_ms)
    }

    /// The client end. Its protocol header is ready to be written.
    pub fn client(config: Config, now_ms: u64) -> Connection {
        let first = if config.sasl { Protocol::Sasl } else { Protocol::Amqp };
        let mut connection = Connection::new(Side::Client, config, Phase::Header(first), now_ms);
        connection.wire.raw(&first.header());
        connection
    }

    fn new(side: Side, config: Config, phase: Phase, now_ms: u64) -> Connection {
        Connection {
            side,
            config,
            phase,
            open_sent: false,
            open_received: false,
            close_sent: false,
            close_received: false,
            remote_channel_max: u16::MAX,
            remote_idle_ms: None,
            now_ms,
            received_ms: now_ms,
            sent_ms: now_ms,
            input: BytesMut::new(),
            input_had: 0,
            read_bytes: READ_BYTES_MIN,
            wire: FrameWriter::new(),
            events: VecDeque::new(),
            range: None,
            sessions: Vec::new(),
            by_remote_channel: Vec::new(),
            sessions_max: usize::MAX,
            links: 0,
            partial_bytes: 0,
            queued_bytes: 0,
            unsent: UnsentDeliveries::default(),
            next_serial: 0,
        }
    }

    /// Sets the limits of the peer. They do not affect what already exists.
    pub fn set_peer_limits(&mut self, room: PeerLimits) {
        let PeerLimits { sessions_max, links_max, incoming_bytes_max } = room;
        self.sessions_max = sessions_max;
        (self.config.links_max, self.config.incoming_bytes_max) = (links_max, incoming_bytes_max);
    }

    /// The read buffer, with free capacity. Call [`Connection::received`] afterwards.
    pub fn input(&mut self) -> &mut BytesMut {
        if self.input.capacity() - self.input.len() < self.read_bytes / 4 {
            self.input.reserve(self.read_bytes);
        }
        self.input_had = self.input.len();
        &mut self.input
    }

    /// Bytes were read into [`Connection::input`].
    pub fn received(&mut self, now_ms: u64) {
        let came = self.input.len().saturating_sub(self.input_had);
        if self.input.len() == self.input.capacity() {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        } else if came < self.read_bytes / 8 {
            self.read_bytes = (self.read_bytes / 2).max(READ_BYTES_MIN);
        }
        self.now_ms = now_ms;
        self.received_ms = now_ms;
    }

    /// Adds bytes that were read elsewhere.
    pub fn feed(&mut self, bytes: &[u8], now_ms: u64) {
        self.input.extend_from_slice(bytes);
        self.received(now_ms);
    }

    /// Whether more bytes should be read; false while earlier ones wait to be processed.
    pub fn wants_input(&self) -> bool {
        self.phase != Phase::Over
            && self.input.len() <= self.config.max_frame_size as usize
            && !self.is_backed_up()
    }

    /// Sending stops at the limit; reading, whose replies are small, a little later.
    fn is_backed_up(&self) -> bool {
        self.wire.len() >= self.config.outgoing_bytes_max.saturating_mul(2)
    }

    /// The bytes to write, after everything taken before was written.
    pub fn take_output(&mut self) -> Bytes {
        self.note_written();
        let output = self.wire.take();
        self.unsent.took(output.len());
        output
    }

    pub fn has_output(&self) -> bool {
        !self.wire.is_empty()
    }

    /// Whether the connection has ended: write the remaining output, and close the transport.
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The next event. None: feed more bytes, reply to pending events, or write the output.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            if self.wire.take_too_large() {
                let text = "a performative does not fit into the peer's max-frame-size";
                self.fail(AmqpError::new(condition::FRAME_SIZE_TOO_SMALL, text));
            }
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if let Some(disposed) = self.next_disposed() {
                return Some(Event::Disposition(disposed));
            }
            if self.is_backed_up() || !self.step() {
                return None;
            }
        }
    }

    /// Processes the next frame. False if it is incomplete or must wait.
    fn step(&mut self) -> bool {
        match self.phase {
            Phase::Over | Phase::SaslAnswer => false,
            Phase::Header(expected) => self.step_header(expected),
            Phase::Sasl | Phase::Running => {
                // What follows an open depends on our reply to it.
                let waits = self.open_received && !self.open_sent;
                if self.phase == Phase::Running && (waits || self.close_received) {
                    return false;
                }
                match take_frame(&mut self.input, self.config.max_frame_size) {
                    Ok(None) => false,
                    Ok(Some(frame)) => {
                        self.take_frame(frame);
                        true
                    }
                    Err(error) => {
                        self.fail(AmqpError::new(condition::FRAMING_ERROR, error.to_string()));
                        true
                    }
                }
            }
        }
    }

    fn take_frame(&mut self, frame: Frame) {
        let taken = match (self.phase, frame.kind) {
            (Phase::Sasl, FrameKind::Sasl) => self.take_sasl(&frame.body),
            (Phase::Running, FrameKind::Amqp) => self.take_amqp(frame),
            _ => Err(AmqpError::new(condition::FRAMING_ERROR, "frame of the wrong protocol layer")
                .into()),
        };
        match taken {
            Ok(()) => {}
            Err(ProtocolViolation::Connection(error)) => self.fail(error),
            Err(ProtocolViolation::Session(channel, error)) => self.fail_session(channel, error),
            Err(ProtocolViolation::Link(link, error)) => self.fail_link(link, error),
        }
    }

    fn take_amqp(&mut self, frame: Frame) -> Result<(), ProtocolViolation> {
        if frame.body.is_empty() {
            return Ok(());
        }
        let (performative, payload) = Performative::decode(&frame.body).map_err(AmqpError::from)?;
        match performative {
            Performative::Open(open) => return self.take_open(open),
            Performative::Close(close) => return self.take_close(close.error),
            _ if !self.open_received => {
                return Err(illegal("frame before open").into());
            }
            // A peer that has not seen our close yet may send anything.
            _ if self.close_sent => return Ok(()),
            Performative::Begin(begin) => return self.take_begin(frame.channel, begin),
            _ => {}
        }
        let known = self.by_remote_channel.get(usize::from(frame.channel)).copied().flatten();
        let Some(channel) = known else {
            return match performative {
                // Some clients detach or settle on a session after its end.
                Performative::Detach(_)
                | Performative::Disposition(_)
                | Performative::Flow(_)
                | Performative::End(_) => Ok(()),
                _ => Err(illegal("no session on this channel").into()),
            };
        };
        match performative {
            Performative::End(end) => {
                self.take_end(channel, end.error);
                return Ok(());
            }
            _ if self.session(channel).is_none_or(|session| session.end_sent) => return Ok(()),
            _ => {}
        }
        match performative {
            Performative::Transfer(transfer) => self.take_transfer(channel, transfer, payload),
            Performative::Disposition(disposition) => self.take_disposition(channel, disposition),
            Performative::Flow(flow) => self.take_flow(channel, flow),
            Performative::Attach(attach) => self.take_attach(channel, attach),
            Performative::Detach(detach) => {
                self.take_detach(channel, detach);
                Ok(())
            }
            Performative::Open(_)
            | Performative::Begin(_)
            | Performative::End(_)
            | Performative::Close(_) => unreachable!("handled above"),
        }
    }

    fn session(&self, channel: u16) -> Option<&Session> {
        self.sessions.get(usize::from(channel))?.as_ref()
    }

    fn session_mut(&mut self, channel: u16) -> Option<&mut Session> {
        self.sessions.get_mut(usize::from(channel))?.as_mut()
    }

    /// A session by the owner's id.
    fn session_by_id(&mut self, id: SessionId) -> Result<&mut Session, UseError> {
        let found = self.session_mut(id.channel).filter(|session| session.serial == id.serial);
        found.ok_or(UseError::Gone)
    }

    /// A link by the owner's id.
    fn link_by_id(&mut self, id: LinkId) -> Result<&mut Link, UseError> {
        let link = self.session_by_id(id.session)?.link_mut(id.handle);
        link.filter(|link| link.serial == id.serial).ok_or(UseError::Gone)
    }

    fn link(&self, id: LinkId) -> Option<&Link> {
        let session = self.session(id.session.channel)?;
        let link = session.links.get(id.handle as usize)?.as_ref()?;
        (session.serial == id.session.serial && link.serial == id.serial).then_some(link)
    }

    fn serial(&mut self) -> u32 {
        self.next_serial = self.next_serial.wrapping_add(1);
        self.next_serial
    }
}

fn illegal(text: &'static str) -> AmqpError {
    AmqpError::new(condition::ILLEGAL_STATE, text)
}
