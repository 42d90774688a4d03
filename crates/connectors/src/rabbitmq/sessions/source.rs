//! The source of a held session.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{ActiveHold, Demand, PartitionedQueue, SessionMessage};
use crate::broker::{BrokerError, BrokerFuture, Delivery, SessionHold, Source};
use crate::rabbitmq::plain::delivery;

pub(super) struct RabbitSessionSource {
    demand: Demand,
    hold: Arc<ActiveHold>,
}

impl RabbitSessionSource {
    pub(super) fn boxed(demand: Demand, hold: Arc<ActiveHold>) -> Box<dyn Source> {
        Box::new(Self { demand, hold })
    }

    fn partitioned(&self) -> &Arc<PartitionedQueue> {
        &self.demand.0
    }
}

impl PartitionedQueue {
    /// Leases up to `max` messages that are due. If the next one is delayed, also returns when it is due.
    fn take(
        self: &Arc<Self>,
        hold: &ActiveHold,
        max: u32,
    ) -> Result<(Vec<Delivery>, Option<Instant>), BrokerError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.is_leaving(&hold.held.session) {
            self.end_hold_if_idle(state, &hold.held.session);
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
        let (mut taken, now) = (Vec::new(), Instant::now());
        while taken.len() < max as usize {
            let Some(first) = session.buffered.first_entry() else { break };
            if let Some(due) = first.get().inbound.not_before.filter(|due| *due > now) {
                return Ok((taken, Some(due)));
            }
            let (number, mut item): (u64, SessionMessage) = first.remove_entry();
            item.inbound.not_before = None;
            item.inbound.receives = item.inbound.receives.saturating_add(1);
            let lease = self.context.new_lease(item.tracked.number);
            taken.push(delivery(&item.inbound, lease));
            state.leases.insert(lease, (id.clone(), number));
            session.leased.insert(number, (lease, item));
        }
        Ok((taken, None))
    }
}

impl Source for RabbitSessionSource {
    fn held(&self) -> Option<&SessionHold> {
        Some(&self.hold.held)
    }

    fn fetch(&self, max: u32, wait: Duration) -> BrokerFuture<'_, Vec<Delivery>> {
        Box::pin(async move {
            let until = Instant::now() + wait;
            loop {
                let (taken, more_at) = self.partitioned().take(&self.hold, max)?;
                if !taken.is_empty() {
                    return Ok(taken);
                }
                let deadline = more_at.unwrap_or(until).min(until);
                tokio::select! {
                    () = self.hold.arrival.notified() => {}
                    () = self.hold.lost.cancelled() => return Err(BrokerError::LockLost),
                    () = tokio::time::sleep_until(deadline) => if deadline >= until {
                        return Ok(Vec::new());
                    },
                }
            }
        })
    }

    fn close(self: Box<Self>) -> BrokerFuture<'static, ()> {
        // Sessions are held locally, so nothing is left to wait for.
        Box::pin(async move {
            drop(self);
            Ok(())
        })
    }
}

impl Drop for RabbitSessionSource {
    fn drop(&mut self) {
        let mut state = self.partitioned().state.lock();
        self.partitioned().end_hold(&mut state, &self.hold);
    }
}
