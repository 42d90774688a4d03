//! Values during evaluation, and the operators on them.
//!
//! Unknown is one value. It results from a missing property, NULL, incompatible types, a division by zero, and numbers
//! or strings out of bounds. It propagates through every operator except IS NULL, AND and OR.

use std::borrow::Cow;
use std::cmp::Ordering;

use bytes::Bytes;
use uuid::Uuid;

use crate::limits;
use crate::message::Value;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand<'a> {
    Unknown,
    Bool(bool),
    /// Between the smallest `i64` and the largest `u64`.
    Int(i128),
    Float(f64),
    Text(Cow<'a, str>),
    Time(i64),
    Uuid([u8; 16]),
    Bytes(&'a [u8]),
    /// A list or a map: only its existence can be tested.
    Other(&'a Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl<'a> From<&'a Value> for Operand<'a> {
    fn from(value: &'a Value) -> Self {
        if let Some(n) = value.as_int() {
            return Self::Int(n);
        }
        if let Some(n) = value.as_float() {
            return Self::Float(n);
        }
        match value {
            Value::Null => Self::Unknown,
            Value::Bool(b) => Self::Bool(*b),
            Value::String(text) => Self::Text(text.as_str().into()),
            Value::Bytes(bytes) => Self::Bytes(bytes),
            Value::Time(ms) => Self::Time(*ms),
            Value::Uuid(id) => Self::Uuid(*id),
            other => Self::Other(other),
        }
    }
}

impl From<Option<bool>> for Operand<'_> {
    fn from(truth: Option<bool>) -> Self {
        truth.map_or(Self::Unknown, Self::Bool)
    }
}

impl<'a> Operand<'a> {
    fn int(n: Option<i128>) -> Self {
        let fits = |n: &i128| (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(n);
        n.filter(fits).map_or(Self::Unknown, Self::Int)
    }

    /// The value as a condition; only a Boolean is one.
    pub(super) fn truth(&self) -> Option<bool> {
        match self {
            Self::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// The value as a floating-point number, widened as C# widens integers.
    fn float(&self) -> Option<f64> {
        match self {
            Self::Int(n) => Some(*n as f64),
            Self::Float(n) => Some(*n),
            _ => None,
        }
    }

    pub(super) fn compare(&self, how: Comparison, other: &Self) -> Option<bool> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(how.holds(a.cmp(b))),
            (Self::Text(a), Self::Text(b)) => Some(how.holds(a.cmp(b))),
            (Self::Time(a), Self::Time(b)) => Some(how.holds(a.cmp(b))),
            (Self::Bool(a), Self::Bool(b)) => how.equality(a == b),
            (Self::Uuid(a), Self::Uuid(b)) => how.equality(a == b),
            (Self::Bytes(a), Self::Bytes(b)) => how.equality(a == b),
            (a, b) => {
                let (a, b) = (a.float()?, b.float()?);
                // NaN is unequal to everything and has no order.
                Some(
                    a.partial_cmp(&b).map_or(how == Comparison::NotEqual, |order| how.holds(order)),
                )
            }
        }
    }

    pub(super) fn calculate(self, how: Arithmetic, other: Self) -> Self {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Self::int(match how {
                Arithmetic::Add => a.checked_add(b),
                Arithmetic::Subtract => a.checked_sub(b),
                Arithmetic::Multiply => a.checked_mul(b),
                Arithmetic::Divide => a.checked_div(b),
                Arithmetic::Remainder => a.checked_rem(b),
            }),
            (Self::Text(a), Self::Text(b))
                if how == Arithmetic::Add && a.len() + b.len() <= limits::SQL_TEXT_BYTES_MAX =>
            {
                Self::Text(a + b)
            }
            (a, b) => match (a.float(), b.float()) {
                (Some(a), Some(b)) => Self::Float(match how {
                    Arithmetic::Add => a + b,
                    Arithmetic::Subtract => a - b,
                    Arithmetic::Multiply => a * b,
                    Arithmetic::Divide => a / b,
                    Arithmetic::Remainder => a % b,
                }),
                _ => Self::Unknown,
            },
        }
    }

    /// Applies a sign to a number.
    pub(super) fn signed(self, minus: bool) -> Self {
        match self {
            Self::Int(n) => Self::int(if minus { n.checked_neg() } else { Some(n) }),
            Self::Float(n) => Self::Float(if minus { -n } else { n }),
            _ => Self::Unknown,
        }
    }

    /// The value as text for a field of the message.
    pub(super) fn to_text(&self) -> Option<String> {
        Some(match self {
            Self::Text(text) => text.to_string(),
            Self::Bool(b) => b.to_string(),
            Self::Int(n) => n.to_string(),
            Self::Float(n) => n.to_string(),
            Self::Uuid(id) => Uuid::from_bytes(*id).to_string(),
            Self::Unknown | Self::Time(_) | Self::Bytes(_) | Self::Other(_) => return None,
        })
    }

    /// A copy that does not borrow from the message; `None` for a value that no field can hold.
    pub(super) fn detached(self) -> Option<Operand<'static>> {
        Some(match self {
            Self::Unknown => Operand::Unknown,
            Self::Bool(b) => Operand::Bool(b),
            Self::Int(n) => Operand::Int(n),
            Self::Float(n) => Operand::Float(n),
            Self::Text(text) => Operand::Text(text.into_owned().into()),
            Self::Uuid(id) => Operand::Uuid(id),
            Self::Time(_) | Self::Bytes(_) | Self::Other(_) => return None,
        })
    }

    /// The value as a property that replaces `before`: a number keeps its width if it fits.
    pub(super) fn to_value(&self, before: Option<&Value>) -> Value {
        match self {
            Self::Unknown => Value::Null,
            Self::Bool(b) => Value::Bool(*b),
            Self::Int(n) => before.and_then(|before| keep_width(*n, before)).unwrap_or_else(|| {
                i64::try_from(*n).map_or_else(|_| Value::U64(*n as u64), Value::I64)
            }),
            Self::Float(n) => match before {
                Some(Value::F32(_)) => Value::F32(*n as f32),
                _ => Value::F64(*n),
            },
            Self::Text(text) => Value::String(text.to_string()),
            Self::Time(ms) => Value::Time(*ms),
            Self::Uuid(id) => Value::Uuid(*id),
            Self::Bytes(bytes) => Value::Bytes(Bytes::copy_from_slice(bytes)),
            Self::Other(value) => (*value).clone(),
        }
    }
}

/// Converts an integer to the type of the previous number, as C#'s implicit conversions do, if nothing is lost.
fn keep_width(n: i128, before: &Value) -> Option<Value> {
    match before {
        Value::I8(_) => n.try_into().ok().map(Value::I8),
        Value::I16(_) => n.try_into().ok().map(Value::I16),
        Value::I32(_) => n.try_into().ok().map(Value::I32),
        Value::U8(_) => n.try_into().ok().map(Value::U8),
        Value::U16(_) => n.try_into().ok().map(Value::U16),
        Value::U32(_) => n.try_into().ok().map(Value::U32),
        Value::U64(_) => n.try_into().ok().map(Value::U64),
        Value::F32(_) => Some(Value::F32(n as f32)),
        Value::F64(_) => Some(Value::F64(n as f64)),
        _ => None,
    }
}

impl Comparison {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }

    /// For types without an order.
    fn equality(self, equal: bool) -> Option<bool> {
        match self {
            Self::Equal => Some(equal),
            Self::NotEqual => Some(!equal),
            _ => None,
        }
    }
}
