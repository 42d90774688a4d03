//! Finds queues and topics for protocols that ignore case.
//!
//! Names are ordered by bytes, so spellings of one name are not adjacent. The search follows existing prefixes, in both
//! cases of each letter. It needs no second index, and its work grows only with the number of similar names.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;

use malote_model::{Address, QueueName};

use super::Core;
use crate::command::Resolution;

/// Prefixes that one search examines. Only names that were chosen to differ in nothing but case need more.
const LOOKS_MAX: usize = 4096;

/// The names that are equal except for case.
#[derive(Debug, PartialEq, Eq)]
enum CaseMatch<N> {
    None,
    One(N),
    /// Two or more, or too many to search.
    Several,
}

impl Core {
    /// The queue or else the topic of a name: by exact name, otherwise ignoring case if only one matches.
    pub(super) fn resolve(&self, name: &QueueName) -> Resolution {
        if let Some((name, _)) = self.names.get_key_value(name) {
            return Resolution::Found(Address::Queue(name.clone()));
        }
        if let Some((name, _)) = self.topic_names.get_key_value(name.as_str()) {
            return Resolution::Found(Address::Topic(name.clone()));
        }
        match match_case(&self.names, name.as_str()) {
            CaseMatch::One(name) => Resolution::Found(Address::Queue(name)),
            CaseMatch::Several => Resolution::Ambiguous,
            CaseMatch::None => match match_case(&self.topic_names, name.as_str()) {
                CaseMatch::One(name) => Resolution::Found(Address::Topic(name)),
                CaseMatch::Several => Resolution::Ambiguous,
                CaseMatch::None => Resolution::Missing,
            },
        }
    }
}

fn match_case<N: Ord + Clone + Borrow<str>, V>(
    names: &BTreeMap<N, V>,
    wanted: &str,
) -> CaseMatch<N> {
    let mut found = CaseMatch::None;
    let mut looks = 0;
    // Prefixes of existing names that match so far.
    let mut open = vec![String::new()];
    while let Some(prefix) = open.pop() {
        looks += 1;
        if looks > LOOKS_MAX {
            return CaseMatch::Several;
        }
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let first = names.range::<str, _>(from).next().map(|(name, _)| name);
        let Some(first) = first.filter(|name| (*name).borrow().starts_with(&prefix)) else {
            continue;
        };
        let Some(next) = wanted[prefix.len()..].chars().next() else {
            if first.borrow() == prefix {
                match found {
                    CaseMatch::None => found = CaseMatch::One(first.clone()),
                    CaseMatch::One(_) | CaseMatch::Several => return CaseMatch::Several,
                }
            }
            continue;
        };
        let (lower, upper) = (next.to_ascii_lowercase(), next.to_ascii_uppercase());
        open.push(format!("{prefix}{lower}"));
        if upper != lower {
            open.push(format!("{prefix}{upper}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> BTreeMap<QueueName, ()> {
        all.iter().map(|name| (QueueName::new(name).unwrap(), ())).collect()
    }

    fn find(all: &BTreeMap<QueueName, ()>, wanted: &str) -> CaseMatch<String> {
        match match_case(all, wanted) {
            CaseMatch::None => CaseMatch::None,
            CaseMatch::One(name) => CaseMatch::One(name.to_string()),
            CaseMatch::Several => CaseMatch::Several,
        }
    }

    #[test]
    fn a_unique_name_in_another_case_is_found() {
        let all = names(&["Admin-q", "admin", "été/A", "sales/Subscriptions/Audit", "TWO", "Two"]);
        for (wanted, found) in [
            ("aDmin-q", CaseMatch::One("Admin-q")),
            ("ADMIN", CaseMatch::One("admin")),
            ("été/a", CaseMatch::One("été/A")),
            ("SALES/Subscriptions/audit", CaseMatch::One("sales/Subscriptions/Audit")),
            ("two", CaseMatch::Several),
            ("adm", CaseMatch::None),
            ("admin-queue", CaseMatch::None),
            // Only ASCII letters are matched in both cases.
            ("ÉTÉ/A", CaseMatch::None),
        ] {
            let found = match found {
                CaseMatch::One(name) => CaseMatch::One(name.to_owned()),
                CaseMatch::None => CaseMatch::None,
                CaseMatch::Several => CaseMatch::Several,
            };
            assert_eq!(find(&all, wanted), found, "{wanted}");
        }
    }

    #[test]
    fn colliding_names_do_not_slow_down_the_lookup() {
        // Every spelling of twelve letters, with different suffixes: each prefix exists.
        let all = (0..1_u32 << 12).map(|bits| {
            let letter = |at: u32| if bits >> at & 1 == 1 { 'A' } else { 'a' };
            let name: String = (0..12).map(letter).collect();
            (QueueName::new(&format!("{name}-{bits}")).unwrap(), ())
        });
        let all: BTreeMap<QueueName, ()> = all.collect();
        assert_eq!(find(&all, "aaaaaaaaaaaa-x"), CaseMatch::Several);
    }
}
