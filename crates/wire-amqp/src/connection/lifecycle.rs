//! Open, begin, end and close; and the effects of protocol violations.

use crate::frame::{MIN_MAX_FRAME_SIZE, Protocol};
use crate::performative::{AmqpError, Begin, Close, End, Open, condition};

use super::session::Session;
use super::{
    Connection, Event, LinkId, Phase, ProtocolViolation, SessionId, Side, UseError, illegal,
};

/// Shortest idle timeout that a peer may ask for. Shorter ones would cause too much traffic.
const IDLE_MS_MIN: u32 = 100;

impl Connection {
    /// Opens, or replies to an open. Limits and the container id are filled in from the configuration.
    pub fn open(&mut self, open: Open) -> Result<(), UseError> {
        // A client need not wait for the header of the server, but for the end of the SASL exchange.
        let ready = match self.phase {
            Phase::Running => true,
            Phase::Header(Protocol::Amqp) => self.side == Side::Client,
            _ => false,
        };
        if self.open_sent || !ready {
            return Err(UseError::OutOfTurn);
        }
        let open = Open {
            container_id: self.config.container_id.clone(),
            max_frame_size: self.config.max_frame_size,
            channel_max: self.config.channel_max,
            idle_time_out: self.config.idle_time_out_ms,
            ..open
        };
        if !self.open_received {
            // The peer's limit is not known yet, so our own limit is used.
            self.wire.max_frame_size = self.config.max_frame_size.max(MIN_MAX_FRAME_SIZE);
        }
        self.wire.frame(0, &open);
        self.open_sent = true;
        Ok(())
    }

    pub(super) fn take_open(&mut self, open: Box<Open>) -> Result<(), ProtocolViolation> {
        if self.open_received {
            return Err(illegal("duplicate open").into());
        }
        if open.max_frame_size < MIN_MAX_FRAME_SIZE {
            let text = "max-frame-size is below 512";
            return Err(AmqpError::new(condition::INVALID_FIELD, text).into());
        }
        if open.idle_time_out.is_some_and(|ms| ms > 0 && ms < IDLE_MS_MIN) {
            let text = format!("idle-time-out is below {IDLE_MS_MIN} ms");
            return Err(AmqpError::new(condition::NOT_IMPLEMENTED, text).into());
        }
        self.open_received = true;
        self.wire.max_frame_size = open.max_frame_size;
        self.remote_channel_max = open.channel_max;
        self.remote_idle_ms = open.idle_time_out.filter(|&ms| ms > 0);
        if !self.close_sent {
            self.events.push_back(Event::Open(open));
        }
        Ok(())
    }

    /// Begins a session; [`Event::Begun`] follows. Links may be attached immediately.
    pub fn begin(&mut self) -> Result<SessionId, UseError> {
        if !self.open_sent || self.close_sent || self.close_received {
            return Err(UseError::OutOfTurn);
        }
        let id = self.new_session().ok_or(UseError::TooMany)?;
        self.write_begin(id.channel, None);
        Ok(id)
    }

    fn new_session(&mut self) -> Option<SessionId> {
        let free = self.sessions.iter().position(Option::is_none).unwrap_or(self.sessions.len());
        let channel = u16::try_from(free).ok()?;
        // The first free channel: all below it are in use.
        if free >= self.sessions_max {
            return None;
        }
        if channel > self.remote_channel_max.min(self.config.channel_max) {
            return None;
        }
        let serial = self.serial();
        let session = Some(Session::new(serial, &self.config));
        if free == self.sessions.len() {
            self.sessions.push(session);
        } else {
            self.sessions[free] = session;
        }
        Some(SessionId { channel, serial })
    }

    fn write_begin(&mut self, channel: u16, remote_channel: Option<u16>) {
        let begin = Begin {
            remote_channel,
            incoming_window: self.config.incoming_window,
            outgoing_window: self.config.outgoing_window,
            handle_max: self.config.handle_max,
            ..Begin::default()
        };
        self.wire.frame(channel, &begin);
    }

    pub(super) fn take_begin(
        &mut self,
        remote: u16,
        begin: Box<Begin>,
    ) -> Result<(), ProtocolViolation> {
        if remote > self.config.channel_max {
            let text = format!("channel {remote} is above {}", self.config.channel_max);
            return Err(AmqpError::new(condition::FRAMING_ERROR, text).into());
        }
        let at = usize::from(remote);
        if self.by_remote_channel.get(at).copied().flatten().is_some() {
            return Err(illegal("a session already exists on this channel").into());
        }
        let session = match begin.remote_channel {
            Some(channel) => match self.session(channel) {
                Some(session) if session.remote_channel.is_none() && !session.end_received => {
                    SessionId { channel, serial: session.serial }
                }
                _ => return Err(illegal("reply to a begin that was not sent").into()),
            },
            None => {
                let Some(id) = self.new_session() else {
                    let text = "too many sessions";
                    return Err(AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text).into());
                };
                self.write_begin(id.channel, Some(remote));
                id
            }
        };
        if self.by_remote_channel.len() <= at {
            self.by_remote_channel.resize(at + 1, None);
        }
        self.by_remote_channel[at] = Some(session.channel);
        if let Some(state) = self.session_mut(session.channel) {
            state.remote_channel = Some(remote);
            state.next_incoming_id = begin.next_outgoing_id;
            state.remote_incoming_window = begin.incoming_window;
            state.remote_handle_max = begin.handle_max;
            if !state.end_sent {
                self.events.push_back(Event::Begun { session, begin });
            }
        }
        Ok(())
    }

    /// Ends a session, or replies to an end. Its links and deliveries are gone.
    pub fn end(&mut self, session: SessionId, error: Option<AmqpError>) -> Result<(), UseError> {
        if self.session_by_id(session)?.end_sent {
            return Err(UseError::OutOfTurn);
        }
        self.write_end(session.channel, error);
        Ok(())
    }

    fn write_end(&mut self, channel: u16, error: Option<AmqpError>) {
        self.empty_session(channel);
        self.wire.frame(channel, &End { error });
        if let Some(session) = self.session_mut(channel) {
            session.end_sent = true;
            if session.end_received {
                self.sessions[usize::from(channel)] = None;
            }
        }
    }

    /// Releases what a session holds.
    fn empty_session(&mut self, channel: u16) {
        let Some(session) = self.sessions.get_mut(usize::from(channel)).and_then(Option::as_mut)
        else {
            return;
        };
        for link in session.links.drain(..).flatten() {
            self.links -= 1;
            self.partial_bytes -= link.partial.map_or(0, |partial| partial.payload.len());
        }
        for queued in session.outbox.drain(..) {
            self.queued_bytes -= queued.payload.len();
        }
        session.by_remote_handle = Vec::new();
        session.outgoing = Default::default();
        session.incoming = Default::default();
    }

    pub(super) fn take_end(&mut self, channel: u16, error: Option<AmqpError>) {
        self.empty_session(channel);
        let Some(session) = self.session_mut(channel) else { return };
        let id = SessionId { channel, serial: session.serial };
        session.end_received = true;
        let answered = session.end_sent;
        if let Some(remote) = session.remote_channel.take() {
            self.by_remote_channel[usize::from(remote)] = None;
        }
        if answered {
            self.sessions[usize::from(channel)] = None;
            self.events.push_back(Event::Ended { session: id, error });
        } else {
            self.events.push_back(Event::End { session: id, error });
        }
    }

    /// Closes, or replies to a close. A server that refuses the open sends both.
    pub fn close(&mut self, error: Option<AmqpError>) -> Result<(), UseError> {
        if self.close_sent || self.phase != Phase::Running {
            return Err(UseError::OutOfTurn);
        }
        self.write_close(error);
        Ok(())
    }

    fn write_close(&mut self, error: Option<AmqpError>) {
        if !self.open_sent {
            // A close must follow an open (section 2.4.5).
            let _ = self.open(Open::default());
        }
        self.drop_sessions();
        self.wire.frame(0, &Close { error });
        self.close_sent = true;
        if self.close_received {
            self.phase = Phase::Over;
        }
    }

    fn drop_sessions(&mut self) {
        self.sessions = Vec::new();
        self.by_remote_channel = Vec::new();
        self.range = None;
        self.links = 0;
        self.partial_bytes = 0;
        self.queued_bytes = 0;
    }

    pub(super) fn take_close(&mut self, error: Option<AmqpError>) -> Result<(), ProtocolViolation> {
        if !self.open_received {
            return Err(illegal("frame before open").into());
        }
        self.close_received = true;
        self.drop_sessions();
        if self.close_sent {
            self.phase = Phase::Over;
            self.events.push_back(Event::Closed { error });
        } else {
            self.events.push_back(Event::Close { error });
        }
        Ok(())
    }

    /// The peer violated the protocol of the connection: sends the error, and reads nothing more.
    pub(super) fn fail(&mut self, error: AmqpError) {
        if self.phase == Phase::Running && !self.close_sent {
            self.write_close(Some(error.clone()));
        }
        self.drop_sessions();
        self.phase = Phase::Over;
        self.events.push_back(Event::Failed(error));
    }

    /// The peer violated the protocol of a session, which is ended.
    pub(super) fn fail_session(&mut self, channel: u16, error: AmqpError) {
        let Some(session) = self.session(channel) else { return };
        let session = SessionId { channel, serial: session.serial };
        self.write_end(channel, Some(error.clone()));
        self.events.push_back(Event::SessionFailed { session, error });
    }

    /// The peer violated the protocol of a link, which is detached.
    pub(super) fn fail_link(&mut self, link: LinkId, error: AmqpError) {
        if self.detach(link, true, Some(error.clone())).is_ok() {
            self.events.push_back(Event::LinkFailed { link, error });
        }
    }
}
