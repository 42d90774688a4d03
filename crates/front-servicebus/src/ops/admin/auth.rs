//! Authentication: a shared access signature or a bearer token in a header.

use axum::http::HeaderMap;
use malote_model::{Principal, Timestamp};

use super::error::{AdminError, AdminResult};
use crate::Front;
use crate::wire::sas::SasToken;

/// The principal that a header authenticates for a path. The path is decoded.
pub(super) fn caller(
    front: &Front,
    headers: &HeaderMap,
    name: &str,
    path: &str,
) -> AdminResult<Principal> {
    if front.keys.is_open() {
        return Ok(Principal::anonymous());
    }
    let text = headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(text) = text else {
        return Err(AdminError::unauthorised("MissingToken: the authorization header is missing."));
    };
    // Some clients omit `Bearer`.
    let bare = Some(text).filter(|text| !text.is_empty() && !text.contains(' '));
    if let Some(token) = text.strip_prefix("Bearer ").or(bare) {
        let who = front.keys.verify_token(token.trim());
        return who.ok_or_else(|| AdminError::unauthorised("InvalidToken: unknown token."));
    }
    let Some(token) = SasToken::parse(text) else {
        return Err(AdminError::unauthorised(
            "MalformedToken: the authorization header is malformed.",
        ));
    };
    let key = front.keys.key(&token.key_name).filter(|key| token.is_signed_with(&key.secret));
    let key = key.ok_or_else(|| {
        AdminError::unauthorised("InvalidSignature: the token has an invalid signature.")
    })?;
    if token.expires_ms().is_none_or(|ms| Timestamp(ms) <= front.engine.now()) {
        return Err(AdminError::unauthorised("ExpiredToken: the token is expired."));
    }
    let scope = token.scope(|name| front.keys.is_own_name(name));
    match scope.is_some_and(|scope| scope.covers(path)) {
        true => Ok(key.principal),
        false => Err(AdminError::unauthorised("InvalidAudience: the token is for another entity.")),
    }
}
