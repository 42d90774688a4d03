//! `$cbs`: tokens that authenticate the caller.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use malote_model::{
    Action, AuditAction, AuditEntry, AuditOutcome, AuditProtocol, CallerKind, Resource, Timestamp,
};
use malote_wire_amqp::message::{Draft, Message, Properties};
use malote_wire_amqp::performative::condition;
use malote_wire_amqp::types::{Map, Value};

use super::claims::{Claim, Claims};
use super::resolve::{Resolved, not_found, resolve};
use crate::Front;
use crate::limits;
use crate::wire::address::{Node, Path, path_of};
use crate::wire::sas::{Scope, Token};
use crate::wire::value::string;

/// A token that was put, and what is to be answered.
pub(crate) struct Put {
    correlation_id: Option<Value>,
    believed: Result<(), Doubt>,
    /// The entity that it was put for, if the client wants to be told here that there is none.
    asked: Option<Path>,
}

/// `put-token`.
pub(crate) fn put_token(front: &Front, claims: &mut Claims, request: &Message) -> Put {
    let correlation_id = request.properties().ok().and_then(|properties| properties.message_id);
    let believed = believe(front, claims, request);
    if let Err((401, why)) = &believed {
        record_doubt(front, claims, request, why);
    }
    Put { correlation_id, believed, asked: asked(request) }
}

/// A token that was not believed, for the audit log: the service's word for why, and not the token.
fn record_doubt(front: &Front, claims: &Claims, request: &Message, why: &str) {
    let body = request.value().ok().flatten();
    let token = body.as_ref().and_then(Value::as_str);
    let entry = match token.and_then(Token::parse) {
        Some(token) => login(claims.peer).claimed(&token.key_name, CallerKind::Key),
        None => login(claims.peer).claimed(CallerKind::Anonymous.as_str(), CallerKind::Token),
    };
    let reason = why.split(':').next().unwrap_or_default().to_owned();
    front.access.audit().record(entry.outcome(AuditOutcome::Refused(reason.into())));
}

pub(super) fn login(peer: IpAddr) -> AuditEntry {
    AuditEntry::new(AuditProtocol::ServiceBus, AuditAction::Login).from(peer)
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
    let may = |on: Resource<'_>| claims.may_any(front, &Action::ALL, path, on);
    matches!(resolve(&front.engine, path, may).await, Ok(Resolved::Missing))
}

/// The answer to a token whose resource is neither an address nor an entity.
const UNCLEAR: &str =
    "InvalidAudience: The token does not say what it is for: sign for `sb://host/entity`.";

/// Why a token is not believed: a status and its text.
type Doubt = (i32, Cow<'static, str>);

fn doubt(status: i32, text: &'static str) -> Doubt {
    (status, Cow::Borrowed(text))
}

fn believe(front: &Front, claims: &mut Claims, request: &Message) -> Result<(), Doubt> {
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
            let scope = token.scope(|name| front.keys.is_own_name(name));
            let scope = scope.ok_or_else(|| doubt(401, UNCLEAR))?.of_entity();
            Claim { scope, who: key.principal, expires }
        }
        // One of our own bearer tokens, for clients that take any credential.
        None => {
            let who = front.keys.verify_token(token);
            let who = who.ok_or_else(|| doubt(401, "InvalidToken: The token is not known."))?;
            let audience = path_of(text("name").unwrap_or_default());
            Claim { scope: Scope::of(audience), who, expires: Timestamp(u64::MAX) }
        }
    };
    let is_new = !claims.tokens.iter().any(|other| other.who == claim.who);
    let tokens = Arc::make_mut(&mut claims.tokens);
    tokens.retain(|other| other.scope != claim.scope && other.expires > now);
    if tokens.len() >= limits::CLAIMS_MAX {
        return Err(doubt(429, "too many tokens were put on this connection"));
    }
    // A client renews its tokens, and puts one for each entity: it signs in with the first.
    if is_new {
        front.access.audit().signed_in(&claim.who, claims.peer, AuditProtocol::ServiceBus);
    }
    tokens.push(claim);
    Ok(())
}
