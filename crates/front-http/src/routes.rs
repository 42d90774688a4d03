//! The table of routes, which the router, the OpenAPI document and its test use.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use malote_model::{AuditAction, AuditEntry, AuditProtocol, Foreign, PeerMark, Principal};

use crate::audit::{Audited, outcome_of};
use crate::extract::address_of;
use crate::nearest::nearest;
use crate::ops::{
    about, audit, backup, dead_letters, history, overview, peek, queues, receive, request, rules,
    sagas, send, sessions, settle, subscriptions, topics, transactions,
};
use crate::problem::{Code, Problem};
use crate::{Api, dashboard, health, metrics, native};

/// A method, a path and the name of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub name: &'static str,
    /// The action in the audit log, if the operation is administrative.
    pub audit: Option<AuditAction>,
}

macro_rules! routes {
    (@audit) => { None };
    (@audit $action:ident) => { Some(AuditAction::$action) };
    ($($method:ident $path:literal $name:ident $([$audit:ident])? => $handler:expr;)+) => {
        pub(crate) const ROUTES: &[Route] = &[$(
            Route {
                method: stringify!($method),
                path: $path,
                name: stringify!($name),
                audit: routes!(@audit $($audit)?),
            },
        )+];

        fn handlers() -> Vec<(&'static str, MethodRouter<Api>)> {
            vec![$(($path, on(MethodFilter::$method, $handler)),)+]
        }
    };
}

routes! {
    GET "/api/v1/queues" list_queues => queues::list;
    PUT "/api/v1/queues/{queue}" declare_queue [Declare] => queues::declare;
    PATCH "/api/v1/queues/{queue}" update_queue [Update] => queues::update;
    GET "/api/v1/queues/{queue}" get_queue => queues::describe;
    DELETE "/api/v1/queues/{queue}" delete_queue [Delete] => queues::delete;
    POST "/api/v1/queues/{queue}/purge" purge_queue [Purge] => queues::purge;
    POST "/api/v1/queues/{queue}/pause" pause_queue [Pause] => queues::pause;
    POST "/api/v1/queues/{queue}/resume" resume_queue [Resume] => queues::resume;
    POST "/api/v1/queues/{queue}/messages" send => send::send;
    POST "/api/v1/queues/{queue}/messages/batch" send_batch => send::send_batch;
    POST "/api/v1/queues/{queue}/request" request => request::request;
    GET "/api/v1/topics" list_topics => topics::list;
    PUT "/api/v1/topics/{topic}" declare_topic [Declare] => topics::declare;
    PATCH "/api/v1/topics/{topic}" update_topic [Update] => topics::update;
    GET "/api/v1/topics/{topic}" get_topic => topics::describe;
    DELETE "/api/v1/topics/{topic}" delete_topic [Delete] => topics::delete;
    POST "/api/v1/topics/{topic}/messages" send_to_topic => send::send_to_topic;
    POST "/api/v1/topics/{topic}/messages/batch" send_batch_to_topic => send::send_batch_to_topic;
    POST "/api/v1/topics/{topic}/scheduled/cancel" cancel_scheduled_of_topic => topics::cancel;
    GET "/api/v1/topics/{topic}/subscriptions" list_subscriptions => subscriptions::list;
    PUT "/api/v1/topics/{topic}/subscriptions/{subscription}" declare_subscription [Subscribe] => subscriptions::declare;
    GET "/api/v1/topics/{topic}/subscriptions/{subscription}" get_subscription => subscriptions::describe;
    DELETE "/api/v1/topics/{topic}/subscriptions/{subscription}" delete_subscription [Delete] => subscriptions::delete;
    GET "/api/v1/topics/{topic}/subscriptions/{subscription}/rules" list_rules_of_subscription => rules::list_of_subscription;
    PUT "/api/v1/topics/{topic}/subscriptions/{subscription}/rules/{rule}" put_rule_of_subscription [Bind] => rules::bind_subscription;
    DELETE "/api/v1/topics/{topic}/subscriptions/{subscription}/rules/{rule}" delete_rule_of_subscription [Unbind] => rules::unbind_subscription;
    GET "/api/v1/topics/{topic}/rules" list_rules => rules::list;
    PUT "/api/v1/topics/{topic}/queues/{queue}/rules/{rule}" put_rule [Bind] => rules::bind;
    DELETE "/api/v1/topics/{topic}/queues/{queue}/rules/{rule}" delete_rule [Unbind] => rules::unbind;
    PUT "/api/v1/topics/{topic}/topics/{target}/rules/{rule}" put_rule_to_topic [Bind] => rules::bind_topic;
    DELETE "/api/v1/topics/{topic}/topics/{target}/rules/{rule}" delete_rule_to_topic [Unbind] => rules::unbind_topic;
    POST "/api/v1/rules/test" test_rule => rules::test;
    POST "/api/v1/transactions" transact => transactions::transact;
    POST "/api/v1/send" send_many => send::send_many;
    POST "/api/v1/queues/{queue}/receive" receive => receive::receive;
    POST "/api/v1/queues/{queue}/deferred/receive" receive_deferred => receive::receive_deferred;
    POST "/api/v1/queues/{queue}/scheduled/cancel" cancel_scheduled => receive::cancel;
    POST "/api/v1/queues/{queue}/settle" settle => settle::settle;
    POST "/api/v1/queues/{queue}/renew" renew => settle::renew;
    GET "/api/v1/queues/{queue}/sessions" list_sessions => sessions::list;
    POST "/api/v1/queues/{queue}/sessions/accept" accept_session => sessions::accept;
    GET "/api/v1/queues/{queue}/sessions/{session}" get_session => sessions::describe;
    POST "/api/v1/queues/{queue}/sessions/{session}/release" release_session => sessions::release;
    POST "/api/v1/queues/{queue}/sessions/{session}/renew" renew_session => sessions::renew;
    POST "/api/v1/queues/{queue}/sessions/{session}/break" break_session [BreakSession] => sessions::break_hold;
    GET "/api/v1/queues/{queue}/sessions/{session}/state" get_session_state [ReadState] => sessions::get_state;
    PUT "/api/v1/queues/{queue}/sessions/{session}/state" set_session_state => sessions::put_state;
    DELETE "/api/v1/queues/{queue}/sessions/{session}/state" clear_session_state => sessions::delete_state;
    GET "/api/v1/sagas/{saga}" list_sagas => sagas::list;
    GET "/api/v1/sagas/{saga}/{session}" get_saga => sagas::describe;
    GET "/api/v1/queues/{queue}/messages" peek => peek::peek;
    GET "/api/v1/queues/{queue}/dead-letters" list_dead_letters => dead_letters::list;
    DELETE "/api/v1/queues/{queue}/dead-letters" purge_dead_letters [Purge] => dead_letters::purge;
    POST "/api/v1/queues/{queue}/dead-letters/redrive" redrive [Redrive] => dead_letters::redrive;
    POST "/api/v1/queues/{queue}/dead-letters/{seq}/resend" resend [Resend] => dead_letters::resend;
    GET "/api/v1/queues/{queue}/partition" partition => about::partition;
    GET "/api/v1/queues/{queue}/history" history => history::history;
    GET "/api/v1/overview" overview => overview::once;
    GET "/api/v1/overview/events" overview_events => overview::events;
    GET "/api/v1/history" history_of_all => history::of_all;
    GET "/api/v1/dead-letters" group_dead_letters => dead_letters::groups;
    GET "/api/v1/scale/{queue}" scale => about::scale;
    GET "/api/v1/openapi.json" openapi => about::openapi;
    GET "/api/v1/version" version => about::version;
    GET "/api/v1/disk" disk => about::disk;
    GET "/api/v1/audit" audit [ReadAudit] => audit::records;
    GET "/api/v1/backup" backup [Backup] => backup::backup;
    GET "/api/v1/connect" connect => native::connect;
    GET "/problems/{code}" problem => about::problem;
    GET "/livez" livez => health::livez;
    GET "/readyz" readyz => health::readyz;
    GET "/health/queue" health_all => health::all;
    GET "/health/queue/{queue}" health_queue => health::one;
    GET "/metrics" metrics => metrics::aggregated;
    GET "/metrics/per-object" metrics_per_object => metrics::per_object;
    GET "/metrics/queues" metrics_queues => metrics::queues;
}

/// Routes without authentication, because probes have no credentials.
const OPEN: [&str; 5] =
    ["/livez", "/readyz", "/api/v1/version", "/api/v1/openapi.json", "/problems/{code}"];

static BY_PATH: LazyLock<HashMap<(&str, &str), &'static Route>> =
    LazyLock::new(|| ROUTES.iter().map(|route| ((route.method, route.path), route)).collect());

/// The operation name of unknown routes.
static OTHER: Route = Route { method: "", path: "", name: "other", audit: None };

/// The router of all routes.
pub fn router(api: Api) -> Router {
    let mut router = Router::new();
    for (path, handler) in handlers() {
        router = router.route(path, handler);
    }
    router
        .layer(middleware::from_fn_with_state(api.clone(), around))
        .merge(dashboard::router())
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(api)
}

/// Wraps every operation: authentication, origin check, metrics and the audit log.
async fn around(
    State(api): State<Api>,
    matched: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = matched.as_ref().map_or("", MatchedPath::as_str);
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let route = BY_PATH.get(&(method, path)).copied().unwrap_or(&OTHER);
    let watch = api.metrics.request(route.name);
    let peer = address_of(request.extensions());
    let audit = api.access.audit();
    if let Err(problem) = check_page(&api, request.headers()) {
        if let Some(action) = route.audit {
            let entry = AuditEntry::new(AuditProtocol::Http, action).from(peer).detail(route.name);
            audit.record(entry.outcome(outcome_of(problem.code())));
        }
        return problem.into_response();
    }
    let mut audited = None;
    if !OPEN.contains(&path) {
        let principal = match authenticate(&api, request.headers(), peer).await {
            Ok(principal) => principal,
            Err(problem) => return problem.into_response(),
        };
        if let Some(mark) = request.extensions().get::<PeerMark>() {
            mark.set_known();
        }
        if route.name != "connect" {
            audit.authenticated(&principal, peer, AuditProtocol::Http);
        }
        request.extensions_mut().insert(principal.clone());
        if route.audit.is_some() {
            let (mut parts, body) = request.into_parts();
            audited = Audited::begin(&api, route, &mut parts, (&principal, peer)).await;
            request = Request::from_parts(parts, body);
        }
    }
    let response = next.run(request).await;
    if let Some(audited) = audited {
        audited.end(&api, &response);
    }
    let status = response.status().as_u16();
    tracing::debug!(front = "http", operation = route.name, status, "request");
    watch.done(status);
    response
}

/// Authenticates the caller. Unknown callers are refused before they can send a body or wait.
async fn authenticate(api: &Api, headers: &HeaderMap, peer: IpAddr) -> Result<Principal, Problem> {
    let problem = match api.authenticate.authenticate(headers, peer).await {
        Ok(principal) if api.access.knows(&principal) => return Ok(principal),
        Ok(_) => {
            let why = "this broker needs credentials and none were given";
            Problem::new(Code::Unauthenticated, why)
        }
        Err(error) => error.into(),
    };
    api.record_refused_login(headers, peer);
    Err(problem)
}

/// Refuses pages of other origins, and host names that are not the broker's.
fn check_page(api: &Api, headers: &HeaderMap) -> Result<(), Problem> {
    malote_http::check_origin(&api.limits.web, headers).map_err(|foreign| {
        let code = match &foreign {
            Foreign::Host { .. } => Code::ForeignHost,
            Foreign::Page { .. } | Foreign::Site { .. } => Code::CrossOrigin,
        };
        Problem::new(code, foreign.to_string())
    })
}

async fn unknown_route(request: Request) -> Problem {
    let path = request.uri().path();
    let shown: String = path.chars().take(128).collect();
    let problem = Problem::new(Code::RouteNotFound, format!("there is no route {shown}"));
    match nearest_route(path) {
        Some(near) => problem.fix(format!(
            "Did you mean {near}? A slash in a queue's name is written %2F. GET /api/v1/openapi.json lists every route."
        )),
        None => problem,
    }
}

/// The route most similar to a path, with the values of the path in its place-holders.
fn nearest_route(path: &str) -> Option<&'static str> {
    let given: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    let mut paths: Vec<&'static str> = ROUTES.iter().map(|route| route.path).collect();
    paths.dedup();
    let filled = paths.iter().map(|route| {
        let segments = route.split('/').enumerate().map(|(at, segment)| {
            let own = given.get(at).copied().filter(|_| segment.starts_with('{'));
            own.unwrap_or(segment)
        });
        segments.collect::<Vec<_>>().join("/")
    });
    let filled: Vec<String> = filled.collect();
    let best = nearest(path.trim_end_matches('/'), filled.iter().map(String::as_str))?;
    filled.iter().position(|candidate| candidate == best).map(|at| paths[at])
}

async fn wrong_method(request: Request) -> Problem {
    let path = request.uri().path();
    let methods = allowed(path);
    let why = format!("{} is not possible here: use {}", request.method(), methods.join(" or "));
    Problem::new(Code::MethodNotAllowed, why).header(header::ALLOW, methods.join(", "))
}

/// The methods of the route that a path matches.
fn allowed(path: &str) -> Vec<&'static str> {
    let fits = |route: &str| {
        let (route, path) = (route.split('/'), path.split('/'));
        route.clone().count() == path.clone().count()
            && route
                .zip(path)
                .all(|(want, have)| want == have || (want.starts_with('{') && !have.is_empty()))
    };
    let fitting: Vec<&Route> = ROUTES.iter().filter(|route| fits(route.path)).collect();
    // A literal segment wins over a place-holder, as in the router.
    let exact = fitting.iter().map(|route| route.path.matches('{').count()).min();
    let mut methods: Vec<&str> = fitting
        .iter()
        .filter(|route| Some(route.path.matches('{').count()) == exact)
        .map(|route| route.method)
        .collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    methods
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_and_names_stand_once() {
        let mut seen = std::collections::HashSet::new();
        for route in ROUTES {
            assert!(seen.insert((route.method, route.path)));
            assert!(seen.insert(("name", route.name)), "{}", route.name);
        }
    }

    #[test]
    fn the_nearest_route_is_named() {
        assert_eq!(nearest_route("/api/v1/queue"), Some("/api/v1/queues"));
        assert_eq!(
            nearest_route("/api/v1/queues/orders/recieve"),
            Some("/api/v1/queues/{queue}/receive")
        );
        assert_eq!(nearest_route("/helthz/everything/else"), None);
    }

    #[test]
    fn allowed_methods_are_those_of_the_path() {
        assert_eq!(allowed("/api/v1/queues/a/messages"), ["POST", "GET", "HEAD"]);
        assert_eq!(allowed("/api/v1/queues/a/sessions/accept"), ["POST"]);
    }
}
