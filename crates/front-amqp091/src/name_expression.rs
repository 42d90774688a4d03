//! Regular expressions over names, in permissions and policies.
//!
//! RabbitMQ takes Perl-compatible expressions and searches for them anywhere in a name. The expressions here have no
//! look-around and no back-references; in return, matching takes linear time. Such an expression is refused when it is
//! set, not when it is used.

use std::fmt;
use std::str::FromStr;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::limits;

/// A regular expression that is searched for in a name.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NameExpression {
    text: String,
    matcher: NameMatcher,
}

#[derive(Clone)]
enum NameMatcher {
    /// The usual pattern `.*`, without the cost of an expression.
    Everything,
    Expression(Regex),
}

impl NameExpression {
    pub fn new(text: &str) -> Result<Self, BadExpression> {
        let bad = |why: String| BadExpression { text: text.chars().take(64).collect(), why };
        if text.len() > limits::PATTERN_BYTES_MAX {
            return Err(bad(format!("it is longer than {} bytes", limits::PATTERN_BYTES_MAX)));
        }
        let matcher = match text {
            "" | ".*" | "^.*" | "^.*$" => NameMatcher::Everything,
            text => {
                let built = RegexBuilder::new(text)
                    .size_limit(limits::PATTERN_PROGRAM_BYTES_MAX)
                    .dfa_size_limit(limits::PATTERN_PROGRAM_BYTES_MAX)
                    .build();
                NameMatcher::Expression(built.map_err(|error| bad(reason(&error)))?)
            }
        };
        Ok(Self { text: text.to_owned(), matcher })
    }

    /// The expression that every name matches.
    pub fn everything() -> Self {
        Self { text: ".*".to_owned(), matcher: NameMatcher::Everything }
    }

    /// Whether the expression is found in the name. The empty expression is found in every name.
    pub fn matches(&self, name: &str) -> bool {
        match &self.matcher {
            NameMatcher::Everything => true,
            NameMatcher::Expression(expression) => expression.is_match(name),
        }
    }

    /// Whether a permission with this expression covers the name. The empty expression covers only the empty name.
    pub fn permits(&self, name: &str) -> bool {
        if self.text.is_empty() { name.is_empty() } else { self.matches(name) }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The last line of a syntax error; those before it draw the expression.
fn reason(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
        error => {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            last.trim_start_matches("error: ").to_owned()
        }
    }
}

/// An expression that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a usable regular expression: {why}")]
pub struct BadExpression {
    pub text: String,
    pub why: String,
}

impl FromStr for NameExpression {
    type Err = BadExpression;

    fn from_str(text: &str) -> Result<Self, BadExpression> {
        Self::new(text)
    }
}

impl TryFrom<String> for NameExpression {
    type Error = BadExpression;

    fn try_from(text: String) -> Result<Self, BadExpression> {
        Self::new(&text)
    }
}

impl From<NameExpression> for String {
    fn from(pattern: NameExpression) -> String {
        pattern.text
    }
}

impl PartialEq for NameExpression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for NameExpression {}

impl fmt::Display for NameExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for NameExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NameExpression({:?})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_searched_for_and_the_empty_permission_covers_nothing() {
        let found = |pattern: &str, name: &str| NameExpression::new(pattern).unwrap().matches(name);
        for (pattern, name, expected) in [
            ("^a", "abc", true),
            ("^a", "cba", false),
            ("b", "abc", true),
            ("^(amq\\.gen.*|amq\\.default)$", "amq.default", true),
            ("^(amq\\.gen.*|amq\\.default)$", "amq.topic", false),
            ("", "x", true),
            (".*", "", true),
            ("^$", "x", false),
        ] {
            assert_eq!(found(pattern, name), expected, "{pattern} {name}");
        }
        let none = NameExpression::new("").unwrap();
        assert!(!none.permits("x") && none.permits(""));
        assert!(NameExpression::new(".*").unwrap().permits("x"));
    }

    #[test]
    fn hostile_expressions_are_refused_or_take_linear_time() {
        for hostile in ["(", "a{1000000}", "(?=a)b", "(a)\\1", &"a".repeat(5_000), &"(".repeat(500)]
        {
            assert!(NameExpression::new(hostile).is_err(), "{hostile}");
        }
        let nested = "((((((((a{50}){50}){50}){50}){50}){50}){50}){50})";
        assert_eq!(NameExpression::new(nested).unwrap_err().why, "it is too large");
        let backtracks = NameExpression::new("^(a+)+$").unwrap();
        assert!(!backtracks.matches(&format!("{}b", "a".repeat(10_000))));
    }

    #[test]
    fn an_error_says_what_is_wrong() {
        let error = NameExpression::new("orders(").unwrap_err().to_string();
        assert_eq!(error, "`orders(` is not a usable regular expression: unclosed group");
        let error = NameExpression::new("(?!x)").unwrap_err().to_string();
        assert!(error.contains("look-around"), "{error}");
    }
}
