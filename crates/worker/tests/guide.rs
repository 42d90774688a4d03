//! The program in docs/guide/workers.md is `examples/first_worker/program.rs`, and has the output that the page shows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)] // a test

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_page_shows_the_example() {
    let page = std::fs::read_to_string(root().join("docs/guide/workers.md")).unwrap();
    let program = include_str!("../examples/first_worker/program.rs");
    assert!(page.contains(&format!("```rust\n{program}```")), "docs/guide/workers.md differs");
}

mod program {
    include!("../examples/first_worker/program.rs");

    pub(super) fn run() -> Result<(), malote::Error> {
        main()
    }
}

/// Set for the child process, which is this test program again.
const IS_CHILD: &str = "MALOTE_TEST_RUN_EXAMPLE";

#[test]
fn run_the_program_in_a_child() {
    if std::env::var_os(IS_CHILD).is_some() {
        program::run().unwrap();
    }
}

#[test]
fn the_example_charges_an_order_and_reports_failures_without_a_log_setup() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["run_the_program_in_a_child", "--exact", "--nocapture"])
        .env(IS_CHILD, "yes")
        .env_remove("MALOTE_URL")
        .current_dir(&dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // The test runner also writes to standard output.
    while !line.ends_with("charged 900 cents for order o-1\n") {
        line.clear();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "the program ended early");
    }
    let stop = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(stop.success());
    assert!(child.wait().unwrap().success());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let failed = errors.lines().find(|line| line.contains("the bank does not answer")).unwrap();
    for part in ["queue orders", "message ", "session ana", "attempt 1"] {
        assert!(failed.contains(part), "`{part}` is missing in: {failed}");
    }
    assert!(errors.contains("dead-lettered as NoTotal"), "{errors}");
}

/// `main` prints the error like this when it returns it.
#[tokio::test]
async fn an_error_is_a_sentence_in_debug_output() {
    let error = malote::Malote::connect("malote://127.0.0.1:1").await.err().unwrap();
    let text = format!("{error:?}");
    assert!(!text.contains('{') && text.starts_with(&error.to_string()), "{text}");
}
