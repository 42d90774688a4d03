//! A column of the index: plain while its block grows, packed once it is full.
//!
//! Packed values are offsets from a straight line, each with as many bits as the largest needs. Positions of messages
//! grow evenly and their sizes are similar, so a few bits are enough.

use super::index::BLOCK_MAX;

#[derive(Debug, Clone)]
pub(super) enum Column {
    Plain(Vec<u32>),
    Packed(Packed),
}

impl Default for Column {
    fn default() -> Self {
        Self::Plain(Vec::new())
    }
}

impl Column {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Plain(values) => values.len(),
            Self::Packed(packed) => packed.len as usize,
        }
    }

    pub(super) fn get(&self, i: usize) -> u32 {
        match self {
            Self::Plain(values) => values[i],
            Self::Packed(packed) => packed.get(i),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        (0..self.len()).map(|i| self.get(i))
    }

    pub(super) fn push(&mut self, value: u32) {
        put(self.plain(), value);
    }

    pub(super) fn set(&mut self, i: usize, value: u32) {
        self.plain()[i] = value;
    }

    fn plain(&mut self) -> &mut Vec<u32> {
        if let Self::Packed(packed) = self {
            *self = Self::Plain((0..packed.len as usize).map(|i| packed.get(i)).collect());
        }
        match self {
            Self::Plain(values) => values,
            Self::Packed(_) => unreachable!("it was unpacked"),
        }
    }

    /// Packs the column, which will rarely change from here on.
    pub(super) fn pack(&mut self) {
        if let Self::Plain(values) = self {
            *self = Self::Packed(Packed::new(values));
        }
    }
}

/// Doubles the capacity of a column, but never beyond a whole block.
pub(super) fn put<T>(column: &mut Vec<T>, value: T) {
    if column.len() == column.capacity() {
        column.reserve_exact(column.len().clamp(4, BLOCK_MAX.saturating_sub(column.len()).max(4)));
    }
    column.push(value);
}

#[derive(Debug, Clone)]
pub(super) struct Packed {
    /// The slope of the line, with sixteen fractional bits.
    slope: u64,
    /// The lowest offset from the line.
    low: i64,
    len: u32,
    bits: u32,
    words: Box<[u64]>,
}

impl Packed {
    fn new(values: &[u32]) -> Self {
        let steps = values.len().saturating_sub(1).max(1) as u64;
        let rise = match values {
            [first, .., last] => u64::from(last.saturating_sub(*first)),
            _ => 0,
        };
        let mut packed = Self {
            slope: (rise << 16) / steps,
            low: 0,
            len: values.len() as u32,
            bits: 0,
            words: Box::default(),
        };
        let height = |i: usize, value: u32| i64::from(value) - packed.line(i);
        let heights = || values.iter().enumerate().map(|(i, &value)| height(i, value));
        let low = heights().min().unwrap_or(0);
        let span = heights().max().unwrap_or(0).abs_diff(low);
        let bits = 64 - span.leading_zeros();
        let mut words = vec![0; (values.len() * bits as usize).div_ceil(64)];
        for (i, height) in heights().enumerate() {
            let (above, at) = (height.abs_diff(low), i * bits as usize);
            let (word, shift) = (at / 64, at % 64);
            if bits > 0 {
                words[word] |= above << shift;
            }
            if shift + bits as usize > 64 {
                words[word + 1] |= above >> (64 - shift);
            }
        }
        (packed.low, packed.bits, packed.words) = (low, bits, words.into());
        packed
    }

    fn line(&self, i: usize) -> i64 {
        ((self.slope * i as u64) >> 16) as i64
    }

    fn get(&self, i: usize) -> u32 {
        let bits = self.bits as usize;
        let (word, shift) = (i * bits / 64, i * bits % 64);
        let mut above = self.words.get(word).map_or(0, |word| word >> shift);
        if shift + bits > 64 {
            above |= self.words[word + 1] << (64 - shift);
        }
        let above = above & !(u64::MAX << bits);
        (self.line(i) + self.low + above as i64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(values: &[u32]) -> Packed {
        let mut column = Column::default();
        values.iter().for_each(|&value| column.push(value));
        column.pack();
        assert!(column.iter().eq(values.iter().copied()));
        let Column::Packed(packed) = column else { panic!("it is not packed") };
        packed
    }

    #[test]
    fn all_numbers_round_trip() {
        let mut state = 5_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 32) as u32
        };
        packed(&[]);
        packed(&[7]);
        packed(&[u32::MAX, 0]);
        packed(&[0, u32::MAX, 0, u32::MAX]);
        for bits in 0..32 {
            for len in [2, 63, 64, 65, 1000] {
                let values: Vec<u32> = (0..len).map(|_| random() >> bits).collect();
                packed(&values);
            }
        }
    }

    #[test]
    fn evenly_growing_values_are_packed_in_few_bits() {
        let even: Vec<u32> = (0..4095).map(|i| i * 173 + i / 10 * 24).collect();
        assert!(packed(&even).bits <= 9, "{}", packed(&even).bits);
        assert_eq!(packed(&[1024; 4095]).bits, 0);
        // The slope may be fractional.
        let odd: Vec<u32> = (0..4095).map(|i| i * 1001 / 10).collect();
        assert!(packed(&odd).bits <= 2);
    }

    #[test]
    fn a_packed_column_can_still_change() {
        let mut column = Column::default();
        (0..100).for_each(|i| column.push(i));
        column.pack();
        column.set(50, u32::MAX);
        assert_eq!((column.get(49), column.get(50), column.len()), (49, u32::MAX, 100));
    }
}
