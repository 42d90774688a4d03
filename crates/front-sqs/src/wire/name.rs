//! Queue names, URLs and ARNs.

use malote_model::QueueName;

use crate::refusal::{Code, SqsError};

/// The parts of queue URLs and ARNs that depend on the caller.
#[derive(Clone, Debug)]
pub struct QueueAddressing {
    /// Scheme, host and port, such as `http://localhost:9324`.
    pub base: String,
    /// The region of the caller's signature.
    pub region: String,
    /// The account id, which has twelve digits.
    pub account: String,
}

impl QueueAddressing {
    pub fn url(&self, queue: &str) -> String {
        format!("{}/{}/{queue}", self.base, self.account)
    }

    pub fn arn(&self, queue: &str) -> String {
        format!("arn:aws:sqs:{}:{}:{queue}", self.region, self.account)
    }
}

/// The queue of a URL. Only the last segment counts, whatever host the caller used.
pub fn of_url(url: &str) -> Result<&str, SqsError> {
    let name = url.rsplit('/').next().unwrap_or("");
    if name.is_empty() || url.len() > 2048 {
        let text = "The address is not valid for this endpoint.";
        return Err(SqsError::new(Code::QueueDoesNotExist, text));
    }
    Ok(name)
}

/// The queue of an ARN.
pub fn of_arn(arn: &str) -> Option<&str> {
    let mut parts = arn.split(':');
    let known =
        parts.next() == Some("arn") && parts.next().is_some() && parts.next() == Some("sqs");
    let (_region, _account, name) = (parts.next()?, parts.next()?, parts.next()?);
    (known && parts.next().is_none() && is_name(name)).then_some(name)
}

/// Whether a name is valid in SQS.
pub fn is_name(name: &str) -> bool {
    let stem = name.strip_suffix(".fifo").unwrap_or(name);
    let plain = stem.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    plain && !stem.is_empty() && name.len() <= 80
}

/// Checks the name of a new queue.
pub fn checked(name: &str) -> Result<QueueName, SqsError> {
    if !is_name(name) {
        let text =
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";
        return Err(SqsError::new(Code::InvalidParameterValue, text));
    }
    Ok(QueueName::new(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_arns_name_queues() {
        assert_eq!(of_url("http://anything:1/123/q.fifo").unwrap(), "q.fifo");
        assert_eq!(of_url("q").unwrap(), "q");
        of_url("http://h/0/").unwrap_err();
        assert_eq!(of_arn("arn:aws:sqs:eu-west-1:000000000000:q"), Some("q"));
        for bad in [
            "",
            "q",
            "arn:aws:sns:r:0:q",
            "arn:aws:sqs:r:0:",
            "arn:aws:sqs:r:0:q:x",
            "arn:aws:sqs:r:0:a/b",
        ] {
            assert_eq!(of_arn(bad), None, "{bad}");
        }
        for (name, good) in
            [("a-B_9", true), ("a.fifo", true), ("a.b", false), (".fifo", false), ("", false)]
        {
            assert_eq!(is_name(name), good, "{name}");
        }
        assert!(is_name(&"x".repeat(80)) && !is_name(&"x".repeat(81)));
    }
}
