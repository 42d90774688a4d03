//! Names for protocols that ignore case: which queue or topic is meant.
//!
//! Names are ordered by their bytes, so the spellings of one name do not stand together. The search follows the prefixes
//! that exist, in either case of each letter: it needs no second index and its work does not grow with the number of
//! names, only with how many of them are spelled alike.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;

use malote_model::{Address, QueueName};

use super::Core;
use crate::command::Resolution;

/// Prefixes that one search looks at. Only names that were made to differ in nothing but case need more.
const LOOKS_MAX: usize = 4096;

/// Names that are alike but for case.
#[derive(Debug, PartialEq, Eq)]
enum Alike<N> {
    None,
    One(N),
    /// Two or more, or too many to tell.
    Several,
}

impl Core {
    /// The queue of that name, else the topic; exactly, else in another case if only one is spelled so.
    pub(super) fn resolve(&self, name: &QueueName) -> Resolution {
        if let Some((name, _)) = self.names.get_key_value(name) {
            return Resolution::Found(Address::Queue(name.clone()));
        }
        if let Some((name, _)) = self.topic_names.get_key_value(name.as_str()) {
            return Resolution::Found(Address::Topic(name.clone()));
        }
        match alike(&self.names, name.as_str()) {
            Alike::One(name) => Resolution::Found(Address::Queue(name)),
            Alike::Several => Resolution::Ambiguous,
            Alike::None => match alike(&self.topic_names, name.as_str()) {
                Alike::One(name) => Resolution::Found(Address::Topic(name)),
                Alike::Several => Resolution::Ambiguous,
                Alike::None => Resolution::Missing,
            },
        }
    }
}

fn alike<N: Ord + Clone + Borrow<str>, V>(names: &BTreeMap<N, V>, wanted: &str) -> Alike<N> {
    let mut found = Alike::None;
    let mut looks = 0;
    // Prefixes of existing names that are alike so far.
    let mut open = vec![String::new()];
    while let Some(prefix) = open.pop() {
        looks += 1;
        if looks > LOOKS_MAX {
            return Alike::Several;
        }
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let first = names.range::<str, _>(from).next().map(|(name, _)| name);
        let Some(first) = first.filter(|name| (*name).borrow().starts_with(&prefix)) else {
            continue;
        };
        let Some(next) = wanted[prefix.len()..].chars().next() else {
            if first.borrow() == prefix {
                match found {
                    Alike::None => found = Alike::One(first.clone()),
                    Alike::One(_) | Alike::Several => return Alike::Several,
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

    fn find(all: &BTreeMap<QueueName, ()>, wanted: &str) -> Alike<String> {
        match alike(all, wanted) {
            Alike::None => Alike::None,
            Alike::One(name) => Alike::One(name.to_string()),
            Alike::Several => Alike::Several,
        }
    }

    #[test]
    fn the_only_name_that_differs_in_case_is_found_in_its_own_spelling() {
        let all = names(&["Admin-q", "admin", "été/A", "sales/Subscriptions/Audit", "TWO", "Two"]);
        for (wanted, found) in [
            ("aDmin-q", Alike::One("Admin-q")),
            ("ADMIN", Alike::One("admin")),
            ("été/a", Alike::One("été/A")),
            ("SALES/Subscriptions/audit", Alike::One("sales/Subscriptions/Audit")),
            ("two", Alike::Several),
            ("adm", Alike::None),
            ("admin-queue", Alike::None),
            // Only ASCII letters have two cases here.
            ("ÉTÉ/A", Alike::None),
        ] {
            let found = match found {
                Alike::One(name) => Alike::One(name.to_owned()),
                Alike::None => Alike::None,
                Alike::Several => Alike::Several,
            };
            assert_eq!(find(&all, wanted), found, "{wanted}");
        }
    }

    #[test]
    fn names_made_to_be_alike_do_not_make_the_search_long() {
        // Every spelling of twelve letters, with an end that differs: each prefix exists.
        let all = (0..1_u32 << 12).map(|bits| {
            let letter = |at: u32| if bits >> at & 1 == 1 { 'A' } else { 'a' };
            let name: String = (0..12).map(letter).collect();
            (QueueName::new(&format!("{name}-{bits}")).unwrap(), ())
        });
        let all: BTreeMap<QueueName, ()> = all.collect();
        assert_eq!(find(&all, "aaaaaaaaaaaa-x"), Alike::Several);
    }
}
