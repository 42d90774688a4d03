//! Attaching and detaching links.

use crate::performative::{AmqpError, Attach, Detach, Role, condition};
use crate::types::Str;

use super::link::Link;
use super::{Connection, Event, LinkId, ProtocolViolation, SessionId, UseError};

/// Longest name of a link. Names are kept for the lifetime of the link.
const NAME_BYTES_MAX: usize = 1_024;

impl Attach {
    /// The reply that accepts everything. The owner changes it where necessary.
    pub fn answer(&self) -> Attach {
        let role = self.role.opposite();
        Attach {
            name: self.name.clone(),
            handle: 0,
            role,
            snd_settle_mode: self.snd_settle_mode,
            rcv_settle_mode: self.rcv_settle_mode,
            source: self.source.clone(),
            target: self.target.clone(),
            initial_delivery_count: (role == Role::Sender).then_some(0),
            ..Attach::default()
        }
    }
}

impl Connection {
    /// Attaches a link; [`Event::Attached`] follows. The handle and the initial delivery count are filled in.
    pub fn attach(&mut self, session: SessionId, attach: Attach) -> Result<LinkId, UseError> {
        let handle_max = self.config.handle_max;
        let room = self.links < self.config.links_max;
        let serial = self.serial();
        let state = self.session_by_id(session)?;
        if state.end_sent || state.end_received {
            return Err(UseError::Gone);
        }
        let free = state.free_handle(handle_max).filter(|_| room);
        let handle = free.ok_or(UseError::TooMany)?;
        state.put_link(handle, Link::new(serial, attach.name.clone(), attach.role));
        self.links += 1;
        let link = LinkId { session, handle, serial };
        self.write_attach(link, attach);
        Ok(link)
    }

    /// Accepts an attach of the peer, usually with [`Attach::answer`]. Name, role and handle are filled in.
    pub fn accept(&mut self, link: LinkId, answer: Attach) -> Result<(), UseError> {
        let state = self.link_by_id(link)?;
        if state.attach_sent || state.detach_sent || state.detach_received {
            return Err(UseError::OutOfTurn);
        }
        self.write_attach(link, answer);
        Ok(())
    }

    /// Refuses an attach of the peer: replies without source and target, followed by a detach with the error. Clients
    /// treat any other reply as accepted.
    pub fn refuse(&mut self, link: LinkId, error: AmqpError) -> Result<(), UseError> {
        if self.link_by_id(link)?.attach_sent {
            return Err(UseError::OutOfTurn);
        }
        self.detach(link, true, Some(error))
    }

    fn write_attach(&mut self, link: LinkId, mut attach: Attach) {
        let max_message_size = self.config.max_message_size;
        let accepted = self.config.max_message_size_accepted;
        let Ok(state) = self.link_by_id(link) else { return };
        attach.name = state.name.clone();
        attach.role = state.role;
        attach.handle = link.handle;
        match state.role {
            Role::Sender => {
                state.initial_count = *attach.initial_delivery_count.get_or_insert(0);
                state.delivery_count = state.initial_count;
            }
            Role::Receiver => {
                attach.initial_delivery_count = None;
                let announced = *attach.max_message_size.get_or_insert(max_message_size);
                state.max_message_size =
                    accepted.map_or(announced, |accepted| accepted.max(announced));
            }
        }
        state.snd_settle_mode = attach.snd_settle_mode;
        state.rcv_settle_mode = attach.rcv_settle_mode;
        state.attach_sent = true;
        self.wire.frame(link.session.channel, &attach);
    }

    pub(super) fn take_attach(
        &mut self,
        channel: u16,
        attach: Box<Attach>,
    ) -> Result<(), ProtocolViolation> {
        let handle_max = self.config.handle_max;
        if attach.handle > handle_max {
            let text = format!("handle {} is above {handle_max}", attach.handle);
            return Err(AmqpError::new(condition::FRAMING_ERROR, text).into());
        }
        let room = self.links < self.config.links_max;
        let serial = self.serial();
        let Some(session) = self.session_mut(channel) else { return Ok(()) };
        let session_error = |condition, text: String| {
            Err(ProtocolViolation::Session(channel, AmqpError::new(condition, text)))
        };
        if session.local_handle(attach.handle).is_some() {
            let text = format!("handle {} is in use", attach.handle);
            return session_error(condition::HANDLE_IN_USE, text);
        }
        if attach.name.as_bytes().len() > NAME_BYTES_MAX {
            let text = format!("the link name has more than {NAME_BYTES_MAX} bytes");
            return session_error(condition::INVALID_FIELD, text);
        }
        let id = SessionId { channel, serial: session.serial };
        let role = attach.role.opposite();
        let named = |link: &Link| link.name == attach.name && link.role == role;
        let place = |fits: &dyn Fn(&Link) -> bool| {
            let at = session.links.iter().position(|link| link.as_ref().is_some_and(fits));
            at.map(|at| at as u32)
        };
        let taken = place(&|link| {
            named(link) && link.attach_received && !link.detach_received && !link.detach_sent
        });
        // Our own attach, which this one answers.
        let ours = place(&|link| named(link) && !link.attach_received && !link.detach_received);
        if let Some((handle, link)) = ours.and_then(|at| Some((at, session.link_mut(at)?))) {
            link.take_attach(&attach);
            let link_id = LinkId { session: id, handle, serial: link.serial };
            let still_wanted = !link.detach_sent;
            session.bind_handle(attach.handle, handle);
            if still_wanted {
                self.events.push_back(Event::Attached { link: link_id, attach });
            }
            return Ok(());
        }
        let Some(handle) = session.free_handle(handle_max).filter(|_| room) else {
            let text = "too many links".to_owned();
            return session_error(condition::RESOURCE_LIMIT_EXCEEDED, text);
        };
        // Copied, so that the link does not keep the received bytes in memory.
        let mut link = Link::new(serial, Str::from(attach.name.as_str()), role);
        link.take_attach(&attach);
        session.bind_handle(attach.handle, handle);
        session.put_link(handle, link);
        self.links += 1;
        if let Some(taken) = taken {
            self.steal(id, taken);
        }
        self.attach_when_free(LinkId { session: id, handle, serial }, attach);
        Ok(())
    }

    /// Detaches a link because another one with its name was attached.
    fn steal(&mut self, session: SessionId, handle: u32) {
        let Some(link) = self.session_mut(session.channel).and_then(|s| s.link_mut(handle)) else {
            return;
        };
        link.stolen = true;
        let link = LinkId { session, handle, serial: link.serial };
        let text = "another link with this name was attached";
        self.fail_link(link, AmqpError::new(condition::STOLEN, text));
    }

    /// Reports an attach to the owner. If the name was taken from another link, this waits until the peer has confirmed
    /// that link's detach: replies are matched by name, and clients would confuse the two.
    fn attach_when_free(&mut self, link: LinkId, attach: Box<Attach>) {
        let Some(session) = self.session_mut(link.session.channel) else { return };
        let role = attach.role.opposite();
        let stolen = |other: &Link| other.stolen && other.name == attach.name && other.role == role;
        if !session.links.iter().flatten().any(stolen) {
            self.events.push_back(Event::Attach { link, attach });
        } else if let Some(state) = session.link_mut(link.handle) {
            state.waiting = Some(attach);
        }
    }

    /// Detaches a link, or replies to a detach. Its deliveries become void.
    pub fn detach(
        &mut self,
        link: LinkId,
        closed: bool,
        error: Option<AmqpError>,
    ) -> Result<(), UseError> {
        let state = self.link_by_id(link)?;
        if state.detach_sent {
            return Err(UseError::OutOfTurn);
        }
        let attach = (!state.attach_sent).then(|| Attach {
            snd_settle_mode: state.snd_settle_mode,
            rcv_settle_mode: state.rcv_settle_mode,
            ..Attach::default()
        });
        // A detach must follow an attach. One without source and target promises nothing.
        if let Some(attach) = attach {
            self.write_attach(link, attach);
        }
        self.void_deliveries(link);
        self.wire.frame(link.session.channel, &Detach { handle: link.handle, closed, error });
        let state = self.link_by_id(link)?;
        state.detach_sent = true;
        if state.detach_received {
            self.free_link(link);
        }
        // Transfers of other links may have waited behind those of this one.
        self.flush_outbox(link.session.channel);
        Ok(())
    }

    pub(super) fn take_detach(&mut self, channel: u16, detach: Detach) {
        let Some(session) = self.session_mut(channel) else { return };
        // Some clients send it twice, or after the end of the session.
        let Some(handle) = session.local_handle(detach.handle) else { return };
        session.unbind_handle(detach.handle);
        let id = SessionId { channel, serial: session.serial };
        let Some(link) = session.link_mut(handle) else { return };
        link.detach_received = true;
        link.remote_handle = None;
        let answered = link.detach_sent;
        let link = LinkId { session: id, handle, serial: link.serial };
        self.void_deliveries(link);
        if answered {
            self.events.push_back(Event::Detached { link, error: detach.error });
            self.free_link(link);
        } else {
            let Detach { closed, error, .. } = detach;
            self.events.push_back(Event::Detach { link, closed, error });
        }
        self.flush_outbox(channel);
    }

    fn free_link(&mut self, link: LinkId) {
        let session = self.session_mut(link.session.channel);
        let slot = session.and_then(|session| session.links.get_mut(link.handle as usize));
        let Some(gone) = slot.and_then(Option::take) else { return };
        self.links -= 1;
        if gone.stolen {
            self.attach_waiting(link.session);
        }
    }

    /// Reports attaches that waited for a name.
    fn attach_waiting(&mut self, id: SessionId) {
        let Some(session) = self.session_mut(id.channel) else { return };
        let waiting = session.links.iter_mut().enumerate().filter_map(|(handle, link)| {
            let link = link.as_mut().filter(|link| !link.detach_sent && !link.detach_received)?;
            let attach = link.waiting.take()?;
            Some((LinkId { session: id, handle: handle as u32, serial: link.serial }, attach))
        });
        let waiting: Vec<(LinkId, Box<Attach>)> = waiting.collect();
        waiting.into_iter().for_each(|(link, attach)| self.attach_when_free(link, attach));
    }

    /// Discards deliveries in both directions.
    fn void_deliveries(&mut self, link: LinkId) {
        let Some(session) =
            self.sessions.get_mut(usize::from(link.session.channel)).and_then(Option::as_mut)
        else {
            return;
        };
        session.outbox.retain(|queued| {
            let keep = queued.link != link;
            if !keep {
                self.queued_bytes -= queued.payload.len();
            }
            keep
        });
        session.outgoing.forget_link(link);
        session.incoming.forget_link(link);
        if let Some(state) = session.link_mut(link.handle) {
            state.credit = 0;
            state.queued = 0;
            if let Some(partial) = state.partial.take() {
                self.partial_bytes -= partial.payload.len();
            }
        }
    }
}

impl Link {
    fn take_attach(&mut self, attach: &Attach) {
        self.attach_received = true;
        self.remote_handle = Some(attach.handle);
        self.remote_max_message_size = attach.max_message_size.unwrap_or(0);
        if self.role == Role::Receiver {
            self.delivery_count = attach.initial_delivery_count.unwrap_or(0);
            // Credit may have been granted before the initial delivery count was known.
            self.limit = self.delivery_count.wrapping_add(self.credit);
        }
        // The requested mode or, in a reply, the agreed one.
        self.snd_settle_mode = attach.snd_settle_mode;
        self.rcv_settle_mode = attach.rcv_settle_mode;
    }
}
