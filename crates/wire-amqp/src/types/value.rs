//! Any value, with its type.

use bytes::Bytes;

use super::{Str, Symbol};

/// A value of any AMQP type. The exact type is preserved, because clients check it: an `int` stays an `int`.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs, reason = "the specification's own names")]
pub enum Value {
    #[default]
    Null,
    Bool(bool),
    Ubyte(u8),
    Ushort(u16),
    Uint(u32),
    Ulong(u64),
    Byte(i8),
    Short(i16),
    Int(i32),
    Long(i64),
    Float(f32),
    Double(f64),
    Decimal32([u8; 4]),
    Decimal64([u8; 8]),
    Decimal128([u8; 16]),
    Char(char),
    /// Milliseconds since the Unix epoch.
    Timestamp(i64),
    /// In network byte order.
    Uuid([u8; 16]),
    Binary(Bytes),
    String(Str),
    Symbol(Symbol),
    List(Vec<Value>),
    Map(Map),
    Array(Array),
    Described(Box<Described>),
}

/// A value with a descriptor.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// A number or a symbol.
    pub descriptor: Value,
    pub value: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of `Value`")]
pub enum Kind {
    Null,
    Bool,
    Ubyte,
    Ushort,
    Uint,
    Ulong,
    Byte,
    Short,
    Int,
    Long,
    Float,
    Double,
    Decimal32,
    Decimal64,
    Decimal128,
    Char,
    Timestamp,
    Uuid,
    Binary,
    String,
    Symbol,
    List,
    Map,
    Array,
    Described,
}

/// Keys and values in their original order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Map(pub Vec<(Value, Value)>);

/// Values of one type.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    kind: Kind,
    descriptor: Option<Box<Value>>,
    items: Vec<Value>,
}

impl Value {
    pub fn kind(&self) -> Kind {
        match self {
            Value::Null => Kind::Null,
            Value::Bool(_) => Kind::Bool,
            Value::Ubyte(_) => Kind::Ubyte,
            Value::Ushort(_) => Kind::Ushort,
            Value::Uint(_) => Kind::Uint,
            Value::Ulong(_) => Kind::Ulong,
            Value::Byte(_) => Kind::Byte,
            Value::Short(_) => Kind::Short,
            Value::Int(_) => Kind::Int,
            Value::Long(_) => Kind::Long,
            Value::Float(_) => Kind::Float,
            Value::Double(_) => Kind::Double,
            Value::Decimal32(_) => Kind::Decimal32,
            Value::Decimal64(_) => Kind::Decimal64,
            Value::Decimal128(_) => Kind::Decimal128,
            Value::Char(_) => Kind::Char,
            Value::Timestamp(_) => Kind::Timestamp,
            Value::Uuid(_) => Kind::Uuid,
            Value::Binary(_) => Kind::Binary,
            Value::String(_) => Kind::String,
            Value::Symbol(_) => Kind::Symbol,
            Value::List(_) => Kind::List,
            Value::Map(_) => Kind::Map,
            Value::Array(_) => Kind::Array,
            Value::Described(_) => Kind::Described,
        }
    }

    /// The text of a string or a symbol.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            Value::Symbol(text) => Some(text),
            _ => None,
        }
    }

    /// Any integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        Some(match *self {
            Value::Ubyte(n) => n.into(),
            Value::Ushort(n) => n.into(),
            Value::Uint(n) => n.into(),
            Value::Ulong(n) => i64::try_from(n).ok()?,
            Value::Byte(n) => n.into(),
            Value::Short(n) => n.into(),
            Value::Int(n) => n.into(),
            Value::Long(n) | Value::Timestamp(n) => n,
            _ => return None,
        })
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The items of a list or of an array.
    pub fn as_items(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) => Some(items),
            Value::Array(array) => Some(array.items()),
            _ => None,
        }
    }
}

impl Map {
    /// The value of the first key with this text, whether string or symbol.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(found, _)| found.as_str() == Some(key)).map(|(_, value)| value)
    }

    /// Adds an entry with a symbol key.
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Map {
        self.0.push((Value::Symbol(Symbol::from_static(key)), value.into()));
        self
    }

    /// Adds an entry with a string key.
    pub fn with_string(mut self, key: impl Into<Str>, value: impl Into<Value>) -> Map {
        self.0.push((Value::String(key.into()), value.into()));
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Array {
    /// None if an item has another type. Described items are plain items of an array with a descriptor.
    pub fn new(kind: Kind, items: Vec<Value>) -> Option<Array> {
        let uniform = kind != Kind::Described && items.iter().all(|item| item.kind() == kind);
        uniform.then_some(Array { kind, descriptor: None, items })
    }

    /// Sets the descriptor of the items.
    pub fn described(mut self, descriptor: Value) -> Array {
        self.descriptor = Some(Box::new(descriptor));
        self
    }

    /// The type of the items.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The descriptor of the items.
    pub fn descriptor(&self) -> Option<&Value> {
        self.descriptor.as_deref()
    }

    pub fn items(&self) -> &[Value] {
        &self.items
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident),* $(,)?) => {$(
        impl From<$type> for Value {
            fn from(value: $type) -> Value {
                Value::$variant(value)
            }
        }
    )*};
}
from! {
    bool => Bool, u8 => Ubyte, u16 => Ushort, u32 => Uint, u64 => Ulong, i8 => Byte, i16 => Short, i32 => Int,
    i64 => Long, f32 => Float, f64 => Double, char => Char, Bytes => Binary, Str => String, Symbol => Symbol,
    Map => Map, Array => Array, Vec<Value> => List,
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.into())
    }
}

impl From<Described> for Value {
    fn from(described: Described) -> Value {
        Value::Described(Box::new(described))
    }
}

impl FromIterator<i64> for Array {
    fn from_iter<I: IntoIterator<Item = i64>>(numbers: I) -> Array {
        let items = numbers.into_iter().map(Value::Long).collect();
        Array { kind: Kind::Long, descriptor: None, items }
    }
}

impl FromIterator<Symbol> for Array {
    fn from_iter<I: IntoIterator<Item = Symbol>>(symbols: I) -> Array {
        let items = symbols.into_iter().map(Value::Symbol).collect();
        Array { kind: Kind::Symbol, descriptor: None, items }
    }
}

impl FromIterator<Str> for Array {
    fn from_iter<I: IntoIterator<Item = Str>>(texts: I) -> Array {
        let items = texts.into_iter().map(Value::String).collect();
        Array { kind: Kind::String, descriptor: None, items }
    }
}
