//! The lexer. A token records the character at which it begins, for error messages.

use crate::ids::clip;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Begins with a letter: a keyword, or an unquoted property name.
    Word(String),
    /// A property name in `[…]` or `"…"`: never a keyword.
    Name(String),
    Text(String),
    Int(u64),
    Float(f64),
    /// A parameter, without its `@`.
    Parameter(String),
    Symbol(&'static str),
    End,
}

impl Token {
    /// The token as error messages show it.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Word(text) | Self::Name(text) => format!("`{}`", clip(text)),
            Self::Text(text) => format!("the text '{}'", clip(text)),
            Self::Int(n) => n.to_string(),
            Self::Float(n) => n.to_string(),
            Self::Parameter(name) => format!("`@{}`", clip(name)),
            Self::Symbol(symbol) => format!("`{symbol}`"),
            Self::End => "the end".into(),
        }
    }
}

/// An error, and the character where it occurred, counted from 1.
#[derive(Debug, PartialEq)]
pub(super) struct SyntaxError {
    pub at: usize,
    pub what: String,
}

/// Longer symbols first.
const SYMBOLS: [&str; 17] =
    ["<>", "!=", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ",", ".", ";"];

/// The tokens of a text with their positions; the last one is `End`.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, SyntaxError> {
    let chars: Vec<char> = text.chars().collect();
    let mut lexer = Lexer { chars: &chars, next: 0 };
    let mut tokens = Vec::new();
    loop {
        while lexer.peek(0).is_some_and(char::is_whitespace) {
            lexer.next += 1;
        }
        let at = lexer.next + 1;
        let token = lexer.token().map_err(|what| SyntaxError { at, what })?;
        let last = token == Token::End;
        tokens.push((at, token));
        if last {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    chars: &'a [char],
    next: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.next + ahead).copied()
    }

    fn digit(&self, ahead: usize) -> bool {
        self.peek(ahead).is_some_and(|c| c.is_ascii_digit())
    }

    fn token(&mut self) -> Result<Token, String> {
        let Some(c) = self.peek(0) else { return Ok(Token::End) };
        if c == '\'' {
            return self.quoted('\'', "a text").map(Token::Text);
        }
        if c == '[' || c == '"' {
            let close = if c == '[' { ']' } else { '"' };
            return match self.quoted(close, "a name")? {
                name if name.is_empty() => Err("a name is expected, not an empty one".into()),
                name => Ok(Token::Name(name)),
            };
        }
        if c == '@' {
            self.next += 1;
            let name = self.word();
            if name.is_empty() {
                return Err("the name of a parameter is expected after `@`".into());
            }
            return Ok(Token::Parameter(name));
        }
        if c.is_ascii_digit() || (c == '.' && self.digit(1)) {
            return self.number();
        }
        if c.is_alphabetic() || c == '_' {
            return Ok(Token::Word(self.word()));
        }
        let fits =
            |symbol: &&&str| symbol.chars().enumerate().all(|(i, c)| self.peek(i) == Some(c));
        let symbol = SYMBOLS.iter().find(fits);
        let symbol = symbol.ok_or_else(|| format!("`{}` has no meaning here", c.escape_debug()))?;
        self.next += symbol.len();
        Ok(Token::Symbol(symbol))
    }

    fn word(&mut self) -> String {
        let rest = self.chars.get(self.next..).unwrap_or_default();
        let word: String = rest.iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
        self.next += word.chars().count();
        word
    }

    /// Reads up to the closing character. Two closing characters stand for one.
    fn quoted(&mut self, close: char, what: &str) -> Result<String, String> {
        self.next += 1;
        let mut text = String::new();
        loop {
            match self.peek(0) {
                None => return Err(format!("{what} begins that has no closing `{close}`")),
                Some(c) if c == close && self.peek(1) == Some(close) => {
                    text.push(c);
                    self.next += 2;
                }
                Some(c) => {
                    self.next += 1;
                    if c == close {
                        return Ok(text);
                    }
                    text.push(c);
                }
            }
        }
    }

    /// `1894`, `2.5`, `101.5E5`.
    fn number(&mut self) -> Result<Token, String> {
        let from = self.next;
        let mut whole = true;
        self.digits();
        if self.peek(0) == Some('.') && self.digit(1) {
            whole = false;
            self.next += 1;
            self.digits();
        }
        let signed = usize::from(matches!(self.peek(1), Some('+' | '-')));
        if matches!(self.peek(0), Some('e' | 'E')) && self.digit(1 + signed) {
            whole = false;
            self.next += 1 + signed;
            self.digits();
        }
        if self.peek(0).is_some_and(|c| c.is_alphanumeric() || c == '_') {
            return Err("a number is followed by a letter".into());
        }
        let text: String = self.chars.get(from..self.next).unwrap_or_default().iter().collect();
        if whole {
            let too_large = |_| format!("the number {} is too large", clip(&text));
            return text.parse().map(Token::Int).map_err(too_large);
        }
        match text.parse::<f64>() {
            Ok(n) if n.is_finite() => Ok(Token::Float(n)),
            _ => Err(format!("the number {} is too large", clip(&text))),
        }
    }

    fn digits(&mut self) {
        while self.digit(0) {
            self.next += 1;
        }
    }
}
