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
use crate::wire::address::{EntityPath, Node, path_of};
use crate::wire::sas::{SasToken, TokenScope};
use crate::wire::value::string;

/// Result of a `put-token` request.
pub(crate) struct PutTokenResult {
    correlation_id: Option<Value>,
    verified: Result<(), TokenError>,
    /// The entity of the token, if the client expects an error here when it does not exist.
    entity: Option<EntityPath>,
}

pub(crate) fn put_token(front: &Front, claims: &mut Claims, request: &Message) -> PutTokenResult {
    let correlation_id = request.properties().ok().and_then(|properties| properties.message_id);
    let verified = verify(front, claims, request);
    if let Err((401, why)) = &verified {
        record_refused_token(front, claims, request, why);
    }
    PutTokenResult { correlation_id, verified, entity: requested_entity(request) }
}

/// Records a refused token in the audit log: the reason, not the token.
fn record_refused_token(front: &Front, claims: &Claims, request: &Message, why: &str) {
    let body = request.value().ok().flatten();
    let token = body.as_ref().and_then(Value::as_str);
    let entry = match token.and_then(SasToken::parse) {
        Some(token) => login(claims.peer).claimed(&token.key_name, CallerKind::Key),
        None => login(claims.peer).claimed(CallerKind::Anonymous.as_str(), CallerKind::Token),
    };
    let reason = why.split(':').next().unwrap_or_default().to_owned();
    front.access.audit().record(entry.outcome(AuditOutcome::Refused(reason.into())));
}

pub(super) fn login(peer: IpAddr) -> AuditEntry {
    AuditEntry::new(AuditProtocol::ServiceBus, AuditAction::Login).from(peer)
}

/// The entity that a token is for. A client that labels a SAS token as JWT treats any failure here as wrong
/// credentials, so it learns about a missing entity when it attaches.
fn requested_entity(request: &Message) -> Option<EntityPath> {
    let properties = request.application_properties().ok()?;
    let text = |name: &str| properties.get(name).and_then(Value::as_str);
    let body = request.value().ok()?;
    let signature = body.as_ref().and_then(Value::as_str).and_then(SasToken::parse).is_some();
    if text("operation") != Some("put-token") || (signature && text("type") == Some("jwt")) {
        return None;
    }
    match Node::parse(text("name")?) {
        Node::Entity(path) | Node::Management(path) if !path.name.is_empty() => Some(path),
        _ => None,
    }
}

/// Encodes the reply to a `put-token` request.
pub(crate) async fn answer(
    front: &Front,
    claims: &Claims,
    host: &str,
    put: PutTokenResult,
) -> Bytes {
    let PutTokenResult { correlation_id, verified, entity } = put;
    let (status, text) = match (verified, entity) {
        (Err((status, text)), _) => (status, text.into_owned()),
        (Ok(()), Some(path)) if is_entity_missing(front, claims, &path).await => {
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

/// Whether the entity is missing. False for callers without any permission on it, whether it exists or not.
async fn is_entity_missing(front: &Front, claims: &Claims, path: &EntityPath) -> bool {
    let may = |on: Resource<'_>| claims.may_any(front, &Action::ALL, path, on);
    matches!(resolve(&front.engine, path, may).await, Ok(Resolved::Missing))
}

/// The token's resource is neither an address nor an entity.
const AMBIGUOUS_AUDIENCE: &str = "InvalidAudience: The resource of the token is ambiguous. Sign the token for `sb://host/entity`.";

/// Status code and text.
type TokenError = (i32, Cow<'static, str>);

fn token_error(status: i32, text: &'static str) -> TokenError {
    (status, Cow::Borrowed(text))
}

fn verify(front: &Front, claims: &mut Claims, request: &Message) -> Result<(), TokenError> {
    let malformed = || token_error(400, "malformed request");
    let properties = request.application_properties().map_err(|_| malformed())?;
    let text = |name: &str| properties.get(name).and_then(Value::as_str);
    match text("operation") {
        Some("put-token") => {}
        // The permissions of a deleted token end with the connection.
        Some("delete-token") => return Ok(()),
        _ => return Err(token_error(400, "unsupported operation; use put-token")),
    }
    if front.keys.is_open() {
        return Ok(());
    }
    let body = request.value().map_err(|_| malformed())?;
    let token = body.as_ref().and_then(Value::as_str).ok_or_else(malformed)?;
    let now = front.engine.now();
    let claim = match SasToken::parse(token) {
        Some(token) => {
            let key = front.keys.key(&token.key_name);
            let key = key.filter(|key| token.is_signed_with(&key.secret));
            let wrong =
                || token_error(401, "InvalidSignature: The token has an invalid signature.");
            let key = key.ok_or_else(wrong)?;
            let expires = token.expires_ms().map_or(Timestamp(0), Timestamp);
            if expires <= now {
                let text = "ExpiredToken: The token is expired. Expiration time:";
                return Err((401, format!("{text} '{}', in ms since 1970.", expires.0).into()));
            }
            let scope = token.scope(|name| front.keys.is_own_name(name));
            let scope = scope.ok_or_else(|| token_error(401, AMBIGUOUS_AUDIENCE))?.of_entity();
            Claim { scope, who: key.principal, expires }
        }
        // A bearer token of Malote, for clients that accept any credential.
        None => {
            let who = front.keys.verify_token(token);
            let who = who.ok_or_else(|| token_error(401, "InvalidToken: Unknown token."))?;
            let audience = path_of(text("name").unwrap_or_default());
            Claim { scope: TokenScope::of(audience), who, expires: Timestamp(u64::MAX) }
        }
    };
    let is_new = !claims.tokens.iter().any(|other| other.who == claim.who);
    let tokens = Arc::make_mut(&mut claims.tokens);
    tokens.retain(|other| other.scope != claim.scope && other.expires > now);
    if tokens.len() >= limits::CLAIMS_MAX {
        return Err(token_error(429, "too many tokens on this connection"));
    }
    // Clients renew their tokens and put one per entity. Only the first counts as a login.
    if is_new {
        front.access.audit().signed_in(&claim.who, claims.peer, AuditProtocol::ServiceBus);
    }
    tokens.push(claim);
    Ok(())
}
