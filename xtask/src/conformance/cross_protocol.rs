//! Several SDKs on one broker at the same time, and the programs of README.md: the checks in
//! `testing/conformance/cross_protocol`.

use std::process::Command;

use anyhow::Result;

use super::target;
use crate::steps::Outcome;

const PACKAGES: [&str; 3] = ["boto3==1.44.0", "azure-servicebus==7.15.0", "pika==1.4.4"];

pub(super) fn python() -> Result<Outcome> {
    let home = target().join("conformance/cross-protocol");
    let python = match super::python(&home, &PACKAGES, "import boto3, azure.servicebus, pika") {
        Ok(python) => python,
        Err(why) => {
            return super::skip_or_fail("boto3, azure-servicebus and pika", &format!("{why:#}"));
        }
    };
    let mut command = Command::new(python);
    command.arg("testing/conformance/cross_protocol/main.py").arg(target().join("release/malote"));
    super::run_checks(command.env("PYTHONDONTWRITEBYTECODE", "1"))
}
