//! Plain English: turns of phrase that make a reader stop, and what to write instead.
//!
//! The list is short on purpose. It has phrases that were common here once and that no reader knows from elsewhere.

use super::Tree;
use anyhow::Result;
use std::path::Path;

/// Each phrase with a better one. Split so that this file does not find itself.
const PHRASES: &[(&str, &str)] = &[
    (concat!("who", "ever"), "name the caller, client, receiver or thread"),
    (concat!("so ", "many"), "say the number, or name what is counted"),
    (concat!("what is ", "there"), "name what exists"),
    (concat!("is ", "told"), "gets, receives, is notified, is configured with"),
    (concat!("are ", "told"), "get, receive, are notified, are configured with"),
    (concat!("unless it is ", "said"), "by default"),
    (concat!("unless ", "told"), "by default"),
    (concat!("nobody ", "knows"), "unknown"),
    (concat!("in ", "hand"), "in flight, held, unsettled, or name the thing"),
    (concat!("let ", "go"), "release, drop, close"),
    (concat!("just ", "so"), "with these settings"),
    (concat!("none ", "that"), "name what does not exist"),
    (concat!("does ", "away"), "deletes, removes"),
    (concat!("as it ", "should be"), "say what is expected"),
    (concat!("it is ", "said"), "name the source"),
    (concat!("how far it ", "came"), "an unknown prefix"),
    (concat!("the ", "story"), "the trace, the log, the failure"),
    (concat!("by its ", "word"), "by its name"),
    (concat!("how it ", "fared"), "its result"),
];

/// Files whose English is not ours.
const FOREIGN: &[&str] = &["LICENSE", "Cargo.lock"];

pub(super) fn check(tree: &Tree, found: &mut Vec<String>) -> Result<()> {
    for extension in ["rs", "md", "toml", "py", "js", "mjs", "go", "java", "sh"] {
        for path in tree.with_extension(extension) {
            if !FOREIGN.iter().any(|name| path.ends_with(name)) {
                check_text(path, &tree.read(path)?, found);
            }
        }
    }
    Ok(())
}

fn check_text(path: &Path, text: &str, found: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for (phrase, instead) in PHRASES {
            if contains_phrase(&lower, phrase) {
                let (path, number) = (path.display(), number + 1);
                found.push(format!("{path}:{number}: `{phrase}`: rather {instead}"));
            }
        }
    }
}

/// A hit inside a longer word does not count, nor does one in an identifier or an assignment such as `let go = …`.
fn contains_phrase(line: &str, phrase: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(phrase).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + phrase.len()..].chars().next();
        let assigned = line[start + phrase.len()..].trim_start().starts_with('=');
        !before.is_some_and(is_word) && !after.is_some_and(is_word) && !assigned
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        let mut found = Vec::new();
        check_text(Path::new("a.rs"), text, &mut found);
        found.len()
    }

    #[test]
    fn phrases_are_found_in_any_case_and_only_as_words() {
        assert_eq!(found(concat!("// Who", "ever asks first")), 1);
        assert_eq!(found(concat!("/// Keeps so ", "many messages; the caller is ", "told")), 2);
        assert_eq!(found("let so_many = 1; // in handler"), 0);
        assert_eq!(found(concat!("let ", "go = 1;")), 0);
        assert_eq!(found("fn outlet() {} // outlet gorge"), 0);
    }
}
