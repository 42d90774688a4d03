//! Receipt handles: everything needed to settle a message, with a checksum.
//!
//! ```text
//! version 1 │ lease token 16 │ sequence 8 │ granted at, ms 8 │ check 8     base64, 56 characters
//! ```
//! The checksum covers the name of the queue. It distinguishes an expired handle from garbage and from a handle of
//! another queue, without a look-up. It is not a secret; the random part of the lease token is.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use malote_model::{LeaseToken, QueueName, Seq, Timestamp};
use sha2::{Digest, Sha256};

use super::clip;
use crate::refusal::{Code, SqsError};

const VERSION: u8 = 1;
const BYTES: usize = 41;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptHandle {
    pub lease: LeaseToken,
    pub seq: Seq,
    /// When the message was received.
    pub at: Timestamp,
}

fn check(queue: &QueueName, head: &[u8]) -> [u8; 8] {
    let digest = Sha256::new().chain_update(head).chain_update(queue.as_str()).finalize();
    let mut out = [0; 8];
    out.copy_from_slice(&digest[..8]);
    out
}

impl ReceiptHandle {
    /// Encodes the handle.
    pub fn text(&self, queue: &QueueName) -> String {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.push(VERSION);
        bytes.extend(self.lease.to_bytes());
        bytes.extend(self.seq.0.to_be_bytes());
        bytes.extend(self.at.0.to_be_bytes());
        let check = check(queue, &bytes);
        bytes.extend(check);
        STANDARD.encode(bytes)
    }

    /// Decodes a handle of this queue.
    pub fn parse(queue: &QueueName, text: &str) -> Result<Self, SqsError> {
        let decoded = if text.len() <= 1024 { STANDARD.decode(text).ok() } else { None };
        let read =
            decoded.filter(|bytes| bytes.len() == BYTES && bytes[0] == VERSION).and_then(|bytes| {
                let (head, tail) = bytes.split_at(BYTES - 8);
                let number =
                    |at: usize| Some(u64::from_be_bytes(head.get(at..at + 8)?.try_into().ok()?));
                let lease = LeaseToken::from_bytes(head.get(1..17)?.try_into().ok()?);
                let handle = Self { lease, seq: Seq(number(17)?), at: Timestamp(number(25)?) };
                (check(queue, head) == tail).then_some(handle)
            });
        read.ok_or_else(|| {
            let shown = clip(text, 128);
            let text =
                format!("The input receipt handle \"{shown}\" is not a valid receipt handle.");
            SqsError::new(Code::ReceiptHandleIsInvalid, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_valid_for_its_queue_only_and_changes_are_detected() {
        let (mine, other) = (QueueName::new("a").unwrap(), QueueName::new("b").unwrap());
        let lease = LeaseToken { epoch: 1, slot: 2, grant: 3, random: 4 };
        let handle = ReceiptHandle { lease, seq: Seq(5), at: Timestamp(6) };
        let text = handle.text(&mine);
        assert_eq!(ReceiptHandle::parse(&mine, &text), Ok(handle));
        ReceiptHandle::parse(&other, &text).unwrap_err();
        for n in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[n] = if bytes[n] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert_ne!(ReceiptHandle::parse(&mine, &changed), Ok(handle), "{n}");
            ReceiptHandle::parse(&mine, &text[..n]).unwrap_err();
        }
        ReceiptHandle::parse(&mine, &"A".repeat(100_000)).unwrap_err();
    }
}
