//! AWS Signature Version 4, in a header or in the query string.
//!
//! Without configured credentials, nothing is checked: every SDK insists on signing, so local users invent keys.

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, Method, Uri, header};
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use malote_model::{Principal, Timestamp};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::refusal::{Code, SqsError};

/// Access keys. The server implements it on top of its credential store.
pub trait Keys: Send + Sync {
    /// Whether the server runs without credentials, so that any signature is accepted.
    fn open(&self) -> bool;
    /// The secret of an access key, and its principal.
    fn secret(&self, access_key: &str) -> Option<(Arc<str>, Principal)>;
}

/// Tolerated clock difference of a signer.
const SKEW_MS: u64 = 15 * 60 * 1000;
/// Longest validity of a presigned request: seven days.
const EXPIRES_S_MAX: u64 = 7 * 24 * 3600;
/// Size of the cache of derived keys. When it is full, it is cleared.
const CACHE_MAX: usize = 1024;
/// Headers that a signature may name.
const SIGNED_HEADERS_MAX: usize = 64;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The credential scope of a signature: key, date, region and service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CredentialScope {
    access_key: String,
    date: String,
    /// The caller's region; queue ARNs repeat it.
    pub region: String,
    /// `sqs`, `monitoring` …
    pub service: String,
}

impl CredentialScope {
    fn parse(credential: &str) -> Option<Self> {
        // An access key may contain slashes; the other parts may not.
        let mut parts = credential.rsplitn(5, '/');
        let (end, service, region) = (parts.next()?, parts.next()?, parts.next()?);
        let (date, access_key) = (parts.next()?, parts.next()?);
        let sound = end == "aws4_request" && date.len() == 8 && !access_key.is_empty();
        let plain = |text: &str| text.len() <= 64 && text.bytes().all(|b| b.is_ascii_graphic());
        (sound && plain(service) && plain(region) && access_key.len() <= 128).then(|| Self {
            access_key: access_key.into(),
            date: date.into(),
            region: region.into(),
            service: service.into(),
        })
    }
}

/// A signature that is not verified yet.
struct SignatureClaim {
    scope: CredentialScope,
    signed: Vec<String>,
    signature: String,
    date: String,
    /// Validity of a presigned request.
    expires_s: Option<u64>,
}

/// The parts of a request that a signature covers.
pub struct SignedRequest<'a> {
    pub method: &'a Method,
    pub uri: &'a Uri,
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
}

fn incomplete_signature(text: impl Into<String>) -> SqsError {
    SqsError::new(Code::IncompleteSignature, text)
}

fn query_pairs(uri: &Uri) -> Vec<(String, String)> {
    form_urlencoded::parse(uri.query().unwrap_or("").as_bytes()).into_owned().collect()
}

impl SignatureClaim {
    /// Parses the signature of a request; none if it has none.
    fn of(request: &SignedRequest<'_>) -> Result<Option<Self>, SqsError> {
        let mut authorizations = request.headers.get_all(header::AUTHORIZATION).iter();
        if let Some(value) = authorizations.next() {
            if authorizations.next().is_some() {
                return Err(incomplete_signature("the request has two Authorization headers"));
            }
            let text = value
                .to_str()
                .map_err(|_| incomplete_signature("Authorization is not ASCII text"))?;
            return Self::of_header(text, request.headers).map(Some);
        }
        let pairs = query_pairs(request.uri);
        let get = |name: &str| pairs.iter().find(|(have, _)| have == name).map(|(_, v)| v.as_str());
        if get("X-Amz-Algorithm").is_none() {
            return Ok(None);
        }
        let of_signature = |pair: &&(String, String)| pair.0.starts_with("X-Amz-");
        let mut names: Vec<&str> =
            pairs.iter().filter(of_signature).map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|two| two[0] == two[1]) {
            return Err(incomplete_signature(format!(
                "the query string contains {} more than once",
                twice[0]
            )));
        }
        let need = |name: &str| {
            get(name).ok_or_else(|| {
                incomplete_signature(format!("the query string must contain {name}"))
            })
        };
        if need("X-Amz-Algorithm")? != ALGORITHM {
            return Err(incomplete_signature(format!("the algorithm must be {ALGORITHM}")));
        }
        let expires = need("X-Amz-Expires")?;
        let expires_s = expires.parse().ok().filter(|s| (1..=EXPIRES_S_MAX).contains(s));
        let expires_s = expires_s
            .ok_or_else(|| incomplete_signature("X-Amz-Expires must be from 1 to 604800"))?;
        let scope = CredentialScope::parse(need("X-Amz-Credential")?);
        Ok(Some(Self {
            scope: scope.ok_or_else(|| incomplete_signature("X-Amz-Credential is malformed"))?,
            signed: signed_list(need("X-Amz-SignedHeaders")?)?,
            signature: need("X-Amz-Signature")?.to_owned(),
            date: need("X-Amz-Date")?.to_owned(),
            expires_s: Some(expires_s),
        }))
    }

    fn of_header(text: &str, headers: &HeaderMap) -> Result<Self, SqsError> {
        let rest = text
            .strip_prefix(ALGORITHM)
            .ok_or_else(|| incomplete_signature(format!("Authorization must be {ALGORITHM} …")))?;
        let (mut credential, mut signed, mut signature) = (None, None, None);
        for part in rest.split(',') {
            match part.trim().split_once('=') {
                Some(("Credential", value)) => credential = Some(value),
                Some(("SignedHeaders", value)) => signed = Some(value),
                Some(("Signature", value)) => signature = Some(value),
                _ => {}
            }
        }
        let lacks =
            |what: &str| incomplete_signature(format!("Authorization header requires '{what}'"));
        let scope = CredentialScope::parse(credential.ok_or_else(|| lacks("Credential"))?);
        let date = headers.get("x-amz-date").and_then(|value| value.to_str().ok());
        Ok(Self {
            scope: scope.ok_or_else(|| incomplete_signature("Credential is malformed"))?,
            signed: signed_list(signed.ok_or_else(|| lacks("SignedHeaders"))?)?,
            signature: signature.ok_or_else(|| lacks("Signature"))?.to_owned(),
            date: date
                .ok_or_else(|| incomplete_signature("the request must have an X-Amz-Date header"))?
                .to_owned(),
            expires_s: None,
        })
    }
}

/// The access key that a request claims to be signed with.
pub fn claimed_key(request: &SignedRequest<'_>) -> Option<String> {
    Some(SignatureClaim::of(request).ok()??.scope.access_key)
}

fn signed_list(text: &str) -> Result<Vec<String>, SqsError> {
    let all: Vec<String> = text.split(';').map(str::to_ascii_lowercase).collect();
    if all.len() > SIGNED_HEADERS_MAX || !all.iter().any(|name| name == "host") {
        return Err(incomplete_signature("SignedHeaders must contain host"));
    }
    Ok(all)
}

/// Where a request has its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureLocation {
    None,
    /// In `Authorization`. No web page can make a browser send that header to this server.
    Header,
    /// In the query string: a presigned URL, which a web page can make a browser follow.
    Query,
}

/// The result of a verification. Without configured credentials, nothing of it is proven.
#[derive(Debug)]
pub struct VerifiedCaller {
    /// The signer; anonymous without a signature.
    pub who: Principal,
    pub scope: Option<CredentialScope>,
    pub signature: SignatureLocation,
}

impl VerifiedCaller {
    fn unverified(claim: Option<SignatureClaim>) -> Self {
        let signature = match &claim {
            None => SignatureLocation::None,
            Some(claim) if claim.expires_s.is_some() => SignatureLocation::Query,
            Some(_) => SignatureLocation::Header,
        };
        Self { who: Principal::anonymous(), scope: claim.map(|claim| claim.scope), signature }
    }
}

type Derived = (Arc<str>, [u8; 32]);

/// Verifies signatures and caches derived keys.
pub struct Verifier {
    keys: Arc<dyn Keys>,
    /// With the secret that each was derived from, because the secret of a key may change.
    derived: Mutex<HashMap<CredentialScope, Derived>>,
}

impl Verifier {
    pub fn new(keys: Arc<dyn Keys>) -> Self {
        Self { keys, derived: Mutex::default() }
    }

    /// Whether the server runs without credentials.
    pub fn is_open(&self) -> bool {
        self.keys.open()
    }

    /// Checks the head of a request before memory is used for its body: with credentials configured, it must name an
    /// existing key. The signature itself can be verified only with the body.
    pub fn check_head(&self, head: &SignedRequest<'_>) -> Result<(), SqsError> {
        if self.keys.open() {
            return Ok(());
        }
        let Some(claim) = SignatureClaim::of(head)? else {
            let text = "Request is missing Authentication Token";
            return Err(SqsError::new(Code::MissingAuthenticationToken, text));
        };
        self.keys.secret(&claim.scope.access_key).map(drop).ok_or_else(|| {
            let text = "The security token included in the request is invalid.";
            SqsError::new(Code::InvalidClientTokenId, text)
        })
    }

    /// Verifies the signature. An unsigned request is anonymous; permissions are checked elsewhere.
    pub fn verify(
        &self,
        request: &SignedRequest<'_>,
        now: Timestamp,
    ) -> Result<VerifiedCaller, SqsError> {
        if self.keys.open() {
            return Ok(VerifiedCaller::unverified(SignatureClaim::of(request).ok().flatten()));
        }
        let Some(claim) = SignatureClaim::of(request)? else {
            return Ok(VerifiedCaller::unverified(None));
        };
        let Some((secret, principal)) = self.keys.secret(&claim.scope.access_key) else {
            let text = "The security token included in the request is invalid.";
            return Err(SqsError::new(Code::InvalidClientTokenId, text));
        };
        check_date(&claim, now)?;
        check_signed_headers(&claim, request.headers)?;
        let canonical = canonical_request(&claim, request)?;
        let CredentialScope { date, region, service, .. } = &claim.scope;
        let to_sign = format!(
            "{ALGORITHM}\n{}\n{date}/{region}/{service}/aws4_request\n{}",
            claim.date,
            HEXLOWER.encode(&Sha256::digest(canonical))
        );
        let key = self.derived_key(&claim.scope, secret);
        let expected = HEXLOWER.encode(&hmac(&key, to_sign.as_bytes()));
        if !bool::from(expected.as_bytes().ct_eq(claim.signature.as_bytes())) {
            let text = "The request signature we calculated does not match the signature you provided. \
                        Check your AWS Secret Access Key and signing method. Consult the service documentation \
                        for details.";
            return Err(SqsError::new(Code::SignatureDoesNotMatch, text));
        }
        Ok(VerifiedCaller { who: principal, ..VerifiedCaller::unverified(Some(claim)) })
    }

    fn derived_key(&self, scope: &CredentialScope, secret: Arc<str>) -> [u8; 32] {
        let mut derived = self.derived.lock();
        if let Some((of, key)) = derived.get(scope)
            && *of == secret
        {
            return *key;
        }
        let mut key = hmac(format!("AWS4{secret}").as_bytes(), scope.date.as_bytes());
        for part in [&scope.region, &scope.service, "aws4_request"] {
            key = hmac(&key, part.as_bytes());
        }
        if derived.len() >= CACHE_MAX {
            derived.clear();
        }
        derived.insert(scope.clone(), (secret, key));
        key
    }
}

fn check_date(claim: &SignatureClaim, now: Timestamp) -> Result<(), SqsError> {
    let parsed = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", &claim.date).ok();
    let zoned = parsed.and_then(|date| date.to_zoned(jiff::tz::TimeZone::UTC).ok());
    let signed_ms = zoned.and_then(|at| u64::try_from(at.timestamp().as_millisecond()).ok());
    let signed_ms =
        signed_ms.ok_or_else(|| incomplete_signature("X-Amz-Date must be YYYYMMDD'T'HHMMSS'Z'"))?;
    if !claim.date.starts_with(&claim.scope.date) {
        let text = "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP";
        return Err(SqsError::new(Code::SignatureDoesNotMatch, text));
    }
    let good_for_ms = claim.expires_s.map_or(SKEW_MS, |s| s * 1000);
    let expired = |text: String| Err(SqsError::new(Code::RequestExpired, text));
    if now.0 > signed_ms.saturating_add(good_for_ms) {
        return expired(format!("Signature expired: {} is too long ago", claim.date));
    }
    if signed_ms > now.0.saturating_add(SKEW_MS) {
        return expired(format!("Signature not yet current: {} is in the future", claim.date));
    }
    Ok(())
}

/// Every header that can change the meaning of a request must be signed. Otherwise, the holder of a presigned URL could
/// add `X-Amz-Target` and run another action.
fn check_signed_headers(claim: &SignatureClaim, headers: &HeaderMap) -> Result<(), SqsError> {
    let meaningful =
        headers.keys().map(HeaderName::as_str).filter(|name| name.starts_with("x-amz-"));
    for name in meaningful {
        if !claim.signed.iter().any(|signed| signed == name) {
            let text =
                format!("There were headers present in the request which were not signed: {name}");
            return Err(SqsError::new(Code::AccessDenied, text));
        }
    }
    Ok(())
}

fn canonical_request(
    claim: &SignatureClaim,
    request: &SignedRequest<'_>,
) -> Result<String, SqsError> {
    let mut pairs = query_pairs(request.uri);
    pairs.retain(|(name, _)| name != "X-Amz-Signature");
    let mut query: Vec<(String, String)> =
        pairs.iter().map(|(name, value)| (percent_encode(name), percent_encode(value))).collect();
    query.sort();
    let query: Vec<String> =
        query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut headers = String::new();
    for name in &claim.signed {
        let values: Vec<String> = request
            .headers
            .get_all(name.as_str())
            .iter()
            .map(|value| {
                let text = String::from_utf8_lossy(value.as_bytes());
                text.split_whitespace().collect::<Vec<_>>().join(" ")
            })
            .collect();
        headers.push_str(&format!("{name}:{}\n", values.join(",")));
    }
    let hash = HEXLOWER.encode(&Sha256::digest(request.body));
    let given = request.headers.get("x-amz-content-sha256").and_then(|value| value.to_str().ok());
    if let Some(given) = given
        && given != hash
    {
        let text = "The provided 'x-amz-content-sha256' header does not match what was computed.";
        return Err(SqsError::new(Code::SignatureDoesNotMatch, text));
    }
    Ok(format!(
        "{}\n{}\n{}\n{headers}\n{}\n{}",
        request.method,
        // The received path is encoded once. Signers encode it once more, for every service except S3.
        utf8_percent_encode(request.uri.path(), UNRESERVED_PATH),
        query.join("&"),
        claim.signed.join(";"),
        given.unwrap_or(&hash),
    ))
}

/// Everything except the unreserved characters of RFC 3986.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const UNRESERVED_PATH: &AsciiSet = &UNRESERVED.remove(b'/');

fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
    mac.update(text);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestKeys;

    impl Keys for TestKeys {
        fn open(&self) -> bool {
            false
        }
        fn secret(&self, access_key: &str) -> Option<(Arc<str>, Principal)> {
            let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
            (access_key == "AKIDEXAMPLE").then(|| (secret.into(), Principal::named("ana")))
        }
    }

    /// 2015-08-30 12:36:00, the time used by the published test suite.
    const THEN: Timestamp = Timestamp(1_440_938_160_000);

    fn verify(change: impl FnOnce(&mut HeaderMap), body: &[u8], now: u64) -> Result<String, Code> {
        let mut headers = HeaderMap::new();
        headers.insert("host", "example.amazonaws.com".parse().unwrap());
        headers.insert("x-amz-date", "20150830T123600Z".parse().unwrap());
        // The signature of `get-vanilla` in the published test suite.
        let line = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                    SignedHeaders=host;x-amz-date, \
                    Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31";
        headers.insert("authorization", line.parse().unwrap());
        change(&mut headers);
        let (method, uri) = (Method::GET, Uri::from_static("/"));
        let request = SignedRequest { method: &method, uri: &uri, headers: &headers, body };
        let verified = Verifier::new(Arc::new(TestKeys)).verify(&request, Timestamp(now));
        verified.map(|found| found.who.name().to_owned()).map_err(|error| error.code)
    }

    #[test]
    fn the_published_example_is_verified_and_every_change_of_it_refused() {
        let now = THEN.0;
        assert_eq!(verify(|_| {}, b"", now), Ok("ana".into()));
        assert_eq!(verify(|_| {}, b"x", now), Err(Code::SignatureDoesNotMatch));
        assert_eq!(verify(|_| {}, b"", now + SKEW_MS + 1), Err(Code::RequestExpired));
        assert_eq!(verify(|_| {}, b"", now - SKEW_MS - 1), Err(Code::RequestExpired));
        let other = |name: &'static str, value: &str| {
            let value = value.parse().unwrap();
            verify(|headers| drop(headers.insert(name, value)), b"", now)
        };
        assert_eq!(other("host", "example.com"), Err(Code::SignatureDoesNotMatch));
        assert_eq!(other("x-amz-date", "20150830T123601Z"), Err(Code::SignatureDoesNotMatch));
        assert_eq!(other("authorization", "Basic eDp5"), Err(Code::IncompleteSignature));
        let unknown = "AWS4-HMAC-SHA256 Credential=X/20150830/r/sqs/aws4_request, SignedHeaders=host, Signature=00";
        assert_eq!(other("authorization", unknown), Err(Code::InvalidClientTokenId));
        let unsigned = "AWS4-HMAC-SHA256 Credential=X/20150830/r/sqs/aws4_request, SignedHeaders=date, Signature=00";
        assert_eq!(other("authorization", unsigned), Err(Code::IncompleteSignature));
        assert_eq!(
            verify(|headers| drop(headers.remove("authorization")), b"", now),
            Ok("anonymous".into())
        );
    }
}
