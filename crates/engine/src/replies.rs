//! Pending replies: which caller, consumer or thread gets each output of the core.

use malote_model::Refusal;
use tokio::sync::oneshot;

use crate::command::{ConsumerId, InboxItem, Notice, Reply};
use crate::core::{Effect, LiveRecord};
use crate::event::QueueId;
use crate::mailbox::{Answer, Permit};

/// An output together with its destination.
pub(crate) enum RoutedOutput {
    Answer(oneshot::Sender<Answer>, Result<Reply, Refusal>, Option<Permit>),
    /// The number is the notice's position in the sequence of its consumer.
    Notice(ConsumerId, u64, Notice),
    Read(ReadRequest),
}

/// Messages that the core asks to have read, because it does no I/O itself.
pub(crate) enum ReadRequest {
    /// To be routed by their topic.
    Route(QueueId, Vec<InboxItem>),
    /// To be stored again, without their chains of overlays.
    Rewrite(Vec<LiveRecord>),
}

/// The reply channels of requests that the core has not answered yet, by request number.
#[derive(Default)]
pub(crate) struct PendingReplies {
    replies: Vec<Option<(oneshot::Sender<Answer>, Option<Permit>)>>,
    free: Vec<u32>,
}

impl PendingReplies {
    pub(crate) fn add(
        &mut self,
        reply: Option<oneshot::Sender<Answer>>,
        permit: Option<Permit>,
    ) -> u64 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.replies.push(None);
                self.replies.len() as u32 - 1
            }
        };
        self.replies[slot as usize] = reply.map(|reply| (reply, permit));
        u64::from(slot)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replies.iter().all(Option::is_none)
    }

    /// Finds the destination of an effect; `None` if its caller does not wait for a reply.
    pub(crate) fn route(&mut self, effect: Effect) -> Option<RoutedOutput> {
        match effect {
            Effect::Consumer(consumer, notice) => Some(RoutedOutput::Notice(consumer, 0, notice)),
            Effect::Route(topic, items) => {
                Some(RoutedOutput::Read(ReadRequest::Route(topic, items)))
            }
            Effect::Rewrite(items) => Some(RoutedOutput::Read(ReadRequest::Rewrite(items))),
            Effect::Request(request, answer) => {
                self.free.push(request as u32);
                let (reply, mut permit) = self.replies.get_mut(request as usize)?.take()?;
                if let (Ok(answer), Some(permit)) = (&answer, &mut permit) {
                    permit.take_more(answer.held_bytes());
                }
                Some(RoutedOutput::Answer(reply, answer, permit))
            }
        }
    }
}
