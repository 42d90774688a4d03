//! Lease tokens of this connector.
//!
//! ```text
//! message of a queue without sessions   seq      lease: owner (32 bits), count (32 bits)
//! message of a held session             seq     -hold
//! held session                         -number  -hold
//! ```
//!
//! Both halves are signed; stored numbers are never negative.

use malote_model::LeaseToken;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PgToken {
    /// A message of a queue without sessions, and the lease in its row.
    Message { seq: i64, lease: i64 },
    /// A message of a held session.
    SessionMessage { seq: i64, hold: i64 },
    /// A held session.
    Session { num: i64, hold: i64 },
}

impl PgToken {
    pub(super) fn decode(token: LeaseToken) -> Option<Self> {
        let all = u128::from_be_bytes(token.to_bytes());
        let (first, second) = ((all >> 64) as i64, all as i64);
        match (first > 0, second > 0) {
            (true, true) => Some(Self::Message { seq: first, lease: second }),
            (true, false) => Some(Self::SessionMessage { seq: first, hold: second.checked_neg()? }),
            (false, false) => {
                Some(Self::Session { num: first.checked_neg()?, hold: second.checked_neg()? })
            }
            (false, true) => None,
        }
    }

    pub(super) fn encode(self) -> LeaseToken {
        let (first, second) = match self {
            Self::Message { seq, lease } => (seq, lease),
            Self::SessionMessage { seq, hold } => (seq, -hold),
            Self::Session { num, hold } => (-num, -hold),
        };
        let all = (u128::from(first as u64) << 64) | u128::from(second as u64);
        LeaseToken::from_bytes(all.to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_a_round_trip_and_foreign_ones_are_unknown() {
        for token in [
            PgToken::Message { seq: 1, lease: (7 << 32) | 9 },
            PgToken::SessionMessage { seq: i64::MAX, hold: 3 },
            PgToken::Session { num: 5, hold: i64::MAX },
        ] {
            assert_eq!(PgToken::decode(token.encode()), Some(token));
        }
        let odd = LeaseToken { epoch: 1 << 31, ..LeaseToken::default() };
        assert_eq!(PgToken::decode(odd), None);
    }
}
