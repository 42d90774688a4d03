//! The line of a session: sequences in ascending order, four bytes each while they are near to one another. A short
//! line needs no memory of its own.

use std::collections::VecDeque;

use smallvec::SmallVec;

/// Sequences of a line that stand in the session itself.
const SHORT: usize = 4;

#[derive(Debug)]
pub(super) enum Line {
    /// Distances from a base. Those before `head` have left.
    Near { base: u64, head: u32, seqs: SmallVec<[u32; SHORT]> },
    #[allow(clippy::box_collection)] // rare, and larger than the others
    Far(Box<VecDeque<u64>>),
}

impl Default for Line {
    fn default() -> Self {
        Self::Near { base: 0, head: 0, seqs: SmallVec::new() }
    }
}

impl Line {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Near { head, seqs, .. } => seqs.len() - *head as usize,
            Self::Far(seqs) => seqs.len(),
        }
    }

    pub(super) fn get(&self, i: usize) -> Option<u64> {
        match self {
            Self::Near { base, head, seqs } => {
                seqs.get(*head as usize + i).map(|&d| base + u64::from(d))
            }
            Self::Far(seqs) => seqs.get(i).copied(),
        }
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.get(0)
    }

    pub(super) fn pop(&mut self) {
        match self {
            Self::Near { head, seqs, .. } if !seqs.is_empty() => {
                *head += 1;
                let gone = *head as usize;
                if gone < seqs.len() && gone > SHORT && gone >= seqs.len() / 2 {
                    // As many moves as there were pops.
                    seqs.drain(..gone);
                    *head = 0;
                    seqs.shrink_to_fit();
                }
            }
            Self::Near { .. } => {}
            Self::Far(seqs) => drop(seqs.pop_front()),
        }
        if self.len() == 0 {
            *self = Self::default();
        }
    }

    /// The place of the first at or after `seq`.
    pub(super) fn place(&self, seq: u64) -> usize {
        match self {
            Self::Near { base, head, seqs } => {
                seqs[*head as usize..].partition_point(|&d| base + u64::from(d) < seq)
            }
            Self::Far(seqs) => seqs.partition_point(|&s| s < seq),
        }
    }

    /// Room for exactly so many more: for a snapshot, which knows.
    pub(super) fn expect(&mut self, more: usize) {
        if let Self::Near { seqs, .. } = self {
            seqs.reserve_exact(more);
        }
    }

    /// Puts a sequence in its place; mostly that is the end. One that is there already stays.
    pub(super) fn insert(&mut self, seq: u64) {
        if let Self::Near { base, head, seqs } = self {
            if seqs.is_empty() {
                *base = seq;
            }
            let near = seq.checked_sub(*base).and_then(|d| u32::try_from(d).ok());
            let Some(d) = near else {
                let far = self.iter().collect();
                *self = Self::Far(Box::new(far));
                return self.insert(seq);
            };
            if seqs.len() == seqs.capacity() {
                // By a half and not to the double: there are many lines.
                seqs.reserve_exact(seqs.len() / 2);
            }
            if seqs.last().is_none_or(|&last| last < d) {
                seqs.push(d);
            } else if let Err(at) = seqs[*head as usize..].binary_search(&d) {
                seqs.insert(*head as usize + at, d);
            }
        } else if let Self::Far(seqs) = self
            && let Err(at) = seqs.binary_search(&seq)
        {
            seqs.insert(at, seq);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_line_holds_far_sequences_too() {
        let mut line = Line::default();
        for seq in [10, 5, 12, 10, 1 << 40, 11] {
            line.insert(seq);
        }
        assert_eq!(line.iter().collect::<Vec<_>>(), [5, 10, 11, 12, 1 << 40]);
        assert_eq!(line.place(11), 2);
    }

    #[test]
    fn agrees_with_a_set() {
        let (mut line, mut set) = (Line::default(), BTreeSet::new());
        let mut state = 3_u64;
        for step in 0..20_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = state >> 33;
            // It grows, then shrinks, again and again.
            if random % 10 < if step / 500 % 2 == 0 { 7 } else { 3 } {
                // Sometimes one that left long ago comes back.
                let seq = step + 50 - random % 60 % (step + 1);
                line.insert(seq);
                set.insert(seq);
            } else {
                line.pop();
                set.pop_first();
            }
            assert_eq!((line.len(), line.first()), (set.len(), set.first().copied()));
            let probe = step + random % 100;
            assert_eq!(line.place(probe), set.range(..probe).count());
        }
        assert!(line.iter().eq(set));
    }
}
