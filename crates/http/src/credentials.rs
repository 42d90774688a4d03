//! Credentials of requests. The server verifies them; `Access` (model) says what a caller may do.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use malote_model::Principal;

/// The future of [`Authenticate::authenticate`].
pub type Authenticated<'a> =
    Pin<Box<dyn Future<Output = Result<Principal, Unauthenticated>> + Send + 'a>>;

/// Finds the caller of a request by its headers. The server implements it with its credential store.
///
/// A request without a credential has the caller [`Principal::anonymous`], which is not an error: `Access` decides what
/// it may do. [`Credential::of`] reads Basic and Bearer.
pub trait Authenticate: Send + Sync {
    /// Verifies the credential in the headers of a request from this address.
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, peer: IpAddr) -> Authenticated<'a>;
}

/// The credential of a request is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unauthenticated {
    /// The reason, without the credential itself.
    pub why: String,
}

/// The credential of a request.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// No `Authorization` header.
    None,
    /// User name and password.
    Basic {
        /// The user name of the login.
        user: String,
        /// The password of the login.
        password: String,
    },
    /// An API key.
    Bearer(String),
}

impl Credential {
    /// Reads the credential from the header `Authorization`.
    pub fn of(headers: &HeaderMap) -> Result<Self, Unauthenticated> {
        let wrong = |why: &str| Unauthenticated { why: why.into() };
        let mut all = headers.get_all(header::AUTHORIZATION).iter();
        let Some(value) = all.next() else { return Ok(Self::None) };
        if all.next().is_some() {
            return Err(wrong("the request has two Authorization headers"));
        }
        let text = value.to_str().map_err(|_| wrong("Authorization is not ASCII text"))?;
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.eq_ignore_ascii_case("bearer") && !rest.trim().is_empty() {
            return Ok(Self::Bearer(rest.trim().into()));
        }
        if scheme.eq_ignore_ascii_case("basic") {
            let bytes = base64::engine::general_purpose::STANDARD.decode(rest.trim());
            let pair = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let pair = pair.as_deref().and_then(|pair| pair.split_once(':'));
            let (user, password) =
                pair.ok_or_else(|| wrong("Basic needs base64 of user:password"))?;
            return Ok(Self::Basic { user: user.into(), password: password.into() });
        }
        Err(wrong("Authorization must be `Basic …` or `Bearer …`"))
    }
}

/// All callers are anonymous: for a broker without credentials, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllAnonymous;

impl Authenticate for AllAnonymous {
    fn authenticate<'a>(&'a self, _: &'a HeaderMap, _: IpAddr) -> Authenticated<'a> {
        Box::pin(async { Ok(Principal::anonymous()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Result<Credential, Unauthenticated> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        Credential::of(&headers)
    }

    #[test]
    fn basic_and_bearer_are_read() {
        assert!(Credential::of(&HeaderMap::new()) == Ok(Credential::None));
        let (user, password) = ("ana".to_owned(), "a:b".to_owned());
        assert!(of("Basic YW5hOmE6Yg==") == Ok(Credential::Basic { user, password }));
        assert!(of("bearer k1") == Ok(Credential::Bearer("k1".into())));
        for bad in ["Basic ???", "Basic", "Digest x", "Bearer ", "Basic YW5h"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
