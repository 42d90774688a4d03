//! Who calls: a shared access signature or one of our own bearer tokens in a header, and the page that a browser is on.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName, header};
use malote_model::{Principal, Timestamp};

use super::error::{AdminError, Answer};
use crate::Front;
use crate::wire::sas::Token;

/// Who this header speaks for, when it is about this path.
pub(super) fn caller(
    front: &Front,
    headers: &HeaderMap,
    name: &str,
    path: &str,
    host: &str,
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
    let resource = token.path(host).unwrap_or_default();
    match covers(&resource, path) {
        true => Ok(key.principal),
        false => Err(AdminError::unauthorised("InvalidAudience: the token is for another entity.")),
    }
}

/// Whether a token for this resource is good for that path: it is the path, or the way to it.
fn covers(resource: &str, path: &str) -> bool {
    let resource = resource.split('?').next().unwrap_or_default().to_ascii_lowercase();
    let path = path.trim_matches('/').to_ascii_lowercase();
    let resource = resource.trim_matches('/');
    let rest = path.strip_prefix(resource);
    resource.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Refuses pages of other origins and, where our names are known, names that are not ours: a page may have had its
/// name made to point here.
pub(super) fn check_origin(headers: &HeaderMap, hosts: &[String]) -> Answer<()> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).unwrap_or_default();
    if let Some(origin) = text(header::ORIGIN)
        && origin.split_once("://").map_or(origin, |(_, authority)| authority) != host
    {
        return Err(AdminError::forbidden(format!("A page of {origin} may not call this broker.")));
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let address = host.parse::<SocketAddr>().is_ok()
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || name.parse::<IpAddr>().is_ok();
    match hosts.is_empty() || address || hosts.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        true => Ok(()),
        false => Err(AdminError::forbidden(format!("`{host}` is not a name of this broker."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_what_is_below_its_resource() {
        for (resource, path, good) in [
            ("", "/orders", true),
            ("orders", "/orders", true),
            ("orders?api-version=2021-05", "/Orders", true),
            ("Orders", "/orders/subscriptions/a", true),
            ("order", "/orders", false),
            ("orders/x", "/orders", false),
        ] {
            assert_eq!(covers(resource, path), good, "{resource} {path}");
        }
    }

    #[test]
    fn pages_of_elsewhere_are_refused() {
        let check = |host: &str, origin: Option<&str>, hosts: &[String]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            origin.map(|origin| headers.insert(header::ORIGIN, origin.parse().unwrap()));
            check_origin(&headers, hosts).is_ok()
        };
        let own = ["localhost".to_owned()];
        assert!(check("localhost:5300", None, &own) && check("127.0.0.1:5300", None, &own));
        assert!(check("[::1]:5300", None, &own) && check("anything:5300", None, &[]));
        assert!(check("localhost:5300", Some("http://localhost:5300"), &own));
        assert!(!check("evil.example:5300", None, &own));
        assert!(!check("localhost:5300", Some("http://evil.example"), &[]));
    }
}
