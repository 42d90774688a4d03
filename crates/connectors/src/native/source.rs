//! A source of the native connection: a consumer, and the messages that the server pushed to it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use malote_model::LeaseToken;
use malote_wire_native::frame::{
    AttachFrame, ClientFrame, CreditFrame, DetachFrame, ReleaseFrame, SettleFrame,
};
use malote_wire_native::receive::ReceiveMode;
use tokio::sync::{Mutex, mpsc};

use super::codec::settle_requests;
use super::driver::{ConsumerSink, DeliveryResult, DriverRequest, RequestKind};
use super::{BoxedFrame, DriverHandle};
use crate::broker::{BrokerError, BrokerFuture, Delivery, SessionHold, Settle, Source};
use crate::system::millis;

/// A consumer of the connection, with its prefetched messages.
pub(super) struct NativeSource {
    driver: DriverHandle,
    queue: String,
    lock: Duration,
    consumer: u64,
    held: Option<SessionHold>,
    prefetch: Mutex<PrefetchBuffer>,
    /// Set by `close`, which waits for the end; `drop` then has nothing to do.
    closed: bool,
}

struct PrefetchBuffer {
    from_driver: mpsc::UnboundedReceiver<DeliveryResult>,
    /// Given to the driver with the attach.
    to_source: Option<mpsc::UnboundedSender<DeliveryResult>>,
    buffered: VecDeque<Delivery>,
    /// Credit that was granted to the server and not used yet.
    credit: u32,
}

impl NativeSource {
    pub(super) fn new(
        driver: &DriverHandle,
        queue: String,
        lock: Duration,
        held: Option<SessionHold>,
    ) -> Self {
        let (to_source, from_driver) = mpsc::unbounded_channel();
        let consumer = driver.next_consumer.fetch_add(1, Ordering::Relaxed);
        let buffered = VecDeque::new();
        let prefetch =
            PrefetchBuffer { from_driver, to_source: Some(to_source), buffered, credit: 0 };
        let prefetch = Mutex::new(prefetch);
        Self { driver: driver.clone(), queue, lock, consumer, held, prefetch, closed: false }
    }

    /// The attach request, with the sink for deliveries.
    fn attach_request(
        &self,
        to: mpsc::UnboundedSender<DeliveryResult>,
        credit: u32,
    ) -> (RequestKind, BoxedFrame) {
        let (consumer, queue, lock_ms) = (self.consumer, self.queue.clone(), millis(self.lock));
        let session_token = self.held.as_ref().map(|held| held.hold.to_string());
        let to = ConsumerSink { to, queue: self.held.is_none().then(|| queue.clone()) };
        let frame = move |id| {
            ClientFrame::Attach(AttachFrame {
                id,
                consumer,
                queue,
                credit,
                mode: ReceiveMode::Lock,
                lock_ms: Some(lock_ms),
                session_token,
                per_session: 1,
            })
        };
        (RequestKind::Attach { consumer, to }, Box::new(frame))
    }

    /// Attaches without credit and waits for the reply.
    pub(super) async fn attach(&mut self) -> Result<(), BrokerError> {
        let Some(to) = self.prefetch.get_mut().to_source.take() else { return Ok(()) };
        let (kind, frame) = self.attach_request(to, 0);
        self.driver.call(kind, frame).await.map(drop)
    }

    /// Grants credit for `max` messages. The first call attaches, without waiting for the reply; an error ends the
    /// consumer.
    async fn grant_credit(
        &self,
        prefetch: &mut PrefetchBuffer,
        max: u32,
    ) -> Result<(), BrokerError> {
        let more = max.saturating_sub(prefetch.credit);
        // Unused credit means that nothing is ready. For a session, a little credit is enough.
        let enough = more == 0 || (self.held.is_some() && prefetch.credit > max / 4);
        if enough && prefetch.to_source.is_none() {
            return Ok(());
        }
        // No await below: the request and the changes in `prefetch` must stay consistent.
        let permit = self.driver.requests.reserve().await.map_err(|_| BrokerError::Closed)?;
        let (kind, frame): (RequestKind, BoxedFrame) = match prefetch.to_source.take() {
            Some(to) => self.attach_request(to, max),
            None => {
                let consumer = self.consumer;
                let frame = move |id| {
                    ClientFrame::Credit(CreditFrame { id, consumer, credit: more, replace: false })
                };
                (RequestKind::Other, Box::new(frame))
            }
        };
        permit.send(DriverRequest::Call { frame, kind, reply: None });
        prefetch.credit = prefetch.credit.max(max);
        Ok(())
    }

    fn take_release(&mut self) -> SourceRelease {
        self.closed = true;
        let prefetch = self.prefetch.get_mut();
        let mut leases: Vec<LeaseToken> = prefetch.buffered.drain(..).map(|d| d.lease).collect();
        prefetch.from_driver.close();
        while let Ok(result) = prefetch.from_driver.try_recv() {
            leases.extend(result.unwrap_or_default().into_iter().map(|delivery| delivery.lease));
        }
        let attached = prefetch.to_source.is_none();
        let (queue, consumer) = (self.queue.clone(), self.consumer);
        SourceRelease {
            queue,
            consumer,
            attached,
            hold: self.held.take().map(|held| held.hold),
            leases,
        }
    }
}

/// What a source releases when it ends.
struct SourceRelease {
    queue: String,
    consumer: u64,
    attached: bool,
    hold: Option<LeaseToken>,
    leases: Vec<LeaseToken>,
}

impl SourceRelease {
    /// The requests, in order. Releasing a hold also releases its messages and its consumer.
    fn requests(self) -> Vec<(RequestKind, BoxedFrame)> {
        let Self { queue, consumer, attached, hold, leases } = self;
        if let Some(hold) = hold {
            let mut ended = leases;
            ended.push(hold);
            let token = hold.to_string();
            let frame = move |id| ClientFrame::Release(ReleaseFrame { id, queue, token });
            return vec![(RequestKind::Settle(ended), Box::new(frame))];
        }
        let mut requests: Vec<(RequestKind, BoxedFrame)> = Vec::new();
        if attached {
            let kind = RequestKind::Detach { consumer };
            requests.push((
                kind,
                Box::new(move |id| ClientFrame::Detach(DetachFrame { id, consumer })),
            ));
        }
        if !leases.is_empty() {
            let items = leases.iter().map(|&lease| Settle::release(lease));
            let items = settle_requests(items.collect());
            requests.push((
                RequestKind::Settle(leases),
                Box::new(move |id| {
                    ClientFrame::Settle(SettleFrame { id, queue, items, transaction: None })
                }),
            ));
        }
        requests
    }
}

impl Source for NativeSource {
    fn held(&self) -> Option<&SessionHold> {
        self.held.as_ref()
    }

    fn fetch(&self, max: u32, wait: Duration) -> BrokerFuture<'_, Vec<Delivery>> {
        Box::pin(async move {
            let mut prefetch = self.prefetch.lock().await;
            let prefetch = &mut *prefetch;
            while let Ok(result) = prefetch.from_driver.try_recv() {
                prefetch.add(result?);
            }
            if prefetch.buffered.is_empty() {
                self.grant_credit(prefetch, max).await?;
                let started = tokio::time::Instant::now();
                let wait_max = wait.max(self.driver.empty_wait());
                match tokio::time::timeout(wait_max, prefetch.from_driver.recv()).await {
                    Err(_) => return Ok(Vec::new()),
                    Ok(None) => return Err(BrokerError::Closed),
                    Ok(Some(result)) => prefetch.add(result?),
                }
                // Other waits include the time until a message was sent, which says nothing about latency.
                if wait.is_zero() || self.held.is_some() {
                    self.driver.record_latency(started.elapsed());
                }
                while let Ok(result) = prefetch.from_driver.try_recv() {
                    prefetch.add(result?);
                }
            }
            let count = prefetch.buffered.len().min(max as usize);
            Ok(prefetch.buffered.drain(..count).collect())
        })
    }

    fn close(mut self: Box<Self>) -> BrokerFuture<'static, ()> {
        let release = self.take_release();
        let driver = self.driver.clone();
        Box::pin(async move {
            let mut outcome = Ok(());
            for (kind, frame) in release.requests() {
                match driver.call(kind, frame).await {
                    Ok(_) | Err(BrokerError::LockLost) => {}
                    Err(error) => outcome = Err(error),
                }
            }
            outcome
        })
    }
}

impl PrefetchBuffer {
    fn add(&mut self, deliveries: Vec<Delivery>) {
        let count = u32::try_from(deliveries.len()).unwrap_or(u32::MAX);
        self.credit = self.credit.saturating_sub(count);
        self.buffered.extend(deliveries);
    }
}

impl Drop for NativeSource {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let release = self.take_release();
        for (kind, frame) in release.requests() {
            // If the channel is full, the messages return with their locks or with the connection.
            let _ = self.driver.requests.try_send(DriverRequest::Call { frame, kind, reply: None });
        }
    }
}
