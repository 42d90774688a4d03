//! SQS by boto3: the checks of `testing/conformance/sqs`.

use super::target;
use crate::cargo;
use crate::steps::{Outcome, Step};
use anyhow::Result;
use std::process::Command;

/// The newest speaks JSON, the other is from before the protocol changed and speaks Query.
const BOTO3: &[(&str, &str)] = &[("sqs boto3 json", "1.44.0"), ("sqs boto3 query", "1.26.165")];

pub(super) fn steps() -> Vec<Step> {
    let boto3 = BOTO3.iter().map(|&(name, version)| Step::new(name, move || boto3(version)));
    boto3.chain([Step::new("sqs javascript", javascript)]).collect()
}

fn boto3(version: &str) -> Result<Outcome> {
    let home = target().join("conformance").join(format!("boto3-{version}"));
    let test = format!("import boto3; assert boto3.__version__ == '{version}'");
    let python = match super::python(&home, &[&format!("boto3=={version}")], &test) {
        Ok(python) => python,
        Err(why) => return super::missing("boto3", &format!("{why:#}")),
    };
    let mut command = Command::new(python);
    command.arg("testing/conformance/sqs/python/main.py").arg(target().join("release/malote"));
    super::counted(command.env("PYTHONDONTWRITEBYTECODE", "1"))
}

/// The versions are in the program's own `package.json`.
fn javascript() -> Result<Outcome> {
    let source = cargo::root().join("testing/conformance/sqs/javascript");
    let home = target().join("conformance/sqs-javascript");
    if let Err(why) = super::npm(&source, &home) {
        return super::missing("npm's packages", &format!("{why:#}"));
    }
    let mut command = Command::new("node");
    command.arg(source.join("main.mjs")).arg(target().join("release/malote")).arg(&home);
    super::counted(&mut command)
}
