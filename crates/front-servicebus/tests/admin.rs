//! The administration API over its routes: requests and replies, as text.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::World;
use expect_test::{Expect, expect};
use hmac::{Hmac, KeyInit, Mac};
use malote_front_servicebus::{Admin, Key, Keys, Verified};
use malote_model::{
    Access, Action, Denied, Message, Principal, QueueName, QueueSpec, Resource, Sessions,
    TopicName, WebGuard,
};
use sha2::Sha256;
use tower::ServiceExt;

struct Namespace {
    world: World,
    router: Router,
}

impl Namespace {
    async fn new() -> Namespace {
        let world = World::new().await;
        let router = Admin::new(world.front.clone()).router(Default::default(), false);
        Namespace { world, router }
    }

    /// A namespace that accepts only [`OneKey`].
    fn guarded() -> Namespace {
        let world = World::with(Arc::new(OneKey), Arc::new(OneKey));
        let router = Admin::new(world.front.clone()).router(Default::default(), false);
        Namespace { world, router }
    }

    /// Status and body.
    async fn ask(&self, request: Request<Body>) -> (u16, String) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.ask(request("GET", path).body(Body::empty()).unwrap()).await
    }

    async fn delete(&self, path: &str) -> (u16, String) {
        self.ask(request("DELETE", path).body(Body::empty()).unwrap()).await
    }

    async fn put(&self, path: &str, kind: &str, inner: &str) -> (u16, String) {
        self.ask(request("PUT", path).body(entry(kind, inner)).unwrap()).await
    }

    async fn update(&self, path: &str, kind: &str, inner: &str) -> (u16, String) {
        let update = request("PUT", path).header("if-match", "*");
        self.ask(update.body(entry(kind, inner)).unwrap()).await
    }

    async fn queue(&self, name: &str) -> QueueSpec {
        self.world.engine.describe(QueueName::new(name).unwrap()).await.unwrap().spec
    }
}

fn request(method: &str, path: &str) -> axum::http::request::Builder {
    let join = if path.contains('?') { '&' } else { '?' };
    let uri = format!("{path}{join}api-version=2021-05");
    Request::builder().method(method).uri(uri).header("host", "localhost:5300")
}

fn entry(kind: &str, inner: &str) -> Body {
    Body::from(format!(
        "<entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\">\
         <{kind} xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\" \
         xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\">{inner}</{kind}></content></entry>"
    ))
}

/// The reply with one line per element, without times.
fn shown((status, body): (u16, String)) -> String {
    let mut text = status.to_string();
    for line in body.replace("><", ">\n<").lines() {
        let timed = ["<published>", "<updated>", "<CreatedAt>", "<UpdatedAt>", "<AccessedAt>"];
        let timed = timed.iter().any(|start| line.starts_with(start))
            || line.starts_with("<CreatedTime>")
            || line.starts_with("<ModifiedTime>");
        let line = match line.split_once('>') {
            Some((start, rest)) if timed => {
                let end = rest.split_once('<').map_or("", |(_, end)| end);
                format!("{start}>…<{end}")
            }
            _ => line.to_owned(),
        };
        text.push('\n');
        text.push_str(&line);
    }
    text
}

fn check(answer: (u16, String), expect: Expect) {
    expect.assert_eq(&shown(answer));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_description_of_a_queue_has_all_properties_that_clients_read() {
    let n = Namespace::new().await;
    let made = n.put("/a%2Fq", "QueueDescription", "<UserMetadata>a &lt; b</UserMetadata>").await;
    check(
        made,
        expect![[r#"
        201
        <entry xmlns="http://www.w3.org/2005/Atom">
        <id>http://localhost:5300/a/q?api-version=2021-05</id>
        <title type="text">a/q</title>
        <published>…</published>
        <updated>…</updated>
        <author>
        <name>localhost:5300</name>
        </author>
        <link rel="self" href="http://localhost:5300/a/q?api-version=2021-05"/>
        <content type="application/xml">
        <QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">
        <LockDuration>PT1M</LockDuration>
        <MaxSizeInMegabytes>1024</MaxSizeInMegabytes>
        <RequiresDuplicateDetection>false</RequiresDuplicateDetection>
        <RequiresSession>false</RequiresSession>
        <DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>
        <DeadLetteringOnMessageExpiration>false</DeadLetteringOnMessageExpiration>
        <DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow>
        <MaxDeliveryCount>10</MaxDeliveryCount>
        <EnableBatchedOperations>true</EnableBatchedOperations>
        <SizeInBytes>0</SizeInBytes>
        <MessageCount>0</MessageCount>
        <IsAnonymousAccessible>false</IsAnonymousAccessible>
        <AuthorizationRules>
        </AuthorizationRules>
        <Status>Active</Status>
        <CreatedAt>…</CreatedAt>
        <UpdatedAt>…</UpdatedAt>
        <AccessedAt>…</AccessedAt>
        <SupportOrdering>true</SupportOrdering>
        <CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">
        <d2p1:ActiveMessageCount>0</d2p1:ActiveMessageCount>
        <d2p1:DeadLetterMessageCount>0</d2p1:DeadLetterMessageCount>
        <d2p1:ScheduledMessageCount>0</d2p1:ScheduledMessageCount>
        <d2p1:TransferDeadLetterMessageCount>0</d2p1:TransferDeadLetterMessageCount>
        <d2p1:TransferMessageCount>0</d2p1:TransferMessageCount>
        </CountDetails>
        <AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle>
        <EnablePartitioning>false</EnablePartitioning>
        <EntityAvailabilityStatus>Available</EntityAvailabilityStatus>
        <EnableExpress>false</EnableExpress>
        <MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>
        <UserMetadata>a &lt; b</UserMetadata>
        </QueueDescription>
        </content>
        </entry>"#]],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn properties_are_applied_or_stored() {
    let n = Namespace::new().await;
    n.put("/target", "QueueDescription", "").await;
    let said = "<LockDuration>PT30S</LockDuration><MaxSizeInMegabytes>2048</MaxSizeInMegabytes>\
        <RequiresDuplicateDetection>true</RequiresDuplicateDetection><RequiresSession>false</RequiresSession>\
        <DefaultMessageTimeToLive>P1D</DefaultMessageTimeToLive>\
        <DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>\
        <DuplicateDetectionHistoryTimeWindow>PT1M</DuplicateDetectionHistoryTimeWindow>\
        <MaxDeliveryCount>3</MaxDeliveryCount><EnableBatchedOperations>false</EnableBatchedOperations>\
        <AuthorizationRules><AuthorizationRule i:type=\"SharedAccessAuthorizationRule\"><KeyName>k</KeyName></AuthorizationRule></AuthorizationRules>\
        <Status>SendDisabled</Status><ForwardTo>sb://localhost:5300/target</ForwardTo>\
        <AutoDeleteOnIdle>PT10M</AutoDeleteOnIdle><FutureThing>yes</FutureThing>\
        <MaxMessageSizeInKilobytes>2048</MaxMessageSizeInKilobytes>\
        <ForwardDeadLetteredMessagesTo>TARGET</ForwardDeadLetteredMessagesTo>";
    let made = n.put("/q", "QueueDescription", said).await;
    assert_eq!(made.0, 201, "{}", made.1);
    let spec = n.queue("q").await;
    assert_eq!((spec.lock_ms, spec.ttl_ms, spec.failed_max), (30_000, Some(86_400_000), Some(3)));
    assert_eq!((spec.idle_ms_max, spec.message_bytes_max), (Some(600_000), 2 << 20));
    assert_eq!(spec.dedup.unwrap().window_ms, 60_000);
    assert_eq!(spec.forward_to.unwrap().to_string(), "queue target");
    let (_, text) = n.get("/Q").await;
    for kept in [
        "<MaxSizeInMegabytes>2048<",
        "<EnableBatchedOperations>false<",
        "<AuthorizationRules><AuthorizationRule i:type=\"SharedAccessAuthorizationRule\"><KeyName>k</KeyName></AuthorizationRule><",
        "<Status>SendDisabled<",
        "<ForwardTo>sb://localhost:5300/target<",
        "<ForwardDeadLetteredMessagesTo>sb://localhost:5300/target<",
        "<FutureThing>yes<",
    ] {
        assert!(text.contains(kept), "{kept} in {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_is_returned_even_without_duplicate_detection() {
    let n = Namespace::new().await;
    let said = "<DuplicateDetectionHistoryTimeWindow>PT12M</DuplicateDetectionHistoryTimeWindow>";
    for (path, kind) in [("/q", "QueueDescription"), ("/t", "TopicDescription")] {
        n.put(path, kind, said).await;
        let (_, text) = n.get(path).await;
        assert!(
            text.contains(said) && text.contains("<RequiresDuplicateDetection>false<"),
            "{text}"
        );
        let other = said.replace("12", "13");
        n.update(path, kind, &other).await;
        assert!(n.get(path).await.1.contains(&other), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sending_back_a_description_changes_nothing() {
    let n = Namespace::new().await;
    // A queue of another protocol, with values that the service would refuse.
    let name = QueueName::new("odd").unwrap();
    let spec = QueueSpec {
        lock_ms: 12 * 3_600_000,
        failed_max: None,
        sessions: Sessions::Dynamic,
        message_bytes_max: 1_000,
        labels: [("sqs:x".to_owned(), "y".to_owned())].into(),
        ..QueueSpec::default()
    };
    n.world.engine.declare(name, spec.clone()).await.unwrap();
    let (_, text) = n.get("/odd").await;
    let inner = text.split_once("XMLSchema-instance\">").unwrap().1;
    let inner = inner.split_once("</QueueDescription>").unwrap().0;
    let (status, again) = n.update("/odd", "QueueDescription", inner).await;
    assert_eq!(status, 200, "{again}");
    let mut after = n.queue("odd").await;
    assert!(after.labels.keys().any(|label| label == "servicebus:UpdatedAt"));
    after.labels.retain(|label, _| label == "sqs:x");
    assert_eq!(after, spec);
    let changed = inner.replace("<LockDuration>PT12H<", "<LockDuration>PT1M<");
    assert_ne!(changed, inner);
    n.update("/odd", "QueueDescription", &changed).await;
    assert_eq!(n.queue("odd").await.lock_ms, 60_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_have_the_status_codes_that_clients_expect() {
    let n = Namespace::new().await;
    let missing = n.get("/missing").await;
    check(
        missing,
        expect![[r#"
        200
        <feed xmlns="http://www.w3.org/2005/Atom">
        <title type="text">Publicly Listed Services</title>
        <subtitle type="text">This is the list of publicly-listed services currently available.</subtitle>
        <id>http://localhost:5300/?api-version=2021-05</id>
        <updated>…</updated>
        <generator>Service Bus</generator>
        <link rel="self" href="http://localhost:5300/?api-version=2021-05"/>
        </feed>"#]],
    );
    n.put("/q", "QueueDescription", "").await;
    n.put("/t", "TopicDescription", "").await;
    let mut all = String::new();
    let mut tell = |what: &str, (status, body): (u16, String)| {
        let detail = body.split_once("<Detail>").map_or(&*body, |(_, rest)| rest);
        let detail = detail.split("</Detail>").next().unwrap();
        all.push_str(&format!("{what}: {status} {detail}\n"));
    };
    let q = "QueueDescription";
    tell("again", n.put("/Q", q, "").await);
    tell("a topic's name", n.put("/t", q, "").await);
    tell("change what is not there", n.update("/no", q, "").await);
    tell("delete what is not there", n.delete("/no").await);
    tell("a topic as a queue", n.update("/t", q, "").await);
    tell("sessions later", n.update("/q", q, "<RequiresSession>true</RequiresSession>").await);
    tell("too long", n.put("/x", q, "<LockDuration>PT6M</LockDuration>").await);
    tell("no span", n.put("/x", q, "<LockDuration>soon</LockDuration>").await);
    tell("no number", n.put("/x", q, "<MaxDeliveryCount>-1</MaxDeliveryCount>").await);
    tell("no flag", n.put("/x", q, "<RequiresSession>maybe</RequiresSession>").await);
    tell("no status", n.put("/x", q, "<Status>Happy</Status>").await);
    tell("forward to nowhere", n.put("/x", q, "<ForwardTo>nowhere</ForwardTo>").await);
    tell("no name", n.put("/$x", q, "").await);
    tell("another kind", n.put("/x", "RuleDescription", "").await);
    tell("no XML", n.ask(request("PUT", "/x").body(Body::from("<entry>")).unwrap()).await);
    let large = Body::from(format!("<entry>{}</entry>", "x".repeat(300 << 10)));
    tell("too large", n.ask(request("PUT", "/x").body(large).unwrap()).await);
    tell("POST", n.ask(request("POST", "/q").body(Body::empty()).unwrap()).await);
    tell("no topic", n.put("/no/Subscriptions/s", "SubscriptionDescription", "").await);
    tell("no subscription", n.get("/t/Subscriptions/no/rules").await);
    tell("no page", n.get("/$Resources/queues?$skip=x").await);
    expect![[r#"
        again: 409 SubCode=40900. Conflict: the entity 'Q' already exists.
        a topic's name: 409 SubCode=40900. Conflict: the entity 't' already exists.
        change what is not there: 404 SubCode=40400. The messaging entity 'no' could not be found.
        delete what is not there: 404 SubCode=40400. The messaging entity 'no' could not be found.
        a topic as a queue: 404 SubCode=40400. The messaging entity 't' could not be found.
        sessions later: 400 SubCode=40000. The value for the RequiresSession property of an existing Queue cannot be changed. Delete the entity and create it again.
        too long: 400 SubCode=40000. The value `PT6M` of the property LockDuration must be from PT5S to PT5M.
        no span: 400 SubCode=40000. The value `soon` of the property LockDuration must be a duration such as PT1M.
        no number: 400 SubCode=40000. The value `-1` of the property MaxDeliveryCount must be a number.
        no flag: 400 SubCode=40000. The value `maybe` of the property RequiresSession must be true or false.
        no status: 400 SubCode=40000. The value `Happy` of the property Status must be Active, SendDisabled, ReceiveDisabled or Disabled.
        forward to nowhere: 400 SubCode=40000. The value `nowhere` of the property ForwardTo must be an existing queue or topic.
        no name: 400 SubCode=40000. name `$x` has a segment that begins with $, which is reserved
        another kind: 400 SubCode=40000. A `RuleDescription` is not allowed for this path.
        no XML: 400 SubCode=40000. The request body is not a valid Atom entry: unexpected end of document.
        too large: 413 SubCode=41300. The request may have at most 262144 bytes.
        POST: 405 SubCode=40500. The method POST is not allowed for this path.
        no topic: 404 SubCode=40400. The messaging entity 'no' could not be found.
        no subscription: 404 SubCode=40400. The messaging entity 't/Subscriptions/no' could not be found.
        no page: 400 SubCode=40000. The value `x` of the property $skip must be a number.
    "#]].assert_eq(&all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_come_in_pages_with_a_link_to_the_next() {
    let n = Namespace::new().await;
    for name in ["a", "b", "c"] {
        n.put(&format!("/{name}"), "QueueDescription", "").await;
    }
    n.put("/t", "TopicDescription", "").await;
    n.put("/t/Subscriptions/s", "SubscriptionDescription", "").await;
    let titles = |body: &str| {
        let titles = body.split("<title type=\"text\">").skip(1);
        titles.map(|rest| rest.split('<').next().unwrap()).collect::<Vec<_>>().join(" ")
    };
    let (_, first) = n.get("/$Resources/queues?$top=2").await;
    assert_eq!(titles(&first), "Queues a b");
    let next = "<link rel=\"next\" href=\"http://localhost:5300/$Resources/Queues?api-version=2021-05&amp;$skip=2&amp;$top=2\"/>";
    assert!(first.contains(next), "{first}");
    let (_, second) = n.get("/$Resources/QUEUES?$skip=2&$top=2").await;
    assert_eq!(titles(&second), "Queues c");
    assert!(!second.contains("rel=\"next\""));
    assert_eq!(titles(&n.get("/$resources/topics").await.1), "Topics t");
    assert_eq!(titles(&n.get("/t/subscriptions").await.1), "Subscriptions s");
    assert_eq!(titles(&n.get("/t/subscriptions/s/rules").await.1), "Rules $Default");
    for path in ["/t/subscriptions/s/rules/$Default", "/t/subscriptions/s", "/t", "/a"] {
        assert_eq!(n.delete(path).await, (200, String::new()), "{path}");
        let (status, body) = n.get(path).await;
        match path.contains("subscriptions") {
            true => assert_eq!(status, 404, "{body}"),
            false => assert!(status == 200 && body.contains("Publicly Listed Services"), "{body}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_subscriptions_and_rules() {
    let n = Namespace::new().await;
    let made = n.put("/t", "TopicDescription", "<DefaultMessageTimeToLive>PT1H</DefaultMessageTimeToLive><UserMetadata>m</UserMetadata>").await;
    check(
        made,
        expect![[r#"
        201
        <entry xmlns="http://www.w3.org/2005/Atom">
        <id>http://localhost:5300/t?api-version=2021-05</id>
        <title type="text">t</title>
        <published>…</published>
        <updated>…</updated>
        <author>
        <name>localhost:5300</name>
        </author>
        <link rel="self" href="http://localhost:5300/t?api-version=2021-05"/>
        <content type="application/xml">
        <TopicDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">
        <DefaultMessageTimeToLive>PT1H</DefaultMessageTimeToLive>
        <MaxSizeInMegabytes>1024</MaxSizeInMegabytes>
        <RequiresDuplicateDetection>false</RequiresDuplicateDetection>
        <DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow>
        <EnableBatchedOperations>true</EnableBatchedOperations>
        <SizeInBytes>0</SizeInBytes>
        <FilteringMessagesBeforePublishing>false</FilteringMessagesBeforePublishing>
        <IsAnonymousAccessible>false</IsAnonymousAccessible>
        <AuthorizationRules>
        </AuthorizationRules>
        <Status>Active</Status>
        <CreatedAt>…</CreatedAt>
        <UpdatedAt>…</UpdatedAt>
        <AccessedAt>…</AccessedAt>
        <SupportOrdering>true</SupportOrdering>
        <CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">
        <d2p1:ActiveMessageCount>0</d2p1:ActiveMessageCount>
        <d2p1:DeadLetterMessageCount>0</d2p1:DeadLetterMessageCount>
        <d2p1:ScheduledMessageCount>0</d2p1:ScheduledMessageCount>
        <d2p1:TransferDeadLetterMessageCount>0</d2p1:TransferDeadLetterMessageCount>
        <d2p1:TransferMessageCount>0</d2p1:TransferMessageCount>
        </CountDetails>
        <SubscriptionCount>0</SubscriptionCount>
        <SqlFilterCount>0</SqlFilterCount>
        <CorrelationFilterCount>0</CorrelationFilterCount>
        <AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle>
        <EnablePartitioning>false</EnablePartitioning>
        <EntityAvailabilityStatus>Available</EntityAvailabilityStatus>
        <EnableSubscriptionPartitioning>false</EnableSubscriptionPartitioning>
        <EnableExpress>false</EnableExpress>
        <MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>
        <UserMetadata>m</UserMetadata>
        </TopicDescription>
        </content>
        </entry>"#]],
    );
    let rule = "<DefaultRuleDescription><Filter i:type=\"SqlFilter\"><SqlExpression>a = 1</SqlExpression></Filter><Name>first</Name></DefaultRuleDescription>";
    let made = n.put("/t/Subscriptions/s", "SubscriptionDescription", rule).await;
    check(
        made,
        expect![[r#"
        201
        <entry xmlns="http://www.w3.org/2005/Atom">
        <id>http://localhost:5300/t/Subscriptions/s?api-version=2021-05</id>
        <title type="text">s</title>
        <published>…</published>
        <updated>…</updated>
        <author>
        <name>localhost:5300</name>
        </author>
        <link rel="self" href="http://localhost:5300/t/Subscriptions/s?api-version=2021-05"/>
        <content type="application/xml">
        <SubscriptionDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">
        <LockDuration>PT1M</LockDuration>
        <RequiresSession>false</RequiresSession>
        <DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>
        <DeadLetteringOnMessageExpiration>false</DeadLetteringOnMessageExpiration>
        <DeadLetteringOnFilterEvaluationExceptions>true</DeadLetteringOnFilterEvaluationExceptions>
        <MessageCount>0</MessageCount>
        <MaxDeliveryCount>10</MaxDeliveryCount>
        <EnableBatchedOperations>true</EnableBatchedOperations>
        <Status>Active</Status>
        <CreatedAt>…</CreatedAt>
        <UpdatedAt>…</UpdatedAt>
        <AccessedAt>…</AccessedAt>
        <CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">
        <d2p1:ActiveMessageCount>0</d2p1:ActiveMessageCount>
        <d2p1:DeadLetterMessageCount>0</d2p1:DeadLetterMessageCount>
        <d2p1:ScheduledMessageCount>0</d2p1:ScheduledMessageCount>
        <d2p1:TransferDeadLetterMessageCount>0</d2p1:TransferDeadLetterMessageCount>
        <d2p1:TransferMessageCount>0</d2p1:TransferMessageCount>
        </CountDetails>
        <AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle>
        <EntityAvailabilityStatus>Available</EntityAvailabilityStatus>
        </SubscriptionDescription>
        </content>
        </entry>"#]],
    );
    let queue = "t/Subscriptions/s";
    assert_eq!(n.queue(queue).await.ttl_ms, Some(3_600_000));
    n.update("/t", "TopicDescription", "<DefaultMessageTimeToLive>PT2H</DefaultMessageTimeToLive>")
        .await;
    assert_eq!(n.queue(queue).await.ttl_ms, Some(7_200_000));
    n.update(
        "/t/Subscriptions/s",
        "SubscriptionDescription",
        "<DefaultMessageTimeToLive>PT1M</DefaultMessageTimeToLive><LockDuration>PT10S</LockDuration>",
    )
    .await;
    let spec = n.queue(queue).await;
    assert_eq!((spec.ttl_ms, spec.lock_ms), (Some(60_000), 10_000));
    let description = "<Filter i:type=\"CorrelationFilter\"><Label>news</Label></Filter><Action i:type=\"SqlRuleAction\"><SqlExpression>SET b = 2</SqlExpression></Action>";
    let path = "/t/Subscriptions/s/Rules/second";
    check(
        n.put(path, "RuleDescription", description).await,
        expect![[r#"
        201
        <entry xmlns="http://www.w3.org/2005/Atom">
        <id>http://localhost:5300/t/Subscriptions/s/Rules/second?api-version=2021-05</id>
        <title type="text">second</title>
        <published>…</published>
        <updated>…</updated>
        <author>
        <name>localhost:5300</name>
        </author>
        <link rel="self" href="http://localhost:5300/t/Subscriptions/s/Rules/second?api-version=2021-05"/>
        <content type="application/xml">
        <RuleDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">
        <Filter i:type="CorrelationFilter">
        <Label>news</Label>
        </Filter>
        <Action i:type="SqlRuleAction">
        <SqlExpression>SET b = 2</SqlExpression>
        <CompatibilityLevel>20</CompatibilityLevel>
        </Action>
        <Name>second</Name>
        <CreatedAt>…</CreatedAt>
        </RuleDescription>
        </content>
        </entry>"#]],
    );
    assert_eq!(n.put(path, "RuleDescription", description).await.0, 409);
    let other = description.replace("news", "weather");
    let (status, body) =
        n.update("/T/subscriptions/S/rules/SECOND", "RuleDescription", &other).await;
    assert!(status == 200 && body.contains("<Label>weather<"), "{body}");
    assert_eq!(n.update("/t/Subscriptions/s/Rules/no", "RuleDescription", &other).await.0, 404);
    let topic = TopicName::new("t").unwrap();
    let message = Message { subject: Some("weather".into()), ..Message::default() };
    n.world.engine.send(vec![(topic, message)]).await.unwrap();
    let (_, text) = n.get("/t/Subscriptions/s").await;
    assert!(
        text.contains("<MessageCount>1<") && text.contains("<d2p1:ActiveMessageCount>1<"),
        "{text}"
    );
    let (_, text) = n.get("/t").await;
    assert!(text.contains("<SubscriptionCount>1<") && !text.contains("UserMetadata"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_counts_the_filters_of_all_its_subscriptions() {
    let n = Namespace::new().await;
    n.put("/t", "TopicDescription", "").await;
    let compare = "<Filter i:type=\"CorrelationFilter\"><Label>news</Label></Filter>";
    for subscription in ["a", "b"] {
        let path = format!("/t/Subscriptions/{subscription}");
        n.put(&path, "SubscriptionDescription", "").await;
        n.put(&format!("{path}/Rules/compares"), "RuleDescription", compare).await;
    }
    let sql = "<Filter i:type=\"SqlFilter\"><SqlExpression>a = 1</SqlExpression></Filter>";
    n.put("/t/Subscriptions/a/Rules/asks", "RuleDescription", sql).await;
    let (_, text) = n.get("/t").await;
    // A filter that matches everything counts as SQL.
    let counts = "<SqlFilterCount>3</SqlFilterCount><CorrelationFilterCount>2</";
    assert!(text.contains(counts), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_namespace_is_described() {
    let n = Namespace::new().await;
    check(
        n.get("/$namespaceinfo").await,
        expect![[r#"
        200
        <entry xmlns="http://www.w3.org/2005/Atom">
        <id>http://localhost:5300/$namespaceinfo?api-version=2021-05</id>
        <title type="text">localhost</title>
        <published>…</published>
        <updated>…</updated>
        <author>
        <name>localhost:5300</name>
        </author>
        <link rel="self" href="http://localhost:5300/$namespaceinfo?api-version=2021-05"/>
        <content type="application/xml">
        <NamespaceInfo xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">
        <CreatedTime>…</CreatedTime>
        <MessagingSKU>Standard</MessagingSKU>
        <ModifiedTime>…</ModifiedTime>
        <Name>localhost</Name>
        <NamespaceType>Messaging</NamespaceType>
        </NamespaceInfo>
        </content>
        </entry>"#]],
    );
}

/// One key, which may manage queues that begin with `mine`.
struct OneKey;

impl Keys for OneKey {
    fn is_open(&self) -> bool {
        false
    }
    fn key(&self, name: &str) -> Option<Key> {
        let principal = Principal::named("ana");
        (name == "Ana").then(|| Key { secret: Arc::from("secret"), principal })
    }
    fn verify_password<'a>(&'a self, _: &'a str, _: &'a str, _: std::net::IpAddr) -> Verified<'a> {
        Box::pin(async { None })
    }
    fn verify_token(&self, token: &str) -> Option<Principal> {
        (token == "bearer").then(|| Principal::named("ana"))
    }
}

impl Access for OneKey {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        match who.name() == "ana" && on.name().is_some_and(|name| name.starts_with("mine")) {
            true => Ok(()),
            false => Err(Denied::new(who, action, on)),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_valid_token_and_a_permission_are_required() {
    let n = Namespace::guarded();
    // Signed with `secret` for the whole namespace, and for one entity; the last one has expired.
    let all = "SharedAccessSignature sr=http%3a%2f%2flocalhost%3a5300&sig=5Xq0MA%3d%3d&se=99999999999&skn=Ana";
    let as_token = |token: &str| {
        let token = token.to_owned();
        let n = &n;
        async move |path: &str| {
            let request = request("GET", path).header("authorization", token.clone());
            let (status, body) = n.ask(request.body(Body::empty()).unwrap()).await;
            let detail = body.split_once("SubCode=").map_or("fine", |(_, rest)| rest);
            format!("{status} {}", detail.split(": ").next().unwrap().split("</").next().unwrap())
        }
    };
    for (token, path, said) in [
        (all.to_owned(), "/mine", "401 40100. InvalidSignature"),
        (sign("http%3a%2f%2flocalhost%3a5300", 99_999_999_999), "/mine", "200 fine"),
        // Only callers with the manage permission learn whether it exists.
        (
            sign("http%3a%2f%2flocalhost%3a5300", 99_999_999_999),
            "/other",
            "403 40301. Manage,EntityRead claims required for this operation",
        ),
        // A word without a scheme is an entity, whatever the broker's host name.
        (sign("mine", 99_999_999_999), "/mine", "200 fine"),
        (sign("mine", 99_999_999_999), "/mine2", "401 40100. InvalidAudience"),
        (sign("localhost", 99_999_999_999), "/mine", "401 40100. InvalidAudience"),
        (sign("", 99_999_999_999), "/mine", "401 40100. InvalidAudience"),
        (sign("localhost%3a5300", 99_999_999_999), "/mine", "200 fine"),
        (sign("localhost%3a5300%2fmine", 99_999_999_999), "/mine2", "401 40100. InvalidAudience"),
        (sign("sb%3a%2f%2fh%2fmine%2fa", 99_999_999_999), "/mine%2Fa", "200 fine"),
        (sign("sb%3a%2f%2fh%2fmine%2fa", 99_999_999_999), "/mine", "401 40100. InvalidAudience"),
        (sign("http%3a%2f%2flocalhost%3a5300%2fmine", 99_999_999_999), "/mine", "200 fine"),
        (
            sign("http%3a%2f%2flocalhost%3a5300%2fmine", 99_999_999_999),
            "/mine2",
            "401 40100. InvalidAudience",
        ),
        (sign("http%3a%2f%2flocalhost%3a5300", 1), "/mine", "401 40100. ExpiredToken"),
        ("Bearer bearer".to_owned(), "/mine", "200 fine"),
        ("bearer".to_owned(), "/mine", "200 fine"),
        ("Bearer other".to_owned(), "/mine", "401 40100. InvalidToken"),
        ("Basic eDp5".to_owned(), "/mine", "401 40100. MalformedToken"),
    ] {
        assert_eq!(as_token(&token)(path).await, said, "{token} {path}");
    }
    let (status, body) = n.get("/mine").await;
    assert!(status == 401 && body.contains("MissingToken"), "{body}");
    // The caller uses the name of its entity as the host name: the token is still valid for that entity only.
    for path in ["/mine2", "/$Resources/Queues"] {
        let request = Request::get(path)
            .header("host", "mine")
            .header("authorization", sign("mine", 99_999_999_999));
        let (status, body) = n.ask(request.body(Body::empty()).unwrap()).await;
        assert!(status == 401 && body.contains("InvalidAudience"), "{path}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_permission_is_reported_in_the_wording_of_the_service() {
    let n = Namespace::guarded();
    let topic = TopicName::new("news").unwrap();
    n.world.queue("other", false).await;
    n.world.engine.declare_topic(topic.clone(), Default::default()).await.unwrap();
    let copies = QueueName::subscription(&topic, "all").unwrap();
    n.world.engine.subscribe(copies, QueueSpec::default(), None).await.unwrap();
    let ask = async |method: &str, path: &str, kind: &str| {
        let request = request(method, path).header("authorization", "Bearer bearer");
        let (status, body) = n.ask(request.body(entry(kind, "")).unwrap()).await;
        let detail = body.split_once("<Detail>").map_or("fine", |(_, rest)| rest);
        format!(
            "{status} {}",
            detail.split([':', '.']).take(4).map(str::trim_end).collect::<Vec<_>>().join(":")
        )
    };
    let queue = "QueueDescription";
    let read = "403 SubCode=40301: Manage,EntityRead claims required for this operation";
    let failed = "403 SubCode=40301: Authorization failed for specified action: Manage,Entity";
    let (write, delete) = (format!("{failed}Write"), format!("{failed}Delete"));
    let below = "403 SubCode=40301: Unauthorized access for ";
    for (method, path, kind, said) in [
        // The reply is the same whether it exists or not.
        ("GET", "/missing", "", read.to_owned()),
        ("GET", "/other", "", read.to_owned()),
        ("GET", "/$Resources/Queues", "", "200 fine".to_owned()),
        ("GET", "/$Resources/Topics", "", "200 fine".to_owned()),
        ("GET", "/news", "", read.to_owned()),
        ("PUT", "/new", queue, write.clone()),
        ("PUT", "/new", "TopicDescription", write),
        ("DELETE", "/other", "", delete.clone()),
        ("DELETE", "/missing", "", delete),
        ("GET", "/news/Subscriptions", "", format!("{below}'EnumerateSubscriptions'")),
        ("GET", "/news/Subscriptions/all", "", format!("{below}'GetSubscription'")),
        ("GET", "/news/Subscriptions/missing", "", format!("{below}'GetSubscription'")),
        ("DELETE", "/news/Subscriptions/all", "", format!("{below}'DeleteSubscription'")),
        ("GET", "/news/Subscriptions/all/Rules/a", "", format!("{below}'GetRule'")),
    ] {
        let is = ask(method, path, kind).await;
        assert!(is.starts_with(&said), "{method} {path}: {is}");
    }
    let (path, kind) = ("/news/Subscriptions/new", "SubscriptionDescription");
    let said = format!("{below}'CreateOrUpdateSubscription'");
    assert!(ask("PUT", path, kind).await.starts_with(&said));
    // It sees only its own queues.
    let listed = request("GET", "/$Resources/Queues").header("authorization", "Bearer bearer");
    let (_, body) = n.ask(listed.body(Body::empty()).unwrap()).await;
    assert!(!body.contains("other"), "{body}");
    assert!(ask("PUT", "/mine", queue).await.starts_with("201"));
    assert_eq!(ask("GET", "/$Resources/Queues", "").await, "200 fine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarding_address_is_returned_as_it_was_written() {
    let n = Namespace::new().await;
    for name in ["target", "elsewhere"] {
        n.world.queue(name, false).await;
    }
    let targets = |body: &str| {
        let part = |name: &str| {
            let (_, rest) = body.split_once(&format!("<{name}>"))?;
            rest.split_once("</").map(|(text, _)| text.to_owned())
        };
        [part("ForwardTo"), part("ForwardDeadLetteredMessagesTo")].map(Option::unwrap_or_default)
    };
    let given = |to: &str, dead: &str| {
        format!(
            "<ForwardTo>{to}</ForwardTo><ForwardDeadLetteredMessagesTo>{dead}</ForwardDeadLetteredMessagesTo>"
        )
    };
    let kind = "QueueDescription";
    let https = "https://name.space/target";
    let (status, body) = n.put("/q", kind, &given(https, "target")).await;
    assert_eq!(
        (status, targets(&body)),
        (201, [https, "sb://localhost:5300/target"].map(Into::into))
    );
    assert_eq!(targets(&n.get("/q").await.1), [https, "sb://localhost:5300/target"]);
    // The stored spelling is not used for another target.
    let queue = QueueName::new("q").unwrap();
    let mut spec = n.queue("q").await;
    spec.forward_to = Some(QueueName::new("elsewhere").unwrap().into());
    n.world.engine.update(queue, spec).await.unwrap();
    assert_eq!(targets(&n.get("/q").await.1)[0], "sb://localhost:5300/elsewhere");
    let (_, body) = n.update("/q", kind, "").await;
    assert!(!body.contains("target") && !body.contains("written"), "{body}");
}

/// A token of the key `Ana`.
fn sign(resource: &str, expires: u64) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(b"secret").unwrap();
    mac.update(format!("{resource}\n{expires}").as_bytes());
    let sig = STANDARD.encode(mac.finalize().into_bytes());
    let sig = sig.replace('+', "%2b").replace('/', "%2f").replace('=', "%3d");
    format!("SharedAccessSignature sr={resource}&sig={sig}&se={expires}&skn=Ana")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cross_origin_pages_are_refused() {
    let n = Namespace::new().await;
    let page = request("GET", "/q").header("origin", "https://evil.example");
    assert_eq!(n.ask(page.body(Body::empty()).unwrap()).await.0, 403);
    for site in ["cross-site", "same-site"] {
        let page = request("DELETE", "/q").header("sec-fetch-site", site);
        assert_eq!(n.ask(page.body(Body::empty()).unwrap()).await.0, 403, "{site}");
    }
    let web = WebGuard { hosts: vec!["localhost".to_owned()], origins: Vec::new() };
    let router = Admin::new(n.world.front.clone()).router(web, false);
    let rebound =
        Request::get("/q").header("host", "evil.example:5300").body(Body::empty()).unwrap();
    assert_eq!(router.oneshot(rebound).await.unwrap().status().as_u16(), 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduled_messages_count_towards_the_size_of_a_topic() {
    let n = Namespace::new().await;
    let topic = TopicName::new("news").unwrap();
    n.world.engine.declare_topic(topic.clone(), Default::default()).await.unwrap();
    assert!(n.get("/news").await.1.contains("<SizeInBytes>0<"));
    let at = malote_model::Timestamp(n.world.engine.now().0 + 3_600_000);
    let when = malote_model::When::At(at);
    let later = Message { when, ..Message::default() };
    n.world.engine.send(vec![(topic, later)]).await.unwrap();
    let (_, body) = n.get("/news").await;
    assert!(!body.contains("<SizeInBytes>0<"), "{body}");
}
