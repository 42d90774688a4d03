//! Commands in fenced blocks, targets of links and source files in prose must exist.

use super::Tree;
use crate::USAGE;
use anyhow::Result;
use std::path::{Component, Path, PathBuf};

/// Names of Rust files in backquotes, such as `core/apply.rs` or `core/mod.rs::commit`.
fn source_files(text: &str) -> impl Iterator<Item = &str> {
    let names = text.split('`').map(|word| word.split("::").next().unwrap_or(word));
    let is_file = |name: &&str| {
        name.len() > 3 && name.ends_with(".rs") && !name.contains([' ', '*', '{', '\n'])
    };
    names.filter(is_file)
}

/// External programs that the documentation may use.
const KNOWN: &[&str] = &[
    "aws",
    "cat",
    "cd",
    "curl",
    "docker",
    "dotnet",
    "echo",
    "export",
    "git",
    "go",
    "helm",
    "java",
    "jq",
    "kill",
    "kubectl",
    "ls",
    "mkdir",
    "node",
    "npm",
    "openssl",
    "pip",
    "pip3",
    "python",
    "python3",
    "rabbitmqadmin",
    "rabbitmqctl",
    "rm",
    "sudo",
    "systemctl",
    "unset",
    "wait",
];

pub(super) fn check(tree: &Tree, found: &mut Vec<String>) -> Result<()> {
    if !tree.contains(Path::new("README.md")) {
        found.push("README.md: missing".to_owned());
    }
    let cli = cli_source(tree)?;
    for path in tree.with_extension("md") {
        let text = tree.read(path)?;
        for link in links(&text) {
            let target = normalize(&path.parent().unwrap_or(Path::new("")).join(&link));
            if !tree.root.join(&target).exists() {
                found.push(format!("{}: `{link}` does not exist", path.display()));
            }
        }
        for name in source_files(&text) {
            if !tree.files.iter().any(|file| file.ends_with(name)) {
                found.push(format!("{}: no file is named `{name}`", path.display()));
            }
        }
        for (line, command) in commands(&text) {
            if let Err(why) = check_command(tree, &cli, &command) {
                found.push(format!("{}:{line}: {why}", path.display()));
            }
        }
    }
    Ok(())
}

/// The source of the command line: each subcommand is a variant or a file in it.
fn cli_source(tree: &Tree) -> Result<String> {
    let mut source = String::new();
    for path in tree.with_extension("rs").filter(|path| path.starts_with("crates/cli/src")) {
        source.push_str(&tree.read(path)?);
    }
    Ok(source)
}

/// Lines of ```` ```sh ```` blocks with their numbers, without output and comments. Continued lines count as one.
fn commands(text: &str) -> Vec<(usize, String)> {
    let mut commands = Vec::new();
    let mut language = None;
    let mut continued = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(fence) = line.strip_prefix("```") {
            language = language.is_none().then(|| fence.trim().to_owned());
            continued = false;
            continue;
        }
        let shell = matches!(language.as_deref(), Some("sh" | "bash" | "shell"));
        let console = language.as_deref() == Some("console");
        let typed = line.strip_prefix("$ ").or_else(|| shell.then_some(line));
        if (shell || console)
            && !continued
            && let Some(typed) = typed
        {
            for part in typed.split(['|', ';']).flat_map(|part| part.split("&&")) {
                let part = part.trim();
                if !part.is_empty() && !part.starts_with('#') {
                    commands.push((number + 1, part.to_owned()));
                }
                if part.starts_with('#') || part.contains('\'') || part.contains('"') {
                    // A comment ends the line, and separators inside quotes do not count.
                    break;
                }
            }
        }
        continued = line.ends_with('\\');
    }
    commands
}

fn check_command(tree: &Tree, cli: &str, command: &str) -> Result<(), String> {
    let mut words = command.split_whitespace().skip_while(|word| {
        // Skip environment variables before the command.
        word.split_once('=')
            .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    });
    let Some(program) = words.next() else { return Ok(()) };
    let rest: Vec<&str> = words.collect();
    match (program, rest.as_slice()) {
        ("cargo", ["xtask", name, ..]) => {
            let known = USAGE.lines().any(|line| line.split_whitespace().next() == Some(name));
            if known { Ok(()) } else { Err(format!("`cargo xtask {name}` does not exist")) }
        }
        ("cargo", ["run", rest @ ..]) => {
            let ours = rest.iter().skip_while(|word| **word != "--").nth(1);
            ours.map_or(Ok(()), |name| subcommand(tree, cli, name))
        }
        ("malote" | "./target/release/malote" | "target/release/malote", [name, ..]) => {
            subcommand(tree, cli, name)
        }
        ("cargo" | "malote" | "./target/release/malote" | "target/release/malote", _) => Ok(()),
        (path, _) if path.contains('/') => {
            let file = normalize(Path::new(path));
            if tree.contains(&file) { Ok(()) } else { Err(format!("`{path}` does not exist")) }
        }
        (program, _) if KNOWN.contains(&program) => Ok(()),
        (program, _) => Err(format!(
            "`{program}` is not a known program; see KNOWN in xtask/src/tidy/readme.rs"
        )),
    }
}

fn subcommand(tree: &Tree, cli: &str, name: &str) -> Result<(), String> {
    if name.starts_with('-') {
        return Ok(());
    }
    let file = format!("crates/cli/src/{}", name.replace('-', "_"));
    let variant: String =
        name.split('-').map(|part| part[..1].to_uppercase() + &part[1..]).collect();
    let in_source = [" ", "\n"].iter().any(|before| {
        ["(", " {", ","].iter().any(|after| cli.contains(&format!("{before}{variant}{after}")))
    });
    let has_file = tree
        .files
        .iter()
        .any(|path| path == Path::new(&format!("{file}.rs")) || path.starts_with(&file));
    if in_source || has_file { Ok(()) } else { Err(format!("`malote {name}` does not exist")) }
}

/// Relative targets of `[text](target)`.
fn links(text: &str) -> Vec<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://") && !target.contains(' '))
        .filter(|target| !target.starts_with("mailto:") && !target.starts_with('/'))
        .map(str::to_owned)
        .collect()
}

fn normalize(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(command: &str) -> Result<(), String> {
        let tree = Tree { root: PathBuf::new(), files: vec!["crates/cli/src/send.rs".into()] };
        check_command(&tree, "enum Command {\n    Serve(Serve),\n}", command)
    }

    #[test]
    fn commands_must_exist() {
        assert_eq!(why("cargo run --release -- serve"), Ok(()));
        assert_eq!(why("MALOTE_HTTP=off malote send orders"), Ok(()));
        assert_eq!(why("cargo xtask test"), Ok(()));
        assert_eq!(why("curl localhost:8080"), Ok(()));
        assert_eq!(why("cargo xtask tset"), Err("`cargo xtask tset` does not exist".to_owned()));
        assert_eq!(why("malote fly"), Err("`malote fly` does not exist".to_owned()));
        assert_eq!(why("./no/such.sh"), Err("`./no/such.sh` does not exist".to_owned()));
        assert!(why("frobnicate").is_err());
    }

    #[test]
    fn blocks_are_parsed() {
        let text = "```sh\nmalote serve & # start\n# only a comment\ncurl x \\\n  -d y\n```\n\
                    ```console\n$ malote send q\nsent\n```\n```rust\nlet x = 1;\n```";
        let commands: Vec<_> = commands(text).into_iter().map(|(_, command)| command).collect();
        assert_eq!(commands, ["malote serve & # start", "curl x \\", "malote send q"]);
    }

    #[test]
    fn links_into_the_repository_are_found() {
        let text = "[a](b.md#c) [d](https://e) [f](#g) [h](../i)";
        assert_eq!(links(text), ["b.md", "../i"]);
        assert_eq!(normalize(Path::new("docs/../README.md")), PathBuf::from("README.md"));
    }

    #[test]
    fn source_files_are_found() {
        let text = "see `core/apply.rs` and `core/mod.rs::commit`, not `rs` or `*.rs`; main.rs";
        assert_eq!(source_files(text).collect::<Vec<_>>(), ["core/apply.rs", "core/mod.rs"]);
    }
}
