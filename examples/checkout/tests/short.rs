//! A short run of the example, as a user would start it.
#![allow(clippy::unwrap_used)] // a test

use std::process::Command;

#[test]
fn every_check_holds() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_checkout"));
    // A provider so slow that no disk takes as long for an order.
    let size =
        ["--provider-ms", "6000", "--load-ms", "500", "--down-ms", "500", "--customers", "8"];
    let output = command.args(size).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{error}");
    assert_eq!(
        said.lines().filter(|line| line.trim_start().starts_with("ok ")).count(),
        6,
        "{said}"
    );
}
