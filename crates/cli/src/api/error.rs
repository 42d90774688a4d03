//! Errors of calls, with hints how to fix them.

use malote_wire_native::problem::ProblemBody;

/// A call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("no server at {url}: {why}")]
    Unreachable { url: String, why: String },
    /// The TCP connection works, but TLS does not.
    #[error("no secure connection to {url}: {why}")]
    Tls { url: String, why: String },
    #[error("no response from the server at {url} within {after}")]
    TimedOut { url: String, after: String },
    /// The response is not one of this API.
    #[error("the server at {url} is not a Malote server: {why}")]
    Broken { url: String, why: String },
    /// The server refused the request.
    #[error("{}", .0.detail)]
    Refused(Box<ProblemBody>),
    /// The address or the credentials are invalid.
    #[error("{0}")]
    Usage(String),
}

impl ApiError {
    /// A hint for the user of this command line, or the one of the server.
    pub(crate) fn fix(&self) -> Option<String> {
        let problem = match self {
            Self::Unreachable { .. } => {
                let fix =
                    "start one with `malote serve`, or give its address with --url or --context";
                return Some(fix.into());
            }
            Self::Tls { .. } => {
                let fix = "trust the server's certificate authority with --ca FILE, or skip the check with --insecure";
                return Some(fix.into());
            }
            Self::TimedOut { .. } => {
                return Some("raise --timeout, or look at the server's log".into());
            }
            Self::Broken { .. } => return Some("check --url".into()),
            Self::Usage(_) => return None,
            Self::Refused(problem) => problem,
        };
        let hint = match problem.code.as_str() {
            "queue_not_found" => {
                "`malote queue ls` lists the queues, `malote queue create NAME` creates one"
            }
            "queue_differs" => {
                "`malote queue get NAME` shows its settings, `malote queue update` changes them"
            }
            "topic_not_found" => {
                "`malote topic ls` lists the topics, `malote topic create NAME` creates one"
            }
            "topic_differs" => "`malote topic get NAME` shows its settings",
            "rule_differs" => "delete the other rule first, or choose another name",
            "saga_not_found" => "`malote saga ls NAME` lists the sagas",
            "rule_not_found" => "`malote subscription rule ls` lists the rules",
            "no_reply" => "check that a worker replies on this queue, or wait longer with --wait",
            "queue_full" => "receive from it, or raise the limit with `malote queue update`",
            "session_not_listed" => {
                "use one of the session ids of the queue, or --key instead of --session"
            }
            "session_required" => "give --session",
            "no_sessions" => "create a queue with `malote queue create NAME --sessions dynamic`",
            "session_held" => {
                "wait until the lock expires, or break it with `malote session break`"
            }
            "hold_required" => "give --session ID or --any-session",
            "message_too_large" => {
                "send a smaller message, or raise the limit with `malote queue update --message-size`"
            }
            "unauthenticated" => "give --token or --user, or set MALOTE_TOKEN",
            "lease_lost" => "receive the message again",
            "message_not_found" | "forbidden" => "",
            _ => problem.fix.as_str(),
        };
        (!hint.is_empty()).then(|| hint.to_owned())
    }
}
