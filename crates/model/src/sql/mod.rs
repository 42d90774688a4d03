//! SQL filters and actions as Service Bus documents them: "Subscription Rule SQL Filter Syntax" and "SQL Action
//! Syntax".
//!
//! Logic has three values; a filter that evaluates to unknown does not match. Parsing and evaluation are pure and
//! bounded: the text by length, parentheses by depth, LIKE by one pass. `newid()` is not supported, because routing
//! must be repeatable.

mod action;
mod lex;
mod like;
mod operand;
mod parse;
mod program;
mod system;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::facts::Facts;
use crate::limits;
use crate::message::Value;
use crate::refusal::Refusal;

pub use self::action::SqlAction;
use self::lex::SyntaxError;
use self::parse::Parser;
use self::program::{Op, run};

/// A condition on a message: its text and its parsed form.
#[derive(Clone, PartialEq)]
pub struct SqlFilter {
    text: String,
    parameters: Vec<(String, Value)>,
    program: Box<[Op]>,
}

impl SqlFilter {
    /// Parses a filter. `parameters` are the values of the names that begin with `@` in the text.
    pub fn new(text: &str, parameters: Vec<(String, Value)>) -> Result<Self, Refusal> {
        let program = parse("filter", text, &parameters, Parser::filter)?;
        Ok(Self { text: text.to_owned(), parameters, program })
    }

    /// The text as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The values of the parameters in the text.
    pub fn parameters(&self) -> &[(String, Value)] {
        &self.parameters
    }

    /// Evaluates to true, false, or unknown (`None`).
    pub fn evaluate(&self, facts: &Facts<'_>) -> Option<bool> {
        run(&self.program, &self.parameters, facts).truth()
    }

    /// Whether the condition is true; unknown does not match.
    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        self.evaluate(facts) == Some(true)
    }
}

impl fmt::Debug for SqlFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqlFilter({:?})", self.text)
    }
}

/// Checks the limits of every SQL text, then parses it.
fn parse<'a, T>(
    field: &'static str,
    text: &str,
    parameters: &'a [(String, Value)],
    parse: impl FnOnce(Parser<'a>) -> Result<T, SyntaxError>,
) -> Result<T, Refusal> {
    let bad = |why: String| Refusal::BadSpec { field, why };
    if text.chars().take(limits::SQL_CHARS_MAX + 1).count() > limits::SQL_CHARS_MAX {
        return Err(bad(format!("must have at most {} characters", limits::SQL_CHARS_MAX)));
    }
    if parameters.len() > limits::RULE_VALUES_MAX {
        return Err(bad(format!("must have at most {} parameters", limits::RULE_VALUES_MAX)));
    }
    let parsed = Parser::new(text, parameters).and_then(parse);
    parsed.map_err(|SyntaxError { at, what }| bad(format!("at character {at}, {what}")))
}
