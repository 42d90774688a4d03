//! What a call can end in, each as a sentence that says what to do.

use malote_wire_native::problem::ProblemBody;

/// Why a call did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// Nobody is there.
    #[error("no server answers at {url}: {why}")]
    Unreachable {
        /// Where.
        url: String,
        /// What the system said.
        why: String,
    },
    /// Somebody is there and says nothing.
    #[error("the server at {url} did not answer within {after}")]
    TimedOut {
        /// Where.
        url: String,
        /// How long it had.
        after: String,
    },
    /// The answer makes no sense.
    #[error("the server at {url} answered with something that is not Malote: {why}")]
    Broken {
        /// Where.
        url: String,
        /// What was wrong with it.
        why: String,
    },
    /// The server said no.
    #[error("{}", .0.detail)]
    Refused(Box<ProblemBody>),
    /// The connection was described wrongly.
    #[error("{0}")]
    Usage(String),
}

impl ApiError {
    /// What to do about it, in terms of this command line where it has a better word than the server.
    pub(crate) fn fix(&self) -> Option<String> {
        let problem = match self {
            Self::Unreachable { .. } => {
                return Some("start one with `malote serve`, or say where it is with --url".into());
            }
            Self::TimedOut { .. } => {
                return Some("raise --timeout, or look at the server's log".into());
            }
            Self::Broken { .. } => return Some("check --url".into()),
            Self::Usage(_) => return None,
            Self::Refused(problem) => problem,
        };
        let ours = match problem.code.as_str() {
            "queue_not_found" => {
                "`malote queue ls` shows what there is, `malote queue create NAME` makes one"
            }
            "queue_differs" => {
                "`malote queue get NAME` shows what it is, `malote queue update` changes it"
            }
            "topic_not_found" => {
                "`malote topic ls` shows what there is, `malote topic create NAME` makes one"
            }
            "topic_differs" => "`malote topic get NAME` shows what it is",
            "rule_differs" => "take the other rule away first, or choose another name",
            "saga_not_found" => "`malote saga ls NAME` shows what there is",
            "rule_not_found" => "`malote subscription rule ls` shows what there is",
            "no_reply" => "is somebody there who answers? --wait waits longer",
            "queue_full" => "receive from it, or raise the limit with `malote queue update`",
            "session_not_listed" => "use one of its ids, or give --key instead of --session",
            "session_required" => "give --session",
            "no_sessions" => "make a queue with `malote queue create NAME --sessions dynamic`",
            "session_held" => "wait until the hold ends, or end it with `malote session break`",
            "hold_required" => "give --session ID or --any-session",
            "message_too_large" => {
                "send less, or raise the limit with `malote queue update --message-size`"
            }
            "unauthenticated" => "give --token or --user, or set MALOTE_TOKEN",
            "lease_lost" => "receive it again",
            "message_not_found" | "forbidden" => "",
            _ => problem.fix.as_str(),
        };
        (!ours.is_empty()).then(|| ours.to_owned())
    }
}
