//! Secrets from the system's random source. They do not use `engine::chance`, because a seed must never reproduce them.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// Random bytes. Panics without a random source, because no secret could be created.
pub(super) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    bytes
}

/// A bearer token: 32 random bytes, with a prefix for secret scanners.
pub(super) fn token() -> String {
    format!("malote_{}", URL_SAFE_NO_PAD.encode(bytes::<32>()))
}

/// An access key id in the format that AWS tools expect.
pub(super) fn aws_key_id() -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let letters = bytes::<16>().map(|byte| char::from(LETTERS[usize::from(byte % 32)]));
    format!("AKIA{}", letters.iter().collect::<String>())
}

/// A secret of 30 random bytes: 40 characters, as in AWS.
pub(super) fn aws_secret() -> String {
    STANDARD.encode(bytes::<30>())
}

/// A shared access key of 32 random bytes, as in Service Bus.
pub(super) fn sas_secret() -> String {
    STANDARD.encode(bytes::<32>())
}
