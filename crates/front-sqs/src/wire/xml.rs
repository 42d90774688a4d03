//! Results as XML of the Query protocol: lists are repeated elements, maps are repeated pairs.

use serde_json::Value;

const NAMESPACE: &str = "http://queue.amazonaws.com/doc/2012-11-05/";

/// The reply to a request without an action, the only error without the usual envelope.
pub const UNKNOWN_OPERATION: &str = "<?xml version=\"1.0\"?><UnknownOperationException/>";

/// A result of SQS.
pub fn answer(action: &str, result: &Value, request_id: &str) -> String {
    let mut out = format!("<?xml version=\"1.0\"?><{action}Response xmlns=\"{NAMESPACE}\">");
    // An action without a result has no such element; a receive without messages has an empty one.
    if has_result(action) {
        match result {
            Value::Object(members) if !members.is_empty() => {
                out.push_str(&format!("<{action}Result>"));
                members.iter().for_each(|(name, value)| member(&mut out, action, name, value));
                out.push_str(&format!("</{action}Result>"));
            }
            _ => out.push_str(&format!("<{action}Result/>")),
        }
    }
    out.push_str("<ResponseMetadata><RequestId>");
    escape(&mut out, request_id);
    out.push_str(&format!("</RequestId></ResponseMetadata></{action}Response>"));
    out
}

/// A result of CloudWatch: lists are `member` elements, times are ISO 8601.
pub fn member_answer(action: &str, result: &Value, request_id: &str) -> String {
    let space = "http://monitoring.amazonaws.com/doc/2010-08-01/";
    let mut out = format!("<?xml version=\"1.0\"?><{action}Response xmlns=\"{space}\">");
    element(&mut out, &format!("{action}Result"), |out| put_members(out, result, false));
    element(&mut out, "ResponseMetadata", |out| {
        element(out, "RequestId", |out| escape(out, request_id));
    });
    out.push_str(&format!("</{action}Response>"));
    out
}

fn put_members(out: &mut String, value: &Value, time: bool) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                element(out, name, |out| put_members(out, value, name.starts_with("Timestamp")));
            }
        }
        Value::Array(items) => {
            items
                .iter()
                .for_each(|item| element(out, "member", |out| put_members(out, item, time)));
        }
        Value::Number(number) if time => {
            let at = number.as_i64().and_then(|at| jiff::Timestamp::from_second(at).ok());
            escape(out, &at.unwrap_or_default().to_string());
        }
        Value::String(text) => escape(out, text),
        Value::Null => {}
        scalar => out.push_str(&scalar.to_string()),
    }
}

pub fn error(kind: &str, code: &str, message: &str, request_id: &str) -> String {
    let mut out = format!("<?xml version=\"1.0\"?><ErrorResponse xmlns=\"{NAMESPACE}\"><Error>");
    for (name, text) in [("Type", kind), ("Code", code), ("Message", message)] {
        element(&mut out, name, |out| escape(out, text));
    }
    out.push_str("<Detail/></Error>");
    element(&mut out, "RequestId", |out| escape(out, request_id));
    out.push_str("</ErrorResponse>");
    out
}

fn has_result(action: &str) -> bool {
    !matches!(
        action,
        "DeleteQueue"
            | "SetQueueAttributes"
            | "DeleteMessage"
            | "ChangeMessageVisibility"
            | "PurgeQueue"
            | "TagQueue"
            | "UntagQueue"
            | "AddPermission"
            | "RemovePermission"
    )
}

fn element(out: &mut String, name: &str, inside: impl FnOnce(&mut String)) {
    out.push('<');
    out.push_str(name);
    out.push('>');
    inside(out);
    out.push_str("</");
    out.push_str(name);
    out.push('>');
}

fn member(out: &mut String, action: &str, name: &str, value: &Value) {
    match value {
        Value::Array(items) => {
            let entry = format!("{action}ResultEntry");
            let name = match name {
                "QueueUrls" | "queueUrls" => "QueueUrl",
                "Messages" => "Message",
                "Failed" => "BatchResultErrorEntry",
                "Successful" | "Results" => &entry,
                other => other,
            };
            for item in items {
                element(out, name, |out| inside(out, action, item));
            }
        }
        Value::Object(pairs) => {
            let (name, key) = match name {
                "Tags" => ("Tag", "Key"),
                "Attributes" => ("Attribute", "Name"),
                "MessageAttributes" => ("MessageAttribute", "Name"),
                // A structure, not a map.
                other => return element(out, other, |out| inside(out, action, value)),
            };
            for (at, value) in pairs {
                element(out, name, |out| {
                    element(out, key, |out| escape(out, at));
                    element(out, "Value", |out| inside(out, action, value));
                });
            }
        }
        Value::Null => {}
        scalar => element(out, name, |out| inside(out, action, scalar)),
    }
}

fn inside(out: &mut String, action: &str, value: &Value) {
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| member(out, action, name, value));
        }
        Value::String(text) => escape(out, text),
        Value::Null | Value::Array(_) => {}
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// A carriage return is escaped, because parsers convert a bare one to a line feed.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\r' => out.push_str("&#xD;"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn results_are_flattened() {
        let message = json!({ "Messages": [{
            "Body": "a<b>&\r\n",
            "Attributes": { "SenderId": "x" },
            "MessageAttributes": { "n": { "DataType": "Number", "StringValue": "1" } },
        }] });
        let inner = "<Message><Attribute><Name>SenderId</Name><Value>x</Value></Attribute>\
            <Body>a&lt;b&gt;&amp;&#xD;\n</Body><MessageAttribute><Name>n</Name><Value><DataType>Number</DataType>\
            <StringValue>1</StringValue></Value></MessageAttribute></Message>";
        let whole = answer("ReceiveMessage", &message, "r");
        assert!(
            whole.contains(&format!("<ReceiveMessageResult>{inner}</ReceiveMessageResult>")),
            "{whole}"
        );
        let batch = json!({ "Successful": [{ "Id": "a" }], "Failed": [{ "Id": "b", "SenderFault": true }] });
        let whole = answer("DeleteMessageBatch", &batch, "r");
        assert!(
            whole.contains(
                "<DeleteMessageBatchResultEntry><Id>a</Id></DeleteMessageBatchResultEntry>"
            )
        );
        assert!(
            whole.contains("<BatchResultErrorEntry><Id>b</Id><SenderFault>true</SenderFault>"),
            "{whole}"
        );
        assert!(!answer("DeleteQueue", &json!({}), "r").contains("Result>"));
    }
}
