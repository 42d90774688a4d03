//! Transactions, and requests with replies, through the real router.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Broker, Q, receive, send, with_queue};
use serde_json::{Value, json};

const TX: &str = "/api/v1/transactions";

#[tokio::test]
async fn a_transaction_is_atomic() {
    let broker = with_queue(json!({"sessions": "dynamic"})).await;
    broker.put("/api/v1/queues/next", json!({})).await.expect(201);
    broker.put("/api/v1/topics/t", json!({})).await.expect(201);
    broker.put("/api/v1/topics/t/subscriptions/s", json!({})).await.expect(201);
    send(&broker, json!([{"body": "a", "session": "s"}, {"body": "b", "session": "s"}])).await;
    let held = broker.post(&format!("{Q}/sessions/accept"), json!({})).await.expect(200);
    let asked = json!({"max": 2, "session_token": held["token"]});
    let got = receive(&broker, asked).await;
    let work = json!({
        "send": [{"queue": "next", "body": "n"}, {"topic": "t", "body": "t"}],
        "settle": [{"queue": "orders", "items": [
            {"leases": [got[0]["lease"]], "outcome": "complete"},
            {"leases": [got[1]["lease"]], "outcome": "dead_letter", "reason": "r"},
        ]}],
        "state": [{"queue": "orders", "change": {"token": held["token"], "state_base64": "aGk="}}],
    });
    let done = broker.post(TX, work.clone()).await.expect(200);
    assert_eq!(done["messages"].as_array().unwrap().len(), 2);
    assert_eq!(done["messages"][1]["copies"], 1);
    let counts = broker.get(Q).await.expect(200)["counts"].clone();
    assert_eq!(
        (&counts["ready"], &counts["locked"], &counts["dead_lettered"]),
        (&json!(0), &json!(0), &json!(1))
    );
    let state = broker.get(&format!("{Q}/sessions/s/state")).await;
    assert_eq!(state.bytes, b"hi");
    // Its leases are settled, so a second attempt changes nothing.
    assert_eq!(broker.post(TX, work).await.problem(409), "lease_lost");
    let next = broker.get("/api/v1/queues/next").await.expect(200);
    assert_eq!(next["totals"]["sent"], 1);
}

#[tokio::test]
async fn a_transaction_that_fails_changes_nothing() {
    // Locks that do not expire during the test, even on a slow machine.
    let broker = with_queue(json!({"message_bytes_max": 1000, "lock_ms": 3_600_000})).await;
    broker.put("/api/v1/queues/other", json!({})).await.expect(201);
    send(&broker, json!([{"body": "a"}])).await;
    let lease = receive(&broker, json!({})).await[0]["lease"].clone();
    let complete = |queue: &str, lease: &Value| json!([{"queue": queue, "items": [{"leases": [lease], "outcome": "complete"}]}]);
    let fine = json!([{"queue": "other", "body": "x"}]);
    let large = json!([{"queue": "orders", "body": "x".repeat(2000)}]);
    let many: Vec<Value> = (0..4097).map(|_| json!({"queue": "other"})).collect();
    let dead = "0".repeat(32);
    for (work, status, code) in [
        (json!({}), 400, "bad_field"),
        (json!({"send": [{"body": "x"}], "settle": complete("orders", &lease)}), 400, "bad_field"),
        (
            json!({"send": [{"queue": "missing"}], "settle": complete("orders", &lease)}),
            404,
            "queue_not_found",
        ),
        (
            json!({"send": [{"topic": "missing"}], "settle": complete("orders", &lease)}),
            404,
            "topic_not_found",
        ),
        (json!({"send": large, "settle": complete("orders", &lease)}), 413, "message_too_large"),
        (json!({"send": many, "settle": complete("orders", &lease)}), 413, "batch_too_large"),
        (json!({"send": fine, "settle": complete("orders", &json!(dead))}), 409, "lease_lost"),
        (json!({"send": fine, "settle": complete("orders", &json!("nonsense"))}), 400, "bad_token"),
        // A lease of another queue is unknown in this one.
        (json!({"send": fine, "settle": complete("other", &lease)}), 409, "lease_lost"),
        (
            json!({"send": fine, "state": [{"queue": "orders", "change": {"token": dead}}]}),
            409,
            "lease_lost",
        ),
        (json!({"send": fine, "sendd": []}), 400, "unknown_field"),
        (json!({"settle": [{"queue": "orders", "items": []}]}), 400, "out_of_range"),
    ] {
        let refused = broker.post(TX, work).await;
        assert_eq!(refused.problem(status), code);
    }
    // 17 MiB exceed the limit of a transaction.
    broker.put("/api/v1/queues/wide", json!({"message_bytes_max": 33_554_432})).await.expect(201);
    let wide = json!({"send": [{"queue": "wide", "body": "x".repeat(17 << 20)}]});
    assert_eq!(broker.post(TX, wide).await.problem(413), "batch_too_large");
    assert_eq!(broker.get("/api/v1/queues/other").await.expect(200)["totals"]["sent"], 0);
    let counts = broker.get(Q).await.expect(200)["counts"].clone();
    assert_eq!((&counts["locked"], &counts["ready"]), (&json!(1), &json!(0)));
}

/// Echoes the body of each request.
async fn respond(broker: &Broker, times: usize) {
    for _ in 0..times {
        let asked = json!({"wait_ms": 20_000, "mode": "delete"});
        let got = broker.post(&format!("{Q}/receive"), asked).await.expect(200);
        let request = &got["messages"][0];
        assert!(request["reply_to"].as_str().unwrap().starts_with("reply-"));
        let answer = json!({"messages": [{
            "queue": request["reply_to"],
            "correlation_id": request["correlation_id"],
            "body": format!("re: {}", request["body"].as_str().unwrap()),
            "properties": {"n": 1},
        }]});
        let sent = broker.post("/api/v1/send", answer).await;
        // The requester and its queue may be gone.
        assert!(matches!(sent.status.as_u16(), 201 | 404));
    }
}

#[tokio::test]
async fn requests_share_one_reply_queue() {
    let broker = with_queue(json!({})).await;
    let path = format!("{Q}/request?subject=ask");
    let ask =
        |body: &'static str| broker.raw("POST", &path, &[("content-type", "text/plain")], body);
    let (a, b, c, ()) = tokio::join!(ask("a"), ask("b"), ask("c"), respond(&broker, 3));
    for (answer, body) in [(a, "re: a"), (b, "re: b"), (c, "re: c")] {
        let answer = answer.expect(200);
        assert_eq!((&answer["body"], &answer["properties"]), (&json!(body), &json!({"n": 1})));
        assert_eq!(answer.get("lease"), None);
    }
    let queues = broker.get("/api/v1/queues?prefix=reply-").await.expect(200);
    let queues = queues["queues"].as_array().unwrap().clone();
    assert_eq!(queues.len(), 1, "one for the whole process");
    assert_eq!(queues[0]["spec"]["exclusive"], true);
    assert_eq!(queues[0]["counts"]["ready"], 0);
    // No one else may read there.
    let name = queues[0]["name"].as_str().unwrap().to_owned();
    let stolen = broker.post(&format!("/api/v1/queues/{name}/receive"), json!({})).await;
    assert_eq!(stolen.problem(409), "queue_exclusive");
    // After an operator deleted it, the next request creates another one.
    broker.call("DELETE", &format!("/api/v1/queues/{name}"), None).await.expect(204);
    let again = async {
        loop {
            let answer = ask("d").await;
            // Until the deletion is noticed.
            if answer.status.as_u16() == 200 {
                return answer.expect(200);
            }
        }
    };
    let answers = async {
        loop {
            respond(&broker, 1).await;
        }
    };
    tokio::select! {
        answer = again => assert_eq!(answer["body"], "re: d"),
        () = answers => {}
    }
}

#[tokio::test]
async fn a_request_without_a_reply_times_out_and_leaves_nothing() {
    let limits = malote_front_http::Limits { replies_max: 1, ..Default::default() };
    let broker = Broker::limited(limits, |_| {});
    broker.put(Q, json!({})).await.expect(201);
    let path = format!("{Q}/request?timeout-ms=30");
    for _ in 0..3 {
        let none = broker.raw("POST", &path, &[], "x").await;
        assert_eq!(none.problem(504), "no_reply");
    }
    // A caller that disconnects frees its slot.
    let patient = format!("{Q}/request");
    let long = broker.raw("POST", &patient, &[], "x");
    assert!(tokio::time::timeout(Duration::from_millis(50), long).await.is_err());
    assert_eq!(broker.raw("POST", &path, &[], "x").await.problem(504), "no_reply");
    // One request too many is refused. Either of the two can be first:
    // the other one retries until it has the slot.
    let waiting = format!("{Q}/request?timeout-ms=20000");
    let patient =
        async { while broker.raw("POST", &waiting, &[], "x").await.status.as_u16() == 429 {} };
    let refused = async {
        loop {
            let full = broker.raw("POST", &path, &[], "x").await;
            if full.status.as_u16() == 429 {
                return full;
            }
        }
    };
    tokio::select! {
        () = patient => panic!("no reply was sent"),
        full = refused => assert_eq!(full.problem(429), "busy"),
    }
    // The requests expire.
    let seen = broker.get(&format!("{Q}/messages")).await.expect(200);
    assert!(seen["messages"].as_array().unwrap().iter().all(|m| m["ttl_ms"].is_u64()));
    for query in [
        "timeout-ms=0",
        "timeout-ms=300001",
        "timeout-ms=x",
        "create=true",
        "reply-to=q",
        "correlation-id=c",
    ] {
        let refused = broker.raw("POST", &format!("{Q}/request?{query}"), &[], "x").await;
        assert_eq!(refused.status.as_u16(), 400, "{query}");
    }
    let missing = broker.raw("POST", "/api/v1/queues/missing/request", &[], "x").await;
    assert_eq!(missing.problem(404), "queue_not_found");
    let late = json!({"messages": [{"queue": "reply-nobody", "correlation_id": "x"}]});
    assert_eq!(broker.post("/api/v1/send", late).await.problem(404), "queue_not_found");
}
