//! Topics, subscriptions, rules, requests and the new settings of queues, from the command line.
#![allow(clippy::unwrap_used)] // a test

mod common;

use common::Server;
use expect_test::expect;
use serde_json::{Value, json};

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn every_setting_of_a_queue_has_a_flag() {
    let server = Server::start();
    server.ok("topic create audit --kind topic");
    server.ok("queue create graves");
    server.ok(
        "queue create orders --ttl 1h --on-expiry dead-letter --priority-max 9 --dedup 5m --dedup-content \
         --length-max 100 --bytes-max 1MiB --overflow drop-oldest --auto-delete --idle-max 10m \
         --forward-to topic:audit --dead-letter topic:audit:dead",
    );
    let spec = json_of(&server.ok("queue get orders -o json"))["spec"].clone();
    for (field, value) in [
        ("ttl_ms", json!(3_600_000)),
        ("on_expiry", json!("dead_letter")),
        ("priority_max", json!(9)),
        ("dedup", json!({"window_ms": 300_000, "per_session": false, "content": true})),
        ("length_max", json!(100)),
        ("bytes_max", json!(1 << 20)),
        ("overflow", json!("drop_oldest")),
        ("auto_delete", json!(true)),
        ("idle_ms_max", json!(600_000)),
        ("forward_to", json!({"topic": "audit"})),
        ("dead_letter", json!({"topic": "audit", "key": "dead"})),
    ] {
        assert_eq!(spec[field], value, "{field}");
    }
    let table = server.ok("queue get orders");
    for row in ["time to live     1h", "priorities       0 to 9", "forward to       topic audit"] {
        assert!(table.contains(row), "{row}\n{table}");
    }
    server.ok(
        "queue update orders --ttl none --dedup none --length-max none --bytes-max none --idle-max none \
         --auto-delete=false --forward-to none --dead-letter queue:graves",
    );
    let spec = json_of(&server.ok("queue get orders -o json"))["spec"].clone();
    for field in ["ttl_ms", "dedup", "length_max", "bytes_max", "idle_ms_max", "forward_to"] {
        assert_eq!(spec[field], Value::Null, "{field}");
    }
    assert_eq!((&spec["auto_delete"], &spec["priority_max"]), (&json!(false), &json!(9)));
    server.ok("queue create sessions --sessions dynamic --dedup 1m --dedup-per-session");
    for wrong in [
        "queue create x --ttl soon",
        "queue create x --forward-to orders",
        "queue create x --dead-letter topic:$bad",
        "queue create x --dedup-content",
        "queue create x --overflow drop",
        "queue create x --priority-max 256",
    ] {
        assert_eq!(server.run(wrong).code, 2, "{wrong}");
    }
}

#[test]
fn a_topic_from_creation_to_removal() {
    let server = Server::start();
    expect![[r#"
        --- stderr
        no topics; `malote topic create NAME` creates one
    "#]]
    .assert_eq(&server.run("topic ls").to_string());
    expect![[r#"
        --- stderr
        topic `sales` created
    "#]]
    .assert_eq(&server.run("topic create sales").to_string());
    assert!(server.run("topic create sales").err.contains("already exists with these settings"));
    assert_eq!(server.run("topic create sales --kind fanout").code, 4);
    assert!(server.run("subscription ls sales").err.contains("no subscriptions"));
    expect![[r#"
        --- stderr
        subscription `sales/Subscriptions/large` created
    "#]]
    .assert_eq(
        &server
            .run("subscription create sales large --sql 'total > @least' --param @least:=100 --action 'SET class = @c' --param @c=big --rule over --lock 1m")
            .to_string(),
    );
    server.ok("subscription create sales all");
    server.ok("subscription create sales eu --pattern 'eu.#' --rule region");
    server.ok("subscription rule add sales eu vip --where subject=vip --where property.level:=1");
    server.ok("subscription rule add sales eu head --header region=eu --header vip --match any");
    expect![[r#"
        RULE    QUEUE                   FILTER
        head    sales/Subscriptions/eu  headers {"match":"any","values":{"region":"eu","vip":null}}
        region  sales/Subscriptions/eu  pattern eu.#
        vip     sales/Subscriptions/eu  correlation {"properties":{"level":1},"subject":"vip"}
    "#]]
    .assert_eq(&server.ok("subscription rule ls sales eu"));
    let differs = server.run("subscription rule add sales eu vip --nothing");
    assert_eq!(differs.code, 4, "{differs}");
    server.ok("subscription rule rm sales eu head");
    assert_eq!(server.run("subscription rule rm sales eu head").code, 3);
    expect![[r#"
        ID   COPIES
        one  3
    "#]]
    .assert_eq(&server.ok("topic publish sales hello --id one --key eu.paid --prop total:=150"));
    let scheduled = server.ok("topic publish sales later --id two --at 2100-01-01T00:00:00Z");
    assert!(scheduled.contains("two  scheduled as 1"), "{scheduled}");
    let sent = json_of(&server.ok("topic publish sales x --key us -o json"));
    assert_eq!(sent[0]["copies"], 1);
    let lines = "{\"body\":\"a\",\"key\":\"eu\"}\n{\"body\":\"b\"}\n";
    let said = server.run_with("topic publish sales --ndjson - -o name", lines);
    assert_eq!((said.code, said.out.lines().count()), (0, 2), "{said}");
    let got = json_of(&server.ok("peek sales/Subscriptions/large -o json"));
    assert_eq!(got[0]["properties"]["class"], "big");
    expect![[r#"
        NAME   KIND    QUEUES  RULES  SCHEDULED  COPIES
        sales  filter       3      4          1       7
    "#]]
    .assert_eq(&server.ok("topic ls"));
    expect![[r#"
        NAME   READY  LOCKED  DEAD  QUEUE
        all        4       0     0  sales/Subscriptions/all
        eu         2       0     0  sales/Subscriptions/eu
        large      1       0     0  sales/Subscriptions/large
    "#]]
    .assert_eq(&server.ok("subscription ls sales"));
    let shown = server.ok("subscription get sales large");
    assert!(
        shown.contains("over: sql {\"parameters\":{\"@least\":100},\"text\":\"total > @least\"}"),
        "{shown}"
    );
    assert_eq!(server.run("topic publish sales").code, 2);
    let missing = server.run("topic publish nowhere x");
    assert_eq!(missing.code, 3);
    assert!(missing.err.contains("malote topic create NAME"), "{missing}");
    assert_eq!(server.run("topic rm sales").code, 2, "there is no terminal to ask on");
    assert!(server.run("subscription rm sales eu --yes").err.contains("deleted"));
    assert!(server.run("topic rm sales --yes").err.contains("topic `sales` deleted"));
    assert_eq!(server.ok("queue ls -o name"), "");
}

#[test]
fn a_rule_can_be_tested_before_it_is_created() {
    let server = Server::start();
    expect![[r#"
        matches   true
        key       eu.paid
        property  total = 150
        property  class = "big"
        body
    "#]]
    .assert_eq(&server.ok(
        "rule test --sql 'total > 100' --prop total:=150 --key eu.paid --action 'SET class = @c' --param @c=big",
    ));
    let miss = server.run("rule test --pattern 'eu.*' --key us");
    assert_eq!((miss.code, miss.out.as_str()), (1, "matches  false\n"));
    let wrong = server.run("rule test --sql 'total >'");
    assert_eq!(wrong.code, 1);
    assert!(wrong.err.contains("at character 8"), "{wrong}");
    assert_eq!(server.run("rule test --sql 'a = 1' --pattern b").code, 2);
    assert_eq!(server.run("rule test --filter '{'").code, 2);
    let json = json_of(&server.ok("rule test --filter '{\"key\":\"k\"}' --key k -o json"));
    assert_eq!(json["matches"], true);
}

#[test]
fn a_request_gets_its_reply() {
    let server = Server::start();
    server.ok("queue create sums");
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| server.run("request sums 2+2 --subject sum --wait 4m --raw"));
        let request = loop {
            let got = json_of(&server.ok("receive sums --wait 5s -o json"));
            if let Some(first) = got.get(0) {
                break first.clone();
            }
        };
        assert_eq!((&request["body"], &request["subject"]), (&json!("2+2"), &json!("sum")));
        server.ok(&format!(
            "send {} 4 --correlation-id {}",
            request["reply_to"].as_str().unwrap(),
            request["correlation_id"].as_str().unwrap()
        ));
        let answer = asking.join().unwrap();
        assert_eq!((answer.code, answer.out.as_str()), (0, "4\n"), "{answer}");
    });
    let none = server.run("request sums x --wait 50ms");
    assert_eq!(none.code, 1);
    assert!(none.err.contains("no reply within 50 ms"), "{none}");
    assert_eq!(server.run("request missing x").code, 3);
    assert_eq!(server.run("request sums").code, 2);
}

#[test]
fn duplicates_are_detected_by_their_key() {
    let server = Server::start();
    server.ok("queue create orders --dedup 1h");
    server.ok("send orders a --dedup-id k");
    let again = json_of(&server.ok("send orders b --dedup-id k -o json"));
    assert_eq!((&again["seq"], &again["duplicate"]), (&json!(1), &json!(true)));
    assert_eq!(server.ok("peek orders --raw"), "a\n");
}
