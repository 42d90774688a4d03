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
//!
//! `PUT` makes, with `If-Match` it changes; `GET` and `DELETE` are what they say. A queue or topic that is not there is
//! an empty feed to `GET`, as the service has it; everything else that is not there is 404.

mod atom;
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

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use malote_engine::{EngineError, QueueFacts, TopicFacts};
use malote_model::{Action, Principal, Refusal, Timestamp};
use tokio::sync::{Mutex, Semaphore};

use crate::Front;
use crate::ops::attach;
use crate::wire::address::Path;
use crate::wire::xml::Element;
use atom::Place;
use error::{AdminError, Answer, Wish};
use path::{Page, Resource, value};

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
    changing: Mutex<()>,
    bodies: Semaphore,
}

impl Admin {
    /// The administration of what this front end serves.
    pub fn new(front: Arc<Front>) -> Admin {
        let started_at = front.engine.now();
        let (changing, bodies) = (Mutex::new(()), Semaphore::new(BODIES_MAX));
        Admin(Arc::new(Shared { front, started_at, changing, bodies }))
    }

    /// Serves it, whatever the path. `hosts` are the only names that it may be called by, if there are any.
    pub fn router(&self, hosts: Vec<String>, tls: bool) -> Router {
        let door = Door { shared: self.0.clone(), hosts: hosts.into(), tls };
        Router::new().fallback(serve).with_state(door)
    }
}

/// One way in.
#[derive(Clone)]
struct Door {
    shared: Arc<Shared>,
    hosts: Arc<[String]>,
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
    auth::check_origin(headers, &door.hosts)?;
    let resource = Resource::parse(parts.uri.path())?;
    let query = parts.uri.query().unwrap_or_default();
    let place = place(headers, query, door.tls);
    let shared = &door.shared;
    let path = parts.uri.path();
    let who = auth::caller(&shared.front, headers, "authorization", path, &place.host)?;
    let call = Call {
        admin: shared,
        who,
        headers,
        place,
        page: Page::parse(query)?,
        update: headers.contains_key(header::IF_MATCH),
    };
    match parts.method {
        Method::GET => call.get(resource).await,
        Method::PUT => {
            // Only those who may come in hold memory, and only so many at once.
            let _share = shared.bodies.try_acquire().map_err(|_| Refusal::Busy)?;
            let element = read(body).await?;
            call.put(resource, &element).await
        }
        Method::DELETE => {
            call.delete(resource).await?;
            Ok(StatusCode::OK.into_response())
        }
        other => Err(AdminError::method(other.as_str())),
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
}

/// A queue or a topic that is there.
enum Found {
    Queue(Box<QueueFacts>),
    Topic(Box<TopicFacts>),
}

impl Call<'_> {
    async fn get(&self, resource: Resource) -> Answer<Response> {
        let entry = match resource {
            Resource::Namespace => namespace::get(self),
            Resource::Queues => return queue::list(self).await,
            Resource::Topics => return topic::list(self).await,
            Resource::Subscriptions { topic } => return subscription::list(self, &topic).await,
            Resource::Rules { topic, subscription } => {
                return rule::list(self, &topic, &subscription).await;
            }
            Resource::Entity(name) => match self.find(&name).await? {
                // Whoever is known here is told, as by the service.
                None => return Ok(atom::nothing(&self.place, self.now())),
                Some(found) => {
                    self.check(Wish::Read, &name)?;
                    match found {
                        Found::Queue(facts) => queue::entry(self, &facts),
                        Found::Topic(facts) => topic::entry(self, &facts).await?,
                    }
                }
            },
            Resource::Subscription { topic, name } => {
                subscription::get(self, &topic, &name).await?
            }
            Resource::Rule { topic, subscription, name } => {
                rule::get(self, &topic, &subscription, &name).await?
            }
        };
        Ok(entry.answer(&self.place, StatusCode::OK))
    }

    async fn put(&self, resource: Resource, element: &Element) -> Answer<Response> {
        let _alone = self.admin.changing.lock().await;
        let entry = match (resource, element.name.as_str()) {
            (Resource::Entity(name), "QueueDescription") => {
                queue::put(self, &name, element).await?
            }
            (Resource::Entity(name), "TopicDescription") => {
                topic::put(self, &name, element).await?
            }
            (Resource::Subscription { topic, name }, "SubscriptionDescription") => {
                subscription::put(self, &topic, &name, element).await?
            }
            (Resource::Rule { topic, subscription, name }, "RuleDescription") => {
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

    async fn delete(&self, resource: Resource) -> Answer<()> {
        let _alone = self.admin.changing.lock().await;
        let engine = &self.admin.front.engine;
        match resource {
            Resource::Entity(name) => {
                self.check(Wish::Delete, &name)?;
                match self.find(&name).await? {
                    None => return Err(AdminError::not_found(name)),
                    Some(Found::Queue(facts)) => engine.delete(facts.name).await?,
                    Some(Found::Topic(facts)) => engine.delete_topic(facts.name).await?,
                }
            }
            Resource::Subscription { topic, name } => {
                let wish = Wish::Below("DeleteSubscription");
                let facts = subscription::find(self, wish, &topic, &name).await?;
                let facts = facts.ok_or_else(|| AdminError::not_found(name))?;
                engine.delete(facts.name).await?;
            }
            Resource::Rule { topic, subscription, name } => {
                rule::delete(self, &topic, &subscription, name).await?;
            }
            Resource::Namespace
            | Resource::Queues
            | Resource::Topics
            | Resource::Subscriptions { .. }
            | Resource::Rules { .. } => return Err(AdminError::method("DELETE")),
        }
        Ok(())
    }

    fn now(&self) -> Timestamp {
        self.admin.front.engine.now()
    }

    /// Whether the caller may manage this.
    fn check(&self, wish: Wish, name: &str) -> Answer<()> {
        let checked = self.admin.front.access.check(&self.who, Action::Manage, name);
        checked.map_err(|denied| AdminError::denied(wish, &denied))
    }

    /// Those that the caller may manage. It is refused if there are some and it may manage none.
    fn mine<'a, T>(&self, all: &'a [T], name: impl Fn(&T) -> &str) -> Answer<Vec<&'a T>> {
        let may = |one: &&T| self.check(Wish::Read, name(one)).is_ok();
        let mine: Vec<&T> = all.iter().filter(may).collect();
        if let (true, Some(first)) = (mine.is_empty(), all.first()) {
            self.check(Wish::Read, name(first))?;
        }
        Ok(mine)
    }

    /// Whether the caller, or whoever has signed that header, may send there.
    fn check_rights(&self, header: &str, name: &str) -> Answer<()> {
        let front = &self.admin.front;
        let who = match self.headers.contains_key(header) {
            true => auth::caller(front, self.headers, header, name, &self.place.host)?,
            false => self.who.clone(),
        };
        let checked = front.access.check(&who, Action::Send, name);
        checked.map_err(|denied| AdminError::denied(Wish::Write, &denied))
    }

    /// The queue of that name, else the topic; in another case if there is only one.
    async fn find(&self, name: &str) -> Answer<Option<Found>> {
        let engine = &self.admin.front.engine;
        let path = Path { name: name.to_owned(), dead_letters: false, transfer: false };
        let found = match attach::find(engine, &path).await {
            Ok(attach::Place::Queue(facts)) => Found::Queue(facts),
            Ok(attach::Place::Transfer(_)) => return Ok(None),
            Ok(attach::Place::Topic(name)) => match engine.topic(name).await {
                Ok(facts) => Found::Topic(Box::new(facts)),
                Err(error) => return none_if_missing(error),
            },
            Err(error) => return none_if_missing(error),
        };
        Ok(Some(found))
    }

    /// Refuses a name that is taken by a queue or topic, in any case: clients could not tell them apart.
    async fn check_free(&self, name: &str) -> Answer<()> {
        let engine = &self.admin.front.engine;
        let alike = |other: &str| other.eq_ignore_ascii_case(name);
        let taken = engine.list().await?.iter().any(|facts| alike(facts.name.as_str()))
            || engine.topics().await?.iter().any(|facts| alike(facts.name.as_str()));
        if taken { Err(AdminError::exists(name)) } else { Ok(()) }
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
