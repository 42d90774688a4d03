//! The language of SQL filters and actions, as Service Bus documents it: "Subscription Rule SQL Filter Syntax" and
//! "SQL Action Syntax".
//!
//! Logic has three values; a filter that is unknown does not match. Parsing and evaluating are pure and bounded: the
//! text in length, parentheses in depth, LIKE by one pass. Not there: `newid()`, because routing must be repeatable.

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
use self::lex::Wrong;
use self::parse::Parser;
use self::program::{Op, run};

/// A condition over a message, as written and as parsed.
#[derive(Clone, PartialEq)]
pub struct SqlFilter {
    text: String,
    parameters: Vec<(String, Value)>,
    program: Box<[Op]>,
}

impl SqlFilter {
    /// Parses. `parameters` are the values of the names that begin with `@` in the text.
    pub fn new(text: &str, parameters: Vec<(String, Value)>) -> Result<Self, Refusal> {
        let program = parse("filter", text, &parameters, Parser::filter)?;
        Ok(Self { text: text.to_owned(), parameters, program })
    }

    /// As written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The values of its parameters.
    pub fn parameters(&self) -> &[(String, Value)] {
        &self.parameters
    }

    /// True, false, or unknown (`None`).
    pub fn evaluate(&self, facts: &Facts<'_>) -> Option<bool> {
        run(&self.program, &self.parameters, facts).truth()
    }

    /// Only what is true matches.
    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        self.evaluate(facts) == Some(true)
    }
}

impl fmt::Debug for SqlFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqlFilter({:?})", self.text)
    }
}

/// Checks what every text has to keep, then parses it.
fn parse<'a, T>(
    field: &'static str,
    text: &str,
    parameters: &'a [(String, Value)],
    parse: impl FnOnce(Parser<'a>) -> Result<T, Wrong>,
) -> Result<T, Refusal> {
    let bad = |why: String| Refusal::BadSpec { field, why };
    if text.chars().take(limits::SQL_CHARS_MAX + 1).count() > limits::SQL_CHARS_MAX {
        return Err(bad(format!("must have at most {} characters", limits::SQL_CHARS_MAX)));
    }
    if parameters.len() > limits::RULE_VALUES_MAX {
        return Err(bad(format!("must have at most {} parameters", limits::RULE_VALUES_MAX)));
    }
    let parsed = Parser::new(text, parameters).and_then(parse);
    parsed.map_err(|Wrong { at, what }| bad(format!("at character {at}, {what}")))
}
