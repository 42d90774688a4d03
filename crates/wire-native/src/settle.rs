//! Settling and renewing leases.

use bytes::Bytes;
use malote_model::{Changes, LeaseToken, Refusal, Settlement};
use serde::{Deserialize, Serialize};

use crate::body::BodyContent;
use crate::problem::ProblemBody;
use crate::value::PropertyMap;
use crate::{RequestError, text};

/// Settles leases, all with the same outcome.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Settle"))]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    /// The tokens of the leases
    pub leases: Vec<String>,
    /// How the messages are settled
    pub outcome: SettleOutcome,
    /// abandon, release: deliver again after this number of milliseconds
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// dead_letter: a short, stable word
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// dead_letter: what happened
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// abandon, defer, dead_letter: properties to set on the message
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub properties: Option<PropertyMap>,
    /// A change of the session state, atomic with the settlement
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_state: Option<SessionStateChange>,
}

/// How a lease ends.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum SettleOutcome {
    /// The message was processed
    Complete,
    /// Processing failed: the failure is counted
    Abandon,
    /// The message was not processed: nothing is counted
    Release,
    /// The message waits until it is received by its sequence number
    Defer,
    /// The message is dead-lettered
    DeadLetter,
}

/// The new state of a held session. Without `state` and `state_base64`, the state is cleared.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "StateChange"))]
#[serde(deny_unknown_fields)]
pub struct SessionStateChange {
    /// The token of the hold
    pub token: String,
    /// The state as base64, in JSON
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_base64: Option<String>,
    /// The state, in MessagePack
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<BodyContent>,
}

impl SessionStateChange {
    /// The token of the hold and the new state; `None` clears the state.
    pub fn read(self) -> Result<(LeaseToken, Option<Bytes>), RequestError> {
        let state = match (self.state, self.state_base64) {
            (Some(_), Some(_)) => {
                let why = "give `state` or `state_base64`, not both";
                return Err(RequestError::Field(why.into()));
            }
            (Some(content), None) => Some(content.into_bytes()),
            (None, Some(text)) => {
                Some(text::from_base64("state_base64", &text).map_err(RequestError::Field)?)
            }
            (None, None) => None,
        };
        Ok((self.token.parse()?, state))
    }
}

impl SettleRequest {
    /// Settles one lease.
    pub fn new(lease: LeaseToken, settlement: Settlement) -> Self {
        let set =
            |changes: Changes| (!changes.is_empty()).then_some(PropertyMap(changes.properties));
        let mut request = Self {
            leases: vec![lease.to_string()],
            outcome: SettleOutcome::Complete,
            delay_ms: None,
            reason: None,
            text: None,
            properties: None,
            session_state: None,
        };
        match settlement {
            Settlement::Complete => {}
            Settlement::Abandon { delay_ms, changes } => {
                request.outcome = SettleOutcome::Abandon;
                request.delay_ms = Some(delay_ms);
                request.properties = set(changes);
            }
            Settlement::Release { delay_ms } => {
                request.outcome = SettleOutcome::Release;
                request.delay_ms = Some(delay_ms);
            }
            Settlement::Defer { changes } => {
                request.outcome = SettleOutcome::Defer;
                request.properties = set(changes);
            }
            Settlement::DeadLetter { reason, text, changes } => {
                request.outcome = SettleOutcome::DeadLetter;
                request.reason = Some(reason);
                request.text = Some(text);
                request.properties = set(changes);
            }
        }
        request
    }

    /// Whether the request only completes leases.
    pub fn is_plain_complete(&self) -> bool {
        self.outcome == SettleOutcome::Complete && self.session_state.is_none()
    }

    /// The settlement. A field that does not apply to the outcome is refused.
    pub fn settlement(&mut self) -> Result<Settlement, RequestError> {
        use SettleOutcome::{Abandon, Complete, DeadLetter, Defer, Release};
        let outcome = self.outcome;
        let given = [
            ("delay_ms", self.delay_ms.is_some(), matches!(outcome, Abandon | Release)),
            ("reason", self.reason.is_some(), outcome == DeadLetter),
            ("text", self.text.is_some(), outcome == DeadLetter),
            ("properties", self.properties.is_some(), !matches!(outcome, Complete | Release)),
        ];
        if let Some((field, ..)) = given.iter().find(|(_, given, allowed)| *given && !allowed) {
            return Err(RequestError::Field(format!("`{field}` does not apply to this outcome")));
        }
        let delay_ms = self.delay_ms.unwrap_or_default();
        let changes = Changes { properties: self.properties.take().unwrap_or_default().0 };
        Ok(match outcome {
            Complete => Settlement::Complete,
            Abandon => Settlement::Abandon { delay_ms, changes },
            Release => Settlement::Release { delay_ms },
            Defer => Settlement::Defer { changes },
            DeadLetter => Settlement::DeadLetter {
                reason: self.reason.take().unwrap_or_else(|| "Rejected".into()),
                text: self.text.take().unwrap_or_default(),
                changes,
            },
        })
    }
}

/// Each token as text and parsed.
pub type ParsedTokens = Vec<(String, Result<LeaseToken, Refusal>)>;

/// Parses tokens and keeps their text.
pub fn parse_tokens(texts: Vec<String>) -> ParsedTokens {
    let read = |text: String| {
        let token = text.parse();
        (text, token)
    };
    texts.into_iter().map(read).collect()
}

/// Renews leases or holds.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Renew"))]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// Tokens of leases or of held sessions
    pub leases: Vec<String>,
    /// The new duration, from now; the queue's `lock_ms` if absent
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_ms: Option<u64>,
}

/// The results for all leases, in the order of the request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Results"))]
pub struct LeaseResults {
    /// One entry for each lease
    pub results: Vec<LeaseResult>,
}

/// The result for one lease.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Result"))]
pub struct LeaseResult {
    /// The token of the lease
    pub lease: String,
    /// Whether the operation succeeded
    pub ok: bool,
    /// The new end of a renewed lease
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Why the operation failed
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<ProblemBody>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Settlement, RequestError> {
        serde_json::from_str::<SettleRequest>(json).unwrap().settlement()
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
    fn settlements_read_back_as_written() {
        let changes = || Changes {
            properties: [("a".to_owned(), malote_model::Value::Bool(true))].into_iter().collect(),
        };
        for settlement in [
            Settlement::Complete,
            Settlement::Abandon { delay_ms: 5, changes: changes() },
            Settlement::Release { delay_ms: 5 },
            Settlement::Defer { changes: changes() },
            Settlement::DeadLetter { reason: "r".into(), text: "t".into(), changes: changes() },
        ] {
            let lease = "0".repeat(32).parse().unwrap();
            let json =
                serde_json::to_string(&SettleRequest::new(lease, settlement.clone())).unwrap();
            assert_eq!(read(&json), Ok(settlement));
        }
    }

    #[test]
    fn fields_that_do_not_apply_to_the_outcome_are_refused() {
        for bad in [
            r#"{"leases":["x"],"outcome":"complete","delay_ms":5}"#,
            r#"{"leases":["x"],"outcome":"complete","properties":{}}"#,
            r#"{"leases":["x"],"outcome":"abandon","reason":"r"}"#,
            r#"{"leases":["x"],"outcome":"abandon","text":"r"}"#,
        ] {
            read(bad).unwrap_err();
        }
    }
}
