//! An ascending list of sequence numbers: the pending messages of a session. It uses two or four bytes each while they
//! are close together, and a short list needs no allocation.

use std::collections::VecDeque;

use smallvec::SmallVec;

#[derive(Debug)]
pub(super) enum SeqList {
    /// Most lists: up to a dozen numbers are stored inline.
    Near(PackedSeqs<u16, 12>),
    Wide(PackedSeqs<u32, 4>),
    #[allow(clippy::box_collection)] // rare, and larger than the others
    Far(Box<VecDeque<u64>>),
}

impl Default for SeqList {
    fn default() -> Self {
        Self::Near(PackedSeqs::new(0))
    }
}

/// Distances from a base. Those before `head` were removed.
#[derive(Debug)]
pub(super) struct PackedSeqs<D, const N: usize> {
    base: u64,
    head: u32,
    seqs: SmallVec<[D; N]>,
}

impl<D, const N: usize> PackedSeqs<D, N>
where
    D: Copy + Ord + TryFrom<u64> + Into<u64>,
{
    fn new(base: u64) -> Self {
        Self { base, head: 0, seqs: SmallVec::new() }
    }

    fn left(&self) -> &[D] {
        &self.seqs[self.head as usize..]
    }

    fn get(&self, i: usize) -> Option<u64> {
        self.left().get(i).map(|&d| self.base + d.into())
    }

    fn lower_bound(&self, seq: u64) -> usize {
        self.left().partition_point(|&d| self.base + d.into() < seq)
    }

    fn pop(&mut self) {
        if self.left().is_empty() {
            return;
        }
        self.head += 1;
        let gone = self.head as usize;
        if gone < self.seqs.len() && gone > N && gone >= self.seqs.len() / 2 {
            // Amortized: as many moves as there were pops.
            self.seqs.drain(..gone);
            self.head = 0;
            self.seqs.shrink_to_fit();
        }
    }

    /// Returns false if the number is too far from the base.
    fn insert(&mut self, seq: u64) -> bool {
        if self.seqs.is_empty() {
            self.base = seq;
        }
        let Some(d) = seq.checked_sub(self.base).and_then(|d| D::try_from(d).ok()) else {
            return false;
        };
        if self.seqs.len() == self.seqs.capacity() {
            // Grows by half, not to the double: there are many lists.
            self.seqs.reserve_exact(self.seqs.len() / 2);
        }
        if self.seqs.last().is_none_or(|&last| last < d) {
            self.seqs.push(d);
        } else if let Err(at) = self.left().binary_search(&d) {
            self.seqs.insert(self.head as usize + at, d);
        }
        true
    }
}

impl SeqList {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Near(run) => run.left().len(),
            Self::Wide(run) => run.left().len(),
            Self::Far(seqs) => seqs.len(),
        }
    }

    pub(super) fn get(&self, i: usize) -> Option<u64> {
        match self {
            Self::Near(run) => run.get(i),
            Self::Wide(run) => run.get(i),
            Self::Far(seqs) => seqs.get(i).copied(),
        }
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.get(0)
    }

    pub(super) fn pop(&mut self) {
        match self {
            Self::Near(run) => run.pop(),
            Self::Wide(run) => run.pop(),
            Self::Far(seqs) => drop(seqs.pop_front()),
        }
        if self.len() == 0 {
            *self = Self::default();
        }
    }

    /// The index of the first number at or after `seq`.
    pub(super) fn lower_bound(&self, seq: u64) -> usize {
        match self {
            Self::Near(run) => run.lower_bound(seq),
            Self::Wide(run) => run.lower_bound(seq),
            Self::Far(seqs) => seqs.partition_point(|&s| s < seq),
        }
    }

    /// Reserves space for exactly this many more, for a snapshot.
    pub(super) fn expect(&mut self, more: usize) {
        if let Self::Near(run) = self {
            run.seqs.reserve_exact(more);
        }
    }

    /// Inserts a number, usually at the end. Duplicates are ignored.
    pub(super) fn insert(&mut self, seq: u64) {
        let fits = match self {
            Self::Near(run) => run.insert(seq),
            Self::Wide(run) => run.insert(seq),
            Self::Far(seqs) => {
                if let Err(at) = seqs.binary_search(&seq) {
                    seqs.insert(at, seq);
                }
                true
            }
        };
        if !fits {
            self.widen();
            self.insert(seq);
        }
    }

    /// Switches to wider numbers.
    fn widen(&mut self) {
        let far = |line: &Self| Self::Far(Box::new(line.iter().collect()));
        *self = match self {
            Self::Near(run) => {
                let mut wide = PackedSeqs::new(0);
                // Keep the capacity that a snapshot reserved.
                let said = if run.seqs.spilled() { run.seqs.capacity() } else { 0 };
                wide.seqs.reserve_exact(said.max(run.left().len() + 1));
                match self.iter().all(|seq| wide.insert(seq)) {
                    true => Self::Wide(wide),
                    false => far(self),
                }
            }
            Self::Wide(_) | Self::Far(_) => far(self),
        };
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
    fn a_list_holds_distant_sequence_numbers() {
        let mut line = SeqList::default();
        for seq in [10, 12, 10, 1 << 20, 11] {
            line.insert(seq);
        }
        assert!(matches!(line, SeqList::Wide(_)), "{line:?}");
        assert_eq!(line.iter().collect::<Vec<_>>(), [10, 11, 12, 1 << 20]);
        for seq in [5, 1 << 40, 10] {
            line.insert(seq);
        }
        assert!(matches!(line, SeqList::Far(_)), "{line:?}");
        assert_eq!(line.iter().collect::<Vec<_>>(), [5, 10, 11, 12, 1 << 20, 1 << 40]);
        assert_eq!(line.lower_bound(11), 2);
    }

    #[test]
    fn agrees_with_a_set() {
        let (mut line, mut set) = (SeqList::default(), BTreeSet::new());
        let mut state = 3_u64;
        for step in 0..20_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = state >> 33;
            // The list grows and shrinks repeatedly.
            if random % 10 < if step / 500 % 2 == 0 { 7 } else { 3 } {
                // Sometimes a number that was removed long ago returns.
                let far = if step > 10_000 && random.is_multiple_of(50) { 1 << 17 } else { 0 };
                let seq = step + 50 + far - random % 60 % (step + 1);
                line.insert(seq);
                set.insert(seq);
            } else {
                line.pop();
                set.pop_first();
            }
            assert_eq!((line.len(), line.first()), (set.len(), set.first().copied()));
            let probe = step + random % 100;
            assert_eq!(line.lower_bound(probe), set.range(..probe).count());
        }
        assert!(line.iter().eq(set));
    }
}
