//! A receiving link that browses (`distribution-mode: copy`): it looks at messages in order, from the head, and changes
//! nothing. Pages are read within the client's credit. At the end of the queue a drain ends; without one the link looks
//! again when the client tells its credit anew.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use malote_engine::{Engine, MessageState, Peek, Seen};
use malote_model::{QueueName, Seq, SessionId, SqlFilter};
use malote_wire_amqp::connection::{LinkId, Outgoing, SendError};
use malote_wire_amqp::performative::{AmqpError, condition};

use crate::conn::link::Link;
use crate::conn::{Conn, Done};
use crate::limits;
use crate::refusal::{Lock, error_of};
use crate::wire::message::{ACTIVE, Telling, put};
use crate::wire::selector::fits;

/// A link on which a client browses.
pub(crate) struct Browser {
    queue: QueueName,
    ttl_ms: Option<u64>,
    session: Option<SessionId>,
    filter: Option<Arc<SqlFilter>>,
    /// The first message that was not looked at.
    from: Seq,
    /// Messages of one page: few if they are large.
    page: usize,
    /// They wait for credit or for room.
    waiting: VecDeque<Seen>,
    /// A page is being read.
    reading: bool,
    /// Nothing lay behind the last page.
    at_end: bool,
    /// The client wants its credit used up.
    drain: bool,
}

/// Messages that fit, and where to go on.
pub(crate) struct Page {
    seen: Vec<Seen>,
    from: Seq,
    at_end: bool,
    /// How many fit into memory, by the size of these.
    next_page: usize,
}

impl Browser {
    pub fn new(
        queue: QueueName,
        ttl_ms: Option<u64>,
        session: Option<SessionId>,
        filter: Option<SqlFilter>,
    ) -> Browser {
        Browser {
            queue,
            ttl_ms,
            session,
            filter: filter.map(Arc::new),
            from: Seq(0),
            page: limits::BROWSE_FIRST,
            waiting: VecDeque::new(),
            reading: false,
            at_end: false,
            drain: false,
        }
    }

    /// The client has told its credit: there may be more by now.
    pub fn flow(&mut self, drain: bool) {
        (self.drain, self.at_end) = (drain, false);
    }

    fn encode(&self, seen: &Seen, out: &mut BytesMut) {
        let Ok(stored) = &seen.stored else { return };
        let telling = Telling {
            state: Some(ACTIVE),
            ttl_ms_max: self.ttl_ms,
            ..Telling::of(&self.queue, stored, seen.seq, seen.failed)
        };
        put(out, stored, &telling);
    }

    /// Reads the next page.
    fn read(
        &self,
        engine: Engine,
        credit: u32,
    ) -> impl Future<Output = Result<Page, AmqpError>> + use<> {
        let max = self.page.min(credit as usize);
        let (queue, session) = (self.queue.clone(), self.session.clone());
        let peek = Peek { queue, from: self.from, max, session, state: None };
        let (from, filter) = (self.from, self.filter.clone());
        async move {
            let peeked = engine.peek(peek).await;
            let (mut seen, next) = peeked.map_err(|error| error_of(error, Lock::Message))?;
            let last = seen.last().map(|seen| Seq(seen.seq.0 + 1));
            let next_page = page_for(&seen);
            seen.retain(|seen| is_shown(seen, filter.as_deref()));
            let (from, at_end) = (next.or(last).unwrap_or(from), next.is_none());
            Ok(Page { seen, from, at_end, next_page })
        }
    }
}

fn page_for(seen: &[Seen]) -> usize {
    let size = |seen: &Seen| match &seen.stored {
        Ok(stored) => stored.message.body.bytes.len() + 512,
        Err(_) => 512,
    };
    let bytes: usize = seen.iter().map(size).sum();
    let each = (bytes / seen.len().max(1)).max(1);
    (limits::OUTGOING_BYTES_MAX / each).clamp(1, limits::BROWSE_MAX)
}

/// Messages that are not due yet and those that were set aside are not for receivers, and so not for browsers. What is
/// out to a receiver is still in the queue.
fn is_shown(seen: &Seen, filter: Option<&SqlFilter>) -> bool {
    let Ok(stored) = &seen.stored else { return false };
    let there = matches!(seen.state, MessageState::Ready | MessageState::Locked) && !seen.deferred;
    there && filter.is_none_or(|filter| fits(filter, stored))
}

impl Conn {
    /// Sends what was read, and reads on.
    pub(crate) fn browse(&mut self, link: LinkId) {
        let Some(Link::Browser(browser)) = self.links.get_mut(&link) else { return };
        while let Some(seen) = browser.waiting.front() {
            if self.amqp.credit(link) == 0 {
                return;
            }
            if self.amqp.room_bytes() == 0 {
                self.held_up.insert(link);
                return;
            }
            let key = self.next_key;
            let tag = Bytes::copy_from_slice(&key.to_be_bytes());
            let outgoing = Outgoing { key, tag, settled: true, ..Outgoing::default() };
            let sent = self.amqp.send_written(link, outgoing, |out| browser.encode(seen, out));
            match sent {
                Ok(()) => self.next_key += 1,
                Err(SendError::TooLarge { .. }) => {
                    let text = "a message is larger than the link takes";
                    let error = AmqpError::new(condition::MESSAGE_SIZE_EXCEEDED, text);
                    self.drop_link(link);
                    let _ = self.amqp.detach(link, true, Some(error));
                    return;
                }
                Err(_) => {
                    self.held_up.insert(link);
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
        self.start(async move { Done::Browsed { link, page: read.await } });
    }

    /// A page was read.
    pub(crate) fn browsed(&mut self, link: LinkId, page: Result<Page, AmqpError>) {
        let Some(Link::Browser(browser)) = self.links.get_mut(&link) else { return };
        match page {
            Ok(Page { seen, from, at_end, next_page }) => {
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
