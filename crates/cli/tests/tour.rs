//! The README's tour, line by line, in a shell of its own; and the other pages' claims.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn page(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    #[allow(clippy::disallowed_methods)] // a test reads the page it tests
    let bytes = std::fs::read(root.join(name)).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// The `sh` blocks between the marks.
fn tour(readme: &str) -> String {
    let tour =
        readme.split("<!-- tour -->").nth(1).unwrap().split("<!-- /tour -->").next().unwrap();
    let mut script = String::new();
    let mut shell = false;
    for line in tour.lines() {
        match line.strip_prefix("```") {
            Some(fence) => shell = fence == "sh",
            None if shell => {
                script.push_str(line);
                script.push('\n');
            }
            None => {}
        }
    }
    script
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn the_tour_of_the_readme_runs() {
    let home = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let script = tour(&page("README.md"));
    assert!(script.lines().count() > 20, "the tour has gone:\n{script}");
    // `-e` ends at the first line that fails; a server that is left over ends with the shell.
    let script = format!(
        "trap 'kill -9 $! 2>/dev/null || true' EXIT\n{}",
        script.replace("127.0.0.1:8080", &address)
    );
    let bin = PathBuf::from(env!("CARGO_BIN_EXE_malote"));
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("bash")
        .args(["-e", "-x", "-c", &script])
        .env_clear()
        .env("PATH", format!("{}:{path}", bin.parent().unwrap().display()))
        .env("HOME", home.path())
        .env("MALOTE_HTTP", &address)
        .env("MALOTE_SQS", "off")
        .env("MALOTE_URL", format!("http://{address}"))
        .env("MALOTE_LOG", "warn")
        .current_dir(home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    // The shell's own `wait` answers with the killed server's status.
    assert!(output.status.success(), "{}\n{out}\n--- stderr\n{err}", output.status);
    for seen in [
        "Hello again",
        "ana pays",
        r#"{"paid": true}"#,
        "a total must not be negative",
        "do not lose me",
    ] {
        assert!(out.contains(seen), "`{seen}` was not seen in\n{out}\n--- stderr\n{err}");
    }
    assert!(err.contains("nothing is damaged"), "{err}");
}

#[test]
fn the_test_vectors_of_the_partitioner_are_published() {
    let page = page("docs/guide/sessions.md");
    for (key, sessions, place) in malote_model::partition::VECTORS {
        let row = format!("| `{key}` | {sessions} | {place} |").replace("`` ", "(empty) ");
        assert!(page.contains(&row), "{row}");
    }
}
