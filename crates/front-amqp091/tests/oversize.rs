//! Headers that are larger than a frame do not end the connection of the client that receives them.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::World;
use malote_front_amqp091::wire::oversize::OMITTED;
use malote_front_amqp091::wire::properties::BasicProperties;
use malote_front_amqp091::wire::table::{FieldTable, FieldValue};
use malote_model::{Message, Properties, QueueName, Value};

/// More than a frame of the client holds. Other protocols allow a message to have it.
const LARGE: usize = 200_000;

#[tokio::test]
async fn a_message_of_another_protocol_arrives_without_its_largest_header() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    let properties: Properties = [
        ("small".to_owned(), Value::String("kept".to_owned())),
        ("large".to_owned(), Value::String("x".repeat(LARGE))),
    ]
    .into_iter()
    .collect();
    let message = Message { properties, ..Message::default() };
    world.engine.send(vec![(QueueName::new("q").unwrap(), message)]).await.unwrap();
    client.publish("", "q", "next").await;
    let first = client.get("q").await.unwrap();
    let headers = first.properties.decode().headers.unwrap();
    assert_eq!(headers.get("small").and_then(FieldValue::as_str), Some("kept"));
    assert_eq!(headers.get("large"), None);
    let omitted = headers.get(OMITTED).and_then(FieldValue::as_array).unwrap();
    assert_eq!(omitted.filter_map(FieldValue::as_str).collect::<Vec<_>>(), ["large"]);
    assert_eq!(client.get("q").await.unwrap().text(), "next");
}

#[tokio::test]
async fn a_dead_letter_whose_history_does_not_fit_arrives() {
    let world = World::new();
    let mut client = world.channel().await;
    let arguments = FieldTable::builder()
        .with("x-dead-letter-exchange", "")
        .with("x-dead-letter-routing-key", "dead")
        .with("x-message-ttl", 1_i32)
        .build();
    client.declare("q", arguments).await;
    client.declare("dead", FieldTable::default()).await;
    // As large as a client can send it: `x-death` comes on top.
    let table = FieldTable::builder().with("large", "x".repeat(131_000).as_str()).build();
    let headers = Some(table.as_table());
    let properties = BasicProperties { headers, ..Default::default() };
    client.publish_with("", "q", false, properties, "late").await;
    let dead = client.get_soon("dead").await;
    assert_eq!(dead.text(), "late");
    let headers = dead.properties.decode().headers.unwrap();
    assert!(headers.get("x-death").is_some());
    assert_eq!(headers.get("large"), None);
}
