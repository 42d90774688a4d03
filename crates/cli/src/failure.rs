//! Maps errors to messages and exit codes.
//!
//! | code | means |
//! |---|---|
//! | 0 | success |
//! | 1 | failure |
//! | 2 | wrong usage |
//! | 3 | not found |
//! | 4 | conflict with an existing object or lock |
//! | 69 | the server cannot be reached |
//! | 130 | interrupted |

use std::process::ExitCode;

use malote_connectors::BrokerError;
use malote_engine::disk::DirError;
use malote_server::credentials::CredentialsError;

use crate::api::ApiError;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NOT_FOUND: u8 = 3;
const CONFLICT: u8 = 4;
const UNREACHABLE: u8 = 69;
const INTERRUPTED: u8 = 130;

/// Errors of the command line itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Wrong arguments that clap cannot detect.
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NotFound(String),
    /// An existing object cannot be changed as requested.
    #[error("{0}")]
    Conflict(String),
    /// A check failed. The details are already on standard output.
    #[error("{0}")]
    Unhealthy(String),
    #[error("interrupted")]
    Interrupted,
}

pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(code(error))
}

fn code(error: &anyhow::Error) -> u8 {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return match failure {
            Failure::Usage(_) => USAGE,
            Failure::NotFound(_) => NOT_FOUND,
            Failure::Conflict(_) => CONFLICT,
            Failure::Unhealthy(_) => FAILED,
            Failure::Interrupted => INTERRUPTED,
        };
    }
    if let Some(error) = error.downcast_ref::<ApiError>() {
        return match error {
            ApiError::Unreachable { .. } | ApiError::Tls { .. } | ApiError::TimedOut { .. } => {
                UNREACHABLE
            }
            ApiError::Usage(_) => USAGE,
            ApiError::Refused(problem) => match problem.status {
                404 => NOT_FOUND,
                409 => CONFLICT,
                _ => FAILED,
            },
            ApiError::Broken { .. } => FAILED,
        };
    }
    if let Some(error) = of_broker(error) {
        return match error {
            BrokerError::Unreachable { .. } => UNREACHABLE,
            BrokerError::Refused { code, .. } if code == "queue_not_found" => NOT_FOUND,
            _ => FAILED,
        };
    }
    if let Some(error) = error.downcast_ref::<CredentialsError>() {
        return match error {
            CredentialsError::NotFound { .. } => NOT_FOUND,
            CredentialsError::Exists { .. } => CONFLICT,
            CredentialsError::BadName { .. } | CredentialsError::BadPassword => USAGE,
            _ => FAILED,
        };
    }
    match error.downcast_ref::<DirError>() {
        Some(DirError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            NOT_FOUND
        }
        _ => FAILED,
    }
}

/// The error of the broker of a worker or bridge.
fn of_broker(error: &anyhow::Error) -> Option<&BrokerError> {
    match error.downcast_ref() {
        Some(malote::Error::Broker(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

/// Whether the user interrupted the command.
pub(crate) fn is_interrupt(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::Interrupted))
}

/// The error with its causes on one line. A cause that is part of the text already is not repeated.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether the reader of standard output went away, as `head` does. That is not an error.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_wire_native::problem::ProblemBody;

    #[test]
    fn codes_follow_the_table() {
        let refused = |status| {
            anyhow::Error::new(ApiError::Refused(Box::new(ProblemBody {
                status,
                ..ProblemBody::default()
            })))
        };
        assert_eq!(code(&refused(404)), 3);
        assert_eq!(code(&refused(409)), 4);
        assert_eq!(code(&refused(500)), 1);
        assert_eq!(code(&refused(401)), 1);
        let away = ApiError::Unreachable { url: String::new(), why: String::new() };
        assert_eq!(code(&away.into()), 69);
        let away = BrokerError::Unreachable { text: String::new() };
        assert_eq!(code(&anyhow::Error::from(away.clone()).context("--to")), 69);
        assert_eq!(
            code(&anyhow::Error::from(malote::Error::Broker(away)).context("no broker")),
            69
        );
        let none = BrokerError::Refused { code: "queue_not_found".into(), text: String::new() };
        assert_eq!(code(&malote::Error::Broker(none).into()), 3);
        assert_eq!(code(&BrokerError::LockLost.into()), 1);
        assert_eq!(code(&Failure::Usage(String::new()).into()), 2);
        assert_eq!(code(&Failure::Interrupted.into()), 130);
        assert_eq!(code(&anyhow::anyhow!("anything")), 1);
    }
}
