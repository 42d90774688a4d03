//! A broker on a real port, and a native client with another WebSocket implementation.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use malote_front_http::{Limits, serve_connection};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_util::sync::CancellationToken;

use super::{Broker, check};

/// Long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A listening broker. Dropping it stops it.
pub struct Listening {
    pub broker: Broker,
    pub at: SocketAddr,
    _stop: tokio_util::sync::DropGuard,
}

pub async fn listening(limits: Limits) -> Listening {
    listen(Broker::limited(limits.clone(), |_| {}), limits).await
}

/// Starts a broker on a port.
pub async fn listen(broker: Broker, limits: Limits) -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let (router, shutdown) = (broker.router.clone(), broker.api.shutdown.clone());
    let stopped = stop.clone();
    tokio::spawn(async move {
        loop {
            let (stream, peer) = tokio::select! {
                accepted = listener.accept() => accepted.unwrap(),
                () = stopped.cancelled() => return,
            };
            stream.set_nodelay(true).unwrap();
            let (router, limits, shutdown) = (router.clone(), limits.clone(), shutdown.clone());
            tokio::spawn(
                async move { serve_connection(stream, router, peer, &limits, shutdown).await },
            );
        }
    });
    Listening { broker, at, _stop: stop.drop_guard() }
}

pub async fn start() -> Listening {
    let listening = listening(Limits::default()).await;
    listening.broker.put("/api/v1/queues/q", json!({})).await.expect(201);
    listening
}

/// A client that numbers its requests and stores other frames until they are read.
pub struct Client {
    pub socket: WebSocketStream<TcpStream>,
    pub packed: bool,
    pub welcome: Value,
    pub heard: Vec<Value>,
    document: Value,
    next: u64,
}

impl Client {
    pub async fn connect(to: &Listening) -> Self {
        Self::speaking(to, "malote.v1.json").await
    }

    pub async fn speaking(to: &Listening, protocol: &str) -> Self {
        let mut request = format!("ws://{}/api/v1/connect", to.at).into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
        let stream = TcpStream::connect(to.at).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (socket, response) = tokio_tungstenite::client_async(request, stream).await.unwrap();
        assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
        let packed = protocol.ends_with("msgpack");
        let document = to.broker.document.clone();
        let mut client =
            Self { socket, packed, welcome: Value::Null, heard: Vec::new(), document, next: 1 };
        client.welcome = client.wait_for("welcome").await;
        client
    }

    pub async fn say(&mut self, frames: Value) {
        for frame in frames.as_array().unwrap_or(&vec![frames.clone()]) {
            self.check("ClientFrame", frame);
        }
        let message = if self.packed {
            Message::Binary(rmp_serde::to_vec_named(&frames).unwrap().into())
        } else {
            Message::Text(frames.to_string().into())
        };
        self.socket.send(message).await.unwrap();
    }

    pub fn check(&self, schema: &str, frame: &Value) {
        let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
        check::validate(&self.document, &schema, frame, "frame").unwrap();
    }

    pub async fn listen(&mut self) {
        let message = tokio::time::timeout(PATIENCE, self.socket.next())
            .await
            .expect("silence")
            .unwrap()
            .unwrap();
        let value: Value = match message {
            Message::Text(text) => serde_json::from_str(&text).unwrap(),
            Message::Binary(bytes) => rmp_serde::from_slice(&bytes).unwrap(),
            Message::Ping(_) | Message::Pong(_) => return,
            other => panic!("{other:?}"),
        };
        let frames = if let Value::Array(frames) = value { frames } else { vec![value] };
        for frame in &frames {
            self.check("ServerFrame", frame);
        }
        self.heard.extend(frames);
    }

    pub async fn wait_until(&mut self, what: impl Fn(&Value) -> bool) -> Value {
        loop {
            if let Some(at) = self.heard.iter().position(&what) {
                return self.heard.remove(at);
            }
            self.listen().await;
        }
    }

    pub async fn wait_for(&mut self, kind: &str) -> Value {
        self.wait_until(|frame| frame.get(kind).is_some()).await[kind].clone()
    }

    pub async fn reply(&mut self, id: u64) -> Value {
        self.wait_until(|frame| frame["reply"]["id"] == id).await["reply"].clone()
    }

    /// Sends a request and waits for its reply.
    pub async fn ask(&mut self, kind: &str, mut inner: Value) -> Value {
        let id = self.next;
        self.next += 1;
        inner["id"] = id.into();
        self.say(json!({kind: inner})).await;
        self.reply(id).await
    }

    #[track_caller]
    pub fn ok(reply: Value) -> Value {
        assert!(reply.get("problem").is_none(), "{reply}");
        reply["ok"].clone()
    }

    pub async fn send(&mut self, bodies: &[&str]) {
        let messages: Vec<Value> =
            bodies.iter().map(|b| json!({"queue": "q", "body": b})).collect();
        Self::ok(self.ask("send", json!({"messages": messages})).await);
    }

    /// Waits for this many delivered messages.
    pub async fn messages(&mut self, count: usize) -> Vec<Value> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.wait_for("deliver").await["messages"].as_array().unwrap().clone());
        }
        all
    }

    /// Checks that nothing is delivered for a while.
    pub async fn quiet(&mut self) {
        let more = tokio::time::timeout(Duration::from_millis(100), self.wait_for("deliver")).await;
        assert!(more.is_err(), "{more:?}");
    }
}

pub fn bodies(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(|m| m["body"].as_str().unwrap()).collect()
}
