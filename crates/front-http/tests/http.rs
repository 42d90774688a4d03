//! Every route against a real engine, through the real router. Each exchange is checked against the OpenAPI document.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Broker, Q, receive, send, settle, with_queue};
use serde_json::{Value, json};

#[tokio::test]
async fn the_default_content_type_of_curl_is_ignored() {
    let broker = with_queue(json!({})).await;
    let form = "application/x-www-form-urlencoded";
    for (says, kept) in
        [(form, None), ("application/x-www-form-urlencoded; charset=utf-8", Some(()))]
    {
        let headers = [("content-type", says)];
        broker.raw("POST", &format!("{Q}/messages"), &headers, "Hello").await.expect(201);
        let got = &receive(&broker, json!({"mode": "delete"})).await[0];
        assert_eq!(got["body"], "Hello");
        assert_eq!(got.get("content_type").and_then(Value::as_str), kept.map(|()| says));
    }
}

#[tokio::test]
async fn the_document_has_every_route_and_every_route_answers() {
    let broker = Broker::start();
    let document = broker.get("/api/v1/openapi.json").await.expect(200);
    assert_eq!(document["openapi"], "3.1.0");
    let mut count = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let path = path
                .replace("{queue}", "q")
                .replace("{topic}", "t")
                .replace("{subscription}", "s")
                .replace("{rule}", "r")
                .replace("{saga}", "s")
                .replace("{session}", "s")
                .replace("{seq}", "1")
                .replace("{code}", "x");
            count += 1;
            // A stream of events has no end: overview.rs reads it.
            if path.ends_with("/events") {
                continue;
            }
            let answer = broker.call(&method.to_uppercase(), &path, None).await;
            let unknown = answer.bytes.starts_with(b"{") && {
                let body = answer.json();
                ["route_not_found", "method_not_allowed"]
                    .contains(&body["code"].as_str().unwrap_or(""))
            };
            assert!(!unknown || path == "/problems/x", "{method} {path}");
        }
    }
    assert_eq!(count, 76);
    // Every referenced schema exists.
    let text = document.to_string();
    for part in text.split("#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
}

#[tokio::test]
async fn queues_are_declared_changed_and_deleted() {
    let broker = Broker::start();
    let made = broker.put(Q, json!({"lock_ms": 5000, "failed_max": null})).await.expect(201);
    assert_eq!(made["spec"]["lock_ms"], 5000);
    assert_eq!(made["spec"]["failed_max"], Value::Null);
    broker.put(Q, json!({"lock_ms": 5000, "failed_max": null})).await.expect(200);
    let differs = broker.put(Q, json!({"lock_ms": 6000, "failed_max": null})).await;
    assert_eq!(differs.problem(409), "queue_differs");
    let body = differs.json();
    assert_eq!(
        (&body["field"], &body["is"], &body["asked"]),
        (&json!("lock_ms"), &json!("5000"), &json!("6000"))
    );
    let changed = broker.call("PATCH", Q, Some(json!({"backlog_warning": 7}))).await.expect(200);
    assert_eq!(
        (&changed["spec"]["lock_ms"], &changed["spec"]["backlog_warning"]),
        (&json!(5000), &json!(7))
    );
    assert_eq!(
        broker.put("/api/v1/queues/bad", json!({"lock_ms": 0})).await.problem(400),
        "bad_spec"
    );
    let list = broker.get("/api/v1/queues").await.expect(200);
    assert_eq!(list["queues"][0]["name"], "orders");
    send(&broker, json!([{"body": "a"}, {"body": "b"}])).await;
    assert_eq!(broker.get(Q).await.expect(200)["counts"]["ready"], 2);
    assert_eq!(broker.call("POST", &format!("{Q}/purge"), None).await.expect(200)["removed"], 2);
    broker.call("DELETE", Q, None).await.expect(204);
    let gone = broker.get(Q).await;
    assert_eq!(gone.problem(404), "queue_not_found");
    assert!(gone.json()["fix"].as_str().unwrap().contains("PUT /api/v1/queues/orders"));
}

#[tokio::test]
async fn queues_are_listed_in_pages() {
    let broker = Broker::start();
    for name in ["a1", "a2", "b1", "a3"] {
        broker.put(&format!("/api/v1/queues/{name}"), json!({})).await.expect(201);
    }
    let names = |page: &Value| -> Vec<String> {
        let queues = page["queues"].as_array().unwrap();
        queues.iter().map(|q| q["name"].as_str().unwrap().to_owned()).collect()
    };
    let all = broker.get("/api/v1/queues").await.expect(200);
    assert_eq!(
        (names(&all), &all["next"]),
        (["a1", "a2", "a3", "b1"].map(String::from).into(), &Value::Null)
    );
    let page = broker.get("/api/v1/queues?prefix=a&max=2").await.expect(200);
    assert_eq!(
        (names(&page), &page["next"]),
        (["a1", "a2"].map(String::from).into(), &json!("a2"))
    );
    let page = broker.get("/api/v1/queues?prefix=a&max=2&after=a2").await.expect(200);
    assert_eq!((names(&page), &page["next"]), (["a3"].map(String::from).into(), &Value::Null));
    assert_eq!(broker.get("/api/v1/queues?max=0").await.problem(400), "bad_query");
}

#[tokio::test]
async fn a_slash_in_a_name_is_percent_encoded() {
    let broker = Broker::start();
    broker.put("/api/v1/queues/a%2Fb", json!({})).await.expect(201);
    assert_eq!(broker.get("/api/v1/queues/a%2Fb").await.expect(200)["name"], "a/b");
    assert_eq!(
        broker.get("/api/v1/queues/a%2Fb%2F$deadletterqueue/messages").await.expect(200)["messages"],
        json!([])
    );
    assert_eq!(broker.get("/api/v1/queues/%ff").await.problem(400), "bad_path");
    assert_eq!(broker.get("/api/v1/queues/$x").await.problem(400), "bad_name");
}

#[tokio::test]
async fn a_raw_body_is_kept_with_its_type_and_metadata() {
    let broker = with_queue(json!({})).await;
    let headers = [
        ("content-type", "application/json; charset=utf-8"),
        ("malote-subject", "hi"),
        ("malote-property-colour", "blau"),
        ("traceparent", "00-ab-cd-01"),
    ];
    let sent = broker
        .raw(
            "POST",
            &format!("{Q}/messages?id=my%2Fid&correlation-id=c&priority=3"),
            &headers,
            "{\"a\": 1}",
        )
        .await
        .expect(201);
    assert_eq!(sent["id"], "my/id");
    let got = &receive(&broker, json!({})).await[0];
    assert_eq!(got["body"], "{\"a\": 1}");
    assert_eq!(got["content_type"], "application/json; charset=utf-8");
    assert_eq!(
        (&got["subject"], &got["correlation_id"], &got["priority"]),
        (&json!("hi"), &json!("c"), &json!(3))
    );
    assert_eq!(got["properties"], json!({"colour": "blau", "traceparent": "00-ab-cd-01"}));
    assert_eq!((&got["receives"], &got["failed"]), (&json!(1), &json!(0)));
    let png = [0x89_u8, 0x50, 0xff];
    broker
        .raw("POST", &format!("{Q}/messages"), &[("content-type", "image/png")], png.to_vec())
        .await
        .expect(201);
    let got = &receive(&broker, json!({})).await[0];
    assert_eq!((&got["body_base64"], got.get("body")), (&json!("iVD/"), None));
    for (query, code) in
        [("sesion=a", "bad_query"), ("delay_ms=-1", "bad_query"), ("create=maybe", "bad_query")]
    {
        let refused = broker.raw("POST", &format!("{Q}/messages?{query}"), &[], "x").await;
        assert_eq!(refused.problem(400), code);
    }
    assert_eq!(
        broker
            .raw("POST", &format!("{Q}/messages"), &[("malote-sesion", "a")], "x")
            .await
            .problem(400),
        "bad_header"
    );
}

#[tokio::test]
async fn a_queue_is_created_by_its_first_message_if_asked() {
    let broker = Broker::start();
    let missing = broker.raw("POST", &format!("{Q}/messages"), &[], "x").await;
    assert_eq!(missing.problem(404), "queue_not_found");
    assert!(missing.json()["fix"].as_str().unwrap().contains("?create=true"));
    broker.raw("POST", &format!("{Q}/messages?create=true&session=s"), &[], "x").await.expect(201);
    assert_eq!(broker.get(Q).await.expect(200)["spec"]["sessions"], "dynamic");
    broker.raw("POST", "/api/v1/queues/plain/messages?create=true", &[], "x").await.expect(201);
    assert_eq!(broker.get("/api/v1/queues/plain").await.expect(200)["spec"]["sessions"], "none");
    let needs = broker.raw("POST", "/api/v1/queues/other/messages?create=sessions", &[], "x").await;
    assert_eq!(needs.problem(400), "session_required");
    let off = Broker::with(|api| api.create_on_send = false);
    let refused = off.raw("POST", &format!("{Q}/messages?create=true"), &[], "x").await;
    assert_eq!(refused.problem(404), "queue_not_found");
}

#[tokio::test]
async fn batches_are_all_or_nothing() {
    let broker = with_queue(json!({"message_bytes_max": 2000})).await;
    broker.put("/api/v1/queues/mail", json!({})).await.expect(201);
    let typed =
        json!({"n": {"$type": "i32", "value": 5}, "list": [1, null, 1.5, true, "x", {"m": 1}]});
    let seqs = send(
        &broker,
        json!([{"body": {"a": 1.10, "z": 1}}, {"body_base64": "AP8=", "properties": typed}]),
    )
    .await;
    assert_eq!(seqs.len(), 2);
    let got = receive(&broker, json!({"max": 10})).await;
    assert_eq!(
        (&got[0]["body"], &got[0]["content_type"]),
        (&json!("{\"a\":1.1,\"z\":1}"), &json!("application/json"))
    );
    assert_eq!((&got[1]["body_base64"], &got[1]["properties"]), (&json!("AP8="), &typed));
    let many =
        json!({"messages": [{"queue": "orders", "body": "1"}, {"queue": "mail", "body": "2"}]});
    let sent = broker.post("/api/v1/send", many).await.expect(201);
    assert_eq!(sent["messages"].as_array().unwrap().len(), 2);
    let large = "x".repeat(3000);
    let refused = broker.post("/api/v1/send", json!({"messages": [{"queue": "mail", "body": "3"}, {"queue": "orders", "body": large}]})).await;
    assert_eq!(refused.problem(413), "message_too_large");
    assert_eq!(broker.get("/api/v1/queues/mail").await.expect(200)["counts"]["ready"], 1);
    for (bad, code, status) in [
        (json!({"messages": [{"body": "x"}]}), "bad_field", 400),
        (json!({"messages": [{"queue": "none", "body": "x"}]}), "queue_not_found", 404),
        (json!({"messages": []}), "bad_field", 400),
        (json!({"messages": [{"queue": "mail", "bod": 1}]}), "unknown_field", 400),
        (json!({"messages": [{"queue": "mail", "session": ""}]}), "bad_session_id", 400),
        (json!({"message": []}), "unknown_field", 400),
    ] {
        assert_eq!(broker.post("/api/v1/send", bad).await.problem(status), code);
    }
    let named =
        broker.post(&format!("{Q}/messages/batch"), json!({"messages": [{"queue": "mail"}]})).await;
    assert_eq!(named.problem(400), "bad_field");
}

#[tokio::test]
async fn leases_are_settled_and_renewed_each_on_its_own() {
    let broker = with_queue(json!({})).await;
    send(
        &broker,
        json!([{"body": "a"}, {"body": "b"}, {"body": "c"}, {"body": "d"}, {"body": "e"}]),
    )
    .await;
    let got = receive(&broker, json!({"max": 10, "lock_ms": 60_000})).await;
    let lease = |n: usize| got[n]["lease"].as_str().unwrap().to_owned();
    let renewed = broker
        .post(&format!("{Q}/renew"), json!({"leases": [lease(0), "junk"], "lock_ms": 120_000}))
        .await
        .expect(200);
    assert!(renewed["results"][0]["until"].as_u64() > got[0]["until"].as_u64());
    assert_eq!(renewed["results"][1]["problem"]["code"], "bad_token");
    let done =
        settle(&broker, json!({"leases": [lease(0), lease(0), "junk"], "outcome": "complete"}))
            .await;
    assert_eq!(done[0], json!({"lease": lease(0), "ok": true}));
    assert_eq!(done[2]["problem"]["code"], "bad_token");
    let again = settle(&broker, json!({"leases": [lease(0)], "outcome": "complete"})).await;
    assert_eq!(
        (&again[0]["ok"], &again[0]["problem"]["code"]),
        (&json!(false), &json!("lease_lost"))
    );
    let ok = |results: Vec<Value>| assert!(results.iter().all(|r| r["ok"] == true), "{results:?}");
    ok(settle(
        &broker,
        json!({"leases": [lease(1)], "outcome": "abandon", "properties": {"tried": 1}}),
    )
    .await);
    ok(settle(&broker, json!({"leases": [lease(2)], "outcome": "release"})).await);
    ok(settle(&broker, json!({"leases": [lease(3)], "outcome": "defer"})).await);
    ok(settle(
        &broker,
        json!({"leases": [lease(4)], "outcome": "dead_letter", "reason": "Bad", "text": "why"}),
    )
    .await);
    let back = receive(&broker, json!({"max": 10})).await;
    assert_eq!(
        (&back[0]["body"], &back[0]["failed"], &back[0]["properties"]),
        (&json!("b"), &json!(1), &json!({"tried": 1}))
    );
    assert_eq!((&back[1]["body"], &back[1]["failed"]), (&json!("c"), &json!(0)));
    let deferred = json!({"seqs": [got[3]["seq"]], "mode": "delete"});
    let deferred = broker.post(&format!("{Q}/deferred/receive"), deferred).await.expect(200);
    assert_eq!(
        (&deferred["messages"][0]["body"], deferred["messages"][0].get("lease")),
        (&json!("d"), None)
    );
    let missing = broker.post(&format!("{Q}/deferred/receive"), json!({"seqs": [999]})).await;
    assert_eq!(missing.problem(404), "message_not_found");
    let counts = broker.get(Q).await.expect(200);
    assert_eq!(
        (&counts["counts"]["locked"], &counts["counts"]["dead_lettered"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(counts["totals"]["dead_lettered"], 1);
    for bad in [
        json!({"leases": [], "outcome": "complete"}),
        json!({"leases": ["x"], "outcome": "complete", "delay_ms": 1}),
    ] {
        broker.post(&format!("{Q}/settle"), bad).await.problem(400);
    }
}

#[tokio::test]
async fn receive_and_delete_removes_at_once() {
    let broker = with_queue(json!({})).await;
    send(&broker, json!([{"body": "a"}])).await;
    let got = receive(&broker, json!({"mode": "delete"})).await;
    assert_eq!((&got[0]["body"], got[0].get("lease")), (&json!("a"), None));
    assert!(receive(&broker, json!({})).await.is_empty());
}

#[tokio::test]
async fn a_dropped_receive_leases_nothing() {
    let broker = with_queue(json!({})).await;
    let dropped = tokio::time::timeout(
        Duration::from_millis(50),
        receive(&broker, json!({"wait_ms": 20_000})),
    )
    .await;
    assert!(dropped.is_err());
    let (got, _) = tokio::join!(
        receive(&broker, json!({"wait_ms": 20_000})),
        send(&broker, json!([{"body": "late"}]))
    );
    assert_eq!((&got[0]["body"], &got[0]["receives"]), (&json!("late"), &json!(1)));
    for bad in
        [json!({"wait_ms": 20_001}), json!({"max": 0}), json!({"max": 5000}), json!({"lock_ms": 0})]
    {
        assert_eq!(broker.post(&format!("{Q}/receive"), bad).await.problem(400), "out_of_range");
    }
}

#[tokio::test]
async fn a_stopping_broker_ends_waits() {
    let broker = with_queue(json!({})).await;
    let stop = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        broker.api.shutdown.cancel();
    };
    let (got, ()) = tokio::join!(receive(&broker, json!({"wait_ms": 20_000})), stop);
    assert!(got.is_empty());
    assert_eq!(broker.get("/readyz").await.status, 503);
    assert_eq!(broker.get("/livez").await.status, 200);
}

#[tokio::test]
async fn scheduled_messages_are_peeked_and_cancelled() {
    let broker = with_queue(json!({})).await;
    let seqs = send(
        &broker,
        json!([{"body": "a", "at": "2099-01-01T00:00:00Z"}, {"body": "b", "delay_ms": 60_000}]),
    )
    .await;
    let counts = broker.get(Q).await.expect(200)["counts"].clone();
    assert_eq!((&counts["scheduled"], &counts["delayed"]), (&json!(1), &json!(1)));
    let seen = broker.get(&format!("{Q}/messages?state=scheduled")).await.expect(200);
    assert_eq!(seen["messages"][0]["body"], "a");
    let cancel = json!({"seqs": [seqs[0]]});
    assert_eq!(
        broker.post(&format!("{Q}/scheduled/cancel"), cancel.clone()).await.expect(200)["cancelled"],
        1
    );
    assert_eq!(
        broker.post(&format!("{Q}/scheduled/cancel"), cancel).await.problem(404),
        "message_not_found"
    );
}

#[tokio::test]
async fn messages_are_peeked_in_pages() {
    let broker = with_queue(json!({})).await;
    send(&broker, json!([{"body": "a"}, {"body": "b"}, {"body": "c"}])).await;
    let page = broker.get(&format!("{Q}/messages?max=2")).await.expect(200);
    assert_eq!(page["messages"].as_array().unwrap().len(), 2);
    assert_eq!(page["messages"][0]["state"], "ready");
    let next = page["next"].as_u64().unwrap();
    let page = broker.get(&format!("{Q}/messages?from={next}&max=2")).await.expect(200);
    assert_eq!(page["messages"][0]["body"], "c");
    for bad in ["max=0", "max=-1", "max=9999", "state=asleep", "form=1", "from=x"] {
        broker.get(&format!("{Q}/messages?{bad}")).await.problem(400);
    }
}

#[tokio::test]
async fn sessions_are_held_by_one_and_have_a_state() {
    let broker = with_queue(json!({"sessions": "dynamic"})).await;
    assert_eq!(
        broker.raw("POST", &format!("{Q}/messages"), &[], "x").await.problem(400),
        "session_required"
    );
    send(&broker, json!([{"body": "1", "session": "s"}, {"body": "2", "session": "s"}, {"body": "3", "session": "t/u"}])).await;
    let held =
        broker.post(&format!("{Q}/sessions/accept"), json!({"session": "s"})).await.expect(200);
    let token = held["token"].as_str().unwrap().to_owned();
    assert_eq!(
        broker.post(&format!("{Q}/sessions/accept"), json!({"session": "s"})).await.problem(409),
        "session_held"
    );
    let got = receive(&broker, json!({"session_token": token, "max": 10})).await;
    assert_eq!(got.iter().map(|m| m["body"].as_str().unwrap()).collect::<String>(), "12");
    let state = format!("{Q}/sessions/s/state");
    let proof = [("malote-session-token", token.as_str())];
    broker.raw("PUT", &state, &proof, vec![1, 255]).await.expect(204);
    assert_eq!(broker.raw("GET", &state, &proof, "").await.bytes, [1, 255]);
    assert_eq!(broker.get(&state).await.bytes, [1, 255]);
    assert_eq!(broker.raw("PUT", &state, &[], "x").await.problem(400), "bad_header");
    assert_eq!(
        broker.raw("PUT", &state, &proof, vec![0; 300 << 10]).await.problem(400),
        "out_of_range"
    );
    let other = format!("{Q}/sessions/t%2Fu/state");
    assert_eq!(broker.raw("PUT", &other, &proof, "x").await.problem(409), "lease_lost");
    let done = json!({"leases": [got[0]["lease"], got[1]["lease"]], "outcome": "complete", "session_state": {"token": token, "state_base64": "AAA="}});
    assert!(settle(&broker, done).await.iter().all(|r| r["ok"] == true));
    assert_eq!(broker.get(&state).await.bytes, [0, 0]);
    broker.raw("DELETE", &state, &proof, "").await.expect(204);
    broker.raw("GET", &state, &proof, "").await.expect(204);
    let renewed = broker
        .post(&format!("{Q}/sessions/s/renew"), json!({"token": token, "lock_ms": 600_000}))
        .await
        .expect(200);
    assert!(renewed["until"].as_u64() > held["until"].as_u64());
    let one = broker.get(&format!("{Q}/sessions/s")).await.expect(200);
    assert_eq!(
        (&one["messages"], one["held_until"].as_u64()),
        (&json!(0), renewed["until"].as_u64())
    );
    let page = broker.get(&format!("{Q}/sessions?max=1")).await.expect(200);
    assert_eq!(page["sessions"][0]["session"], "s");
    let next = page["next"].as_str().unwrap();
    broker.get(&format!("{Q}/sessions?after=s")).await.problem(400);
    let page = broker.get(&format!("{Q}/sessions?after={next}")).await.expect(200);
    assert_eq!(page["sessions"][0]["session"], "t/u");
    broker.post(&format!("{Q}/sessions/s/release"), json!({"token": token})).await.expect(204);
    assert_eq!(
        broker.post(&format!("{Q}/sessions/s/release"), json!({"token": token})).await.problem(409),
        "lease_lost"
    );
    assert_eq!(broker.get(&format!("{Q}/sessions/nobody")).await.problem(404), "message_not_found");
    let next = broker.post(&format!("{Q}/sessions/accept"), json!({})).await.expect(200);
    assert_eq!(next["session"], "t/u");
    broker.post(&format!("{Q}/sessions/accept"), json!({"wait_ms": 10})).await.expect(204);
    broker.call("POST", &format!("{Q}/sessions/t%2Fu/break"), None).await.expect(204);
    let lost =
        broker.post(&format!("{Q}/sessions/t%2Fu/renew"), json!({"token": next["token"]})).await;
    assert_eq!(lost.problem(409), "lease_lost");
    let plain = broker.put("/api/v1/queues/plain", json!({})).await;
    plain.expect(201);
    assert_eq!(
        broker.post("/api/v1/queues/plain/sessions/accept", json!({})).await.problem(409),
        "no_sessions"
    );
}

#[tokio::test]
async fn keys_are_mapped_onto_a_fixed_list() {
    let broker = with_queue(json!({"sessions": ["a", "b", "c", "d", "e", "f", "g", "h"]})).await;
    let place = broker.get(&format!("{Q}/partition?key=customer-1")).await.expect(200);
    assert_eq!(place, json!({"session": "d", "index": 3, "of": 8}));
    broker
        .raw("POST", &format!("{Q}/messages?key=customer-1&session-from-key=true"), &[], "x")
        .await
        .expect(201);
    send(&broker, json!([{"body": "y", "key": "customer-1", "session_from_key": true}])).await;
    let seen = broker.get(&format!("{Q}/messages?session=d")).await.expect(200);
    assert_eq!(seen["messages"].as_array().unwrap().len(), 2);
    assert_eq!(
        broker.raw("POST", &format!("{Q}/messages?session=z"), &[], "x").await.problem(400),
        "session_not_listed"
    );
    assert_eq!(broker.get(&format!("{Q}/partition")).await.problem(400), "bad_query");
    broker.put("/api/v1/queues/plain", json!({})).await.expect(201);
    assert_eq!(
        broker.get("/api/v1/queues/plain/partition?key=a").await.problem(409),
        "no_sessions"
    );
}

#[tokio::test]
async fn dead_letters_are_listed_redriven_and_resent() {
    let broker = with_queue(json!({})).await;
    send(&broker, json!([{"body": "a"}, {"body": "b"}, {"body": "c"}, {"body": "d"}])).await;
    let got = receive(&broker, json!({"max": 10})).await;
    let leases: Vec<&Value> = got.iter().map(|m| &m["lease"]).collect();
    settle(
        &broker,
        json!({"leases": leases, "outcome": "dead_letter", "reason": "Bad", "text": "no total"}),
    )
    .await;
    let dead = broker.get(&format!("{Q}/dead-letters")).await.expect(200);
    let first = &dead["messages"][0];
    assert_eq!(
        (&first["dead_letter"]["reason"], &first["dead_letter"]["text"]),
        (&json!("Bad"), &json!("no total"))
    );
    assert_eq!(
        (&first["dead_letter"]["from"], &first["dead_letter"]["receives"]),
        (&json!("orders"), &json!(1))
    );
    let seq = |n: usize| dead["messages"][n]["seq"].as_u64().unwrap();
    let redrive = format!("{Q}/dead-letters/redrive");
    assert_eq!(
        broker.post(&redrive, json!({"dry_run": true})).await.expect(200),
        json!({"moved": 4, "left": 0})
    );
    assert_eq!(
        broker.post(&redrive, json!({"seqs": [seq(0)], "dry_run": true})).await.expect(200),
        json!({"moved": 1, "left": 3})
    );
    assert_eq!(
        broker.post(&redrive, json!({"seqs": [seq(0)]})).await.expect(200),
        json!({"moved": 1, "left": 3})
    );
    assert_eq!(
        broker.post(&redrive, json!({"seqs": [seq(0)]})).await.problem(404),
        "message_not_found"
    );
    let fixed = json!({"message": {"body": "B", "subject": "fixed"}});
    broker.post(&format!("{Q}/dead-letters/{}/resend", seq(1)), fixed.clone()).await.expect(201);
    assert_eq!(
        broker.post(&format!("{Q}/dead-letters/{}/resend", seq(1)), fixed).await.problem(404),
        "message_not_found"
    );
    broker.put("/api/v1/queues/other", json!({})).await.expect(201);
    let moved = broker.post(&redrive, json!({"limit": 1, "to": "other"})).await.expect(200);
    assert_eq!(moved, json!({"moved": 1, "left": 1}));
    let back = receive(&broker, json!({"max": 10})).await;
    assert_eq!(back.iter().map(|m| m["body"].as_str().unwrap()).collect::<String>(), "aB");
    assert_eq!((&back[0]["failed"], back[0].get("dead_letter")), (&json!(0), None));
    assert_eq!(
        broker.call("DELETE", &format!("{Q}/dead-letters"), None).await.expect(200)["removed"],
        1
    );
    for bad in [
        json!({"seqs": []}),
        json!({"limit": 0}),
        json!({"seqs": [1], "limit": 1}),
        json!({"to": "$x"}),
    ] {
        broker.post(&redrive, bad).await.problem(400);
    }
}

#[tokio::test]
async fn a_paused_queue_delivers_nothing() {
    let broker = with_queue(json!({})).await;
    broker.call("POST", &format!("{Q}/pause"), None).await.expect(204);
    send(&broker, json!([{"body": "a"}])).await;
    assert!(receive(&broker, json!({})).await.is_empty());
    assert_eq!(broker.get(Q).await.expect(200)["paused"], true);
    broker.call("POST", &format!("{Q}/resume"), None).await.expect(204);
    assert_eq!(receive(&broker, json!({})).await.len(), 1);
}

#[tokio::test]
async fn health_metrics_and_history_have_their_formats() {
    let broker = with_queue(json!({"backlog_warning": 1})).await;
    assert_eq!(
        broker.get("/health/queue").await.expect(200),
        json!({"status": "OK", "messageCount": 0})
    );
    send(&broker, json!([{"body": "a"}, {"body": "b"}])).await;
    let warning =
        json!({"status": "Warning", "message": "Queue backlog is high", "messageCount": 2});
    assert_eq!(broker.get("/health/queue/orders").await.expect(503), warning);
    assert_eq!(broker.get("/health/queue").await.expect(503), warning);
    assert_eq!(broker.get("/health/queue/none").await.expect(503)["status"], "Error");
    receive(&broker, json!({})).await;
    assert_eq!(
        broker.get("/api/v1/scale/orders").await.expect(200),
        json!({"backlog": 2, "in_flight": 1, "sessions": 0})
    );
    let queues = broker.get("/metrics/queues").await.expect(200);
    assert_eq!(
        queues,
        json!([{"queue": "orders", "waiting": 1, "active": 1, "completed": 0, "failed": 0, "delayed": 0}])
    );
    let ready = broker.get("/readyz?verbose").await;
    assert_eq!(
        ready.text(),
        "[+]recovered ok\n[+]listening ok\n[+]not-draining ok\n[+]engine ok\nok\n"
    );
    let disk = broker.get("/api/v1/disk").await.expect(200);
    assert!(disk["journal_bytes"].as_u64().unwrap() > 0);
    assert_eq!((&disk["publish_allowed"], &disk["damaged"]), (&json!(true), &json!(0)));
    let all = broker.get("/metrics").await;
    for line in [
        "malote_queue_messages{state=\"ready\"} 1",
        "malote_queue_messages{state=\"locked\"} 1",
        "malote_messages_published_total 2",
        "malote_messages_delivered_total 1",
        "malote_messages_settled_total{outcome=\"completed\"} 0",
        "malote_build_info{version=",
        "malote_request_duration_seconds_count{protocol=\"http\",operation=\"receive\"} 1",
    ] {
        assert!(all.text().contains(line), "{line} is not in\n{}", all.text());
    }
    let each = broker.get("/metrics/per-object").await;
    assert!(
        each.text().contains("malote_queue_messages{queue=\"orders\",state=\"ready\"} 1"),
        "{}",
        each.text()
    );
    let facts = broker.api.engine.list().await.unwrap();
    assert_eq!(broker.get(&format!("{Q}/history")).await.expect(200)["points"], json!([]));
    broker.api.history.sample(malote_model::Timestamp(10_000), &facts);
    send(&broker, json!([{"body": "a"}, {"body": "b"}])).await;
    broker
        .api
        .history
        .sample(malote_model::Timestamp(20_000), &broker.api.engine.list().await.unwrap());
    let history = broker.get(&format!("{Q}/history")).await.expect(200);
    assert_eq!(
        (&history["points"][1]["ready"], &history["points"][1]["in_per_s"]),
        (&json!(3), &json!(0.2))
    );
    assert_eq!(broker.get("/api/v1/queues/none/history").await.problem(404), "queue_not_found");
    assert_eq!(broker.get("/api/v1/version").await.expect(200)["name"], "malote");
    assert_eq!(broker.get("/problems/lease_lost").await.expect(200)["status"], 409);
}
