//! Requests and results, with the names of the service's model. The operations check required members, because each
//! missing one has its own error.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::attribute::Attribute;

pub type StringMap = BTreeMap<String, String>;

/// A number, which the Query protocol and some clients send as a string.
fn int<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    let wrong = |value: &Value| serde::de::Error::custom(format!("{value} is not an integer"));
    match Option::<Value>::deserialize(from)? {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => {
            text.parse().map(Some).map_err(|_| wrong(&Value::String(text)))
        }
        Some(value) => value.as_i64().map(Some).ok_or_else(|| wrong(&value)),
    }
}

macro_rules! inputs {
    ($($(#[$meta:meta])* $name:ident { $($(#[$member:meta])* $field:ident: $type:ty,)+ })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(rename_all = "PascalCase", default)]
        pub struct $name { $($(#[$member])* pub $field: Option<$type>,)+ }
    )+};
}

inputs! {
    CreateQueueIn {
        queue_name: String,
        attributes: StringMap,
        #[serde(alias = "tags")] tags: StringMap,
    }
    GetQueueUrlIn { queue_name: String, }
    ListQueuesIn {
        queue_name_prefix: String,
        #[serde(deserialize_with = "int")] max_results: i64,
        next_token: String,
    }
    QueueIn { queue_url: String, }
    GetAttributesIn { queue_url: String, attribute_names: Vec<String>, }
    SetAttributesIn { queue_url: String, attributes: StringMap, }
    TagIn { queue_url: String, tags: StringMap, }
    UntagIn { queue_url: String, tag_keys: Vec<String>, }
    AddPermissionIn {
        queue_url: String,
        label: String,
        #[serde(rename = "AWSAccountIds")] accounts: Vec<String>,
        actions: Vec<String>,
    }
    RemovePermissionIn { queue_url: String, label: String, }
    SendIn {
        id: String,
        queue_url: String,
        message_body: String,
        #[serde(deserialize_with = "int")] delay_seconds: i64,
        message_attributes: BTreeMap<String, Attribute>,
        message_system_attributes: BTreeMap<String, Attribute>,
        message_deduplication_id: String,
        message_group_id: String,
    }
    SendBatchIn { queue_url: String, entries: Vec<SendIn>, }
    ReceiveIn {
        queue_url: String,
        attribute_names: Vec<String>,
        message_system_attribute_names: Vec<String>,
        message_attribute_names: Vec<String>,
        #[serde(deserialize_with = "int")] max_number_of_messages: i64,
        #[serde(deserialize_with = "int")] visibility_timeout: i64,
        #[serde(deserialize_with = "int")] wait_time_seconds: i64,
        receive_request_attempt_id: String,
    }
    DeleteIn { queue_url: String, id: String, receipt_handle: String, }
    DeleteBatchIn { queue_url: String, entries: Vec<DeleteIn>, }
    VisibilityIn {
        queue_url: String,
        id: String,
        receipt_handle: String,
        #[serde(deserialize_with = "int")] visibility_timeout: i64,
    }
    VisibilityBatchIn { queue_url: String, entries: Vec<VisibilityIn>, }
    SourcesIn {
        queue_url: String,
        #[serde(deserialize_with = "int")] max_results: i64,
        next_token: String,
    }
    StartMoveIn {
        source_arn: String,
        destination_arn: String,
        #[serde(deserialize_with = "int")] max_number_of_messages_per_second: i64,
    }
    ListMovesIn { source_arn: String, #[serde(deserialize_with = "int")] max_results: i64, }
    CancelMoveIn { task_handle: String, }
}

macro_rules! outputs {
    ($($name:ident { $($(#[$member:meta])* $field:ident: $type:ty,)* })+) => {$(
        #[derive(Debug, Default, Serialize)]
        #[serde(rename_all = "PascalCase")]
        pub struct $name { $($(#[$member])* pub $field: $type,)* }
    )+};
}

outputs! {
    EmptyOut {}
    QueueUrlOut { queue_url: String, }
    QueueUrlsOut {
        #[serde(skip_serializing_if = "Vec::is_empty")] queue_urls: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")] next_token: Option<String>,
    }
    AttributesOut { #[serde(skip_serializing_if = "StringMap::is_empty")] attributes: StringMap, }
    TagsOut { #[serde(skip_serializing_if = "StringMap::is_empty")] tags: StringMap, }
    SourcesOut {
        #[serde(rename = "queueUrls")] queue_urls: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")] next_token: Option<String>,
    }
    SentOut {
        #[serde(skip_serializing_if = "Option::is_none")] id: Option<String>,
        message_id: String,
        #[serde(rename = "MD5OfMessageBody")] md5_of_body: String,
        #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
        md5_of_attributes: Option<String>,
        #[serde(rename = "MD5OfMessageSystemAttributes", skip_serializing_if = "Option::is_none")]
        md5_of_system_attributes: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")] sequence_number: Option<String>,
    }
    MessageOut {
        message_id: String,
        receipt_handle: String,
        #[serde(rename = "MD5OfBody")] md5_of_body: String,
        body: String,
        #[serde(skip_serializing_if = "StringMap::is_empty")] attributes: StringMap,
        #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
        md5_of_attributes: Option<String>,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        message_attributes: BTreeMap<String, Attribute>,
    }
    MessagesOut { #[serde(skip_serializing_if = "Vec::is_empty")] messages: Vec<MessageOut>, }
    IdOut { id: String, }
    FailedOut { id: String, code: String, message: String, sender_fault: bool, }
    StartedOut { task_handle: String, }
    CancelledOut { approximate_number_of_messages_moved: u64, }
    MoveTaskOut {
        #[serde(skip_serializing_if = "Option::is_none")] task_handle: Option<String>,
        status: &'static str,
        source_arn: String,
        #[serde(skip_serializing_if = "Option::is_none")] destination_arn: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")] max_number_of_messages_per_second: Option<u64>,
        approximate_number_of_messages_moved: u64,
        approximate_number_of_messages_to_move: u64,
        #[serde(skip_serializing_if = "Option::is_none")] failure_reason: Option<String>,
        started_timestamp: u64,
    }
    MoveTasksOut { #[serde(skip_serializing_if = "Vec::is_empty")] results: Vec<MoveTaskOut>, }
}

/// The result of a batch; empty lists are omitted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BatchOut<T> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub successful: Vec<T>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedOut>,
}
