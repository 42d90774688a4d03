//! Request paths and pages. Reserved segments are case-insensitive.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::error::{AdminError, AdminResult};
use crate::wire::sas::percent_decode;

/// Entries per page.
const TOP_MAX: usize = 100;

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResourcePath {
    /// `$namespaceinfo`.
    Namespace,
    /// `$Resources/Queues`.
    Queues,
    /// `$Resources/Topics`.
    Topics,
    /// A queue or topic.
    Entity(String),
    /// `topic/Subscriptions`.
    Subscriptions { topic: String },
    /// `topic/Subscriptions/name`.
    Subscription { topic: String, name: String },
    /// `topic/Subscriptions/subscription/Rules`.
    Rules { topic: String, subscription: String },
    /// `topic/Subscriptions/subscription/Rules/name`.
    Rule { topic: String, subscription: String, name: String },
}

impl ResourcePath {
    /// Parses a decoded path.
    pub fn of(path: &str) -> ResourcePath {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let is = |segment: &str, name: &str| segment.eq_ignore_ascii_case(name);
        let own = |text: &str| text.to_owned();
        match &segments[..] {
            [only] if is(only, "$namespaceinfo") => ResourcePath::Namespace,
            [first, second] if is(first, "$resources") && is(second, "queues") => {
                ResourcePath::Queues
            }
            [first, second] if is(first, "$resources") && is(second, "topics") => {
                ResourcePath::Topics
            }
            [topic @ .., word, subscription, rules, name]
                if !topic.is_empty() && is(word, "subscriptions") && is(rules, "rules") =>
            {
                let (subscription, name) = (own(subscription), own(name));
                ResourcePath::Rule { topic: topic.join("/"), subscription, name }
            }
            [topic @ .., word, subscription, rules]
                if !topic.is_empty() && is(word, "subscriptions") && is(rules, "rules") =>
            {
                ResourcePath::Rules { topic: topic.join("/"), subscription: own(subscription) }
            }
            [topic @ .., word, name] if !topic.is_empty() && is(word, "subscriptions") => {
                ResourcePath::Subscription { topic: topic.join("/"), name: own(name) }
            }
            [topic @ .., word] if !topic.is_empty() && is(word, "subscriptions") => {
                ResourcePath::Subscriptions { topic: topic.join("/") }
            }
            name => ResourcePath::Entity(name.join("/")),
        }
    }
}

/// `$skip` and `$top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageRange {
    pub skip: usize,
    pub top: usize,
}

impl PageRange {
    pub fn parse(query: &str) -> AdminResult<PageRange> {
        let number = |name: &str| match value(query, name) {
            None => Ok(None),
            Some(text) => match text.parse::<usize>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(AdminError::property(name, &text, "a number")),
            },
        };
        let top = number("$top")?.unwrap_or(TOP_MAX);
        Ok(PageRange { skip: number("$skip")?.unwrap_or(0), top: top.clamp(1, TOP_MAX) })
    }

    /// The entries of this page, and whether there are more.
    pub fn cut<T>(self, all: impl IntoIterator<Item = T>) -> (Vec<T>, bool) {
        let mut rest = all.into_iter().skip(self.skip);
        let page = rest.by_ref().take(self.top).collect();
        (page, rest.next().is_some())
    }
}

/// A query parameter; names are case-insensitive.
pub(super) fn value(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        percent_decode(key)?.eq_ignore_ascii_case(name).then(|| percent_decode(value))?
    })
}

/// Percent-decodes the path of a request.
pub(super) fn decode(path: &str) -> AdminResult<String> {
    percent_decode(path).ok_or_else(|| AdminError::bad("The path of the request is not valid."))
}

/// What a path contains unescaped.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b'$')
    .remove(b'!')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Percent-encodes a path; slashes stay.
pub(super) fn escape(text: &str) -> String {
    utf8_percent_encode(text, PATH).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_path_segments_are_case_insensitive() {
        let own = |text: &str| text.to_owned();
        for (path, resource) in [
            ("/$namespaceinfo", ResourcePath::Namespace),
            ("/$Resources/Queues", ResourcePath::Queues),
            ("/$resources/topics/", ResourcePath::Topics),
            ("/orders", ResourcePath::Entity(own("orders"))),
            ("/a%2Fb", ResourcePath::Entity(own("a/b"))),
            ("/a/b/c", ResourcePath::Entity(own("a/b/c"))),
            ("/t/subscriptions", ResourcePath::Subscriptions { topic: own("t") }),
            (
                "/a/t/Subscriptions/s",
                ResourcePath::Subscription { topic: own("a/t"), name: own("s") },
            ),
            (
                "/t/Subscriptions/s/rules",
                ResourcePath::Rules { topic: own("t"), subscription: own("s") },
            ),
            (
                "/t/SUBSCRIPTIONS/s/RULES/%24Default",
                ResourcePath::Rule {
                    topic: own("t"),
                    subscription: own("s"),
                    name: own("$Default"),
                },
            ),
            ("/subscriptions", ResourcePath::Entity(own("subscriptions"))),
        ] {
            assert_eq!(ResourcePath::of(&decode(path).unwrap()), resource, "{path}");
        }
        decode("/%FF").unwrap_err();
        decode("/%2").unwrap_err();
    }

    #[test]
    fn pages_report_whether_there_is_more() {
        let page = PageRange::parse("api-version=2021-05&%24skip=2&$TOP=3").unwrap();
        assert_eq!(page.cut(0..9), (vec![2, 3, 4], true));
        assert_eq!(page.cut(0..5), (vec![2, 3, 4], false));
        assert_eq!(PageRange::parse("").unwrap(), PageRange { skip: 0, top: TOP_MAX });
        assert_eq!(PageRange::parse("$top=999999").unwrap().top, TOP_MAX);
        PageRange::parse("$skip=x").unwrap_err();
    }

    #[test]
    fn names_are_escaped_for_links() {
        assert_eq!(escape("a b/c$d%é"), "a%20b/c$d%25%C3%A9");
    }
}
