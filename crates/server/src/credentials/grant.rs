//! Grants: actions on a queue pattern, written `send,receive orders-*`.
//!
//! | in a pattern | matches |
//! |---|---|
//! | `*` alone | every name |
//! | `*` | any characters within one segment: it does not cross `/` |
//! | `**` | any characters, including slashes |
//! | `?` | one character except `/` |
//! | anything else | itself, case-sensitive |
//!
//! A pattern must match the whole name. A subscription's name is `topic/Subscriptions/name`, so `sales/**` covers all
//! subscriptions of the topic `sales`, and `sales` covers only the topic.

use malote_model::access::{Action, Resource};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::{Chars, FromStr};

/// Twice the length of the longest queue name, because a pattern of version 1 may have doubled.
const PATTERN_CHARS_MAX: usize = 1024;

/// The pattern that matches every name.
const EVERY_NAME: &str = "*";

/// Which queues and topics a grant is for. The syntax is described in the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern(String);

impl Pattern {
    /// Whether the resource is covered. Only the pattern that matches every name covers the whole server.
    fn covers(&self, on: Resource<'_>) -> bool {
        match on.name() {
            Some(name) => self.matches(name),
            None => self.0.bytes().all(|byte| byte == b'*'),
        }
    }

    /// Whether the whole name matches. A star is extended only if nothing after it matches, so a hostile pattern costs
    /// at most the product of the lengths per character of the name.
    pub fn matches(&self, name: &str) -> bool {
        if self.0 == EVERY_NAME {
            return true;
        }
        let (mut pattern, mut name) = (self.0.chars(), name.chars());
        // Where to continue if the last star of either kind has to match one more character. What follows a `**` is
        // matched as early as possible, so an earlier star never has to be extended again.
        let (mut star, mut double): (Option<StarRetry<'_>>, Option<StarRetry<'_>>) = (None, None);
        loop {
            match (pattern.next(), name.clone().next()) {
                (Some('*'), _) => {
                    let mut doubled = false;
                    while pattern.as_str().starts_with('*') {
                        pattern.next();
                        doubled = true;
                    }
                    let retry = Some((pattern.clone(), name.clone()));
                    if doubled { (star, double) = (None, retry) } else { star = retry }
                }
                (Some(wanted), Some(found)) if fits(wanted, found) => {
                    name.next();
                }
                (None, None) => return true,
                (_, _) => {
                    if star.as_ref().is_some_and(|(_, taken)| taken.as_str().starts_with('/')) {
                        star = None;
                    }
                    let Some((after_star, taken)) = star.as_mut().or(double.as_mut()) else {
                        return false;
                    };
                    if taken.next().is_none() {
                        return false;
                    }
                    (pattern, name) = (after_star.clone(), taken.clone());
                }
            }
        }
    }

    /// Converts a pattern of version 1, in which `*` crossed slashes.
    fn crossing(self) -> Pattern {
        if self.0 == EVERY_NAME {
            return self;
        }
        let mut crossing = String::with_capacity(self.0.len());
        for part in self.0.chars() {
            // A run of stars is converted once.
            if part != '*' || !crossing.ends_with("**") {
                crossing.push(part);
            }
            if part == '*' && !crossing.ends_with("**") {
                crossing.push(part);
            }
        }
        Pattern(crossing)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether one character of a pattern, other than a star, matches one of a name.
fn fits(wanted: char, found: char) -> bool {
    if wanted == '?' { found != '/' } else { wanted == found }
}

/// The rest of the pattern after a star, and the rest of the name that the star has not matched.
type StarRetry<'a> = (Chars<'a>, Chars<'a>);

/// Actions that are allowed on the queues that match a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Grant {
    /// Sorted, without duplicates, never empty.
    actions: Vec<Action>,
    queues: Pattern,
}

impl Grant {
    /// `actions` on the queues that match `pattern`.
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
        Grant { actions: Action::ALL.to_vec(), queues: Pattern(EVERY_NAME.to_owned()) }
    }

    /// Whether this grant allows the action on a resource.
    pub fn allows(&self, action: Action, on: Resource<'_>) -> bool {
        self.actions.contains(&action) && self.queues.covers(on)
    }

    /// Converts a grant of version 1 of the file, in which `*` crossed slashes. `?` did so, too; that is not preserved,
    /// because no pattern expresses it.
    pub(super) fn of_version_1(self) -> Grant {
        Grant { actions: self.actions, queues: self.queues.crossing() }
    }

    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    pub fn queues(&self) -> &Pattern {
        &self.queues
    }

    /// This grant without the actions of `other`; `None` if none is left. Only grants with the same pattern are
    /// affected: `orders` cannot be removed from `*`.
    pub(super) fn without(self, other: &Grant) -> Option<Grant> {
        if self.queues != other.queues {
            return Some(self);
        }
        let actions = self.actions.into_iter().filter(|a| !other.actions.contains(a)).collect();
        let left = Grant { actions, queues: self.queues };
        (!left.actions.is_empty()).then_some(left)
    }

    /// Merges a grant with the same pattern. Returns false if the pattern differs.
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

/// An invalid grant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a grant: write actions and a queue pattern, such as `send,receive orders-*`"
)]
pub struct BadGrant {
    pub text: String,
}

impl FromStr for Grant {
    type Err = BadGrant;

    /// `actions pattern`, with the actions separated by commas.
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
            ("a*", "Admin-q", false),
            ("*", "", true),
            ("*", "anything/at.all", true),
            ("", "", true),
            ("", "a", false),
            ("?", "é", true),
            ("?", "", false),
            ("a?b", "a/b", false),
            ("a?b", "a?b", true),
            ("orders-*", "orders-", true),
            ("orders-*", "orders", false),
            ("*-eu", "orders-eu", true),
            ("*-eu", "orders-eu-2", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**a", "bba", true),
            ("*a?", "aab", true),
            ("*?", "", false),
            // A star stays within its segment.
            ("team-*", "team-a", true),
            ("team-*", "team-a/secret", false),
            ("*a", "x/a", false),
            ("*/a", "x/a", true),
            ("*/a", "x/y/a", false),
            ("sales*", "sales/Subscriptions/audit", false),
            ("sales/Subscriptions/*", "sales/Subscriptions/audit", true),
            ("sales/*", "sales/Subscriptions/audit", false),
            // Two stars cross slashes.
            ("sales/**", "sales/Subscriptions/audit", true),
            ("sales/**", "sales", false),
            ("sales**", "sales/Subscriptions/audit", true),
            ("**/audit", "sales/Subscriptions/audit", true),
            ("**", "a/b/c", true),
            ("***", "a/b/c", true),
            ("a**b*c", "a/b/bc", true),
            ("**b*c", "b/x/bxc", true),
            ("**b*c", "bx/c", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    /// The definition, implemented literally.
    fn reference(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            (['*', '*', rest @ ..], name) => {
                let rest = match rest.iter().position(|c| *c != '*') {
                    Some(end) => &rest[end..],
                    None => &[],
                };
                (0..=name.len()).any(|taken| reference(rest, &name[taken..]))
            }
            (['*', rest @ ..], name) => {
                let end = name.iter().position(|c| *c == '/').unwrap_or(name.len());
                (0..=end).any(|taken| reference(rest, &name[taken..]))
            }
            (['?', rest @ ..], [found, name @ ..]) => *found != '/' && reference(rest, name),
            ([wanted, rest @ ..], [found, name @ ..]) => wanted == found && reference(rest, name),
            _ => false,
        }
    }

    #[test]
    fn a_pattern_of_the_first_version_keeps_its_meaning() {
        for (was, is) in [
            ("*", "*"),
            ("orders", "orders"),
            ("a*", "a**"),
            ("*-eu-*", "**-eu-**"),
            ("a**b", "a**b"),
        ] {
            assert_eq!(Pattern(was.to_owned()).crossing().as_str(), is);
        }
    }

    #[test]
    fn only_every_name_is_everything() {
        let covers = |pattern: &str| Pattern(pattern.to_owned()).covers(Resource::EVERYTHING);
        assert!(covers("*") && covers("**"));
        assert!(!covers("**a") && !covers("?") && !covers("a*"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8192))]
        #[test]
        fn a_pattern_means_what_its_definition_says(pattern in "[ab*?/é]{0,9}", name in "[ab/é]{0,10}") {
            prop_assume!(pattern != "*");
            let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
            prop_assert_eq!(matches(&pattern, &name), reference(&p, &n));
        }

        #[test]
        fn a_name_fits_itself_and_any_part_of_it_two_stars(name in "[a-z./-]{0,20}", cut in 0_usize..20) {
            let cut = cut.min(name.len());
            prop_assert!(matches(&name, &name));
            let start = format!("{}**", &name[..cut]);
            let end = format!("**{}", &name[cut..]);
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
        assert!(!matches(&format!("{}b", "**a*a".repeat(50)), &"a".repeat(400)));
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
