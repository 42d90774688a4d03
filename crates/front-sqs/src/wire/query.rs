//! Converts the flat parameters of the Query protocol into the JSON tree of the same request.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use crate::refusal::{Code, SqsError};

/// Parameters per request. A batch of ten messages with ten attributes each has about 400.
const PARAMETERS_MAX: usize = 4096;
/// Length of a parameter name.
const NAME_BYTES_MAX: usize = 256;

/// What a flattened name means in JSON.
enum ParameterKind {
    /// A list of strings.
    List(&'static str),
    /// A list of entries with parameters of their own.
    Entries,
    /// A map; the second string is the name of its keys.
    Map(&'static str, &'static str),
}

fn parameter_kind(name: &str) -> Option<ParameterKind> {
    Some(match name {
        "Attribute" => ParameterKind::Map("Attributes", "Name"),
        "MessageAttribute" => ParameterKind::Map("MessageAttributes", "Name"),
        "MessageSystemAttribute" => ParameterKind::Map("MessageSystemAttributes", "Name"),
        "Tag" | "Tags" => ParameterKind::Map("Tags", "Key"),
        "TagKey" => ParameterKind::List("TagKeys"),
        "AttributeName" => ParameterKind::List("AttributeNames"),
        "MessageAttributeName" => ParameterKind::List("MessageAttributeNames"),
        "MessageSystemAttributeName" => ParameterKind::List("MessageSystemAttributeNames"),
        "AWSAccountId" => ParameterKind::List("AWSAccountIds"),
        "ActionName" => ParameterKind::List("Actions"),
        "SendMessageBatchRequestEntry"
        | "DeleteMessageBatchRequestEntry"
        | "ChangeMessageVisibilityBatchRequestEntry" => ParameterKind::Entries,
        _ => return None,
    })
}

/// botocore sends an empty list or map as its JSON name without a value.
fn is_empty_list(name: &str, value: &str) -> bool {
    let plural = ["Entries", "Attributes", "Tags", "TagKeys", "Actions", "AWSAccountIds"];
    value.is_empty() && (plural.contains(&name) || name.ends_with("Names"))
}

fn malformed(text: &str) -> SqsError {
    SqsError::new(Code::Serialization, text)
}

/// A parameter of a form, by its exact name.
pub fn parameter(form: &[u8], name: &str) -> Option<String> {
    form_urlencoded::parse(form).find(|(have, _)| have == name).map(|(_, value)| value.into_owned())
}

fn pairs(form: &[u8]) -> Result<Vec<(String, String)>, SqsError> {
    let mut pairs = Vec::new();
    for (name, value) in form_urlencoded::parse(form) {
        if pairs.len() == PARAMETERS_MAX || name.len() > NAME_BYTES_MAX {
            return Err(malformed(
                "the request has too many parameters, or a parameter name is too long",
            ));
        }
        pairs.push((name.into_owned(), value.into_owned()));
    }
    let mut names = HashSet::with_capacity(pairs.len());
    if let Some((twice, _)) = pairs.iter().find(|(name, _)| !names.insert(name.as_str())) {
        // A proxy must not be able to read another request than this server.
        return Err(malformed(&format!("the parameter {twice} is present more than once")));
    }
    Ok(pairs)
}

/// Converts a form of SQS.
pub fn unflatten(form: &[u8]) -> Result<Value, SqsError> {
    tree(pairs(form)?).map(Value::Object)
}

/// Converts a form of CloudWatch: `Dimensions.member.1.Name`.
pub fn members(form: &[u8]) -> Result<Value, SqsError> {
    nested(pairs(form)?).map(Value::Object)
}

/// Recursion is limited to 128 levels, because names have at most 256 bytes.
fn nested(pairs: Vec<(String, String)>) -> Result<Map<String, Value>, SqsError> {
    let mut out = Map::new();
    let mut groups: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for (name, value) in pairs {
        match name.split_once('.') {
            Some((first, rest)) => {
                groups.entry(first.to_owned()).or_default().push((rest.to_owned(), value));
            }
            None => drop(out.insert(name, Value::String(value))),
        }
    }
    for (first, pairs) in groups {
        let mut inner = nested(pairs)?;
        let value = match inner.remove("member") {
            Some(Value::Object(items)) => {
                let mut items: Vec<(u32, Value)> = items
                    .into_iter()
                    .map(|(index, value)| Some((index.parse().ok()?, value)))
                    .collect::<Option<_>>()
                    .ok_or_else(|| malformed("a list parameter has no index"))?;
                items.sort_by_key(|(index, _)| *index);
                items.into_iter().map(|(_, value)| value).collect()
            }
            _ => Value::Object(inner),
        };
        out.insert(first, value);
    }
    Ok(out)
}

/// Groups parameters by the first part of their names, then by number. Clients number them in any order.
fn tree(pairs: Vec<(String, String)>) -> Result<Map<String, Value>, SqsError> {
    let mut out = Map::new();
    let mut groups: BTreeMap<String, BTreeMap<u32, Vec<(String, String)>>> = BTreeMap::new();
    for (name, value) in pairs {
        match name.split_once('.') {
            Some((first, rest)) if parameter_kind(first).is_some() => {
                let (index, rest) = rest.split_once('.').unwrap_or((rest, ""));
                let index =
                    index.parse().map_err(|_| malformed("a list parameter has no index"))?;
                let group = groups.entry(first.to_owned()).or_default();
                group.entry(index).or_default().push((rest.to_owned(), value));
            }
            _ if is_empty_list(&name, &value) => {}
            _ => drop(out.insert(name, Value::String(value))),
        }
    }
    for (first, items) in groups {
        match parameter_kind(&first) {
            Some(ParameterKind::List(name)) => {
                let texts = items.into_values().flatten().map(|(_, value)| Value::String(value));
                out.insert(name.into(), texts.collect());
            }
            Some(ParameterKind::Entries) => {
                let entries: Result<Vec<_>, _> =
                    items.into_values().map(|pairs| tree(pairs).map(Value::Object)).collect();
                out.insert("Entries".into(), Value::Array(entries?));
            }
            Some(ParameterKind::Map(name, key)) => {
                let mut map = Map::new();
                for pairs in items.into_values() {
                    let (key, value) = entry(pairs, key)?;
                    map.insert(key, value);
                }
                out.insert(name.into(), Value::Object(map));
            }
            None => {}
        }
    }
    Ok(out)
}

/// A `Name` and its `Value`, which is a string or a structure.
fn entry(pairs: Vec<(String, String)>, key: &str) -> Result<(String, Value), SqsError> {
    let (mut name, mut text, mut members) = (None, None, Map::new());
    for (part, value) in pairs {
        match part.strip_prefix("Value.") {
            Some(member) => drop(members.insert(member.to_owned(), Value::String(value))),
            None if part == key => name = Some(value),
            None if part == "Value" => text = Some(value),
            None => {}
        }
    }
    let name = name.ok_or_else(|| malformed("a map parameter has no name"))?;
    let value = match text {
        Some(text) => Value::String(text),
        None if members.is_empty() => Value::String(String::new()),
        None => Value::Object(members),
    };
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn flat_parameters_become_the_tree_that_json_sends() {
        let form = b"Action=SendMessageBatch&QueueUrl=http%3A%2F%2Fh%2F0%2Fq\
            &SendMessageBatchRequestEntry.10.Id=b&SendMessageBatchRequestEntry.10.MessageBody=x+y\
            &SendMessageBatchRequestEntry.2.Id=a\
            &SendMessageBatchRequestEntry.2.MessageAttribute.1.Name=P\
            &SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.DataType=Number\
            &SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.StringValue=7";
        let attribute = json!({ "P": { "DataType": "Number", "StringValue": "7" } });
        assert_eq!(
            unflatten(form).unwrap(),
            json!({
                "Action": "SendMessageBatch", "QueueUrl": "http://h/0/q",
                "Entries": [{ "Id": "a", "MessageAttributes": attribute }, { "Id": "b", "MessageBody": "x y" }],
            })
        );
        assert_eq!(
            unflatten(b"Attribute.1.Name=A&Attribute.1.Value=1&Tag.3.Key=k&Tag.3.Value=v&AttributeName.1=All").unwrap(),
            json!({ "Attributes": { "A": "1" }, "Tags": { "k": "v" }, "AttributeNames": ["All"] })
        );
    }

    #[test]
    fn lists_of_members_become_lists() {
        let form = b"Dimensions.member.2.Name=b&Dimensions.member.1.Name=a&Statistics.member.1=Sum\
            &Q.member.1.MetricStat.Metric.Dimensions.member.1.Name=c&Period=60";
        let metric = json!({ "Metric": { "Dimensions": [{ "Name": "c" }] } });
        assert_eq!(
            members(form).unwrap(),
            json!({
                "Dimensions": [{ "Name": "a" }, { "Name": "b" }], "Statistics": ["Sum"],
                "Q": [{ "MetricStat": metric }], "Period": "60",
            })
        );
        members(b"a.member.x=1").unwrap_err();
        members(format!("{}a=1", "a.".repeat(127)).as_bytes()).unwrap();
    }

    #[test]
    fn an_empty_list_is_not_a_string() {
        assert_eq!(
            unflatten(b"Entries=&MessageBody=&AttributeNames=").unwrap(),
            json!({ "MessageBody": "" })
        );
    }

    #[test]
    fn malformed_forms_do_not_panic() {
        for form in ["Attribute.x.Name=1", "Attribute.1.Value=1", "Tag.99999999999.Key=1"] {
            unflatten(form.as_bytes()).unwrap_err();
        }
        unflatten(b"QueueName=a&QueueName=b").unwrap_err();
        let many: String = (0..=PARAMETERS_MAX).map(|n| format!("a{n}=1&")).collect();
        unflatten(many.as_bytes()).unwrap_err();
        for form in [&b"\xff\xfe=%zz&&&===&Attribute.1"[..], b"", b"Attribute", b"AttributeName.1="]
        {
            let _ = unflatten(form);
        }
    }
}
