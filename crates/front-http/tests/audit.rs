//! Every administrative operation is recorded, over HTTP and over the native connection.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use common::client::{Client, listen};
use common::{Broker, Q, send};
use malote_front_http::{Authenticate, Authenticated, Credential, Limits, Unauthenticated};
use malote_model::audit::AuditList;
use malote_model::{
    Access, Action, Audit, AuditAction, AuditEntry, AuditOutcome, AuditProtocol, CallerKind,
    Denied, Principal, Resource,
};
use serde_json::{Value, json};
use tower::ServiceExt;

/// Known callers may send and receive; the permission to manage can be switched off.
#[derive(Default)]
struct Recorder {
    list: AuditList,
    may_not_manage: AtomicBool,
}

impl Access for Recorder {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        match action == Action::Manage && self.may_not_manage.load(Ordering::SeqCst) {
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

/// Ana's password is `secret`. A caller without credentials is Ana, too, unless the header is `anonymous`.
struct Passwords;

impl Authenticate for Passwords {
    fn authenticate<'a>(
        &'a self,
        headers: &'a HeaderMap,
        _: std::net::IpAddr,
    ) -> Authenticated<'a> {
        Box::pin(async move {
            match Credential::of(headers)? {
                Credential::None if headers.contains_key("anonymous") => Ok(Principal::anonymous()),
                Credential::None => Ok(Principal::named("ana")),
                Credential::Basic { user, password } if password == "secret" => {
                    Ok(Principal::named(user))
                }
                _ => Err(Unauthenticated { why: "wrong".into() }),
            }
        })
    }
}

fn start() -> (Broker, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let access = recorder.clone();
    let broker = Broker::with(|api| {
        (api.access, api.authenticate) = (access, Arc::new(Passwords));
    });
    (broker, recorder)
}

/// The records except logins: action, object, detail and outcome.
fn taken(recorder: &Recorder) -> Vec<(AuditAction, String, String, String)> {
    let entries = recorder.list.take().into_iter();
    let mut all = Vec::new();
    for entry in entries.filter(|entry| entry.action != AuditAction::Login) {
        assert_eq!(entry.caller.name, "ana");
        assert!(entry.peer.is_some_and(|peer| peer.is_loopback()));
        let outcome = match &entry.outcome {
            AuditOutcome::Done => "done".to_owned(),
            other => format!("{}: {}", other.as_str(), other.reason().unwrap()),
        };
        all.push((entry.action, entry.object, entry.detail, outcome));
    }
    all
}

#[tokio::test]
async fn operations_are_recorded_with_their_object() {
    let (broker, recorder) = start();
    let check =
        async |method: &str, path: &str, body: Value, expected: (AuditAction, &str, &str)| {
            let answer = broker.call(method, path, Some(body)).await;
            assert!(answer.status.is_success(), "{method} {path}: {}", answer.text());
            let (action, object, detail) = expected;
            let expected = vec![(action, object.to_owned(), detail.to_owned(), "done".to_owned())];
            assert_eq!(taken(&recorder), expected, "{method} {path}");
        };
    use AuditAction::*;
    check("PUT", Q, json!({"sessions": "dynamic"}), (Declare, "orders", "declare_queue")).await;
    check("PATCH", Q, json!({"lock_ms": 5000}), (Update, "orders", "update_queue")).await;
    send(&broker, json!([{"body": "x", "session": "s1"}])).await;
    assert_eq!(taken(&recorder), [], "data is not recorded");
    check("POST", &format!("{Q}/pause"), json!({}), (Pause, "orders", "pause_queue")).await;
    check("POST", &format!("{Q}/resume"), json!({}), (Resume, "orders", "resume_queue")).await;
    let redrive = format!("{Q}/dead-letters/redrive");
    broker.post(&redrive, json!({"dry_run": true})).await.expect(200);
    assert_eq!(taken(&recorder), [], "a dry run changes nothing");
    check("POST", &redrive, json!({}), (Redrive, "orders", "redrive")).await;
    check("POST", &format!("{Q}/purge"), json!({}), (Purge, "orders", "purge_queue")).await;
    check("PUT", "/api/v1/topics/sales", json!({}), (Declare, "sales", "declare_topic")).await;
    let of = "/api/v1/topics/sales/subscriptions/audit";
    let name = "sales/Subscriptions/audit";
    check("PUT", of, json!({}), (Subscribe, name, "declare_subscription")).await;
    let rule = "put_rule_of_subscription rule=r1";
    check("PUT", &format!("{of}/rules/r1"), json!({"filter": "all"}), (Bind, name, rule)).await;
    let rule = "put_rule topic=sales rule=a b";
    let path = "/api/v1/topics/sales/queues/orders/rules/a%20b";
    check("PUT", path, json!({"filter": "all"}), (Bind, "orders", rule)).await;
    check("DELETE", of, json!({}), (Delete, name, "delete_subscription")).await;
    check("DELETE", Q, json!({}), (Delete, "orders", "delete_queue")).await;
    check("GET", "/api/v1/audit", json!({}), (ReadAudit, "", "audit")).await;
    // A queue that is created by its first message.
    broker.raw("POST", "/api/v1/queues/new/messages?create=true", &[], "x").await.expect(201);
    let made = (Declare, "new".to_owned(), "send".to_owned(), "done".to_owned());
    assert_eq!(taken(&recorder), [made]);
}

/// The routes of the document, with a value for every place-holder.
fn routes(document: &Value) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let path = [("queue", "orders"), ("topic", "sales"), ("seq", "1")]
                .iter()
                .fold(path.clone(), |path, (name, value)| {
                    path.replace(&format!("{{{name}}}"), value)
                });
            let path = path.replace(['{', '}'], "");
            let name = operation["operationId"].as_str().unwrap().to_owned();
            all.push((method.to_ascii_uppercase(), path, name));
        }
    }
    all
}

#[tokio::test]
async fn every_route_with_the_manage_permission_records_a_refusal() {
    let (broker, recorder) = start();
    broker.put(Q, json!({})).await.expect(201);
    broker.put("/api/v1/topics/sales", json!({})).await.expect(201);
    recorder.may_not_manage.store(true, Ordering::SeqCst);
    recorder.list.take();
    let mut refused = HashSet::new();
    // An answer that does not end; it needs no such permission.
    let routes = routes(&broker.document);
    let routes = routes.into_iter().filter(|(.., name)| name != "overview_events");
    for (method, path, name) in routes {
        let body = match name.as_str() {
            "resend" => json!({"message": {"body": "private"}}),
            "settle" | "renew" => json!({"leases": []}),
            "send_batch" | "send_batch_to_topic" | "send_many" => json!({"messages": []}),
            "transact" => json!({"operations": []}),
            _ => json!({}),
        };
        let path = if name == "request" { format!("{path}?timeout-ms=1") } else { path };
        let answer = broker.call(&method, &path, Some(body)).await;
        let records = taken(&recorder);
        if answer.status != 403 {
            assert!(records.iter().all(|(.., outcome)| outcome != "done"), "{name}: {records:?}");
            continue;
        }
        refused.insert(name.clone());
        let [(_, object, detail, outcome)] = &records[..] else { panic!("{name}: {records:?}") };
        assert_eq!(outcome, "refused: forbidden", "{name}");
        assert!(detail.starts_with(&name), "{name}: {detail}");
        assert!(path.contains(object.split('/').next().unwrap()), "{name}: {object}");
    }
    assert_eq!(refused.len(), 24, "{refused:?}");
    let create = "/api/v1/queues/new/messages?create=true";
    assert_eq!(broker.raw("POST", create, &[], "x").await.problem(403), "forbidden");
    let refused = "refused: forbidden".to_owned();
    let record = (AuditAction::Declare, "new".to_owned(), "send".to_owned(), refused);
    assert_eq!(taken(&recorder), [record]);
}

#[tokio::test]
async fn logins_are_recorded_and_secrets_are_not() {
    let (broker, recorder) = start();
    let basic = |text: &str| {
        use base64::Engine as _;
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text))
    };
    let ask = async |headers: &[(&str, &str)]| {
        broker.raw("GET", "/api/v1/queues", headers, "").await.status.as_u16()
    };
    assert_eq!(ask(&[("authorization", &basic("bob:secret"))]).await, 200);
    assert_eq!(ask(&[("authorization", &basic("eve\n:hunter2"))]).await, 401);
    assert_eq!(ask(&[("authorization", "Bearer hunter3")]).await, 401);
    assert_eq!(ask(&[("authorization", "Digest hunter4")]).await, 401);
    assert_eq!(ask(&[("anonymous", "1")]).await, 401);
    let entries = recorder.list.take();
    let shown = |entry: &AuditEntry| {
        assert_eq!((entry.action, entry.protocol), (AuditAction::Login, AuditProtocol::Http));
        assert!(entry.peer.is_some());
        let reason = entry.outcome.reason().unwrap_or("done").to_owned();
        (entry.caller.name.clone(), entry.caller.kind, reason)
    };
    let shown: Vec<_> = entries.iter().map(shown).collect();
    let login = |name: &str, kind, reason: &str| (name.to_owned(), kind, reason.to_owned());
    assert_eq!(
        shown,
        [
            login("bob", CallerKind::User, "done"),
            login("eve\\u{a}", CallerKind::User, "wrong_credentials"),
            login("anonymous", CallerKind::Token, "wrong_credentials"),
            login("anonymous", CallerKind::Anonymous, "malformed_credentials"),
            login("anonymous", CallerKind::Anonymous, "no_credentials"),
        ]
    );
    // No part of a body is recorded, even if the body is invalid.
    broker.put(Q, json!({})).await.expect(201);
    let resend = format!("{Q}/dead-letters/1/resend");
    broker
        .post(&resend, json!({"message": {"body": "hunter5", "priority": "hunter6"}}))
        .await
        .problem(400);
    let kept = format!("{entries:?}{:?}", recorder.list.take());
    assert!(!kept.contains("hunter") && !kept.contains("secret"), "{kept}");
}

#[tokio::test]
async fn a_caller_that_disconnects_before_the_answer_is_recorded() {
    let (broker, recorder) = start();
    broker.put(Q, json!({})).await.expect(201);
    recorder.list.take();
    let request = Request::delete(Q).body(Body::empty()).unwrap();
    let mut asking = Box::pin(broker.router.clone().oneshot(request));
    // The connection ends after the request has reached the engine.
    while recorder.list.take().is_empty() {
        let polled = futures_util::future::poll_immediate(&mut asking).await;
        assert!(polled.is_none(), "it takes at least a commit");
    }
    drop(asking);
    let left = "unknown: caller_left".to_owned();
    let record = (AuditAction::Delete, "orders".to_owned(), "delete_queue".to_owned(), left);
    assert_eq!(taken(&recorder), [record]);
}

#[tokio::test]
async fn the_native_connection_is_recorded_too() {
    let (broker, recorder) = start();
    let to = listen(broker, Limits::default()).await;
    let mut client = Client::connect(&to).await;
    Client::ok(client.ask("declare", json!({"queue": "q", "spec": {"sessions": "dynamic"}})).await);
    recorder.may_not_manage.store(true, Ordering::SeqCst);
    let refused = client.ask("declare", json!({"queue": "p"})).await;
    assert_eq!(refused["problem"]["code"], "forbidden", "{refused}");
    let refused = client.ask("get_state", json!({"queue": "q", "session": "s1"})).await;
    assert_eq!(refused["problem"]["code"], "forbidden", "{refused}");
    let entries = recorder.list.take();
    let shown = |entry: AuditEntry| {
        assert_eq!(entry.protocol, AuditProtocol::Native);
        assert_eq!(entry.caller.name, "ana");
        assert!(entry.peer.is_some_and(|peer| peer.is_loopback()));
        (entry.action.as_str(), entry.object, entry.outcome.as_str())
    };
    let shown: Vec<_> = entries.into_iter().map(shown).collect();
    let expected = [
        ("login", "", "done"),
        ("declare", "q", "done"),
        ("declare", "p", "refused"),
        ("read_state", "q", "refused"),
    ];
    assert_eq!(shown, expected.map(|(action, on, how)| (action, on.to_owned(), how)));
}

#[tokio::test]
async fn reading_the_log_needs_the_permission_to_manage_everything() {
    let (broker, recorder) = start();
    broker.put(Q, json!({})).await.expect(201);
    let page = broker.get("/api/v1/audit?action=declare").await.expect(200);
    assert_eq!(page["records"][0]["object"], "orders", "{page}");
    for wrong in ["action=fly", "outcome=good", "max=0", "max=9999", "after=x", "what=1"] {
        let status = broker.get(&format!("/api/v1/audit?{wrong}")).await.status;
        assert_eq!(status, 400, "{wrong}");
    }
    recorder.may_not_manage.store(true, Ordering::SeqCst);
    recorder.list.take();
    assert_eq!(broker.get("/api/v1/audit").await.problem(403), "forbidden");
    let refused = "refused: forbidden".to_owned();
    let record = (AuditAction::ReadAudit, String::new(), "audit".to_owned(), refused);
    assert_eq!(taken(&recorder), [record]);
}
