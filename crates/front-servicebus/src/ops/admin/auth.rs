//! Who calls: a shared access signature or one of our own bearer tokens in a header, and the page that a browser is on.

use axum::http::HeaderMap;
use malote_model::{Principal, Timestamp, WebGuard};

use super::error::{AdminError, Answer};
use crate::Front;
use crate::wire::sas::Token;

/// Who this header speaks for, when it is about this path: decoded, as the entity is called.
pub(super) fn caller(
    front: &Front,
    headers: &HeaderMap,
    name: &str,
    path: &str,
) -> Answer<Principal> {
    if front.keys.is_open() {
        return Ok(Principal::anonymous());
    }
    let text = headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(text) = text else {
        return Err(AdminError::unauthorised("MissingToken: the authorization header is missing."));
    };
    // Some clients leave out the word before it.
    let bare = Some(text).filter(|text| !text.is_empty() && !text.contains(' '));
    if let Some(token) = text.strip_prefix("Bearer ").or(bare) {
        let who = front.keys.verify_token(token.trim());
        return who
            .ok_or_else(|| AdminError::unauthorised("InvalidToken: the token is not known."));
    }
    let Some(token) = Token::parse(text) else {
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

/// Refuses pages of other origins, and names that are not the broker's.
pub(super) fn check_page(headers: &HeaderMap, web: &WebGuard) -> Answer<()> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("(not ASCII)"));
    web.check(text).map_err(|foreign| AdminError::forbidden(format!("Refused: {foreign}.")))
}
