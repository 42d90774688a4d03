//! Who calls: SASL, and tokens put at `$cbs`.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use malote_model::{Action, Principal, Timestamp};
use malote_wire_amqp::message::{Draft, Message, Properties};
use malote_wire_amqp::performative::{AmqpError, SaslInit, condition};
use malote_wire_amqp::types::{Map, Value};
use subtle::ConstantTimeEq;

use super::attach::{find, is_not_found, not_found};
use crate::Front;
use crate::limits;
use crate::refusal::of_denied;
use crate::wire::address::{Node, Path, path_of};
use crate::wire::sas::Token;
use crate::wire::value::string;

/// How a client says who it is before it opens.
pub(crate) enum Mechanism {
    /// It does not, yet.
    Anonymous,
    Plain {
        user: String,
        password: String,
    },
}

impl Mechanism {
    pub fn of(init: &SaslInit) -> Option<Mechanism> {
        match init.mechanism.as_str() {
            "ANONYMOUS" | "EXTERNAL" | "MSSBCBS" => Some(Mechanism::Anonymous),
            "PLAIN" => {
                let response = init.initial_response.as_ref()?;
                let mut parts = std::str::from_utf8(response).ok()?.split('\0');
                let (_, user, password) = (parts.next()?, parts.next()?, parts.next()?);
                let (user, password) = (user.to_owned(), password.to_owned());
                parts.next().is_none().then_some(Mechanism::Plain { user, password })
            }
            _ => None,
        }
    }
}

/// Who has this name and password: a shared access key, or a user.
pub(crate) async fn plain(front: &Front, user: &str, password: &str) -> Option<Principal> {
    if front.keys.is_open() {
        return Some(Principal::anonymous());
    }
    if let Some(key) = front.keys.key(user) {
        let good = bool::from(key.secret.as_bytes().ct_eq(password.as_bytes()));
        return good.then_some(key.principal);
    }
    front.keys.verify_password(user, password).await
}

/// What a connection has shown so far. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Claims {
    signed_in: Option<Principal>,
    tokens: Arc<Vec<Claim>>,
}

/// A token that was believed.
#[derive(Clone)]
struct Claim {
    /// The entity it is for, in small letters; empty for all of them.
    path: String,
    who: Principal,
    expires: Timestamp,
}

impl Claims {
    pub fn signed_in(&mut self, who: Option<Principal>) {
        self.signed_in = who;
    }

    /// Who calls, when it is about this entity: by the token that is closest to it.
    fn who(&self, path: &Path, now: Timestamp) -> Principal {
        let name = path.to_string().to_ascii_lowercase();
        let covers = |claim: &&Claim| {
            let rest = name.strip_prefix(&claim.path);
            let whole =
                |rest: &str| claim.path.is_empty() || rest.is_empty() || rest.starts_with('/');
            claim.expires > now && rest.is_some_and(whole)
        };
        let closest = self.tokens.iter().filter(covers).max_by_key(|claim| claim.path.len());
        let who = closest.map(|claim| claim.who.clone()).or_else(|| self.signed_in.clone());
        who.unwrap_or(Principal::anonymous())
    }

    /// When the first of the tokens runs out.
    pub fn first_end(&self) -> Option<Timestamp> {
        let ends = self.tokens.iter().map(|claim| claim.expires);
        ends.min().filter(|end| *end < Timestamp(u64::MAX))
    }

    /// Forgets tokens that have run out.
    pub fn forget_ended(&mut self, now: Timestamp) {
        Arc::make_mut(&mut self.tokens).retain(|claim| claim.expires > now);
    }

    /// Whether the caller may do this; without an action it only must be known.
    pub fn check(
        &self,
        front: &Front,
        action: Option<Action>,
        path: &Path,
    ) -> Result<(), AmqpError> {
        let Some(action) = action else { return Ok(()) };
        let who = self.who(path, front.engine.now());
        front.access.check(&who, action, &path.name).map_err(|denied| of_denied(&denied))
    }
}

/// A token that was put, and what is to be answered.
pub(crate) struct Put {
    correlation_id: Option<Value>,
    believed: Result<(), Doubt>,
    /// The entity that it was put for, if the client wants to be told here that there is none.
    asked: Option<Path>,
}

/// `put-token`.
pub(crate) fn put_token(front: &Front, claims: &mut Claims, host: &str, request: &Message) -> Put {
    let correlation_id = request.properties().ok().and_then(|properties| properties.message_id);
    let believed = believe(front, claims, host, request);
    Put { correlation_id, believed, asked: asked(request) }
}

/// Whom a token is for. A client that calls a signature a JWT takes any failure here for one of its credentials: it is
/// told of an unknown entity when it attaches.
fn asked(request: &Message) -> Option<Path> {
    let properties = request.application_properties().ok()?;
    let text = |name: &str| properties.get(name).and_then(Value::as_str);
    let body = request.value().ok()?;
    let signature = body.as_ref().and_then(Value::as_str).and_then(Token::parse).is_some();
    if text("operation") != Some("put-token") || (signature && text("type") == Some("jwt")) {
        return None;
    }
    match Node::parse(text("name")?) {
        Node::Entity(path) | Node::Management(path) if !path.name.is_empty() => Some(path),
        _ => None,
    }
}

/// The answer to a token is a status.
pub(crate) async fn answer(front: &Front, claims: &Claims, host: &str, put: Put) -> Bytes {
    let Put { correlation_id, believed, asked } = put;
    let (status, text) = match (believed, asked) {
        (Err((status, text)), _) => (status, text.into_owned()),
        (Ok(()), Some(path)) if is_missing(front, claims, &path).await => {
            (404, not_found(host, &path).description.unwrap_or_default().to_string())
        }
        (Ok(()), _) => (202_i32, "Accepted".to_owned()),
    };
    let mut properties = Map::default()
        .with_string("status-code", status)
        .with_string("status-description", string(&text));
    let failure = match status {
        404 => Some(condition::NOT_FOUND),
        400.. => Some(condition::UNAUTHORIZED_ACCESS),
        _ => None,
    };
    if let Some(condition) = failure {
        properties = properties.with_string("error-condition", condition);
    }
    Draft {
        properties: Some(Properties { correlation_id, ..Properties::default() }),
        application_properties: properties,
        ..Draft::value(Value::Null)
    }
    .to_bytes()
}

/// Whether there is no such entity; those who may do nothing there are not told.
async fn is_missing(front: &Front, claims: &Claims, path: &Path) -> bool {
    let may = |action| claims.check(front, Some(action), path).is_ok();
    [Action::Send, Action::Receive, Action::Manage].into_iter().any(may)
        && find(&front.engine, path).await.is_err_and(|error| is_not_found(&error))
}

/// Why a token is not believed: a status and its text.
type Doubt = (i32, Cow<'static, str>);

fn doubt(status: i32, text: &'static str) -> Doubt {
    (status, Cow::Borrowed(text))
}

fn believe(front: &Front, claims: &mut Claims, host: &str, request: &Message) -> Result<(), Doubt> {
    let malformed = || doubt(400, "the request is malformed");
    let properties = request.application_properties().map_err(|_| malformed())?;
    let text = |name: &str| properties.get(name).and_then(Value::as_str);
    match text("operation") {
        Some("put-token") => {}
        // A token that is taken back: what it allowed ends with the connection.
        Some("delete-token") => return Ok(()),
        _ => return Err(doubt(400, "only put-token is known here")),
    }
    if front.keys.is_open() {
        return Ok(());
    }
    let body = request.value().map_err(|_| malformed())?;
    let token = body.as_ref().and_then(Value::as_str).ok_or_else(malformed)?;
    let now = front.engine.now();
    let audience = path_of(text("name").unwrap_or_default()).to_ascii_lowercase();
    let claim = match Token::parse(token) {
        Some(token) => {
            let key = front.keys.key(&token.key_name);
            let key = key.filter(|key| token.is_signed_with(&key.secret));
            let wrong = || doubt(401, "InvalidSignature: The token has an invalid signature.");
            let key = key.ok_or_else(wrong)?;
            let expires = token.expires_ms().map_or(Timestamp(0), Timestamp);
            if expires <= now {
                let text = "ExpiredToken: The token is expired. Expiration time:";
                return Err((401, format!("{text} '{}', in ms since 1970.", expires.0).into()));
            }
            let path = token.path(host).ok_or_else(|| doubt(401, "the token names no resource"))?;
            let path = path.to_ascii_lowercase();
            // Clients sign for an entity's desk by itself, and ask there about the entity.
            let path = path.strip_suffix("/$management").map_or(path.clone(), str::to_owned);
            Claim { path, who: key.principal, expires }
        }
        // One of our own bearer tokens, for clients that take any credential.
        None => {
            let who = front.keys.verify_token(token);
            let who = who.ok_or_else(|| doubt(401, "InvalidToken: The token is not known."))?;
            Claim { path: audience, who, expires: Timestamp(u64::MAX) }
        }
    };
    let tokens = Arc::make_mut(&mut claims.tokens);
    tokens.retain(|other| other.path != claim.path && other.expires > now);
    if tokens.len() >= limits::CLAIMS_MAX {
        return Err(doubt(429, "too many tokens were put on this connection"));
    }
    tokens.push(claim);
    Ok(())
}
