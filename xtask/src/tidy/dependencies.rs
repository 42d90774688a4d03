//! Which crate may depend on which: dependencies point in one direction.

use super::Tree;
use anyhow::Result;
use std::path::Path;

/// A crate, and the workspace crates that it may use. A trailing `*` matches any ending.
const ALLOWED: &[(&str, &[&str])] = &[
    ("malote-model", &[]),
    ("malote-engine", &["malote-model"]),
    ("malote-wire-*", &["malote-model"]),
    ("malote-http", &["malote-model"]),
    ("malote-measure", &[]),
    ("malote-front-*", &["malote-model", "malote-engine", "malote-wire-*", "malote-http"]),
    (
        "malote-server",
        &["malote-model", "malote-engine", "malote-wire-*", "malote-http", "malote-front-*"],
    ),
    ("malote-connectors", &["malote-model", "malote-engine", "malote-wire-*"]),
    // The library for users: crates/worker.
    ("malote", &["malote-model", "malote-connectors", "malote-wire-*"]),
    // The command line: crates/cli.
    (
        "malote-cli",
        &[
            "malote-model",
            "malote-engine",
            "malote-http",
            "malote-measure",
            "malote-server",
            "malote-connectors",
            "malote-wire-native",
            "malote",
        ],
    ),
    ("malote-services", &[]),
    ("malote-sim", &["malote-*"]),
    ("malote-conformance", &["malote-*"]),
    ("malote-conformance-rabbitmq", &[]),
    ("malote-conformance-sqs", &[]),
    ("malote-bench", &["malote", "malote-*"]),
    ("xtask", &["malote-services"]),
];

/// External crates that some crates must not use, and why.
const FORBIDDEN: &[(&str, &[&str], &str)] = &[
    (
        "malote-model",
        &["tokio", "axum", "hyper", "serde_json", "tracing"],
        "the model does no I/O and knows no protocol",
    ),
    (
        "malote-engine",
        &["axum", "hyper", "clap", "serde_json", "rustls"],
        "the engine knows no protocol and has its own codec",
    ),
    ("malote-wire-*", &["tokio", "axum", "hyper", "rustls"], "a wire format does no I/O"),
    ("malote-http", &["clap", "rustls", "tokio-rustls"], "TLS and flags belong to the server"),
    ("malote-front-*", &["clap", "rustls", "tokio-rustls"], "TLS and flags belong to the server"),
    ("malote-server", &["clap", "anyhow"], "flags and anyhow belong to the command line"),
];

/// Libraries, which define their own error types.
const NO_ANYHOW: &[&str] = &[
    "malote-model",
    "malote-engine",
    "malote-wire-*",
    "malote-http",
    "malote-front-*",
    "malote-connectors",
    "malote",
];

pub(super) fn check(tree: &Tree, found: &mut Vec<String>) -> Result<()> {
    for path in tree.with_extension("toml") {
        if path.file_name().is_some_and(|name| name == "Cargo.toml")
            && path.components().count() > 1
        {
            check_manifest(path, &tree.read(path)?, found);
        }
    }
    Ok(())
}

fn check_manifest(path: &Path, text: &str, found: &mut Vec<String>) {
    let path = path.display();
    let Some(name) = package_name(text) else {
        found.push(format!("{path}: no package name"));
        return;
    };
    let dependencies = dependencies(text);
    let ours = |dependency: &&str| *dependency == "malote" || dependency.starts_with("malote-");
    match ALLOWED.iter().find(|(family, _)| matches_family(family, name)) {
        None if path.to_string().starts_with("examples/") => {}
        None => found
            .push(format!("{path}: add `{name}` to the table in xtask/src/tidy/dependencies.rs")),
        Some((_, allowed)) => {
            for dependency in dependencies.iter().copied().filter(ours) {
                if !allowed.iter().any(|family| matches_family(family, dependency)) {
                    found.push(format!("{path}: `{name}` must not depend on `{dependency}`"));
                }
            }
        }
    }
    for (family, forbidden, why) in FORBIDDEN {
        for dependency in dependencies.iter().filter(|name| forbidden.contains(name)) {
            if matches_family(family, name) {
                found.push(format!("{path}: `{name}` must not depend on `{dependency}`: {why}"));
            }
        }
    }
    if NO_ANYHOW.iter().any(|family| matches_family(family, name))
        && dependencies.contains(&"anyhow")
    {
        found.push(format!("{path}: `{name}` is a library: use thiserror, not anyhow"));
    }
}

fn matches_family(family: &str, name: &str) -> bool {
    match family.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => family == name,
    }
}

fn package_name(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.split('=').next().map(str::trim) == Some("name"))?;
    line.split('"').nth(1)
}

/// Names in `[dependencies]`, `[build-dependencies]` and their target-specific forms. Dependencies of tests do not
/// count.
fn dependencies(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let section = ["dependencies", "build-dependencies"];
            inside = section
                .iter()
                .any(|section| header == *section || header.ends_with(&format!(".{section}")));
            if let Some((before, name)) = header.rsplit_once('.')
                && section
                    .iter()
                    .any(|section| before == *section || before.ends_with(&format!(".{section}")))
            {
                names.push(name);
            }
        } else if inside
            && !line.starts_with('#')
            && let Some((key, _)) = line.split_once('=')
        {
            names.push(key.trim().split('.').next().unwrap_or_default().trim_matches('"'));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        check_manifest(Path::new("crates/x/Cargo.toml"), text, &mut found);
        found
    }

    #[test]
    fn dependencies_point_downwards() {
        let good = "[package]\nname = \"malote-engine\"\n[dependencies]\nmalote-model.workspace = true\nbytes = \"1\"";
        assert_eq!(found(good), [""; 0]);
        let up =
            "[package]\nname = \"malote-engine\"\n[dependencies]\nmalote-server = { path = \"x\" }";
        assert_eq!(
            found(up),
            ["crates/x/Cargo.toml: `malote-engine` must not depend on `malote-server`"]
        );
        let sideways = "[package]\nname = \"malote-front-sqs\"\n[dependencies.malote-front-http]\npath = \"x\"";
        assert_eq!(found(sideways).len(), 1);
        let io =
            "[package]\nname = \"malote-model\"\n[target.'cfg(unix)'.dependencies]\ntokio = \"1\"";
        assert_eq!(found(io).len(), 1);
        let library = "[package]\nname = \"malote-engine\"\n[dependencies]\nanyhow = \"1\"";
        assert_eq!(found(library).len(), 1);
    }

    #[test]
    fn tests_may_use_more_and_new_crates_must_be_listed() {
        let tests = "[package]\nname = \"malote-model\"\n[dev-dependencies]\nserde_json = \"1\"";
        assert_eq!(found(tests), [""; 0]);
        assert!(found("[package]\nname = \"malote-new\"")[0].contains("add `malote-new`"));
    }
}
