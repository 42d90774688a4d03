//! Logins and administrative actions leave records in the audit log.
#![allow(clippy::unwrap_used)]

#[path = "common/sign.rs"]
mod sign;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use malote_engine::{Engine, Running, Settings};
use malote_front_sqs::{ACTIONS, Keys, Sqs, router};
use malote_model::audit::AuditList;
use malote_model::{
    Access, Action, Audit, AuditAction, AuditEntry, AuditProtocol, CallerKind, Denied, Principal,
    QueueName, Resource,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Managing can be switched off.
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

    fn audit(&self) -> &dyn Audit {
        &self.list
    }
}

/// Knows one key, `AK`, of Ana.
struct OneKey;

impl Keys for OneKey {
    fn open(&self) -> bool {
        false
    }
    fn secret(&self, access_key: &str) -> Option<(Arc<str>, Principal)> {
        let ana = Principal::named("ana").through(CallerKind::Key, access_key);
        (access_key == "AK").then(|| (sign::SECRET.into(), ana))
    }
}

struct Broker {
    engine: Engine,
    router: Router,
    recorder: Arc<Recorder>,
    _running: Running,
    _dir: tempfile::TempDir,
}

impl Broker {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        engine.declare(QueueName::new("orders").unwrap(), Default::default()).await.unwrap();
        let recorder = Arc::new(Recorder::default());
        let (keys, history) = (Arc::new(OneKey), Arc::default());
        let (settings, shutdown) = Default::default();
        let (settings, shutdown): (malote_front_sqs::Settings, CancellationToken) =
            (settings, shutdown);
        let sqs = Sqs::new(engine.clone(), recorder.clone(), keys, history, settings, shutdown);
        Self { engine, router: router(sqs, false), recorder, _running: running, _dir: dir }
    }

    /// A form, signed.
    async fn ask(&self, form: &str) -> (u16, String) {
        let (method, query) = (Method::GET, form);
        let url = sign::presign(self.engine.now(), &method, "/", query, 60, "host", "");
        self.send(Request::get(url)).await
    }

    async fn send(&self, request: axum::http::request::Builder) -> (u16, String) {
        let request = request.header("host", sign::HOST).body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
        (parts.status.as_u16(), String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// The recorded entries, without logins.
    fn taken(&self) -> Vec<(AuditAction, String, String, String)> {
        let mut all = Vec::new();
        for entry in self.recorder.list.take() {
            assert_eq!(entry.protocol, AuditProtocol::Sqs);
            assert_eq!((&*entry.caller.name, entry.caller.kind), ("ana", CallerKind::Key));
            assert_eq!(entry.caller.credential.as_deref(), Some("AK"));
            assert!(entry.peer.is_some_and(|peer| peer.is_loopback()));
            if entry.action != AuditAction::Login {
                let outcome = entry.outcome.reason().unwrap_or("done").to_owned();
                all.push((entry.action, entry.object, entry.detail, outcome));
            }
        }
        all
    }
}

const URL: &str = "http%3A%2F%2Flocalhost%3A9324%2F000000000000%2Forders";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completed_actions_are_recorded_with_their_queue() {
    let broker = Broker::start().await;
    for (form, action, object) in [
        ("Action=CreateQueue&QueueName=new", AuditAction::Declare, "new"),
        (&format!("Action=PurgeQueue&QueueUrl={URL}"), AuditAction::Purge, "orders"),
        (
            &format!("Action=TagQueue&QueueUrl={URL}&Tag.1.Key=a&Tag.1.Value=b"),
            AuditAction::Update,
            "orders",
        ),
        (&format!("Action=DeleteQueue&QueueUrl={URL}"), AuditAction::Delete, "orders"),
    ] {
        let (status, text) = broker.ask(form).await;
        assert_eq!(status, 200, "{form}: {text}");
        let name = form.split(['=', '&']).nth(1).unwrap().to_owned();
        let expected = (action, object.to_owned(), name, "done".to_owned());
        assert_eq!(broker.taken(), [expected], "{form}");
    }
    broker
        .ask("Action=SendMessage&MessageBody=x&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fnew")
        .await;
    assert_eq!(broker.taken(), [], "data is not recorded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_action_that_needs_the_right_to_manage_records_a_refusal() {
    let broker = Broker::start().await;
    broker.recorder.may_not_manage.store(true, Ordering::SeqCst);
    let arn = "arn%3Aaws%3Asqs%3Aus-east-1%3A000000000000%3Aorders";
    let handle = json!({"taskId": "t", "sourceArn": "arn:aws:sqs:us-east-1:000000000000:orders"});
    let handle = STANDARD.encode(handle.to_string()).replace('=', "%3D").replace('+', "%2B");
    let mut refused = 0;
    for (action, audit) in ACTIONS {
        let form = format!(
            "Action={action}&AWSAccountId.1=1&ActionName.1=SendMessage&Attribute.1.Name=DelaySeconds&\
             Attribute.1.Value=1&Label=l&MessageBody=private&QueueName=orders&QueueUrl={URL}&SourceArn={arn}&\
             Tag.1.Key=a&Tag.1.Value=b&TagKey.1=a&TaskHandle={handle}"
        );
        // Parameters are sorted before they are signed.
        let (status, text) = broker.ask(&form).await;
        let records = broker.taken();
        if !text.contains("AccessDenied") {
            assert!(records.iter().all(|(.., outcome)| outcome != "done"), "{action}: {records:?}");
            continue;
        }
        refused += 1;
        let audit = audit.unwrap_or_else(|| panic!("{action} needs a place in the audit log"));
        let how = (audit, "orders".to_owned(), action.to_string(), "AccessDenied".to_owned());
        assert_eq!((status, records), (403, vec![how]), "{action}");
    }
    assert_eq!(refused, ACTIONS.iter().filter(|(_, audit)| audit.is_some()).count());
    assert_eq!(refused, 11);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_are_recorded_and_secrets_are_not() {
    let broker = Broker::start().await;
    assert_eq!(broker.ask("Action=ListQueues").await.0, 200);
    let good =
        sign::presign(broker.engine.now(), &Method::GET, "/", "Action=ListQueues", 60, "host", "");
    let signature = good.split("X-Amz-Signature=").nth(1).unwrap().to_owned();
    let forged = good.replace(&signature, &"0".repeat(64));
    assert_eq!(broker.send(Request::get(&forged)).await.0, 403);
    assert_eq!(broker.send(Request::get(good.replace("=AK%2F", "=EVE%2F"))).await.0, 403);
    assert_eq!(broker.send(Request::get("/?Action=ListQueues")).await.0, 403);
    let entries = broker.recorder.list.take();
    let shown = |entry: &AuditEntry| {
        assert_eq!((entry.action, entry.protocol), (AuditAction::Login, AuditProtocol::Sqs));
        let reason = entry.outcome.reason().unwrap_or("done").to_owned();
        (entry.caller.name.clone(), entry.caller.kind, reason)
    };
    let login = |name: &str, kind, reason: &str| (name.to_owned(), kind, reason.to_owned());
    assert_eq!(
        entries.iter().map(shown).collect::<Vec<_>>(),
        [
            login("ana", CallerKind::Key, "done"),
            login("AK", CallerKind::Key, "SignatureDoesNotMatch"),
            login("EVE", CallerKind::Key, "InvalidClientTokenId"),
            login("anonymous", CallerKind::Anonymous, "MissingAuthenticationToken"),
        ]
    );
    let kept = format!("{entries:?}");
    assert!(!kept.contains(&signature) && !kept.contains(sign::SECRET), "{kept}");
}
