//! Topics, subscriptions and rules through the real router; each exchange is checked against the OpenAPI document.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{Broker, Q};
use malote_front_http::{Authenticate, Authenticated};
use malote_model::{Access, Action, Denied, Principal, Resource};
use serde_json::{Value, json};

const T: &str = "/api/v1/topics/sales";

async fn bodies(broker: &Broker, queue: &str) -> Vec<String> {
    let asked = json!({"max": 100, "mode": "delete"});
    let answer = broker.post(&format!("/api/v1/queues/{queue}/receive"), asked).await.expect(200);
    let messages = answer["messages"].as_array().unwrap();
    messages.iter().map(|m| m["body"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn topics_are_declared_listed_and_deleted() {
    let broker = Broker::start();
    let made = broker.put(T, json!({"kind": "topic"})).await.expect(201);
    assert_eq!(made["spec"]["kind"], "topic");
    broker.put(T, json!({"kind": "topic"})).await.expect(200);
    let differs = broker.put(T, json!({"kind": "fanout"})).await;
    assert_eq!(differs.problem(409), "topic_differs");
    assert_eq!(differs.json()["field"], "kind");
    let bad = json!({"dedup": {"window_ms": 5, "per_session": true}});
    assert_eq!(broker.put("/api/v1/topics/x", bad).await.problem(400), "bad_spec");
    assert_eq!(
        broker.put("/api/v1/topics/x", json!({"kind": "circle"})).await.problem(400),
        "bad_field"
    );
    assert_eq!(broker.put("/api/v1/topics/$x", json!({})).await.problem(400), "bad_name");
    for name in ["a", "b"] {
        broker.put(&format!("/api/v1/topics/{name}"), json!({})).await.expect(201);
    }
    let page = broker.get("/api/v1/topics?max=2").await.expect(200);
    assert_eq!((&page["topics"][0]["name"], &page["next"]), (&json!("a"), &json!("b")));
    let page = broker.get("/api/v1/topics?after=b").await.expect(200);
    assert_eq!((page["topics"].as_array().unwrap().len(), &page["next"]), (1, &Value::Null));
    assert_eq!(broker.get("/api/v1/topics?max=0").await.problem(400), "bad_query");
    broker.call("DELETE", T, None).await.expect(204);
    assert_eq!(broker.get(T).await.problem(404), "topic_not_found");
    assert_eq!(broker.get(&format!("{T}/subscriptions")).await.problem(404), "topic_not_found");
    let sent = broker.raw("POST", &format!("{T}/messages"), &[], "x").await;
    assert_eq!(sent.problem(404), "topic_not_found");
}

#[tokio::test]
async fn a_subscription_is_created_with_its_rules_and_gets_copies() {
    let broker = Broker::start();
    broker.put(T, json!({})).await.expect(201);
    let large = json!({
        "spec": {"lock_ms": 5000},
        "rules": [
            {"name": "large", "filter": {"sql": "total > 100"}, "action": "SET class = 'large'"},
            {"name": "vip", "filter": {"correlation": {"subject": "vip"}}},
        ],
    });
    let path = format!("{T}/subscriptions/large");
    let made = broker.put(&path, large.clone()).await.expect(201);
    assert_eq!(made["queue"]["name"], "sales/Subscriptions/large");
    assert_eq!((&made["name"], &made["queue"]["spec"]["lock_ms"]), (&json!("large"), &json!(5000)));
    assert_eq!(made["rules"], large["rules"]);
    broker.put(&path, large.clone()).await.expect(200);
    // Rules are never changed silently.
    for rules in [json!([]), json!([{"name": "large"}, {"name": "vip"}]), json!([{"name": "z"}])] {
        let other = json!({"spec": {"lock_ms": 5000}, "rules": rules});
        assert_eq!(broker.put(&path, other).await.problem(409), "rule_differs");
    }
    assert_eq!(
        broker.put(&path, json!({"spec": {"lock_ms": 6000}})).await.problem(409),
        "queue_differs"
    );
    broker.put(&format!("{T}/subscriptions/all"), json!({})).await.expect(201);
    let sent = broker
        .raw(
            "POST",
            &format!("{T}/messages?subject=vip"),
            &[("malote-property-total", "7"), ("content-type", "text/plain")],
            "one",
        )
        .await
        .expect(201);
    assert_eq!(sent["copies"], 2);
    let batch = json!({"messages": [
        {"body": "two", "properties": {"total": 150}},
        {"body": "three", "properties": {"total": 5}},
    ]});
    let sent = broker.post(&format!("{T}/messages/batch"), batch).await.expect(201);
    assert_eq!(
        (&sent["messages"][0]["copies"], &sent["messages"][1]["copies"]),
        (&json!(2), &json!(1))
    );
    let asked = json!({"max": 10});
    let got = broker.post("/api/v1/queues/sales%2FSubscriptions%2Flarge/receive", asked).await;
    let got = got.expect(200)["messages"].as_array().unwrap().clone();
    assert_eq!(got.len(), 2);
    assert_eq!(got[1]["properties"], json!({"total": 150, "class": "large", "RuleName": "large"}));
    assert_eq!(bodies(&broker, "sales%2FSubscriptions%2Fall").await, ["one", "two", "three"]);
    let topic = broker.get(T).await.expect(200);
    assert_eq!(
        (&topic["queues"], &topic["rules"], &topic["totals"]["copies"]),
        (&json!(2), &json!(3), &json!(5))
    );
    let list = broker.get(&format!("{T}/subscriptions?max=1")).await.expect(200);
    assert_eq!((&list["subscriptions"][0]["name"], &list["next"]), (&json!("all"), &json!("all")));
    broker.call("DELETE", &path, None).await.expect(204);
    assert_eq!(broker.get(&path).await.problem(404), "queue_not_found");
    let scrape = broker.get("/metrics/per-object").await;
    assert!(scrape.text().contains("malote_topic_copies_total{topic=\"sales\"} 5"));
    let scrape = broker.get("/metrics").await;
    assert!(scrape.text().contains("malote_topic_rules 1\n"), "{}", scrape.text());
}

#[tokio::test]
async fn any_queue_is_bound_by_rules_of_every_kind() {
    let broker = Broker::start();
    let cases = [
        ("direct", json!({"key": "eu"}), "key=eu", "key=us"),
        ("topic", json!({"pattern": "eu.*.#"}), "key=eu.paid", "key=eu"),
        ("fanout", json!("all"), "key=x", ""),
        ("filter", json!({"key": "eu"}), "session=eu", "key=us"),
        (
            "filter",
            json!({"sql": {"text": "sys.Label = @l", "parameters": {"@l": "s"}}}),
            "subject=s",
            "subject=t",
        ),
    ];
    broker.put(Q, json!({})).await.expect(201);
    for (at, (kind, filter, hit, miss)) in cases.into_iter().enumerate() {
        let topic = format!("/api/v1/topics/t{at}");
        broker.put(&topic, json!({"kind": kind})).await.expect(201);
        let rule = format!("{topic}/queues/orders/rules/a%2Fb");
        let made = broker.put(&rule, json!({"filter": filter})).await.expect(201);
        assert_eq!((&made["name"], &made["filter"]), (&json!("a/b"), &filter));
        broker.put(&rule, json!({"filter": filter})).await.expect(200);
        let sent = broker.raw("POST", &format!("{topic}/messages?{hit}"), &[], "x").await;
        assert_eq!(sent.expect(201)["copies"], 1, "{kind} {hit}");
        if !miss.is_empty() {
            let sent = broker.raw("POST", &format!("{topic}/messages?{miss}"), &[], "x").await;
            assert_eq!(sent.expect(201)["copies"], 0, "{kind} {miss}");
        }
        let list = broker.get(&format!("{topic}/rules?queue=orders")).await.expect(200);
        assert_eq!((&list["rules"][0]["queue"], &list["next"]), (&json!("orders"), &Value::Null));
        broker.call("DELETE", &rule, None).await.expect(204);
        assert_eq!(broker.call("DELETE", &rule, None).await.problem(404), "rule_not_found");
    }
    broker.put("/api/v1/topics/h", json!({"kind": "headers"})).await.expect(201);
    let any =
        json!({"filter": {"headers": {"match": "any", "values": {"region": "eu", "vip": null}}}});
    broker.put("/api/v1/topics/h/queues/orders/rules/r", any).await.expect(201);
    for (headers, copies) in [
        (("malote-property-region", "eu"), 1),
        (("malote-property-vip", "yes"), 1),
        (("malote-property-region", "us"), 0),
    ] {
        let sent = broker.raw("POST", "/api/v1/topics/h/messages", &[headers], "x").await;
        assert_eq!(sent.expect(201)["copies"], copies, "{headers:?}");
    }
}

#[tokio::test]
async fn rules_are_listed_in_pages_over_all_queues() {
    let broker = Broker::start();
    broker.put(T, json!({})).await.expect(201);
    for queue in ["a", "b"] {
        broker.put(&format!("/api/v1/queues/{queue}"), json!({})).await.expect(201);
        for rule in ["1", "2"] {
            let path = format!("{T}/queues/{queue}/rules/{rule}");
            broker.put(&path, json!({"filter": {"key": rule}})).await.expect(201);
        }
    }
    let mut seen = Vec::new();
    let mut query = "max=3".to_owned();
    loop {
        let page = broker.get(&format!("{T}/rules?{query}")).await.expect(200);
        for rule in page["rules"].as_array().unwrap() {
            seen.push(format!(
                "{}{}",
                rule["queue"].as_str().unwrap(),
                rule["name"].as_str().unwrap()
            ));
        }
        let (Some(queue), Some(rule)) =
            (page["next"]["queue"].as_str(), page["next"]["rule"].as_str())
        else {
            break;
        };
        query = format!("max=3&after_queue={queue}&after_rule={rule}");
    }
    assert_eq!(seen, ["a1", "a2", "b1", "b2"]);
    for query in ["max=0", "max=2000", "after_queue=a", "queue=$x", "rule=1"] {
        let refused = broker.get(&format!("{T}/rules?{query}")).await;
        assert_eq!(refused.status.as_u16(), 400, "{query}");
    }
    assert_eq!(
        broker.get(&format!("{T}/rules?queue=missing")).await.problem(404),
        "queue_not_found"
    );
}

#[tokio::test]
async fn wrong_rules_are_explained_with_their_position() {
    let broker = Broker::start();
    broker.put(T, json!({})).await.expect(201);
    broker.put("/api/v1/topics/plain", json!({"kind": "direct"})).await.expect(201);
    broker.put(Q, json!({})).await.expect(201);
    let cases = [
        (json!({"filter": {"sql": "total >> 5"}}), "bad_spec", "at character"),
        (
            json!({"filter": {"sql": "total > 5"}, "action": "SET 5 = x"}),
            "bad_spec",
            "at character",
        ),
        (json!({"filter": {"sql": "x".repeat(2000)}}), "bad_spec", "1024 characters"),
        (json!({"filter": "evrything"}), "bad_field", "unknown variant"),
        (json!({"filter": {"ky": "a"}}), "bad_field", "did you mean `key`?"),
        (json!({"fliter": "all"}), "unknown_field", "did you mean `filter`?"),
    ];
    for (rule, code, says) in cases {
        let refused = broker.put(&format!("{T}/queues/orders/rules/r"), rule.clone()).await;
        assert_eq!(refused.problem(400), code, "{rule}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(says), "{rule}: {detail}");
    }
    let path = "/api/v1/topics/plain/queues/orders/rules/r";
    let wrong_kind = broker.put(path, json!({"filter": {"sql": "a = 1"}})).await;
    assert_eq!(wrong_kind.problem(400), "bad_spec");
    assert!(wrong_kind.json()["detail"].as_str().unwrap().contains("must be a key"));
    let named = json!({"rules": [{"name": "fine"}, {"name": "broken", "filter": {"sql": "("}}]});
    let refused = broker.put(&format!("{T}/subscriptions/s"), named).await;
    assert_eq!(refused.problem(400), "bad_spec");
    assert!(refused.json()["detail"].as_str().unwrap().starts_with("rule `broken`: "));
    let twice = json!({"rules": [{"name": "a"}, {"name": "a"}]});
    let refused = broker.put(&format!("{T}/subscriptions/s"), twice).await;
    assert_eq!(refused.problem(409), "rule_differs");
    assert_eq!(broker.get(T).await.expect(200)["rules"], 0);
}

#[tokio::test]
async fn a_rule_is_tested_without_storing_anything() {
    let broker = Broker::start();
    let test = |filter: Value, action: Value, message: Value| {
        let mut asked = json!({"filter": filter, "message": message});
        if !action.is_null() {
            asked["action"] = action;
        }
        broker.call("POST", "/api/v1/rules/test", Some(asked))
    };
    let message =
        json!({"key": "eu.paid", "subject": "order", "properties": {"total": 7}, "body": "x"});
    let hit = test(json!({"pattern": "eu.*"}), Value::Null, message.clone()).await.expect(200);
    assert_eq!((&hit["matches"], &hit["message"]["body"]), (&json!(true), &json!("x")));
    let miss = test(json!({"sql": "total > 7"}), Value::Null, message.clone()).await.expect(200);
    assert_eq!(miss, json!({"matches": false}));
    let action = json!("SET total = total + 1; SET sys.Label = 'seen'; REMOVE other");
    let changed = test(json!({"sql": "total = 7"}), action, message).await.expect(200);
    assert_eq!(changed["message"]["properties"], json!({"total": 8}));
    assert_eq!(changed["message"]["subject"], "seen");
    // An unknown value does not match.
    let unknown = test(json!({"sql": "missing > 7"}), Value::Null, json!({})).await.expect(200);
    assert_eq!(unknown["matches"], false);
    let refused = test(json!({"sql": "total >"}), Value::Null, json!({})).await;
    assert_eq!(refused.problem(400), "bad_spec");
    assert!(refused.json()["detail"].as_str().unwrap().contains("at character 8"));
    let refused = test(json!("all"), Value::Null, json!({"queue": "q"})).await;
    assert_eq!(refused.problem(400), "bad_field");
}

#[tokio::test]
async fn sends_reach_topics_and_queues_at_once_and_schedules_are_cancelled() {
    let broker = Broker::start();
    broker.put(T, json!({})).await.expect(201);
    broker.put(Q, json!({})).await.expect(201);
    broker.put(&format!("{T}/subscriptions/s"), json!({})).await.expect(201);
    let both =
        json!({"messages": [{"topic": "sales", "body": "a"}, {"queue": "orders", "body": "b"}]});
    let sent = broker.post("/api/v1/send", both).await.expect(201);
    assert_eq!(sent["messages"][0]["copies"], 1);
    assert_eq!(sent["messages"][1].get("copies"), None);
    for wrong in [json!({"topic": "a", "queue": "b"}), json!({}), json!({"topic": ""})] {
        let refused = broker.post("/api/v1/send", json!({"messages": [wrong]})).await;
        assert_eq!(refused.status.as_u16(), 400);
    }
    let stray = json!({"messages": [{"topic": "sales", "body": "a"}]});
    assert_eq!(broker.post(&format!("{T}/messages/batch"), stray).await.problem(400), "bad_field");
    for query in ["create=true", "timeout_ms=5"] {
        let refused = broker.raw("POST", &format!("{T}/messages?{query}"), &[], "x").await;
        assert_eq!(refused.problem(400), "bad_query", "{query}");
    }
    let later = broker
        .raw("POST", &format!("{T}/messages?at=2100-01-01T00:00:00Z"), &[], "later")
        .await
        .expect(201);
    assert_eq!(later.get("copies"), None, "unknown until it is routed");
    assert_eq!(broker.get(T).await.expect(200)["scheduled"], 1);
    let cancel = json!({"seqs": [later["seq"]]});
    let path = format!("{T}/scheduled/cancel");
    assert_eq!(broker.post(&path, cancel.clone()).await.expect(200)["cancelled"], 1);
    assert_eq!(broker.post(&path, cancel).await.problem(404), "message_not_found");
    assert_eq!(broker.get(T).await.expect(200)["scheduled"], 0);
}

#[tokio::test]
async fn dead_letters_list_all_their_deaths() {
    let broker = Broker::start();
    broker.put("/api/v1/topics/dead", json!({"kind": "fanout"})).await.expect(201);
    broker.put(Q, json!({"failed_max": 1, "dead_letter": {"topic": "dead"}})).await.expect(201);
    broker.put("/api/v1/topics/dead/subscriptions/second", json!({})).await.expect(201);
    broker.raw("POST", &format!("{Q}/messages"), &[], "x").await.expect(201);
    let second = "/api/v1/queues/dead%2FSubscriptions%2Fsecond";
    let receive = |path: String| {
        let broker = &broker;
        async move {
            let got = broker.post(&format!("{path}/receive"), json!({})).await.expect(200);
            got["messages"][0].clone()
        }
    };
    let first = receive(Q.into()).await;
    assert_eq!(first.get("deaths"), None);
    let fail = json!({"leases": [first["lease"]], "outcome": "abandon"});
    broker.post(&format!("{Q}/settle"), fail).await.expect(200);
    let copy = receive(second.into()).await;
    assert_eq!(copy.get("dead_letter"), None);
    let deaths = copy["deaths"].as_array().unwrap();
    assert_eq!((deaths.len(), &deaths[0]["from"]), (1, &json!("orders")));
    assert_eq!(deaths[0]["count"], 1);
    let kill =
        json!({"leases": [copy["lease"]], "outcome": "dead_letter", "reason": "Bad", "text": "t"});
    broker.post(&format!("{second}/settle"), kill).await.expect(200);
    let dead = broker.get(&format!("{second}/dead-letters")).await.expect(200);
    let deaths = dead["messages"][0]["deaths"].as_array().unwrap().clone();
    assert_eq!((&deaths[0]["reason"], &deaths[0]["text"]), (&json!("Bad"), &json!("t")));
    assert_eq!(deaths[1]["from"], "orders");
    assert_eq!(dead["messages"][0]["dead_letter"]["reason"], "Bad");
}

/// The name of a caller is its permission: `send:sales` may only send to `sales`.
struct Named;

impl Authenticate for Named {
    fn authenticate<'a>(
        &'a self,
        headers: &'a axum::http::HeaderMap,
        _: std::net::IpAddr,
    ) -> Authenticated<'a> {
        let name = headers.get("x-as").map_or("", |value| value.to_str().unwrap()).to_owned();
        Box::pin(async move { Ok(Principal::named(name)) })
    }
}

impl Access for Named {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        let grants = |grant: &str| grant == "all" || grant == format!("{action}:{on}");
        if who.name().split(',').any(grants) {
            return Ok(());
        }
        Err(Denied::new(who, action, on))
    }
}

#[tokio::test]
async fn grants_use_the_names_of_topics_and_subscription_queues() {
    let broker = Broker::with(|api| {
        api.access = Arc::new(Named);
        api.authenticate = Arc::new(Named);
    });
    let call = |who: &'static str, method: &'static str, path: &'static str, body: Value| {
        let broker = &broker;
        async move {
            let headers = [("x-as", who), ("content-type", "application/json")];
            let body = if body.is_null() { String::new() } else { body.to_string() };
            broker.raw(method, path, &headers, body).await.status.as_u16()
        }
    };
    let s = "/api/v1/topics/sales/subscriptions/s";
    assert_eq!(call("send:sales", "PUT", T, json!({})).await, 403);
    assert_eq!(call("manage:sales", "PUT", T, json!({})).await, 201);
    assert_eq!(call("manage:sales", "PUT", s, json!({})).await, 403);
    assert_eq!(call("manage:sales/Subscriptions/s", "PUT", s, json!({})).await, 201);
    assert_eq!(call("all", "PUT", Q, json!({})).await, 201);
    let messages = "/api/v1/topics/sales/messages";
    assert_eq!(call("manage:sales", "POST", messages, Value::Null).await, 403);
    assert_eq!(call("send:sales", "POST", messages, Value::Null).await, 201);
    let many = json!({"messages": [{"topic": "sales"}, {"queue": "orders"}]});
    assert_eq!(call("send:sales", "POST", "/api/v1/send", many.clone()).await, 403);
    assert_eq!(call("send:sales,send:orders", "POST", "/api/v1/send", many).await, 201);
    // A rule needs permissions on both objects; a subscription belongs to its topic.
    let rule = "/api/v1/topics/sales/queues/orders/rules/r";
    assert_eq!(call("manage:orders", "PUT", rule, json!({})).await, 403);
    assert_eq!(call("manage:sales", "PUT", rule, json!({})).await, 403);
    assert_eq!(call("manage:sales,manage:orders", "PUT", rule, json!({})).await, 201);
    let own = "/api/v1/topics/sales/subscriptions/s/rules/r";
    assert_eq!(call("manage:sales/Subscriptions/s", "PUT", own, json!({})).await, 201);
    // A caller cannot send to a queue or topic through the settings of another.
    let forward = json!({"forward_to": {"topic": "sales"}});
    let dead = json!({"dead_letter": {"queue": "orders"}});
    let mine = "/api/v1/queues/mine";
    assert_eq!(call("manage:mine", "PUT", mine, forward.clone()).await, 403);
    assert_eq!(call("manage:mine", "PUT", mine, dead.clone()).await, 403);
    assert_eq!(call("manage:mine,send:orders", "PUT", mine, dead).await, 201);
    assert_eq!(call("manage:mine", "PATCH", mine, forward.clone()).await, 403);
    assert_eq!(call("manage:mine", "PATCH", mine, json!({"lock_ms": 5})).await, 200);
    assert_eq!(call("manage:mine,send:sales", "PATCH", mine, forward).await, 200);
    // Lists contain only what the caller may see.
    let rules = format!("{T}/rules");
    for (who, count) in [("send:sales", 0), ("send:sales,receive:orders", 1), ("manage:sales", 3)] {
        let list = broker.raw("GET", &rules, &[("x-as", who)], "").await.expect(200);
        assert_eq!(list["rules"].as_array().unwrap().len(), count, "{who}");
    }
    let headers = [("x-as", "send:other")];
    let list = broker.raw("GET", "/api/v1/topics", &headers, "").await.expect(200);
    assert_eq!(list["topics"], json!([]));
}
