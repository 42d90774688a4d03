//! What a request is about: its path and its page. Reserved segments may be written in any case.

use super::error::{AdminError, Answer};

/// Entries of one page.
const TOP_MAX: usize = 100;

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resource {
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

impl Resource {
    pub fn parse(path: &str) -> Answer<Resource> {
        let path = unescape(path.trim_matches('/'))
            .ok_or_else(|| AdminError::bad("The path of the request is not readable."))?;
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let is = |segment: &str, name: &str| segment.eq_ignore_ascii_case(name);
        let own = |text: &str| text.to_owned();
        Ok(match &segments[..] {
            [only] if is(only, "$namespaceinfo") => Resource::Namespace,
            [first, second] if is(first, "$resources") && is(second, "queues") => Resource::Queues,
            [first, second] if is(first, "$resources") && is(second, "topics") => Resource::Topics,
            [topic @ .., word, subscription, rules, name]
                if !topic.is_empty() && is(word, "subscriptions") && is(rules, "rules") =>
            {
                let (subscription, name) = (own(subscription), own(name));
                Resource::Rule { topic: topic.join("/"), subscription, name }
            }
            [topic @ .., word, subscription, rules]
                if !topic.is_empty() && is(word, "subscriptions") && is(rules, "rules") =>
            {
                Resource::Rules { topic: topic.join("/"), subscription: own(subscription) }
            }
            [topic @ .., word, name] if !topic.is_empty() && is(word, "subscriptions") => {
                Resource::Subscription { topic: topic.join("/"), name: own(name) }
            }
            [topic @ .., word] if !topic.is_empty() && is(word, "subscriptions") => {
                Resource::Subscriptions { topic: topic.join("/") }
            }
            name => Resource::Entity(name.join("/")),
        })
    }
}

/// `$skip` and `$top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    pub skip: usize,
    pub top: usize,
}

impl Page {
    pub fn parse(query: &str) -> Answer<Page> {
        let number = |name: &str| match value(query, name) {
            None => Ok(None),
            Some(text) => match text.parse::<usize>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(AdminError::property(name, &text, "a number")),
            },
        };
        let top = number("$top")?.unwrap_or(TOP_MAX);
        Ok(Page { skip: number("$skip")?.unwrap_or(0), top: top.clamp(1, TOP_MAX) })
    }

    /// The entries of this page, and whether there are more.
    pub fn cut<T>(self, all: impl IntoIterator<Item = T>) -> (Vec<T>, bool) {
        let mut rest = all.into_iter().skip(self.skip);
        let page = rest.by_ref().take(self.top).collect();
        (page, rest.next().is_some())
    }
}

/// A value of the query, by its name in any case.
pub(super) fn value(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        unescape(key)?.eq_ignore_ascii_case(name).then(|| unescape(value))?
    })
}

/// Percent-decoding; none if it is not UTF-8.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(rest.next()?)? * 16 + digit(rest.next()?)?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Percent-encoding of all that a path does not hold as it is; slashes stay.
pub(super) fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/$!'()*,;=:@".contains(&byte);
    let escaped = text.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_entities_in_any_case() {
        let own = |text: &str| text.to_owned();
        for (path, resource) in [
            ("/$namespaceinfo", Resource::Namespace),
            ("/$Resources/Queues", Resource::Queues),
            ("/$resources/topics/", Resource::Topics),
            ("/orders", Resource::Entity(own("orders"))),
            ("/a%2Fb", Resource::Entity(own("a/b"))),
            ("/a/b/c", Resource::Entity(own("a/b/c"))),
            ("/t/subscriptions", Resource::Subscriptions { topic: own("t") }),
            ("/a/t/Subscriptions/s", Resource::Subscription { topic: own("a/t"), name: own("s") }),
            (
                "/t/Subscriptions/s/rules",
                Resource::Rules { topic: own("t"), subscription: own("s") },
            ),
            (
                "/t/SUBSCRIPTIONS/s/RULES/%24Default",
                Resource::Rule { topic: own("t"), subscription: own("s"), name: own("$Default") },
            ),
            ("/subscriptions", Resource::Entity(own("subscriptions"))),
        ] {
            assert_eq!(Resource::parse(path), Ok(resource), "{path}");
        }
        Resource::parse("/%FF").unwrap_err();
        Resource::parse("/%2").unwrap_err();
    }

    #[test]
    fn pages_are_cut_and_say_whether_there_is_more() {
        let page = Page::parse("api-version=2021-05&%24skip=2&$TOP=3").unwrap();
        assert_eq!(page.cut(0..9), (vec![2, 3, 4], true));
        assert_eq!(page.cut(0..5), (vec![2, 3, 4], false));
        assert_eq!(Page::parse("").unwrap(), Page { skip: 0, top: TOP_MAX });
        assert_eq!(Page::parse("$top=999999").unwrap().top, TOP_MAX);
        Page::parse("$skip=x").unwrap_err();
    }

    #[test]
    fn names_are_escaped_for_links() {
        assert_eq!(escape("a b/c$d%é"), "a%20b/c$d%25%C3%A9");
    }
}
