//! One public type name has one meaning in the whole workspace, so that a search finds it.
//!
//! Codecs and clients of one protocol are left out: they use the names of the protocol's specification.

use super::Tree;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;

/// Folders with the names of a protocol: a codec or a client of it.
const PROTOCOLS: &[&str] =
    &["crates/wire-amqp/", "crates/connectors/src/servicebus/", "/src/wire/"];

/// Names that several crates may have, with the reason.
const SHARED: &[(&str, &str)] = &[
    ("AcceptedSession", "one thing, in the engine and in the native API"),
    ("Body", "the body of a message, and the argument of a handler that takes it"),
    ("Delivery", "one thing, in the engine and in the trait `Broker`"),
    ("Front", "every front end with connections has one"),
    ("Key", "every front end with signatures has one; the settings have keys, too"),
    ("Keys", "every front end with credentials has one"),
    ("Peer", "every front end with connections has one"),
    ("Reply", "of the core, of the native API, and of a handler"),
    ("Running", "a running engine and a running worker"),
    ("Sent", "one thing, in the engine and in the trait `Broker`"),
    ("Session", "an argument of handlers, in the HTTP API and in the library"),
    ("Settings", "of the engine, and of each front end"),
    ("Shutdown", "of the server and of a worker"),
    ("Verified", "every front end with credentials has one"),
];

const KEYWORDS: [&str; 4] = ["struct", "enum", "trait", "type"];

pub(super) fn check(tree: &Tree, found: &mut Vec<String>) -> Result<()> {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in tree.with_extension("rs").filter(|path| is_library(path)) {
        for (number, name) in public_types(&tree.read(path)?) {
            defined.entry(name).or_default().push(format!("{}:{number}", path.display()));
        }
    }
    for (name, places) in defined {
        if places.len() > 1 && !SHARED.iter().any(|(shared, _)| *shared == name) {
            found.push(format!(
                "the public type name `{name}` has {} meanings: {}",
                places.len(),
                places.join(", ")
            ));
        }
    }
    Ok(())
}

fn is_library(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let of_protocol = PROTOCOLS.iter().any(|folder| text.contains(folder));
    let mut parts = path.iter();
    let in_crates = parts.next().is_some_and(|first| first == "crates");
    in_crates && parts.any(|part| part == "src") && !of_protocol
}

/// The names and lines of the public types of a file, without its tests. Associated types are indented and do not count.
fn public_types(text: &str) -> Vec<(usize, String)> {
    let code = text.lines().enumerate().take_while(|(_, line)| *line != "#[cfg(test)]");
    code.filter_map(|(number, line)| {
        let mut words = line.strip_prefix("pub ")?.split(|c: char| !c.is_alphanumeric());
        let keyword = words.next()?;
        KEYWORDS.contains(&keyword).then_some(())?;
        Some((number + 1, words.next()?.to_owned()))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_types_are_read_and_private_ones_are_not() {
        let text = "pub struct Queue<T>(T);\nstruct Own;\npub(crate) enum Inner {}\npub type Id = u64;\n\
            pub fn run() {}\n#[cfg(test)]\nmod tests { pub struct Fake; }\n";
        let names: Vec<String> = public_types(text).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["Queue", "Id"]);
    }

    #[test]
    fn only_crates_are_libraries() {
        assert!(is_library(Path::new("crates/model/src/ids.rs")));
        assert!(!is_library(Path::new("crates/model/tests/ids.rs")));
        assert!(!is_library(Path::new("testing/sim/src/lib.rs")));
        assert!(!is_library(Path::new("crates/wire-amqp/src/frame.rs")));
        assert!(!is_library(Path::new("crates/front-sqs/src/wire/mod.rs")));
    }
}
