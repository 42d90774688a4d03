//! A recursive descent parser. Precedence from low to high: OR, AND, NOT, comparisons (one at a time), `+ -`, `* / %`,
//! signs. The depth of parentheses is bounded, and nothing else nests.

use crate::ids::clip;
use crate::limits;
use crate::message::Value;

use super::lex::{SyntaxError, Token, tokens};
use super::like::Like;
use super::operand::{Arithmetic, Comparison};
use super::program::{Op, Property};
use super::system::SystemProperty;

/// What an expression can be used as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExprKind {
    Condition,
    Value,
    /// A property, a parameter or a Boolean constant: known only when it is evaluated.
    Either,
}

/// The kind of a parsed expression, and where it begins.
type ParseResult = Result<(ExprKind, usize), SyntaxError>;

pub(super) struct Parser<'a> {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
    ops: Vec<Op>,
    parameters: &'a [(String, Value)],
}

/// Words that cannot be unquoted property names.
const RESERVED: [&str; 11] =
    ["AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "TRUE", "FALSE"];

const COMPARISONS: [(&str, Comparison); 7] = [
    ("=", Comparison::Equal),
    ("<>", Comparison::NotEqual),
    ("!=", Comparison::NotEqual),
    ("<", Comparison::Less),
    ("<=", Comparison::LessOrEqual),
    (">", Comparison::Greater),
    (">=", Comparison::GreaterOrEqual),
];

impl<'a> Parser<'a> {
    pub(super) fn new(text: &str, parameters: &'a [(String, Value)]) -> Result<Self, SyntaxError> {
        Ok(Self { tokens: tokens(text)?, next: 0, depth: 0, ops: Vec::new(), parameters })
    }

    /// Parses a whole filter.
    pub(super) fn filter(mut self) -> Result<Box<[Op]>, SyntaxError> {
        let part = self.disjunction();
        self.condition(part)?;
        self.end()?;
        Ok(self.ops.into())
    }

    /// Parses the value of a SET.
    pub(super) fn value_program(&mut self) -> Result<Box<[Op]>, SyntaxError> {
        let part = self.sum();
        self.value(part)?;
        Ok(std::mem::take(&mut self.ops).into())
    }

    pub(super) fn at_end(&self) -> bool {
        *self.peek() == Token::End
    }

    pub(super) fn end(&self) -> Result<(), SyntaxError> {
        if self.at_end() { Ok(()) } else { Err(self.expected("the end, or an operator,")) }
    }

    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(_, token)| token)
    }

    /// Where the next token begins.
    pub(super) fn at(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(1, |(at, _)| *at)
    }

    pub(super) fn expected(&self, what: &str) -> SyntaxError {
        SyntaxError {
            at: self.at(),
            what: format!("{what} is expected, not {}", self.peek().shown()),
        }
    }

    pub(super) fn symbol(&mut self, symbol: &str) -> bool {
        let is_it = matches!(self.peek(), Token::Symbol(have) if *have == symbol);
        self.next += usize::from(is_it);
        is_it
    }

    /// Consumes a keyword, in any case.
    pub(super) fn word(&mut self, word: &str) -> bool {
        let is_it = matches!(self.peek(), Token::Word(have) if have.eq_ignore_ascii_case(word));
        self.next += usize::from(is_it);
        is_it
    }

    pub(super) fn need(&mut self, symbol: &str) -> Result<(), SyntaxError> {
        if self.symbol(symbol) { Ok(()) } else { Err(self.expected(&format!("`{symbol}`"))) }
    }

    /// Consumes `NOT` and `word`, if both are next.
    fn negated(&mut self, word: &str) -> bool {
        let from = self.next;
        let both = self.word("NOT") && self.word(word);
        if !both {
            self.next = from;
        }
        both
    }

    fn condition(&self, part: ParseResult) -> Result<(), SyntaxError> {
        match part? {
            (ExprKind::Value, at) => {
                let what = "a condition is expected, not a value: compare it with something".into();
                Err(SyntaxError { at, what })
            }
            _ => Ok(()),
        }
    }

    fn value(&self, part: ParseResult) -> Result<usize, SyntaxError> {
        match part? {
            (ExprKind::Condition, at) => {
                Err(SyntaxError { at, what: "a value is expected, not a condition".into() })
            }
            (_, at) => Ok(at),
        }
    }

    fn disjunction(&mut self) -> ParseResult {
        let first = self.conjunction()?;
        let mut kind = first.0;
        while self.word("OR") {
            self.condition(Ok((kind, first.1)))?;
            let skip = self.skip();
            let right = self.conjunction();
            self.condition(right)?;
            self.ops.push(Op::Or);
            self.land(skip, true);
            kind = ExprKind::Condition;
        }
        Ok((kind, first.1))
    }

    fn conjunction(&mut self) -> ParseResult {
        let first = self.negation()?;
        let mut kind = first.0;
        while self.word("AND") {
            self.condition(Ok((kind, first.1)))?;
            let skip = self.skip();
            let right = self.negation();
            self.condition(right)?;
            self.ops.push(Op::And);
            self.land(skip, false);
            kind = ExprKind::Condition;
        }
        Ok((kind, first.1))
    }

    /// Reserves a step whose target is set once the right side is parsed.
    fn skip(&mut self) -> usize {
        self.ops.push(Op::Unknown);
        self.ops.len() - 1
    }

    /// Sets the reserved step to jump here if the left side alone decides the result.
    fn land(&mut self, skip: usize, decides: bool) {
        let to = self.ops.len();
        if let Some(op) = self.ops.get_mut(skip) {
            *op = Op::SkipIf { decides, to };
        }
    }

    fn negation(&mut self) -> ParseResult {
        let at = self.at();
        let mut nots = 0;
        while self.word("NOT") {
            nots += 1;
        }
        let part = self.comparison();
        if nots == 0 {
            return part;
        }
        self.condition(part)?;
        // NOT NOT x is x, also if x is unknown.
        self.ops.push(Op::Not);
        if nots % 2 == 0 {
            self.ops.push(Op::Not);
        }
        Ok((ExprKind::Condition, at))
    }

    fn comparison(&mut self) -> ParseResult {
        let left = self.sum()?;
        let at = left.1;
        let comparison =
            COMPARISONS.iter().find(|(symbol, _)| *self.peek() == Token::Symbol(symbol));
        if let Some((_, how)) = comparison {
            self.next += 1;
            self.value(Ok(left))?;
            let right = self.sum();
            self.value(right)?;
            self.ops.push(Op::Compare(*how));
        } else if self.word("IS") {
            self.value(Ok(left))?;
            let negated = self.word("NOT");
            if !self.word("NULL") {
                return Err(self.expected(if negated { "NULL" } else { "NULL or NOT NULL" }));
            }
            self.ops.push(Op::IsNull { negated });
        } else if let Some(negated) = self.maybe_negated("IN") {
            self.value(Ok(left))?;
            self.list(negated)?;
        } else if let Some(negated) = self.maybe_negated("LIKE") {
            self.value(Ok(left))?;
            self.like(negated)?;
        } else {
            return Ok(left);
        }
        Ok((ExprKind::Condition, at))
    }

    fn maybe_negated(&mut self, word: &str) -> Option<bool> {
        if self.word(word) {
            return Some(false);
        }
        self.negated(word).then_some(true)
    }

    fn list(&mut self, negated: bool) -> Result<(), SyntaxError> {
        self.need("(")?;
        let mut count = 0;
        loop {
            let item = self.sum();
            self.value(item)?;
            count += 1;
            if !self.symbol(",") {
                break;
            }
        }
        if !self.symbol(")") {
            return Err(self.expected("`,` or `)`"));
        }
        self.ops.push(Op::In { count, negated });
        Ok(())
    }

    /// A constant pattern is compiled once.
    fn like(&mut self, negated: bool) -> Result<(), SyntaxError> {
        let from = self.ops.len();
        let pattern = self.sum();
        let pattern_at = self.value(pattern)?;
        let has_escape = self.word("ESCAPE");
        if has_escape {
            let escape = self.sum();
            let at = self.value(escape)?;
            if let Some(Op::Text(text)) = self.ops.last()
                && text.chars().count() != 1
            {
                let what = "an escape character is expected, that is a text of length 1".into();
                return Err(SyntaxError { at, what });
            }
        }
        let fixed = match self.ops.get(from..).unwrap_or_default() {
            [Op::Text(pattern)] => Some(Like::new(pattern, None)),
            [Op::Text(pattern), Op::Text(escape)] => {
                Some(Like::new(pattern, escape.chars().next()))
            }
            _ => None,
        };
        match fixed {
            None => self.ops.push(Op::Like { escape: has_escape, negated }),
            Some(Some(like)) => {
                self.ops.truncate(from);
                self.ops.push(Op::LikeFixed { like: Box::new(like), negated });
            }
            Some(None) => {
                let what = "a pattern is expected that does not end in its escape character".into();
                return Err(SyntaxError { at: pattern_at, what });
            }
        }
        Ok(())
    }

    fn sum(&mut self) -> ParseResult {
        self.operators(&[("+", Arithmetic::Add), ("-", Arithmetic::Subtract)], Self::product)
    }

    fn product(&mut self) -> ParseResult {
        let how =
            [("*", Arithmetic::Multiply), ("/", Arithmetic::Divide), ("%", Arithmetic::Remainder)];
        self.operators(&how, Self::sign)
    }

    /// Parses operators of one precedence, from left to right.
    fn operators(
        &mut self,
        operators: &[(&str, Arithmetic)],
        operand: fn(&mut Self) -> ParseResult,
    ) -> ParseResult {
        let (mut kind, at) = operand(self)?;
        while let Some(&(_, how)) = operators.iter().find(|(symbol, _)| self.symbol(symbol)) {
            self.value(Ok((kind, at)))?;
            let right = operand(self);
            self.value(right)?;
            self.ops.push(Op::Calculate(how));
            kind = ExprKind::Value;
        }
        Ok((kind, at))
    }

    fn sign(&mut self) -> ParseResult {
        let at = self.at();
        let (mut signs, mut minus) = (0, false);
        loop {
            if self.symbol("-") {
                minus = !minus;
            } else if !self.symbol("+") {
                break;
            }
            signs += 1;
        }
        let part = self.primary();
        if signs == 0 {
            return part;
        }
        self.value(part)?;
        self.ops.push(Op::Sign { minus });
        Ok((ExprKind::Value, at))
    }

    fn primary(&mut self) -> ParseResult {
        let at = self.at();
        match self.tokens.get(self.next).map(|(_, token)| token.clone()) {
            Some(Token::Text(text)) => self.constant(Op::Text(text.into()), ExprKind::Value),
            Some(Token::Int(n)) => self.constant(Op::Int(n), ExprKind::Value),
            Some(Token::Float(n)) => self.constant(Op::Float(n), ExprKind::Value),
            Some(Token::Parameter(name)) => {
                let given = |(have, _): &(String, Value)| {
                    have.strip_prefix('@').unwrap_or(have).eq_ignore_ascii_case(&name)
                };
                match self.parameters.iter().position(given) {
                    Some(index) => self.constant(Op::Parameter(index), ExprKind::Either),
                    None => {
                        let what = format!("the parameter `@{}` has no value", clip(&name));
                        Err(SyntaxError { at, what })
                    }
                }
            }
            Some(Token::Symbol("(")) => {
                self.next += 1;
                self.depth += 1;
                if self.depth > limits::SQL_DEPTH_MAX {
                    let what = format!("parentheses nest deeper than {}", limits::SQL_DEPTH_MAX);
                    return Err(SyntaxError { at, what });
                }
                let (kind, _) = self.disjunction()?;
                self.depth -= 1;
                if !self.symbol(")") {
                    return Err(self.expected("`)`, or an operator,"));
                }
                Ok((kind, at))
            }
            Some(Token::Word(word)) => self.word_part(&word, at),
            Some(Token::Name(_)) => {
                let property = self.property()?;
                self.ops.push(Op::Property(property));
                Ok((ExprKind::Either, at))
            }
            _ => Err(self.expected("a value or a condition")),
        }
    }

    /// Consumes one token as a whole expression.
    fn constant(&mut self, op: Op, kind: ExprKind) -> ParseResult {
        let at = self.at();
        self.next += 1;
        self.ops.push(op);
        Ok((kind, at))
    }

    /// Parses what begins with a word: a constant, EXISTS, a function or a property.
    fn word_part(&mut self, word: &str, at: usize) -> ParseResult {
        let call = matches!(self.tokens.get(self.next + 1), Some((_, Token::Symbol("("))));
        let is = |name: &str| word.eq_ignore_ascii_case(name);
        let constant = match word {
            _ if is("TRUE") => Some(Op::Bool(true)),
            _ if is("FALSE") => Some(Op::Bool(false)),
            _ if is("NULL") => Some(Op::Unknown),
            _ => None,
        };
        if let Some(op) = constant {
            return self.constant(op, ExprKind::Either);
        }
        if is("EXISTS") {
            self.next += 1;
            self.need("(")?;
            let property = self.property()?;
            self.need(")")?;
            self.ops.push(Op::Exists(property));
            return Ok((ExprKind::Condition, at));
        }
        if call && (is("property") || is("p")) {
            self.next += 2;
            self.depth += 1;
            if self.depth > limits::SQL_DEPTH_MAX {
                let what = format!("calls nest deeper than {}", limits::SQL_DEPTH_MAX);
                return Err(SyntaxError { at, what });
            }
            let name = self.sum();
            self.value(name)?;
            self.depth -= 1;
            self.need(")")?;
            self.ops.push(Op::Lookup);
            return Ok((ExprKind::Either, at));
        }
        if call && is("newid") {
            let what = "newid() is not there: a message must be routed the same way every time";
            return Err(SyntaxError { at, what: what.into() });
        }
        if call {
            let what = format!("`{}` is no function: use property(name)", clip(word));
            return Err(SyntaxError { at, what });
        }
        let property = self.property()?;
        self.ops.push(Op::Property(property));
        Ok((ExprKind::Either, at))
    }

    /// Parses a property name, with an optional scope: `[scope.]name`.
    pub(super) fn property(&mut self) -> Result<Property, SyntaxError> {
        let at = self.at();
        let (first, plain) = self.name()?;
        if !self.symbol(".") {
            return Ok(Property::User(first.into()));
        }
        if plain && first.eq_ignore_ascii_case("user") {
            return Ok(Property::User(self.name()?.0.into()));
        }
        if plain && first.eq_ignore_ascii_case("sys") {
            let at = self.at();
            let (name, _) = self.name()?;
            let unknown = || SyntaxError {
                at,
                what: format!(
                    "`{}` is no system property; there are {}",
                    clip(&name),
                    SystemProperty::names()
                ),
            };
            return SystemProperty::named(&name).map(Property::System).ok_or_else(unknown);
        }
        let what = format!("`sys` or `user` is expected before a dot, not `{}`", clip(&first));
        Err(SyntaxError { at, what })
    }

    /// A name, and whether it is unquoted.
    fn name(&mut self) -> Result<(String, bool), SyntaxError> {
        let reserved = |word: &str| RESERVED.iter().any(|have| have.eq_ignore_ascii_case(word));
        let found = match self.peek() {
            Token::Name(name) => (name.clone(), false),
            Token::Word(word) if !reserved(word) => (word.clone(), true),
            _ => return Err(self.expected("the name of a property")),
        };
        self.next += 1;
        Ok(found)
    }
}
