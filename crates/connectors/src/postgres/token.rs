//! What a lease token says here.
//!
//! ```text
//! message of a plain queue   seq      lease: owner (32 bits), count (32 bits)
//! message of a session        seq     -hold
//! session                    -number  -hold
//! ```
//!
//! Both halves are signed: nothing that is stored is negative.

use malote_model::LeaseToken;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A message of a queue without sessions, and the lease that its row must name.
    Plain { seq: i64, lease: i64 },
    /// A message in hand with its session.
    Held { seq: i64, hold: i64 },
    /// A session.
    Hold { num: i64, hold: i64 },
}

impl Token {
    pub(super) fn read(token: LeaseToken) -> Option<Self> {
        let all = u128::from_be_bytes(token.to_bytes());
        let (first, second) = ((all >> 64) as i64, all as i64);
        match (first > 0, second > 0) {
            (true, true) => Some(Self::Plain { seq: first, lease: second }),
            (true, false) => Some(Self::Held { seq: first, hold: second.checked_neg()? }),
            (false, false) => {
                Some(Self::Hold { num: first.checked_neg()?, hold: second.checked_neg()? })
            }
            (false, true) => None,
        }
    }

    pub(super) fn write(self) -> LeaseToken {
        let (first, second) = match self {
            Self::Plain { seq, lease } => (seq, lease),
            Self::Held { seq, hold } => (seq, -hold),
            Self::Hold { num, hold } => (-num, -hold),
        };
        let all = (u128::from(first as u64) << 64) | u128::from(second as u64);
        LeaseToken::from_bytes(all.to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_read_back_and_foreign_ones_are_nothing_or_unknown() {
        for token in [
            Token::Plain { seq: 1, lease: (7 << 32) | 9 },
            Token::Held { seq: i64::MAX, hold: 3 },
            Token::Hold { num: 5, hold: i64::MAX },
        ] {
            assert_eq!(Token::read(token.write()), Some(token));
        }
        let odd = LeaseToken { epoch: 1 << 31, ..LeaseToken::default() };
        assert_eq!(Token::read(odd), None);
    }
}
