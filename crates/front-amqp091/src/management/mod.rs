//! The part of RabbitMQ's management API that tools use: JSON over HTTP, on a port of its own.
//!
//! | file | contains |
//! |---|---|
//! | `request.rs` | a request: origin, credential, path, parameters, body |
//! | `list.rs` | pages, filters, columns, sorting |
//! | `answer.rs`, `error.rs` | answers and errors with RabbitMQ's status codes and JSON |
//! | `state.rs` | what all requests share |
//! | `administration.rs` | the paths of users, permissions, virtual hosts, policies, parameters and definitions |
//! | `overview.rs` | `/api/overview`, `/api/whoami` |
//!
//! The table of paths is [`route`]. A request that changes something runs as a method of AMQP, so that both have the
//! same checks and the same errors. A field that Malote cannot know is left out.

mod administration;
pub(crate) mod answer;
mod definitions;
mod error;
mod list;
mod overview;
mod parameters;
mod permissions;
mod policies;
mod request;
mod state;
mod users;
mod vhosts;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, Response, header};

use self::administration::Routed;
use self::answer::Answer;
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
        _ => match administration::route(state, call).await {
            Routed::Answered(answered) => answered,
            Routed::Unknown => Err(ApiError::not_found()),
        },
    }
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
