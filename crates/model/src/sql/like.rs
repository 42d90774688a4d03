//! LIKE: `%` matches any text, `_` any one character. Matching takes one pass over the text.
//!
//! A pattern is split at its `%`. The first piece must match at the start and the last at the end. Between them, the
//! leftmost match of each piece is always a correct choice, so nothing is tried twice. A piece with `_` is searched
//! with one bit per character of the piece.

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Like {
    /// The pieces between `%`.
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Plain(String),
    /// `None` is any one character.
    Gapped(Vec<Option<char>>),
}

impl Like {
    /// Compiles a pattern; `None` if an escape character is the last character.
    pub(super) fn new(pattern: &str, escape: Option<char>) -> Option<Self> {
        let mut pieces = Vec::new();
        let mut piece = Vec::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            match c {
                c if Some(c) == escape => piece.push(Some(chars.next()?)),
                '%' => pieces.push(Piece::new(std::mem::take(&mut piece))),
                '_' => piece.push(None),
                c => piece.push(Some(c)),
            }
        }
        pieces.push(Piece::new(piece));
        Some(Self { pieces })
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        let Some((first, rest)) = self.pieces.split_first() else { return false };
        let Some(end) = first.at_start(text) else { return false };
        let mut text = text.get(end..).unwrap_or_default();
        let Some((last, middle)) = rest.split_last() else { return text.is_empty() };
        for piece in middle {
            match piece.find(text) {
                Some(end) => text = text.get(end..).unwrap_or_default(),
                None => return false,
            }
        }
        last.at_end(text)
    }
}

impl Piece {
    fn new(chars: Vec<Option<char>>) -> Self {
        match chars.iter().copied().collect() {
            Some(plain) => Self::Plain(plain),
            None => Self::Gapped(chars),
        }
    }

    /// Where a match at the start ends.
    fn at_start(&self, text: &str) -> Option<usize> {
        match self {
            Self::Plain(plain) => text.starts_with(plain.as_str()).then_some(plain.len()),
            Self::Gapped(chars) => {
                let mut rest = text.chars();
                let fits = chars.iter().all(|want| fits(*want, rest.next()));
                fits.then(|| text.len() - rest.as_str().len())
            }
        }
    }

    fn at_end(&self, text: &str) -> bool {
        match self {
            Self::Plain(plain) => text.ends_with(plain.as_str()),
            Self::Gapped(chars) => {
                let mut rest = text.chars().rev();
                chars.iter().rev().all(|want| fits(*want, rest.next()))
            }
        }
    }

    /// Where the leftmost match ends.
    fn find(&self, text: &str) -> Option<usize> {
        match self {
            Self::Plain(plain) => text.find(plain.as_str()).map(|at| at + plain.len()),
            Self::Gapped(chars) => find_gapped(chars, text),
        }
    }
}

fn fits(want: Option<char>, have: Option<char>) -> bool {
    have.is_some_and(|have| want.is_none_or(|want| want == have))
}

/// Shift-And: bit `i` of the state is set if the first `i + 1` characters of the piece match up to here.
fn find_gapped(chars: &[Option<char>], text: &str) -> Option<usize> {
    let words = chars.len().div_ceil(64);
    let mut wanted: Vec<char> = chars.iter().flatten().copied().collect();
    wanted.sort_unstable();
    wanted.dedup();
    // One row per character of the piece, and one for all others.
    let mut masks = vec![0_u64; words * (wanted.len() + 1)];
    for (i, want) in chars.iter().enumerate() {
        for (row, mask) in masks.chunks_exact_mut(words).enumerate() {
            if want.is_none_or(|want| wanted.get(row) == Some(&want)) {
                mask[i / 64] |= 1 << (i % 64);
            }
        }
    }
    let last = chars.len() - 1;
    let mut state = vec![0_u64; words];
    for (at, c) in text.char_indices() {
        let row = wanted.binary_search(&c).unwrap_or(wanted.len());
        let mask = &masks[row * words..(row + 1) * words];
        let mut carry = 1;
        for (word, mask) in state.iter_mut().zip(mask) {
            let out = *word >> 63;
            *word = (*word << 1 | carry) & mask;
            carry = out;
        }
        if state[last / 64] >> (last % 64) & 1 == 1 {
            return Some(at + c.len_utf8());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow reference implementation.
    fn slow(pattern: &[Option<Option<char>>], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some((None, rest)), _) => (0..=text.len()).any(|skip| slow(rest, &text[skip..])),
            (Some((Some(_), _)), None) => false,
            (Some((Some(want), rest)), Some((have, text))) => {
                want.is_none_or(|want| want == *have) && slow(rest, text)
            }
        }
    }

    #[test]
    fn every_short_pattern_matches_by_its_definition() {
        let patterns = words(&['a', 'b', '%', '_'], 5);
        let texts = words(&['a', 'b'], 5);
        for pattern in &patterns {
            let like = Like::new(pattern, None).unwrap();
            let parts: Vec<_> = pattern
                .chars()
                .map(|c| if c == '%' { None } else { Some(Some(c).filter(|c| *c != '_')) })
                .collect();
            for text in &texts {
                let chars: Vec<_> = text.chars().collect();
                assert_eq!(like.matches(text), slow(&parts, &chars), "{text:?} LIKE {pattern:?}");
            }
        }
    }

    fn words(letters: &[char], len: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut from = 0;
        for _ in 0..len {
            let to = all.len();
            for i in from..to {
                for letter in letters {
                    all.push(format!("{}{letter}", all[i]));
                }
            }
            from = to;
        }
        all
    }

    #[test]
    fn pieces_longer_than_a_word_of_bits() {
        let gapped = format!("%{}_{}%", "x".repeat(70), "y".repeat(70));
        let like = Like::new(&gapped, None).unwrap();
        let hit = format!("zz{}é{}zz", "x".repeat(70), "y".repeat(70));
        assert!(like.matches(&hit));
        assert!(!like.matches(&hit.replace('é', "")));
        assert!(like.matches(&hit.replace('é', "xéy")));
        assert!(!like.matches(&hit.replace('é', "éé")));
    }

    #[test]
    fn a_hostile_pattern_takes_one_pass() {
        let text = "a".repeat(64 << 10);
        let pattern = format!("{}b", "%a_".repeat(300));
        assert!(!Like::new(&pattern, None).unwrap().matches(&text));
        let pattern = format!("%{}_b%", "a".repeat(1000));
        assert!(!Like::new(&pattern, None).unwrap().matches(&text));
    }
}
