//! RabbitMQ's users, permissions and definitions on the real credential store, over the management API. The answers were
//! compared with those of RabbitMQ 3.10.8.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use data_encoding::BASE64;
use http_body_util::BodyExt as _;
use malote_engine::{Engine, History, Running, Settings};
use malote_front_amqp091::metadata::MetadataStore;
use malote_front_amqp091::{Front, ManagementApi};
use malote_model::access::Access;
use malote_model::audit::AuditQuery;
use malote_model::{
    Action, Audit as _, AuditAction, AuditEntry, AuditProtocol, QueueName, WebGuard,
};
use serde_json::{Value, json};

use crate::audit::AuditLog;
use crate::credentials::{CREDENTIALS_FILE, Store};
use crate::permissions::Permissions;
use crate::rabbitmq_file::{RABBITMQ_FILE, RabbitmqFile};
use crate::rabbitmq_users::RabbitmqUsers;

/// Definitions that RabbitMQ 3.10.8 exported.
const DEFINITIONS: &str = include_str!("../tests/data/rabbitmq-3.10.8.json");

struct Broker {
    audit: Arc<AuditLog>,
    front: Arc<Front>,
    store: Arc<Store>,
    api: ManagementApi,
    running: Running,
    dir: tempfile::TempDir,
}

impl Broker {
    async fn at(dir: tempfile::TempDir) -> Broker {
        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        let store = Arc::new(Store::open(dir.path().join(CREDENTIALS_FILE)).unwrap());
        let clock = engine.clone();
        let audit = Arc::new(AuditLog::open(dir.path(), move || clock.now()).unwrap());
        let access: Arc<dyn Access> =
            Arc::new(Permissions { store: store.clone(), audit: audit.clone() });
        let users = Arc::new(RabbitmqUsers { store: store.clone(), access: access.clone() });
        let mut front = Front::new(engine, access, users.clone());
        front.users = users;
        let file = RabbitmqFile(dir.path().join(RABBITMQ_FILE));
        front.metadata = Arc::new(MetadataStore::open(file).unwrap());
        front.load_vhosts().await.unwrap();
        let front = Arc::new(front);
        let history = Arc::<History>::default();
        let api = ManagementApi::new(front.clone(), history, WebGuard::default());
        Broker { audit, front, store, api, running, dir }
    }

    /// A broker with the administrator `guest`.
    async fn new() -> Broker {
        let broker = Broker::at(tempfile::tempdir().unwrap()).await;
        let (status, _) = broker
            .call(
                "guest:guest",
                "PUT",
                "/users/guest",
                json!({ "password": "guest", "tags": "administrator" }),
            )
            .await;
        assert_eq!(status, 201);
        let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        assert_eq!(broker.call("guest:guest", "PUT", "/permissions/%2F/guest", all).await.0, 201);
        broker
    }

    async fn restarted(self) -> Broker {
        let Broker { audit, front, store, api, running, dir } = self;
        drop((audit, front, store, api));
        running.stop().await;
        Broker::at(dir).await
    }

    async fn call(&self, user: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder()
            .method(method.parse::<Method>().unwrap())
            .uri(format!("/api{path}"))
            .header(header::AUTHORIZATION, format!("Basic {}", BASE64.encode(user.as_bytes())))
            .body(Body::from(body))
            .unwrap();
        let (head, body) = self.api.serve(request).await.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.call("guest:guest", "GET", path, Value::Null).await;
        assert_eq!(status, StatusCode::OK.as_u16(), "{path} {answer}");
        answer
    }
}

#[tokio::test]
async fn users_and_permissions_are_managed_as_in_rabbitmq() {
    let broker = Broker::new().await;
    let not_found = json!({ "error": "Object Not Found", "reason": "Not Found" });
    let bad = |reason: &str| json!({ "error": "bad_request", "reason": reason });
    let permission = json!({ "configure": "^a", "write": ".*", "read": ".*" });
    let topic = json!({ "exchange": "amq.topic", "write": "^a", "read": ".*" });
    for (method, path, body, status, answer) in [
        (
            "PUT",
            "/users/ana",
            json!({ "password": "secret", "tags": "management" }),
            201,
            Value::Null,
        ),
        (
            "PUT",
            "/users/ana",
            json!({ "password": "secret", "tags": ["management"] }),
            204,
            Value::Null,
        ),
        (
            "PUT",
            "/users/bob",
            json!({ "password_hash": "", "tags": "monitoring,foo" }),
            201,
            Value::Null,
        ),
        ("PUT", "/users/dora", json!({ "password": "x" }), 400, bad("tags_not_present")),
        (
            "PUT",
            "/users/fred",
            json!({ "password": "x", "password_hash": "abc", "tags": "" }),
            400,
            bad("both_password_and_password_hash_are_provided"),
        ),
        (
            "PUT",
            "/users/fred",
            json!({ "password_hash": "not base64!", "tags": "" }),
            400,
            json!({ "error": "bad_request", "reason": ["not_base64", "not base64!"] }),
        ),
        ("GET", "/users/nobody", Value::Null, 404, not_found.clone()),
        ("DELETE", "/users/nobody", Value::Null, 404, not_found.clone()),
        ("GET", "/users/ana/permissions", Value::Null, 200, json!([])),
        ("PUT", "/permissions/%2F/ana", permission.clone(), 201, Value::Null),
        ("PUT", "/permissions/%2F/ana", permission, 204, Value::Null),
        (
            "PUT",
            "/permissions/%2F/ana",
            json!({ "configure": "", "write": "" }),
            400,
            bad("[{key_missing,read}]"),
        ),
        (
            "PUT",
            "/permissions/nope/ana",
            json!({ "configure": "", "write": "", "read": "" }),
            400,
            bad("vhost_or_user_not_found"),
        ),
        (
            "PUT",
            "/permissions/%2F/nobody",
            json!({ "configure": "", "write": "", "read": "" }),
            400,
            bad("vhost_or_user_not_found"),
        ),
        (
            "GET",
            "/permissions/%2F/ana",
            Value::Null,
            200,
            json!({ "user": "ana", "vhost": "/", "configure": "^a", "write": ".*", "read": ".*" }),
        ),
        ("GET", "/permissions/%2F/bob", Value::Null, 404, not_found.clone()),
        ("DELETE", "/permissions/%2F/bob", Value::Null, 404, not_found.clone()),
        ("PUT", "/topic-permissions/%2F/ana", topic, 201, Value::Null),
        (
            "GET",
            "/topic-permissions/%2F/ana",
            Value::Null,
            200,
            json!([{ "user": "ana", "vhost": "/", "exchange": "amq.topic", "write": "^a", "read": ".*" }]),
        ),
        ("DELETE", "/topic-permissions/%2F/ana", Value::Null, 204, Value::Null),
        ("DELETE", "/topic-permissions/%2F/ana", Value::Null, 404, not_found),
        ("DELETE", "/users/bob", Value::Null, 204, Value::Null),
        ("GET", "/whoami", Value::Null, 200, json!({ "name": "guest", "tags": ["administrator"] })),
    ] {
        let found = broker.call("guest:guest", method, path, body.clone()).await;
        assert_eq!(found, (status, answer), "{method} {path} {body}");
    }
    // The grants of other protocols follow.
    let ana = broker.store.verify_password("ana", "secret", [127, 0, 0, 1].into()).await.unwrap();
    let may = |action, queue: &str| {
        broker.store.check(&ana, action, (&QueueName::new(queue).unwrap()).into()).is_ok()
    };
    assert!(may(Action::Manage, "a1") && !may(Action::Manage, "b1") && may(Action::Send, "b1"));
}

#[tokio::test]
async fn tags_decide_who_may_call_what() {
    let broker = Broker::new().await;
    let body: Value = serde_json::from_str(DEFINITIONS).unwrap();
    for (user, tags) in
        [("mon", "monitoring"), ("pol", "policymaker"), ("man", "management"), ("none", "")]
    {
        let put = json!({ "password": "x", "tags": tags });
        broker.call("guest:guest", "PUT", &format!("/users/{user}"), put).await;
        let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        broker.call("guest:guest", "PUT", &format!("/permissions/%2F/{user}"), all).await;
    }
    broker.call("guest:guest", "PUT", "/vhosts/dev", json!({})).await;
    let policy = json!({ "pattern": "zz", "definition": { "max-length": 1 } });
    let admin = "Not administrator user";
    let object = "User not authorised to access object";
    let vhost = "User not authorised to access virtual host";
    for (user, method, path, body, expected) in [
        ("mon", "GET", "/users", Value::Null, Err(admin)),
        ("mon", "GET", "/vhosts", Value::Null, Ok(200)),
        ("mon", "GET", "/vhosts/dev", Value::Null, Err(admin)),
        ("mon", "GET", "/policies", Value::Null, Ok(200)),
        ("mon", "GET", "/policies/dev", Value::Null, Err(vhost)),
        ("mon", "GET", "/parameters", Value::Null, Err(object)),
        ("mon", "GET", "/global-parameters", Value::Null, Err(object)),
        ("mon", "GET", "/definitions", Value::Null, Err(admin)),
        ("mon", "PUT", "/policies/%2F/p", policy.clone(), Err(object)),
        ("pol", "PUT", "/policies/%2F/p", policy.clone(), Ok(201)),
        ("pol", "PUT", "/policies/dev/p", policy.clone(), Err(object)),
        ("pol", "PUT", "/operator-policies/%2F/p", policy.clone(), Err(admin)),
        ("pol", "PUT", "/global-parameters/g", json!({ "value": 1 }), Ok(201)),
        ("pol", "PUT", "/permissions/%2F/pol", json!({}), Err(admin)),
        ("pol", "PUT", "/users/pol", json!({ "tags": "administrator" }), Err(admin)),
        ("pol", "DELETE", "/policies/%2F/p", Value::Null, Ok(204)),
        ("man", "PUT", "/policies/%2F/p", policy, Err(object)),
        ("man", "PUT", "/vhosts/v", json!({}), Err(admin)),
        ("man", "POST", "/definitions", body, Err(admin)),
        ("man", "GET", "/policies/%2F", Value::Null, Ok(200)),
        ("none", "GET", "/whoami", Value::Null, Err("Not management user")),
    ] {
        let (status, answer) = broker.call(&format!("{user}:x"), method, path, body).await;
        match expected {
            Ok(expected) => assert_eq!(status, expected, "{user} {method} {path} {answer}"),
            Err(reason) => {
                let expected = json!({ "error": "not_authorised", "reason": reason });
                assert_eq!((status, answer), (401, expected), "{user} {method} {path}");
            }
        }
    }
    // A user sees the virtual hosts that it may enter; monitoring sees all.
    let count = async |user: &str| {
        let (_, vhosts) = broker.call(user, "GET", "/vhosts", Value::Null).await;
        vhosts.as_array().unwrap().len()
    };
    assert_eq!((count("man:x").await, count("mon:x").await), (1, 2));
}

#[tokio::test]
async fn the_first_user_of_an_open_broker_must_be_an_administrator() {
    let broker = Broker::at(tempfile::tempdir().unwrap()).await;
    let ana = json!({ "password": "x", "tags": "management" });
    assert_eq!(broker.call("guest:guest", "PUT", "/users/ana", ana).await.0, 400);
    assert!(broker.store.is_open());
    assert_eq!(broker.call("guest:wrong", "GET", "/users", Value::Null).await.0, 401);
}

/// Objects of a part of the definitions, in an order of their own, without what RabbitMQ 3.10 does not write.
fn sorted(definitions: &Value, part: &str) -> Vec<String> {
    let mut objects: Vec<String> = definitions[part]
        .as_array()
        .unwrap()
        .iter()
        .map(|object| {
            let mut object = object.as_object().unwrap().clone();
            for added in ["metadata", "description", "malote_password_hash"] {
                object.remove(added);
            }
            Value::Object(object).to_string()
        })
        .collect();
    objects.sort();
    objects
}

#[tokio::test]
async fn definitions_of_a_real_rabbitmq_make_a_round_trip() {
    let broker = Broker::at(tempfile::tempdir().unwrap()).await;
    let real: Value = serde_json::from_str(DEFINITIONS).unwrap();
    assert_eq!(broker.call("guest:guest", "POST", "/definitions", real.clone()).await.0, 204);
    // The users of RabbitMQ sign in with the passwords that RabbitMQ hashed.
    let home = [127, 0, 0, 1].into();
    assert!(broker.store.verify_password("ana", "secret", home).await.is_some());
    assert!(broker.store.verify_password("bob", "", home).await.is_none());
    let parts = [
        "users",
        "vhosts",
        "permissions",
        "topic_permissions",
        "parameters",
        "global_parameters",
        "policies",
        "queues",
        "exchanges",
        "bindings",
    ];
    let exported = broker.get("/definitions").await;
    for part in parts {
        assert_eq!(sorted(&exported, part), sorted(&real, part), "{part}");
    }
    // Everything again, and after a restart.
    assert_eq!(broker.call("guest:guest", "POST", "/definitions", exported.clone()).await.0, 204);
    let broker = broker.restarted().await;
    let durable: Vec<String> =
        sorted(&real, "queues").into_iter().filter(|q| q.contains("\"durable\":true")).collect();
    let exported = broker.get("/definitions").await;
    assert_eq!(sorted(&exported, "queues"), durable);
    for part in ["users", "vhosts", "permissions", "parameters", "policies", "global_parameters"] {
        assert_eq!(sorted(&exported, part), sorted(&real, part), "{part}");
    }
    let of_rt = broker.get("/definitions/rt").await;
    assert!(of_rt.get("users").is_none() && of_rt["queues"].as_array().unwrap().len() == 2);
}

#[tokio::test]
async fn an_import_reports_what_it_refuses_and_what_it_leaves_alone() {
    let broker = Broker::new().await;
    let queue = |name: &str, arguments: Value| json!({ "name": name, "vhost": "/", "durable": true, "auto_delete": false, "arguments": arguments });
    let import = async |body: Value| {
        broker.call("guest:guest", "POST", "/definitions?report=true", body).await
    };
    assert_eq!(import(json!({ "queues": [queue("q", json!({}))] })).await.0, 200);
    let (_, report) = import(json!({ "queues": [queue("q", json!({ "x-max-length": 1 }))] })).await;
    assert_eq!(
        report,
        json!({ "skipped": ["queue 'q' in vhost '/': exists with other settings"] })
    );
    // The other queues are imported; bindings, which would follow, are not.
    let (status, answer) = import(json!({
        "queues": [queue("bad", json!({ "x-max-length": "s" })), queue("good", json!({}))],
        "bindings": [{ "source": "amq.direct", "vhost": "/", "destination": "good", "destination_type": "queue", "routing_key": "k", "arguments": {} }],
    })).await;
    assert_eq!(status, 400);
    assert!(
        answer["reason"].as_str().unwrap().starts_with("queue 'bad' in vhost '/': "),
        "{answer}"
    );
    let exported = broker.get("/definitions").await;
    let names: Vec<&str> = exported["queues"]
        .as_array()
        .unwrap()
        .iter()
        .map(|q| q["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["good", "q"]);
    assert_eq!(exported["bindings"], json!([]));
    for (path, body, status) in [
        ("/definitions", json!([]), 400),
        ("/definitions", json!({ "queues": 1 }), 400),
        ("/definitions", json!({ "users": [{ "name": "a b", "tags": "" }] }), 400),
        (
            "/definitions",
            json!({ "permissions": [{ "user": "ghost", "vhost": "/", "configure": "", "write": "", "read": "" }] }),
            400,
        ),
        (
            "/definitions",
            json!({ "policies": [{ "vhost": "/", "name": "p", "pattern": "(", "definition": { "max-length": 1 } }] }),
            400,
        ),
        ("/definitions/nope", json!({}), 404),
    ] {
        assert_eq!(
            broker.call("guest:guest", "POST", path, body.clone()).await.0,
            status,
            "{body}"
        );
    }
}

#[tokio::test]
async fn policies_and_parameters_survive_a_restart() {
    let broker = Broker::new().await;
    let policy = json!({ "pattern": "^q", "definition": { "max-length": 3 }, "apply-to": "queues", "priority": 2 });
    let put = async |path: &str, body: &Value| {
        broker.call("guest:guest", "PUT", path, body.clone()).await.0
    };
    assert_eq!(put("/policies/%2F/p", &policy).await, 201);
    assert_eq!(put("/policies/%2F/p", &policy).await, 204);
    assert_eq!(put("/policies/nope/p", &policy).await, 404);
    assert_eq!(put("/global-parameters/g", &json!({ "value": { "a": 1 } })).await, 201);
    assert_eq!(put("/parameters/nope/%2F/x", &json!({ "value": 1 })).await, 400);
    assert_eq!(
        put("/parameters/vhost-limits/%2F/limits", &json!({ "value": { "max-queues": 9 } })).await,
        201
    );
    assert_eq!(put("/vhosts/dev", &json!({ "description": "d", "tags": "x,y" })).await, 201);
    let queue = json!({ "queues": [{ "name": "q1", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {} }] });
    broker.call("guest:guest", "POST", "/definitions", queue).await;
    let broker = broker.restarted().await;
    let expected = json!({ "vhost": "/", "name": "p", "pattern": "^q", "definition": { "max-length": 3 }, "apply-to": "queues", "priority": 2 });
    assert_eq!(broker.get("/policies/%2F/p").await, expected);
    assert_eq!(broker.get("/global-parameters/g").await["value"], json!({ "a": 1 }));
    assert_eq!(
        broker.get("/parameters/vhost-limits/%2F").await[0]["value"],
        json!({ "max-queues": 9 })
    );
    assert_eq!(broker.get("/vhosts/dev").await["tags"], json!(["x", "y"]));
    let permissions = broker.get("/vhosts/dev/permissions").await;
    assert_eq!(permissions[0]["user"], "guest", "the creator may use it");
    let facts = broker.front.engine.describe(QueueName::new("q1").unwrap()).await.unwrap();
    assert_eq!(facts.spec.length_max, Some(3));
    assert_eq!(broker.call("guest:guest", "DELETE", "/vhosts/dev", Value::Null).await.0, 204);
    assert_eq!(broker.get("/permissions").await.as_array().unwrap().len(), 1);
}

#[test]
fn a_damaged_file_of_policies_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(RABBITMQ_FILE);
    for text in ["nonsense", "{\"version\":2}", "{\"version\":1,\"extra\":1}"] {
        crate::files::write_private(&path, text.as_bytes()).unwrap();
        assert!(MetadataStore::open(RabbitmqFile(path.clone())).is_err(), "{text}");
    }
}

#[tokio::test]
async fn changes_of_users_are_recorded_with_their_caller() {
    let broker = Broker::new().await;
    let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
    let definitions = json!({
        "users": [{ "name": "bob", "password": "x", "tags": "" }],
        "permissions": [{ "user": "bob", "vhost": "dev", "configure": "", "write": "", "read": "a" }],
    });
    for (method, path, body) in [
        ("PUT", "/users/ana", json!({ "password": "x", "tags": "" })),
        ("PUT", "/vhosts/dev", json!({})),
        ("PUT", "/permissions/dev/ana", all),
        ("DELETE", "/permissions/dev/ana", Value::Null),
        ("POST", "/definitions", definitions),
        ("DELETE", "/vhosts/dev", Value::Null),
        ("DELETE", "/users/ana", Value::Null),
    ] {
        let (status, answer) = broker.call("guest:guest", method, path, body).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
    }
    let Broker { audit, front, store, api, running, dir: _dir } = broker;
    drop((front, store, api));
    audit.close();
    let records = audit.read(&AuditQuery { max: 1000, ..AuditQuery::default() });
    let mut seen = Vec::new();
    for record in records.records {
        let AuditEntry { caller, peer, protocol, action, object, .. } = record.entry;
        let by = (caller.name, protocol, peer.map(|peer| peer.is_loopback()));
        seen.push((action, object, by));
    }
    let guest = ("guest".to_owned(), AuditProtocol::RabbitmqManagement, Some(true));
    for (action, object) in [
        (AuditAction::UserAdd, "ana"),
        (AuditAction::Grant, "ana"),
        (AuditAction::Revoke, "ana"),
        (AuditAction::UserRemove, "ana"),
        (AuditAction::UserAdd, "bob"),
        (AuditAction::Grant, "bob"),
        (AuditAction::Delete, "vhost dev"),
    ] {
        let expected = (action, object.to_owned(), guest.clone());
        assert!(seen.contains(&expected), "{expected:?} {seen:?}");
    }
    // Permissions that end with their virtual host.
    let server = ("server".to_owned(), AuditProtocol::Server, None);
    assert!(seen.contains(&(AuditAction::Revoke, "bob".to_owned(), server)), "{seen:?}");
    running.stop().await;
}
