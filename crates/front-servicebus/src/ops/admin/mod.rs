//! The administration API: entities as Atom XML over HTTP, for the administration clients of the SDKs.
//!
//! | what | where |
//! |---|---|
//! | paths, pages | `path.rs` |
//! | authentication | `auth.rs` |
//! | entries and feeds | `atom.rs` |
//! | properties | `description.rs`, `forward.rs` |
//! | queues, topics, subscriptions, rules, the namespace | a file each |
//! | errors | `error.rs` |
//! | audit records | `audit.rs` |
//!
//! `PUT` creates an entity; with `If-Match`, it updates one. As in the service, `GET` of a missing queue or topic
//! returns an empty feed. Other missing entities are reported with 404.

mod atom;
mod audit;
mod auth;
mod description;
mod error;
mod forward;
mod namespace;
mod path;
mod queue;
mod rule;
mod subscription;
mod topic;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use malote_engine::{EngineError, QueueFacts, Resolution, TopicFacts};
use malote_http::check_origin;
use malote_model::{
    Action, AuditProtocol, Denied, PeerMark, Principal, QueueName, Refusal, Resource, Timestamp,
    WebGuard,
};
use tokio::sync::Semaphore;

use crate::Front;
use crate::ops::resolve::{EntityFacts, Resolved, resolve};
use crate::wire::address::EntityPath;
use crate::wire::xml::Element;
use atom::BaseUrl;
use audit::PendingAudit;
use error::{AdminAction, AdminError, AdminResult};
use path::{PageRange, ResourcePath, value};

/// Bytes of a request body; labels of a queue cannot be larger.
const BODY_BYTES_MAX: usize = 256 << 10;
/// Time for the body of a request to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// Request bodies read concurrently.
const BODIES_MAX: usize = 64;

/// The administration API of a namespace. Cheap to clone.
#[derive(Clone)]
pub struct Admin(Arc<AdminState>);

struct AdminState {
    front: Arc<Front>,
    started_at: Timestamp,
    /// Serializes changes, because each change reads the entity first.
    changing: tokio::sync::Mutex<()>,
    bodies: Semaphore,
}

impl Admin {
    pub fn new(front: Arc<Front>) -> Admin {
        let started_at = front.engine.now();
        let (changing, bodies) = (tokio::sync::Mutex::new(()), Semaphore::new(BODIES_MAX));
        Admin(Arc::new(AdminState { front, started_at, changing, bodies }))
    }

    /// A router for all paths, guarded by `web`.
    pub fn router(&self, web: WebGuard, tls: bool) -> Router {
        let endpoint = AdminEndpoint { shared: self.0.clone(), web: web.into(), tls };
        Router::new().fallback(serve).with_state(endpoint)
    }
}

/// One listener of the API.
#[derive(Clone)]
struct AdminEndpoint {
    shared: Arc<AdminState>,
    web: Arc<WebGuard>,
    tls: bool,
}

async fn serve(State(endpoint): State<AdminEndpoint>, request: Request) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let answer = match handle(&endpoint, request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(%method, path, ?error, "refused");
            error.into_response()
        }
    };
    tracing::debug!(%method, path, status = answer.status().as_u16(), "administration");
    answer
}

async fn handle(endpoint: &AdminEndpoint, request: Request) -> AdminResult<Response> {
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    check_origin(&endpoint.web, headers)
        .map_err(|foreign| AdminError::forbidden(format!("Refused: {foreign}.")))?;
    let query = parts.uri.query().unwrap_or_default();
    let base_url = base_url(headers, query, endpoint.tls);
    let shared = &endpoint.shared;
    let path = path::decode(parts.uri.path())?;
    let address = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    let peer = address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let who = auth::caller(&shared.front, headers, "authorization", &path);
    let who = who.inspect_err(|error| audit::refused_login(&shared.front, headers, peer, error))?;
    shared.front.access.audit().authenticated(&who, peer, AuditProtocol::ServiceBusAdmin);
    if let Some(mark) = parts.extensions.get::<PeerMark>() {
        mark.set_known();
    }
    let resource = ResourcePath::of(&path);
    let call = AdminCall {
        admin: shared,
        who,
        headers,
        base_url,
        page: PageRange::parse(query)?,
        update: headers.contains_key(header::IF_MATCH),
        audited: Mutex::default(),
    };
    *call.audited() = PendingAudit::begin(&call, peer, &parts.method, &resource);
    let answer = execute(&call, &parts.method, resource, body).await;
    let audited = call.audited().take();
    if let Some(audited) = audited {
        audited.end(&call, &answer);
    }
    answer
}

async fn execute(
    call: &AdminCall<'_>,
    method: &Method,
    resource: ResourcePath,
    body: Body,
) -> AdminResult<Response> {
    match *method {
        Method::GET => call.get(resource).await,
        Method::PUT => {
            // Only authenticated callers use memory, and only a limited number at once.
            let _share = call.admin.bodies.try_acquire().map_err(|_| Refusal::Busy)?;
            let element = read(body).await?;
            call.put(resource, &element).await
        }
        Method::DELETE => {
            call.delete(resource).await?;
            Ok(StatusCode::OK.into_response())
        }
        _ => Err(AdminError::method(method.as_str())),
    }
}

/// The URL that the caller used.
fn base_url(headers: &HeaderMap, query: &str, tls: bool) -> BaseUrl {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // A proxy may have terminated TLS. A wrong value harms only the caller.
    let scheme = match text("x-forwarded-proto") {
        Some("https") => "https",
        Some("http") => "http",
        _ if tls => "https",
        _ => "http",
    };
    let host = text("host").unwrap_or("localhost").to_owned();
    let version = value(query, "api-version").unwrap_or_else(|| "2021-05".to_owned());
    BaseUrl { base: format!("{scheme}://{host}"), host, version }
}

/// Reads the description in an Atom entry.
async fn read(body: Body) -> AdminResult<Element> {
    let bytes = tokio::time::timeout(BODY_TIME_MAX, to_bytes(body, BODY_BYTES_MAX)).await;
    let bytes = bytes.map_err(|_| AdminError::bad("The request body did not arrive in time."))?;
    let bytes = bytes.map_err(|_| AdminError::too_large(BODY_BYTES_MAX))?;
    let described = Element::description(&bytes);
    described.map_err(|why| {
        AdminError::bad(format!("The request body is not a valid Atom entry: {why}."))
    })
}

/// A request of an authenticated caller.
struct AdminCall<'a> {
    admin: &'a AdminState,
    who: Principal,
    headers: &'a HeaderMap,
    base_url: BaseUrl,
    page: PageRange,
    update: bool,
    audited: Mutex<Option<PendingAudit>>,
}

enum QueueOrTopic {
    Queue(Box<QueueFacts>),
    Topic(Box<TopicFacts>),
}

impl AdminCall<'_> {
    fn audited(&self) -> MutexGuard<'_, Option<PendingAudit>> {
        self.audited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the entity's own spelling in the audit record.
    fn found(&self, name: &str) {
        if let Some(audited) = &mut *self.audited() {
            audited.found(name);
        }
    }

    async fn get(&self, resource: ResourcePath) -> AdminResult<Response> {
        let entry = match resource {
            ResourcePath::Namespace => namespace::get(self),
            ResourcePath::Queues => return queue::list(self).await,
            ResourcePath::Topics => return topic::list(self).await,
            ResourcePath::Subscriptions { topic } => return subscription::list(self, &topic).await,
            ResourcePath::Rules { topic, subscription } => {
                return rule::list(self, &topic, &subscription).await;
            }
            ResourcePath::Entity(name) => match self.find(AdminAction::Read, &name).await? {
                // As in the service.
                None => return Ok(atom::empty_feed(&self.base_url, self.now())),
                Some(QueueOrTopic::Queue(facts)) => queue::entry(self, &facts),
                Some(QueueOrTopic::Topic(facts)) => topic::entry(self, &facts).await?,
            },
            ResourcePath::Subscription { topic, name } => {
                subscription::get(self, &topic, &name).await?
            }
            ResourcePath::Rule { topic, subscription, name } => {
                rule::get(self, &topic, &subscription, &name).await?
            }
        };
        Ok(entry.answer(&self.base_url, StatusCode::OK))
    }

    async fn put(&self, resource: ResourcePath, element: &Element) -> AdminResult<Response> {
        let _guard = self.admin.changing.lock().await;
        let entry = match (resource, element.name.as_str()) {
            (ResourcePath::Entity(name), "QueueDescription") => {
                queue::put(self, &name, element).await?
            }
            (ResourcePath::Entity(name), "TopicDescription") => {
                topic::put(self, &name, element).await?
            }
            (ResourcePath::Subscription { topic, name }, "SubscriptionDescription") => {
                subscription::put(self, &topic, &name, element).await?
            }
            (ResourcePath::Rule { topic, subscription, name }, "RuleDescription") => {
                rule::put(self, &topic, &subscription, &name, element).await?
            }
            (_, other) => {
                let text = format!("A `{other}` is not allowed for this path.");
                return Err(AdminError::bad(text));
            }
        };
        let status = if self.update { StatusCode::OK } else { StatusCode::CREATED };
        Ok(entry.answer(&self.base_url, status))
    }

    async fn delete(&self, resource: ResourcePath) -> AdminResult<()> {
        let _guard = self.admin.changing.lock().await;
        let engine = &self.admin.front.engine;
        match resource {
            ResourcePath::Entity(name) => match self.find(AdminAction::Delete, &name).await? {
                None => return Err(AdminError::not_found(name)),
                Some(QueueOrTopic::Queue(facts)) => engine.delete(facts.name).await?,
                Some(QueueOrTopic::Topic(facts)) => engine.delete_topic(facts.name).await?,
            },
            ResourcePath::Subscription { topic, name } => {
                let action = AdminAction::Below("DeleteSubscription");
                let facts = subscription::find(self, action, &topic, &name).await?;
                let facts = facts.ok_or_else(|| AdminError::not_found(name))?;
                engine.delete(facts.name).await?;
            }
            ResourcePath::Rule { topic, subscription, name } => {
                rule::delete(self, &topic, &subscription, name).await?;
            }
            ResourcePath::Namespace
            | ResourcePath::Queues
            | ResourcePath::Topics
            | ResourcePath::Subscriptions { .. }
            | ResourcePath::Rules { .. } => return Err(AdminError::method("DELETE")),
        }
        Ok(())
    }

    fn now(&self) -> Timestamp {
        self.admin.front.engine.now()
    }

    /// Checks the manage permission.
    fn check(&self, action: AdminAction, on: Resource<'_>) -> AdminResult<()> {
        let checked = self.admin.front.access.check(&self.who, Action::Manage, on);
        checked.map_err(|denied| AdminError::denied(action, &denied))
    }

    /// Filters out what the caller may not manage. An error would reveal that it exists.
    fn manageable<'a, T>(&self, all: &'a [T], on: impl Fn(&T) -> Resource<'_>) -> Vec<&'a T> {
        all.iter().filter(|one| self.check(AdminAction::Read, on(one)).is_ok()).collect()
    }

    /// The target of forwarding, if the caller, or the signer of `header`, may send to it.
    async fn target(&self, header: &str, path: &EntityPath) -> AdminResult<Option<EntityFacts>> {
        let front = &self.admin.front;
        let who = match self.headers.contains_key(header) {
            true => auth::caller(front, self.headers, header, &path.name)?,
            false => self.who.clone(),
        };
        let may = |on: Resource<'_>| front.access.check(&who, Action::Send, on);
        match resolve(&front.engine, path, may).await? {
            Resolved::Found(entity) => Ok(Some(entity)),
            Resolved::Missing => Ok(None),
            Resolved::Denied(denied) => Err(AdminError::denied(AdminAction::Write, &denied)),
        }
    }

    /// Finds a queue or a topic that the caller may manage. Case-insensitive if the name is unambiguous. None if there
    /// is none and the caller may manage the name.
    async fn find(&self, action: AdminAction, name: &str) -> AdminResult<Option<QueueOrTopic>> {
        let access = &self.admin.front.access;
        let may = |on: Resource<'_>| access.check(&self.who, Action::Manage, on);
        let found = self.find_if(action, name, may).await?;
        match &found {
            Some(QueueOrTopic::Queue(facts)) => self.found(facts.name.as_str()),
            Some(QueueOrTopic::Topic(facts)) => self.found(facts.name.as_str()),
            None => {}
        }
        Ok(found)
    }

    /// The same with another permission check.
    async fn find_if(
        &self,
        action: AdminAction,
        name: &str,
        may: impl Fn(Resource<'_>) -> Result<(), Denied>,
    ) -> AdminResult<Option<QueueOrTopic>> {
        let front = &self.admin.front;
        let path = EntityPath { name: name.to_owned(), dead_letters: false, transfer: false };
        Ok(match resolve(&front.engine, &path, may).await? {
            Resolved::Found(EntityFacts::Queue(facts)) => Some(QueueOrTopic::Queue(facts)),
            Resolved::Found(EntityFacts::Topic(name)) => match front.engine.topic(name).await {
                Ok(facts) => Some(QueueOrTopic::Topic(Box::new(facts))),
                Err(error) => return none_if_missing(error),
            },
            Resolved::Found(EntityFacts::Transfer(_)) | Resolved::Missing => None,
            Resolved::Denied(denied) => return Err(AdminError::denied(action, &denied)),
        })
    }

    /// Refuses a name that a queue or topic already has in any case, because clients could not distinguish them.
    async fn check_name_is_free(&self, name: &str) -> AdminResult<()> {
        match self.admin.front.engine.resolve(QueueName::new(name)?).await? {
            Resolution::Missing => Ok(()),
            Resolution::Found(_) | Resolution::Ambiguous => Err(AdminError::exists(name)),
        }
    }
}

/// Maps "not found" and "invalid name" to none.
fn none_if_missing<T>(error: EngineError) -> AdminResult<Option<T>> {
    match error {
        EngineError::Refused(
            Refusal::QueueNotFound { .. }
            | Refusal::TopicNotFound { .. }
            | Refusal::RuleNotFound { .. }
            | Refusal::BadName { .. },
        ) => Ok(None),
        error => Err(error.into()),
    }
}
