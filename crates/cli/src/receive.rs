//! `malote receive`: takes messages, writes them, and settles them.
//!
//! A message is written before it is settled: if the reader of our output goes away, the message comes back.

use std::time::Duration;

use malote_model::{QueueName, SessionId, limits};
use malote_wire_native::message::ReceivedMessage;
use malote_wire_native::receive::ReceiveRequest;
use malote_wire_native::session::{AcceptRequest, HeldSession};

use crate::api::Api;
use crate::args::{Remote, interrupted, queue_name, session_id};
use crate::failure::Failure;
use crate::message::Raw;
use crate::output::{Format, Output};
use crate::settle::{ErrorText, How, settle};
use crate::when;

/// How long to wait at once for a message of a session that we hold: shorter than any usual lock.
const HELD_WAIT_MS: u64 = 5000;
/// What a hold must last beyond that.
const HOLD_MARGIN_MS: u64 = 5000;

/// Receive messages and settle them: completed unless told otherwise
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
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Receive at most so many [default: 1, or no end with --follow]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// Wait so long for the first, up to 20s at once
    #[arg(long, value_name = "TIME", value_parser = when::duration, default_value = "0s")]
    wait: Duration,
    /// Hold this session meanwhile, and take only of it
    #[arg(long, value_name = "ID", value_parser = session_id, conflicts_with = "any_session")]
    session: Option<SessionId>,
    /// Hold the next session that has messages, and take only of it
    #[arg(long)]
    any_session: bool,
    /// How long the lease lasts; the queue's own lock otherwise
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    lock: Option<Duration>,
    #[command(flatten)]
    end: End,
    #[command(flatten)]
    text: ErrorText,
    /// Go on until Ctrl-C; with --any-session, session after session
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    raw: Raw,
}

/// What becomes of what was received.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
struct End {
    /// Complete them: they are gone (the default)
    #[arg(long)]
    ack: bool,
    /// Give them back as failed: they come again, or are dead-lettered at the queue's limit
    #[arg(long)]
    abandon: bool,
    /// Dead-letter them for this reason
    #[arg(long, value_name = "REASON")]
    dead_letter: Option<String>,
    /// Leave them leased; `malote settle` ends a lease before its lock runs out
    #[arg(long)]
    keep: bool,
}

impl End {
    fn how(&self, text: &ErrorText) -> Option<How> {
        match self {
            Self { keep: true, .. } => None,
            Self { abandon: true, .. } => Some(How::Abandon { delay: None }),
            Self { dead_letter: Some(reason), .. } => Some(How::dead_letter(reason, text)),
            _ => Some(How::Complete),
        }
    }
}

impl Receive {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let remote = self.remote.clone();
        if self.wait > Duration::from_millis(limits::RECEIVE_WAIT_MS_MAX) && !self.follow {
            let why = "one wait is at most 20s: use --follow to wait on";
            return Err(Failure::Usage(why.into()).into());
        }
        remote.run_to_the_end(|api, mut out| async move {
            let mut held = None;
            let done = tokio::select! {
                done = self.all(&api, &mut out, &mut held) => done,
                () = interrupted() => Err(Failure::Interrupted.into()),
            };
            // Whatever happened, others need not wait for our hold to run out. What we kept needs it.
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
        // Written and settled as it comes, before a lock runs out. But one JSON document is written at its end, and what
        // is given back too early is received again.
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
                // An idle session goes back; the next one has messages.
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
                self.raw.more(out, &messages)?;
                self.end(api, &messages).await?;
            }
        }
        if whole {
            self.raw.list(out, &all)?;
            self.end(api, &all).await?;
        }
        if taken == 0 {
            out.note(self.nothing(held.as_ref()));
        }
        if self.end.keep && taken > 0 {
            out.note(format_args!(
                "leased; settle with `malote settle {} LEASE --complete`, -o json shows the leases",
                self.queue
            ));
        }
        Ok(())
    }

    /// A hold must last over the next wait and the settling after it.
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
            // Only the first is waited for, or --max 100 would wait for the 100th. A session that was taken because
            // it has messages is not waited on at all.
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
        let wait = when::shown_ms(when::ms(self.wait));
        match held {
            Some(held) => format!("session `{}` has nothing to receive", held.session),
            None if self.any_session => format!("no session with messages within {wait}"),
            None => format!("nothing to receive within {wait}"),
        }
    }
}
