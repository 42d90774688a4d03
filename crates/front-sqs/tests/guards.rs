//! What a web page or the holder of a presigned URL must not be able to do.
#![allow(clippy::unwrap_used)]

#[path = "common/sign.rs"]
mod sign;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, request::Builder};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use malote_engine::{Engine, Running, Settings};
use malote_front_sqs::{Keys, Sqs, router};
use malote_model::access::AllowAll;
use malote_model::{
    Access, Action, DeadLetterTarget, Denied, Message, Principal, QueueName, QueueSpec, Resource,
    WebGuard,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use sign::{HOST, SECRET};

/// Knows one key, `AK`, unless it is open.
struct OneKey {
    open: bool,
}

impl Keys for OneKey {
    fn open(&self) -> bool {
        self.open
    }
    fn secret(&self, access_key: &str) -> Option<(Arc<str>, Principal)> {
        (access_key == "AK").then(|| (SECRET.into(), Principal::named("ana")))
    }
}

struct Broker {
    engine: Engine,
    router: Router,
    _running: Running,
    _dir: tempfile::TempDir,
}

impl Broker {
    async fn start(open: bool) -> Self {
        Self::with(open, Arc::new(AllowAll)).await
    }

    async fn with(open: bool, access: Arc<dyn Access>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(dir.path())).unwrap();
        engine.declare(QueueName::new("orders").unwrap(), Default::default()).await.unwrap();
        let web = WebGuard { hosts: vec!["localhost".into()], origins: Vec::new() };
        let settings = malote_front_sqs::Settings { web, ..Default::default() };
        let keys = Arc::new(OneKey { open });
        let (history, shutdown) = (Arc::default(), CancellationToken::new());
        let sqs = Sqs::new(engine.clone(), access, keys, history, settings, shutdown);
        Self { engine, router: router(sqs, false), _running: running, _dir: dir }
    }

    async fn ask(&self, request: Builder, body: &str) -> (u16, String) {
        let request = request.header("host", HOST).body(Body::from(body.to_owned())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), String::from_utf8(bytes.to_vec()).unwrap())
    }

    async fn has_queue(&self) -> bool {
        self.engine.describe(QueueName::new("orders").unwrap()).await.is_ok()
    }

    /// A URL signed by `AK`, now, for an empty body.
    fn presign(&self, method: &Method, path: &str, query: &str, expires_s: u64) -> String {
        self.presign_with(method, path, query, expires_s, "host", "")
    }

    fn presign_with(
        &self,
        method: &Method,
        path: &str,
        query: &str,
        expires_s: u64,
        signed: &str,
        body: &str,
    ) -> String {
        sign::presign(self.engine.now(), method, path, query, expires_s, signed, body)
    }
}

/// Actions that a GET of a page could ask for, with the whole request in the address.
const CHANGES: [&str; 5] = [
    "Action=DeleteQueue&QueueUrl=http://localhost:9324/000000000000/orders",
    "Action=PurgeQueue&QueueUrl=http://localhost:9324/000000000000/orders",
    "Action=SendMessage&MessageBody=x&QueueUrl=http://localhost:9324/000000000000/orders",
    "Action=ReceiveMessage&VisibilityTimeout=43200&QueueUrl=http://localhost:9324/000000000000/orders",
    "Action=CreateQueue&QueueName=other",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_from_a_web_page_changes_nothing_without_credentials() {
    let broker = Broker::start(true).await;
    for change in CHANGES {
        for made_up in [
            "",
            "&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2F20260101%2Fr%2Fsqs%2Faws4_request&X-Amz-Date=20260101T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=00",
        ] {
            let uri = format!("/?{change}{made_up}");
            for site in ["cross-site", "same-site"] {
                let page = Request::get(&uri).header("sec-fetch-site", site);
                assert_eq!(broker.ask(page, "").await.0, 403, "{uri}");
            }
            // A browser sends no `Sec-Fetch-Site` over plain HTTP to another machine.
            let old = Request::get(&uri).header("user-agent", "Mozilla/5.0 (X11)");
            assert_eq!(broker.ask(old, "").await.0, 403, "{uri}");
        }
        // A GET without any of these headers is refused, too: links are followed without being read.
        for method in [Method::GET, Method::HEAD] {
            let uri = format!("/?{change}");
            let plain = Request::builder().method(method).uri(&uri);
            assert_eq!(broker.ask(plain, "").await.0, 403, "{uri}");
        }
        let typed = Request::get(format!("/?{change}")).header("sec-fetch-site", "none");
        assert_eq!(broker.ask(typed, "").await.0, 403, "{change}");
    }
    assert!(broker.has_queue().await);
    assert_eq!(broker.engine.list().await.unwrap().len(), 1);
    let facts = broker.engine.describe(QueueName::new("orders").unwrap()).await.unwrap();
    assert_eq!((facts.totals.sent, facts.totals.delivered), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_may_use_get_without_credentials() {
    let broker = Broker::start(true).await;
    let list = Request::get("/?Action=ListQueues");
    assert_eq!(broker.ask(list, "").await.0, 200);
    let signed = "AWS4-HMAC-SHA256 Credential=a/20260101/r/sqs/aws4_request, SignedHeaders=host, Signature=00";
    let by_header = Request::get(format!("/?{}", CHANGES[2]))
        .header("authorization", signed)
        .header("x-amz-date", "20260101T000000Z");
    assert_eq!(broker.ask(by_header, "").await.0, 200);
    let query = "Action=SendMessage&MessageBody=x";
    let presigned = broker.presign(&Method::GET, "/000000000000/orders", query, 60);
    assert_eq!(broker.ask(Request::get(presigned), "").await.0, 200);
    assert_eq!(broker.ask(Request::post("/"), CHANGES[2]).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_presigned_url_is_valid_for_its_own_action_only() {
    let broker = Broker::start(false).await;
    let path = "/000000000000/orders";
    let query = "Action=GetQueueAttributes&AttributeName.1=All";
    let url = broker.presign(&Method::GET, path, query, 60);
    assert_eq!(broker.ask(Request::get(&url), "").await.0, 200);

    let target = || Request::get(&url).header("x-amz-target", "AmazonSQS.DeleteQueue");
    let body = format!(r#"{{"QueueUrl":"http://{HOST}/000000000000/orders"}}"#);
    for (what, request, body) in [
        ("another target", target(), ""),
        ("another target and a body", target(), &*body),
        (
            "another target that only the header list claims to be signed",
            Request::get(url.replace("SignedHeaders=host", "SignedHeaders=host%3Bx-amz-target"))
                .header("x-amz-target", "AmazonSQS.DeleteQueue"),
            "",
        ),
        ("any other header of the service", Request::get(&url).header("x-amz-meta", "1"), ""),
        ("another method", Request::post(&url), ""),
        ("another method with a form", Request::post(&url), "Action=DeleteQueue"),
        ("a body", Request::get(&url), "Action=DeleteQueue"),
        (
            "an unsigned body",
            Request::get(&url).header("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
            "Action=DeleteQueue",
        ),
        ("another action", Request::get(url.replace("GetQueueAttributes", "DeleteQueue")), ""),
        ("an action in front", Request::get(url.replace("?", "?Action=DeleteQueue&")), ""),
        ("an action behind", Request::get(format!("{url}&Action=DeleteQueue")), ""),
        ("a second signature", Request::get(format!("{url}&X-Amz-Signature=00")), ""),
        ("another time", Request::get(url.replace("Expires=60", "Expires=600")), ""),
        ("another queue", Request::get(url.replace("orders", "other")), ""),
    ] {
        let (status, text) = broker.ask(request, body).await;
        assert!([400, 403].contains(&status), "{what}: {status} {text}");
        assert!(broker.has_queue().await, "{what}");
    }
    // Valid for longer than a week, without a validity, and with parameters in both query string and body.
    for expires_s in [0, 7 * 24 * 3600 + 1] {
        let url = broker.presign(&Method::GET, path, query, expires_s);
        assert_eq!(broker.ask(Request::get(url), "").await.0, 400, "{expires_s}");
    }
    let body = "Action=DeleteQueue";
    let url = broker.presign_with(&Method::POST, path, query, 60, "host", body);
    assert_eq!(broker.ask(Request::post(url), body).await.0, 400);
    // Signed requests work, also those with side effects.
    let url = broker.presign(&Method::GET, path, "Action=DeleteQueue", 60);
    assert_eq!(broker.ask(Request::get(url), "").await.0, 200);
    assert!(!broker.has_queue().await);
}

/// Allows everything except this action.
#[derive(Default)]
struct Except(Mutex<Vec<(Action, &'static str)>>);

impl Access for Except {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        let refused = |name| self.0.lock().contains(&(action, name));
        if on.name().is_some_and(refused) { Err(Denied::new(who, action, on)) } else { Ok(()) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_task_is_stopped_only_by_those_who_manage_its_queue() {
    let access = Arc::new(Except::default());
    let broker = Broker::with(true, access.clone()).await;
    for (name, dead) in
        [("theirs", None), ("mine", None), ("home", Some("mine")), ("other", Some("theirs"))]
    {
        let dead_letter = dead.map(|dead| DeadLetterTarget::Queue(QueueName::new(dead).unwrap()));
        let spec = QueueSpec {
            dead_letter: dead_letter.unwrap_or(DeadLetterTarget::Own),
            ..Default::default()
        };
        broker.engine.declare(QueueName::new(name).unwrap(), spec).await.unwrap();
    }
    // A task that takes long: one message a second.
    for n in 0..5 {
        let message = Message { message_id: Some(format!("m{n}")), ..Message::default() };
        broker.engine.send(vec![(QueueName::new("theirs").unwrap(), message)]).await.unwrap();
    }
    let arn = |name: &str| format!("arn:aws:sqs:us-east-1:000000000000:{name}");
    let start = format!(
        "Action=StartMessageMoveTask&SourceArn={}&DestinationArn={}&MaxNumberOfMessagesPerSecond=1",
        arn("theirs"),
        arn("other")
    );
    let (status, text) = broker.ask(Request::post("/"), &start).await;
    assert_eq!(status, 200, "{text}");
    access.0.lock().push((Action::Manage, "theirs"));
    let handle = text.split("<TaskHandle>").nth(1).unwrap().split("</").next().unwrap();
    let handle = STANDARD.decode(handle).unwrap();
    let forged = String::from_utf8(handle).unwrap().replace("theirs", "mine");
    let cancel = |handle: &str| {
        let handle: String =
            form_urlencoded::byte_serialize(STANDARD.encode(handle).as_bytes()).collect();
        format!("Action=CancelMessageMoveTask&TaskHandle={handle}")
    };
    let (status, text) = broker.ask(Request::post("/"), &cancel(&forged)).await;
    assert!(status != 200 && text.contains("ResourceNotFoundException"), "{status} {text}");
    let real = forged.replace("mine", "theirs");
    assert_eq!(broker.ask(Request::post("/"), &cancel(&real)).await.0, 403);
    access.0.lock().clear();
    let (status, text) = broker.ask(Request::post("/"), &cancel(&real)).await;
    assert_eq!(status, 200, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_task_needs_the_right_to_send_where_messages_go_back_to() {
    let access = Arc::new(Except::default());
    access.0.lock().push((Action::Send, "closed"));
    let broker = Broker::with(true, access).await;
    let dead_letter = DeadLetterTarget::Queue(QueueName::new("orders").unwrap());
    let spec = QueueSpec { dead_letter, ..Default::default() };
    broker.engine.declare(QueueName::new("closed").unwrap(), spec).await.unwrap();
    let start = "Action=StartMessageMoveTask&SourceArn=arn:aws:sqs:us-east-1:000000000000:orders";
    assert_eq!(broker.ask(Request::post("/"), start).await.0, 403);
}
