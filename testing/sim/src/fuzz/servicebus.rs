//! Service Bus: incoming and outgoing messages, requests to `$management`, addresses and tokens.

use bytes::Bytes;
use malote_engine::Stored;
use malote_front_servicebus::Config;
use malote_front_servicebus::wire::address::Node;
use malote_front_servicebus::wire::message::{DeliveryInfo, read, write};
use malote_front_servicebus::wire::sas::SasToken;
use malote_front_servicebus::wire::{duration, rule, value};
use malote_model::Timestamp;
use malote_wire_amqp::message::{Draft, Message as Wire, Properties, decode_batch};
use malote_wire_amqp::types::{Map, Value};

/// Text that clients send: addresses, tokens, durations, configuration files.
pub(super) const TEXTS: &[&str] = &[
    "amqps://localhost:5671/topic/Subscriptions/sub/$DeadLetterQueue/$management",
    "queue/$Transfer/$DeadLetterQueue",
    "SharedAccessSignature sr=sb%3A%2F%2Fhost%2Forders&sig=q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA%3D&se=1700000000&skn=Root%20Key",
    "P10675199DT2H48M5.4775807S",
    "-P1Y2M3DT4H5M6.7S",
    r#"{"UserConfig":{"Namespaces":[{"Name":"n","Queues":[{"Name":"q","Properties":{"RequiresSession":true,"LockDuration":"PT1M","DefaultMessageTimeToLive":"PT1H","MaxDeliveryCount":3}}],"Topics":[{"Name":"t","Properties":{},"Subscriptions":[{"Name":"s","Properties":{},"Rules":[{"Name":"r","Properties":{"FilterType":"Sql","SqlFilter":{"SqlExpression":"a = 1"}}},{"Name":"c","Properties":{"FilterType":"Correlation","CorrelationFilter":{"ContentType":"x","Properties":{"a":"b"}}}}]}]}]}]}}"#,
];

/// Requests to `$management`.
pub(super) fn requests() -> Vec<Vec<u8>> {
    let request = |operation: &str, body: Map| {
        let properties = Properties { message_id: Some("1".into()), ..Properties::default() };
        let draft = Draft {
            properties: Some(properties),
            application_properties: Map::default().with_string("operation", operation),
            ..Draft::value(body)
        };
        draft.to_bytes().to_vec()
    };
    let sql = Map::default().with_string("expression", "color = 'blue'");
    let action = Map::default().with_string("expression", "SET a = 1");
    let sql = Map::default().with_string("sql-filter", sql).with_string("sql-rule-action", action);
    let properties = Map::default().with_string("n", 1_i32).with_string("t", Value::Timestamp(5));
    let correlation = Map::default()
        .with_string("correlation-id", "c")
        .with_string("label", "l")
        .with_string("properties", properties);
    let correlation = Map::default().with_string("correlation-filter", correlation);
    let add = |description: Map| {
        Map::default().with_string("rule-name", "r").with_string("rule-description", description)
    };
    let message = Draft::data("later").to_bytes();
    let item = Value::Map(Map::default().with_string("message", message));
    vec![
        request("com.microsoft:add-rule", add(sql)),
        request("com.microsoft:add-rule", add(correlation)),
        request(
            "com.microsoft:schedule-message",
            Map::default().with_string("messages", vec![item]),
        ),
    ]
}

/// An accepted message is delivered unchanged, and so are the messages of a batch.
pub(super) fn try_message(bytes: &[u8]) {
    let Ok(wire) = Wire::parse(Bytes::copy_from_slice(bytes)) else { return };
    check_round_trip(&wire);
    if let Ok(Ok(batch)) = decode_batch(&wire, 100) {
        batch.iter().for_each(check_round_trip);
    }
}

fn check_round_trip(wire: &Wire) {
    let now = Timestamp(1_700_000_000_000);
    let Ok(message) = read(wire, || now) else { return };
    let stored = Stored {
        message,
        enqueued_at: now,
        sent_at: now,
        dead: None,
        deaths: Vec::new(),
        first_seq: None,
        routed_by: None,
        depth: 1,
    };
    let written = write(&stored, &DeliveryInfo { seq: 1, ..DeliveryInfo::default() });
    let again = Wire::parse(written).expect("a written message can be parsed");
    assert_eq!(again.body(), wire.body(), "the body changes");
    let again = read(&again, || now).expect("a written message can be read");
    let was = &stored.message;
    assert_eq!(again.body, was.body);
    assert_eq!(again.session, was.session);
    assert_eq!(again.message_id, was.message_id);
    assert_eq!(again.correlation_id, was.correlation_id);
    // Compared as text, because NaN is not equal to itself.
    assert_eq!(format!("{:?}", again.properties), format!("{:?}", was.properties));
}

pub(super) fn try_request(bytes: &[u8]) {
    let Ok(wire) = Wire::parse(Bytes::copy_from_slice(bytes)) else { return };
    let Ok(Some(Value::Map(body))) = wire.value() else { return };
    for (_, value) in &body.0 {
        let _ = (value::to_model(value), value::text(value));
        if let Some(description) = value.as_map()
            && let Ok(read) = rule::read("r", description)
        {
            rule::write(&read);
        }
        for item in value.as_items().unwrap_or_default() {
            if let Some(Value::Binary(bytes)) = item.as_map().and_then(|map| map.get("message")) {
                try_message(bytes);
            }
        }
    }
}

pub(super) fn try_text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Node::parse(text);
    let _ = Config::parse(text);
    if let Some(token) = SasToken::parse(text) {
        let _ =
            (token.expires_ms(), token.scope(|name| name == "host"), token.is_signed_with("key"));
    }
    if let Some(ms) = duration::parse_ms(text) {
        duration::format_ms(ms);
    }
}
