//! The way out: frames into bytes.

use bytes::{Bytes, BytesMut};

use crate::frame::{FRAME_HEADER_BYTES, FrameKind, MIN_MAX_FRAME_SIZE, put_frame};
use crate::performative::{Composite, DeliveryState, Disposition, Role, SaslFrame, Transfer};

/// Room that is made for deliveries when nothing waits to be written. What is left of it serves the next ones.
const DELIVERIES_BYTES: usize = 16 << 10;

/// What is to be written, and how large a frame may be.
#[derive(Debug)]
pub(super) struct Wire {
    output: BytesMut,
    /// A disposition that the next one may still extend.
    held: Option<(u16, Disposition)>,
    pub(super) max_frame_size: u32,
    /// Something was written since this was last asked.
    wrote: bool,
    /// A performative did not fit into a frame that the peer takes, and was not written.
    too_large: bool,
}

impl Wire {
    pub(super) fn new() -> Wire {
        Wire {
            output: BytesMut::new(),
            held: None,
            max_frame_size: MIN_MAX_FRAME_SIZE,
            wrote: false,
            too_large: false,
        }
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
        self.wrote = true;
    }

    pub(super) fn sasl(&mut self, frame: &SaslFrame) {
        put_frame(&mut self.output, FrameKind::Sasl, 0, |out| frame.encode(out));
        self.wrote = true;
    }

    /// An empty frame: a sign of life.
    pub(super) fn empty(&mut self) {
        self.release();
        put_frame(&mut self.output, FrameKind::Amqp, 0, |_| {});
        self.wrote = true;
    }

    pub(super) fn frame(&mut self, channel: u16, performative: &impl Composite) {
        self.release();
        self.put(channel, performative);
    }

    fn put(&mut self, channel: u16, performative: &impl Composite) {
        let start = self.output.len();
        let encode = |out: &mut BytesMut| performative.encode(out);
        let size = put_frame(&mut self.output, FrameKind::Amqp, channel, encode);
        if size > self.max_frame_size as usize {
            self.output.truncate(start);
            self.too_large = true;
        }
        self.wrote = true;
    }

    /// Writes one frame with as much of the payload as fits. What does not is left.
    pub(super) fn transfer(&mut self, channel: u16, transfer: &mut Transfer, payload: &mut Bytes) {
        self.release();
        let start = self.output.len();
        let room = self.max_frame_size as usize;
        let before = payload.len();
        self.output.reserve((payload.len() + 128).min(room));
        transfer.more = false;
        put_frame(&mut self.output, FrameKind::Amqp, channel, |out| {
            transfer.encode(out);
            if out.len() - start + payload.len() > room {
                transfer.more = true;
                out.truncate(start + FRAME_HEADER_BYTES);
                transfer.encode(out);
            }
            let fits = room.saturating_sub(out.len() - start);
            out.extend_from_slice(&payload.split_to(fits.min(payload.len())));
        });
        let size = self.output.len() - start;
        // A performative that alone fills a frame would never be done.
        if size > room || (transfer.more && payload.len() == before) {
            self.output.truncate(start);
            payload.clear();
            self.too_large = true;
        }
        self.wrote = true;
    }

    /// Writes one frame with a payload that `write` writes. One that does not fit is given back, and nothing is written.
    pub(super) fn transfer_whole(
        &mut self,
        channel: u16,
        transfer: &Transfer,
        write: impl FnOnce(&mut BytesMut),
    ) -> Option<Bytes> {
        self.release();
        if self.output.is_empty() {
            // Others follow most often; growing step by step would copy each of them several times.
            self.output.reserve(DELIVERIES_BYTES);
        }
        let start = self.output.len();
        let mut payload_at = start;
        let size = put_frame(&mut self.output, FrameKind::Amqp, channel, |out| {
            transfer.encode(out);
            payload_at = out.len();
            write(out);
        });
        if size > self.max_frame_size as usize {
            let payload = self.output.split_off(payload_at).freeze();
            self.output.truncate(start);
            return Some(payload);
        }
        self.wrote = true;
        None
    }

    /// Writes a disposition; several in a row for neighbouring deliveries become one.
    pub(super) fn disposition(
        &mut self,
        channel: u16,
        role: Role,
        delivery: u32,
        settled: bool,
        state: Option<DeliveryState>,
    ) {
        if let Some((held_channel, held)) = &mut self.held
            && *held_channel == channel
            && held.role == role
            && held.settled == settled
            && held.last.unwrap_or(held.first).wrapping_add(1) == delivery
            && held.state == state
        {
            held.last = Some(delivery);
            return;
        }
        self.release();
        let disposition =
            Disposition { role, first: delivery, last: None, settled, state, batchable: false };
        self.held = Some((channel, disposition));
    }

    fn release(&mut self) {
        if let Some((channel, mut disposition)) = self.held.take() {
            // Written out even for one: clients exist that do not take an absent one for the first.
            disposition.last.get_or_insert(disposition.first);
            self.put(channel, &disposition);
        }
    }

    pub(super) fn take(&mut self) -> Bytes {
        self.release();
        self.output.split().freeze()
    }

    pub(super) fn len(&self) -> usize {
        self.output.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.output.is_empty() && self.held.is_none()
    }

    pub(super) fn take_wrote(&mut self) -> bool {
        std::mem::take(&mut self.wrote) || self.held.is_some()
    }

    pub(super) fn take_too_large(&mut self) -> bool {
        std::mem::take(&mut self.too_large)
    }
}
