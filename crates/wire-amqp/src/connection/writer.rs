//! Writes frames into the output.

use bytes::{Bytes, BytesMut};

use crate::frame::{FRAME_HEADER_BYTES, FrameKind, MIN_MAX_FRAME_SIZE, put_frame};
use crate::performative::{Composite, DeliveryState, Disposition, Role, SaslFrame, Transfer};

/// Capacity reserved when nothing waits to be written; the rest serves the next deliveries.
const DELIVERIES_BYTES: usize = 16 << 10;

/// The output, and the largest frame.
#[derive(Debug)]
pub(super) struct FrameWriter {
    output: BytesMut,
    /// A disposition that the next one may still extend.
    held: Option<(u16, Disposition)>,
    pub(super) max_frame_size: u32,
    /// Whether something was written since the last check.
    wrote: bool,
    /// A performative did not fit into the peer's largest frame, and was not written.
    too_large: bool,
}

impl FrameWriter {
    pub(super) fn new() -> FrameWriter {
        FrameWriter {
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

    /// An empty frame, which keeps the connection alive.
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

    /// Writes one frame with as much of the payload as fits. The rest stays in `payload`.
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
        // A performative that fills the whole frame would never make progress.
        if size > room || (transfer.more && payload.len() == before) {
            self.output.truncate(start);
            payload.clear();
            self.too_large = true;
        }
        self.wrote = true;
    }

    /// Writes one frame with a payload written by `write`. A payload that does not fit is returned, and nothing is
    /// written.
    pub(super) fn transfer_whole(
        &mut self,
        channel: u16,
        transfer: &Transfer,
        write: impl FnOnce(&mut BytesMut),
    ) -> Option<Bytes> {
        self.release();
        if self.output.is_empty() {
            // Others usually follow; growing step by step would copy each of them several times.
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

    /// Writes a disposition. Consecutive ones for adjacent deliveries are merged.
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
            // Always written: some clients do not treat a missing `last` as equal to `first`.
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
