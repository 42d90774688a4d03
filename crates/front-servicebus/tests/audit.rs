//! Audit records of logins and administrative operations, over AMQP and over the administration API.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use common::{Client, World};
use malote_front_servicebus::{Admin, Key, Keys, Verified};
use malote_model::audit::AuditList;
use malote_model::{
    Access, Action, Audit, AuditAction, AuditEntry, AuditProtocol, CallerKind, Denied, Principal,
    QueueName, QueueSpec, Resource, TopicName,
};
use malote_wire_amqp::connection::{LinkId, SessionId as Channel};
use malote_wire_amqp::performative::{Attach, Role, Source, Target};
use malote_wire_amqp::types::{Map, Str, Value};
use tower::ServiceExt;

/// Ana's bearer token is `t`; the manage permission can be switched off.
#[derive(Default)]
struct Recorder {
    list: AuditList,
    may_not_manage: AtomicBool,
}

impl Access for Recorder {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        let denied = action == Action::Manage && self.may_not_manage.load(Ordering::SeqCst);
        match denied || who.is_anonymous() {
            true => Err(Denied::new(who, action, on)),
            false => Ok(()),
        }
    }

    fn knows(&self, who: &Principal) -> bool {
        !who.is_anonymous()
    }

    fn audit(&self) -> &dyn Audit {
        &self.list
    }
}

impl Keys for Recorder {
    fn is_open(&self) -> bool {
        false
    }
    fn key(&self, _: &str) -> Option<Key> {
        None
    }
    fn verify_password<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        _: std::net::IpAddr,
    ) -> Verified<'a> {
        Box::pin(async move { (password == "secret").then(|| Principal::named(user)) })
    }
    fn verify_token(&self, token: &str) -> Option<Principal> {
        (token == "t").then(|| Principal::named("ana").through(CallerKind::Token, "ci"))
    }
}

async fn start() -> (World, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let world = World::with(recorder.clone(), recorder.clone());
    world.queue("orders", false).await;
    let topic = TopicName::new("sales").unwrap();
    world.engine.declare_topic(topic.clone(), Default::default()).await.unwrap();
    let queue = QueueName::subscription(&topic, "s").unwrap();
    world.engine.subscribe(queue, QueueSpec::default(), None).await.unwrap();
    (world, recorder)
}

/// Action, object, detail and outcome of the records of Ana, without logins.
fn taken(
    recorder: &Recorder,
    protocol: AuditProtocol,
) -> Vec<(AuditAction, String, String, String)> {
    let mut all = Vec::new();
    for entry in recorder.list.take() {
        assert_eq!(entry.protocol, protocol);
        assert!(entry.peer.is_some_and(|peer| peer.is_loopback()));
        assert_eq!((&*entry.caller.name, entry.caller.kind), ("ana", CallerKind::Token));
        assert_eq!(entry.caller.credential.as_deref(), Some("ci"));
        if entry.action != AuditAction::Login {
            let outcome = entry.outcome.reason().unwrap_or("done").to_owned();
            all.push((entry.action, entry.object, entry.detail, outcome));
        }
    }
    all
}

fn record(
    action: AuditAction,
    object: &str,
    detail: &str,
    outcome: &str,
) -> (AuditAction, String, String, String) {
    (action, object.to_owned(), detail.to_owned(), outcome.to_owned())
}

async fn put_token(client: &mut Client, node: (LinkId, LinkId), token: &str) -> i64 {
    let names = Map::default()
        .with_string("operation", "put-token")
        .with_string("type", "jwt")
        .with_string("name", "");
    client.ask(node, names, Value::from(token)).await.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_logs_in_once_and_wrong_tokens_are_refused() {
    let (world, recorder) = start().await;
    let mut client = world.client().await;
    let channel: Channel = client.amqp.begin().unwrap();
    let node = client.node(channel, "$cbs").await;
    assert_eq!(put_token(&mut client, node, "hunter2").await, 401);
    let sas =
        "SharedAccessSignature sr=sb%3A%2F%2Fh%2F&sig=aHVudGVyMw%3D%3D&se=99999999999&skn=eve";
    assert_eq!(put_token(&mut client, node, sas).await, 401);
    for _ in 0..3 {
        assert_eq!(put_token(&mut client, node, "t").await, 202);
    }
    let entries = recorder.list.take();
    let shown = |entry: &AuditEntry| {
        assert_eq!((entry.action, entry.protocol), (AuditAction::Login, AuditProtocol::ServiceBus));
        let reason = entry.outcome.reason().unwrap_or("done").to_owned();
        (entry.caller.name.clone(), entry.caller.kind, reason)
    };
    let login = |name: &str, kind, reason: &str| (name.to_owned(), kind, reason.to_owned());
    assert_eq!(
        entries.iter().map(shown).collect::<Vec<_>>(),
        [
            login("anonymous", CallerKind::Token, "InvalidToken"),
            login("eve", CallerKind::Key, "InvalidSignature"),
            login("ana", CallerKind::Token, "done"),
        ]
    );
    let kept = format!("{entries:?}");
    assert!(!kept.contains("hunter") && !kept.contains("aHVudGVy"), "{kept}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sasl_logins_are_recorded() {
    let (world, recorder) = start().await;
    assert!(world.signs_in("PLAIN", b"\0bob\0secret").await);
    assert!(!world.signs_in("PLAIN", b"\0eve\x1b\0hunter2").await);
    assert!(!world.signs_in("SCRAM-SHA-256", b"n,,n=hunter3").await);
    let entries = recorder.list.take();
    let shown = |entry: &AuditEntry| {
        assert_eq!((entry.action, entry.protocol), (AuditAction::Login, AuditProtocol::ServiceBus));
        assert!(entry.peer.is_some());
        (entry.caller.name.clone(), entry.outcome.reason().unwrap_or("done").to_owned())
    };
    let login = |name: &str, reason: &str| (name.to_owned(), reason.to_owned());
    assert_eq!(
        entries.iter().map(shown).collect::<Vec<_>>(),
        [
            login("bob", "done"),
            login("eve\\u{1b}", "wrong_credentials"),
            login("anonymous", "unknown_mechanism"),
        ]
    );
    assert!(!format!("{entries:?}").contains("hunter"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporary_queues_are_recorded() {
    let (world, recorder) = start().await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let node = client.node(channel, "$cbs").await;
    assert_eq!(put_token(&mut client, node, "t").await, 202);
    let attach = |name: &str| Attach {
        name: Str::from(name),
        role: Role::Receiver,
        source: Some(Source { dynamic: true, ..Source::default() }),
        target: Some(Target::at("here").into()),
        ..Attach::default()
    };
    let link = client.amqp.attach(channel, attach("one")).unwrap();
    client.attached(link).await;
    recorder.may_not_manage.store(true, Ordering::SeqCst);
    let link = client.amqp.attach(channel, attach("two")).unwrap();
    assert_eq!(client.detached(link).await, "amqp:unauthorized-access");
    let records = taken(&recorder, AuditProtocol::ServiceBus);
    let [(first, made, _, done), (second, _, _, refused)] = &records[..] else {
        panic!("{records:?}")
    };
    assert_eq!((*first, *second), (AuditAction::Declare, AuditAction::Declare));
    assert!(made.starts_with("temporary/"), "{made}");
    assert_eq!((done.as_str(), refused.as_str()), ("done", "amqp:unauthorized-access"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn management_requests_that_change_an_entity_are_recorded() {
    let (world, recorder) = start().await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let node = client.node(channel, "$cbs").await;
    assert_eq!(put_token(&mut client, node, "t").await, 202);
    let channel = client.amqp.begin().unwrap();
    let node = client.node(channel, "sales/Subscriptions/s/$management").await;
    let channel = client.amqp.begin().unwrap();
    let orders = client.node(channel, "orders/$management").await;
    let rule = || {
        let filter = Map::default().with_string("expression", "1=1");
        let rule = Map::default().with_string("sql-filter", Value::Map(filter));
        let body = Map::default().with_string("rule-name", "r1");
        Value::Map(body.with_string("rule-description", Value::Map(rule)))
    };
    let count = || Value::Map(Map::default().with_string("message-count", 10_i32));
    let names = |operation: &str| {
        Map::default()
            .with_string("operation", Value::from(format!("com.microsoft:{operation}").as_str()))
    };
    const SUBSCRIPTION: &str = "sales/Subscriptions/s";
    for (node, operation, body, action, object) in [
        (node, "add-rule", rule(), AuditAction::Bind, SUBSCRIPTION),
        (node, "remove-rule", rule(), AuditAction::Unbind, SUBSCRIPTION),
        (orders, "batch-delete-messages", count(), AuditAction::Purge, "orders"),
    ] {
        let (status, _) = client.ask(node, names(operation), body).await;
        assert!(status < 300, "{operation}: {status}");
        let expected = record(action, object, operation, "done");
        assert_eq!(taken(&recorder, AuditProtocol::ServiceBus), [expected], "{operation}");
    }
    // Every operation that is refused without the manage permission.
    let mut refused = 0;
    for operation in [
        "peek-message",
        "renew-lock",
        "update-disposition",
        "receive-by-sequence-number",
        "schedule-message",
        "cancel-scheduled-message",
        "renew-session-lock",
        "get-session-state",
        "set-session-state",
        "get-message-sessions",
        "add-rule",
        "remove-rule",
        "enumerate-rules",
    ] {
        recorder.may_not_manage.store(false, Ordering::SeqCst);
        let (allowed, _) = client.ask(node, names(operation), rule()).await;
        recorder.may_not_manage.store(true, Ordering::SeqCst);
        recorder.list.take();
        let (status, _) = client.ask(node, names(operation), rule()).await;
        let records = taken(&recorder, AuditProtocol::ServiceBus);
        if status != allowed {
            refused += 1;
            let [(_, object, detail, reason)] = &records[..] else { panic!("{operation}") };
            assert_eq!((object.as_str(), detail.as_str()), (SUBSCRIPTION, operation));
            assert_eq!(reason, "amqp:unauthorized-access");
        } else {
            assert_eq!(records, [], "{operation}");
        }
    }
    assert_eq!(refused, 2);
}

async fn ask(router: &Router, method: &str, path: &str, token: Option<&str>, kind: &str) -> u16 {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost:5300");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = format!(
        "<entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\">\
         <{kind} xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\"></{kind}>\
         </content></entry>"
    );
    let body = if method == "PUT" { Body::from(body) } else { Body::empty() };
    let request = request.body(body).unwrap();
    router.clone().oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_to_the_administration_api_is_recorded() {
    let (world, recorder) = start().await;
    let router = Admin::new(world.front.clone()).router(Default::default(), false);
    const S: &str = "sales/Subscriptions/s";
    let rule = |method: &str| format!("{method} rule=r1");
    let all = [
        ("PUT", "/new", "QueueDescription", AuditAction::Declare, "new", "PUT".to_owned()),
        ("PUT", "/t2", "TopicDescription", AuditAction::Declare, "t2", "PUT".to_owned()),
        (
            "PUT",
            "/sales/subscriptions/s2",
            "SubscriptionDescription",
            AuditAction::Subscribe,
            "sales/Subscriptions/s2",
            "PUT".to_owned(),
        ),
        (
            "PUT",
            "/sales/subscriptions/s/rules/r1",
            "RuleDescription",
            AuditAction::Bind,
            S,
            rule("PUT"),
        ),
        ("GET", "/orders", "", AuditAction::Read, "orders", "GET".to_owned()),
        ("GET", "/$Resources/Queues", "", AuditAction::Read, "", "GET".to_owned()),
        ("GET", "/sales/subscriptions", "", AuditAction::Read, "sales", "GET".to_owned()),
        ("GET", "/sales/subscriptions/s", "", AuditAction::Read, S, "GET".to_owned()),
        ("GET", "/sales/subscriptions/s/rules", "", AuditAction::Read, S, "GET".to_owned()),
        ("GET", "/sales/subscriptions/s/rules/r1", "", AuditAction::Read, S, rule("GET")),
        ("DELETE", "/sales/subscriptions/s/rules/r1", "", AuditAction::Unbind, S, rule("DELETE")),
        ("DELETE", "/sales/subscriptions/s", "", AuditAction::Delete, S, "DELETE".to_owned()),
        ("DELETE", "/orders", "", AuditAction::Delete, "orders", "DELETE".to_owned()),
    ];
    for refused in [true, false] {
        recorder.may_not_manage.store(refused, Ordering::SeqCst);
        for (method, path, kind, action, object, detail) in &all {
            let status = ask(&router, method, path, Some("t"), kind).await;
            // Lists omit what the caller may not manage.
            let forbidden = refused && !path.starts_with("/$Resources");
            assert_eq!(status == 403, forbidden, "{method} {path}: {status}");
            let outcome = if forbidden { "forbidden" } else { "done" };
            let expected = record(*action, object, detail, outcome);
            let found = taken(&recorder, AuditProtocol::ServiceBusAdmin);
            assert_eq!(found, [expected], "{method} {path}: {status}");
        }
    }
    for token in [None, Some("hunter2")] {
        assert_eq!(ask(&router, "DELETE", "/sales", token, "").await, 401);
        let entries = recorder.list.take();
        let [entry] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!(
            (entry.action, entry.outcome.reason()),
            (AuditAction::Login, Some("unauthorized"))
        );
        assert!(!format!("{entry:?}").contains("hunter"));
    }
}
