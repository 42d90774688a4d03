//! The part of RabbitMQ's management API that tools use: JSON over HTTP, on a port of its own.
//!
//! | file | contains |
//! |---|---|
//! | `request.rs` | a request: origin, credential, path, parameters, body |
//! | `list.rs` | pages, filters, columns, sorting |
//! | `answer.rs`, `error.rs` | answers and errors with RabbitMQ's status codes and JSON |
//! | `state.rs` | what all requests share |
//! | `overview.rs` | the broker as a whole: `/api/overview`, `/api/nodes`, `/api/whoami` |
//! | `queues.rs`, `exchanges.rs`, `bindings.rs` | reading and changing the topology |
//! | `messages.rs` | publishing and getting messages |
//! | `connections.rs` | open connections, channels and consumers |
//! | `health.rs` | health checks |
//! | `scan.rs` | queues, exchanges and bindings, page by page of the engine |
//! | `stats.rs` | counters and rates |
//! | `local.rs` | a client inside the process, which runs methods of AMQP |
//! | `json.rs` | JSON ↔ arguments, headers and properties |
//! | `administration.rs` | the paths of users, permissions, virtual hosts, policies, parameters and definitions |
//!
//! The table of paths is [`route`]. A request that changes something runs as a method of AMQP, so that both have the
//! same checks and the same errors. A field that Malote cannot know is left out.

mod administration;
pub(crate) mod answer;
mod bindings;
mod connections;
mod definitions;
mod error;
mod exchanges;
mod health;
mod json;
mod list;
mod local;
mod messages;
mod overview;
mod parameters;
mod permissions;
mod policies;
mod queues;
mod request;
mod scan;
mod state;
mod stats;
mod users;
mod vhosts;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, Response, header};

use serde_json::json;

use self::administration::Routed;
use self::answer::Answer;
use self::bindings::Ends;
use self::connections::Shows;
use self::error::ApiError;
use self::request::Call;
use self::state::ManagementState;

pub use error::management_busy;
pub use state::{ListenerFacts, ManagementApi};

/// The methods of a path that can only be read.
const READ: &str = "HEAD, GET, OPTIONS";

impl ManagementApi {
    /// Answers every request of the port.
    pub fn router(&self) -> Router {
        let api = self.clone();
        Router::new().fallback(move |request: Request| {
            let api = api.clone();
            async move { api.serve(request).await }
        })
    }

    /// Answers a request. A [`malote_model::Principal`] among its extensions is the caller; otherwise the request must
    /// have a credential.
    pub async fn serve(&self, request: Request) -> Response<Body> {
        let answered = match request::read_call(&self.0, request).await {
            Ok(call) => {
                let answered = route(&self.0, &call).await;
                let status = match &answered {
                    Ok(answer) => answer.status(),
                    Err(error) => error.status,
                };
                let path = call.path.first().map_or("", String::as_str);
                tracing::debug!(front = "rabbitmq-management", path, %status, "request");
                answered
            }
            Err(error) => Err(error),
        };
        let mut answer = answered.unwrap_or_else(|error| error.response());
        let headers = answer.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        answer
    }
}

/// The table of paths.
async fn route(state: &ManagementState, call: &Call) -> Result<Answer, ApiError> {
    let path: Vec<&str> = call.path.iter().map(String::as_str).collect();
    match path[..] {
        ["overview"] => only_get(call, overview::overview(state, call)).await,
        ["whoami"] => only_get(call, overview::whoami(call)).await,
        ["nodes"] => only_get(call, overview::list_nodes(state, call)).await,
        ["nodes", name] => only_get(call, overview::node(state, call, name)).await,
        ["cluster-name"] => only_get(call, async { Ok(overview::cluster_name()) }).await,
        ["feature-flags"] => only_get(call, async { Ok(overview::feature_flags()) }).await,
        ["extensions"] => only_get(call, async { Ok(answer::json(&json!([]))) }).await,
        ["auth"] => only_get(call, async { Ok(overview::auth()) }).await,
        ["health", "checks", ref checks @ ..] => only_get(call, health::check(state, checks)).await,
        ["aliveness-test", host] => only_get(call, health::aliveness(state, call, host)).await,
        ["healthchecks", "node"] => only_get(call, health::node(state, None)).await,
        ["healthchecks", "node", name] => only_get(call, health::node(state, Some(name))).await,
        ["connections" | "channels" | "consumers", ..]
        | ["vhosts", _, "connections" | "channels"] => route_open(state, call, &path).await,
        ["queues"] => only_get(call, queues::list_queues(state, call, None)).await,
        ["queues", host] => only_get(call, queues::list_queues(state, call, Some(host))).await,
        ["queues", host, name] => queues::queue(state, call, host, name).await,
        ["queues", host, name, "contents"] => queues::purge(state, call, host, name).await,
        ["queues", host, name, "get"] => messages::get(state, call, host, name).await,
        ["queues", host, name, "bindings"] => {
            only_get(call, bindings::of_queue(state, call, host, name)).await
        }
        ["exchanges"] => only_get(call, exchanges::list_exchanges(state, call, None)).await,
        ["exchanges", host] => {
            only_get(call, exchanges::list_exchanges(state, call, Some(host))).await
        }
        ["exchanges", host, name] => exchanges::exchange(state, call, host, name).await,
        ["exchanges", host, name, "publish"] => messages::publish(state, call, host, name).await,
        ["exchanges", host, name, "bindings", "source"] => {
            only_get(call, bindings::of_source(state, call, host, name)).await
        }
        ["exchanges", host, name, "bindings", "destination"] => {
            only_get(call, bindings::of_destination(state, call, host, name)).await
        }
        ["bindings"] => only_get(call, bindings::list_bindings(state, call, None)).await,
        ["bindings", host] => {
            only_get(call, bindings::list_bindings(state, call, Some(host))).await
        }
        ["bindings", host, "e", source, kind @ ("q" | "e"), destination] => {
            let ends = Ends { host, source, destination, is_queue: kind == "q" };
            bindings::between(state, call, ends).await
        }
        ["bindings", host, "e", source, kind @ ("q" | "e"), destination, properties] => {
            let ends = Ends { host, source, destination, is_queue: kind == "q" };
            bindings::binding(state, call, ends, properties).await
        }
        _ => match administration::route(state, call).await {
            Routed::Answered(answered) => answered,
            Routed::Unknown => Err(ApiError::not_found()),
        },
    }
}

/// The paths of connections, channels and consumers.
async fn route_open(
    state: &ManagementState,
    call: &Call,
    path: &[&str],
) -> Result<Answer, ApiError> {
    let (host, shows) = match *path {
        ["connections", name] => return connections::connection(state, call, name).await,
        ["connections", name, "channels"] => {
            return only_get(call, connections::channels_of(state, call, name)).await;
        }
        ["channels", name] => {
            return only_get(call, connections::channel(state, call, name)).await;
        }
        ["connections"] => (None, Shows::Connections),
        ["channels"] => (None, Shows::Channels),
        ["consumers"] => (None, Shows::Consumers),
        ["consumers", host] => (Some(host), Shows::Consumers),
        ["vhosts", host, "connections"] => (Some(host), Shows::Connections),
        ["vhosts", host, "channels"] => (Some(host), Shows::Channels),
        _ => return Err(ApiError::not_found()),
    };
    only_get(call, connections::list_open(state, call, host, shows)).await
}

/// Runs `answer` for GET, and refuses other methods.
async fn only_get(
    call: &Call,
    answer: impl Future<Output = Result<Answer, ApiError>>,
) -> Result<Answer, ApiError> {
    match call.method {
        Method::GET => answer.await,
        _ => Err(ApiError::no_method(READ)),
    }
}
