//! Browse: a receiving link with `distribution-mode: copy` reads messages in order, from the head, and changes nothing.
//! Pages are read within the client's credit. At the end of the queue, a drain completes. Without a drain, the link
//! reads again when the client sends its next flow.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use malote_engine::{Engine, MessageState, Peek, PeekedMessage};
use malote_model::{QueueName, Seq, SessionId, SqlFilter};
use malote_wire_amqp::connection::{LinkId, Outgoing, SendError};
use malote_wire_amqp::performative::{AmqpError, condition};

use crate::conn::link::LinkState;
use crate::conn::{Completion, Conn};
use crate::limits;
use crate::refusal::{LockKind, engine_error};
use crate::wire::message::{ACTIVE, DeliveryInfo, put};
use crate::wire::selector::fits;

pub(crate) struct BrowserLink {
    queue: QueueName,
    ttl_ms: Option<u64>,
    session: Option<SessionId>,
    filter: Option<Arc<SqlFilter>>,
    /// The next sequence number to read.
    from: Seq,
    /// Messages per page; few if they are large.
    page: usize,
    /// Messages waiting for credit or for space in the output buffer.
    waiting: VecDeque<PeekedMessage>,
    /// A page is being read.
    reading: bool,
    /// The last page reached the end of the queue.
    at_end: bool,
    /// The client drains its credit.
    drain: bool,
}

/// Messages that match, and where to continue.
pub(crate) struct BrowsePage {
    seen: Vec<PeekedMessage>,
    from: Seq,
    at_end: bool,
    /// Number of messages of this size that fit into memory.
    next_page: usize,
}

impl BrowserLink {
    pub fn new(
        queue: QueueName,
        ttl_ms: Option<u64>,
        session: Option<SessionId>,
        filter: Option<SqlFilter>,
    ) -> BrowserLink {
        BrowserLink {
            queue,
            ttl_ms,
            session,
            filter: filter.map(Arc::new),
            from: Seq(0),
            page: limits::BROWSE_PAGE_INITIAL,
            waiting: VecDeque::new(),
            reading: false,
            at_end: false,
            drain: false,
        }
    }

    /// Handles a flow of the client; new messages may have arrived since.
    pub fn flow(&mut self, drain: bool) {
        (self.drain, self.at_end) = (drain, false);
    }

    fn encode(&self, seen: &PeekedMessage, out: &mut BytesMut) {
        let Ok(stored) = &seen.stored else { return };
        let info = DeliveryInfo {
            state: Some(ACTIVE),
            ttl_ms_max: self.ttl_ms,
            ..DeliveryInfo::of(&self.queue, stored, seen.seq, seen.failed)
        };
        put(out, stored, &info);
    }

    fn read(
        &self,
        engine: Engine,
        credit: u32,
    ) -> impl Future<Output = Result<BrowsePage, AmqpError>> + use<> {
        let max = self.page.min(credit as usize);
        let (queue, session) = (self.queue.clone(), self.session.clone());
        let peek = Peek { queue, from: self.from, max, session, state: None };
        let (from, filter) = (self.from, self.filter.clone());
        async move {
            let peeked = engine.peek(peek).await;
            let (mut seen, next) =
                peeked.map_err(|error| engine_error(error, LockKind::Message))?;
            let last = seen.last().map(|seen| Seq(seen.seq.0 + 1));
            let next_page = page_for(&seen);
            seen.retain(|seen| is_shown(seen, filter.as_deref()));
            let (from, at_end) = (next.or(last).unwrap_or(from), next.is_none());
            Ok(BrowsePage { seen, from, at_end, next_page })
        }
    }
}

fn page_for(seen: &[PeekedMessage]) -> usize {
    let size = |seen: &PeekedMessage| match &seen.stored {
        Ok(stored) => stored.message.body.bytes.len() + 512,
        Err(_) => 512,
    };
    let bytes: usize = seen.iter().map(size).sum();
    let each = (bytes / seen.len().max(1)).max(1);
    (limits::OUTGOING_BYTES_MAX / each).clamp(1, limits::BROWSE_PAGE_MAX)
}

/// Browsers see what receivers could receive: no scheduled, delayed or deferred messages. Locked messages are still in
/// the queue.
fn is_shown(seen: &PeekedMessage, filter: Option<&SqlFilter>) -> bool {
    let Ok(stored) = &seen.stored else { return false };
    let there = matches!(seen.state, MessageState::Ready | MessageState::Locked) && !seen.deferred;
    there && filter.is_none_or(|filter| fits(filter, stored))
}

impl Conn {
    /// Sends the messages that were read, and reads the next page.
    pub(crate) fn browse(&mut self, link: LinkId) {
        let Some(LinkState::Browser(browser)) = self.links.get_mut(&link) else { return };
        while let Some(seen) = browser.waiting.front() {
            if self.amqp.credit(link) == 0 {
                return;
            }
            if self.amqp.free_output_bytes() == 0 {
                self.blocked_links.insert(link);
                return;
            }
            let key = self.next_key;
            let tag = Bytes::copy_from_slice(&key.to_be_bytes());
            let outgoing = Outgoing { key, tag, settled: true, ..Outgoing::default() };
            let sent = self.amqp.send_with(link, outgoing, |out| browser.encode(seen, out));
            match sent {
                Ok(()) => self.next_key += 1,
                Err(SendError::TooLarge { .. }) => {
                    let text = "a message is larger than the link's max-message-size";
                    let error = AmqpError::new(condition::MESSAGE_SIZE_EXCEEDED, text);
                    self.drop_link(link);
                    let _ = self.amqp.detach(link, true, Some(error));
                    return;
                }
                Err(_) => {
                    self.blocked_links.insert(link);
                    return;
                }
            }
            browser.waiting.pop_front();
        }
        let credit = self.amqp.credit(link);
        if browser.reading {
            return;
        }
        if browser.at_end || credit == 0 {
            if std::mem::take(&mut browser.drain) {
                let _ = self.amqp.drained(link);
            }
            return;
        }
        browser.reading = true;
        let read = browser.read(self.front.engine.clone(), credit);
        self.start(async move { Completion::PageRead { link, page: read.await } });
    }

    pub(crate) fn finish_page_read(&mut self, link: LinkId, page: Result<BrowsePage, AmqpError>) {
        let Some(LinkState::Browser(browser)) = self.links.get_mut(&link) else { return };
        match page {
            Ok(BrowsePage { seen, from, at_end, next_page }) => {
                browser.reading = false;
                (browser.from, browser.at_end, browser.page) = (from, at_end, next_page);
                browser.waiting.extend(seen);
                self.browse(link);
            }
            Err(error) => {
                self.drop_link(link);
                let _ = self.amqp.detach(link, true, Some(error));
            }
        }
    }
}
