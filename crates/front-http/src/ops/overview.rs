//! The overview: once, or as a stream of server-sent events.

use std::convert::Infallible;

use axum::Json as Answer;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use malote_model::Principal;
use malote_wire_native::overview::{Overview, OverviewQuery};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Duration, Instant, MissedTickBehavior};

use crate::Api;
use crate::extract::{Caller, Query};
use crate::overview::{PAGE_DEFAULT, PAGE_MAX, REFRESH_EVERY, build};
use crate::problem::{Code, Problem};
use crate::requests::check_range;

/// Without changes, a comment is sent this often, so that a connection that has ended is noticed.
const QUIET_MAX: Duration = Duration::from_secs(15);

/// The overview now.
pub async fn once(
    State(api): State<Api>,
    Caller(caller): Caller,
    Query(query): Query<OverviewQuery>,
) -> Result<Answer<Overview>, Problem> {
    check(&query)?;
    Ok(Answer(look(&api, &caller, &query).await?))
}

/// The overview whenever it changed, at most once a second.
pub async fn events(
    State(api): State<Api>,
    Caller(caller): Caller,
    Query(query): Query<OverviewQuery>,
) -> Result<Response, Problem> {
    check(&query)?;
    api.allow_lists(&caller)?;
    let busy = |_| Problem::new(Code::Busy, "too many streams of events are open");
    let permit = api.streams.clone().try_acquire_owned().map_err(busy)?;
    let mut ticks = tokio::time::interval(REFRESH_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let events = Events {
        api,
        caller,
        query,
        ticks,
        last: None,
        sent_at: Instant::now(),
        ended: false,
        _permit: permit,
    };
    let body = stream::unfold(events, |mut events| async move {
        events.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), events))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies must not collect events.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(body)).into_response())
}

fn check(query: &OverviewQuery) -> Result<(), Problem> {
    check_range("max", query.max.unwrap_or(PAGE_DEFAULT) as u64, 0, PAGE_MAX as u64)
}

async fn look(api: &Api, caller: &Principal, query: &OverviewQuery) -> Result<Overview, Problem> {
    // Permissions can change while a stream is open.
    if !api.access.knows(caller) {
        return Err(Problem::new(Code::Unauthenticated, "the credential is no longer valid"));
    }
    api.allow_lists(caller)?;
    let snapshot = api.watch.snapshot(&api.engine, &api.history).await?;
    Ok(build(api, caller, &snapshot, query))
}

/// A stream of events. The next one is made when the last one has been written, so a slow reader gets fewer.
struct Events {
    api: Api,
    caller: Principal,
    query: OverviewQuery,
    ticks: tokio::time::Interval,
    /// The last overview that was sent, without its time.
    last: Option<Vec<u8>>,
    sent_at: Instant,
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

impl Events {
    async fn next(&mut self) -> Option<Bytes> {
        while !self.ended {
            tokio::select! {
                biased;
                () = self.api.shutdown.cancelled() => return None,
                _ = self.ticks.tick() => {}
            }
            let overview = match look(&self.api, &self.caller, &self.query).await {
                Ok(overview) => overview,
                Err(problem) => {
                    self.ended = true;
                    let body = serde_json::to_vec(&problem.body()).ok()?;
                    return Some(event("ended", &body));
                }
            };
            let at = overview.at;
            let timeless = serde_json::to_vec(&Overview { at: 0, ..overview.clone() }).ok()?;
            if self.last.as_ref() != Some(&timeless) {
                let json = serde_json::to_vec(&Overview { at, ..overview }).ok()?;
                (self.last, self.sent_at) = (Some(timeless), Instant::now());
                return Some(event("overview", &json));
            }
            if self.sent_at.elapsed() >= QUIET_MAX {
                self.sent_at = Instant::now();
                return Some(Bytes::from_static(b":\n\n"));
            }
        }
        None
    }
}

/// One event. JSON has no line breaks, so its data is one line.
fn event(name: &str, json: &[u8]) -> Bytes {
    [b"event: ", name.as_bytes(), b"\ndata: ", json, b"\n\n"].concat().into()
}
