//! Frames → channels; opening and closing channels.

use malote_http::Share;
use tokio::time::Instant;

use super::Conn;
use super::channel::{Channel, Mode, Staged, Verdict};
use crate::limits;
use crate::wire::content::{Assembled, ContentAssembler};
use crate::wire::error::{Exception, ReplyCode, Scope};
use crate::wire::frame::{Frame, FrameKind};
use crate::wire::method::{
    DecodeMethod as _, EncodeMethod as _, Method, MethodId, basic, channel, connection,
};

impl Conn {
    /// Whether more should be read from the socket.
    pub fn wants_input(&self) -> bool {
        !self.finished && !self.closed_by_client && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.sending_bytes < limits::SENDING_BYTES_MAX
            && self.held_bytes < limits::HELD_BYTES_MAX
            && self.out.len() < limits::OUTPUT_BYTES_MAX
    }

    /// Room for the next read.
    pub fn reserve_input(&mut self) {
        let missing = self.decoder.missing_bytes(&self.input);
        self.input.reserve(missing.max(limits::READ_BYTES));
    }

    pub fn is_finished(&self) -> bool {
        self.finished || self.closing.is_some_and(|by| by <= Instant::now())
    }

    pub fn closing_deadline(&self) -> Option<Instant> {
        self.closing
    }

    /// Handles the frames that have arrived.
    pub(super) fn read_frames(&mut self) {
        while !self.finished && !self.closed_by_client && self.has_room() {
            match self.decoder.decode(&mut self.input) {
                Ok(Some(frame)) => self.frame(frame),
                Ok(None) => return,
                Err(exception) => {
                    // Nothing behind a broken frame can be understood.
                    self.input.clear();
                    match self.closing {
                        Some(_) => self.finished = true,
                        None => self.close_connection(&exception),
                    }
                    return;
                }
            }
        }
    }

    fn frame(&mut self, frame: Frame) {
        if frame.kind == FrameKind::Heartbeat {
            return;
        }
        if frame.channel == 0 {
            return self.connection_frame(&frame);
        }
        if self.closing.is_some() {
            return;
        }
        let number = frame.channel;
        let id = match frame.kind {
            FrameKind::Method => MethodId::of_payload(&frame.payload),
            _ => None,
        };
        match self.channels.get_mut(&number) {
            None if id == Some(channel::Open::ID) => self.open_channel(number),
            // The answer to a close that crossed the client's own.
            None if id == Some(channel::CloseOk::ID) => {}
            None => {
                let exception = Exception::new(ReplyCode::ChannelError, "expected 'channel.open'");
                self.close_connection(&exception.caused_by(id.unwrap_or(MethodId::NONE)));
            }
            Some(channel) if channel.closing => {
                if id == Some(channel::CloseOk::ID) {
                    self.channels.remove(&number);
                } else if id == Some(channel::Close::ID) {
                    self.put(number, &channel::CloseOk {});
                    self.channels.remove(&number);
                }
            }
            Some(_) if id == Some(channel::Open::ID) => {
                let detail = "second 'channel.open' seen";
                let exception = Exception::new(ReplyCode::ChannelError, detail);
                self.close_connection(&exception.caused_by(channel::Open::ID));
            }
            Some(channel) => {
                let payload_bytes = frame.payload.len();
                let before = channel.assembler.buffered_bytes();
                let pushed = channel.assembler.push(frame);
                let after = channel.assembler.buffered_bytes();
                if after != before {
                    self.unfinished_bytes = (self.unfinished_bytes + after).saturating_sub(before);
                    self.share_unfinished();
                }
                self.pushed(number, pushed, payload_bytes);
            }
        }
    }

    /// Handles what a frame has completed.
    fn pushed(
        &mut self,
        number: u16,
        pushed: Result<Option<Assembled>, Exception>,
        payload_bytes: usize,
    ) {
        match pushed {
            Ok(None) if self.unfinished_bytes > limits::UNFINISHED_BYTES_MAX => {
                let most = limits::UNFINISHED_BYTES_MAX;
                let detail = format!("unfinished messages must not exceed {most} bytes");
                let exception = Exception::new(ReplyCode::ResourceError, detail);
                self.close_connection(&exception.caused_by(basic::Publish::ID));
            }
            Ok(None) => {}
            Ok(Some(assembled)) => match self.channels.get_mut(&number) {
                Some(channel) if channel.busy => {
                    let (assembled, bytes) = kept(assembled, payload_bytes);
                    self.held_bytes += bytes;
                    channel.waiting.push_back((assembled, bytes));
                }
                _ => self.request(number, assembled),
            },
            Err(exception) => self.fail(number, exception),
        }
    }

    /// Adjusts the connection's share of the memory that all connections may use for unfinished bodies.
    fn share_unfinished(&mut self) {
        let needed = self.unfinished_bytes;
        if needed == 0 {
            self.unfinished_share = None;
            return;
        }
        let held = self.unfinished_share.as_ref().map_or(0, Share::bytes);
        if needed <= held {
            return;
        }
        // In steps, so that not every frame asks.
        let more = (needed - held).max(limits::UNFINISHED_STEP_BYTES);
        let grown = match &mut self.unfinished_share {
            Some(share) => share.grow(more),
            none => {
                *none = self.front.unfinished.take(self.peer.address, more);
                none.is_some()
            }
        };
        if !grown {
            let detail = "too many unfinished messages from this address or from all: send large messages one after the \
                other";
            let exception = Exception::new(ReplyCode::ResourceError, detail);
            self.close_connection(&exception.caused_by(basic::Publish::ID));
        }
    }

    fn connection_frame(&mut self, frame: &Frame) {
        let method = match frame.kind {
            FrameKind::Method => Method::decode(&frame.payload),
            _ => Err(Exception::new(
                ReplyCode::UnexpectedFrame,
                "expected method frame, got non method frame instead",
            )),
        };
        match method {
            Ok(Method::ConnectionCloseOk(_)) if self.closing.is_some() => self.finished = true,
            // The server has closed too: nothing is left to wait for.
            Ok(Method::ConnectionClose(_)) if self.closing.is_some() => {
                self.put(0, &connection::CloseOk {});
                self.finished = true;
            }
            Ok(Method::ConnectionClose(_)) => self.closed_by_client = true,
            _ if self.closing.is_some() => {}
            Ok(Method::ConnectionUpdateSecret(_)) => self.put(0, &connection::UpdateSecretOk {}),
            Ok(method) => {
                let detail = "unexpected method in connection state running";
                let code = match method.id().class {
                    10 => ReplyCode::CommandInvalid,
                    _ => ReplyCode::ChannelError,
                };
                self.close_connection(&Exception::new(code, detail).caused_by(method.id()));
            }
            Err(exception) => self.close_connection(&exception),
        }
    }

    fn open_channel(&mut self, number: u16) {
        let (open, most) = (self.channels.len(), usize::from(self.session.channel_max));
        if open >= most {
            let detail = format!(
                "number of channels opened ({open}) has reached the negotiated channel_max ({most})"
            );
            let exception = Exception::new(ReplyCode::NotAllowed, detail);
            return self.close_connection(&exception.caused_by(channel::Open::ID));
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        self.channels.insert(number, Channel::new(serial));
        self.put(number, &channel::OpenOk::default());
    }

    /// Handles a request, unless an earlier one of the channel is in progress.
    fn request(&mut self, number: u16, assembled: Assembled) {
        let (id, handled) = match assembled {
            Assembled::Publication(publication) => {
                (basic::Publish::ID, self.publish(number, publication))
            }
            Assembled::Method(method) => (method.id(), self.method(number, method)),
        };
        if let Err(exception) = handled {
            let exception = match exception.method {
                MethodId::NONE => exception.caused_by(id),
                _ => exception,
            };
            self.fail(number, exception);
        }
    }

    /// Continues with the requests that waited for one that is done.
    pub(super) fn resume(&mut self, number: u16, serial: u64) {
        if let Some(channel) = self.channel_of(number, serial) {
            channel.busy = false;
        }
        loop {
            let Some(channel) = self.channel_of(number, serial).filter(|channel| !channel.busy)
            else {
                return;
            };
            let Some((next, bytes)) = channel.waiting.pop_front() else { return };
            self.held_bytes = self.held_bytes.saturating_sub(bytes);
            self.request(number, next);
        }
    }

    /// Sends `channel.close`. From then on, the channel discards everything until `close-ok`.
    pub(crate) fn close_channel(&mut self, number: u16, exception: &Exception) {
        debug_assert_eq!(exception.scope, Scope::Channel);
        if self.closing.is_some() || self.channels.get(&number).is_none_or(|c| c.closing) {
            return;
        }
        tracing::debug!(conn = self.number, channel = number, %exception, front = "rabbitmq", "closing a channel");
        self.flush_confirms();
        self.end_channel(number);
        self.put(number, &exception.channel_close());
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.closing = true;
        }
    }

    /// The client closed the channel.
    pub(super) fn channel_closed_by_client(&mut self, number: u16) {
        self.drop_channel(number);
        self.put(number, &channel::CloseOk {});
    }

    /// Removes a channel.
    pub(super) fn drop_channel(&mut self, number: u16) {
        self.end_channel(number);
        self.channels.remove(&number);
    }

    /// Ends what a channel has: consumers are detached, and unacknowledged messages return to their queues.
    fn end_channel(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let waiting: usize = channel.waiting.drain(..).map(|(_, bytes)| bytes).sum();
        self.held_bytes = self.held_bytes.saturating_sub(waiting);
        channel.busy = false;
        let tags: Vec<_> = channel.consumers.keys().cloned().collect();
        let unfinished = channel.assembler.buffered_bytes();
        // A channel that waits for `close-ok` keeps nothing.
        channel.assembler = ContentAssembler::new(limits::MESSAGE_BYTES_MAX);
        let staged = match &mut channel.mode {
            Mode::Transaction(staged) => std::mem::take(staged),
            Mode::Plain | Mode::Confirm(_) => Staged::default(),
        };
        self.staged_bytes = self.staged_bytes.saturating_sub(staged.bytes);
        let unacked = std::mem::take(&mut channel.unacked).into_values();
        let unacked = unacked.chain(staged.settled.into_iter().map(|(one, _)| one));
        let unacked: Vec<_> = unacked.map(|one| one.lease).collect();
        self.unacked = self.unacked.saturating_sub(unacked.len());
        let held: Vec<_> = channel.held.drain(..).collect();
        let held = held.into_iter().filter_map(|(_, delivery)| self.no_longer_held(delivery).lease);
        let held: Vec<_> = held.collect();
        let leases = unacked.into_iter().chain(held);
        self.settle_queue.add(Verdict::Release, leases);
        if unfinished > 0 {
            self.unfinished_bytes = self.unfinished_bytes.saturating_sub(unfinished);
            self.share_unfinished();
        }
        self.drop_reply_consumer(number);
        // The messages return after the consumers were stopped, and before they are detached.
        for tag in tags {
            self.detach_consumer(number, &tag);
        }
        while self.flush_settles() {}
    }

    /// Forgets a channel after the connection was lost. Its messages stay leased: the engine counts them as failed.
    pub(super) fn abandon_channel(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let held = channel.held.drain(..).filter_map(|(_, delivery)| delivery.lease);
        let held: Vec<_> = held.collect();
        self.settle_queue.add(Verdict::Release, held);
        self.drop_reply_consumer(number);
        self.channels.remove(&number);
    }
}

/// A request that waits, and the memory that it takes. The arguments of a method share the buffer of a read.
fn kept(assembled: Assembled, payload_bytes: usize) -> (Assembled, usize) {
    let fixed = 256;
    match assembled {
        Assembled::Method(_) => (assembled, fixed + payload_bytes.max(limits::READ_BYTES)),
        Assembled::Publication(publication) => {
            let publication = publication.detached();
            let bytes = publication.body.len() + publication.properties.as_bytes().len();
            (Assembled::Publication(publication), fixed + bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::method::queue;

    /// A declaration has arguments as large as a frame, and a small one keeps the buffer of its read.
    #[test]
    fn a_method_that_waits_counts_with_the_buffer_that_it_keeps() {
        let counted = |payload_bytes| {
            let declare = Method::QueueDeclare(queue::Declare::default());
            kept(Assembled::Method(declare), payload_bytes).1
        };
        assert!(counted(20) >= limits::READ_BYTES);
        assert!(counted(131_072) >= 131_072);
    }
}
