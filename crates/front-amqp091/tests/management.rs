//! The management API, over a socket.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
mod management_client;

use std::sync::Arc;

use common::{Ana, World, short};
use malote_front_amqp091::wire::method::{Method, basic, connection};
use malote_front_amqp091::wire::table::FieldTable;
use malote_model::access::AllowAll;
use malote_model::{Message, QueueName, QueueSpec};
use management_client::Management;
use serde_json::{Value, json};

fn queue_name(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

#[tokio::test]
async fn the_overview_names_the_version_and_the_node() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    let overview = api.get("/api/overview").await;
    assert_eq!(overview["rabbitmq_version"], "3.13.7");
    assert_eq!(overview["node"], "malote@localhost");
    let only = api.get("/api/overview?columns=node").await;
    assert_eq!(only, serde_json::json!({ "node": "malote@localhost" }));
    let tags = api.get("/api/whoami").await["tags"].clone();
    assert!(tags.as_array().unwrap().contains(&json!("administrator")), "{tags}");
}

#[tokio::test]
async fn requests_are_authenticated_and_foreign_pages_are_refused() {
    let world = World::with(Arc::new(AllowAll), Arc::new(Ana));
    let mut api = Management::of(&world).await;
    api.credential = None;
    let (head, body) = api.send("GET", "/api/overview", "").await;
    assert!(head.starts_with("HTTP/1.1 401"), "{head}");
    assert!(head.contains("www-authenticate: Basic realm=\"RabbitMQ Management\""), "{head}");
    assert_eq!(body, "");
    api.credential = Some("ana:wrong".into());
    let (head, body) = api.send("GET", "/api/overview", "").await;
    assert!(head.starts_with("HTTP/1.1 401"), "{head}");
    assert_eq!(body, r#"{"error":"not_authorized","reason":"Login failed"}"#);
    api.credential = Some("ana:secret".into());
    assert_eq!(api.get("/api/whoami").await["name"], "ana");
    api.headers = vec!["Origin: http://evil.example".into()];
    let (head, _) = api.send("DELETE", "/api/queues/%2F/q", "").await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    api.headers = vec!["Sec-Fetch-Site: cross-site".into()];
    let (head, _) = api.send("GET", "/api/overview", "").await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
}

#[tokio::test]
async fn errors_have_the_json_of_rabbitmq() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    let (head, body) = api.send("GET", "/api/nope", "").await;
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    assert_eq!(body, r#"{"error":"Object Not Found","reason":"Not Found"}"#);
    let (head, body) = api.send("POST", "/api/overview", "").await;
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
    assert!(head.contains("allow: HEAD, GET, OPTIONS"), "{head}");
    assert_eq!(body, "");
}

#[tokio::test]
async fn a_queue_is_declared_listed_and_deleted_as_by_amqp() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    let path = "/api/queues/%2F/q1";
    let spec = json!({ "durable": true, "arguments": { "x-message-ttl": 1000 } });
    assert_eq!(api.ask("PUT", path, spec.clone()).await, (201, Value::Null));
    assert_eq!(api.ask("PUT", path, spec).await, (204, Value::Null));
    let (status, refused) = api.ask("PUT", path, json!({ "durable": true })).await;
    assert_eq!(status, 400);
    let reason = "inequivalent arg 'x-message-ttl' for queue 'q1' in vhost '/': received none but current is the value \
                  '1000' of type 'long'";
    assert_eq!(refused, json!({ "error": "bad_request", "reason": reason }));
    assert_eq!(api.ask("PUT", path, json!({ "durable": "x" })).await.0, 400);
    let (head, _) = api.send("PUT", path, "{\"durable\":").await;
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    assert_eq!(api.ask("PUT", "/api/queues/%2F/amq.x", json!({})).await.0, 401);
    assert_eq!(api.ask("PUT", "/api/queues/nope/q", json!({})).await.0, 404);

    let queue = api.get(path).await;
    assert_eq!(queue["arguments"], json!({ "x-message-ttl": 1000 }));
    assert_eq!(queue["type"], "classic");
    assert_eq!(queue["durable"], true);
    assert_eq!(queue["messages"], 0);
    assert_eq!(api.get("/api/queues").await[0]["name"], "q1");
    assert_eq!(api.get("/api/queues/%2F?columns=name").await, json!([{ "name": "q1" }]));
    assert_eq!(api.ask("GET", "/api/queues/%2F/none", Value::Null).await.0, 404);

    world.engine.send(vec![(queue_name("q1"), Message::default())]).await.unwrap();
    let (status, refused) =
        api.ask("DELETE", "/api/queues/%2F/q1?if-empty=true", Value::Null).await;
    assert_eq!((status, &refused["reason"]), (400, &json!("queue 'q1' in vhost '/' not empty")));
    assert_eq!(api.ask("DELETE", "/api/queues/%2F/q1/contents", Value::Null).await.0, 204);
    assert_eq!(api.get(path).await["messages"], 0);
    assert_eq!(api.ask("DELETE", path, Value::Null).await.0, 204);
    assert_eq!(api.ask("DELETE", path, Value::Null).await.0, 404);
}

#[tokio::test]
async fn virtual_hosts_have_queues_of_their_own() {
    let world = World::new();
    world.front.create_vhost("dev").await.unwrap();
    world.front.create_vhost("dev-2").await.unwrap();
    let mut api = Management::of(&world).await;
    for path in ["/api/queues/%2F/a", "/api/queues/dev/b", "/api/queues/dev-2/c"] {
        assert_eq!(api.ask("PUT", path, json!({})).await.0, 201);
    }
    let names = |list: Value| -> Vec<String> {
        let list = list.as_array().unwrap().clone();
        list.iter().map(|one| format!("{} {}", one["vhost"], one["name"])).collect()
    };
    assert_eq!(names(api.get("/api/queues/dev").await), [r#""dev" "b""#]);
    assert_eq!(names(api.get("/api/queues/%2F").await), [r#""/" "a""#]);
    assert_eq!(names(api.get("/api/queues").await).len(), 3);
    let exchanges = api.get("/api/exchanges/dev?columns=name").await;
    assert_eq!(exchanges.as_array().unwrap().len(), 7);
    assert_eq!(api.ask("GET", "/api/queues/nope", Value::Null).await.0, 404);
}

#[tokio::test]
async fn lists_have_pages_filters_and_an_order() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    for number in 0..300 {
        let name = queue_name(&format!("q{number:03}"));
        world.engine.declare(name, QueueSpec::default()).await.unwrap();
    }
    let all = api.get("/api/queues?columns=name").await;
    assert_eq!(all.as_array().unwrap().len(), 300);
    let page = api.get("/api/queues?page=2&page_size=10&columns=name").await;
    assert_eq!(page["items"][0]["name"], "q010");
    assert_eq!((&page["page_count"], &page["total_count"]), (&json!(30), &json!(300)));
    let page = api.get("/api/queues?page=1&name=%5EQ29&use_regex=true&columns=name").await;
    assert_eq!((&page["filtered_count"], &page["item_count"]), (&json!(10), &json!(10)));
    let page = api.get("/api/queues?page=1&name=Q1&page_size=5&sort=name&sort_reverse=true").await;
    assert_eq!(page["items"][0]["name"], "q199");
    assert_eq!(page["filtered_count"], 100);
    let last = api.get("/api/queues?sort=name&sort_reverse=true&columns=name").await;
    assert_eq!(last[0]["name"], "q299");
    for bad in ["page=9&page_size=500", "page=0", "page=1&page_size=900", "page=x"] {
        assert_eq!(
            api.ask("GET", &format!("/api/queues?{bad}"), Value::Null).await.0,
            400,
            "{bad}"
        );
    }
    let bad = "/api/queues?page=1&name=%5B&use_regex=true";
    let (_, refused) = api.ask("GET", bad, Value::Null).await;
    assert_eq!(refused["reason"], "Pagination parameters are invalid");
}

#[tokio::test]
async fn exchanges_and_bindings_are_made_listed_and_removed() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    assert_eq!(api.ask("PUT", "/api/queues/%2F/q", json!({})).await.0, 201);
    let kind =
        json!({ "type": "topic", "durable": true, "arguments": { "alternate-exchange": "ae" } });
    assert_eq!(api.ask("PUT", "/api/exchanges/%2F/x", kind.clone()).await.0, 201);
    assert_eq!(api.ask("PUT", "/api/exchanges/%2F/x", kind).await.0, 204);
    let (status, refused) = api.ask("PUT", "/api/exchanges/%2F/x", json!({ "type": "nope" })).await;
    assert_eq!((status, &refused["reason"]), (400, &json!("unknown exchange type 'nope'")));
    let exchange = api.get("/api/exchanges/%2F/x").await;
    assert_eq!(exchange["arguments"], json!({ "alternate-exchange": "ae" }));
    assert_eq!((&exchange["type"], &exchange["durable"]), (&json!("topic"), &json!(true)));
    assert_eq!(api.get("/api/exchanges/%2F/amq.default").await["name"], "");
    assert_eq!(api.ask("DELETE", "/api/exchanges/%2F/amq.direct", Value::Null).await.0, 401);

    let between = "/api/bindings/%2F/e/x/q/q";
    let arguments = json!({ "a": 1, "b": [true, "s"], "c": { "d": 1.5 } });
    let body = json!({ "routing_key": "a b.#", "arguments": arguments }).to_string();
    let (head, _) = api.send("POST", between, &body).await;
    assert!(head.starts_with("HTTP/1.1 201"), "{head}");
    let location = head.lines().find_map(|line| line.strip_prefix("location: q/")).unwrap();
    let found = api.get(&format!("{between}/{location}")).await;
    assert_eq!((&found["routing_key"], &found["arguments"]), (&json!("a b.#"), &arguments));
    assert_eq!(api.ask("POST", between, json!({})).await.0, 201);
    let keys: Vec<_> = api.get(between).await.as_array().unwrap().clone();
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().any(|one| one["properties_key"] == "~"));
    assert_eq!(api.get("/api/queues/%2F/q/bindings").await.as_array().unwrap().len(), 3);
    assert_eq!(api.get("/api/bindings/%2F").await.as_array().unwrap().len(), 3);
    let source = api.get("/api/exchanges/%2F/x/bindings/source").await;
    assert_eq!(source.as_array().unwrap().len(), 2);
    assert_eq!(api.get("/api/exchanges/%2F//bindings/source").await[0]["routing_key"], "q");
    let gone = format!("{between}/{location}");
    assert_eq!(api.ask("DELETE", &gone, Value::Null).await.0, 204);
    assert_eq!(api.ask("DELETE", &gone, Value::Null).await.0, 404);
    let (status, missing) = api.ask("POST", "/api/bindings/%2F/e/none/q/q", json!({})).await;
    assert_eq!(status, 404);
    assert_eq!(missing["reason"], "no exchange 'none' in vhost '/'");
    // Between exchanges.
    assert_eq!(api.ask("POST", "/api/bindings/%2F/e/x/e/amq.fanout", json!({})).await.0, 201);
    let to = api.get("/api/exchanges/%2F/amq.fanout/bindings/destination").await;
    assert_eq!((&to[0]["source"], &to[0]["destination_type"]), (&json!("x"), &json!("exchange")));
    assert_eq!(api.ask("DELETE", "/api/exchanges/%2F/x", Value::Null).await.0, 204);
    assert_eq!(api.ask("GET", "/api/exchanges/%2F/x", Value::Null).await.0, 404);
}

#[tokio::test]
async fn headers_of_a_binding_keep_their_types() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    assert_eq!(api.ask("PUT", "/api/queues/%2F/q", json!({})).await.0, 201);
    // Too long for the name of a rule: they are read from the filter.
    let text = "x".repeat(600);
    for arguments in
        [json!({ "x-match": "any", "n": 1, "f": 1.5 }), json!({ "x-match": "all", "t": text })]
    {
        let body = json!({ "arguments": arguments });
        assert_eq!(api.ask("POST", "/api/bindings/%2F/e/amq.headers/q/q", body).await.0, 201);
        let found = api.get("/api/bindings/%2F/e/amq.headers/q/q").await;
        let found = found.as_array().unwrap();
        assert!(found.iter().any(|one| one["arguments"] == arguments), "{found:?}");
    }
}

#[tokio::test]
async fn messages_are_published_and_got() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    let (publish, get) = ("/api/exchanges/%2F/amq.default/publish", "/api/queues/%2F/g/get");
    assert_eq!(api.ask("PUT", "/api/queues/%2F/g", json!({ "durable": true })).await.0, 201);
    let properties =
        json!({ "content_type": "t", "delivery_mode": 2, "headers": { "n": 5_000_000_000_i64 } });
    let message = json!({
        "properties": properties, "routing_key": "g", "payload": "zzé", "payload_encoding": "string"
    });
    assert_eq!(api.ask("POST", publish, message).await, (200, json!({ "routed": true })));
    let lost = json!({ "properties": {}, "routing_key": "no", "payload": "", "payload_encoding": "string" });
    assert_eq!(api.ask("POST", publish, lost.clone()).await, (200, json!({ "routed": false })));
    assert_eq!(api.ask("POST", "/api/exchanges/%2F/none/publish", lost).await.0, 404);
    let bytes = json!({
        "properties": [], "routing_key": "g", "payload": "/wAB", "payload_encoding": "base64"
    });
    assert_eq!(api.ask("POST", publish, bytes).await.1, json!({ "routed": true }));
    let (status, refused) = api.ask("POST", publish, json!({ "routing_key": "g" })).await;
    assert_eq!(status, 400);
    let reason = "[{key_missing,properties},{key_missing,payload},{key_missing,payload_encoding}]";
    assert_eq!(refused["reason"], reason);

    let ask = |mode: &str| json!({ "count": 5, "ackmode": mode, "encoding": "auto" });
    let (_, got) = api.ask("POST", get, ask("ack_requeue_true")).await;
    assert_eq!(got.as_array().unwrap().len(), 2);
    assert_eq!(
        (&got[0]["payload"], &got[0]["payload_encoding"]),
        (&json!("zzé"), &json!("string"))
    );
    assert_eq!((&got[0]["properties"], &got[0]["redelivered"]), (&properties, &json!(false)));
    assert_eq!(
        (&got[1]["payload"], &got[1]["payload_encoding"]),
        (&json!("/wAB"), &json!("base64"))
    );
    let (_, got) = api.ask("POST", get, ask("reject_requeue_true")).await;
    assert_eq!((&got[0]["redelivered"], &got[0]["message_count"]), (&json!(true), &json!(1)));
    let short = json!({ "count": "1", "ackmode": "ack_requeue_false", "encoding": "base64", "truncate": 2 });
    let (_, got) = api.ask("POST", get, short).await;
    assert_eq!((&got[0]["payload"], &got[0]["payload_bytes"]), (&json!("eno="), &json!(4)));
    assert_eq!(api.get("/api/queues/%2F/g").await["messages"], 1);
    let (_, got) = api.ask("POST", get, ask("reject_requeue_false")).await;
    assert_eq!(got.as_array().unwrap().len(), 1);
    assert_eq!(api.get("/api/queues/%2F/g").await["messages"], 0);
    assert_eq!(api.ask("POST", get, ask("nope")).await.0, 400);
    let (status, missing) =
        api.ask("POST", "/api/queues/%2F/no/get", ask("ack_requeue_true")).await;
    assert_eq!(status, 404);
    assert_eq!(missing["reason"], "NOT_FOUND - no queue 'no' in vhost '/'");
}

#[tokio::test]
async fn rates_come_from_the_history() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    let queue = queue_name("rated");
    world.engine.declare(queue.clone(), QueueSpec::default()).await.unwrap();
    let sample = async |after_ms: u64| {
        let now = world.engine.now().plus_ms(after_ms);
        api.history.sample(now, &world.engine.list().await.unwrap());
    };
    sample(0).await;
    let messages = (0..30).map(|_| (queue.clone(), Message::default()));
    world.engine.send(messages.collect()).await.unwrap();
    sample(10_000).await;
    let queue = api.get("/api/queues/%2F/rated").await;
    assert_eq!((&queue["messages"], &queue["messages_ready"]), (&json!(30), &json!(30)));
    let rate = queue["message_stats"]["publish_details"]["rate"].as_f64().unwrap();
    assert!((2.9..=3.0).contains(&rate), "{rate}");
    let overview = api.get("/api/overview").await;
    assert_eq!(overview["queue_totals"]["messages"], 30);
    assert_eq!(overview["message_stats"]["publish"], 30);
    let rate = overview["message_stats"]["publish_details"]["rate"].as_f64().unwrap();
    assert!((2.9..=3.0).contains(&rate), "{rate}");
}

#[tokio::test]
async fn connections_channels_and_consumers_are_listed_and_closed() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    assert_eq!(api.ask("PUT", "/api/queues/%2F/c", json!({})).await.0, 201);
    let mut client = world.channel().await;
    client.call(basic::Qos { prefetch_count: 7, ..Default::default() }).await;
    let arguments = FieldTable::builder().with("x-priority", 3_i32).build();
    let (queue, consumer_tag) = (short("c"), short("tag1"));
    let consume = basic::Consume { queue, consumer_tag, arguments, ..Default::default() };
    client.call(consume).await;

    let connections = api.get("/api/connections").await;
    let name = connections[0]["name"].as_str().unwrap().to_owned();
    assert_eq!(
        (&connections[0]["user"], &connections[0]["channels"]),
        (&json!("guest"), &json!(1))
    );
    let channels = api.get("/api/channels").await;
    assert_eq!(channels[0]["name"], format!("{name} (1)"));
    assert_eq!(
        (&channels[0]["prefetch_count"], &channels[0]["consumer_count"]),
        (&json!(7), &json!(1))
    );
    let consumers = api.get("/api/consumers/%2F").await;
    assert_eq!(consumers[0]["queue"], json!({ "name": "c", "vhost": "/" }));
    assert_eq!(consumers[0]["arguments"], json!({ "x-priority": 3 }));
    assert_eq!(
        (&consumers[0]["ack_required"], &consumers[0]["active"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(api.get("/api/queues/%2F/c").await["consumer_details"], consumers);
    assert_eq!(api.get("/api/overview").await["object_totals"]["consumers"], 1);

    let path = format!("/api/connections/{}", name.replace(' ', "%20").replace('>', "%3E"));
    assert_eq!(api.get(&path).await["name"], name.as_str());
    assert_eq!(api.get(&format!("{path}/channels")).await[0]["number"], 1);
    assert_eq!(api.ask("DELETE", &path, Value::Null).await.0, 204);
    let Method::ConnectionClose(close) = client.method().await else { panic!("not closed") };
    assert_eq!(close.reply_code, 320);
    assert_eq!(close.reply_text, "CONNECTION_FORCED - Closed via management plugin");
    client.send(0, connection::CloseOk {}).await;
    while api.get("/api/connections").await != json!([]) {
        tokio::task::yield_now().await;
    }
    assert_eq!(api.ask("DELETE", &path, Value::Null).await.0, 404);
}

#[tokio::test]
async fn health_is_checked() {
    let world = World::new();
    let mut api = Management::of(&world).await;
    let ok = json!({ "status": "ok" });
    for path in [
        "health/checks/alarms",
        "health/checks/virtual-hosts",
        "aliveness-test/%2F",
        "healthchecks/node",
    ] {
        assert_eq!(api.get(&format!("/api/{path}")).await, ok, "{path}");
    }
    let (status, failed) = api.ask("GET", "/api/health/checks/port-listener/1", Value::Null).await;
    assert_eq!((status, &failed["status"], &failed["missing"]), (503, &json!("failed"), &json!(1)));
    let listener = api.get("/api/health/checks/protocol-listener/http").await;
    assert_eq!(listener, json!({ "status": "ok", "protocol": "http" }));
    for path in [
        "health/checks/protocol-listener/mqtt",
        "health/checks/port-listener/x",
        "aliveness-test/nope",
    ] {
        assert_ne!(api.ask("GET", &format!("/api/{path}"), Value::Null).await.0, 200, "{path}");
    }
    let nodes = api.get("/api/nodes").await;
    assert_eq!(nodes[0]["running"], true);
    let name = nodes[0]["name"].as_str().unwrap();
    assert_eq!(api.get(&format!("/api/nodes/{name}")).await["name"], name);
}
