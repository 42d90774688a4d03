//! Sends of one connection: in the order in which they came, and never in the way of what stands behind them.
//!
//! A send may have to wait: for those before it, for room among all that is being sent, for the disk. Settlements
//! must be read meanwhile, so what waits is bounded in number and bytes. At the bound the reader waits for a place
//! while sends go on, which is how a client is slowed down; while they do not, the next send is refused as busy.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use malote_engine::{EngineError, Sent};
use malote_model::{Address, Message, Refusal};
use malote_wire_native::frame::SendFrame;
use malote_wire_native::message::SentBatch;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::link::Link;
use crate::convert;
use crate::extract::Share;
use crate::ops::send::{addressed, prepare_all, publish};
use crate::problem::{Code, Problem};

/// Messages of several send frames that are committed together.
const TOGETHER_MAX: usize = 1024;
/// Bytes of them, about.
const TOGETHER_BYTES: usize = 4 << 20;
/// Sends are held up when the one at their head has no answer after so long: many commits of a disk that works.
const HELD_UP_AFTER: Duration = Duration::from_millis(100);

/// The way to the lane, as the reader of a socket has it.
pub(super) struct Sends {
    frames: mpsc::Sender<(SendFrame, Place)>,
    places: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    bytes_max: usize,
    held_up: watch::Receiver<bool>,
}

/// Held by a send until it is answered.
struct Place {
    _place: OwnedSemaphorePermit,
    _bytes: Arc<MessageBytes>,
}

/// Held by all sends of one WebSocket message: its share of the connection's bytes, and of those of all callers.
struct MessageBytes {
    _own: OwnedSemaphorePermit,
    _share: Share,
}

/// What the sends of one WebSocket message have in common.
pub(super) struct Arrived {
    bytes: usize,
    held: Option<Arc<MessageBytes>>,
}

impl Arrived {
    pub fn new(bytes: usize) -> Self {
        Self { bytes, held: None }
    }
}

impl Sends {
    /// The way in, and the lane's work.
    pub fn new(link: &Arc<Link>) -> (Self, impl Future<Output = ()> + use<>) {
        let limits = &link.api.limits;
        let places_max = limits.sends_max.max(1);
        let bytes_max = limits.send_bytes_max.clamp(1, u32::MAX as usize);
        // Frames in the lane hold places: it is as long as there are places.
        let (frames, waiting) = mpsc::channel(places_max);
        let (tell_held_up, held_up) = watch::channel(false);
        let sends = Self {
            frames,
            places: Arc::new(Semaphore::new(places_max)),
            bytes: Arc::new(Semaphore::new(bytes_max)),
            bytes_max,
            held_up,
        };
        (sends, lane(link.clone(), waiting, tell_held_up))
    }

    /// Puts a send behind the others, or tells why it cannot wait there.
    pub async fn put(&mut self, frame: SendFrame, arrived: &mut Arrived, link: &Link) {
        let id = frame.id;
        match self.place(arrived, link).await {
            // Nobody takes it any more: the connection is over.
            Ok(place) => drop(self.frames.send((frame, place)).await),
            Err(problem) => link.reply::<SentBatch>(Some(id), Err(problem)).await,
        }
    }

    async fn place(&mut self, arrived: &mut Arrived, link: &Link) -> Result<Place, Problem> {
        let bytes = match &arrived.held {
            Some(bytes) => bytes.clone(),
            None => {
                let permits = arrived.bytes.clamp(1, self.bytes_max) as u32;
                let own = self.wait(self.bytes.clone(), permits).await?;
                let share = link.api.share_of_messages(link.address, arrived.bytes)?;
                arrived.held.insert(Arc::new(MessageBytes { _own: own, _share: share })).clone()
            }
        };
        let place = self.wait(self.places.clone(), 1).await?;
        Ok(Place { _place: place, _bytes: bytes })
    }

    /// Waits while sends go on; refuses while they are held up.
    async fn wait(
        &mut self,
        of: Arc<Semaphore>,
        permits: u32,
    ) -> Result<OwnedSemaphorePermit, Problem> {
        tokio::select! {
            biased;
            Ok(permit) = of.acquire_many_owned(permits) => Ok(permit),
            _ = self.held_up.wait_for(|held_up| *held_up) => {
                let why = "publishing is held up, and as many sends wait on this connection as may";
                Err(Problem::new(Code::Busy, why))
            }
        }
    }
}

/// A send frame that is ready for the engine.
struct Ready {
    id: u64,
    messages: Vec<(Address, Message)>,
    place: Place,
}

/// Sends in the order in which they came.
///
/// One command is under way at a time, because nothing orders two of them; what comes meanwhile is committed
/// together. If that is refused, each half is tried by itself, so that a frame fails only for its own reason.
async fn lane(
    link: Arc<Link>,
    mut frames: mpsc::Receiver<(SendFrame, Place)>,
    held_up: watch::Sender<bool>,
) {
    while let Some(first) = frames.recv().await {
        let mut together = Vec::new();
        let mut room = (TOGETHER_MAX, TOGETHER_BYTES);
        let mut next = Some(first);
        while let Some((frame, place)) = next {
            let id = frame.id;
            match prepare(&link, frame).await {
                Ok(messages) => {
                    let bytes: usize = messages.iter().map(|(_, m)| m.body.bytes.len()).sum();
                    room = (room.0.saturating_sub(messages.len()), room.1.saturating_sub(bytes));
                    together.push(Ready { id, messages, place });
                }
                Err(problem) => link.reply::<SentBatch>(Some(id), Err(problem)).await,
            }
            next = if room.0 > 0 && room.1 > 0 { frames.try_recv().ok() } else { None };
        }
        commit(&link, together, &held_up).await;
    }
}

async fn prepare(link: &Link, frame: SendFrame) -> Result<Vec<(Address, Message)>, Problem> {
    prepare_all(&link.api, &link.caller, addressed(frame.messages)?).await
}

/// Commits frames in order: together, or in ever smaller parts.
async fn commit(link: &Link, together: Vec<Ready>, held_up: &watch::Sender<bool>) {
    let mut parts = vec![together];
    while let Some(mut part) = parts.pop() {
        let messages: Vec<_> = match &mut part[..] {
            [] => continue,
            [only] => std::mem::take(&mut only.messages),
            many => many.iter().flat_map(|ready| ready.messages.iter().cloned()).collect(),
        };
        match send(link, messages, held_up).await {
            Ok(sent) => {
                let mut sent = sent.into_iter();
                let alone = part.len() == 1;
                for Ready { id, messages, place } in part {
                    let count = if alone { usize::MAX } else { messages.len() };
                    let own = convert::sent_batch(sent.by_ref().take(count).collect());
                    link.reply(Some(id), Ok(own)).await;
                    drop(place);
                }
            }
            // Smaller parts would only wait for the same room once more.
            Err(EngineError::Refused(refusal)) if part.len() > 1 && refusal != Refusal::Busy => {
                let second = part.split_off(part.len() / 2);
                parts.push(second);
                parts.push(part);
            }
            Err(error) => {
                let problem = Problem::from(error);
                for Ready { id, place, .. } in part {
                    link.reply::<SentBatch>(Some(id), Err(problem.clone())).await;
                    drop(place);
                }
            }
        }
    }
}

/// Sends, and lets the reader know when that takes too long to be waited for.
async fn send(
    link: &Link,
    messages: Vec<(Address, Message)>,
    held_up: &watch::Sender<bool>,
) -> Result<Vec<Sent>, EngineError> {
    let mut sending = pin!(publish(&link.api, messages));
    if let Ok(answered) = tokio::time::timeout(HELD_UP_AFTER, &mut sending).await {
        held_up.send_replace(false);
        return answered;
    }
    held_up.send_replace(true);
    let answered = sending.await;
    held_up.send_replace(answered == Err(EngineError::Refused(Refusal::Busy)));
    answered
}
