//! Runs the commands of the tour and of the guides in a shell, and checks other claims of the pages.
#![allow(clippy::unwrap_used)] // a test

mod common;

use common::Server;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn page(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    #[allow(clippy::disallowed_methods)] // a test reads the page it tests
    let bytes = std::fs::read(root.join(name)).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// The `sh` blocks between the tour markers.
fn tour(page: &str) -> String {
    shell(page.split("<!-- tour -->").nth(1).unwrap().split("<!-- /tour -->").next().unwrap())
}

/// The `sh` blocks of a page.
fn shell(page: &str) -> String {
    let mut script = String::new();
    let mut shell = false;
    for line in page.lines() {
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

/// The first block of a kind.
fn block<'a>(page: &'a str, kind: &str) -> &'a str {
    page.split(&format!("```{kind}\n")).nth(1).unwrap().split("```").next().unwrap()
}

/// Runs the examples of a page against its own server. Returns their output.
fn run_page(name: &str, server: &Server) -> String {
    let script = shell(&page(name));
    assert!(script.lines().count() > 3, "the examples have gone:\n{script}");
    let address = server.url.strip_prefix("http://").unwrap();
    let script =
        script.replace("127.0.0.1:8080", address).replace("curl ", "curl --fail-with-body -sS ");
    let bin = PathBuf::from(env!("CARGO_BIN_EXE_malote"));
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("bash")
        .args(["-e", "-x", "-c", &script])
        .env_clear()
        .env("PATH", format!("{}:{path}", bin.parent().unwrap().display()))
        .env("HOME", server.home.path())
        .env("MALOTE_URL", &server.url)
        .current_dir(server.home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{out}\n--- stderr\n{err}", output.status);
    format!("{out}--- stderr\n{err}")
}

#[test]
fn the_guide_to_topics_runs() {
    let server = Server::start();
    let said = run_page("docs/guide/topics.md", &server);
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("{\"id\"")).collect();
    let one = r#"{"id": 1}"#;
    assert_eq!(lines, [one, r#"{"id": 2}"#, one, r#"{"id": 3}"#], "{said}");
    assert!(said.contains("matches   true"), "{said}");
    // Forwarded to both subscriptions.
    let large = server.ok("receive sales/Subscriptions/large --wait 20s --raw");
    assert_eq!(large, "{\"id\": 4}\n");
    // One round of the cycle on the page.
    server.ok("send work try");
    assert_eq!(server.ok("receive work --raw --abandon"), "try\n");
    let later = server.ok("peek later -o json");
    assert!(later.contains("\"from\": \"work\""), "{later}");
}

#[test]
fn the_guide_to_requests_runs() {
    let server = Server::start();
    let said = run_page("docs/guide/request-reply.md", &server);
    let (out, _) = said.split_once("--- stderr").unwrap();
    assert!(out.contains("four"), "{said}");
}

#[test]
fn the_guide_to_the_file_runs() {
    let server = Server::start();
    let text = page("docs/guide/topology.md");
    #[allow(clippy::disallowed_methods)] // a test writes the file that the page shows
    std::fs::write(server.home.path().join("topology.toml"), block(&text, "toml")).unwrap();
    let said = run_page("docs/guide/topology.md", &server);
    assert!(said.contains("7 changes to apply") && said.contains("7 changes applied"), "{said}");
    assert!(said.contains("no changes"), "{said}");
}

#[test]
fn the_api_page_runs_except_for_commands_with_tokens() {
    let server = Server::start();
    let text = page("docs/protocols/http.md");
    let script = shell(&text);
    let runnable: Vec<&str> = script.lines().filter(|line| !line.contains('…')).collect();
    assert!(runnable.len() >= 8, "{script}");
    server.ok("queue create hello");
    let address = server.url.strip_prefix("http://").unwrap();
    for line in runnable.iter().filter(|line| !line.contains("/accept")) {
        let line = line.replace("127.0.0.1:8080", address).replace("20000", "10");
        let line = line.replace("curl ", "curl --fail-with-body -sS ");
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{line}\n{said}");
    }
}

/// A port outside the range that the system assigns. It stays free until the tour starts its server, and while the
/// server restarts.
fn free_port() -> u16 {
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    let mut ports = (first..30_000).chain(20_000..first);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

#[test]
fn the_tour_runs() {
    let home = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let script = tour(&page("docs/tour.md"));
    assert!(script.lines().count() > 20, "the tour has gone:\n{script}");
    // `-e` stops at the first line that fails; the server ends with the shell.
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
        .env("MALOTE_AMQP", "127.0.0.1:0")
        .env("MALOTE_SQS", "off")
        .env("MALOTE_SERVICEBUS_ADMIN", "off")
        .env("MALOTE_URL", format!("http://{address}"))
        .env("MALOTE_LOG", "warn")
        .current_dir(home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    // `wait` of the shell returns the status of the killed server.
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
