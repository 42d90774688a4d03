//! A short run of the example, as a user would start it.
#![allow(clippy::unwrap_used)] // a test

use std::process::Command;

#[test]
fn every_check_holds() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga"));
    let output = command.args(["--orders", "36"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{error}");
    assert_eq!(
        said.lines().filter(|line| line.trim_start().starts_with("ok ")).count(),
        5,
        "{said}"
    );
}
