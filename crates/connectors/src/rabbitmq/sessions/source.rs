//! A session in hand.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Demand, Hall, Hold, Item};
use crate::broker::{BrokerError, Delivery, Doing, Held, Source};
use crate::rabbitmq::plain::delivery;

pub(super) struct SessionSource {
    demand: Demand,
    hold: Arc<Hold>,
}

impl SessionSource {
    pub(super) fn boxed(demand: Demand, hold: Arc<Hold>) -> Box<dyn Source> {
        Box::new(Self { demand, hold })
    }

    fn hall(&self) -> &Arc<Hall> {
        &self.demand.0
    }
}

impl Hall {
    /// What may be handed out now, and when there will be more if that is known.
    fn take(
        self: &Arc<Self>,
        hold: &Hold,
        max: u32,
    ) -> Result<(Vec<Delivery>, Option<Instant>), BrokerError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.is_leaving(&hold.held.session) {
            self.end_idle(state, &hold.held.session);
            return if hold.lost.is_cancelled() {
                Err(BrokerError::LockLost)
            } else {
                Ok((Vec::new(), None))
            };
        }
        let id = &hold.held.session;
        let session = match state.sessions.get_mut(id) {
            Some(session) if !hold.lost.is_cancelled() => session,
            _ => return Err(BrokerError::LockLost),
        };
        let (mut got, now) = (Vec::new(), Instant::now());
        while got.len() < max as usize {
            let Some(first) = session.here.first_entry() else { break };
            if let Some(due) = first.get().arrived.not_before.filter(|due| *due > now) {
                return Ok((got, Some(due)));
            }
            let (number, mut item): (u64, Item) = first.remove_entry();
            item.arrived.not_before = None;
            item.arrived.receives = item.arrived.receives.saturating_add(1);
            let lease = self.tools.token(item.way.number);
            got.push(delivery(&item.arrived, lease));
            state.leases.insert(lease, (id.clone(), number));
            session.out.insert(number, (lease, item));
        }
        Ok((got, None))
    }
}

impl Source for SessionSource {
    fn held(&self) -> Option<&Held> {
        Some(&self.hold.held)
    }

    fn fetch(&self, max: u32, wait: Duration) -> Doing<'_, Vec<Delivery>> {
        Box::pin(async move {
            let until = Instant::now() + wait;
            loop {
                let (got, more_at) = self.hall().take(&self.hold, max)?;
                if !got.is_empty() {
                    return Ok(got);
                }
                let look = more_at.unwrap_or(until).min(until);
                tokio::select! {
                    () = self.hold.came.notified() => {}
                    () = self.hold.lost.cancelled() => return Err(BrokerError::LockLost),
                    () = tokio::time::sleep_until(look) => if look >= until {
                        return Ok(Vec::new());
                    },
                }
            }
        })
    }

    fn close(self: Box<Self>) -> Doing<'static, ()> {
        // Nothing to wait for: whoever has the partition has the session.
        Box::pin(async move {
            drop(self);
            Ok(())
        })
    }
}

impl Drop for SessionSource {
    fn drop(&mut self) {
        let mut state = self.hall().state.lock();
        self.hall().end(&mut state, &self.hold);
    }
}
