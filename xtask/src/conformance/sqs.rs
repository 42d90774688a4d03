//! SQS with its SDKs, and with programs that use them: the checks in `testing/conformance/sqs`.

mod sdks;

use super::{Depth, target};
use crate::cargo;
use crate::steps::{Outcome, Step};
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;

/// The newest version uses JSON; the other is from before the protocol changed and uses Query.
const BOTO3: &[(&str, &str)] = &[("sqs boto3 json", "1.44.0"), ("sqs boto3 query", "1.26.165")];

/// Celery, with its transport for SQS.
const CELERY: &str = "5.7.0";
const KOMBU: &str = "5.7.0";

pub(super) fn steps(depth: Depth) -> Vec<Step> {
    let boto3 = BOTO3.iter().map(|&(name, version)| Step::new(name, move || boto3(version)));
    let mut steps: Vec<Step> = boto3.collect();
    steps.push(Step::new("sqs javascript", || javascript("main.mjs")));
    if depth == Depth::All {
        steps.push(Step::new("sqs rust", sdks::rust));
        steps.push(Step::new("sqs go", sdks::go));
        steps.push(Step::new("sqs java", sdks::java));
        steps.push(Step::new("sqs celery", celery));
        steps.push(Step::new("sqs sqs-consumer", || javascript("consumer.mjs")));
    }
    steps
}

fn boto3(version: &str) -> Result<Outcome> {
    let home = target().join("conformance").join(format!("boto3-{version}"));
    let test = format!("import boto3; assert boto3.__version__ == '{version}'");
    let python = match super::python(&home, &[&format!("boto3=={version}")], &test) {
        Ok(python) => python,
        Err(why) => return super::skip_or_fail("boto3", &format!("{why:#}")),
    };
    checks_in(python, "main.py")
}

fn celery() -> Result<Outcome> {
    let home = target().join("conformance").join(format!("celery-{CELERY}"));
    let test = format!("import celery, boto3, pycurl; assert celery.__version__ == '{CELERY}'");
    let packages = [format!("celery=={CELERY}"), format!("kombu[sqs]=={KOMBU}")];
    let python = match super::python(&home, &packages.each_ref().map(String::as_str), &test) {
        Ok(python) => python,
        Err(why) => return super::skip_or_fail("celery", &format!("{why:#}")),
    };
    checks_in(python, "celery_tasks.py")
}

fn checks_in(python: PathBuf, program: &str) -> Result<Outcome> {
    let mut command = Command::new(python);
    command.arg(cargo::root().join("testing/conformance/sqs/python").join(program));
    command.arg(target().join("release/malote"));
    super::run_checks(command.env("PYTHONDONTWRITEBYTECODE", "1"))
}

/// The versions are in the programs' `package.json`.
fn javascript(program: &str) -> Result<Outcome> {
    let source = cargo::root().join("testing/conformance/sqs/javascript");
    let home = target().join("conformance/sqs-javascript");
    if let Err(why) = super::npm(&source, &home) {
        return super::skip_or_fail("npm packages", &format!("{why:#}"));
    }
    let mut command = Command::new("node");
    command.arg(source.join(program)).arg(target().join("release/malote")).arg(&home);
    super::run_checks(&mut command)
}
