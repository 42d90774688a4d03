//! SQL actions: `SET name = value` and `REMOVE name`, applied in order to a copy of the message.

use std::fmt;

use crate::facts::Facts;
use crate::ids::Timestamp;
use crate::message::{Message, Value};
use crate::refusal::Refusal;

use super::lex::SyntaxError;
use super::operand::Operand;
use super::parse::Parser;
use super::program::{Op, Property, run, user};
use super::system::SystemProperty;

/// The action of a rule: its text and its parsed form.
#[derive(Clone, PartialEq)]
pub struct SqlAction {
    text: String,
    parameters: Vec<(String, Value)>,
    statements: Box<[Statement]>,
}

#[derive(Clone, Debug, PartialEq)]
enum Statement {
    Set(Property, Box<[Op]>),
    Remove(Property),
}

impl SqlAction {
    /// Parses an action. `parameters` are the values of the names that begin with `@` in the text.
    pub fn new(text: &str, parameters: Vec<(String, Value)>) -> Result<Self, Refusal> {
        let statements = super::parse("action", text, &parameters, statements)?;
        Ok(Self { text: text.to_owned(), parameters, statements })
    }

    /// The text as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The values of the parameters in the text.
    pub fn parameters(&self) -> &[(String, Value)] {
        &self.parameters
    }

    /// Changes the message. Each statement sees the result of the earlier ones.
    ///
    /// It cannot fail: a value that a field cannot hold leaves the field unchanged. The properties may exceed the size
    /// limit of a message; the caller checks that when it stores the message.
    pub fn apply(&self, message: &mut Message, at: Timestamp) {
        for statement in &self.statements {
            match statement {
                Statement::Set(Property::User(name), program) => {
                    let (name, value) = self.user_value(message, name, program, at);
                    message.properties.set(name, value);
                }
                Statement::Set(Property::System(system), program) => {
                    let value = run(program, &self.parameters, &Facts::new(message, at));
                    let Some(value) = value.detached() else { continue };
                    system.set(message, &value);
                }
                Statement::Remove(Property::User(name)) => {
                    let found = user(&message.properties, name).map(|(have, _)| have.to_owned());
                    if let Some(have) = found {
                        message.properties.remove(&have);
                    }
                }
                Statement::Remove(Property::System(system)) => {
                    system.set(message, &Operand::Unknown);
                }
            }
        }
    }

    /// The property to set, and its value. An existing property keeps its spelling. A plain copy keeps its exact type.
    fn user_value(
        &self,
        message: &Message,
        name: &str,
        program: &[Op],
        at: Timestamp,
    ) -> (String, Value) {
        let (name, before) = match user(&message.properties, name) {
            Some((have, before)) => (have, Some(before)),
            None => (name, None),
        };
        if let [Op::Property(Property::User(from))] = program
            && let Some((_, value)) = user(&message.properties, from)
        {
            return (name.to_owned(), value.clone());
        }
        let value = run(program, &self.parameters, &Facts::new(message, at));
        (name.to_owned(), value.to_value(before))
    }
}

impl fmt::Debug for SqlAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqlAction({:?})", self.text)
    }
}

fn statements(mut parser: Parser<'_>) -> Result<Box<[Statement]>, SyntaxError> {
    let mut statements = Vec::new();
    while !parser.at_end() {
        if parser.word("SET") {
            let property = settable(&mut parser, false)?;
            parser.need("=")?;
            statements.push(Statement::Set(property, parser.value_program()?));
        } else if parser.word("REMOVE") {
            statements.push(Statement::Remove(settable(&mut parser, true)?));
        } else {
            return Err(parser.expected("SET or REMOVE"));
        }
        // Both separators are optional.
        let _ = parser.symbol(";") || parser.symbol(",");
    }
    if statements.is_empty() {
        return Err(parser.expected("SET or REMOVE"));
    }
    Ok(statements.into())
}

fn settable(parser: &mut Parser<'_>, remove: bool) -> Result<Property, SyntaxError> {
    let at = parser.at();
    let property = parser.property()?;
    match property {
        Property::System(SystemProperty::MessageId) if remove => {
            Err(SyntaxError { at, what: "a message cannot be without its id: set another".into() })
        }
        Property::System(system) if !system.settable() => Err(SyntaxError {
            at,
            what: "this system property cannot be changed by an action".into(),
        }),
        property => Ok(property),
    }
}
