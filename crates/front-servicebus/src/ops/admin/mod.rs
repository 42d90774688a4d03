//! The administration API: entities as Atom XML over HTTP, as the administration clients of the SDKs speak it.
//!
//! | what | where |
//! |---|---|
//! | paths, pages | `path.rs` |
//! | who calls | `auth.rs` |
//! | entries and feeds | `atom.rs` |
//! | properties: read, changed, kept, written | `description.rs`, `forward.rs` |
//! | queues, topics, subscriptions, rules, the namespace | a file each |
//! | refusals | `error.rs` |
//! | what the audit log is told | `audit.rs` |
//!
//! `PUT` makes, with `If-Match` it changes; `GET` and `DELETE` are what they say. A queue or topic that is not there is
//! an empty feed to `GET`, as the service has it; everything else that is not there is 404.

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
use malote_model::{
    Action, AuditProtocol, Denied, PeerMark, Principal, QueueName, Refusal, Resource, Timestamp,
    WebGuard,
};
use tokio::sync::Semaphore;

use crate::Front;
use crate::ops::resolve::{Place as Entity, Resolved, resolve};
use crate::wire::address::Path;
use crate::wire::xml::Element;
use atom::Place;
use audit::Audited;
use error::{AdminError, Answer, Wish};
use path::{Page, Target, value};

/// Bytes of one description: the labels of a queue hold no more.
const BODY_BYTES_MAX: usize = 256 << 10;
/// A body that has not come by then does not come.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// Descriptions that are read at once.
const BODIES_MAX: usize = 64;

/// The administration of a namespace; cheap to clone.
#[derive(Clone)]
pub struct Admin(Arc<Shared>);

struct Shared {
    front: Arc<Front>,
    started_at: Timestamp,
    /// Whoever changes an entity reads it first: one at a time.
    changing: tokio::sync::Mutex<()>,
    bodies: Semaphore,
}

impl Admin {
    /// The administration of what this front end serves.
    pub fn new(front: Arc<Front>) -> Admin {
        let started_at = front.engine.now();
        let (changing, bodies) = (tokio::sync::Mutex::new(()), Semaphore::new(BODIES_MAX));
        Admin(Arc::new(Shared { front, started_at, changing, bodies }))
    }

    /// Serves it, whatever the path, to those that `web` lets in.
    pub fn router(&self, web: WebGuard, tls: bool) -> Router {
        let door = Door { shared: self.0.clone(), web: web.into(), tls };
        Router::new().fallback(serve).with_state(door)
    }
}

/// One way in.
#[derive(Clone)]
struct Door {
    shared: Arc<Shared>,
    web: Arc<WebGuard>,
    tls: bool,
}

async fn serve(State(door): State<Door>, request: Request) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let answer = match served(&door, request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(%method, path, ?error, "refused");
            error.into_response()
        }
    };
    tracing::debug!(%method, path, status = answer.status().as_u16(), "administration");
    answer
}

async fn served(door: &Door, request: Request) -> Answer<Response> {
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    auth::check_page(headers, &door.web)?;
    let query = parts.uri.query().unwrap_or_default();
    let place = place(headers, query, door.tls);
    let shared = &door.shared;
    let path = path::decode(parts.uri.path())?;
    let address = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    let peer = address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let who = auth::caller(&shared.front, headers, "authorization", &path);
    let who = who.inspect_err(|error| audit::refused_login(&shared.front, headers, peer, error))?;
    shared.front.access.audit().authenticated(&who, peer, AuditProtocol::ServiceBusAdmin);
    if let Some(mark) = parts.extensions.get::<PeerMark>() {
        mark.set_known();
    }
    let resource = Target::of(&path);
    let call = Call {
        admin: shared,
        who,
        headers,
        place,
        page: Page::parse(query)?,
        update: headers.contains_key(header::IF_MATCH),
        audited: Mutex::default(),
    };
    *call.audited() = Audited::begin(&call, peer, &parts.method, &resource);
    let answer = carried_out(&call, &parts.method, resource, body).await;
    let audited = call.audited().take();
    if let Some(audited) = audited {
        audited.end(&call, &answer);
    }
    answer
}

async fn carried_out(
    call: &Call<'_>,
    method: &Method,
    resource: Target,
    body: Body,
) -> Answer<Response> {
    match *method {
        Method::GET => call.get(resource).await,
        Method::PUT => {
            // Only those who may come in hold memory, and only so many at once.
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

/// What the caller reached us by, for links.
fn place(headers: &HeaderMap, query: &str, tls: bool) -> Place {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // A proxy in front of us may have ended TLS. The caller can only mislead itself with it.
    let scheme = match text("x-forwarded-proto") {
        Some("https") => "https",
        Some("http") => "http",
        _ if tls => "https",
        _ => "http",
    };
    let host = text("host").unwrap_or("localhost").to_owned();
    let version = value(query, "api-version").unwrap_or_else(|| "2021-05".to_owned());
    Place { base: format!("{scheme}://{host}"), host, version }
}

/// The description in an entry.
async fn read(body: Body) -> Answer<Element> {
    let bytes = tokio::time::timeout(BODY_TIME_MAX, to_bytes(body, BODY_BYTES_MAX)).await;
    let bytes = bytes.map_err(|_| AdminError::bad("The body of the request does not come."))?;
    let bytes = bytes.map_err(|_| AdminError::too_large(BODY_BYTES_MAX))?;
    let described = Element::description(&bytes);
    described.map_err(|why| AdminError::bad(format!("The body is no Atom entry: {why}.")))
}

/// A request whose caller is known.
struct Call<'a> {
    admin: &'a Shared,
    who: Principal,
    headers: &'a HeaderMap,
    place: Place,
    page: Page,
    update: bool,
    /// For the audit log.
    audited: Mutex<Option<Audited>>,
}

/// A queue or a topic that is there.
enum Found {
    Queue(Box<QueueFacts>),
    Topic(Box<TopicFacts>),
}

impl Call<'_> {
    fn audited(&self) -> MutexGuard<'_, Option<Audited>> {
        self.audited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request is about the entity of this spelling, for the audit log.
    fn found(&self, name: &str) {
        if let Some(audited) = &mut *self.audited() {
            audited.found(name);
        }
    }

    async fn get(&self, resource: Target) -> Answer<Response> {
        let entry = match resource {
            Target::Namespace => namespace::get(self),
            Target::Queues => return queue::list(self).await,
            Target::Topics => return topic::list(self).await,
            Target::Subscriptions { topic } => return subscription::list(self, &topic).await,
            Target::Rules { topic, subscription } => {
                return rule::list(self, &topic, &subscription).await;
            }
            Target::Entity(name) => match self.find(Wish::Read, &name).await? {
                // As by the service.
                None => return Ok(atom::nothing(&self.place, self.now())),
                Some(Found::Queue(facts)) => queue::entry(self, &facts),
                Some(Found::Topic(facts)) => topic::entry(self, &facts).await?,
            },
            Target::Subscription { topic, name } => subscription::get(self, &topic, &name).await?,
            Target::Rule { topic, subscription, name } => {
                rule::get(self, &topic, &subscription, &name).await?
            }
        };
        Ok(entry.answer(&self.place, StatusCode::OK))
    }

    async fn put(&self, resource: Target, element: &Element) -> Answer<Response> {
        let _alone = self.admin.changing.lock().await;
        let entry = match (resource, element.name.as_str()) {
            (Target::Entity(name), "QueueDescription") => queue::put(self, &name, element).await?,
            (Target::Entity(name), "TopicDescription") => topic::put(self, &name, element).await?,
            (Target::Subscription { topic, name }, "SubscriptionDescription") => {
                subscription::put(self, &topic, &name, element).await?
            }
            (Target::Rule { topic, subscription, name }, "RuleDescription") => {
                rule::put(self, &topic, &subscription, &name, element).await?
            }
            (_, other) => {
                let text = format!("A `{other}` has no meaning here.");
                return Err(AdminError::bad(text));
            }
        };
        let status = if self.update { StatusCode::OK } else { StatusCode::CREATED };
        Ok(entry.answer(&self.place, status))
    }

    async fn delete(&self, resource: Target) -> Answer<()> {
        let _alone = self.admin.changing.lock().await;
        let engine = &self.admin.front.engine;
        match resource {
            Target::Entity(name) => match self.find(Wish::Delete, &name).await? {
                None => return Err(AdminError::not_found(name)),
                Some(Found::Queue(facts)) => engine.delete(facts.name).await?,
                Some(Found::Topic(facts)) => engine.delete_topic(facts.name).await?,
            },
            Target::Subscription { topic, name } => {
                let wish = Wish::Below("DeleteSubscription");
                let facts = subscription::find(self, wish, &topic, &name).await?;
                let facts = facts.ok_or_else(|| AdminError::not_found(name))?;
                engine.delete(facts.name).await?;
            }
            Target::Rule { topic, subscription, name } => {
                rule::delete(self, &topic, &subscription, name).await?;
            }
            Target::Namespace
            | Target::Queues
            | Target::Topics
            | Target::Subscriptions { .. }
            | Target::Rules { .. } => return Err(AdminError::method("DELETE")),
        }
        Ok(())
    }

    fn now(&self) -> Timestamp {
        self.admin.front.engine.now()
    }

    /// Whether the caller may manage this.
    fn check(&self, wish: Wish, on: Resource<'_>) -> Answer<()> {
        let checked = self.admin.front.access.check(&self.who, Action::Manage, on);
        checked.map_err(|denied| AdminError::denied(wish, &denied))
    }

    /// Those that the caller may manage. A refusal would tell that there are others.
    fn mine<'a, T>(&self, all: &'a [T], on: impl Fn(&T) -> Resource<'_>) -> Vec<&'a T> {
        all.iter().filter(|one| self.check(Wish::Read, on(one)).is_ok()).collect()
    }

    /// The queue or topic that messages are to go on to, if the caller, or the signer of that header, may send there.
    async fn target(&self, header: &str, path: &Path) -> Answer<Option<Entity>> {
        let front = &self.admin.front;
        let who = match self.headers.contains_key(header) {
            true => auth::caller(front, self.headers, header, &path.name)?,
            false => self.who.clone(),
        };
        let may = |on: Resource<'_>| front.access.check(&who, Action::Send, on);
        match resolve(&front.engine, path, may).await? {
            Resolved::Found(entity) => Ok(Some(entity)),
            Resolved::Missing => Ok(None),
            Resolved::Denied(denied) => Err(AdminError::denied(Wish::Write, &denied)),
        }
    }

    /// The queue of that name, else the topic, if the caller may manage it; in another case if there is only one. None
    /// if there is none that the caller may manage, and it may manage that name.
    async fn find(&self, wish: Wish, name: &str) -> Answer<Option<Found>> {
        let access = &self.admin.front.access;
        let may = |on: Resource<'_>| access.check(&self.who, Action::Manage, on);
        let found = self.find_if(wish, name, may).await?;
        match &found {
            Some(Found::Queue(facts)) => self.found(facts.name.as_str()),
            Some(Found::Topic(facts)) => self.found(facts.name.as_str()),
            None => {}
        }
        Ok(found)
    }

    /// The same by another permission.
    async fn find_if(
        &self,
        wish: Wish,
        name: &str,
        may: impl Fn(Resource<'_>) -> Result<(), Denied>,
    ) -> Answer<Option<Found>> {
        let front = &self.admin.front;
        let path = Path { name: name.to_owned(), dead_letters: false, transfer: false };
        Ok(match resolve(&front.engine, &path, may).await? {
            Resolved::Found(Entity::Queue(facts)) => Some(Found::Queue(facts)),
            Resolved::Found(Entity::Topic(name)) => match front.engine.topic(name).await {
                Ok(facts) => Some(Found::Topic(Box::new(facts))),
                Err(error) => return none_if_missing(error),
            },
            Resolved::Found(Entity::Transfer(_)) | Resolved::Missing => None,
            Resolved::Denied(denied) => return Err(AdminError::denied(wish, &denied)),
        })
    }

    /// Refuses a name that is taken by a queue or topic, in any case: clients could not tell them apart.
    async fn check_free(&self, name: &str) -> Answer<()> {
        match self.admin.front.engine.resolve(QueueName::new(name)?).await? {
            Resolution::Missing => Ok(()),
            Resolution::Found(_) | Resolution::Ambiguous => Err(AdminError::exists(name)),
        }
    }
}

/// What is not there, and what cannot be there, is nothing.
fn none_if_missing<T>(error: EngineError) -> Answer<Option<T>> {
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
