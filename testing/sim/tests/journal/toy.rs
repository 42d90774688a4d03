//! A minimal core that checks its own consistency. It detects groups that are incomplete, repeated, out of order or
//! changed.

use std::collections::BTreeMap;

use malote_engine::journal::{Pos, Replay};
use malote_sim::rng::Rng;

/// Stays live until it is settled.
pub const PUT: u8 = 1;
/// Settles an earlier group.
pub const SETTLE: u8 = 2;

/// Ids from here on have bodies of one size, so that frames of earlier runs have the same offsets.
pub const UNIFORM: u64 = 1 << 40;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Toy {
    /// Every group that was applied, in order.
    pub order: Vec<u64>,
    /// Groups whose bodies may still be read.
    pub live: BTreeMap<u64, Pos>,
    open: Option<(u64, u8)>,
}

/// The body of frame `index` in a group of `count`. Its content follows from the id.
pub fn body(id: u64, index: u8, count: u8, target: u64, out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&target.to_le_bytes());
    out.extend_from_slice(&[index, count]);
    let mut rng = Rng::new(id << 8 | index as u64);
    let len = match rng.below(20) {
        _ if id >= UNIFORM => 100,
        _ if target > 0 => 10, // settlements are small
        0 => rng.below(7000),
        1..=5 => rng.below(900),
        _ => rng.below(120),
    };
    out.resize(out.len() + len as usize, (id as u8) ^ index);
    let check = check(&out[at..]);
    out.extend_from_slice(&check.to_le_bytes());
}

fn check(bytes: &[u8]) -> u64 {
    use std::hash::Hasher;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Id, target, index and count of a valid body.
pub fn parse(body: &[u8]) -> (u64, u64, u8, u8) {
    assert!(body.len() >= 26, "a body is too short");
    let (content, sum) = body.split_at(body.len() - 8);
    assert_eq!(check(content), u64_at(sum, 0), "a body was changed");
    (u64_at(body, 0), u64_at(body, 8), body[16], body[17])
}

impl Replay for Toy {
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        *self = Toy::default();
        let count = u64_at(snapshot, 0) as usize;
        let words: Vec<u64> =
            snapshot.chunks_exact(8).skip(1).map(|word| u64_at(word, 0)).collect();
        self.order = words[..count].to_vec();
        let live = words[count..].chunks_exact(2);
        self.live = live.map(|pair| (pair[0], Pos::from_u64(pair[1]))).collect();
        Ok(())
    }

    fn apply(&mut self, pos: Pos, kind: u8, body: &[u8]) {
        let (id, target, index, count) = parse(body);
        let expected = self.open.take().unwrap_or((id, 0));
        assert_eq!((id, index), expected, "an incomplete group was replayed at {pos}");
        if kind == SETTLE {
            self.live.remove(&target);
        } else if index == 0 {
            self.live.insert(id, pos);
        }
        if index + 1 < count {
            self.open = Some((id, index + 1));
        } else {
            assert!(
                self.order.last().is_none_or(|&last| last < id),
                "group {id} is repeated or out of order"
            );
            self.order.push(id);
        }
    }

    fn save(&self, out: &mut Vec<u8>) {
        assert_eq!(self.open, None, "a snapshot was taken inside a group");
        let count = [self.order.len() as u64];
        let live = self.live.iter().flat_map(|(id, pos)| [*id, pos.get()]);
        for word in count.into_iter().chain(self.order.iter().copied()).chain(live) {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn live(&self, mark: &mut dyn FnMut(Pos, u64)) {
        self.live.values().for_each(|&pos| mark(pos, 1));
    }
}
