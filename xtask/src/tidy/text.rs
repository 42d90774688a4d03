//! Leftover marks, and file sizes.

use super::Tree;
use anyhow::Result;
use std::path::Path;

/// A longer file probably contains two concepts.
const LINES_MAX: usize = 800;

/// Each word with advice. Split so that this file does not find itself.
const LEFTOVERS: &[(&str, &str)] = &[
    (concat!("FIX", "ME"), "fix it, or open an issue"),
    (concat!("XX", "X"), "write what you mean"),
    (concat!("todo", "!("), "finish it"),
    (concat!("unimplemented", "!("), "finish it"),
    (concat!("dbg", "!("), "remove it"),
    (concat!("#[ign", "ore]"), "assert today's answer instead"),
];

pub(super) fn check(tree: &Tree, found: &mut Vec<String>) -> Result<()> {
    for extension in ["rs", "toml", "sh", "js", "md"] {
        for path in tree.with_extension(extension) {
            check_text(path, &tree.read(path)?, found);
        }
    }
    Ok(())
}

fn check_text(path: &Path, text: &str, found: &mut Vec<String>) {
    let code = path.extension().is_some_and(|extension| extension == "rs" || extension == "js");
    let lines = text.lines().count();
    if code && lines > LINES_MAX {
        found.push(format!("{}: {lines} lines; split it", path.display()));
    }
    for (number, line) in text.lines().enumerate() {
        for (word, advice) in LEFTOVERS {
            if contains_word(line, word) {
                let place = format!("{}:{}", path.display(), number + 1);
                found.push(format!(
                    "{place}: `{}` is left over: {advice}",
                    word.trim_end_matches('(')
                ));
            }
        }
    }
}

/// Whether the line contains the word. Longer words such as `mktemp …XXXXXX` do not count.
fn contains_word(line: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let open = word.ends_with(|c: char| !is_word(c));
        !before.is_some_and(is_word) && (open || !after.is_some_and(is_word))
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
    fn leftovers_are_found_as_words() {
        assert_eq!(found(concat!("// FIX", "ME: later")), 1);
        assert_eq!(found(concat!("    to", "do!(\"x\")")), 1);
        assert_eq!(found(concat!("db", "g!(x); // XX", "X")), 2);
        assert_eq!(found("mktemp /tmp/fooXXXXXX"), 0);
        assert_eq!(found("let todo = 1;"), 0);
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(found(&"x\n".repeat(LINES_MAX)), 0);
        assert_eq!(found(&"x\n".repeat(LINES_MAX + 1)), 1);
    }
}
