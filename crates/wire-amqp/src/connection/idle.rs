//! Idle timeouts (section 2.4.5): sends empty frames, and closes the connection if the peer is silent for too long.

use crate::performative::{AmqpError, condition};

use super::{Connection, Phase};

impl Connection {
    pub(super) fn note_written(&mut self) {
        if self.wire.take_wrote() {
            self.sent_ms = self.now_ms;
        }
    }

    /// Updates the time. Sends an empty frame if one is due, and closes the connection if the peer is silent for too
    /// long.
    pub fn tick(&mut self, now_ms: u64) {
        self.note_written();
        self.now_ms = now_ms;
        if self.phase == Phase::Over {
            return;
        }
        if self.silence_ends_ms().is_some_and(|end| end <= now_ms) {
            let text = "no frame was received within the idle timeout";
            self.fail(AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text));
        } else if self.sign_due_ms().is_some_and(|due| due <= now_ms) {
            self.wire.empty();
        }
    }

    /// When [`Connection::tick`] must be called next, if nothing else happens before.
    pub fn next_tick_ms(&self) -> Option<u64> {
        if self.phase == Phase::Over {
            return None;
        }
        [self.silence_ends_ms(), self.sign_due_ms()].into_iter().flatten().min()
    }

    /// Twice the announced timeout, so that a peer that sends at the last moment is not disconnected.
    fn silence_ends_ms(&self) -> Option<u64> {
        let announced = self.config.idle_time_out_ms?;
        Some(self.received_ms.saturating_add(u64::from(announced) * 2))
    }

    /// Half of the peer's timeout, to allow for network delays.
    fn sign_due_ms(&self) -> Option<u64> {
        let announced = self.remote_idle_ms.filter(|_| self.open_sent && !self.close_sent)?;
        Some(self.sent_ms.saturating_add(u64::from(announced.div_ceil(2))))
    }
}
