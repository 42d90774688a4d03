//! Metrics for Prometheus. Message, session and job ids are never labels.
//!
//! Metrics of queues are read from the engine at scrape time; requests and connections are counted in `requests.rs`.
//! `/metrics` has sums over all queues and topics, because thousands of objects are too many for a scrape.
//! `/metrics/per-object` has the labels `queue` and `topic`, for a bounded number of objects. A caller sees objects on
//! which it has any grant.

mod objects;
mod requests;

use axum::Json as Answer;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use malote_engine::journal::SYNC_BUCKETS_S;
use malote_engine::{QueueFacts, TopicFacts};
use malote_model::{Principal, limits};
use malote_wire_native::about::QueueMetrics;
use malote_wire_native::exposition::{Format, Kind, Page, write_end};
use serde::Deserialize;

use self::objects::{Combined, PerObjectPage};
pub use self::requests::{OpenConnection, RequestMetrics, RequestTimer};
use crate::Api;
use crate::extract::{Caller, Query};
use crate::problem::{Code, Problem};

/// Which queues and topics a page shows.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectsQuery {
    /// Only names with this prefix.
    prefix: Option<String>,
    /// Only names after this one.
    after: Option<String>,
    /// Largest number of queues, and of topics.
    max: Option<usize>,
}

impl ObjectsQuery {
    fn wants(&self, name: &str) -> bool {
        self.prefix.as_deref().is_none_or(|prefix| name.starts_with(prefix))
            && self.after.as_deref().is_none_or(|after| name > after)
    }
}

fn format_of(headers: &HeaderMap) -> Format {
    let ranges = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    Format::of_accept(&ranges.collect::<Vec<_>>().join(","))
}

/// Metrics as sums over all queues and topics.
pub async fn aggregated(
    State(api): State<Api>,
    Caller(caller): Caller,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (format, now) = (format_of(&headers), api.engine.now());
    let (mut queues, mut topics) = (Combined::default(), Combined::default());
    for_each_queue(&api, &caller, |facts| queues.add(&facts, now)).await?;
    for_each_topic(&api, &caller, |facts| topics.add(&facts, now)).await?;
    let mut text = String::new();
    queues.write(&mut text, format);
    topics.write(&mut text, format);
    process(&api).write(&mut text, format);
    write_end(&mut text, format);
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}

/// Metrics of each queue and topic, up to a bound, and the number of omitted objects. The page is generated while it
/// is read.
pub async fn per_object(
    State(api): State<Api>,
    Caller(caller): Caller,
    Query(query): Query<ObjectsQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let bound = api.limits.metrics_objects_max;
    let max = query.max.unwrap_or(bound).min(bound);
    if max == 0 {
        return Err(Problem::new(Code::BadQuery, "`max` must be at least 1"));
    }
    let busy = |_| Problem::new(Code::Busy, "too many pages of metrics are being read");
    let permit = api.scrapes.clone().try_acquire_owned().map_err(busy)?;
    let (mut queues, mut topics) = (Vec::new(), Vec::new());
    let mut omitted = [("queue", 0_u64), ("topic", 0)];
    for_each_queue(&api, &caller, |facts| match query.wants(facts.name.as_str()) {
        true if queues.len() < max => queues.push(facts),
        true => omitted[0].1 += 1,
        false => {}
    })
    .await?;
    for_each_topic(&api, &caller, |facts| match query.wants(facts.name.as_str()) {
        true if topics.len() < max => topics.push(facts),
        true => omitted[1].1 += 1,
        false => {}
    })
    .await?;
    let mut page = process(&api);
    let help = "Queues and topics that this page leaves out: ask for them with `prefix`, `after` and `max`";
    page.head("metrics_objects_omitted", Kind::Gauge, help);
    omitted.iter().for_each(|(kind, count)| page.sample(&[("kind", kind)], count));
    let (format, mut rest) = (format_of(&headers), String::new());
    page.write(&mut rest, format);
    let pieces = PerObjectPage {
        format,
        now: api.engine.now(),
        queues,
        topics,
        rest: Some(rest),
        at: Default::default(),
        _permit: permit,
    };
    let body = Body::from_stream(stream::iter(pieces));
    Ok(([(header::CONTENT_TYPE, format.content_type())], body).into_response())
}

/// Metrics of the process.
fn process(api: &Api) -> Page {
    let (journal, disk) = (api.engine.journal(), api.engine.disk());
    let audit = api.access.audit().counts();
    let mut page = Page::default();
    api.metrics.write(&mut page);
    let help = "How long syncs of the journal took";
    page.head("wal_fsync_duration_seconds", Kind::Histogram, help);
    let syncs = journal.syncs();
    page.histogram(&[], &SYNC_BUCKETS_S, &syncs.counts(), syncs.sum_s());
    for (name, kind, help, value) in [
        ("wal_bytes", Kind::Counter, "Bytes written to the journal", journal.written_bytes()),
        ("wal_size_bytes", Kind::Gauge, "Bytes of journal segments in use", disk.journal_bytes),
        (
            "damaged_messages",
            Kind::Counter,
            "Messages that could not be read when they should have been delivered",
            api.engine.damaged(),
        ),
        (
            "wal_live_bytes",
            Kind::Gauge,
            "Bytes of the journal that were live at the last snapshot",
            disk.live_bytes,
        ),
        (
            "wal_spare_bytes",
            Kind::Gauge,
            "Bytes of journal segments that wait to be used",
            disk.spare_bytes,
        ),
        ("snapshot_bytes", Kind::Gauge, "Bytes of snapshots", disk.snapshot_bytes),
        ("wal_copied", Kind::Counter, "Records copied by compaction", disk.copied),
        ("wal_recycled", Kind::Counter, "Journal segments used again", disk.recycled),
        (
            "wal_scrubbed_bytes",
            Kind::Counter,
            "Bytes of the journal read again and verified",
            disk.scrubbed_bytes,
        ),
        ("wal_damaged", Kind::Counter, "Damaged parts of the journal", disk.damaged),
        (
            "wal_diverged",
            Kind::Counter,
            "Replays of the journal that came to another state than the one served; nothing is recycled since",
            disk.diverged,
        ),
        (
            "audit_records",
            Kind::Counter,
            "Logins and administrative operations reported to the audit log",
            audit.recorded,
        ),
        (
            "audit_records_dropped",
            Kind::Counter,
            "Records of the audit log that were dropped because too many came at once",
            audit.dropped,
        ),
        (
            "audit_records_unwritten",
            Kind::Counter,
            "Records of the audit log that could not be written to its file",
            audit.unwritten,
        ),
        ("disk_free_bytes", Kind::Gauge, "Bytes free on the disk", disk.free_bytes),
        (
            "publish_allowed",
            Kind::Gauge,
            "1 unless the disk is too full to send",
            disk.publish_allowed.into(),
        ),
    ] {
        page.head(name, kind, help);
        page.sample(&[], value);
    }
    page.head("build", Kind::Info, "The version that runs");
    page.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    page
}

/// Calls `each` for every queue that the caller may see. Queues are read page by page.
async fn for_each_queue(
    api: &Api,
    caller: &Principal,
    mut each: impl FnMut(QueueFacts),
) -> Result<(), Problem> {
    api.allow_lists(caller)?;
    let mut after = None;
    loop {
        let page = api.engine.list_page(after).await?;
        after =
            page.last().map(|last| last.name.clone()).filter(|_| page.len() == limits::LIST_MAX);
        page.into_iter().filter(|f| api.allow_view(caller, &f.name).is_ok()).for_each(&mut each);
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Calls `each` for every topic that the caller may see.
async fn for_each_topic(
    api: &Api,
    caller: &Principal,
    mut each: impl FnMut(TopicFacts),
) -> Result<(), Problem> {
    api.allow_lists(caller)?;
    let mut after = None;
    loop {
        let page = api.engine.topics_page(after).await?;
        after =
            page.last().map(|last| last.name.clone()).filter(|_| page.len() == limits::LIST_MAX);
        let may = |f: &TopicFacts| api.allow_view_of(caller, &f.name.clone().into()).is_ok();
        page.into_iter().filter(may).for_each(&mut each);
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Five numbers for each queue.
pub async fn queues(
    State(api): State<Api>,
    Caller(caller): Caller,
) -> Result<Answer<Vec<QueueMetrics>>, Problem> {
    let of = |f: QueueFacts| QueueMetrics {
        queue: f.name.as_str().to_owned(),
        waiting: f.ready,
        active: f.locked,
        completed: f.totals.completed,
        failed: f.dead_lettered,
        delayed: f.delayed + f.scheduled,
    };
    let mut all = Vec::new();
    for_each_queue(&api, &caller, |facts| all.push(of(facts))).await?;
    Ok(Answer(all))
}
