//! What a handler wants to happen to its message, said by its return value.

use std::fmt;
use std::time::Duration;

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The work is done.
    Done,
    /// It failed: an attempt is counted, and it comes back after the retry's delay, or dies when none is left.
    Retry(Failed),
    /// Later, and not a failure: nothing is counted.
    Snooze(Duration),
    /// Somebody said "not so fast": the worker takes nothing for so long, and this message is not counted.
    RateLimited(Duration),
    /// Back to where it was, at once, uncounted.
    Release,
    /// It can never succeed.
    Dead {
        /// A short, stable word for programs.
        reason: String,
        /// What happened, for people.
        text: String,
    },
}

/// A failure that may go away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// What happened.
    pub error: String,
    /// When to try again, if the error says so itself.
    pub after: Option<Duration>,
    /// The dependency whose fault it is: its breaker counts it.
    pub dependency: Option<&'static str>,
}

/// Why a handler did not do its work. `?` turns any error into one that is tried again.
///
/// It is no `std::error::Error` itself: so every error can become one.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(Box<Outcome>);

impl Failure {
    /// It may succeed later.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self(Box::new(Outcome::Retry(Failed { error: error.to_string(), ..Failed::default() })))
    }

    /// It may succeed after so long: what a `Retry-After` says.
    pub fn retry_after(error: impl fmt::Display, after: Duration) -> Self {
        let failed = Failed { error: error.to_string(), after: Some(after), dependency: None };
        Self(Box::new(Outcome::Retry(failed)))
    }

    /// It is the fault of a dependency. A breaker of that name counts it.
    pub fn of_dependency(dependency: &'static str, error: impl fmt::Display) -> Self {
        let (error, dependency) = (error.to_string(), Some(dependency));
        Self(Box::new(Outcome::Retry(Failed { error, after: None, dependency })))
    }

    /// Not yet, and not a failure: it comes again after so long, uncounted.
    pub fn not_yet(after: Duration) -> Self {
        Self(Box::new(Outcome::Snooze(after)))
    }

    /// It can never succeed: a word for programs and a text for people.
    pub fn dead(reason: impl Into<String>, text: impl fmt::Display) -> Self {
        Self(Box::new(Outcome::Dead { reason: reason.into(), text: text.to_string() }))
    }

    /// There is nothing to do for the handler: this is the outcome.
    #[cfg(feature = "once")]
    pub(crate) fn already(outcome: Outcome) -> Self {
        Self(Box::new(outcome))
    }

    /// The body is not what the handler takes.
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
        // What an error rests on is half of what it says.
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self::retry(text)
    }
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        *failure.0
    }
}

/// What a handler may return.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not an outcome",
    note = "return `()`, `malote::Outcome`, or a `Result` of these with an error that becomes `malote::Failure`"
)]
pub trait IntoOutcome {
    /// What it means.
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
    fn a_question_mark_means_retry_and_keeps_the_causes() {
        fn parse(text: &str) -> Result<(), Failure> {
            let _: u32 = text.parse()?;
            Ok(())
        }
        assert_eq!(parse("1").into_outcome(), Outcome::Done);
        let Outcome::Retry(failed) = parse("x").into_outcome() else { panic!() };
        assert_eq!(failed.error, "invalid digit found in string");
    }

    #[test]
    fn a_failure_may_say_more() {
        let dead: Result<(), Failure> = Err(Failure::dead("NoTotal", "an order costs something"));
        assert!(matches!(dead.into_outcome(), Outcome::Dead { reason, .. } if reason == "NoTotal"));
        let late: Result<Outcome, Failure> = Ok(Outcome::Snooze(Duration::from_secs(1)));
        assert_eq!(late.into_outcome(), Outcome::Snooze(Duration::from_secs(1)));
    }
}
