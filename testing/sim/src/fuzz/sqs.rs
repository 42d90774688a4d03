//! SQS and CloudWatch: requests of all protocols, and the values in them.

use malote_front_sqs::wire::handle::ReceiptHandle;
use malote_front_sqs::wire::shapes::{CreateQueueIn, ReceiveIn, SendBatchIn, SendIn};
use malote_front_sqs::wire::{Protocol, attribute, cbor, query, xml};
use malote_model::{Message, QueueName};

/// Requests of the JSON protocol.
pub(super) const JSON: &[&str] = &[
    r#"{"QueueUrl":"http://h/000000000000/q","Entries":[{"Id":"a","MessageBody":"x","DelaySeconds":"5","MessageAttributes":{"n":{"DataType":"Number.ms","StringValue":"007"},"b":{"DataType":"Binary","BinaryValue":"AP8="}},"MessageGroupId":"g"}]}"#,
    r#"{"QueueName":"q.fifo","Attributes":{"FifoQueue":"true","RedrivePolicy":"{}"},"tags":{"a":"b"}}"#,
    r#"{"QueueUrl":"q","MaxNumberOfMessages":10,"WaitTimeSeconds":20,"MessageAttributeNames":["All",".*"],"AttributeNames":["All"]}"#,
    r#"{"QueueUrl":"q","ReceiptHandle":"AQAAAAEAAAAAAAAAAQAAAAQAAAAAAAAABQAAAAAAAAAGAAAAAAAAAAA=","MessageBody":"x"}"#,
];

/// Requests of the Query protocol, of SQS and of CloudWatch.
pub(super) const FORMS: &[&str] = &[
    "Action=SendMessageBatch&QueueUrl=q&SendMessageBatchRequestEntry.2.Id=a&SendMessageBatchRequestEntry.2.MessageBody=x+%41&SendMessageBatchRequestEntry.2.MessageAttribute.1.Name=P&SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.DataType=Number&SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.StringValue=7",
    "Action=CreateQueue&QueueName=q&Attribute.1.Name=DelaySeconds&Attribute.1.Value=5&Tag.1.Key=k&Tag.1.Value=v&Entries=",
    "Action=ReceiveMessage&MaxNumberOfMessages=10&AttributeName.1=All&MessageAttributeName.9=a.*",
    "Action=GetMetricStatistics&Dimensions.member.1.Name=QueueName&Dimensions.member.1.Value=q&Statistics.member.1=Sum&Q.member.1.MetricStat.Metric.Dimensions.member.1.Name=c",
];

/// CloudWatch requests in CBOR.
pub(super) fn bodies() -> Vec<Vec<u8>> {
    let tree = serde_json::json!({
        "Namespace": "AWS/SQS", "Dimensions": [{ "Name": "QueueName", "Value": "q" }], "Period": 60,
        "Timestamp": 1_700_000_000, "Values": [1.5, 2], "More": true, "None": null,
    });
    vec![cbor::encode(&tree), b"\xbf\x61a\x9f\x01\x20\xff\xff".to_vec()]
}

fn try_all(protocol: Protocol, bytes: &[u8]) {
    let _ = protocol.decode::<CreateQueueIn>(bytes);
    let _ = protocol.decode::<ReceiveIn>(bytes);
    let one = protocol.decode::<SendIn>(bytes).into_iter();
    let many = protocol.decode::<SendBatchIn>(bytes).into_iter().filter_map(|batch| batch.entries);
    for asked in one.chain(many.flatten()) {
        let attributes = asked.message_attributes.unwrap_or_default();
        let good = attribute::check(&attributes).is_ok();
        let (mut message, md5) = (Message::default(), attribute::md5_of_attributes(&attributes));
        attribute::into_message(&attributes, &mut message);
        let shown = attribute::of_message(&message);
        if good {
            assert_eq!(shown, attributes, "attributes change");
            assert_eq!(attribute::md5_of_attributes(&shown), md5);
        }
    }
}

pub(super) fn try_json(bytes: &[u8]) {
    try_all(Protocol::Json, bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let queue = QueueName::new("q").expect("a valid name");
        text.split('"').for_each(|text| drop(ReceiptHandle::parse(&queue, text)));
    }
}

pub(super) fn try_form(bytes: &[u8]) {
    try_all(Protocol::Query, bytes);
    for tree in [query::unflatten(bytes), query::members(bytes)].into_iter().flatten() {
        let _ = (
            xml::answer("ReceiveMessage", &tree, "r"),
            xml::member_answer("ListMetrics", &tree, "r"),
        );
    }
}

pub(super) fn try_cbor(bytes: &[u8]) {
    if let Ok(tree) = cbor::decode(bytes) {
        // Numbers may change their width but not their value.
        let again = cbor::encode(&tree);
        assert!(cbor::decode(&again).is_ok(), "decoded CBOR can be encoded and decoded again");
    }
}
