//! Metadata of a message in the query and in `malote-…` headers. The body of the request is the body of the message.

use axum::http::{HeaderMap, header};
use malote_model::Value;
use malote_wire_native::message::{Moment, NewMessage};

use crate::nearest::nearest;
use crate::problem::{Code, Problem};

/// Metadata of any message.
pub(crate) const NAMES: [&str; 16] = [
    "session",
    "session_from_key",
    "id",
    "dedup_id",
    "key",
    "subject",
    "to",
    "reply_to",
    "reply_to_session",
    "correlation_id",
    "user_id",
    "app_id",
    "delay_ms",
    "at",
    "ttl_ms",
    "priority",
];
/// Additional metadata for a send to a queue.
pub(crate) const CREATE: &str = "create";
/// Additional metadata for a request with a reply.
pub(crate) const TIMEOUT: &str = "timeout_ms";

const HEADER_PREFIX: &str = "malote-";
const PROPERTY_PREFIX: &str = "property-";

/// Whether a missing queue is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Create {
    #[default]
    No,
    Yes,
    Sessions,
}

/// The parsed metadata.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub new: NewMessage,
    pub create: Create,
    pub timeout_ms: Option<u64>,
}

/// Parses the query and the headers. `also` are names allowed in addition to [`NAMES`].
pub(super) fn read_metadata(
    query: &str,
    headers: &HeaderMap,
    also: Option<&'static str>,
) -> Result<Metadata, Problem> {
    let mut said = Metadata::default();
    let mut given: Vec<String> = Vec::new();
    let mut give = |name: &str, value: String, said: &mut Metadata, code: Code| {
        if !NAMES.iter().chain(&also).any(|known| *known == name) {
            return Err(unknown(name, also, code));
        }
        if given.iter().any(|have| have == name) {
            return Err(Problem::new(code, format!("`{name}` is given twice")));
        }
        given.push(name.to_owned());
        set(said, name, value, code)
    };
    let pairs: Vec<(String, String)> = match axum::extract::Query::try_from_uri(&query_uri(query)?)
    {
        Ok(axum::extract::Query(pairs)) => pairs,
        Err(rejection) => return Err(Problem::new(Code::BadQuery, rejection.body_text())),
    };
    for (name, value) in pairs {
        give(&name.replace('-', "_"), value, &mut said, Code::BadQuery)?;
    }
    let mut properties = malote_model::Properties::new();
    let text_of = |name: &str, value: &header::HeaderValue| {
        let wrong = || Problem::new(Code::BadHeader, format!("header {name} is not UTF-8 text"));
        std::str::from_utf8(value.as_bytes()).map(str::to_owned).map_err(|_| wrong())
    };
    for (header, value) in headers {
        let header = header.as_str();
        if let Some(name) = header.strip_prefix(HEADER_PREFIX) {
            let value = text_of(header, value)?;
            match name.strip_prefix(PROPERTY_PREFIX) {
                Some(property) if properties.get(property).is_some() => {
                    return Err(Problem::new(
                        Code::BadHeader,
                        format!("header {header} is given twice"),
                    ));
                }
                Some(property) => properties.set(property, Value::String(value)),
                None => give(&name.replace('-', "_"), value, &mut said, Code::BadHeader)?,
            }
        } else if matches!(header, "traceparent" | "tracestate") && properties.get(header).is_none()
        {
            properties.set(header, Value::String(text_of(header, value)?));
        }
    }
    let text_header = |name: header::HeaderName| {
        headers.get(&name).map(|value| text_of(name.as_str(), value)).transpose()
    };
    said.new.content_type = text_header(header::CONTENT_TYPE)?;
    said.new.content_encoding = text_header(header::CONTENT_ENCODING)?;
    said.new.properties = Some(malote_wire_native::PropertyMap(properties));
    Ok(said)
}

/// A URI with only the query, as the query parser needs it.
fn query_uri(query: &str) -> Result<axum::http::Uri, Problem> {
    let wrong = |_| Problem::new(Code::BadQuery, "the query of the URL is malformed");
    format!("/?{query}").parse().map_err(wrong)
}

fn unknown(name: &str, also: Option<&'static str>, code: Code) -> Problem {
    let known: Vec<&str> = NAMES.into_iter().chain(also).collect();
    let hint = nearest(name, known.iter().copied()).map(|n| format!("; did you mean `{n}`?"));
    let (known, hint) = (known.join(", "), hint.unwrap_or_default());
    let shown: String = name.chars().take(64).collect();
    Problem::new(code, format!("unknown name `{shown}`: use one of {known}{hint}"))
}

fn set(said: &mut Metadata, name: &str, value: String, code: Code) -> Result<(), Problem> {
    fn number<T: std::str::FromStr>(
        name: &str,
        value: &str,
        code: Code,
    ) -> Result<Option<T>, Problem> {
        let why = || format!("`{name}` must be a whole number in its range, not `{value}`");
        value.parse().map(Some).map_err(|_| Problem::new(code, why()))
    }
    let wrong =
        |rule: &str| Err(Problem::new(code, format!("`{name}` must be {rule}, not `{value}`")));
    let Metadata { new, create, timeout_ms } = said;
    match name {
        "session" => new.session = Some(value),
        "id" => new.id = Some(value),
        "dedup_id" => new.dedup_id = Some(value),
        "key" => new.key = Some(value),
        "subject" => new.subject = Some(value),
        "to" => new.to = Some(value),
        "reply_to" => new.reply_to = Some(value),
        "reply_to_session" => new.reply_to_session = Some(value),
        "correlation_id" => new.correlation_id = Some(value),
        "user_id" => new.user_id = Some(value),
        "app_id" => new.app_id = Some(value),
        "delay_ms" => new.delay_ms = number(name, &value, code)?,
        "ttl_ms" => new.ttl_ms = number(name, &value, code)?,
        "priority" => new.priority = number(name, &value, code)?,
        "at" => match malote_wire_native::text::moment_of(&value) {
            Some(at) => new.at = Some(Moment(at)),
            None => return wrong("milliseconds since 1970 or an RFC 3339 time"),
        },
        "session_from_key" => match value.as_str() {
            "true" => new.session_from_key = true,
            "false" => new.session_from_key = false,
            _ => return wrong("true or false"),
        },
        TIMEOUT => *timeout_ms = number(name, &value, code)?,
        CREATE => match value.as_str() {
            "true" => *create = Create::Yes,
            "sessions" => *create = Create::Sessions,
            "false" => *create = Create::No,
            _ => return wrong("true, sessions or false"),
        },
        // Handled by `read_metadata`.
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use malote_model::{SessionId, When};

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap()));
        HeaderMap::<header::HeaderValue>::from_iter::<Vec<(header::HeaderName, _)>>(pairs.collect())
    }

    #[test]
    fn metadata_comes_by_query_or_header() {
        let pairs =
            [("malote-session", "a b"), ("malote-property-x-y", "1"), ("traceparent", "00-1")];
        let query = "id=1%2F2&delay-ms=5&priority=3&create=true";
        let said = read_metadata(query, &headers(&pairs), Some(CREATE)).unwrap();
        assert_eq!(said.create, Create::Yes);
        let message = said.new.into_message().unwrap();
        assert_eq!(message.message_id.as_deref(), Some("1/2"));
        assert_eq!(message.session.as_ref().map(SessionId::as_str), Some("a b"));
        assert_eq!((message.when, message.priority), (When::Delay(5), 3));
        assert_eq!(message.properties.get("x-y"), Some(&Value::String("1".into())));
        assert_eq!(message.properties.get("traceparent"), Some(&Value::String("00-1".into())));
    }

    #[test]
    fn unknown_and_wrong_metadata_is_refused_with_a_hint() {
        for (query, says) in [
            ("sesion=a", "did you mean `session`?"),
            ("delay_ms=-1", "must be a whole number"),
            ("priority=256", "must be a whole number"),
            ("at=soon", "RFC 3339"),
            ("create=1", "true, sessions or false"),
            ("id=1&id=2", "given twice"),
        ] {
            let problem = read_metadata(query, &HeaderMap::new(), Some(CREATE)).unwrap_err();
            assert!(problem.detail().contains(says), "{query}: {}", problem.detail());
        }
        let problem = read_metadata("", &headers(&[("malote-sesion", "a")]), None).unwrap_err();
        assert_eq!(problem.code(), Code::BadHeader);
        let problem = read_metadata("id=1", &headers(&[("malote-id", "a")]), None).unwrap_err();
        assert!(problem.detail().contains("given twice"));
        let problem = read_metadata("create=true", &HeaderMap::new(), None).unwrap_err();
        assert!(problem.detail().starts_with("unknown name `create`"));
        let problem = read_metadata("timeout-ms=x", &HeaderMap::new(), Some(TIMEOUT)).unwrap_err();
        assert!(problem.detail().contains("whole number"));
    }
}
