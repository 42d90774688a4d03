//! Customers: connections that check out one after the other, and how long each answer took.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// What customers saw.
pub struct Seen {
    pub took: Duration,
    /// Microseconds.
    pub answers: Histogram<u64>,
}

impl Seen {
    pub fn per_second(&self) -> f64 {
        self.answers.len() as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }

    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.answers.value_at_quantile(quantile))
    }
}

/// So many customers at once, each again and again until the time is over, and once at least.
pub async fn run(
    at: SocketAddr,
    path: &'static str,
    customers: usize,
    time: Duration,
) -> anyhow::Result<Seen> {
    let begun = Instant::now();
    let each: Vec<_> =
        (0..customers).map(|_| tokio::spawn(customer(at, path, begun + time))).collect();
    let mut answers = Histogram::new(3)?;
    for one in each {
        answers.add(one.await??)?;
    }
    Ok(Seen { took: begun.elapsed(), answers })
}

async fn customer(at: SocketAddr, path: &str, until: Instant) -> anyhow::Result<Histogram<u64>> {
    let mut stream = TcpStream::connect(at).await?;
    stream.set_nodelay(true)?;
    let request = format!("POST {path} HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n");
    let mut answers = Histogram::new(3)?;
    loop {
        let begun = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let status = answer(&mut stream).await?;
        ensure!(status.starts_with("HTTP/1.1 20"), "the shop says: {status}");
        answers.record(u64::try_from(begun.elapsed().as_micros())?)?;
        if Instant::now() >= until {
            return Ok(answers);
        }
    }
}

/// The first line of an answer without a body.
async fn answer(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut some = [0; 1024];
    let mut filled = 0;
    loop {
        let read = stream.read(&mut some[filled..]).await?;
        ensure!(read > 0, "the shop hung up");
        filled += read;
        if some[..filled].ends_with(b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&some[..filled]);
            return Ok(text.lines().next().context("an empty answer")?.to_owned());
        }
    }
}
