//! Grants: actions on a queue pattern, written `send,receive orders-*`.

use malote_model::access::Action;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Longer than any queue name that a pattern could be meant for.
const PATTERN_CHARS_MAX: usize = 512;

/// A queue pattern: `*` stands for any run of characters, `?` for one; case counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern(String);

impl Pattern {
    /// Whether the whole name fits. Takes time in the product of both lengths at worst, whatever
    /// the pattern: a star is gone back to at most once per character of the name.
    pub fn matches(&self, name: &str) -> bool {
        let (mut pattern, mut name) = (self.0.chars(), name.chars());
        // Where to go on when the last star has to take one more character.
        let mut star = None;
        loop {
            match (pattern.next(), name.clone().next()) {
                (Some('*'), _) => star = Some((pattern.clone(), name.clone())),
                (Some(wanted), Some(found)) if wanted == '?' || wanted == found => {
                    name.next();
                }
                (None, None) => return true,
                (_, _) => {
                    let Some((after_star, taken)) = &mut star else { return false };
                    if taken.next().is_none() {
                        return false;
                    }
                    (pattern, name) = (after_star.clone(), taken.clone());
                }
            }
        }
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Actions that are allowed on the queues that fit a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Grant {
    /// Sorted, without repeats, never empty.
    actions: Vec<Action>,
    queues: Pattern,
}

impl Grant {
    /// `actions` on the queues that fit `pattern`.
    pub fn new(
        actions: impl IntoIterator<Item = Action>,
        pattern: &str,
    ) -> Result<Grant, BadGrant> {
        let mut actions: Vec<Action> = actions.into_iter().collect();
        actions.sort_unstable();
        actions.dedup();
        let good = !pattern.is_empty()
            && pattern.chars().count() <= PATTERN_CHARS_MAX
            && !pattern.chars().any(char::is_control);
        if actions.is_empty() || !good {
            return Err(BadGrant { text: pattern.to_owned() });
        }
        Ok(Grant { actions, queues: Pattern(pattern.to_owned()) })
    }

    /// Everything on every queue.
    pub fn everything() -> Grant {
        Grant { actions: Action::ALL.to_vec(), queues: Pattern("*".to_owned()) }
    }

    /// Whether this grant covers the action on the queue.
    pub fn allows(&self, action: Action, queue: &str) -> bool {
        self.actions.contains(&action) && self.queues.matches(queue)
    }

    /// What is allowed.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// Where it is allowed.
    pub fn queues(&self) -> &Pattern {
        &self.queues
    }

    /// This grant without the actions of `other`; `None` when nothing is left. Only grants on the
    /// same pattern take from each other: `orders` cannot be cut out of `*`.
    pub(super) fn without(self, other: &Grant) -> Option<Grant> {
        if self.queues != other.queues {
            return Some(self);
        }
        let actions = self.actions.into_iter().filter(|a| !other.actions.contains(a)).collect();
        let left = Grant { actions, queues: self.queues };
        (!left.actions.is_empty()).then_some(left)
    }

    /// Both grants in one, if they are on the same pattern.
    pub(super) fn merge(&mut self, other: &Grant) -> bool {
        if self.queues != other.queues {
            return false;
        }
        self.actions.extend(&other.actions);
        self.actions.sort_unstable();
        self.actions.dedup();
        true
    }
}

/// A grant that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a grant: write actions and a queue pattern, such as `send,receive orders-*`"
)]
pub struct BadGrant {
    /// As written.
    pub text: String,
}

impl FromStr for Grant {
    type Err = BadGrant;

    /// `actions pattern`, the actions separated by commas.
    fn from_str(text: &str) -> Result<Grant, BadGrant> {
        let bad = || BadGrant { text: text.to_owned() };
        let (actions, pattern) = text.split_once(' ').ok_or_else(bad)?;
        let actions =
            actions.split(',').map(str::parse).collect::<Result<Vec<_>, _>>().map_err(|_| bad())?;
        Grant::new(actions, pattern).map_err(|_| bad())
    }
}

impl TryFrom<String> for Grant {
    type Error = BadGrant;

    fn try_from(text: String) -> Result<Grant, BadGrant> {
        text.parse()
    }
}

impl From<Grant> for String {
    fn from(grant: Grant) -> String {
        grant.to_string()
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, action) in self.actions.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{action}")?;
        }
        write!(f, " {}", self.queues.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern(pattern.to_owned()).matches(name)
    }

    #[test]
    fn patterns() {
        for (pattern, name, fits) in [
            ("orders", "orders", true),
            ("orders", "orders2", false),
            ("orders", "Orders", false),
            ("*", "", true),
            ("*", "anything/at.all", true),
            ("", "", true),
            ("", "a", false),
            ("?", "é", true),
            ("?", "", false),
            ("orders-*", "orders-", true),
            ("orders-*", "orders", false),
            ("*-eu", "orders-eu", true),
            ("*-eu", "orders-eu-2", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**a", "bba", true),
            ("*a?", "aab", true),
            ("*?", "", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    /// The definition, word for word.
    fn reference(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            (['*', rest @ ..], name) => {
                (0..=name.len()).any(|taken| reference(rest, &name[taken..]))
            }
            (['?', rest @ ..], [_, name @ ..]) => reference(rest, name),
            ([wanted, rest @ ..], [found, name @ ..]) => wanted == found && reference(rest, name),
            _ => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn a_pattern_means_what_its_definition_says(pattern in "[ab*?é]{0,8}", name in "[abé]{0,10}") {
            let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
            prop_assert_eq!(matches(&pattern, &name), reference(&p, &n));
        }

        #[test]
        fn a_name_fits_itself_and_any_part_of_it_a_star(name in "[a-z./-]{0,20}", cut in 0_usize..20) {
            let cut = cut.min(name.len());
            prop_assert!(matches(&name, &name));
            let start = format!("{}*", &name[..cut]);
            let end = format!("*{}", &name[cut..]);
            prop_assert!(matches(&start, &name));
            prop_assert!(matches(&end, &name));
        }

        #[test]
        fn a_grant_reads_back_as_written(actions in proptest::sample::subsequence(Action::ALL.to_vec(), 1..=3), pattern in "[a-z*? ]{1,20}") {
            let grant = Grant::new(actions, &pattern).unwrap();
            prop_assert_eq!(grant.to_string().parse(), Ok(grant));
        }
    }

    #[test]
    fn a_hostile_pattern_ends_in_time() {
        assert!(!matches(&"*a".repeat(200), &"a".repeat(199)));
        assert!(!matches(&format!("{}b", "*a".repeat(100)), &"a".repeat(20_000)));
    }

    #[test]
    fn bad_grants_are_refused() {
        for text in
            ["", "send", "send ", "fly orders", "send,fly orders", "Send orders", "send a\nb"]
        {
            assert!(text.parse::<Grant>().is_err(), "{text}");
        }
        assert_eq!(
            "fly orders".parse::<Grant>().unwrap_err().to_string(),
            "`fly orders` is not a grant: write actions and a queue pattern, such as \
             `send,receive orders-*`"
        );
    }
}
