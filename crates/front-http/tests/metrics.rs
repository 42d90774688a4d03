//! Pages for Prometheus, parsed strictly.
#![allow(clippy::unwrap_used)]

mod common;

use axum::body::Body;
use axum::http::{Request, header};
use common::{Broker, exposition, receive, send, with_queue};
use http_body_util::BodyExt;
use malote_front_http::Limits;
use malote_model::{QueueName, QueueSpec, TopicName, TopicSpec, limits};
use serde_json::json;
use tower::ServiceExt;

const OPEN: (&str, &str) = ("accept", "application/openmetrics-text; version=1.0.0");
const PLAIN: (&str, &str) = ("accept", "text/plain");
/// The metric of omitted objects on a complete page.
const OMITTED: &str = "malote_metrics_objects_omitted";

async fn page(broker: &Broker, path: &str, accept: &[(&str, &str)]) -> exposition::Samples {
    let answer = broker.raw("GET", path, accept, "").await;
    assert_eq!(answer.status, 200);
    let kind = answer.headers[header::CONTENT_TYPE].to_str().unwrap();
    let open_metrics = accept == [OPEN];
    let expected = match open_metrics {
        true => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        false => "text/plain; version=0.0.4; charset=utf-8",
    };
    assert_eq!(kind, expected, "{path} {accept:?}");
    exposition::read(answer.text(), open_metrics)
        .unwrap_or_else(|why| panic!("{path} {accept:?}: {why}\n{}", answer.text()))
}

/// Values of a metric by its label `name`.
fn by<'a>(samples: &'a exposition::Samples, metric: &str, name: &str) -> Vec<(&'a str, f64)> {
    let found = samples.get(metric).unwrap_or_else(|| panic!("no {metric}")).iter();
    let value =
        |labels: &'a Vec<(String, String)>| &labels.iter().find(|(l, _)| l == name).unwrap().1;
    found.map(|(labels, count)| (value(labels).as_str(), *count)).collect()
}

#[tokio::test]
async fn both_formats_are_well_formed_and_have_the_same_values() {
    let broker = with_queue(json!({})).await;
    broker.put("/api/v1/topics/sales", json!({})).await.expect(201);
    send(&broker, json!([{"body": "a"}, {"body": "b"}])).await;
    receive(&broker, json!({})).await;
    for path in ["/metrics", "/metrics/per-object"] {
        for accept in [&[][..], &[PLAIN], &[("accept", "*/*")], &[OPEN]] {
            let samples = page(&broker, path, accept).await;
            let published = &samples["malote_messages_published_total"];
            assert_eq!(published.values().copied().collect::<Vec<_>>(), [2.0]);
            let syncs = by(&samples, "malote_wal_fsync_duration_seconds_bucket", "le");
            let all = samples["malote_wal_fsync_duration_seconds_count"].values().next().unwrap();
            assert!(syncs.contains(&("+Inf", *all)) && *all > 0.0, "{syncs:?}");
            assert_eq!(samples["malote_build_info"].len(), 1);
        }
    }
}

#[tokio::test]
async fn a_page_of_objects_is_bounded_and_can_be_paged() {
    let bounds = Limits { metrics_objects_max: 10, ..Limits::default() };
    let broker = Broker::limited(bounds, |_| {});
    // More than one page of the engine's list.
    let many = limits::LIST_MAX + 20;
    let declared = (0..many).map(|n| {
        let engine = broker.api.engine.clone();
        let name = QueueName::new(&format!("{}-{n:04}", ["a", "b"][n % 2])).unwrap();
        tokio::spawn(async move { engine.declare(name, QueueSpec::default()).await.unwrap() })
    });
    for declared in declared.collect::<Vec<_>>() {
        assert!(declared.await.unwrap());
    }
    for n in 0..12 {
        let topic = TopicName::new(&format!("b-topic-{n:02}")).unwrap();
        broker.api.engine.declare_topic(topic, TopicSpec::default()).await.unwrap();
    }
    assert_eq!(broker.api.engine.list().await.unwrap().len(), many);
    let shown = |samples: &exposition::Samples| {
        let queues = by(samples, "malote_queue_bytes", "queue");
        queues.into_iter().map(|(queue, _)| queue.to_owned()).collect::<Vec<_>>()
    };
    let half = many / 2;
    let first = page(&broker, "/metrics/per-object", &[]).await;
    assert_eq!(shown(&first).len(), 10);
    let left = [("queue", (many - 10) as f64), ("topic", 2.0)];
    assert_eq!(by(&first, OMITTED, "kind"), left);
    let some = page(&broker, "/metrics/per-object?prefix=b-&max=2&after=b-0005", &[OPEN]).await;
    assert_eq!(shown(&some), ["b-0007", "b-0009"]);
    let left = [("queue", (half - 3 - 2) as f64), ("topic", 10.0)];
    assert_eq!(by(&some, OMITTED, "kind"), left);
    assert_eq!(by(&some, "malote_topic_rules", "topic").len(), 2);
    let more = page(&broker, "/metrics/per-object?max=99", &[]).await;
    assert_eq!(shown(&more).len(), 10, "the bound is a bound");
    assert_eq!(broker.get("/metrics/per-object?max=0").await.problem(400), "bad_query");
    assert_eq!(broker.get("/metrics/per-object?prefx=a").await.problem(400), "bad_query");
    // The sums are not bounded.
    let all = page(&broker, "/metrics", &[]).await;
    assert_eq!(all["malote_queue_bytes"].len(), 1);
}

#[tokio::test]
async fn pages_of_objects_are_streamed_and_limited_in_number() {
    let bounds = Limits { metrics_pages_max: 1, ..Limits::default() };
    let broker = Broker::limited(bounds, |_| {});
    for n in 0..200 {
        let name = QueueName::new(&format!("queue-{n}-{}", "x".repeat(100))).unwrap();
        broker.api.engine.declare(name, QueueSpec::default()).await.unwrap();
    }
    let request = || Request::get("/metrics/per-object").body(Body::empty()).unwrap();
    let mut body = broker.router.clone().oneshot(request()).await.unwrap().into_body();
    assert_eq!(broker.get("/metrics/per-object").await.problem(429), "busy");
    let (mut text, mut largest) = (Vec::new(), 0);
    while let Some(piece) = body.frame().await {
        let piece = piece.unwrap().into_data().unwrap();
        largest = largest.max(piece.len());
        text.extend_from_slice(&piece);
    }
    assert!(text.len() > 400_000 && largest < 80_000, "{} in pieces of {largest}", text.len());
    exposition::read(std::str::from_utf8(&text).unwrap(), false).unwrap();
    drop(body);
    assert_eq!(broker.get("/metrics/per-object").await.status, 200, "the place is free again");
}

#[test]
fn the_parser_is_strict() {
    let good = "# HELP m_total x\n# TYPE m_total counter\nm_total{a=\"\\\"\\\\\\n\"} 1\n";
    exposition::read(good, false).unwrap();
    for (wrong, open) in [
        (good, true),
        ("# HELP m x\n# TYPE m counter\nm_total 1\n# EOF\n# EOF\n", true),
        ("# HELP m x\n# TYPE m gauge\nm 1", false),
        ("# HELP m x\n# TYPE m gauge\nm one\n", false),
        ("# HELP m x\n# TYPE m gauge\nm{} 1\n", false),
        ("# HELP m x\n# TYPE m gauge\nm{a=\"\\x\"} 1\n", false),
        ("# HELP m x\n# TYPE m gauge\nm 1\nm 1\n", false),
        ("# HELP m x\n# TYPE m gauge\nn 1\n", false),
        ("# HELP m x\n# TYPE m counter\nm_total 1\n", false),
        ("# HELP m x\n# TYPE m info\nm_info 1\n", false),
        ("# HELP m x\n# TYPE m gauge\n# HELP m x\n# TYPE m gauge\n", false),
        ("m 1\n", false),
    ] {
        exposition::read(wrong, open).unwrap_err();
    }
    let histogram = |last: &str| {
        format!(
            "# HELP h x\n# TYPE h histogram\nh_bucket{{le=\"0.5\"}} 1\nh_bucket{{le=\"{last}\"}} 2\nh_sum 3\nh_count 2\n"
        )
    };
    exposition::read(&histogram("+Inf"), false).unwrap();
    let max = format!("{:?}", f64::MAX);
    for last in ["1", "1.0", max.as_str(), "inf"] {
        exposition::read(&histogram(last), false).unwrap_err();
    }
}
