//! Receiving, also of deferred messages.

use malote_model::{LeaseToken, Refusal, limits};
use serde::{Deserialize, Serialize};

use super::message::Received;
use crate::problem::Problem;

/// Waits for messages.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiveIn {
    /// At most so many.
    pub max: u32,
    /// How long to wait for the first.
    pub wait_ms: u64,
    /// The queue's lock if absent.
    pub lock_ms: Option<u64>,
    /// Leased, or removed as they are answered.
    pub mode: Mode,
    /// Only of the session held with this token.
    pub session_token: Option<String>,
    /// Of a session queue without a token: how many of one session.
    pub per_session: u32,
}

impl Default for ReceiveIn {
    fn default() -> Self {
        Self {
            max: 1,
            wait_ms: 0,
            lock_ms: None,
            mode: Mode::Lock,
            session_token: None,
            per_session: 1,
        }
    }
}

impl ReceiveIn {
    /// Refuses numbers that mean nothing.
    pub fn check(&self) -> Result<(), Problem> {
        range("max", self.max.into(), 1, limits::RECEIVE_BATCH_MAX as u64)?;
        range("per_session", self.per_session.into(), 1, limits::RECEIVE_BATCH_MAX as u64)?;
        range("wait_ms", self.wait_ms, 0, limits::RECEIVE_WAIT_MS_MAX)?;
        check_lock(self.lock_ms)
    }
}

/// What receiving does to a message.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It is leased, and settled later.
    #[default]
    Lock,
    /// It is removed at once: at most once.
    Delete,
}

/// Deferred messages by their sequences.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeferredIn {
    /// One that is not there refuses all.
    pub seqs: Vec<u64>,
    /// Proof of the hold, on a session queue.
    pub session_token: Option<String>,
    /// The queue's lock if absent.
    pub lock_ms: Option<u64>,
    /// Leased, or removed as they are answered.
    #[serde(default)]
    pub mode: Mode,
}

/// Scheduled messages to take back.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelIn {
    /// One that is not there refuses all.
    pub seqs: Vec<u64>,
}

/// How many were taken back.
#[derive(Debug, Serialize)]
pub struct CancelOut {
    /// All that were asked for.
    pub cancelled: u64,
}

/// Messages, possibly none.
#[derive(Debug, Serialize)]
pub struct ReceivedOut {
    /// In order.
    pub messages: Vec<Received>,
}

/// A token as written.
pub fn token(text: Option<&str>) -> Result<Option<LeaseToken>, Problem> {
    Ok(text.map(str::parse::<LeaseToken>).transpose()?)
}

/// Refuses a number outside of a range.
pub fn range(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), Problem> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Refusal::OutOfRange { what, rule: format!("from {min} to {max}, not {value}") }.into())
}

/// Refuses a lock that is none.
pub fn check_lock(lock_ms: Option<u64>) -> Result<(), Problem> {
    match lock_ms {
        Some(ms) => range("lock_ms", ms, limits::LOCK_MS_MIN, limits::LOCK_MS_MAX),
        None => Ok(()),
    }
}

/// Refuses a list that is empty or too long.
pub fn check_list(what: &'static str, len: usize, max: usize) -> Result<(), Problem> {
    if (1..=max).contains(&len) {
        return Ok(());
    }
    Err(Refusal::OutOfRange { what, rule: format!("a list of 1 to {max}, not of {len}") }.into())
}
