//! Requests signed by the access key `AK`.

use axum::http::Method;
use hmac::{Hmac, KeyInit, Mac};
use malote_model::Timestamp;
use sha2::{Digest, Sha256};

pub const HOST: &str = "localhost:9324";
pub const SECRET: &str = "secret";

/// A URL that is good for this request.
pub fn presign(
    now: Timestamp,
    method: &Method,
    path: &str,
    query: &str,
    expires_s: u64,
    signed: &str,
    body: &str,
) -> String {
    let now = jiff::Timestamp::from_millisecond(now.0 as i64).unwrap();
    let date = now.strftime("%Y%m%dT%H%M%SZ").to_string();
    let scope = format!("{}/us-east-1/sqs/aws4_request", &date[..8]);
    let mut pairs: Vec<String> = query.split('&').map(str::to_owned).collect();
    pairs.push("X-Amz-Algorithm=AWS4-HMAC-SHA256".into());
    pairs.push(format!("X-Amz-Credential=AK%2F{}", scope.replace('/', "%2F")));
    pairs.push(format!("X-Amz-Date={date}"));
    pairs.push(format!("X-Amz-Expires={expires_s}"));
    pairs.push(format!("X-Amz-SignedHeaders={}", signed.replace(';', "%3B")));
    pairs.sort();
    let query = pairs.join("&");
    let headers = format!("host:{HOST}\n");
    let hash = hex(&Sha256::digest(body));
    let canonical = format!("{method}\n{path}\n{query}\n{headers}\n{signed}\n{hash}");
    let digest = hex(&Sha256::digest(canonical));
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}");
    let mut key = format!("AWS4{SECRET}").into_bytes();
    for part in [&date[..8], "us-east-1", "sqs", "aws4_request"] {
        key = hmac(&key, part);
    }
    format!("{path}?{query}&X-Amz-Signature={}", hex(&hmac(&key, &to_sign)))
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
