//! Ending and prolonging leases.

use malote_engine::StateChange;
use malote_model::{Changes, LeaseToken, Refusal, Settlement, Timestamp, limits};
use serde::{Deserialize, Serialize};

use super::receive::{check_list, check_lock};
use super::text;
use super::value::PropertyMap;
use crate::problem::{Code, Problem};

/// How leases end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleIn {
    /// Which.
    pub leases: Vec<String>,
    /// How.
    pub outcome: Outcome,
    /// abandon, release: not before so long from now.
    pub delay_ms: Option<u64>,
    /// dead_letter: a short, stable word.
    pub reason: Option<String>,
    /// dead_letter: what happened.
    pub text: Option<String>,
    /// abandon, defer, dead_letter: laid over the message.
    pub properties: Option<PropertyMap>,
    /// Changes with the leases or not at all.
    pub session_state: Option<StateIn>,
}

/// How a lease ends.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Done.
    Complete,
    /// Failed: counted.
    Abandon,
    /// Not tried: not counted.
    Release,
    /// Set aside.
    Defer,
    /// It can never succeed.
    DeadLetter,
}

/// A new state of a held session; neither of both clears it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateIn {
    /// Proof of the hold.
    pub token: String,
    /// In JSON.
    pub state_base64: Option<String>,
    /// In MessagePack.
    pub state: Option<Raw>,
}

/// Bytes, as MessagePack has them.
#[derive(Debug)]
pub struct Raw(pub bytes::Bytes);

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use super::message::BodyIn;
        Ok(match BodyIn::deserialize(deserializer)? {
            BodyIn::Bytes(bytes) => Self(bytes),
            BodyIn::Text(text) | BodyIn::Json(text) => Self(text.into()),
        })
    }
}

impl StateIn {
    /// The change it means.
    pub fn change(self) -> Result<StateChange, Problem> {
        let state = match (self.state, self.state_base64) {
            (Some(_), Some(_)) => {
                return Err(Problem::new(
                    Code::BadField,
                    "give `state` or `state_base64`, not both",
                ));
            }
            (Some(Raw(bytes)), None) => Some(bytes),
            (None, Some(text)) => Some(text::from_base64("state_base64", &text)?),
            (None, None) => None,
        };
        check_state(state.as_ref().map_or(0, |state| state.len()))?;
        Ok(StateChange { hold: self.token.parse()?, state })
    }
}

/// Refuses a state that is too large.
pub fn check_state(len: usize) -> Result<(), Problem> {
    if len <= limits::SESSION_STATE_BYTES_MAX {
        return Ok(());
    }
    let rule = format!("at most {} bytes long, not {len}", limits::SESSION_STATE_BYTES_MAX);
    Err(Refusal::OutOfRange { what: "a session's state", rule }.into())
}

impl SettleIn {
    /// The tokens as given and as read, the settlement, and the state that changes with it.
    #[allow(clippy::type_complexity)]
    pub fn read(
        self,
    ) -> Result<
        (Vec<(String, Result<LeaseToken, Refusal>)>, Settlement, Option<StateChange>),
        Problem,
    > {
        check_list("leases", self.leases.len(), limits::SETTLE_BATCH_MAX)?;
        let outcome = self.outcome;
        let stray = |field: &str| {
            let why = format!("`{field}` means nothing with this outcome");
            Err(Problem::new(Code::BadField, why))
        };
        use Outcome::{Abandon, Complete, DeadLetter, Defer, Release};
        if self.delay_ms.is_some() && !matches!(outcome, Abandon | Release) {
            return stray("delay_ms");
        }
        if self.reason.is_some() && outcome != DeadLetter {
            return stray("reason");
        }
        if self.text.is_some() && outcome != DeadLetter {
            return stray("text");
        }
        if self.properties.is_some() && matches!(outcome, Complete | Release) {
            return stray("properties");
        }
        let delay_ms = self.delay_ms.unwrap_or_default();
        let changes = Changes { properties: self.properties.unwrap_or_default().0 };
        let settlement = match outcome {
            Complete => Settlement::Complete,
            Abandon => Settlement::Abandon { delay_ms, changes },
            Release => Settlement::Release { delay_ms },
            Defer => Settlement::Defer { changes },
            DeadLetter => Settlement::DeadLetter {
                reason: self.reason.unwrap_or_else(|| "Rejected".into()),
                text: self.text.unwrap_or_default(),
                changes,
            },
        };
        let state = self.session_state.map(StateIn::change).transpose()?;
        let leases = tokens(self.leases);
        if state.is_some()
            && let Some((_, Err(refusal))) = leases.iter().find(|(_, token)| token.is_err())
        {
            return Err(refusal.clone().into());
        }
        Ok((leases, settlement, state))
    }
}

/// Tokens as given and as read.
pub fn tokens(texts: Vec<String>) -> Vec<(String, Result<LeaseToken, Refusal>)> {
    let read = |text: String| {
        let token = text.parse();
        (text, token)
    };
    texts.into_iter().map(read).collect()
}

/// How leases go on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewIn {
    /// Which: leases or session tokens.
    pub leases: Vec<String>,
    /// The queue's lock if absent.
    pub lock_ms: Option<u64>,
}

impl RenewIn {
    /// Refuses what means nothing.
    pub fn check(&self) -> Result<(), Problem> {
        check_list("leases", self.leases.len(), limits::SETTLE_BATCH_MAX)?;
        check_lock(self.lock_ms)
    }
}

/// One for each lease, in the order asked.
#[derive(Debug, Serialize)]
pub struct ResultsOut {
    /// What became of it.
    pub results: Vec<ResultOut>,
}

/// What became of one lease.
#[derive(Debug, Serialize)]
pub struct ResultOut {
    lease: String,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

impl ResultOut {
    /// Of a settlement.
    pub fn settled(lease: String, result: Result<(), Refusal>) -> Self {
        let problem = result.err().map(Problem::from);
        Self { lease, ok: problem.is_none(), until: None, problem }
    }

    /// Of a lease whose whole request was refused.
    pub fn failed(lease: String, problem: Problem) -> Self {
        Self { lease, ok: false, until: None, problem: Some(problem) }
    }

    /// Of a renewal.
    pub fn renewed(lease: String, result: Result<Timestamp, Refusal>) -> Self {
        match result {
            Ok(until) => Self { lease, ok: true, until: Some(until.0), problem: None },
            Err(refusal) => Self { lease, ok: false, until: None, problem: Some(refusal.into()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Settlement, Problem> {
        Ok(serde_json::from_str::<SettleIn>(json).unwrap().read()?.1)
    }

    #[test]
    fn outcomes_are_read() {
        assert_eq!(read(r#"{"leases":["x"],"outcome":"complete"}"#), Ok(Settlement::Complete));
        assert_eq!(
            read(r#"{"leases":["x"],"outcome":"release","delay_ms":5}"#),
            Ok(Settlement::Release { delay_ms: 5 })
        );
        assert!(matches!(
            read(r#"{"leases":["x"],"outcome":"dead_letter","reason":"r","text":"t","properties":{"a":1}}"#),
            Ok(Settlement::DeadLetter { reason, .. }) if reason == "r"
        ));
    }

    #[test]
    fn fields_that_mean_nothing_are_refused() {
        for bad in [
            r#"{"leases":[],"outcome":"complete"}"#,
            r#"{"leases":["x"],"outcome":"complete","delay_ms":5}"#,
            r#"{"leases":["x"],"outcome":"complete","properties":{}}"#,
            r#"{"leases":["x"],"outcome":"abandon","reason":"r"}"#,
            r#"{"leases":["x"],"outcome":"abandon","text":"r"}"#,
            r#"{"leases":["x"],"outcome":"complete","session_state":{"token":"x"}}"#,
        ] {
            read(bad).unwrap_err();
        }
    }
}
