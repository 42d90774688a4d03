//! `malote receive`: receives messages, writes them, and settles them.
//!
//! A message is written before it is settled. If the reader of the output goes away, the message is delivered again.

use std::borrow::Cow;
use std::time::Duration;

use malote_model::{QueueName, SessionId, limits};
use malote_wire_native::receive::ReceiveRequest;
use malote_wire_native::received::ReceivedMessage;
use malote_wire_native::session::{AcceptRequest, HeldSession};

use crate::api::Api;
use crate::args::{Remote, interrupted, queue_name, session_id};
use crate::failure::Failure;
use crate::message::Raw;
use crate::output::{Format, Output};
use crate::settle::{ErrorText, SettleAs, settle};
use crate::when;

/// How long one request waits for a message of a locked session: shorter than usual lock times.
const HELD_WAIT_MS: u64 = 5000;
/// The lock must last this much longer than the wait.
const HOLD_MARGIN_MS: u64 = 5000;

/// Receive messages and complete them
///
/// --abandon, --dead-letter and --keep do something else than completing them.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  malote receive orders
  malote receive orders --max 10 --wait 20s --raw
  malote receive orders --any-session --max 100
  malote receive orders --follow -o ndjson
  malote receive orders --dead-letter NoCustomer --error 'customer 7 is not known'
  malote receive orders --keep, then malote settle orders LEASE --complete")]
pub(crate) struct Receive {
    #[command(flatten)]
    remote: Remote,
    /// Queue to receive from
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Maximum number of messages [default: 1, or no limit with --follow]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// How long to wait for the first message, at most 20s
    #[arg(long, value_name = "TIME", value_parser = when::duration, default_value = "0s")]
    wait: Duration,
    /// Lock this session, and receive only its messages
    #[arg(long, value_name = "ID", value_parser = session_id, conflicts_with = "any_session")]
    session: Option<SessionId>,
    /// Lock the next session that has messages, and receive only its messages
    #[arg(long)]
    any_session: bool,
    /// Lock time [default: the lock time of the queue]
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    lock: Option<Duration>,
    #[command(flatten)]
    end: SettleArgs,
    #[command(flatten)]
    text: ErrorText,
    /// Continue until Ctrl-C; with --any-session, one session after the other
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    raw: Raw,
}

/// What happens to received messages.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
struct SettleArgs {
    /// Complete them; this is the default
    #[arg(long)]
    ack: bool,
    /// Abandon them: they count as failed and are delivered again, or dead-lettered at the queue's limit
    #[arg(long)]
    abandon: bool,
    /// Dead-letter them with this reason
    #[arg(long, value_name = "REASON")]
    dead_letter: Option<String>,
    /// Keep them locked; settle them with `malote settle` before the lock expires
    #[arg(long)]
    keep: bool,
}

impl SettleArgs {
    fn how(&self, text: &ErrorText) -> Option<SettleAs> {
        match self {
            Self { keep: true, .. } => None,
            Self { abandon: true, .. } => Some(SettleAs::Abandon { delay: None }),
            Self { dead_letter: Some(reason), .. } => Some(SettleAs::dead_letter(reason, text)),
            _ => Some(SettleAs::Complete),
        }
    }

    /// The state of a message afterwards.
    fn state(&self) -> &'static str {
        match self {
            Self { keep: true, .. } => "leased",
            Self { abandon: true, .. } => "abandoned",
            Self { dead_letter: Some(_), .. } => "dead-lettered",
            _ => "completed",
        }
    }
}

impl Receive {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let remote = self.remote.clone();
        if self.wait > Duration::from_millis(limits::RECEIVE_WAIT_MS_MAX) && !self.follow {
            let why = "--wait is at most 20s: use --follow to wait longer";
            return Err(Failure::Usage(why.into()).into());
        }
        remote.run_to_the_end(|api, mut out| async move {
            let mut held = None;
            let done = tokio::select! {
                done = self.all(&api, &mut out, &mut held) => done,
                () = interrupted() => Err(Failure::Interrupted.into()),
            };
            // Others need not wait until our lock expires. Messages that we keep need it.
            if let Some(held) = held.take()
                && !self.end.keep
            {
                let _ = api.release(&self.queue, &held).await;
            }
            done
        })
    }

    async fn all(
        &self,
        api: &Api,
        out: &mut Output,
        held: &mut Option<HeldSession>,
    ) -> anyhow::Result<()> {
        let max = self.max.unwrap_or(if self.follow { u64::MAX } else { 1 });
        // Messages are written and settled as they arrive, before a lock expires. A JSON document has to be written at
        // the end, and messages that are abandoned too early would be received again.
        let whole = !self.follow && (out.format() == Format::Json || self.end.abandon);
        let mut all = Vec::new();
        let mut taken = 0;
        while taken < max {
            if held.is_none() && (self.session.is_some() || self.any_session) {
                *held = self.accept(api).await?;
                if held.is_none() {
                    if self.follow {
                        continue;
                    }
                    break;
                }
            }
            if let Some(held) = held.as_mut() {
                self.keep_hold(api, held).await?;
            }
            let messages = self.some(api, max - taken, taken, held.as_ref()).await?;
            if messages.is_empty() {
                if !self.follow {
                    break;
                }
                // Release an idle session; the next one has messages.
                if self.any_session
                    && let Some(idle) = held.take()
                {
                    api.release(&self.queue, &idle).await?;
                }
                continue;
            }
            taken += messages.len() as u64;
            if whole {
                all.extend(messages);
            } else {
                self.raw.more(out, &self.with_state(out, &messages))?;
                self.end(api, &messages).await?;
            }
        }
        if whole {
            self.raw.list(out, &self.with_state(out, &all))?;
            self.end(api, &all).await?;
        }
        if taken == 0 {
            out.note(self.nothing(held.as_ref()));
        }
        if taken > 0 {
            let messages = when::count(taken, "message");
            out.note(format_args!(
                "received {messages} from `{}`: {}",
                self.queue,
                self.end.state()
            ));
        }
        if self.end.keep && taken > 0 {
            out.note(format_args!(
                "settle with `malote settle {} LEASE --complete`; -o json shows the leases",
                self.queue
            ));
        }
        Ok(())
    }

    /// A table shows what the command does to the messages. Programs get the messages as the server sent them.
    fn with_state<'a>(
        &self,
        out: &Output,
        messages: &'a [ReceivedMessage],
    ) -> Cow<'a, [ReceivedMessage]> {
        if out.format() != Format::Table {
            return Cow::Borrowed(messages);
        }
        let state = Some(Cow::Borrowed(self.end.state()));
        let with_state =
            |message: &ReceivedMessage| ReceivedMessage { state: state.clone(), ..message.clone() };
        messages.iter().map(with_state).collect()
    }

    /// Renews the session lock if it would expire during the next wait and settlement.
    async fn keep_hold(&self, api: &Api, held: &mut HeldSession) -> anyhow::Result<()> {
        let wait = if self.follow && self.session.is_some() { HELD_WAIT_MS } else { 0 };
        if held.until.saturating_sub(when::now()) < wait + HOLD_MARGIN_MS {
            held.until = api.renew(&self.queue, held, self.lock.map(when::ms)).await?;
        }
        Ok(())
    }

    async fn accept(&self, api: &Api) -> anyhow::Result<Option<HeldSession>> {
        let asked = AcceptRequest {
            session: self.session.as_ref().map(|id| id.as_str().to_owned()),
            wait_ms: self.wait_ms(),
            lock_ms: self.lock.map(when::ms),
        };
        Ok(api.accept(&self.queue, &asked).await?)
    }

    async fn some(
        &self,
        api: &Api,
        max: u64,
        taken: u64,
        held: Option<&HeldSession>,
    ) -> anyhow::Result<Vec<ReceivedMessage>> {
        let asked = ReceiveRequest {
            max: max.min(limits::RECEIVE_BATCH_MAX as u64) as u32,
            // Only the first message is waited for, or --max 100 would wait for the 100th. A session that was
            // accepted because it has messages needs no wait.
            wait_ms: match held {
                Some(_) if self.any_session => 0,
                Some(_) if self.follow => HELD_WAIT_MS,
                _ if self.follow || taken == 0 => self.wait_ms(),
                _ => 0,
            },
            lock_ms: self.lock.map(when::ms),
            session_token: held.map(|held| held.token.clone()),
            ..ReceiveRequest::default()
        };
        Ok(api.receive(&self.queue, &asked).await?)
    }

    async fn end(&self, api: &Api, messages: &[ReceivedMessage]) -> anyhow::Result<()> {
        let Some(how) = self.end.how(&self.text) else { return Ok(()) };
        let leases: Vec<String> = messages.iter().filter_map(|m| m.lease.clone()).collect();
        settle(api, &self.queue, leases, &how).await
    }

    fn wait_ms(&self) -> u64 {
        if self.follow { limits::RECEIVE_WAIT_MS_MAX } else { when::ms(self.wait) }
    }

    fn nothing(&self, held: Option<&HeldSession>) -> String {
        let wait = when::format_ms(when::ms(self.wait));
        match held {
            Some(held) => format!("session `{}` has no messages to receive", held.session),
            None if self.any_session => format!("no session with messages after {wait}"),
            None => format!("no messages to receive after {wait}"),
        }
    }
}
