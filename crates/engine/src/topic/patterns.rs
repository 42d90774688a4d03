//! Rules with patterns over the words of a key: a trie, walked once per publish.
//!
//! The walk keeps the set of nodes that the words so far can lead to, and advances all of them by one word at a time.
//! So a publish costs at most words × nodes, whatever the patterns are, and usually a few nodes per word: a literal
//! child is one lookup.

use hashbrown::HashTable;
use malote_model::filter::words;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ids::{RuleId, RuleIds};

const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;

/// The nodes that the words so far can lead to; usually a few.
type Nodes = SmallVec<[u32; 16]>;

#[derive(Debug)]
pub(super) struct Patterns {
    nodes: Vec<PatternNode>,
    free: Vec<u32>,
    /// Children by parent and word: the hash and the child. One table for all nodes, because most have one child.
    literals: HashTable<(u64, u32)>,
    hash_seed: u64,
}

#[derive(Debug)]
struct PatternNode {
    parent: u32,
    label: Label,
    /// The child under `*`.
    star: u32,
    /// The child under `#`.
    hash: u32,
    children: u32,
    ids: RuleIds,
}

#[derive(Debug, PartialEq, Eq)]
enum Label {
    Root,
    Word(Box<str>),
    Star,
    Hash,
    Free,
}

impl Patterns {
    pub(super) fn new(hash_seed: u64) -> Self {
        let nodes = vec![PatternNode::new(NONE, Label::Root)];
        Self { nodes, free: Vec::new(), literals: HashTable::new(), hash_seed }
    }

    pub(super) fn insert(&mut self, pattern: &str, id: RuleId) {
        let mut at = ROOT;
        for word in parts(pattern) {
            at = match self.child(at, word) {
                NONE => self.add(at, word),
                child => child,
            };
        }
        self.nodes[at as usize].ids.insert(id);
    }

    pub(super) fn remove(&mut self, pattern: &str, id: RuleId) {
        let mut at = ROOT;
        for word in parts(pattern) {
            at = self.child(at, word);
            if at == NONE {
                return;
            }
        }
        self.nodes[at as usize].ids.remove(id);
        // Remove nodes without rules and children.
        while at != ROOT && self.nodes[at as usize].is_idle() {
            at = self.take(at);
        }
    }

    /// Calls `hit` once for every rule whose pattern matches the key.
    pub(super) fn of(&self, key: &str, mut hit: impl FnMut(RuleId)) {
        if self.nodes[ROOT as usize].is_idle() {
            return;
        }
        let (mut now, mut next) = (Nodes::new(), Nodes::new());
        self.add_with_hash(ROOT, &mut now);
        for word in words(key) {
            for &at in &now {
                let node = &self.nodes[at as usize];
                if node.label == Label::Hash {
                    next.push(at);
                }
                if node.children == 0 {
                    continue;
                }
                self.add_with_hash(node.star, &mut next);
                self.add_with_hash(self.literal(at, word), &mut next);
            }
            // A `#` may be reached by staying there and by arriving there again.
            next.sort_unstable();
            next.dedup();
            std::mem::swap(&mut now, &mut next);
            next.clear();
            if now.is_empty() {
                return;
            }
        }
        for at in now {
            self.nodes[at as usize].ids.for_each(&mut hit);
        }
    }

    /// Adds a node and its `#` child, which also matches zero words.
    fn add_with_hash(&self, at: u32, set: &mut Nodes) {
        if at == NONE {
            return;
        }
        set.push(at);
        let hash = self.nodes[at as usize].hash;
        if hash != NONE {
            set.push(hash);
        }
    }

    fn child(&self, at: u32, word: &str) -> u32 {
        let node = &self.nodes[at as usize];
        match word {
            "*" => node.star,
            "#" => node.hash,
            word => self.literal(at, word),
        }
    }

    fn literal(&self, at: u32, word: &str) -> u32 {
        let hash = self.hash_of(at, word);
        let is_it = |&(have, child): &(u64, u32)| {
            let node = &self.nodes[child as usize];
            have == hash
                && node.parent == at
                && matches!(&node.label, Label::Word(label) if **label == *word)
        };
        self.literals.find(hash, is_it).map_or(NONE, |&(_, child)| child)
    }

    fn hash_of(&self, parent: u32, word: &str) -> u64 {
        let seed = self.hash_seed ^ u64::from(parent).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        xxh3_64_with_seed(word.as_bytes(), seed)
    }

    fn add(&mut self, parent: u32, word: &str) -> u32 {
        let label = match word {
            "*" => Label::Star,
            "#" => Label::Hash,
            word => Label::Word(word.into()),
        };
        let node = PatternNode::new(parent, label);
        let child = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        let above = &mut self.nodes[parent as usize];
        above.children += 1;
        match word {
            "*" => above.star = child,
            "#" => above.hash = child,
            word => {
                let hash = self.hash_of(parent, word);
                self.literals.insert_unique(hash, (hash, child), |&(hash, _)| hash);
            }
        }
        child
    }

    /// Removes a leaf and returns its parent.
    fn take(&mut self, leaf: u32) -> u32 {
        let PatternNode { parent, label, .. } =
            std::mem::replace(&mut self.nodes[leaf as usize], PatternNode::new(NONE, Label::Free));
        self.free.push(leaf);
        let above = &mut self.nodes[parent as usize];
        above.children -= 1;
        match label {
            Label::Star => above.star = NONE,
            Label::Hash => above.hash = NONE,
            Label::Word(word) => {
                let hash = self.hash_of(parent, &word);
                if let Ok(entry) = self.literals.find_entry(hash, |&(_, child)| child == leaf) {
                    entry.remove();
                }
            }
            Label::Root | Label::Free => {}
        }
        parent
    }

    #[cfg(test)]
    pub(super) fn nodes_in_use(&self) -> usize {
        self.nodes.len() - self.free.len()
    }
}

impl PatternNode {
    fn new(parent: u32, label: Label) -> Self {
        Self { parent, label, star: NONE, hash: NONE, children: 0, ids: RuleIds::default() }
    }

    /// Whether the node has no rules and no children.
    fn is_idle(&self) -> bool {
        self.children == 0 && self.ids.is_empty()
    }
}

/// The words of a pattern. Repeated `#` are merged, so no `#` has a child `#`.
fn parts(pattern: &str) -> impl Iterator<Item = &str> {
    let mut after_hash = false;
    words(pattern).filter(move |word| {
        let again = after_hash && *word == "#";
        after_hash = *word == "#";
        !again
    })
}
