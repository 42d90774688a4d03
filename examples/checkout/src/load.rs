//! Simulated customers: connections that check out repeatedly, and the latencies they measure.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// The result of a load.
pub struct LoadResult {
    pub took: Duration,
    /// Latencies in microseconds.
    pub latencies: Histogram<u64>,
}

impl LoadResult {
    pub fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }

    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.latencies.value_at_quantile(quantile))
    }
}

/// Runs concurrent customers. Each checks out at least once, and again until the time is over.
pub async fn run(
    address: SocketAddr,
    path: &'static str,
    customers: usize,
    time: Duration,
) -> anyhow::Result<LoadResult> {
    let begun = Instant::now();
    let customers_running: Vec<_> =
        (0..customers).map(|_| tokio::spawn(customer(address, path, begun + time))).collect();
    let mut latencies = Histogram::new(3)?;
    for one in customers_running {
        latencies.add(one.await??)?;
    }
    Ok(LoadResult { took: begun.elapsed(), latencies })
}

async fn customer(
    address: SocketAddr,
    path: &str,
    until: Instant,
) -> anyhow::Result<Histogram<u64>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let request = format!("POST {path} HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n");
    let mut latencies = Histogram::new(3)?;
    loop {
        let begun = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let status = read_status(&mut stream).await?;
        ensure!(status.starts_with("HTTP/1.1 20"), "the shop answered: {status}");
        latencies.record(u64::try_from(begun.elapsed().as_micros())?)?;
        if Instant::now() >= until {
            return Ok(latencies);
        }
    }
}

/// The status line of a response without a body.
async fn read_status(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut buffer = [0; 1024];
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        ensure!(read > 0, "the shop closed the connection");
        filled += read;
        if buffer[..filled].ends_with(b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&buffer[..filled]);
            return Ok(text.lines().next().context("the response is empty")?.to_owned());
        }
    }
}
