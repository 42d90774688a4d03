//! Sessions: holding them, and looking at them.

use malote_engine::{AcceptedSession, SessionFacts};
use malote_model::limits;
use serde::{Deserialize, Serialize};

use super::receive::{check_lock, range};
use crate::problem::{Code, Problem};

/// Asks to hold a session.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AcceptIn {
    /// This one, or the next that is ready.
    pub session: Option<String>,
    /// How long to wait for the next that is ready.
    pub wait_ms: u64,
    /// The queue's lock if absent.
    pub lock_ms: Option<u64>,
}

impl AcceptIn {
    /// Refuses numbers that mean nothing.
    pub fn check(&self, wait_ms_max: u64) -> Result<(), Problem> {
        range("wait_ms", self.wait_ms, 0, wait_ms_max)?;
        check_lock(self.lock_ms)
    }
}

/// A session in hand.
#[derive(Debug, Serialize)]
pub struct HeldOut {
    session: String,
    token: String,
    until: u64,
}

impl From<AcceptedSession> for HeldOut {
    fn from(held: AcceptedSession) -> Self {
        Self {
            session: held.session.as_str().to_owned(),
            token: held.hold.to_string(),
            until: held.until.0,
        }
    }
}

/// Proof of a hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenIn {
    /// As accepted.
    pub token: String,
    /// renew: the queue's lock if absent.
    pub lock_ms: Option<u64>,
}

/// Until when a hold was prolonged.
#[derive(Debug, Serialize)]
pub struct UntilOut {
    /// Milliseconds since 1970.
    pub until: u64,
}

/// A page of sessions.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionsQuery {
    /// From where the page before ended: its `next`.
    pub after: Option<String>,
    /// At most so many.
    pub max: Option<u64>,
}

impl SessionsQuery {
    /// Where to begin.
    pub fn from(&self) -> Result<u32, Problem> {
        let Some(after) = self.after.as_deref() else { return Ok(0) };
        let why = || "`after` is not the `next` of another page";
        after.parse().map_err(|_| Problem::new(Code::BadQuery, why()))
    }

    /// How many.
    pub fn max(&self) -> Result<usize, Problem> {
        let max = self.max.unwrap_or(crate::limits::PAGE_DEFAULT as u64);
        range("max", max, 1, limits::RECEIVE_BATCH_MAX as u64)?;
        Ok(max as usize)
    }
}

/// Sessions, in no order that means anything; `next` is the `after` of the next page.
#[derive(Debug, Serialize)]
pub struct SessionsOut {
    /// Some of them.
    pub sessions: Vec<SessionOut>,
    /// Where to go on.
    pub next: Option<String>,
}

/// What a session is and holds.
#[derive(Debug, Serialize)]
pub struct SessionOut {
    session: String,
    messages: u64,
    locked: u64,
    held_until: Option<u64>,
    state_bytes: u64,
    first: Option<u64>,
    delayed_until: Option<u64>,
}

impl From<SessionFacts> for SessionOut {
    fn from(facts: SessionFacts) -> Self {
        Self {
            session: facts.session.as_str().to_owned(),
            messages: facts.messages,
            locked: facts.locked,
            held_until: facts.held_until.map(|at| at.0),
            state_bytes: facts.state_bytes,
            first: facts.first.map(|seq| seq.0),
            delayed_until: facts.delayed_until.map(|at| at.0),
        }
    }
}
