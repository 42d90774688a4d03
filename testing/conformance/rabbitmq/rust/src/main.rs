//! RabbitMQ's behaviour as lapin sees it. Usage: malote-conformance-rabbitmq URL

mod harness;

use anyhow::{Context, Result, ensure};
use harness::{
    Broker, body, deaths, depth, exchange, get, is_refused, name, next, publish, queue, text,
};
use lapin::options::*;
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, ExchangeKind};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).context("usage: malote-conformance-rabbitmq URL")?;
    let mut broker = Broker::new(url);
    broker.check("a wrong password is refused", wrong_password).await;
    broker.check("errors have a code and a text", errors).await;
    broker.check("confirms and returns", confirms).await;
    broker.check("every exchange kind", exchanges).await;
    broker.check("get, requeue, recover", getting).await;
    broker.check("prefetch and acknowledging many", prefetch).await;
    broker.check("a deleted queue ends its consumer", cancelled).await;
    broker.check("transactions", transactions).await;
    broker.check("header values of every type", headers).await;
    broker.check("dead letters count their history", dead_letters).await;
    broker.check("a full queue refuses or drops", overflow).await;
    broker.check("priorities", priorities).await;
    broker.check("a call is answered directly", calls).await;
    broker.check("large messages", large).await;
    broker.check("many messages on many channels", many).await;
    std::process::exit(if broker.summary() { 0 } else { 1 });
}

async fn wrong_password(broker: Broker) -> Result<()> {
    let refused = broker.connect_with_password("wrong").await;
    is_refused(refused.map(|_| ()), 403, "ACCESS_REFUSED")
}

async fn errors(broker: Broker) -> Result<()> {
    let connection = broker.connect().await?;
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    let channel = connection.create_channel().await?;
    let missing = name("q");
    let declared = channel.queue_declare(missing.clone(), passive, FieldTable::default()).await;
    let wanted = format!("NOT_FOUND - no queue '{missing}' in vhost");
    is_refused(declared.map(|_| ()), 404, &wanted)?;
    let channel = connection.create_channel().await?;
    let q = queue(&channel, table(&[("x-message-ttl", AMQPValue::LongInt(1000))])).await?;
    let exclusive = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let again = channel.queue_declare(q.clone(), exclusive, FieldTable::default()).await;
    let wanted = format!("inequivalent arg 'x-message-ttl' for queue '{q}'");
    is_refused(again.map(|_| ()), 406, &wanted)?;
    let channel = connection.create_channel().await?;
    channel.basic_ack(99, BasicAckOptions::default()).await?;
    let after = channel.basic_qos(1, BasicQosOptions::default()).await;
    ensure!(after.is_err(), "the channel is closed");
    connection.create_channel().await?;
    Ok(())
}

async fn confirms(broker: Broker) -> Result<()> {
    let channel = broker.channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let q = queue(&channel, FieldTable::default()).await?;
    let mut open = Vec::new();
    for index in 0..500 {
        open.push(publish(&channel, "", &q, &index.to_string(), plain()).await?);
    }
    for one in open {
        ensure!(one.await?.is_ack(), "everything is confirmed");
    }
    ensure!(depth(&channel, &q).await? == 500);
    let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
    let nowhere = name("q");
    let sent = channel.basic_publish("".into(), nowhere.clone(), mandatory, b"x", plain());
    let confirmation = sent.await?.await?;
    ensure!(confirmation.is_ack(), "what is returned is confirmed");
    let returned = confirmation.take_message().context("the return came before the confirm")?;
    ensure!(returned.reply_code == 312 && returned.reply_text.as_str() == "NO_ROUTE");
    ensure!(returned.delivery.routing_key == nowhere);
    Ok(())
}

async fn exchanges(broker: Broker) -> Result<()> {
    let channel = broker.channel().await?;
    let any = table(&[("x-match", text("any")), ("a", AMQPValue::LongInt(1))]);
    let kinds = [
        (ExchangeKind::Direct, "k", "k", FieldTable::default()),
        (ExchangeKind::Fanout, "", "whatever", FieldTable::default()),
        (ExchangeKind::Topic, "*.b.#", "a.b.c.d", FieldTable::default()),
        (ExchangeKind::Headers, "", "", any),
    ];
    for (kind, pattern, key, arguments) in kinds {
        let x = exchange(&channel, kind, FieldTable::default()).await?;
        let q = queue(&channel, FieldTable::default()).await?;
        let options = QueueBindOptions::default();
        channel.queue_bind(q.clone(), x.clone(), pattern.into(), options, arguments).await?;
        let headers = table(&[("a", AMQPValue::LongInt(1)), ("b", text("x"))]);
        publish(&channel, &x, key, "x", plain().with_headers(headers)).await?;
        ensure!(body(&channel, &q).await? == "x");
    }
    let lost = exchange(&channel, ExchangeKind::Fanout, FieldTable::default()).await?;
    let alternate = table(&[("alternate-exchange", text(lost.as_str()))]);
    let source = exchange(&channel, ExchangeKind::Direct, alternate).await?;
    let q = queue(&channel, FieldTable::default()).await?;
    let none = FieldTable::default;
    channel.queue_bind(q.clone(), lost.clone(), "".into(), Default::default(), none()).await?;
    publish(&channel, &source, "nowhere", "lost", plain()).await?;
    ensure!(body(&channel, &q).await? == "lost");
    channel.exchange_bind(lost, source.clone(), "k".into(), Default::default(), none()).await?;
    publish(&channel, &source, "k", "bound", plain()).await?;
    ensure!(body(&channel, &q).await? == "bound");
    Ok(())
}

async fn getting(broker: Broker) -> Result<()> {
    let channel = broker.channel().await?;
    let q = filled(&channel, 4, FieldTable::default()).await?;
    let mut tags = Vec::new();
    for remaining in [3, 2, 1] {
        let got = get(&channel, &q, false).await?;
        ensure!(got.message_count == remaining);
        tags.push(got.delivery.delivery_tag);
    }
    let requeue = BasicNackOptions { requeue: true, ..Default::default() };
    channel.basic_nack(tags[1], requeue).await?;
    channel.basic_reject(tags[2], BasicRejectOptions { requeue: true }).await?;
    channel.basic_recover(BasicRecoverOptions { requeue: true }).await?;
    for index in 0..4 {
        let got = get(&channel, &q, true).await?.delivery;
        ensure!(got.data == index.to_string().as_bytes(), "{index}");
        ensure!(got.redelivered == (index < 3), "{index}");
    }
    ensure!(channel.basic_get(q, BasicGetOptions::default()).await?.is_none());
    Ok(())
}

async fn prefetch(broker: Broker) -> Result<()> {
    let channel = broker.channel().await?;
    let q = filled(&channel, 6, FieldTable::default()).await?;
    channel.basic_qos(2, BasicQosOptions::default()).await?;
    let none = FieldTable::default();
    let mut consumer =
        channel.basic_consume(q.clone(), "".into(), Default::default(), none).await?;
    ensure!(consumer.tag().as_str().starts_with("amq.ctag-"), "{}", consumer.tag());
    let mut seen = Vec::new();
    for _ in 0..3 {
        let first = next(&mut consumer).await?;
        let second = next(&mut consumer).await?;
        seen.extend([&first, &second].map(|one| String::from_utf8_lossy(&one.data).into_owned()));
        second.acker.ack(BasicAckOptions { multiple: true }).await?;
    }
    ensure!(seen == ["0", "1", "2", "3", "4", "5"], "{seen:?}");
    Ok(())
}

async fn cancelled(broker: Broker) -> Result<()> {
    let channel = broker.channel().await?;
    let q = queue(&channel, FieldTable::default()).await?;
    let none = FieldTable::default();
    let mut consumer =
        channel.basic_consume(q.clone(), "".into(), Default::default(), none).await?;
    channel.queue_delete(q, QueueDeleteOptions::default()).await?;
    ensure!(harness::within(futures_util::StreamExt::next(&mut consumer)).await?.is_none());
    channel.basic_qos(1, BasicQosOptions::default()).await?;
    Ok(())
}

async fn transactions(broker: Broker) -> Result<()> {
    let connection = broker.connect().await?;
    let (channel, other) = (connection.create_channel().await?, connection.create_channel().await?);
    let q = queue(&channel, FieldTable::default()).await?;
    channel.tx_select().await?;
    publish(&channel, "", &q, "kept", plain()).await?;
    ensure!(depth(&other, &q).await? == 0);
    channel.tx_commit().await?;
    ensure!(depth(&other, &q).await? == 1);
    publish(&channel, "", &q, "dropped", plain()).await?;
    channel.tx_rollback().await?;
    ensure!(depth(&other, &q).await? == 1);
    Ok(())
}

async fn headers(broker: Broker) -> Result<()> {
    let channel = broker.channel().await?;
    let q = queue(&channel, FieldTable::default()).await?;
    let mut list = FieldArray::default();
    list.push(AMQPValue::LongInt(1));
    list.push(text("two"));
    let headers = table(&[
        ("bool", AMQPValue::Boolean(true)),
        ("i8", AMQPValue::ShortShortInt(-1)),
        ("u8", AMQPValue::ShortShortUInt(255)),
        ("i16", AMQPValue::ShortInt(-300)),
        ("u16", AMQPValue::ShortUInt(65_535)),
        ("i32", AMQPValue::LongInt(i32::MIN)),
        ("u32", AMQPValue::LongUInt(u32::MAX)),
        ("i64", AMQPValue::LongLongInt(i64::MIN)),
        ("f32", AMQPValue::Float(1.5)),
        ("f64", AMQPValue::Double(2.5)),
        ("text", text("é")),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
        ("list", AMQPValue::FieldArray(list)),
        ("table", AMQPValue::FieldTable(table(&[("n", AMQPValue::Void)]))),
    ]);
    let properties = plain()
        .with_headers(headers)
        .with_priority(3)
        .with_correlation_id("c".into())
        .with_expiration("600000".into())
        .with_timestamp(1_700_000_000);
    publish(&channel, "", &q, "", properties.clone()).await?;
    let got = get(&channel, &q, true).await?.delivery.properties;
    ensure!(got == properties, "{got:?}");
    Ok(())
}

async fn dead_letters(broker: Broker) -> Result<()> {
    let channel = broker.channel().await?;
    let (work, retry) = (name("work"), name("retry"));
    let to = |key: &ShortString| {
        table(&[
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(key.as_str())),
        ])
    };
    let exclusive = QueueDeclareOptions { exclusive: true, ..Default::default() };
    channel.queue_declare(work.clone(), exclusive, to(&retry)).await?;
    let mut back = to(&work);
    back.insert("x-message-ttl".into(), AMQPValue::LongInt(50));
    channel.queue_declare(retry.clone(), exclusive, back).await?;
    publish(&channel, "", &work, "x", plain()).await?;
    for attempt in 0..4 {
        let got = get(&channel, &work, false).await?.delivery;
        let wanted = match attempt {
            0 => vec![],
            _ => vec![format!("{retry} expired {attempt}"), format!("{work} rejected {attempt}")],
        };
        let found = deaths(&got.properties);
        ensure!(found == wanted, "{found:?} is not {wanted:?}");
        channel.basic_reject(got.delivery_tag, BasicRejectOptions { requeue: false }).await?;
    }
    Ok(())
}

async fn overflow(broker: Broker) -> Result<()> {
    let channel = broker.channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let one = ("x-max-length", AMQPValue::LongInt(1));
    let refusing = table(&[one.clone(), ("x-overflow", text("reject-publish"))]);
    let q = queue(&channel, refusing).await?;
    ensure!(publish(&channel, "", &q, "a", plain()).await?.await?.is_ack());
    ensure!(publish(&channel, "", &q, "b", plain()).await?.await?.is_nack());
    let q = queue(&channel, table(&[one])).await?;
    for text in ["a", "b"] {
        ensure!(publish(&channel, "", &q, text, plain()).await?.await?.is_ack());
    }
    ensure!(body(&channel, &q).await? == "b");
    Ok(())
}

async fn priorities(broker: Broker) -> Result<()> {
    let channel = broker.channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let q = queue(&channel, table(&[("x-max-priority", AMQPValue::ShortShortUInt(5))])).await?;
    for priority in [0, 3, 9, 3] {
        let properties = plain().with_priority(priority);
        publish(&channel, "", &q, &priority.to_string(), properties).await?.await?;
    }
    for wanted in ["9", "3", "3", "0"] {
        ensure!(body(&channel, &q).await? == wanted);
    }
    Ok(())
}

async fn calls(broker: Broker) -> Result<()> {
    let (client, server) = (broker.channel().await?, broker.channel().await?);
    let q = name("calls");
    let declare = QueueDeclareOptions { auto_delete: true, ..Default::default() };
    server.queue_declare(q.clone(), declare, FieldTable::default()).await?;
    let no_ack = BasicConsumeOptions { no_ack: true, ..Default::default() };
    let none = FieldTable::default;
    let mut requests = server.basic_consume(q.clone(), "".into(), no_ack, none()).await?;
    let address = ShortString::from("amq.rabbitmq.reply-to");
    let mut answers = client.basic_consume(address.clone(), "".into(), no_ack, none()).await?;
    let call = plain().with_reply_to(address).with_correlation_id("c".into());
    publish(&client, "", &q, "ping", call).await?;
    let request = next(&mut requests).await?;
    let to = request.properties.reply_to().clone().context("an address for the answer")?;
    publish(&server, "", &to, "pong", plain()).await?;
    ensure!(next(&mut answers).await?.data == b"pong");
    Ok(())
}

async fn large(broker: Broker) -> Result<()> {
    let channel = broker.channel().await?;
    let q = queue(&channel, FieldTable::default()).await?;
    let body: Vec<u8> = (0..4 << 20).map(|index| (index * 7) as u8).collect();
    let options = BasicPublishOptions::default();
    channel.basic_publish("".into(), q.clone(), options, &body, plain()).await?.await?;
    ensure!(get(&channel, &q, true).await?.delivery.data == body, "the body differs");
    Ok(())
}

async fn many(broker: Broker) -> Result<()> {
    let connection = broker.connect().await?;
    let channel = connection.create_channel().await?;
    let q = queue(&channel, FieldTable::default()).await?;
    let mut senders = Vec::new();
    for _ in 0..20 {
        let channel = connection.create_channel().await?;
        let q = q.clone();
        senders.push(tokio::spawn(async move {
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            for _ in 0..50 {
                publish(&channel, "", &q, "x", plain()).await?.await?;
            }
            Ok::<_, anyhow::Error>(())
        }));
    }
    for sender in senders {
        sender.await??;
    }
    ensure!(depth(&channel, &q).await? == 1_000);
    Ok(())
}

fn plain() -> BasicProperties {
    BasicProperties::default()
}

fn table(fields: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in fields {
        table.insert((*name).into(), value.clone());
    }
    table
}

async fn filled(channel: &Channel, count: usize, arguments: FieldTable) -> Result<ShortString> {
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let q = queue(channel, arguments).await?;
    for index in 0..count {
        publish(channel, "", &q, &index.to_string(), plain()).await?.await?;
    }
    Ok(q)
}
