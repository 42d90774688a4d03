//! Plain English: turns of phrase that make a reader stop, and what to write instead.
//!
//! The lists are short on purpose. They have phrases that were common here once and that no reader knows from elsewhere.
//! Doc comments of one or two words are reported as well: they only repeat the name.

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
    (concat!("so ", "often"), "say the number, or name what is counted"),
    (concat!("for ", "ever"), "permanently, without limit, always"),
    (concat!("stands for ", "itself"), "say what it does not depend on"),
];

/// Words that are reported in comments and documents only, because programs use them as names.
const PROSE_WORDS: &[(&str, &str)] = &[
    (concat!("no", "body"), "no caller, no client, no other process"),
    (concat!("some", "body"), "a caller, another client, another process"),
    (concat!("every", "body"), "every user, all clients"),
    (concat!("any", "body"), "a caller, any client"),
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
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let is_document = path.extension().is_some_and(|extension| extension == "md");
    for (number, line) in text.lines().enumerate() {
        let (place, lower) = (format!("{}:{}", path.display(), number + 1), line.to_lowercase());
        let prose = match lower.split_once("// ") {
            Some((_, comment)) if !is_document => comment,
            _ if is_document => &*lower,
            _ => "",
        };
        let phrases = PHRASES.iter().filter(|(phrase, _)| contains_phrase(&lower, phrase));
        let words = PROSE_WORDS.iter().filter(|(word, _)| contains_phrase(prose, word));
        for (phrase, instead) in phrases.chain(words) {
            found.push(format!("{place}: `{phrase}`: rather {instead}"));
        }
    }
    // Help texts of commands are doc comments, and may be short.
    if is_rust && !text.contains("clap::") {
        for (number, comment) in short_doc_comments(text) {
            let place = format!("{}:{number}", path.display());
            found.push(format!(
                "{place}: `{comment}` only repeats the name: explain it, or leave it out"
            ));
        }
    }
}

/// The numbers and texts of doc comments with one or two words. A comment that consists of code is not one.
fn short_doc_comments(text: &str) -> Vec<(usize, &str)> {
    let doc = |line: &'_ str| line.trim_start().starts_with("///");
    let lines: Vec<&str> = text.lines().collect();
    let alone = |at: usize| {
        let before = at.checked_sub(1).is_some_and(|before| doc(lines[before]));
        let after = lines.get(at + 1).is_some_and(|after| doc(after));
        doc(lines[at]) && !before && !after
    };
    let comments = (0..lines.len()).filter(|at| alone(*at)).map(|at| (at + 1, lines[at].trim()));
    let short = |comment: &str| comment.split_whitespace().count() <= 3 && !comment.contains('`');
    comments.filter(|(_, comment)| short(comment)).collect()
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

    #[test]
    fn some_words_are_found_only_in_comments() {
        assert_eq!(found(concat!("x(); // no", "body waits")), 1);
        assert_eq!(found(concat!("let no", "body = user(\"no", "body\");")), 0);
        let mut report = Vec::new();
        check_text(Path::new("a.md"), concat!("For every", "body.\n"), &mut report);
        assert_eq!(report.len(), 1);
    }

    #[test]
    fn doc_comments_of_two_words_are_found() {
        assert_eq!(found("/// The queue.\npub queue: String,\n"), 1);
        assert_eq!(found("/// `GET /queues`\nfn queues();\n"), 0);
        assert_eq!(found("/// The queue that\n/// is meant.\npub queue: String,\n"), 0);
        assert_eq!(found("/// New queue\n#[derive(clap::Args)]\nstruct New;\n"), 0);
    }
}
