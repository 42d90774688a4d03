//! Hostile and broken clients: the server keeps running, uses little memory, and serves other clients.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::Server;

fn answer(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut bytes = vec![0; 64 << 10];
    let got = stream.read(&mut bytes).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..got]).into_owned()
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The number of sockets to open: 10,000, or fewer if the process may not open as many. The guard makes sure that only one
/// test at a time opens many sockets.
fn may_open_many() -> (usize, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    // Reserve for the other open files of this process and the server.
    let most = limit.maximum.map_or(u64::MAX, |most| most.saturating_sub(1000));
    (most.min(10_000) as usize, alone)
}

/// The number of receivers that wait for a message of `orders`.
fn waiting(server: &Server) -> usize {
    let queue = server.ok("queue get orders -o json --timeout 5m");
    let queue: serde_json::Value = serde_json::from_str(&queue).unwrap();
    queue["counts"]["consumers"].as_u64().unwrap() as usize
}

fn has_answer(stream: &TcpStream) -> bool {
    stream.peek(&mut [0]).is_ok()
}

#[test]
fn ten_thousand_idle_connections_need_little_memory_and_block_no_one() {
    let (count, _alone) = may_open_many();
    let server = Server::start();
    server.ok("queue create orders");
    let before = server.resident_mib();
    let idle: Vec<TcpStream> = (0..count)
        .map(|n| {
            let mut stream = server.connect();
            match n % 3 {
                0 => {}
                1 => stream.write_all(b"GET /livez HTT").unwrap(),
                _ => stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap(),
            }
            stream
        })
        .collect();
    server.ok("send orders hello --timeout 5m");
    assert!(server.ok("receive orders --timeout 5m").contains("hello"));
    // The resident size can shrink if the machine is short of memory.
    let grown = server.resident_mib().saturating_sub(before);
    assert!(grown < 400, "{count} idle connections cost {grown} MiB");
    drop(idle);
    server.ok("queue ls");
}

#[test]
fn disconnected_receivers_get_no_messages() {
    let server = Server::start();
    server.ok("queue create orders");
    let receivers: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = server.connect();
            let ask = post("/api/v1/queues/orders/receive", r#"{"max":1,"wait_ms":20000}"#);
            stream.write_all(ask.as_bytes()).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    // On a slow machine, the first wait ends before the last receiver connects.
    while waiting(&server) < 100 && !has_answer(&receivers[0]) {}
    drop(receivers);
    // A receiver gets no messages once the server has noticed that it disconnected.
    while waiting(&server) > 0 {}
    server.ok("send orders hello");
    assert!(server.ok("receive orders --wait 20s").contains("hello"));
}

#[test]
fn ten_thousand_polls_of_sqs_wait_for_one_message() {
    let (count, _alone) = may_open_many();
    let server = Server::start();
    server.ok("queue create orders --lock 10m");
    let before = server.resident_mib();
    let body = r#"{"QueueUrl":"http://localhost/000000000000/orders","WaitTimeSeconds":20}"#;
    let ask = format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\n\
         content-type: application/x-amz-json-1.0\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut polls: Vec<Poll> = (0..count)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(ask.as_bytes()).unwrap();
            stream.set_nonblocking(true).unwrap();
            Poll { stream, is_over: false }
        })
        .collect();
    // On a slow machine, the first wait ends before the last receiver connects.
    while waiting(&server) < count && !has_answer(&polls[0].stream) {}
    let grown = server.resident_mib().saturating_sub(before);
    assert!(grown < 600, "{count} waiting connections cost {grown} MiB");

    server.ok("send orders first");
    assert_eq!(receivers(&server, &mut polls, "first"), 1);
    // Disconnected clients get no messages once the server has noticed it.
    polls.truncate(100);
    while waiting(&server) > 100 {}
    server.ok("send orders second");
    assert_eq!(receivers(&server, &mut polls, "second"), 1);
}

/// A client with one long poll.
struct Poll {
    stream: TcpStream,
    /// Whether the poll was answered, possibly without a message.
    is_over: bool,
}

/// The number of clients that got the message. If all polls have ended, another receive counts.
fn receivers(server: &Server, polls: &mut [Poll], word: &str) -> usize {
    let mut seen = 0;
    while seen == 0 && polls.iter().any(|poll| !poll.is_over) {
        for poll in &mut *polls {
            let mut bytes = [0; 4096];
            let read = poll.stream.read(&mut bytes).unwrap_or(0);
            poll.is_over |= read > 0;
            seen += usize::from(String::from_utf8_lossy(&bytes[..read]).contains(word));
        }
    }
    seen + server.ok("receive orders").matches(word).count()
}

#[test]
fn a_client_that_does_not_read_uses_little_memory() {
    let server = Server::start();
    server.ok("queue create big");
    let body = "x".repeat(900 << 10);
    for _ in 0..10 {
        let said = server.run_with("send big -", &body);
        assert_eq!(said.code, 0, "{said}");
    }
    let before = server.resident_mib();
    let slow: Vec<TcpStream> = (0..10)
        .map(|_| {
            let mut stream = server.connect();
            stream
                .write_all(
                    b"GET /api/v1/queues/big/messages?max=10 HTTP/1.1\r\nhost: localhost\r\n\r\n",
                )
                .unwrap();
            stream
        })
        .collect();
    // The debug build needs time to write ten answers of 9 MiB.
    server.ok("send big small --timeout 5m");
    server.ok("queue ls --timeout 5m");
    let grown = server.resident_mib().saturating_sub(before);
    assert!(grown < 400, "10 slow readers of 9 MiB each cost {grown} MiB");
    drop(slow);
}

#[test]
fn too_large_bodies_are_refused_before_they_are_read() {
    let server = Server::start();
    server.ok("queue create orders");
    let mut huge = server.connect();
    huge.write_all(b"POST /api/v1/queues/orders/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n").unwrap();
    assert!(answer(&mut huge).starts_with("HTTP/1.1 413"), "the Content-Length alone is refused");
    let mut endless = server.connect();
    endless.write_all(b"POST /api/v1/queues/orders/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    let refused = (0..200).any(|_| endless.write_all(chunk.as_bytes()).is_err());
    assert!(
        refused || answer(&mut endless).starts_with("HTTP/1.1 413"),
        "a body without end is cut off"
    );
    assert!(server.resident_mib() < 400);
    assert!(
        server.ok("queue get orders -o json").contains("\"ready\": 0"),
        "nothing of it was kept"
    );
}

#[test]
fn connections_with_random_bytes_are_closed() {
    let server = Server::start();
    for noise in [
        &b"\0\0\0\0\0\0\0\0"[..],
        b"AMQP\x03\x01\x00\x00",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n\r\n\r\n",
    ] {
        let mut stream = server.connect();
        stream.write_all(noise).unwrap();
        // The server may have closed the connection already.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = answer(&mut stream);
    }
    server.ok("queue ls");
}
