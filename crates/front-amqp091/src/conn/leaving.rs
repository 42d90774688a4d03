//! Consumers whose channel has ended.
//!
//! Messages may be on their way to such a consumer. If it were detached at once, the next active consumer of its queue
//! would get later messages first. So its credit is taken back, the messages on their way are returned, and only then is
//! it detached.

use malote_engine::ConsumerId;

use super::Conn;
use super::completion::Completion;

/// A consumer that is about to be detached.
pub(crate) struct LeavingConsumer {
    /// Messages that may still arrive.
    on_their_way: u32,
    /// The engine has taken the credit back, so that `on_their_way` is exact.
    stopped: bool,
}

impl Conn {
    /// Begins to detach a consumer with this much credit at the engine.
    pub(crate) fn begin_leaving(&mut self, id: ConsumerId, given: u32) {
        self.leaving.insert(id, LeavingConsumer { on_their_way: given, stopped: false });
        let engine = self.engine.clone();
        self.start(async move {
            // If the engine stops, nothing arrives any more.
            let unused = engine.credit(id, 0, true).await.unwrap_or(given);
            Completion::Stopped { consumer: id, unused }
        });
    }

    /// Whether no channel is left. Messages are then returned, and need no room in the output.
    pub(super) fn only_leaves(&self) -> bool {
        self.channels.is_empty() && !self.leaving.is_empty()
    }

    /// The engine has taken back what was left of the credit.
    pub(super) fn consumer_stopped(&mut self, id: ConsumerId, unused: u32) {
        if let Some(leaving) = self.leaving.get_mut(&id) {
            leaving.stopped = true;
        }
        self.leaving_received(id, unused);
    }

    /// Messages for a consumer without a channel have arrived, and are being returned.
    pub(crate) fn leaving_received(&mut self, id: ConsumerId, count: u32) {
        let Some(leaving) = self.leaving.get_mut(&id) else { return };
        leaving.on_their_way = leaving.on_their_way.saturating_sub(count);
        if leaving.stopped && leaving.on_their_way == 0 {
            self.leaving.remove(&id);
            while self.flush_settles() {}
            self.detach(id);
        }
    }
}
