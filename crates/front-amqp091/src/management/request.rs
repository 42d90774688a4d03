//! A request: who sends it, what it asks, and its body.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, Method, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use malote_http::{Credential, Share, check_origin};
use malote_model::{
    Action, AuditAction, AuditEntry, AuditProtocol, CallerKind, PeerMark, Principal, Resource,
};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::state::ManagementState;
use crate::users::{ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER};
use crate::{Front, limits};

/// The user behind a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub principal: Principal,
    /// The name that the request gave.
    pub user: String,
    /// RabbitMQ's tags of the user.
    pub tags: Vec<String>,
    pub peer: IpAddr,
}

impl Caller {
    fn has(&self, tag: &str) -> bool {
        self.tags.iter().any(|have| have == tag)
    }

    pub fn is_administrator(&self) -> bool {
        self.has(ADMINISTRATOR)
    }

    /// Whether the caller may see facts about the node and about other users' connections.
    pub fn is_monitoring(&self) -> bool {
        self.is_administrator() || self.has(MONITORING)
    }

    /// Whether the caller may change policies and parameters.
    pub fn is_policymaker(&self) -> bool {
        self.is_administrator() || self.has(POLICYMAKER)
    }

    /// Refuses a caller who is not an administrator.
    pub fn require_administrator(&self) -> Result<(), ApiError> {
        match self.is_administrator() {
            true => Ok(()),
            false => Err(ApiError::not_authorised("Not administrator user")),
        }
    }

    pub fn require_monitoring(&self) -> Result<(), ApiError> {
        match self.is_monitoring() {
            true => Ok(()),
            false => Err(ApiError::not_authorised("Not monitor user")),
        }
    }

    /// Whether the caller may see what is in a virtual host.
    pub fn sees_vhost(&self, front: &Front, vhost: &str) -> bool {
        self.is_monitoring() || front.users.may_enter(&self.principal, vhost)
    }

    /// Refuses a caller who may not see a virtual host, and a virtual host that does not exist.
    pub async fn require_vhost(&self, front: &Front, vhost: &str) -> Result<(), ApiError> {
        if !front.has_vhost(vhost).await? {
            return Err(ApiError::not_found());
        }
        match self.is_administrator() || front.users.may_enter(&self.principal, vhost) {
            true => Ok(()),
            false => Err(ApiError::not_authorised("User not authorised to access virtual host")),
        }
    }

    pub fn audit(&self, action: AuditAction, object: &str) -> AuditEntry {
        let entry = AuditEntry::new(AuditProtocol::RabbitmqManagement, action);
        entry.by(&self.principal).from(self.peer).on(object)
    }

    /// The caller of changes of users. The store fills in what each change did.
    pub fn audit_users(&self) -> AuditEntry {
        self.audit(AuditAction::Grant, "")
    }
}

/// A request that was read and authenticated.
pub(crate) struct Call {
    pub caller: Caller,
    pub method: Method,
    /// The segments of the path after `/api`, decoded.
    pub path: Vec<String>,
    pub query: Vec<(String, String)>,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The body's share of the memory for bodies.
    _share: Option<Share>,
}

impl Call {
    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }

    /// Whether a parameter of the query is `true`.
    pub fn flag(&self, name: &str) -> bool {
        self.parameter(name) == Some("true")
    }

    /// The object in the body. An empty body is an empty object.
    pub fn object(&self) -> Result<Map<String, Value>, ApiError> {
        if self.body.is_empty() {
            return Ok(Map::new());
        }
        match serde_json::from_slice(&self.body) {
            Ok(Value::Object(object)) => Ok(object),
            _ => Err(ApiError::bad_request("not_json")),
        }
    }
}

/// Reads a request. The origin and the credential are checked before the body is read.
pub(super) async fn read_call(state: &ManagementState, request: Request) -> Result<Call, ApiError> {
    let (parts, body) = request.into_parts();
    check_origin(&state.web, &parts.headers)?;
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let path = path_segments(parts.uri.path())?;
    let caller = match parts.extensions.get::<Principal>() {
        // The port has authenticated the caller.
        Some(principal) => authorize(state, principal.clone(), principal.name(), peer)?,
        None => authenticate(state, &parts.headers, peer).await?,
    };
    if let Some(mark) = parts.extensions.get::<PeerMark>() {
        mark.set_known();
    }
    let query = form_urlencoded::parse(parts.uri.query().unwrap_or("").as_bytes());
    let query = query.into_owned().take(limits::MANAGEMENT_PARAMETERS_MAX).collect();
    let (body, share) = read_body(state, peer, body).await?;
    let method = if parts.method == Method::HEAD { Method::GET } else { parts.method };
    Ok(Call { caller, method, path, query, headers: parts.headers, body, _share: share })
}

/// The decoded segments after `/api`. A slash at the end makes no difference.
fn path_segments(path: &str) -> Result<Vec<String>, ApiError> {
    let rest = path.strip_prefix("/api/").ok_or_else(ApiError::not_found)?;
    let decode = |segment: &str| {
        let decoded = percent_decode_str(segment).decode_utf8();
        decoded.map(String::from).map_err(|_| ApiError::bad_request("the path is not UTF-8"))
    };
    let mut segments = rest.split('/').map(decode).collect::<Result<Vec<_>, _>>()?;
    segments.pop_if(|last| last.is_empty());
    Ok(segments)
}

async fn authenticate(
    state: &ManagementState,
    headers: &HeaderMap,
    peer: IpAddr,
) -> Result<Caller, ApiError> {
    let audit = state.front.access.audit();
    let entry =
        || AuditEntry::new(AuditProtocol::RabbitmqManagement, AuditAction::Login).from(peer);
    let (user, password) = match Credential::of(headers) {
        Ok(Credential::Basic { user, password }) => (user, password),
        // A client may ask without a credential first, to learn which scheme it needs.
        Ok(Credential::None) => return Err(ApiError::no_credential()),
        Ok(Credential::Bearer(_)) | Err(_) => {
            audit.record(entry().refused("unknown_mechanism"));
            return Err(ApiError::login_failed());
        }
    };
    let Some(principal) = state.front.verify(&user, &password, peer).await else {
        audit.record(entry().claimed(&user, CallerKind::User).refused("wrong_credentials"));
        return Err(ApiError::login_failed());
    };
    audit.authenticated(&principal, peer, AuditProtocol::RabbitmqManagement);
    authorize(state, principal, &user, peer)
}

/// The caller with its tags. Without one of those that the API knows, it is refused.
fn authorize(
    state: &ManagementState,
    principal: Principal,
    user: &str,
    peer: IpAddr,
) -> Result<Caller, ApiError> {
    let mut tags = state.front.users.tags(&principal);
    // Who may manage everything is an administrator.
    let all = state.front.access.check(&principal, Action::Manage, Resource::EVERYTHING);
    if all.is_ok() && !tags.iter().any(|tag| tag == ADMINISTRATOR) {
        tags.push(ADMINISTRATOR.to_owned());
    }
    let caller = Caller { principal, user: user.to_owned(), tags, peer };
    match [ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT].iter().any(|tag| caller.has(tag)) {
        true => Ok(caller),
        false => Err(ApiError::not_authorised("Not management user")),
    }
}

async fn read_body(
    state: &ManagementState,
    peer: IpAddr,
    mut body: Body,
) -> Result<(Bytes, Option<Share>), ApiError> {
    let (mut bytes, mut share) = (BytesMut::new(), None::<Share>);
    loop {
        let frame = tokio::time::timeout(limits::MANAGEMENT_BODY_PAUSE_MAX, body.frame()).await;
        let Ok(frame) = frame else {
            return Err(ApiError::bad_request("the body of the request did not arrive in time"));
        };
        let Some(frame) = frame else { return Ok((bytes.freeze(), share)) };
        let frame =
            frame.map_err(|_| ApiError::bad_request("the body of the request broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limits::MANAGEMENT_BODY_BYTES_MAX {
            let most = limits::MANAGEMENT_BODY_BYTES_MAX;
            let reason = format!("the body of a request may have at most {most} bytes");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "bad_request", reason));
        }
        let has_room = match &mut share {
            Some(share) => share.grow(data.len()),
            None => {
                share = state.bodies.take(peer, data.len());
                share.is_some()
            }
        };
        if !has_room {
            return Err(ApiError::busy("the requests in progress are too large: try again"));
        }
        bytes.extend_from_slice(&data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_segment_by_segment() {
        let segments = |path| path_segments(path).unwrap();
        assert_eq!(segments("/api/queues/%2F/a%2Fb"), ["queues", "/", "a/b"]);
        assert_eq!(segments("/api/queues/%2F/"), ["queues", "/"]);
        // The default exchange has no name.
        assert_eq!(segments("/api/exchanges/%2F//bindings/source").len(), 5);
        assert!(path_segments("/other").is_err());
        assert!(path_segments("/api/queues/%ff").is_err());
    }
}
