//! Message attributes: their rules, their MD5, and the message properties that other protocols see.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use malote_model::message::{Message, Native, Value};
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use super::clip;
use crate::refusal::{Code, SqsError};

/// Attributes per message.
pub const ATTRIBUTES_MAX: usize = 10;
const NAME_CHARS_MAX: usize = 256;
/// Digits of a number.
const DIGITS_MAX: usize = 38;
/// A longer text is stored as a property and not in a header field.
const FIELD_BYTES_MAX: usize = malote_model::limits::MESSAGE_ID_BYTES_MAX;
/// Marks native sections that this front end wrote.
const PROTOCOL: u8 = b'Q';
/// Property with the trace header. User attributes cannot start with `AWS.`.
pub const TRACE_HEADER: &str = "AWS.TraceHeader";
/// Attribute that marks a body that SQS cannot carry unencoded.
pub const BODY_ENCODING: &str = "malote-body-encoding";

/// One attribute; binary values are base64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Attribute {
    /// `String`, `Number` or `Binary`, optionally followed by a dot and a custom label.
    pub data_type: String,
    /// For `String` and `Number`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub string_value: Option<String>,
    /// The bytes of a `Binary` attribute, as base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary_value: Option<String>,
}

pub type Attributes = BTreeMap<String, Attribute>;

impl Attribute {
    fn text(data_type: &str, value: impl Into<String>) -> Self {
        Self { data_type: data_type.into(), string_value: Some(value.into()), binary_value: None }
    }

    fn binary(bytes: &[u8]) -> Self {
        let (data_type, value) = ("Binary".into(), STANDARD.encode(bytes));
        Self { data_type, string_value: None, binary_value: Some(value) }
    }

    fn kind(&self) -> &str {
        self.data_type.split('.').next().unwrap_or("")
    }

    fn bytes(&self) -> Vec<u8> {
        match self.kind() {
            "Binary" => {
                STANDARD.decode(self.binary_value.as_deref().unwrap_or("")).unwrap_or_default()
            }
            _ => self.string_value.clone().unwrap_or_default().into_bytes(),
        }
    }

    /// The property value for other protocols; see docs/concepts/model.md.
    fn canonical(&self) -> Value {
        let text = self.string_value.as_deref().unwrap_or("");
        let as_text = || Value::String(text.to_owned());
        match self.data_type.as_str() {
            "String.bool" => text.parse().map_or_else(|_| as_text(), Value::Bool),
            "Number.ms" => text.parse().map_or_else(|_| as_text(), Value::Time),
            _ if self.kind() == "Binary" => Value::Bytes(Bytes::from(self.bytes())),
            _ if self.kind() == "Number" => {
                let (whole, broken) = (text.parse::<i64>(), text.parse::<f64>());
                whole.map(Value::I64).or(broken.map(Value::F64)).unwrap_or_else(|_| as_text())
            }
            _ => as_text(),
        }
    }

    /// The attribute for a property of another protocol.
    fn of(value: &Value) -> Self {
        match value {
            Value::String(text) => Self::text("String", text.as_str()),
            Value::Bytes(bytes) => Self::binary(bytes),
            Value::Bool(truth) => Self::text("String.bool", truth.to_string()),
            Value::Time(ms) => Self::text("Number.ms", ms.to_string()),
            value => match (value.as_int(), value.as_float()) {
                (Some(whole), _) => Self::text("Number", whole.to_string()),
                (_, Some(broken)) if broken.is_finite() => Self::text("Number", broken.to_string()),
                _ => Self::text("String.json", json(value).to_string()),
            },
        }
    }

    /// What is stored in addition to the property: not the value, which may be large.
    fn beside(&self, shown: Option<&Self>) -> Self {
        let values = |of: &Self| (of.string_value.clone(), of.binary_value.clone());
        let known = shown.is_some_and(|shown| values(shown) == values(self));
        let (string_value, binary_value) = if known { (None, None) } else { values(self) };
        Self { data_type: self.data_type.clone(), string_value, binary_value }
    }

    /// Restores a stored attribute, if its property is unchanged.
    fn again(self, shown: &Self, value: &Value) -> Option<Self> {
        let whole = match (&self.string_value, &self.binary_value) {
            (None, None) if self.kind() == shown.kind() => {
                Self { data_type: self.data_type, ..shown.clone() }
            }
            _ => self,
        };
        (whole.canonical() == *value).then_some(whole)
    }

    /// Bytes that count towards the size limit of a message.
    fn size(&self, name: &str) -> usize {
        name.len() + self.data_type.len() + self.bytes().len()
    }
}

/// A value without an SQS type, as JSON.
fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(truth) => (*truth).into(),
        Value::String(text) => text.as_str().into(),
        Value::Bytes(bytes) => STANDARD.encode(bytes).into(),
        Value::Time(ms) => (*ms).into(),
        Value::Uuid(bytes) => uuid::Uuid::from_bytes(*bytes).to_string().into(),
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(pairs) => {
            let pairs = pairs.iter().map(|(name, value)| (name.clone(), json(value)));
            serde_json::Value::Object(pairs.collect())
        }
        number => match (number.as_int().and_then(|n| i64::try_from(n).ok()), number.as_int()) {
            (Some(whole), _) => whole.into(),
            (None, Some(large)) => u64::try_from(large).unwrap_or(u64::MAX).into(),
            _ => number.as_float().into(),
        },
    }
}

/// Checks the attributes of a message.
pub fn check(attributes: &Attributes) -> Result<(), SqsError> {
    if attributes.len() > ATTRIBUTES_MAX {
        let n = attributes.len();
        let text = format!("Number of message attributes [{n}] exceeds the allowed maximum [10].");
        return Err(SqsError::new(Code::InvalidParameterValue, text));
    }
    attributes.iter().try_for_each(|(name, attribute)| check_one(name, attribute))
}

fn check_one(name: &str, attribute: &Attribute) -> Result<(), SqsError> {
    let wrong = |text: String| Err(SqsError::new(Code::InvalidParameterValue, text));
    let lower = name.to_ascii_lowercase();
    // Letters of any alphabet: the service accepts them, contrary to its documentation.
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || !name.chars().all(plain) {
        return wrong(format!(
            "Message (user) attribute name can only contain A-Z, a-z, 0-9, underscore (_), hyphen (-), and period (.) \
             characters and have 1 to 256 of them: '{}'.",
            clip(name, 64)
        ));
    }
    if lower.starts_with("aws.") || lower.starts_with("amazon.") {
        return wrong(format!(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.': '{name}'."
        ));
    }
    if name.starts_with('.') || name.ends_with('.') || name.contains("..") {
        return wrong(format!(
            "Message (user) attribute name can't start or end with a period or have two in a row: '{name}'."
        ));
    }
    let data_type = &attribute.data_type;
    if data_type.is_empty() {
        return wrong(format!(
            "The message attribute '{name}' must contain non-empty message attribute type."
        ));
    }
    if data_type.len() > NAME_CHARS_MAX || data_type.ends_with('.') {
        return wrong(format!(
            "The message attribute '{name}' has an invalid message attribute type."
        ));
    }
    match attribute.kind() {
        "Binary" => {
            let decoded = attribute.binary_value.as_deref().map(|text| STANDARD.decode(text));
            match decoded {
                Some(Ok(bytes)) if !bytes.is_empty() => Ok(()),
                Some(Err(_)) => wrong(format!("The message attribute '{name}' holds no base64.")),
                _ => wrong(empty(name, "Binary")),
            }
        }
        kind @ ("String" | "Number") => {
            let text = attribute.string_value.as_deref().unwrap_or("");
            if text.is_empty() {
                return wrong(empty(name, kind));
            }
            if !text.chars().all(is_allowed) {
                return wrong(format!(
                    "Invalid characters in the value of message attribute '{name}'."
                ));
            }
            if kind == "Number" && !is_number(text) {
                return wrong(format!(
                    "Can't cast the value of message (user) attribute '{name}' to a number."
                ));
            }
            Ok(())
        }
        _ => wrong(format!(
            "The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes \
             is Binary, Number, and String."
        )),
    }
}

fn empty(name: &str, kind: &str) -> String {
    format!("Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'.")
}

fn is_number(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    digits <= DIGITS_MAX && text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Whether a message may contain a character.
pub fn is_allowed(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}')
}

/// Bytes of all attributes, as the limits count them.
pub fn size(attributes: &Attributes) -> usize {
    attributes.iter().map(|(name, attribute)| attribute.size(name)).sum()
}

/// The MD5 of a text, which SDKs verify.
pub fn md5_of(text: &str) -> String {
    HEXLOWER.encode(&Md5::digest(text.as_bytes()))
}

/// The MD5 of attributes, sorted by name; none if there are none.
pub fn md5_of_attributes(attributes: &Attributes) -> Option<String> {
    if attributes.is_empty() {
        return None;
    }
    let mut md5 = Md5::new();
    let put = |md5: &mut Md5, bytes: &[u8]| {
        md5.update(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        md5.update(bytes);
    };
    for (name, attribute) in attributes {
        put(&mut md5, name.as_bytes());
        put(&mut md5, attribute.data_type.as_bytes());
        // The type marker has no length prefix.
        md5.update([if attribute.kind() == "Binary" { 2 } else { 1 }]);
        put(&mut md5, &attribute.bytes());
    }
    Some(HEXLOWER.encode(&md5.finalize()))
}

/// Stores attributes in a message: as properties, plus the labels and spellings that properties cannot express.
pub fn into_message(attributes: &Attributes, message: &mut Message) {
    for (name, attribute) in attributes {
        match (field(message, name), attribute.canonical()) {
            (Some(field), Value::String(text))
                if attribute.data_type == "String" && text.len() <= FIELD_BYTES_MAX =>
            {
                *field = Some(text)
            }
            (_, value) => message.properties.set(name.as_str(), value),
        }
    }
    let shown = of_canonical(message);
    let differs = attributes.iter().filter(|(name, attribute)| shown.get(*name) != Some(attribute));
    let spelled: Attributes = differs
        .map(|(name, attribute)| (name.clone(), attribute.beside(shown.get(name))))
        .collect();
    if !spelled.is_empty()
        && let Ok(bytes) = serde_json::to_vec(&spelled)
    {
        message.native = Some(Native { protocol: PROTOCOL, bytes: bytes.into() });
    }
}

/// Header fields that correspond to attributes of the same name.
fn field<'a>(message: &'a mut Message, name: &str) -> Option<&'a mut Option<String>> {
    Some(match name {
        "subject" => &mut message.subject,
        "correlation_id" => &mut message.correlation_id,
        "reply_to" => &mut message.reply_to,
        "content_type" => &mut message.content_type,
        _ => return None,
    })
}

/// The attributes derived from the properties of a message.
fn of_canonical(message: &Message) -> Attributes {
    let fields = [
        ("subject", &message.subject),
        ("correlation_id", &message.correlation_id),
        ("reply_to", &message.reply_to),
        ("content_type", &message.content_type),
    ];
    let fields = fields.into_iter().filter_map(|(name, text)| {
        let text = text.as_deref().filter(|text| !text.is_empty())?;
        Some((name.to_owned(), Attribute::text("String", text)))
    });
    let properties = message.properties.iter().filter(|(name, _)| *name != TRACE_HEADER);
    fields.chain(properties.map(|(name, value)| (name.to_owned(), Attribute::of(value)))).collect()
}

/// The attributes of a message as they were sent, with later changes applied.
pub fn of_message(message: &Message) -> Attributes {
    let mut now = of_canonical(message);
    let native = message.native.as_ref().filter(|native| native.protocol == PROTOCOL);
    let sent = native.and_then(|native| serde_json::from_slice::<Attributes>(&native.bytes).ok());
    for (name, attribute) in sent.into_iter().flatten() {
        // An unchanged property restores the attribute exactly. A removed property stays removed.
        let (Some(value), Some(shown)) = (message.properties.get(&name), now.get(&name)) else {
            continue;
        };
        if let Some(same) = attribute.again(shown, value) {
            now.insert(name, same);
        }
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, attribute: Attribute) -> Attributes {
        [(name.to_owned(), attribute)].into()
    }

    #[test]
    fn the_md5_is_the_one_that_sdks_compute() {
        assert_eq!(md5_of("hello"), "5d41402abc4b2a76b9719d911017c592");
        assert_eq!(md5_of_attributes(&Attributes::new()), None);
        let mut two = one("a", Attribute::text("String", "x"));
        two.insert("b".into(), Attribute::binary(b"\0\xff"));
        assert_eq!(md5_of_attributes(&two).as_deref(), Some("c4ec7d55335539420ccc7ec70efeb4a1"));
    }

    #[test]
    fn attributes_round_trip_exactly() {
        for (data_type, value) in [
            ("String", "x"),
            ("String.custom", "x"),
            ("String.bool", "true"),
            ("String.bool", "maybe"),
            ("Number", "7"),
            ("Number", "007"),
            ("Number", "1e3"),
            ("Number", "0.10"),
            ("Number", "99999999999999999999999999999999999999"),
            ("Number.ms", "1700000000000"),
            ("Number.int", "5"),
        ] {
            for name in ["a", "subject"] {
                let attributes = one(name, Attribute::text(data_type, value));
                check(&attributes).unwrap();
                let mut message = Message::default();
                into_message(&attributes, &mut message);
                assert_eq!(of_message(&message), attributes, "{data_type} {value}");
            }
        }
        let binary = Attribute { data_type: "Binary.png".into(), ..Attribute::binary(b"\0\xff") };
        let mut message = Message::default();
        into_message(&one("b", binary.clone()), &mut message);
        assert_eq!(of_message(&message), one("b", binary));
        assert_eq!(message.properties.get("b"), Some(&Value::Bytes(Bytes::from_static(b"\0\xff"))));
    }

    #[test]
    fn the_stored_attribute_data_is_small() {
        let long = "x".repeat(100_000);
        let mut all = one("a", Attribute::text("String.custom", long.as_str()));
        all.insert("subject".into(), Attribute::text("String", long.as_str()));
        all.insert(
            "b".into(),
            Attribute { data_type: "Binary.png".into(), ..Attribute::binary(long.as_bytes()) },
        );
        let mut message = Message::default();
        into_message(&all, &mut message);
        assert_eq!(of_message(&message), all);
        assert!(message.native.as_ref().unwrap().bytes.len() < 200);
        // The format of older versions, with the whole attribute.
        let whole = Bytes::from(serde_json::to_vec(&all).unwrap());
        message.native = Some(Native { protocol: PROTOCOL, bytes: whole });
        assert_eq!(of_message(&message), all);
    }

    #[test]
    fn changes_by_other_protocols_are_visible() {
        let mut message = Message::default();
        into_message(&one("n", Attribute::text("Number", "007")), &mut message);
        message.properties.set("n", Value::I64(8));
        message.properties.set("m", Value::List(vec![Value::U8(1), Value::Null]));
        let mut labelled = Message::default();
        into_message(&one("l", Attribute::text("Number.int", "5")), &mut labelled);
        labelled.properties.set("l", Value::String("five".into()));
        assert_eq!(of_message(&labelled)["l"], Attribute::text("String", "five"));
        let shown = of_message(&message);
        assert_eq!(shown["n"], Attribute::text("Number", "8"));
        assert_eq!(shown["m"], Attribute::text("String.json", "[1,null]"));
    }

    #[test]
    fn invalid_attributes_are_refused() {
        let good = Attribute::text("String", "x");
        for name in ["", "a b", "AWS.x", "amazon.y", ".a", "a.", "a..b", "§", &"x".repeat(257)] {
            check(&one(name, good.clone())).unwrap_err();
        }
        for bad in [
            Attribute::text("", "x"),
            Attribute::text("Float", "1"),
            Attribute::text("String.", "x"),
            Attribute::text("String", ""),
            Attribute::text("String", "\u{0}"),
            Attribute::text("Number", "one"),
            Attribute::text("Number", "NaN"),
            Attribute::text("Number", "1".repeat(39)),
            Attribute::text("Binary", "x"),
            Attribute { binary_value: Some("?".into()), ..Attribute::binary(b"") },
        ] {
            check(&one("a", bad)).unwrap_err();
        }
        let many = (0..11).map(|n| (n.to_string(), good.clone())).collect();
        check(&many).unwrap_err();
    }
}
