//! What the compiler says of handlers that are none: the words are ours, so that they help.
//!
//! Each case is a small file for the compiler that made this test, against the library that it made. Only our own words
//! are looked for: what stands around them differs between compilers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)] // a test

use std::path::{Path, PathBuf};
use std::process::Command;

const BEFORE: &str = "\
#![allow(unused)]
use malote::*;
use std::time::Duration;
/// Nothing that serde can read.
struct Opaque;
";

/// The library as cargo has built it beside this test; the newest, if it was built several times.
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

/// What the compiler says of it; nothing if it is right.
fn said(library: &Path, code: &str) -> String {
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
    let text = said(library, code);
    for part in expected {
        assert!(text.contains(part), "no `{part}` in what is said of\n{code}\n{text}");
    }
}

#[test]
fn wrong_handlers_are_told_what_is_wrong() {
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
fn wrong_batch_handlers_are_told_what_is_wrong() {
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
fn wrong_steps_are_told_what_is_wrong() {
    let library = library();
    let one = |code: &str, expected: &[&str]| {
        let right = "async fn right(n: u32) -> Result<u32, Failure> { Ok(n) }";
        let make =
            "fn make() -> Saga<u32> { Saga::named(\"s\").step(\"a\", right).step(\"b\", f) }";
        check(&library, &format!("{right}\n{code}\n{make}"), expected);
    };
    // The compiler says itself what comes first.
    let order = "async fn f(s: Step, n: u32) -> Result<u32, Failure> { Ok(n) }";
    one(order, &["expected function signature `fn(u32, _) -> _`"]);
    one("async fn f(n: u32) {}", &["a step of a saga with data `u32` cannot return `()`"]);
    let opaque = "async fn f(n: u32, a: Opaque) -> Result<u32, Failure> { Ok(n) }";
    one(opaque, &["`Opaque` cannot be an argument of a handler"]);
    one("const f: u32 = 7;", &["`u32` is not a handler"]);
}

/// Else the others would prove nothing.
#[test]
fn what_is_right_compiles() {
    let right = "
        async fn one(text: Text, meta: Meta, state: State<u8>) -> Result<(), Failure> { Ok(()) }
        async fn all(batch: Batch<String>, state: State<u8>) -> Vec<Outcome> { Vec::new() }
        async fn step(n: u32, step: Step, state: State<u8>) -> Result<u32, Failure> { Ok(n) }
        async fn undo(n: u32) {}
        fn saga() -> Saga<u32> { Saga::named(\"s\").step(\"a\", step).compensate(undo).pivot() }
        fn make(worker: Worker) -> Worker {
            worker.on(\"one\", one).handle_batch(all, 8, Duration::ZERO)
        }";
    assert_eq!(said(&library(), right), "");
}
