//! A minimal AMQP 0-9-1 client. It encodes a publication once and copies it, because the work of the client is not
//! measured.

use std::collections::VecDeque;

use anyhow::{Context as _, bail, ensure};
use bytes::{Bytes, BytesMut};
use malote_front_amqp091::wire::content::put_content;
use malote_front_amqp091::wire::frame::{
    Frame, FrameDecoder, FrameKind, PROTOCOL_HEADER, put_method,
};
use malote_front_amqp091::wire::method::{
    EncodeMethod, Method, basic, channel, confirm, connection, queue,
};
use malote_front_amqp091::wire::properties::BasicProperties;
use malote_front_amqp091::wire::table::FieldTable;
use malote_front_amqp091::wire::text::ShortString;
use malote_measure::{Latency, Stopwatch};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const FRAME_MAX: u32 = 131_072;
const CHANNEL: u16 = 1;
const PERSISTENT: u8 = 2;

/// Where the broker is: `amqp://user:password@host:port/vhost`.
#[derive(Clone, Debug)]
pub(super) struct Address {
    at: String,
    user: String,
    password: String,
    vhost: String,
}

impl std::str::FromStr for Address {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> anyhow::Result<Address> {
        let rest = url.strip_prefix("amqp://").context("the URL must begin with amqp://")?;
        let (login, rest) = rest.split_once('@').unwrap_or(("guest:guest", rest));
        let (user, password) = login.split_once(':').context("user:password is missing")?;
        let (at, vhost) = rest.split_once('/').unwrap_or((rest, "%2F"));
        let at = if at.contains(':') { at.to_owned() } else { format!("{at}:5672") };
        let decoded = |text: &str| {
            let text = percent_encoding::percent_decode_str(text).decode_utf8();
            text.map(|text| text.into_owned())
        };
        let (user, password) = (decoded(user)?, decoded(password)?);
        Ok(Address { at, user, password, vhost: decoded(vhost)? })
    }
}

pub(super) struct Client {
    stream: TcpStream,
    input: BytesMut,
    decoder: FrameDecoder,
    out: BytesMut,
}

fn short(text: &str) -> ShortString {
    ShortString::truncated(text)
}

impl Client {
    /// Opens a connection with one channel.
    pub(super) async fn connect(to: &Address) -> anyhow::Result<Client> {
        let stream = TcpStream::connect(&to.at).await.context("cannot connect to the broker")?;
        stream.set_nodelay(true)?;
        let mut decoder = FrameDecoder::default();
        decoder.set_frame_max(FRAME_MAX);
        let (input, out) = (BytesMut::with_capacity(1 << 20), BytesMut::new());
        let mut client = Client { stream, input, decoder, out };
        client.out.extend_from_slice(&PROTOCOL_HEADER);
        client.call(|method| matches!(method, Method::ConnectionStart(_))).await?;
        let start_ok = connection::StartOk {
            client_properties: FieldTable::default(),
            mechanism: short("PLAIN"),
            response: Bytes::from(format!("\0{}\0{}", to.user, to.password)),
            locale: short("en_US"),
        };
        client.put(0, &start_ok);
        client.call(|method| matches!(method, Method::ConnectionTune(_))).await?;
        let tune_ok = connection::TuneOk { channel_max: 2_047, frame_max: FRAME_MAX, heartbeat: 0 };
        client.put(0, &tune_ok);
        let virtual_host = short(&to.vhost);
        client.put(0, &connection::Open { virtual_host, ..Default::default() });
        client.call(|method| matches!(method, Method::ConnectionOpenOk(_))).await?;
        client.put(CHANNEL, &channel::Open::default());
        client.call(|method| matches!(method, Method::ChannelOpenOk(_))).await?;
        Ok(client)
    }

    fn put(&mut self, channel: u16, method: &impl EncodeMethod) {
        put_method(&mut self.out, channel, method);
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        self.stream.write_all(&self.out).await?;
        self.out.clear();
        Ok(())
    }

    /// Writes everything and waits for a method.
    async fn call(&mut self, is: impl Fn(&Method) -> bool) -> anyhow::Result<Method> {
        self.flush().await?;
        loop {
            let frame = self.frame().await?;
            if frame.kind == FrameKind::Method {
                match Method::decode(&frame.payload) {
                    Ok(method) if is(&method) => return Ok(method),
                    Ok(Method::ConnectionClose(close)) => bail!("{}", close.reply_text),
                    Ok(Method::ChannelClose(close)) => bail!("{}", close.reply_text),
                    _ => {}
                }
            }
        }
    }

    async fn frame(&mut self) -> anyhow::Result<Frame> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            self.read().await?;
        }
    }

    /// The next frame that has arrived.
    fn buffered(&mut self) -> anyhow::Result<Option<Frame>> {
        let decoded = self.decoder.decode(&mut self.input);
        decoded.map_err(|exception| anyhow::anyhow!("{exception}"))
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        self.input.reserve(256 << 10);
        let count = self.stream.read_buf(&mut self.input).await?;
        ensure!(count > 0, "the broker closed the connection");
        Ok(())
    }

    /// Declares a durable queue, empties it, and leaves it empty.
    pub(super) async fn declare(&mut self, name: &str, quorum: bool) -> anyhow::Result<()> {
        let kind = if quorum { "quorum" } else { "classic" };
        let arguments = FieldTable::builder().with("x-queue-type", kind).build();
        let queue = short(name);
        let declare =
            queue::Declare { queue: queue.clone(), durable: true, arguments, ..Default::default() };
        self.put(CHANNEL, &declare);
        self.call(|method| matches!(method, Method::QueueDeclareOk(_))).await?;
        self.put(CHANNEL, &queue::Purge { queue, ..Default::default() });
        self.call(|method| matches!(method, Method::QueuePurgeOk(_))).await?;
        Ok(())
    }

    pub(super) async fn delete(&mut self, name: &str) -> anyhow::Result<()> {
        self.put(CHANNEL, &queue::Delete { queue: short(name), ..Default::default() });
        self.call(|method| matches!(method, Method::QueueDeleteOk(_))).await?;
        Ok(())
    }

    pub(super) async fn select_confirms(&mut self) -> anyhow::Result<()> {
        self.put(CHANNEL, &confirm::Select::default());
        self.call(|method| matches!(method, Method::ConfirmSelectOk(_))).await?;
        Ok(())
    }

    /// Publishes to a queue while `more` says so, with at most `window` unconfirmed messages. `more` gets the number of
    /// messages published so far and returns how many may be now. Returns the latencies of all confirms.
    pub(super) async fn publish(
        &mut self,
        queue: &str,
        body_bytes: usize,
        window: usize,
        mut more: impl FnMut(u64) -> Option<u64>,
    ) -> anyhow::Result<Latency> {
        let mut publication = BytesMut::new();
        let publish = basic::Publish { routing_key: short(queue), ..Default::default() };
        let properties =
            BasicProperties { delivery_mode: Some(PERSISTENT), ..Default::default() }.encode();
        let body = vec![b'x'; body_bytes];
        put_content(&mut publication, CHANNEL, FRAME_MAX, &publish, &properties, &body);
        let mut latency = Latency::default();
        let mut unconfirmed: VecDeque<Stopwatch> = VecDeque::new();
        let (mut published, mut confirmed) = (0_u64, 0_u64);
        loop {
            let allowed = more(published);
            let room = (window - unconfirmed.len()) as u64;
            let now = Stopwatch::start();
            for _ in 0..allowed.unwrap_or(0).min(room) {
                self.out.extend_from_slice(&publication);
                unconfirmed.push_back(now);
                published += 1;
            }
            if !self.out.is_empty() {
                self.flush().await?;
            }
            if unconfirmed.is_empty() {
                match allowed {
                    None => return Ok(latency),
                    Some(_) => tokio::time::sleep(PACE).await,
                }
                continue;
            }
            // With room for more, a paced publisher does not wait for the broker.
            let paced = allowed.is_some_and(|allowed| allowed < room);
            match paced {
                true => {
                    drop(tokio::time::timeout(PACE, self.read()).await.map(|read| read.is_ok()))
                }
                false => self.read().await?,
            }
            while let Some(frame) = self.buffered()? {
                match Method::decode(&frame.payload) {
                    Ok(Method::BasicAck(basic::Ack { delivery_tag, multiple })) => {
                        // Single confirms may come in any order; the oldest publication is counted.
                        let count = if multiple { delivery_tag - confirmed } else { 1 };
                        confirmed += count;
                        for begun in unconfirmed.drain(..(count as usize).min(unconfirmed.len())) {
                            latency.record(begun.elapsed());
                        }
                    }
                    Ok(Method::ConnectionClose(close)) => bail!("{}", close.reply_text),
                    Ok(Method::ChannelClose(close)) => bail!("{}", close.reply_text),
                    Ok(Method::BasicNack(_)) => bail!("the broker refused a message"),
                    _ => {}
                }
            }
        }
    }

    pub(super) async fn start_consumer(
        &mut self,
        queue: &str,
        prefetch: u16,
    ) -> anyhow::Result<()> {
        let prefetch_count = prefetch;
        self.put(CHANNEL, &basic::Qos { prefetch_count, ..Default::default() });
        self.put(CHANNEL, &basic::Consume { queue: short(queue), ..Default::default() });
        self.call(|method| matches!(method, Method::BasicConsumeOk(_))).await?;
        Ok(())
    }

    /// Acknowledges the messages that have arrived, one by one, and waits for more. Returns their number.
    pub(super) async fn consume(&mut self) -> anyhow::Result<u64> {
        let mut count = 0;
        while let Some(frame) = self.buffered()? {
            if frame.kind != FrameKind::Method {
                continue;
            }
            match Method::decode(&frame.payload) {
                Ok(Method::BasicDeliver(basic::Deliver { delivery_tag, .. })) => {
                    self.put(CHANNEL, &basic::Ack { delivery_tag, multiple: false });
                    count += 1;
                }
                Ok(Method::ConnectionClose(close)) => bail!("{}", close.reply_text),
                Ok(Method::ChannelClose(close)) => bail!("{}", close.reply_text),
                _ => {}
            }
        }
        if count > 0 {
            self.flush().await?;
        } else {
            self.read().await?;
        }
        Ok(count)
    }
}

/// How long a paced publisher waits before it looks at the clock again.
const PACE: std::time::Duration = std::time::Duration::from_micros(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_defaults() {
        let full: Address = "amqp://a%40b:c@host:1/dev".parse().unwrap();
        assert_eq!((&*full.at, &*full.user, &*full.vhost), ("host:1", "a@b", "dev"));
        let bare: Address = "amqp://host".parse().unwrap();
        assert_eq!((&*bare.at, &*bare.password, &*bare.vhost), ("host:5672", "guest", "/"));
        assert!("http://host".parse::<Address>().is_err());
    }
}
