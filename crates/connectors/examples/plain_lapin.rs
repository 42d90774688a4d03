//! A plain lapin consumer, as a baseline for benchmarks. `plain_lapin URL MESSAGES PREFETCH` fills a quorum queue,
//! consumes it with one acknowledgement per message, and prints the rate.
#![allow(clippy::disallowed_methods)] // it measures time

use std::time::Instant;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};

const QUEUE: &str = "bench-lapin";
/// As in `malote bench worker`.
const BODY_BYTES: usize = 256;
const FILL_BATCH: usize = 1000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().ok_or("usage: plain_lapin URL MESSAGES PREFETCH")?;
    let messages: usize = args.next().ok_or("the number of messages is missing")?.parse()?;
    let prefetch: u16 = args.next().ok_or("the prefetch count is missing")?.parse()?;
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let mut quorum = FieldTable::default();
    quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(QUEUE.into(), durable, quorum).await?;

    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let body = vec![b'x'; BODY_BYTES];
    let properties = BasicProperties::default().with_delivery_mode(2);
    let mut left = messages;
    while left > 0 {
        let some = left.min(FILL_BATCH);
        let publish = || {
            let options = BasicPublishOptions::default();
            channel.basic_publish("".into(), QUEUE.into(), options, &body, properties.clone())
        };
        for sent in join_all((0..some).map(|_| publish())).await {
            sent?.await?;
        }
        left -= some;
    }

    let channel = connection.create_channel().await?;
    channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
    let begun = Instant::now();
    let options = BasicConsumeOptions::default();
    let mut consumer =
        channel.basic_consume(QUEUE.into(), "".into(), options, FieldTable::default()).await?;
    for _ in 0..messages {
        let delivery = consumer.next().await.ok_or("the consumer was cancelled")??;
        delivery.ack(BasicAckOptions::default()).await?;
    }
    let rate = messages as f64 / begun.elapsed().as_secs_f64();
    println!(r#"{{"results":[{{"what":"plain lapin","per_s":{rate:.1}}}]}}"#);
    connection.close(200, "done".into()).await?;
    Ok(())
}
