//! Silence (section 2.4.5): ours is broken by empty frames, the peer's is borne for a while.

use crate::performative::{AmqpError, condition};

use super::{Connection, Phase};

impl Connection {
    pub(super) fn note_written(&mut self) {
        if self.wire.take_wrote() {
            self.sent_ms = self.now_ms;
        }
    }

    /// Time has passed. Sends a sign of life when one is due; closes when the peer is silent for too long.
    pub fn tick(&mut self, now_ms: u64) {
        self.note_written();
        self.now_ms = now_ms;
        if self.phase == Phase::Over {
            return;
        }
        if self.silence_ends_ms().is_some_and(|end| end <= now_ms) {
            let text = "nothing was heard for longer than the idle-time-out";
            self.fail(AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text));
        } else if self.sign_due_ms().is_some_and(|due| due <= now_ms) {
            self.wire.empty();
        }
    }

    /// When [`Connection::tick`] has something to do, if nothing else happens before.
    pub fn next_tick_ms(&self) -> Option<u64> {
        if self.phase == Phase::Over {
            return None;
        }
        [self.silence_ends_ms(), self.sign_due_ms()].into_iter().flatten().min()
    }

    /// Twice what we announce: a peer that sends at the last moment is not cut off.
    fn silence_ends_ms(&self) -> Option<u64> {
        let announced = self.config.idle_time_out_ms?;
        Some(self.received_ms.saturating_add(u64::from(announced) * 2))
    }

    /// Half of what the peer announces, for the way there.
    fn sign_due_ms(&self) -> Option<u64> {
        let announced = self.remote_idle_ms.filter(|_| self.open_sent && !self.close_sent)?;
        Some(self.sent_ms.saturating_add(u64::from(announced.div_ceil(2))))
    }
}
