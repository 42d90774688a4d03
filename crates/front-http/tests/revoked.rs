//! Permissions are checked again when they change: for consumers, waits, staged operations and connections.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::Broker;
use common::client::{Client, Listening, PATIENCE, listen};
use futures_util::StreamExt;
use malote_front_http::{Authenticate, Authenticated, Limits};
use malote_model::access::Changed;
use malote_model::{Access, Action, Denied, Principal, Resource};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

/// Allows everything until it is switched off.
struct Switch {
    allowed: Mutex<bool>,
    known: Mutex<bool>,
    version: watch::Sender<u64>,
}

impl Switch {
    fn set(&self, allowed: bool, known: bool) {
        (*self.allowed.lock(), *self.known.lock()) = (allowed, known);
        self.version.send_modify(|version| *version += 1);
    }
}

impl Access for Switch {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        if *self.allowed.lock() { Ok(()) } else { Err(Denied::new(who, action, on)) }
    }

    fn knows(&self, _: &Principal) -> bool {
        *self.known.lock()
    }

    fn version(&self) -> u64 {
        *self.version.borrow()
    }

    fn changed(&self, seen: u64) -> Changed<'_> {
        let mut version = self.version.subscribe();
        Box::pin(async move {
            let other = version.wait_for(|version| *version != seen).await.map(|other| *other);
            other.unwrap_or(seen)
        })
    }
}

/// Every caller is Ana.
struct Ana;

impl Authenticate for Ana {
    fn authenticate<'a>(
        &'a self,
        _: &'a axum::http::HeaderMap,
        _: std::net::IpAddr,
    ) -> Authenticated<'a> {
        Box::pin(async { Ok(Principal::named("ana")) })
    }
}

async fn start() -> (Listening, Arc<Switch>) {
    let switch = Arc::new(Switch {
        allowed: Mutex::new(true),
        known: Mutex::new(true),
        version: watch::Sender::new(0),
    });
    let access = switch.clone();
    let broker = Broker::with(|api| {
        (api.access, api.authenticate) = (access, Arc::new(Ana));
    });
    broker.put("/api/v1/queues/q", json!({})).await.expect(201);
    (listen(broker, Limits::default()).await, switch)
}

#[tokio::test]
async fn a_consumer_ends_and_staged_operations_are_not_committed() {
    let (to, switch) = start().await;
    let mut client = Client::connect(&to).await;
    Client::ok(client.ask("attach", json!({"consumer": 7, "queue": "q", "credit": 9})).await);
    Client::ok(client.ask("begin", json!({"transaction": 1})).await);
    let staged = json!({"transaction": 1, "messages": [{"queue": "q", "body": "late"}]});
    Client::ok(client.ask("send", staged).await);
    switch.set(false, true);
    let ended = client.wait_for("ended").await;
    assert_eq!((&ended["consumer"], &ended["problem"]["code"]), (&json!(7), &json!("forbidden")));
    let committed = client.ask("commit", json!({"transaction": 1})).await;
    assert_eq!(committed["problem"]["code"], "forbidden", "{committed}");
    switch.set(true, true);
    let facts = to.broker.get("/api/v1/queues/q").await.expect(200);
    let counts = &facts["counts"];
    assert_eq!((&counts["ready"], &counts["consumers"]), (&json!(0), &json!(0)), "{facts}");
    // The connection itself still works.
    Client::ok(client.ask("attach", json!({"consumer": 8, "queue": "q", "credit": 9})).await);
}

#[tokio::test]
async fn a_connection_with_a_removed_credential_is_closed() {
    let (to, switch) = start().await;
    let mut client = Client::connect(&to).await;
    Client::ok(client.ask("attach", json!({"consumer": 7, "queue": "q", "credit": 9})).await);
    switch.set(false, false);
    let closed = tokio::time::timeout(PATIENCE, async {
        loop {
            match client.socket.next().await {
                Some(Ok(Message::Close(Some(close)))) => return close.code,
                Some(Ok(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    });
    assert_eq!(closed.await.unwrap(), CloseCode::Policy);
    assert_eq!(to.broker.get("/api/v1/queues/q").await.problem(401), "unauthenticated");
}

#[tokio::test]
async fn a_wait_ends_when_it_is_no_longer_allowed() {
    let (to, switch) = start().await;
    let waiting = to.broker.post("/api/v1/queues/q/receive", json!({"wait_ms": 20_000}));
    let revoke = async {
        while to.broker.get("/api/v1/queues/q").await.expect(200)["counts"]["consumers"] == 0 {
            tokio::task::yield_now().await;
        }
        switch.set(false, true);
    };
    let (answer, ()) = tokio::join!(waiting, revoke);
    assert_eq!(answer.problem(403), "forbidden");
}
