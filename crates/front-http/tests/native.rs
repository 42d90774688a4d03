//! The native connection over a real socket, with another WebSocket implementation as the client.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::client::{Client, Listening, PATIENCE, bodies, listening, start};
use futures_util::{SinkExt, StreamExt};
use malote_front_http::Limits;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

/// Long enough for a slow machine to resume in time.
const GRACE: Duration = Duration::from_secs(10);

/// A broker with a long grace time for lost connections.
async fn broker_with_long_grace() -> Listening {
    let to = listening(Limits { reconnect_grace: GRACE, ..Limits::default() }).await;
    to.broker.put("/api/v1/queues/q", json!({})).await.expect(201);
    to
}

async fn counts(to: &Listening) -> Value {
    to.broker.get("/api/v1/queues/q").await.expect(200)["counts"].clone()
}

#[tokio::test]
async fn send_attach_deliver_settle() {
    let to = start().await;
    for protocol in ["malote.v1.json", "malote.v1.msgpack"] {
        let mut client = Client::speaking(&to, protocol).await;
        // Attach and credit in one message, without waiting for either.
        client
            .say(json!([
                {"attach": {"id": 100, "consumer": 7, "queue": "q", "credit": 1}},
                {"credit": {"id": 101, "consumer": 7, "credit": 9}},
            ]))
            .await;
        client.send(&["a", "b", "c"]).await;
        Client::ok(client.reply(100).await);
        Client::ok(client.reply(101).await);
        let got = client.messages(3).await;
        assert_eq!(bodies(&got), ["a", "b", "c"]);
        let leases: Vec<&Value> = got.iter().map(|m| &m["lease"]).collect();
        let items = json!([
            {"leases": [leases[0], leases[1]], "outcome": "complete"},
            {"leases": [leases[2], "junk"], "outcome": "dead_letter", "reason": "Bad"},
        ]);
        let settled = Client::ok(client.ask("settle", json!({"queue": "q", "items": items})).await);
        let fine: Vec<bool> =
            settled["results"].as_array().unwrap().iter().map(|r| r["ok"] == true).collect();
        assert_eq!(fine, [true, true, true, false]);
        Client::ok(client.ask("ping", json!({})).await);
        Client::ok(client.ask("detach", json!({"consumer": 7})).await);
        client.socket.close(None).await.unwrap();
    }
    assert_eq!(to.broker.get("/api/v1/queues/q").await.expect(200)["totals"]["completed"], 4);
}

#[tokio::test]
async fn the_depth_of_a_queue_is_reported() {
    let to = start().await;
    for protocol in ["malote.v1.json", "malote.v1.msgpack"] {
        let mut client = Client::speaking(&to, protocol).await;
        let before = Client::ok(client.ask("depth", json!({"queue": "q"})).await)["depth"].clone();
        client.send(&["a", "b"]).await;
        let after = Client::ok(client.ask("depth", json!({"queue": "q"})).await)["depth"].clone();
        let more = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
        assert_eq!((more("ready"), more("sent"), more("in_flight")), (2, 2, 0), "{after}");
        assert_eq!((&after["paused"], &after["sessions"]), (&json!(false), &Value::Null));
        let missing = client.ask("depth", json!({"queue": "nowhere"})).await;
        assert_eq!(missing["problem"]["code"], "queue_not_found", "{missing}");
    }
}

#[tokio::test]
async fn credit_is_honoured() {
    let to = start().await;
    let mut client = Client::connect(&to).await;
    client.send(&["a", "b", "c", "d", "e"]).await;
    Client::ok(client.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 2})).await);
    assert_eq!(bodies(&client.messages(2).await), ["a", "b"]);
    client.quiet().await;
    Client::ok(client.ask("credit", json!({"consumer": 1, "credit": 1})).await);
    assert_eq!(bodies(&client.messages(1).await), ["c"]);
    client.quiet().await;
    Client::ok(client.ask("credit", json!({"consumer": 1, "credit": 10})).await);
    assert_eq!(bodies(&client.messages(2).await), ["d", "e"]);
    Client::ok(client.ask("credit", json!({"consumer": 1, "credit": 0, "replace": true})).await);
    client.send(&["f"]).await;
    client.quiet().await;
}

#[tokio::test]
async fn more_credit_than_a_window_delivers_all_of_it() {
    let to = start().await;
    let mut client = Client::connect(&to).await;
    let texts: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    client.send(&texts.iter().map(String::as_str).collect::<Vec<_>>()).await;
    Client::ok(client.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 450})).await);
    let got = client.messages(450).await;
    assert_eq!(bodies(&got), texts[..450].iter().map(String::as_str).collect::<Vec<_>>());
    client.quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_sends_keep_their_order_and_fail_each_for_its_own_reason() {
    const FRAMES: u64 = 3000;
    // All sends may wait, because a send without a slot is refused while the disk is slow.
    let to = listening(Limits { sends_max: FRAMES as usize, ..Limits::default() }).await;
    to.broker.put("/api/v1/queues/q", json!({})).await.expect(201);
    let mut client = Client::connect(&to).await;
    let wrong = |n: u64| n % 500 == 7;
    for chunk in (0..FRAMES).collect::<Vec<_>>().chunks(100) {
        let frame = |n: &u64| {
            let second = if wrong(*n) { "missing" } else { "q" };
            let messages = json!([{"queue": "q", "body": n.to_string()}, {"queue": second, "body": n.to_string()}]);
            json!({"send": {"id": n + 1000, "messages": messages}})
        };
        client.say(Value::Array(chunk.iter().map(frame).collect())).await;
    }
    let mut seqs = Vec::new();
    for n in 0..FRAMES {
        let reply = client.reply(n + 1000).await;
        if wrong(n) {
            assert_eq!(reply["problem"]["code"], "queue_not_found", "{reply}");
            continue;
        }
        let sent = Client::ok(reply)["messages"].clone();
        assert_eq!(sent.as_array().unwrap().len(), 2);
        seqs.extend(sent.as_array().unwrap().iter().map(|m| m["seq"].as_u64().unwrap()));
    }
    assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]));
    let want: Vec<String> =
        (0..FRAMES).filter(|n| !wrong(*n)).flat_map(|n| [n.to_string(), n.to_string()]).collect();
    let (mut have, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let page = to
            .broker
            .get(&format!("/api/v1/queues/q/messages?max=1000&from={at}"))
            .await
            .expect(200);
        have.extend(bodies(page["messages"].as_array().unwrap()).into_iter().map(str::to_owned));
        from = page["next"].as_u64();
    }
    assert_eq!(have, want);
}

#[tokio::test]
async fn a_resumed_connection_keeps_its_leases_and_consumers() {
    let to = broker_with_long_grace().await;
    let mut client = Client::connect(&to).await;
    client.send(&["a", "b", "c"]).await;
    Client::ok(client.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 2})).await);
    let got = client.messages(2).await;
    let Client { socket, welcome, .. } = client;
    drop(socket); // no close frame: the socket is lost
    let mut client = Client::connect(&to).await;
    let resume = json!({
        "connection": welcome["connection"], "secret": welcome["secret"], "leases": [got[0]["lease"], got[1]["lease"]],
    });
    let resumed = Client::ok(client.ask("resume", resume).await);
    assert_eq!(resumed, json!({"connection": welcome["connection"], "consumers": [1]}));
    Client::ok(client.ask("credit", json!({"consumer": 1, "credit": 1})).await);
    assert_eq!(bodies(&client.messages(1).await), ["c"]);
    let items = json!([{"leases": [got[0]["lease"], got[1]["lease"]], "outcome": "complete"}]);
    let settled = Client::ok(client.ask("settle", json!({"queue": "q", "items": items})).await);
    assert!(settled["results"].as_array().unwrap().iter().all(|r| r["ok"] == true), "{settled}");
    // The grace time of the first socket ends; the connection continues on its second.
    tokio::time::sleep(GRACE + Duration::from_millis(200)).await;
    assert_eq!(counts(&to).await["locked"], 1);
}

#[tokio::test]
async fn leases_unknown_to_a_resumed_client_are_delivered_again() {
    let to = broker_with_long_grace().await;
    let mut client = Client::connect(&to).await;
    client.send(&["a", "b"]).await;
    Client::ok(client.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 2})).await);
    let got = client.messages(2).await;
    let Client { socket, welcome, .. } = client;
    drop(socket);
    let mut client = Client::connect(&to).await;
    let known = json!([got[0]["lease"]]);
    let resume =
        json!({"connection": welcome["connection"], "secret": welcome["secret"], "leases": known});
    Client::ok(client.ask("resume", resume).await);
    Client::ok(client.ask("credit", json!({"consumer": 1, "credit": 1})).await);
    let again = client.messages(1).await;
    assert_eq!((bodies(&again), &again[0]["failed"]), (vec!["b"], &json!(0)));
}

#[tokio::test]
async fn a_session_unknown_to_a_resumed_client_is_released() {
    let to = broker_with_long_grace().await;
    to.broker.put("/api/v1/queues/s", json!({"sessions": "dynamic"})).await.expect(201);
    let mut client = Client::connect(&to).await;
    let messages = json!([{"queue": "s", "session": "x", "body": "1"}, {"queue": "s", "session": "y", "body": "2"}]);
    Client::ok(client.ask("send", json!({"messages": messages})).await);
    let known = Client::ok(client.ask("accept", json!({"queue": "s", "session": "x"})).await);
    Client::ok(client.ask("accept", json!({"queue": "s", "session": "y"})).await);
    let Client { socket, welcome, .. } = client;
    drop(socket);
    let mut client = Client::connect(&to).await;
    let resume = json!({
        "connection": welcome["connection"], "secret": welcome["secret"], "leases": [known["held"]["token"]],
    });
    Client::ok(client.ask("resume", resume).await);
    let again = Client::ok(client.ask("accept", json!({"queue": "s", "session": "y"})).await);
    assert_eq!(again["held"]["session"], "y");
    let held = client.ask("accept", json!({"queue": "s", "session": "x"})).await;
    assert_eq!(held["problem"]["code"], "session_held");
}

#[tokio::test]
async fn a_resumed_connection_is_taken_from_a_half_open_socket() {
    let to = start().await;
    let mut old = Client::connect(&to).await;
    old.send(&["a"]).await;
    Client::ok(old.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 1})).await);
    let got = old.messages(1).await;
    let mut new = Client::connect(&to).await;
    let wrong = json!({"connection": old.welcome["connection"], "secret": "no"});
    assert_eq!(new.ask("resume", wrong).await["problem"]["code"], "resume_refused");
    let mut new = Client::connect(&to).await;
    let resume = json!({"connection": old.welcome["connection"], "secret": old.welcome["secret"]});
    Client::ok(new.ask("resume", resume.clone()).await);
    let items = json!([{"leases": [got[0]["lease"]], "outcome": "complete"}]);
    let settled = Client::ok(new.ask("settle", json!({"queue": "q", "items": items})).await);
    assert_eq!(settled["results"][0]["ok"], true);
    assert_eq!(new.ask("resume", resume).await["problem"]["code"], "resume_refused");
}

#[tokio::test]
async fn a_lost_connection_returns_leases_and_a_closed_one_does_not_count_them() {
    let limits = Limits { reconnect_grace: Duration::from_millis(50), ..Limits::default() };
    let to = listening(limits).await;
    to.broker.put("/api/v1/queues/q", json!({})).await.expect(201);
    for (clean, failed) in [(true, 0), (false, 1)] {
        let mut client = Client::connect(&to).await;
        if clean {
            client.send(&["a"]).await;
        }
        Client::ok(client.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 1})).await);
        client.messages(1).await;
        assert_eq!(counts(&to).await["locked"], 1);
        if clean {
            client.socket.close(None).await.unwrap();
        }
        let welcome = client.welcome.clone();
        drop(client);
        let back =
            to.broker.post("/api/v1/queues/q/receive", json!({"wait_ms": 20000})).await.expect(200);
        assert_eq!(back["messages"][0]["failed"], failed);
        let lease = &back["messages"][0]["lease"];
        to.broker
            .post("/api/v1/queues/q/settle", json!({"leases": [lease], "outcome": "release"}))
            .await
            .expect(200);
        let mut late = Client::connect(&to).await;
        let resume = json!({"connection": welcome["connection"], "secret": welcome["secret"]});
        assert_eq!(late.ask("resume", resume).await["problem"]["code"], "resume_refused");
        // The new connection works.
        Client::ok(late.ask("ping", json!({})).await);
    }
}

#[tokio::test]
async fn sessions_are_accepted_used_and_released() {
    let to = listening(Limits::default()).await;
    to.broker.put("/api/v1/queues/s", json!({"sessions": "dynamic"})).await.expect(201);
    let mut client = Client::connect(&to).await;
    let none = Client::ok(client.ask("accept", json!({"queue": "s", "wait_ms": 10})).await);
    assert_eq!(none, json!({"held": null}));
    let messages = json!([{"queue": "s", "session": "x", "body": "1"}, {"queue": "s", "session": "x", "body": "2"}]);
    Client::ok(client.ask("send", json!({"messages": messages})).await);
    let held =
        Client::ok(client.ask("accept", json!({"queue": "s", "wait_ms": 20000})).await)["held"]
            .clone();
    assert_eq!(held["session"], "x");
    Client::ok(
        client
            .ask(
                "attach",
                json!({"consumer": 1, "queue": "s", "credit": 10, "session_token": held["token"]}),
            )
            .await,
    );
    let got = client.messages(2).await;
    assert_eq!(bodies(&got), ["1", "2"]);
    let change = json!({"token": held["token"], "state_base64": "AQI="});
    Client::ok(client.ask("set_state", json!({"queue": "s", "change": change})).await);
    let state = Client::ok(
        client
            .ask("get_state", json!({"queue": "s", "session": "x", "token": held["token"]}))
            .await,
    );
    assert_eq!(state, json!({"state_base64": "AQI="}));
    let renewed = Client::ok(
        client
            .ask("renew", json!({"queue": "s", "leases": [held["token"], got[0]["lease"]]}))
            .await,
    );
    assert!(renewed["results"].as_array().unwrap().iter().all(|r| r["ok"] == true), "{renewed}");
    let items = json!([
        {"leases": [got[0]["lease"]], "outcome": "complete"},
        {"leases": [got[1]["lease"]], "outcome": "defer"},
    ]);
    Client::ok(client.ask("settle", json!({"queue": "s", "items": items})).await);
    let deferred = json!({"queue": "s", "seqs": [got[1]["seq"]], "session_token": held["token"], "mode": "delete"});
    let deferred = Client::ok(client.ask("receive_deferred", deferred).await);
    assert_eq!(deferred["messages"][0]["body"], "2");
    Client::ok(client.ask("release", json!({"queue": "s", "token": held["token"]})).await);
    let ended = client.wait_for("ended").await;
    assert_eq!(ended["consumer"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settlements_and_releases_keep_their_order() {
    let to = listening(Limits::default()).await;
    to.broker.put("/api/v1/queues/s", json!({"sessions": "dynamic"})).await.expect(201);
    let mut client = Client::connect(&to).await;
    for round in 0..50 {
        let messages = json!([{"queue": "s", "session": "x", "body": "1"}]);
        Client::ok(client.ask("send", json!({"messages": messages})).await);
        let held = Client::ok(client.ask("accept", json!({"queue": "s", "wait_ms": 20000})).await)
            ["held"]
            .clone();
        let attach =
            json!({"consumer": 1, "queue": "s", "credit": 1, "session_token": held["token"]});
        Client::ok(client.ask("attach", attach).await);
        let got = client.messages(1).await;
        let items = json!([{"leases": [got[0]["lease"]], "outcome": "complete"}]);
        let (settle, release) = (10_000 + round * 2, 10_001 + round * 2);
        client
            .say(json!([
                {"settle": {"id": settle, "queue": "s", "items": items}},
                {"release": {"id": release, "queue": "s", "token": held["token"]}},
            ]))
            .await;
        let settled = Client::ok(client.reply(settle).await);
        assert_eq!(settled["results"][0]["ok"], true, "round {round}: {settled}");
        Client::ok(client.reply(release).await);
        client.wait_for("ended").await;
    }
}

#[tokio::test]
async fn bad_frames_are_answered_and_not_fatal() {
    let to = start().await;
    let mut client = Client::connect(&to).await;
    for (bytes, code) in [
        ("{", "malformed_json"),
        ("nonsense", "malformed_json"),
        ("{\"sing\":{\"id\":1}}", "bad_field"),
        ("{\"ping\":{}}", "bad_field"),
        ("[{\"ping\":{\"id\":1}", "malformed_json"),
    ] {
        client.socket.send(Message::Text(bytes.into())).await.unwrap();
        let reply = client.wait_until(|f| f["reply"]["problem"].is_object()).await;
        assert_eq!(reply["reply"]["problem"]["code"], code, "{bytes}");
    }
    client
        .socket
        .send(Message::Text("[{\"ping\":{\"id\":8,\"x\":1}},{\"ping\":{\"id\":9}}]".into()))
        .await
        .unwrap();
    assert_eq!(client.reply(8).await["problem"]["code"], "unknown_field");
    Client::ok(client.reply(9).await);
    for (kind, inner, code) in [
        ("send", json!({"messages": [{"queue": "none", "body": "x"}]}), "queue_not_found"),
        ("send", json!({"messages": [{"body": "x"}]}), "bad_field"),
        ("attach", json!({"consumer": 1, "queue": "none", "credit": 1}), "queue_not_found"),
        ("attach", json!({"consumer": 1, "queue": "q", "credit": 100_000}), "out_of_range"),
        ("credit", json!({"consumer": 5, "credit": 1}), "consumer_not_found"),
        ("detach", json!({"consumer": 5}), "consumer_not_found"),
        ("accept", json!({"queue": "q"}), "no_sessions"),
        ("release", json!({"queue": "q", "token": "x"}), "bad_token"),
        ("settle", json!({"queue": "q", "items": []}), "out_of_range"),
    ] {
        let reply = client.ask(kind, inner).await;
        assert_eq!(reply["problem"]["code"], code, "{kind}: {reply}");
    }
    Client::ok(client.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 0})).await);
    let twice = client.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 0})).await;
    assert_eq!(twice["problem"]["code"], "consumer_exists");
    let mut packed = Client::speaking(&to, "malote.v1.msgpack").await;
    for bytes in [&[0xc1][..], &[0x81], &[0xdd, 255, 255, 255, 255], &[0x92, 0x80]] {
        packed.socket.send(Message::Binary(bytes.to_vec().into())).await.unwrap();
        packed.wait_until(|f| f["reply"]["problem"].is_object()).await;
    }
    Client::ok(packed.ask("ping", json!({})).await);
}

#[tokio::test]
async fn a_slow_reader_stops_deliveries() {
    let limits = Limits { outgoing_bytes_max: 64 << 10, ..Limits::default() };
    let to = listening(limits).await;
    to.broker.put("/api/v1/queues/q", json!({})).await.expect(201);
    let mut client = Client::connect(&to).await;
    let body = "x".repeat(100_000);
    for _ in 0..20 {
        client.send(&[&body, &body, &body, &body, &body]).await;
    }
    Client::ok(client.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 1000})).await);
    // The client reads nothing, so only the socket buffers are filled and the engine gets no more credit.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let locked = counts(&to).await["locked"].as_u64().unwrap();
    assert!(locked < 100, "{locked} of 100 messages are out to a client that reads nothing");
    assert_eq!(client.messages(100).await.len(), 100);
}

#[tokio::test]
async fn a_silent_client_is_lost_and_a_stopping_broker_closes_connections() {
    let limits = Limits {
        ping_every: Duration::from_millis(20),
        silence_max: Duration::from_secs(2),
        reconnect_grace: Duration::from_millis(10),
        ..Limits::default()
    };
    let to = listening(limits).await;
    to.broker.put("/api/v1/queues/q", json!({})).await.expect(201);
    let mut silent = Client::connect(&to).await;
    silent.send(&["a"]).await;
    Client::ok(silent.ask("attach", json!({"consumer": 1, "queue": "q", "credit": 1})).await);
    // It does not read, so it does not answer pings.
    let back =
        to.broker.post("/api/v1/queues/q/receive", json!({"wait_ms": 20000})).await.expect(200);
    assert_eq!(back["messages"][0]["failed"], 1);
    let mut polite = Client::connect(&to).await;
    to.broker.api.shutdown.cancel();
    let goodbye = async {
        while let Some(Ok(message)) = polite.socket.next().await {
            if let Message::Close(Some(close)) = message {
                return close.reason.to_string();
            }
        }
        String::new()
    };
    assert_eq!(tokio::time::timeout(PATIENCE, goodbye).await.unwrap(), "the broker is stopping");
    tokio::time::timeout(PATIENCE, to.broker.api.run()).await.expect("every connection has ended");
}

#[tokio::test]
async fn a_foreign_page_cannot_open_a_connection() {
    let to = start().await;
    for (name, value, status) in
        [("origin", "https://evil.example", 403), ("sec-websocket-protocol", "other", 400)]
    {
        let mut request = format!("ws://{}/api/v1/connect", to.at).into_client_request().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
        let stream = TcpStream::connect(to.at).await.unwrap();
        let error = tokio_tungstenite::client_async(request, stream).await.unwrap_err();
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
}

#[tokio::test]
async fn a_caller_that_disconnects_during_its_wait_leases_nothing() {
    use tokio::io::AsyncWriteExt;
    let to = start().await;
    let mut stream = TcpStream::connect(to.at).await.unwrap();
    let body = r#"{"wait_ms": 20000}"#;
    let head = format!(
        "POST /api/v1/queues/q/receive HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    while counts(&to).await["consumers"] != 1 {
        tokio::task::yield_now().await;
    }
    drop(stream);
    while counts(&to).await["consumers"] != 0 {
        tokio::task::yield_now().await;
    }
    to.broker.raw("POST", "/api/v1/queues/q/messages", &[], "x").await.expect(201);
    let got = to.broker.post("/api/v1/queues/q/receive", json!({})).await.expect(200);
    assert_eq!(got["messages"][0]["receives"], 1);
}

#[tokio::test]
async fn heads_and_slow_peers_are_bounded() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let limits = Limits {
        head_time_max: Duration::from_millis(100),
        head_bytes_max: 8192,
        ..Limits::default()
    };
    let to = listening(limits).await;
    let mut silent = TcpStream::connect(to.at).await.unwrap();
    let mut rest = Vec::new();
    silent.write_all(b"GET /livez HTTP/1.1\r\nhost").await.unwrap();
    tokio::time::timeout(PATIENCE, silent.read_to_end(&mut rest))
        .await
        .expect("a silent peer is cut off")
        .unwrap();
    let mut loud = TcpStream::connect(to.at).await.unwrap();
    let head = format!("GET /livez HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "a".repeat(100_000));
    let _ = loud.write_all(head.as_bytes()).await;
    let mut answer = String::new();
    let _ =
        tokio::time::timeout(PATIENCE, loud.read_to_string(&mut answer)).await.expect("an answer");
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}
