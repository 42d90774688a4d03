//! A small HTTP client for the management API.
#![allow(dead_code, reason = "not every test uses everything")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test by the real clock")]

use std::sync::Arc;
use std::time::Duration;

use malote_engine::History;
use malote_front_amqp091::{ListenerFacts, ManagementApi, management_busy};
use malote_http::{Budget, ConnectionLimits, serve_connection};
use malote_model::WebGuard;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::common::World;

pub struct Management {
    port: u16,
    pub history: Arc<History>,
    /// User and password, separated by a colon.
    pub credential: Option<String>,
    pub headers: Vec<String>,
}

impl Management {
    /// Serves the API of a world on a port of its own.
    pub async fn of(world: &World) -> Management {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let history = Arc::<History>::default();
        history.begin(&world.engine).await.unwrap();
        let api = ManagementApi::new(world.front.clone(), history.clone(), WebGuard::default());
        api.set_listeners(vec![ListenerFacts { protocol: "http", address }]);
        let shutdown = world.shutdown.clone();
        let limits = ConnectionLimits {
            head_time_max: Duration::from_secs(60),
            idle_time_max: Duration::from_secs(60),
            head_bytes_max: 64 << 10,
            write_pause_max: Duration::from_secs(60),
            pages: Budget::new(1 << 24, 1 << 24),
            received: Budget::new(1 << 24, 1 << 24),
        };
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let (router, limits, shutdown) = (api.router(), limits.clone(), shutdown.clone());
                tokio::spawn(async move {
                    let busy = management_busy;
                    serve_connection(stream, router, peer, &limits, busy, shutdown).await
                });
            }
        });
        let credential = Some("guest:guest".to_owned());
        Management { port: address.port(), history, credential, headers: Vec::new() }
    }

    /// Sends a request; returns the head and the body of the answer.
    pub async fn send(&mut self, method: &str, path: &str, body: &str) -> (String, String) {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        if let Some(credential) = &self.credential {
            let encoded = data_encoding::BASE64.encode(credential.as_bytes());
            head.push_str(&format!("Authorization: Basic {encoded}\r\n"));
        }
        for header in &self.headers {
            head.push_str(&format!("{header}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let body = match head.contains("transfer-encoding: chunked") {
            true => joined(body),
            false => body.to_owned(),
        };
        (head.to_owned(), body)
    }

    /// The status and the JSON of an answer; null for an empty one.
    pub async fn ask(&mut self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let (head, answer) = self.send(method, path, &text).await;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let value = match answer.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap(),
        };
        (status, value)
    }

    /// The JSON of a GET that succeeds.
    pub async fn get(&mut self, path: &str) -> Value {
        let (status, value) = self.ask("GET", path, Value::Null).await;
        assert_eq!(status, 200, "{path}: {value}");
        value
    }
}

/// The chunks of a body.
fn joined(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(&after[..size]);
        rest = &after[size + 2..];
        if size == 0 {
            break;
        }
    }
    body
}
