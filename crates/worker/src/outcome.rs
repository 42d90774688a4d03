//! The return value of a handler: it decides what happens to the message.

use std::fmt;
use std::time::Duration;

use crate::text::with_causes;

/// What happens to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The message was completed.
    Done,
    /// The attempt failed. The message is retried after a delay, or dead-lettered after the last attempt.
    Retry(FailedAttempt),
    /// Delivered again after this time. It does not count as an attempt.
    Snooze(Duration),
    /// Returned to the queue. The worker fetches nothing for this time. It does not count as an attempt.
    RateLimited(Duration),
    /// Returned to its place in the queue at once. It does not count as an attempt.
    Release,
    /// The message was dead-lettered.
    Dead {
        /// A short and stable identifier, such as `NoTotal`.
        reason: String,
        /// A description of the problem.
        text: String,
    },
}

/// A failed attempt that may succeed later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedAttempt {
    /// The error, for logs and for the history of the message.
    pub error: String,
    /// The delay before the next attempt. `None` uses the backoff of the worker.
    pub retry_after: Option<Duration>,
    /// The dependency that caused the failure. Its breaker counts it.
    pub dependency: Option<&'static str>,
}

/// The error type of handlers. `?` converts every error into a failure that is retried.
///
/// It does not implement `std::error::Error`; otherwise the conversion from every error would not be possible.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(Box<Outcome>);

impl Failure {
    /// Retries the message with the backoff of the worker.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self(Box::new(Outcome::Retry(FailedAttempt {
            error: error.to_string(),
            ..FailedAttempt::default()
        })))
    }

    /// Retries the message after this delay, for example the value of a `Retry-After` header.
    pub fn retry_after(error: impl fmt::Display, delay: Duration) -> Self {
        let (error, retry_after) = (error.to_string(), Some(delay));
        Self(Box::new(Outcome::Retry(FailedAttempt { error, retry_after, dependency: None })))
    }

    /// Retries the message. A [`crate::Breaker`] for this dependency counts the failure.
    pub fn of_dependency(dependency: &'static str, error: impl fmt::Display) -> Self {
        let (error, dependency) = (error.to_string(), Some(dependency));
        Self(Box::new(Outcome::Retry(FailedAttempt { error, retry_after: None, dependency })))
    }

    /// Delivers the message again after this time. It does not count as an attempt.
    pub fn snooze(time: Duration) -> Self {
        Self(Box::new(Outcome::Snooze(time)))
    }

    /// Dead-letters the message. `reason` is a short and stable identifier, `text` a description.
    pub fn dead(reason: impl Into<String>, text: impl fmt::Display) -> Self {
        Self(Box::new(Outcome::Dead { reason: reason.into(), text: text.to_string() }))
    }

    /// Ends the message with this outcome, without a call of the handler.
    #[cfg(feature = "once")]
    pub(crate) fn with_outcome(outcome: Outcome) -> Self {
        Self(Box::new(outcome))
    }

    pub(crate) fn undecodable(text: impl fmt::Display) -> Self {
        Self::dead("Undecodable", text)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(with_causes(&error))
    }
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        *failure.0
    }
}

/// A return type of handlers.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not an outcome",
    note = "return `()`, `malote::Outcome`, or a `Result` of these with an error that becomes `malote::Failure`"
)]
pub trait IntoOutcome {
    /// The outcome of the message.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl<T: IntoOutcome, E: Into<Failure>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(error) => error.into().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_from_a_question_mark_is_retried() {
        fn parse(text: &str) -> Result<(), Failure> {
            let _: u32 = text.parse()?;
            Ok(())
        }
        assert_eq!(parse("1").into_outcome(), Outcome::Done);
        let Outcome::Retry(failed) = parse("x").into_outcome() else { panic!() };
        assert_eq!(failed.error, "invalid digit found in string");
    }

    #[test]
    fn failures_and_outcomes_decide_what_happens() {
        let dead: Result<(), Failure> = Err(Failure::dead("NoTotal", "an order costs something"));
        assert!(matches!(dead.into_outcome(), Outcome::Dead { reason, .. } if reason == "NoTotal"));
        let late: Result<Outcome, Failure> = Ok(Outcome::Snooze(Duration::from_secs(1)));
        assert_eq!(late.into_outcome(), Outcome::Snooze(Duration::from_secs(1)));
    }
}
