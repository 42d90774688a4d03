//! AWS Signature Version 4: proves which key signed a request, by its header or by its query string.
//!
//! Without credentials configured nothing is checked: every SDK insists on signing, so local users make keys up.

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, Method, Uri, header};
use hmac::{Hmac, KeyInit, Mac};
use malote_model::{Principal, Timestamp};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::refusal::{Code, SqsError};

/// Where access keys come from. The server implements it over its credential store.
pub trait Keys: Send + Sync {
    /// Whether there are no credentials at all, so that any signature will do.
    fn open(&self) -> bool;
    /// The secret of an access key, and who it stands for.
    fn secret(&self, access_key: &str) -> Option<(Arc<str>, Principal)>;
}

/// How far the clock of a signer may be off.
const SKEW_MS: u64 = 15 * 60 * 1000;
/// How long a presigned request may be good for: seven days.
const EXPIRES_S_MAX: u64 = 7 * 24 * 3600;
/// Derived keys that are remembered; beyond it all are derived anew.
const CACHE_MAX: usize = 1024;
/// Headers that a signature may name.
const SIGNED_HEADERS_MAX: usize = 64;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Key, date, region and service of a signature.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    access_key: String,
    date: String,
    /// Where the caller believes to be: queue ARNs repeat it.
    pub region: String,
    /// `sqs`, `monitoring` …
    pub service: String,
}

impl Scope {
    fn parse(credential: &str) -> Option<Self> {
        // An access key may hold slashes; the rest may not.
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

/// A signature as claimed.
struct Claim {
    scope: Scope,
    signed: Vec<String>,
    signature: String,
    date: String,
    /// Of a presigned request: how long it is good for.
    expires_s: Option<u64>,
}

/// A request as far as a signature covers it.
pub struct Signed<'a> {
    /// GET or POST.
    pub method: &'a Method,
    /// Path and query.
    pub uri: &'a Uri,
    /// All headers.
    pub headers: &'a HeaderMap,
    /// The whole body.
    pub body: &'a [u8],
}

fn incomplete(text: impl Into<String>) -> SqsError {
    SqsError::new(Code::IncompleteSignature, text)
}

fn query_pairs(uri: &Uri) -> Vec<(String, String)> {
    form_urlencoded::parse(uri.query().unwrap_or("").as_bytes()).into_owned().collect()
}

impl Claim {
    /// What the request says of its signature; none if it has none.
    fn of(request: &Signed<'_>) -> Result<Option<Self>, SqsError> {
        let mut authorizations = request.headers.get_all(header::AUTHORIZATION).iter();
        if let Some(value) = authorizations.next() {
            if authorizations.next().is_some() {
                return Err(incomplete("the request has two Authorization headers"));
            }
            let text = value.to_str().map_err(|_| incomplete("Authorization is not ASCII text"))?;
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
            return Err(incomplete(format!("the query string contains {} twice", twice[0])));
        }
        let need = |name: &str| {
            get(name).ok_or_else(|| incomplete(format!("the query string must contain {name}")))
        };
        if need("X-Amz-Algorithm")? != ALGORITHM {
            return Err(incomplete(format!("the algorithm must be {ALGORITHM}")));
        }
        let expires = need("X-Amz-Expires")?;
        let expires_s = expires.parse().ok().filter(|s| (1..=EXPIRES_S_MAX).contains(s));
        let expires_s =
            expires_s.ok_or_else(|| incomplete("X-Amz-Expires must be from 1 to 604800"))?;
        let scope = Scope::parse(need("X-Amz-Credential")?);
        Ok(Some(Self {
            scope: scope.ok_or_else(|| incomplete("X-Amz-Credential is malformed"))?,
            signed: signed_list(need("X-Amz-SignedHeaders")?)?,
            signature: need("X-Amz-Signature")?.to_owned(),
            date: need("X-Amz-Date")?.to_owned(),
            expires_s: Some(expires_s),
        }))
    }

    fn of_header(text: &str, headers: &HeaderMap) -> Result<Self, SqsError> {
        let rest = text
            .strip_prefix(ALGORITHM)
            .ok_or_else(|| incomplete(format!("Authorization must be {ALGORITHM} …")))?;
        let (mut credential, mut signed, mut signature) = (None, None, None);
        for part in rest.split(',') {
            match part.trim().split_once('=') {
                Some(("Credential", value)) => credential = Some(value),
                Some(("SignedHeaders", value)) => signed = Some(value),
                Some(("Signature", value)) => signature = Some(value),
                _ => {}
            }
        }
        let lacks = |what: &str| incomplete(format!("Authorization header requires '{what}'"));
        let scope = Scope::parse(credential.ok_or_else(|| lacks("Credential"))?);
        let date = headers.get("x-amz-date").and_then(|value| value.to_str().ok());
        Ok(Self {
            scope: scope.ok_or_else(|| incomplete("Credential is malformed"))?,
            signed: signed_list(signed.ok_or_else(|| lacks("SignedHeaders"))?)?,
            signature: signature.ok_or_else(|| lacks("Signature"))?.to_owned(),
            date: date
                .ok_or_else(|| incomplete("the request must have an X-Amz-Date header"))?
                .to_owned(),
            expires_s: None,
        })
    }
}

/// The access key that a request claims to be signed with.
pub fn claimed_key(request: &Signed<'_>) -> Option<String> {
    Some(Claim::of(request).ok()??.scope.access_key)
}

fn signed_list(text: &str) -> Result<Vec<String>, SqsError> {
    let all: Vec<String> = text.split(';').map(str::to_ascii_lowercase).collect();
    if all.len() > SIGNED_HEADERS_MAX || !all.iter().any(|name| name == "host") {
        return Err(incomplete("SignedHeaders must contain host"));
    }
    Ok(all)
}

/// Where a request carries its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// It has none.
    None,
    /// In `Authorization`, which no web page can make a browser send here.
    Header,
    /// In the query string: a presigned URL, which a web page can make a browser follow.
    Query,
}

/// What a signature says. Without credentials configured nothing of it is proven.
#[derive(Debug)]
pub struct Verified {
    /// Who signed; anonymous without a signature.
    pub who: Principal,
    /// Which region and service the caller means.
    pub scope: Option<Scope>,
    /// Where the signature is.
    pub signature: Signature,
}

impl Verified {
    fn unproven(claim: Option<Claim>) -> Self {
        let signature = match &claim {
            None => Signature::None,
            Some(claim) if claim.expires_s.is_some() => Signature::Query,
            Some(_) => Signature::Header,
        };
        Self { who: Principal::anonymous(), scope: claim.map(|claim| claim.scope), signature }
    }
}

type Derived = (Arc<str>, [u8; 32]);

/// Verifies signatures, and remembers the keys that it derived.
pub struct Verifier {
    keys: Arc<dyn Keys>,
    /// With the secret that each was derived from: a key may get a new one.
    derived: Mutex<HashMap<Scope, Derived>>,
}

impl Verifier {
    /// A verifier over these keys.
    pub fn new(keys: Arc<dyn Keys>) -> Self {
        Self { keys, derived: Mutex::default() }
    }

    /// Whether there are no credentials, so that signatures prove nothing.
    pub fn is_open(&self) -> bool {
        self.keys.open()
    }

    /// Whether a request is worth the memory for its body, by its head: where there are credentials, it must be signed
    /// with a key that exists. Whether the signature fits is known only with the body.
    pub fn check_head(&self, head: &Signed<'_>) -> Result<(), SqsError> {
        if self.keys.open() {
            return Ok(());
        }
        let Some(claim) = Claim::of(head)? else {
            let text = "Request is missing Authentication Token";
            return Err(SqsError::new(Code::MissingAuthenticationToken, text));
        };
        self.keys.secret(&claim.scope.access_key).map(drop).ok_or_else(|| {
            let text = "The security token included in the request is invalid.";
            SqsError::new(Code::InvalidClientTokenId, text)
        })
    }

    /// Who signed the request. Without a signature: nobody, and what nobody may do is not decided here.
    pub fn verify(&self, request: &Signed<'_>, now: Timestamp) -> Result<Verified, SqsError> {
        if self.keys.open() {
            return Ok(Verified::unproven(Claim::of(request).ok().flatten()));
        }
        let Some(claim) = Claim::of(request)? else { return Ok(Verified::unproven(None)) };
        let Some((secret, principal)) = self.keys.secret(&claim.scope.access_key) else {
            let text = "The security token included in the request is invalid.";
            return Err(SqsError::new(Code::InvalidClientTokenId, text));
        };
        check_date(&claim, now)?;
        check_signed_headers(&claim, request.headers)?;
        let canonical = canonical_request(&claim, request)?;
        let Scope { date, region, service, .. } = &claim.scope;
        let to_sign = format!(
            "{ALGORITHM}\n{}\n{date}/{region}/{service}/aws4_request\n{}",
            claim.date,
            hex(&Sha256::digest(canonical))
        );
        let key = self.derived_key(&claim.scope, secret);
        let expected = hex(&hmac(&key, to_sign.as_bytes()));
        if !bool::from(expected.as_bytes().ct_eq(claim.signature.as_bytes())) {
            let text = "The request signature we calculated does not match the signature you provided. \
                        Check your AWS Secret Access Key and signing method. Consult the service documentation \
                        for details.";
            return Err(SqsError::new(Code::SignatureDoesNotMatch, text));
        }
        Ok(Verified { who: principal, ..Verified::unproven(Some(claim)) })
    }

    fn derived_key(&self, scope: &Scope, secret: Arc<str>) -> [u8; 32] {
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

fn check_date(claim: &Claim, now: Timestamp) -> Result<(), SqsError> {
    let parsed = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", &claim.date).ok();
    let zoned = parsed.and_then(|date| date.to_zoned(jiff::tz::TimeZone::UTC).ok());
    let signed_ms = zoned.and_then(|at| u64::try_from(at.timestamp().as_millisecond()).ok());
    let signed_ms =
        signed_ms.ok_or_else(|| incomplete("X-Amz-Date must be YYYYMMDD'T'HHMMSS'Z'"))?;
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

/// Every header that can change what a request means must be signed: whoever has a presigned URL could otherwise add
/// `X-Amz-Target` and make it another action.
fn check_signed_headers(claim: &Claim, headers: &HeaderMap) -> Result<(), SqsError> {
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

fn canonical_request(claim: &Claim, request: &Signed<'_>) -> Result<String, SqsError> {
    let mut pairs = query_pairs(request.uri);
    pairs.retain(|(name, _)| name != "X-Amz-Signature");
    let mut query: Vec<(String, String)> =
        pairs.iter().map(|(name, value)| (encode(name, false), encode(value, false))).collect();
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
    let hash = hex(&Sha256::digest(request.body));
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
        // What arrives is encoded once; signers of every service but S3 encode it once more.
        encode(request.uri.path(), true),
        query.join("&"),
        claim.signed.join(";"),
        given.unwrap_or(&hash),
    ))
}

/// Percent-encodes all but what RFC 3986 calls unreserved.
fn encode(text: &str, slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(byte as char);
            }
            b'/' if slash => out.push('/'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a MAC takes a key of any length");
    mac.update(text);
    mac.finalize().into_bytes().into()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        for digit in [byte >> 4, byte & 15] {
            out.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;

    impl Keys for One {
        fn open(&self) -> bool {
            false
        }
        fn secret(&self, access_key: &str) -> Option<(Arc<str>, Principal)> {
            let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
            (access_key == "AKIDEXAMPLE").then(|| (secret.into(), Principal::named("ana")))
        }
    }

    /// 2015-08-30 12:36:00, the moment of the service's published test suite.
    const THEN: Timestamp = Timestamp(1_440_938_160_000);

    fn verify(change: impl FnOnce(&mut HeaderMap), body: &[u8], now: u64) -> Result<String, Code> {
        let mut headers = HeaderMap::new();
        headers.insert("host", "example.amazonaws.com".parse().unwrap());
        headers.insert("x-amz-date", "20150830T123600Z".parse().unwrap());
        // The signature that the published suite gives for `get-vanilla`.
        let line = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                    SignedHeaders=host;x-amz-date, \
                    Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31";
        headers.insert("authorization", line.parse().unwrap());
        change(&mut headers);
        let (method, uri) = (Method::GET, Uri::from_static("/"));
        let request = Signed { method: &method, uri: &uri, headers: &headers, body };
        let verified = Verifier::new(Arc::new(One)).verify(&request, Timestamp(now));
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
