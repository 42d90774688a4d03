//! Every Rust file must belong to a crate, because an unreachable file is not compiled.

use super::Tree;
use anyhow::Result;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

pub(super) fn check(tree: &Tree, found: &mut Vec<String>) -> Result<()> {
    let mut reached = HashSet::new();
    let mut open: Vec<PathBuf> =
        tree.with_extension("rs").filter(|path| is_root(path)).map(Path::to_owned).collect();
    while let Some(path) = open.pop() {
        if !reached.insert(path.clone()) {
            continue;
        }
        for candidates in children(&path, &tree.read(&path)?) {
            open.extend(candidates.into_iter().find(|candidate| tree.contains(candidate)));
        }
    }
    for path in tree.with_extension("rs").filter(|path| !reached.contains(*path)) {
        found.push(format!("{}: not part of any crate; add a `mod` declaration", path.display()));
    }
    Ok(())
}

/// Files that cargo finds by itself.
fn is_root(path: &Path) -> bool {
    let names: Vec<_> = path.iter().map(|name| name.to_string_lossy()).collect();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.as_slice() {
        [.., "src", "lib.rs" | "main.rs"]
        | [.., "src", "bin", _]
        | [.., "src", "bin", _, "main.rs"]
        | [.., "build.rs"] => true,
        [.., "tests" | "benches" | "examples", _]
        | [.., "tests" | "benches" | "examples", _, "main.rs"] => {
            // Below `src`, `tests` is a module.
            !names.contains(&"src")
        }
        _ => false,
    }
}

/// For each `mod name;` in a file, the paths where the module may be.
fn children(path: &Path, text: &str) -> Vec<Vec<PathBuf>> {
    let dir = path.parent().unwrap_or(Path::new(""));
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let own = match stem.as_ref() {
        "lib" | "main" | "mod" | "build" => dir.to_owned(),
        // A root in `tests` or `bin` has its modules in the same folder, other files in a folder of their name.
        _ if is_root(path) => dir.to_owned(),
        stem => dir.join(stem),
    };
    let mut children = Vec::new();
    let mut named = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            named = rest.split('"').next().map(|name| dir.join(name));
        } else if let Some(included) = line.split("include!(\"").nth(1) {
            children
                .push(included.split('"').next().map(|name| dir.join(name)).into_iter().collect());
        } else if let Some(name) = declared_module(line) {
            let usual = vec![own.join(format!("{name}.rs")), own.join(name).join("mod.rs")];
            children.push(named.take().map_or(usual, |path| vec![path]));
        }
    }
    children
}

/// The `name` in `mod name;`, after any visibility or attribute.
fn declared_module(line: &str) -> Option<&str> {
    let declaration = line.split(" //").next()?.trim_end().strip_suffix(';')?;
    let (before, name) = declaration.rsplit_once(' ')?;
    let is_mod = before == "mod" || before.ends_with(" mod");
    let visible = before == "mod" || before.starts_with("pub") || before.starts_with("#[");
    let good = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    (is_mod && visible && good).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_read() {
        assert_eq!(declared_module("mod a;"), Some("a"));
        assert_eq!(declared_module("pub(crate) mod a_b; // why"), Some("a_b"));
        assert_eq!(declared_module("#[cfg(test)] mod tests;"), Some("tests"));
        assert_eq!(declared_module("mod a {"), None);
        assert_eq!(declared_module("// see mod a;"), None);
        assert_eq!(declared_module("use a::mod_b;"), None);
    }

    #[test]
    fn modules_are_searched_where_rust_does() {
        let found = children(Path::new("c/src/a/mod.rs"), "mod b;");
        assert_eq!(found, [vec![PathBuf::from("c/src/a/b.rs"), "c/src/a/b/mod.rs".into()]]);
        let found = children(Path::new("c/src/a.rs"), "mod b;");
        assert_eq!(found, [vec![PathBuf::from("c/src/a/b.rs"), "c/src/a/b/mod.rs".into()]]);
        let found = children(Path::new("c/tests/it.rs"), "mod common;");
        assert_eq!(found[0][0], PathBuf::from("c/tests/common.rs"));
        let found = children(Path::new("c/src/lib.rs"), "#[path = \"x/y.rs\"]\nmod z;");
        assert_eq!(found, [vec![PathBuf::from("c/src/x/y.rs")]]);
    }

    #[test]
    fn roots_are_the_files_that_cargo_finds() {
        for root in
            ["xtask/src/main.rs", "c/src/lib.rs", "c/tests/a.rs", "c/src/bin/b.rs", "c/build.rs"]
        {
            assert!(is_root(Path::new(root)), "{root}");
        }
        for inner in ["c/src/a.rs", "c/tests/common/mod.rs", "c/src/tests/a.rs"] {
            assert!(!is_root(Path::new(inner)), "{inner}");
        }
    }
}
