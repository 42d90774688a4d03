//! Bytes and names of Service Bus ↔ types of the model. No engine calls.
//!
//! | file | what |
//! |---|---|
//! | `address.rs` | addresses of links |
//! | `duration.rs` | ISO 8601 durations |
//! | `message.rs` | messages |
//! | `native.rs` | parts of a message that must be preserved byte for byte |
//! | `value.rs` | typed values |
//! | `rule.rs` | rules of subscriptions, as AMQP values |
//! | `rule_xml.rs` | rules of subscriptions, as XML |
//! | `sas.rs` | shared access signatures |
//! | `selector.rs` | JMS selectors, as SQL filters |
//! | `session.rs` | session ids |
//! | `xml.rs` | XML |

pub mod address;
pub mod duration;
pub mod message;
pub mod native;
pub mod rule;
pub mod rule_xml;
pub mod sas;
pub mod selector;
pub mod session;
pub mod value;
pub mod xml;

use malote_model::LeaseToken;

/// The delivery tag of a lease: its GUID in .NET byte order, with the first three groups little-endian.
pub fn tag_of(lease: LeaseToken) -> [u8; 16] {
    swap(lease.to_bytes())
}

fn swap(bytes: [u8; 16]) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
    let mut swapped = [0; 16];
    swapped[..8].copy_from_slice(&[d, c, b, a, f, e, h, g]);
    swapped[8..].copy_from_slice(&rest);
    swapped
}

/// A time in .NET ticks: units of 100 ns since the year 1.
pub fn ticks(at: malote_model::Timestamp) -> i64 {
    const UNIX_EPOCH: i64 = 621_355_968_000_000_000;
    const TICKS_PER_MS: i64 = 10_000;
    timestamp(at).saturating_mul(TICKS_PER_MS).saturating_add(UNIX_EPOCH)
}

/// A time in AMQP's milliseconds.
pub fn timestamp(at: malote_model::Timestamp) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_model::Timestamp;

    #[test]
    fn a_tag_is_the_guid_in_dotnet_order() {
        let token: LeaseToken = "00112233445566778899aabbccddeeff".parse().unwrap();
        let tag = data_encoding::HEXLOWER.encode(&tag_of(token));
        assert_eq!(tag, "33221100554477668899aabbccddeeff");
    }

    #[test]
    fn ticks_begin_in_the_year_one() {
        assert_eq!(ticks(Timestamp(0)), 621_355_968_000_000_000);
        assert_eq!(ticks(Timestamp(1)), 621_355_968_000_010_000);
        assert_eq!(ticks(Timestamp(u64::MAX)), i64::MAX);
    }
}
