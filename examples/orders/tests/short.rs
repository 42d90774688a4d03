//! Runs the example with few messages.
#![allow(clippy::unwrap_used)] // a test

use std::process::Command;

#[test]
fn every_check_holds() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orders"));
    command.args(["--orders", "300", "--customers", "12", "--kills", "2", "--freezes", "1"]);
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert_eq!(
        stdout.lines().filter(|line| line.trim_start().starts_with("ok ")).count(),
        8,
        "{stdout}"
    );
}

#[test]
fn an_unreachable_broker_is_an_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orders"));
    let output = command.args(["--orders", "3", "--url", "malote://127.0.0.1:1"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be reached"));
}
