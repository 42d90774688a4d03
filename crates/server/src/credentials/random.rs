//! Secrets from the system's random source. Not through `engine::chance`: a seed must never be
//! able to replay them.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// Random bytes. Without a random source no secret can be made, and going on would be worse.
pub(super) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    bytes
}

/// A bearer token: 32 random bytes, with a prefix that secret scanners can look for.
pub(super) fn token() -> String {
    format!("malote_{}", URL_SAFE_NO_PAD.encode(bytes::<32>()))
}

/// An access key id in the shape that AWS tools expect.
pub(super) fn aws_key_id() -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let letters = bytes::<16>().map(|byte| char::from(LETTERS[usize::from(byte % 32)]));
    format!("AKIA{}", letters.iter().collect::<String>())
}

/// A secret of 30 random bytes, which is 40 characters as AWS has them.
pub(super) fn aws_secret() -> String {
    STANDARD.encode(bytes::<30>())
}

/// A shared access key of 32 random bytes, as Service Bus has them.
pub(super) fn sas_secret() -> String {
    STANDARD.encode(bytes::<32>())
}
