//! The parsed form: a flat list of steps for a stack machine, so that neither evaluation nor drop recurses.

use crate::facts::Facts;
use crate::limits;
use crate::message::{Properties, Value};

use super::like::Like;
use super::operand::{Arithmetic, Comparison, Operand};
use super::system::SystemProperty;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    Unknown,
    Bool(bool),
    Int(u64),
    Float(f64),
    Text(Box<str>),
    /// The index of a parameter.
    Parameter(usize),
    Property(Property),
    /// Replaces the value on the stack, a property name, by the property's value.
    Lookup,
    Exists(Property),
    IsNull {
        negated: bool,
    },
    Compare(Comparison),
    Calculate(Arithmetic),
    Sign {
        minus: bool,
    },
    In {
        count: usize,
        negated: bool,
    },
    Like {
        escape: bool,
        negated: bool,
    },
    LikeFixed {
        like: Box<Like>,
        negated: bool,
    },
    Not,
    /// Jumps to `to`, keeping the value on the stack, if that value decides the result.
    SkipIf {
        decides: bool,
        to: usize,
    },
    And,
    Or,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Property {
    User(Box<str>),
    System(SystemProperty),
}

impl Property {
    pub(super) fn of<'a>(&self, facts: &Facts<'a>) -> Operand<'a> {
        match self {
            Self::User(name) => {
                user(&facts.message.properties, name).map_or(Operand::Unknown, |(_, v)| v.into())
            }
            Self::System(system) => system.of(facts),
        }
    }

    /// Looks up a computed name. The prefixes `sys.` and `user.` are honoured.
    fn named<'a>(name: &str, facts: &Facts<'a>) -> Operand<'a> {
        let scope = |scope: &str| {
            let (before, rest) = name.split_once('.')?;
            before.eq_ignore_ascii_case(scope).then_some(rest)
        };
        if let Some(name) = scope("sys") {
            return SystemProperty::named(name).map_or(Operand::Unknown, |system| system.of(facts));
        }
        let name = scope("user").unwrap_or(name);
        user(&facts.message.properties, name).map_or(Operand::Unknown, |(_, v)| v.into())
    }

    /// A property whose value is null exists.
    fn exists(&self, facts: &Facts<'_>) -> bool {
        match self {
            Self::User(name) => user(&facts.message.properties, name).is_some(),
            Self::System(system) => system.of(facts) != Operand::Unknown,
        }
    }
}

/// A user property: by its exact name, otherwise the first that differs only in case.
pub(super) fn user<'a>(properties: &'a Properties, name: &str) -> Option<(&'a str, &'a Value)> {
    let folded = |text: &str| text.chars().flat_map(char::to_lowercase).eq(fold(name));
    let exact = properties.iter().find(|(have, _)| *have == name);
    exact.or_else(|| properties.iter().find(|(have, _)| folded(have)))
}

fn fold(text: &str) -> impl Iterator<Item = char> {
    text.chars().flat_map(char::to_lowercase)
}

/// Runs a program. Jumps only lead forwards, so the length of the text bounds the work.
pub(super) fn run<'a>(
    ops: &'a [Op],
    parameters: &'a [(String, Value)],
    facts: &Facts<'a>,
) -> Operand<'a> {
    let mut stack: Vec<Operand<'a>> = Vec::with_capacity(8);
    let mut next = 0;
    while let Some(op) = ops.get(next) {
        next += 1;
        if let Op::SkipIf { decides, to } = *op {
            if stack.last().and_then(Operand::truth) == Some(decides) {
                next = to;
            }
            continue;
        }
        let result = step(op, &mut stack, parameters, facts);
        stack.push(result);
    }
    pop(&mut stack)
}

/// The parser guarantees that every operator has its operands.
fn pop<'a>(stack: &mut Vec<Operand<'a>>) -> Operand<'a> {
    stack.pop().unwrap_or(Operand::Unknown)
}

fn step<'a>(
    op: &'a Op,
    stack: &mut Vec<Operand<'a>>,
    parameters: &'a [(String, Value)],
    facts: &Facts<'a>,
) -> Operand<'a> {
    match op {
        Op::Unknown | Op::SkipIf { .. } => Operand::Unknown,
        Op::Bool(b) => Operand::Bool(*b),
        Op::Int(n) => Operand::Int((*n).into()),
        Op::Float(n) => Operand::Float(*n),
        Op::Text(text) => Operand::Text((&**text).into()),
        Op::Parameter(index) => {
            parameters.get(*index).map_or(Operand::Unknown, |(_, value)| value.into())
        }
        Op::Property(property) => property.of(facts),
        Op::Lookup => match pop(stack) {
            Operand::Text(name) => Property::named(&name, facts),
            _ => Operand::Unknown,
        },
        Op::Exists(property) => Operand::Bool(property.exists(facts)),
        Op::IsNull { negated } => Operand::Bool((pop(stack) == Operand::Unknown) != *negated),
        Op::Compare(how) => {
            let (right, left) = (pop(stack), pop(stack));
            left.compare(*how, &right).into()
        }
        Op::Calculate(how) => {
            let (right, left) = (pop(stack), pop(stack));
            left.calculate(*how, right)
        }
        Op::Sign { minus } => pop(stack).signed(*minus),
        Op::In { count, negated } => {
            let items = stack.split_off(stack.len().saturating_sub(*count));
            let left = pop(stack);
            is_in(&left, &items).map(|found| found != *negated).into()
        }
        Op::Like { escape, negated } => {
            let escape = escape.then(|| pop(stack));
            let (pattern, left) = (pop(stack), pop(stack));
            like(&left, &pattern, escape.as_ref()).map(|found| found != *negated).into()
        }
        Op::LikeFixed { like, negated } => match pop(stack) {
            Operand::Text(text) => Operand::Bool(like.matches(&text) != *negated),
            _ => Operand::Unknown,
        },
        Op::Not => pop(stack).truth().map(|truth| !truth).into(),
        Op::And => {
            let (right, left) = (pop(stack).truth(), pop(stack).truth());
            let either = |truth| left == Some(truth) || right == Some(truth);
            if either(false) { Some(false) } else { left.and(right) }.into()
        }
        Op::Or => {
            let (right, left) = (pop(stack).truth(), pop(stack).truth());
            let either = |truth| left == Some(truth) || right == Some(truth);
            if either(true) { Some(true) } else { left.and(right) }.into()
        }
    }
}

/// Only an unknown left side makes the result unknown; an unknown item, or one of another type, is not equal.
fn is_in(left: &Operand<'_>, items: &[Operand<'_>]) -> Option<bool> {
    if *left == Operand::Unknown {
        return None;
    }
    Some(items.iter().any(|item| left.compare(Comparison::Equal, item) == Some(true)))
}

fn like(left: &Operand<'_>, pattern: &Operand<'_>, escape: Option<&Operand<'_>>) -> Option<bool> {
    let (Operand::Text(left), Operand::Text(pattern)) = (left, pattern) else { return None };
    if pattern.len() > limits::SQL_LIKE_BYTES_MAX {
        return None;
    }
    let escape = match escape {
        None => None,
        Some(Operand::Text(escape)) => {
            let mut chars = escape.chars();
            Some(chars.next().filter(|_| chars.next().is_none())?)
        }
        Some(_) => return None,
    };
    Some(Like::new(pattern, escape)?.matches(left))
}
