//! The compiler errors for wrong handlers contain our own explanations.
//!
//! Each case is a small program. It is compiled with the compiler and the library of this test. Only our own texts are
//! checked, because the other texts differ between compilers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)] // a test

use std::path::{Path, PathBuf};
use std::process::Command;

const BEFORE: &str = "\
#![allow(unused)]
use malote::*;
use std::time::Duration;
/// A type without `serde::Deserialize`.
struct Opaque;
";

/// The newest build of the library in the directory of this test.
fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let found = std::fs::read_dir(deps).unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libmalote-") && name.ends_with(".rlib")
    };
    let newest = |path: &PathBuf| path.metadata().unwrap().modified().unwrap();
    found.filter(is_ours).max_by_key(newest).expect("cargo has built the library")
}

/// The errors of the compiler; empty if the code compiles.
fn compile(library: &Path, code: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("case.rs");
    std::fs::write(&file, format!("{BEFORE}{code}")).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--out-dir"])
        .arg(dir.path())
        .arg("--extern")
        .arg(format!("malote={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", library.parent().unwrap().display()))
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), text.is_empty(), "{text}");
    text
}

fn check(library: &Path, code: &str, expected: &[&str]) {
    let text = compile(library, code);
    for part in expected {
        assert!(text.contains(part), "`{part}` is missing in the errors for\n{code}\n{text}");
    }
}

#[test]
fn errors_for_wrong_handlers_explain_the_problem() {
    let library = library();
    let one = |code: &str, expected: &[&str]| {
        let make = "fn make(worker: Worker) -> Worker { worker.handle(f) }";
        check(&library, &format!("{code}\n{make}"), expected);
    };
    one("async fn f(a: Opaque) {}", &["`Opaque` cannot be an argument of a handler", "serde::"]);
    one("async fn f(a: Text, m: Meta) -> u32 { 1 }", &["a handler cannot return `u32`", "Outcome"]);
    one("async fn f() -> Result<u32, Failure> { Ok(1) }", &["a handler cannot return `u32`"]);
    one("fn f(a: Text) {}", &["is not a handler", "not an `async fn`"]);
    one("const f: u32 = 7;", &["`u32` is not a handler"]);
    let held =
        "async fn f() { let a = std::rc::Rc::new(1); std::future::ready(()).await; drop(a) }";
    one(held, &["cannot be sent between threads", "Rc<"]);
    one("async fn f(a: Batch<Text>) {}", &["cannot be an argument of a handler", "`handle_batch`"]);
}

#[test]
fn errors_for_wrong_batch_handlers_explain_the_problem() {
    let library = library();
    let all = |code: &str, expected: &[&str]| {
        let make =
            "fn make(worker: Worker) -> Worker { worker.handle_batch(f, 8, Duration::ZERO) }";
        check(&library, &format!("{code}\n{make}"), expected);
    };
    all("async fn f(a: Batch<Opaque>) {}", &["there is no batch of `Opaque`"]);
    let second = "cannot be an argument of a batch handler";
    all("async fn f(a: Batch<Text>, m: Meta) {}", &[second, "the same for all"]);
    all("async fn f(a: Text) {}", &["`fn(Batch<_>) -> _`"]);
    all("async fn f(a: Batch<Text>) -> u32 { 1 }", &["a batch handler cannot return `u32`"]);
    all("async fn f(a: Batch<Text>) -> Vec<u32> { vec![] }", &["a handler cannot return `u32`"]);
}

#[test]
fn errors_for_wrong_steps_explain_the_problem() {
    let library = library();
    let one = |code: &str, expected: &[&str]| {
        let right = "async fn right(n: u32) -> Result<u32, Failure> { Ok(n) }";
        let make =
            "fn make() -> Saga<u32> { Saga::named(\"s\").step(\"a\", right).step(\"b\", f) }";
        check(&library, &format!("{right}\n{code}\n{make}"), expected);
    };
    // This error is the compiler's own.
    let order = "async fn f(s: Step, n: u32) -> Result<u32, Failure> { Ok(n) }";
    one(order, &["expected function signature `fn(u32, _) -> _`"]);
    one("async fn f(n: u32) {}", &["a step of a saga with data `u32` cannot return `()`"]);
    let opaque = "async fn f(n: u32, a: Opaque) -> Result<u32, Failure> { Ok(n) }";
    one(opaque, &["`Opaque` cannot be an argument of a handler"]);
    one("const f: u32 = 7;", &["`u32` is not a handler"]);
}

/// Checks that the other cases fail for the expected reason.
#[test]
fn correct_handlers_compile() {
    let right = "
        async fn one(text: Text, meta: Meta, state: State<u8>) -> Result<(), Failure> { Ok(()) }
        async fn all(batch: Batch<String>, state: State<u8>) -> Vec<Outcome> { Vec::new() }
        async fn step(n: u32, step: Step, state: State<u8>) -> Result<u32, Failure> { Ok(n) }
        async fn undo(n: u32) {}
        fn saga() -> Saga<u32> { Saga::named(\"s\").step(\"a\", step).compensate(undo).pivot() }
        fn make(worker: Worker) -> Worker {
            worker.on(\"one\", one).handle_batch(all, 8, Duration::ZERO)
        }";
    assert_eq!(compile(&library(), right), "");
}
