//! `malote tail`: polls a queue for new messages and shows them. It locks nothing.

use std::time::Duration;

use malote_model::{QueueName, SessionId, limits};
use malote_wire_native::PropertyMap;
use malote_wire_native::received::ReceivedMessage;

use crate::api::{Api, ApiError, PeekFilter};
use crate::args::{Remote, queue_name, session_id};
use crate::message::Raw;
use crate::when;

/// Show new messages as they arrive, without receiving or locking them
///
/// A message that is received and completed between two polls is not shown.
#[derive(clap::Args)]
pub(crate) struct Tail {
    #[command(flatten)]
    remote: Remote,
    /// Queue to follow
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Start at this sequence number instead of the end
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// Only messages of this session
    #[arg(long, value_name = "ID", value_parser = session_id)]
    session: Option<SessionId>,
    /// Only messages with this property; may be repeated, and all must match
    #[arg(long = "filter", value_name = "NAME=VALUE", value_parser = filter)]
    filters: Vec<(String, String)>,
    /// Polling interval
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = when::duration)]
    every: Duration,
    /// Exit after this many messages
    #[arg(long, value_name = "COUNT")]
    max: Option<u64>,
    #[command(flatten)]
    raw: Raw,
}

impl Tail {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { remote, queue, from, session, filters, every, max, raw } = self;
        remote.run(|api, mut out| async move {
            let from = match from {
                Some(from) => from,
                None => end(&api, &queue).await?,
            };
            let mut filter = PeekFilter { from, session, ..PeekFilter::default() };
            let mut left = max.unwrap_or(u64::MAX);
            while left > 0 {
                // A filter drops messages, so the page is as large as possible.
                let wanted = if filters.is_empty() { left } else { u64::MAX };
                filter.max = wanted.min(limits::RECEIVE_BATCH_MAX as u64);
                let mut page = api.peek(&queue, &filter).await?;
                if let Some(last) = page.messages.last() {
                    filter.from = last.seq + 1;
                    page.messages.retain(|message| filters.iter().all(|f| holds(f, message)));
                    page.messages.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                    left -= page.messages.len() as u64;
                    raw.more(&mut out, &page.messages)?;
                }
                match page.next {
                    Some(next) => filter.from = next,
                    None if left > 0 => {
                        tokio::time::sleep(every.max(Duration::from_millis(10))).await
                    }
                    None => {}
                }
            }
            Ok(())
        })
    }
}

fn filter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Whether the message has the property with that value, whatever its type.
fn holds((name, wanted): &(String, String), message: &ReceivedMessage) -> bool {
    let mut properties = message.properties.iter().flat_map(PropertyMap::json_texts);
    let Some((_, value)) = properties.find(|(have, _)| have == name) else { return false };
    let value: serde_json::Value = serde_json::from_str(&value).unwrap_or_default();
    let plain = if value.get("$type").is_some() { &value["value"] } else { &value };
    let shown = plain.as_str().map_or_else(|| plain.to_string(), str::to_owned);
    shown == *wanted
}

/// The sequence number after the last message. The search starts at the number of messages sent and halves the
/// distance each time: a queue of a billion messages takes about thirty requests.
async fn end(api: &Api, queue: &QueueName) -> Result<u64, ApiError> {
    let guess = api.queue(queue).await?.totals.sent;
    // There is no message at or after `free`. The last known message is just before `used`.
    let (mut used, mut free, mut step) = (0, None, 0);
    let mut at = guess;
    loop {
        let page =
            api.peek(queue, &PeekFilter { from: at, max: 1, ..PeekFilter::default() }).await?;
        match page.messages.last() {
            Some(last) => used = last.seq + 1,
            None => free = Some(at),
        }
        at = match free {
            Some(free) if free <= used => return Ok(used),
            Some(free) => used + (free - used) / 2,
            None => used + step,
        };
        step = (step * 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_compares_what_a_person_reads() {
        let line = r#"{"seq":1,"state":"ready","properties":{"tenant":"acme","n":3,"small":{"$type":"i8","value":2},"yes":true,"eq":"a=b"},"receives":0,"failed":0}"#;
        let message: ReceivedMessage = serde_json::from_str(line).unwrap();
        for (text, fits) in [
            ("tenant=acme", true),
            ("tenant=acm", false),
            ("n=3", true),
            ("n=3.0", false),
            ("small=2", true),
            ("yes=true", true),
            ("eq=a=b", true),
            ("absent=", false),
        ] {
            assert_eq!(holds(&filter(text).unwrap(), &message), fits, "{text}");
        }
        assert!(filter("tenant").is_err());
        assert!(filter("=acme").is_err());
    }
}
