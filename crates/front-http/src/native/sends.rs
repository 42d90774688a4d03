//! Sends of one connection, in order. They do not block the frames after them.
//!
//! A send may wait for earlier sends, for the admission of the engine and for the disk. Settlements after it must still
//! be read, so pending sends are bounded in number and bytes. At the bound, the reader waits as long as sends make
//! progress, which slows the client down. If they are stalled, the next send is refused as busy.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use malote_engine::{EngineError, Sent};
use malote_model::{Address, Message, Refusal};
use malote_wire_native::frame::SendFrame;
use malote_wire_native::message::SentBatch;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::connection::NativeConnection;
use crate::convert;
use crate::extract::BodyShare;
use crate::ops::send::{addressed, prepare_all, publish};
use crate::problem::{Code, Problem};

/// Messages of send frames that are committed together.
const TOGETHER_MAX: usize = 1024;
/// Approximate bytes of them.
const TOGETHER_BYTES: usize = 4 << 20;
/// Sends are stalled if the first has no answer after this time, which is many commits of a working disk.
const STALLED_AFTER: Duration = Duration::from_millis(100);

/// Queues sends of a socket for the lane.
pub(super) struct SendQueue {
    frames: mpsc::Sender<(SendFrame, SendSlot)>,
    slots: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    bytes_max: usize,
    stalled: watch::Receiver<bool>,
}

/// The permits of a pending send.
struct SendSlot {
    _slot: OwnedSemaphorePermit,
    _bytes: Arc<MessageBytes>,
}

/// The bytes of a WebSocket message, counted for the connection and for all callers until its sends are answered.
struct MessageBytes {
    _own: OwnedSemaphorePermit,
    _share: BodyShare,
}

/// The size of a WebSocket message, which its sends share.
pub(super) struct IncomingBytes {
    bytes: usize,
    held: Option<Arc<MessageBytes>>,
}

impl IncomingBytes {
    pub fn new(bytes: usize) -> Self {
        Self { bytes, held: None }
    }
}

impl SendQueue {
    /// Returns the queue and the task of the lane.
    pub fn new(conn: &Arc<NativeConnection>) -> (Self, impl Future<Output = ()> + use<>) {
        let limits = &conn.api.limits;
        let slots_max = limits.sends_max.max(1);
        let bytes_max = limits.send_bytes_max.clamp(1, u32::MAX as usize);
        // Each frame in the channel has a slot, so it has the same capacity.
        let (frames, waiting) = mpsc::channel(slots_max);
        let (set_stalled, stalled) = watch::channel(false);
        let sends = Self {
            frames,
            slots: Arc::new(Semaphore::new(slots_max)),
            bytes: Arc::new(Semaphore::new(bytes_max)),
            bytes_max,
            stalled,
        };
        (sends, lane(conn.clone(), waiting, set_stalled))
    }

    /// Queues a send, or answers why it was refused.
    pub async fn put(
        &mut self,
        frame: SendFrame,
        arrived: &mut IncomingBytes,
        conn: &NativeConnection,
    ) {
        let id = frame.id;
        match self.slot(arrived, conn).await {
            // An error means that the connection has ended.
            Ok(slot) => drop(self.frames.send((frame, slot)).await),
            Err(problem) => conn.reply::<SentBatch>(Some(id), Err(problem)).await,
        }
    }

    async fn slot(
        &mut self,
        arrived: &mut IncomingBytes,
        conn: &NativeConnection,
    ) -> Result<SendSlot, Problem> {
        let bytes = match &arrived.held {
            Some(bytes) => bytes.clone(),
            None => {
                let permits = arrived.bytes.clamp(1, self.bytes_max) as u32;
                let own = self.wait(self.bytes.clone(), permits).await?;
                let share = conn.api.share_of_messages(conn.address, arrived.bytes)?;
                arrived.held.insert(Arc::new(MessageBytes { _own: own, _share: share })).clone()
            }
        };
        let slot = self.wait(self.slots.clone(), 1).await?;
        Ok(SendSlot { _slot: slot, _bytes: bytes })
    }

    /// Waits for permits while sends make progress. Refuses if they are stalled.
    async fn wait(
        &mut self,
        of: Arc<Semaphore>,
        permits: u32,
    ) -> Result<OwnedSemaphorePermit, Problem> {
        tokio::select! {
            biased;
            Ok(permit) = of.acquire_many_owned(permits) => Ok(permit),
            _ = self.stalled.wait_for(|stalled| *stalled) => {
                let why = "publishing is stalled, and this connection has the maximum number of pending sends";
                Err(Problem::new(Code::Busy, why))
            }
        }
    }
}

/// A checked send frame.
struct PreparedSend {
    id: u64,
    messages: Vec<(Address, Message)>,
    slot: SendSlot,
}

/// Sends frames in order.
///
/// Only one command is in flight, because two commands have no order. Frames that arrive meanwhile are committed
/// together. If that is refused, each half is tried separately, so that a frame fails only for its own reason.
async fn lane(
    conn: Arc<NativeConnection>,
    mut frames: mpsc::Receiver<(SendFrame, SendSlot)>,
    stalled: watch::Sender<bool>,
) {
    while let Some(first) = frames.recv().await {
        let mut together = Vec::new();
        let mut room = (TOGETHER_MAX, TOGETHER_BYTES);
        let mut next = Some(first);
        while let Some((frame, slot)) = next {
            let id = frame.id;
            match prepare(&conn, frame).await {
                Ok(messages) => {
                    let bytes: usize = messages.iter().map(|(_, m)| m.body.bytes.len()).sum();
                    room = (room.0.saturating_sub(messages.len()), room.1.saturating_sub(bytes));
                    together.push(PreparedSend { id, messages, slot });
                }
                Err(problem) => conn.reply::<SentBatch>(Some(id), Err(problem)).await,
            }
            next = if room.0 > 0 && room.1 > 0 { frames.try_recv().ok() } else { None };
        }
        commit(&conn, together, &stalled).await;
    }
}

async fn prepare(
    conn: &NativeConnection,
    frame: SendFrame,
) -> Result<Vec<(Address, Message)>, Problem> {
    prepare_all(&conn.api, &conn.caller, addressed(frame.messages)?).await
}

/// Commits frames in order, together or in smaller parts.
async fn commit(
    conn: &NativeConnection,
    together: Vec<PreparedSend>,
    stalled: &watch::Sender<bool>,
) {
    let mut parts = vec![together];
    while let Some(mut part) = parts.pop() {
        let messages: Vec<_> = match &mut part[..] {
            [] => continue,
            [only] => std::mem::take(&mut only.messages),
            many => many.iter().flat_map(|ready| ready.messages.iter().cloned()).collect(),
        };
        match send(conn, messages, stalled).await {
            Ok(sent) => {
                let mut sent = sent.into_iter();
                let alone = part.len() == 1;
                for PreparedSend { id, messages, slot } in part {
                    let count = if alone { usize::MAX } else { messages.len() };
                    let own = convert::sent_batch(sent.by_ref().take(count).collect());
                    conn.reply(Some(id), Ok(own)).await;
                    drop(slot);
                }
            }
            // Smaller parts would be refused for the same reason.
            Err(EngineError::Refused(refusal)) if part.len() > 1 && refusal != Refusal::Busy => {
                let second = part.split_off(part.len() / 2);
                parts.push(second);
                parts.push(part);
            }
            Err(error) => {
                let problem = Problem::from(error);
                for PreparedSend { id, slot, .. } in part {
                    conn.reply::<SentBatch>(Some(id), Err(problem.clone())).await;
                    drop(slot);
                }
            }
        }
    }
}

/// Sends, and signals the reader when sends are stalled.
async fn send(
    conn: &NativeConnection,
    messages: Vec<(Address, Message)>,
    stalled: &watch::Sender<bool>,
) -> Result<Vec<Sent>, EngineError> {
    let mut sending = pin!(publish(&conn.api, messages));
    if let Ok(answered) = tokio::time::timeout(STALLED_AFTER, &mut sending).await {
        stalled.send_replace(false);
        return answered;
    }
    stalled.send_replace(true);
    let answered = sending.await;
    stalled.send_replace(answered == Err(EngineError::Refused(Refusal::Busy)));
    answered
}
