//! RabbitMQ's clients: the programs of `testing/conformance/rabbitmq`.
//!
//! A program gets the URL of a broker, so the same checks run against Malote and against a real RabbitMQ: that they pass
//! on the original is what gives them their meaning.

mod broker;

use super::{Depth, checks_outcome, npm, parse_counts, run, run_checks, skip_or_fail, target};
use crate::cargo;
use crate::rabbitmq::skip_if_missing;
use crate::steps::{Outcome, Step};
use anyhow::{Context, Result};
use broker::{Broker, Malote};
use malote_services::RabbitMq;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The oldest Java that the program runs on.
const JAVA_RELEASE: &str = "17";
const PIKA: &str = "pika==1.4.4";

/// With the packages that Celery needs.
const CELERY: &str = "celery==5.7.0";

/// A program prints this line to have its broker killed and started again.
const KILL_BROKER: &str = "kill the broker";
/// The program then reads this line.
const BROKER_STARTED: &str = "the broker started\n";

/// What the programs run against.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Against {
    Malote,
    /// Debian's package, on ports of its own.
    RabbitMq,
}

pub(super) fn steps(against: Against, depth: Depth) -> Vec<Step> {
    let step = |name: &'static str, run: fn(Against) -> Result<Outcome>| {
        Step::new(name, move || run(against))
    };
    let mut steps = vec![step("rabbitmq amqplib", javascript), step("rabbitmq pika", python)];
    if depth == Depth::All {
        steps.push(step("rabbitmq lapin", rust));
        steps.push(step("rabbitmq amqp091-go", go));
        steps.push(step("rabbitmq java", |against| java(against, "java")));
        steps.push(step("rabbitmq spring", |against| java(against, "spring")));
        steps.push(step("rabbitmq celery", celery));
        steps.push(step("rabbitmq nestjs", nestjs));
        steps.push(step("rabbitmq rabbitmqadmin", |against| {
            management(against, "rabbitmqadmin.py")
        }));
        steps.push(step("rabbitmq keda", |against| management(against, "keda.py")));
        steps.push(step("rabbitmq users", |against| management(against, "users.py")));
        if against == Against::Malote {
            let compare = |program| move || compare_management(program);
            steps.push(Step::new("rabbitmq management fields", compare("compare.py")));
            steps.push(Step::new("rabbitmq definitions", compare("definitions.py")));
            // On the real RabbitMQ, `cargo xtask rabbitmq` and `cargo xtask conformance orders` run them.
            steps.push(Step::new("rabbitmq connector contract", contract));
            steps.push(Step::new("rabbitmq orders", orders));
            // It needs both brokers.
            steps.push(Step::new("rabbitmq shovel", shovel));
        }
    }
    steps
}

fn sources(language: &str) -> PathBuf {
    cargo::root().join("testing/conformance/rabbitmq").join(language)
}

fn python(against: Against) -> Result<Outcome> {
    let python = match pika() {
        Ok(python) => python,
        Err(why) => return skip_or_fail(PIKA, &format!("{why:#}")),
    };
    let mut command = Command::new(python);
    command.arg("-B").arg(sources("python").join("main.py"));
    run_against(against, command, &[])
}

/// A Python with pika.
fn pika() -> Result<PathBuf> {
    let home = target().join("conformance/pika");
    let version = PIKA.rsplit('=').next().unwrap_or_default();
    let test = format!("import pika; assert pika.__version__ == '{version}'");
    super::python(&home, &[PIKA], &test)
}

/// RabbitMQ's command line, from its management plugin.
fn rabbitmqadmin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/rabbitmq/lib").ok()?.flatten();
    let plugins =
        versions.filter_map(|version| std::fs::read_dir(version.path().join("plugins")).ok());
    let plugins = plugins.flat_map(|plugins| plugins.flatten());
    let programs = plugins.map(|plugin| plugin.path().join("priv/www/cli/rabbitmqadmin"));
    programs.into_iter().find(|program| program.is_file())
}

/// Runs a program of `management` with the API, the virtual host, and for `rabbitmqadmin.py` what it needs too.
fn management(against: Against, program: &str) -> Result<Outcome> {
    if let Some(skipped) = skip_if_missing()? {
        return Ok(skipped);
    }
    let python = match pika() {
        Ok(python) => python,
        Err(why) => return skip_or_fail(PIKA, &format!("{why:#}")),
    };
    let Some(admin) = rabbitmqadmin() else {
        return skip_or_fail(
            "rabbitmqadmin",
            "RabbitMQ is installed without its management plugin",
        );
    };
    let mut command = Command::new(python);
    command.arg("-B").arg(sources("management").join(program));
    let mut run = |url: String, vhost: &str, port: u16| {
        command.args([url.as_str(), vhost]);
        match program {
            "rabbitmqadmin.py" => command.arg(&admin).arg(port.to_string()),
            "users.py" => command.arg(port.to_string()),
            _ => &mut command,
        };
        run_checks(&mut command)
    };
    match against {
        Against::Malote => {
            let broker = Malote::start()?;
            run(broker.management_url(), "/", broker.port)
        }
        Against::RabbitMq => {
            let broker = real_with_management()?;
            run(broker.management_url().unwrap_or_default(), "0", broker.port())
        }
    }
}

fn real_with_management() -> Result<RabbitMq> {
    RabbitMq::start_with_management().context("the real RabbitMQ does not start")
}

/// Runs a program of `management` with a real RabbitMQ and Malote.
fn compare_management(program: &str) -> Result<Outcome> {
    if let Some(skipped) = skip_if_missing()? {
        return Ok(skipped);
    }
    let python = match pika() {
        Ok(python) => python,
        Err(why) => return skip_or_fail(PIKA, &format!("{why:#}")),
    };
    let (real, ours) = (real_with_management()?, Malote::start()?);
    let mut command = Command::new(python);
    command.arg("-B").arg(sources("management").join(program));
    for (url, vhost, port) in [
        (real.management_url().unwrap_or_default(), "0", real.port()),
        (ours.management_url(), "/", ours.port),
    ] {
        command.args([url.as_str(), vhost]);
        if program == "compare.py" {
            command.arg(port.to_string());
        }
    }
    run_checks(&mut command)
}

fn javascript(against: Against) -> Result<Outcome> {
    node(against, "javascript")
}

fn nestjs(against: Against) -> Result<Outcome> {
    node(against, "nestjs")
}

/// The versions are in the program's own `package.json`.
fn node(against: Against, program: &str) -> Result<Outcome> {
    let home = target().join(format!("conformance/rabbitmq-{program}"));
    if let Err(why) = npm(&sources(program), &home) {
        return skip_or_fail("npm's packages", &format!("{why:#}"));
    }
    let mut command = Command::new("node");
    command.arg(sources(program).join("main.mjs"));
    run_against(against, command, &[home])
}

fn celery(against: Against) -> Result<Outcome> {
    let home = target().join("conformance/celery");
    let version = CELERY.rsplit('=').next().unwrap_or_default();
    let test = format!("import celery; assert celery.__version__ == '{version}'");
    let python = match super::python(&home, &[CELERY], &test) {
        Ok(python) => python,
        Err(why) => return skip_or_fail(CELERY, &format!("{why:#}")),
    };
    let mut command = Command::new(python);
    command.arg("-B").arg(sources("celery").join("main.py"));
    run_against(against, command, &[])
}

/// A shovel of a real RabbitMQ carries a queue to Malote and back.
fn shovel() -> Result<Outcome> {
    if let Some(skipped) = skip_if_missing()? {
        return Ok(skipped);
    }
    let python = match pika() {
        Ok(python) => python,
        Err(why) => return skip_or_fail(PIKA, &format!("{why:#}")),
    };
    let (real, mut ours) = (real_with_management()?, Broker::start(Against::Malote)?);
    let mut command = Command::new(python);
    command.arg("-B").arg(sources("management").join("shovel.py"));
    command.args([real.management_url().unwrap_or_default(), real.url(0), ours.url()]);
    run_with(&mut ours, command)
}

fn home(language: &str) -> Result<PathBuf> {
    let home = target().join(format!("conformance/rabbitmq-{language}"));
    std::fs::create_dir_all(&home).context("cannot create the build folder")?;
    Ok(home)
}

/// The version is in the program's own `Cargo.lock`.
fn rust(against: Against) -> Result<Outcome> {
    let (sources, home) = (sources("rust"), home("rust")?);
    let cargo = |what: &str| {
        let mut cargo = Command::new("cargo");
        cargo.args([what, "--locked"]).current_dir(&sources).env("CARGO_TARGET_DIR", &home);
        cargo
    };
    if let Err(why) = run(&mut cargo("fetch")) {
        return skip_or_fail("lapin", &format!("{why:#}"));
    }
    run(&mut cargo("build"))?;
    let program = Command::new(home.join("debug/malote-conformance-rabbitmq"));
    run_against(against, program, &[])
}

/// The version is in the program's own `go.mod`.
fn go(against: Against) -> Result<Outcome> {
    let (sources, home) = (sources("go"), home("go")?);
    let download = run(Command::new("go").args(["mod", "download"]).current_dir(&sources));
    if let Err(why) = download {
        return skip_or_fail("go with its modules", &format!("{why:#}"));
    }
    let program = home.join("rabbitmq");
    let mut build = Command::new("go");
    build.args(["build", "-buildvcs=false", "-o"]).arg(&program).arg(".").current_dir(&sources);
    run(&mut build)?;
    run_against(against, Command::new(program), &[])
}

/// Maven downloads the packages of `pom.xml`. The compiler is called directly, so that nothing is built among the sources.
fn java(against: Against, program: &str) -> Result<Outcome> {
    let (sources, home) = (sources(program), home(program)?);
    let (libraries, classes) = (home.join("lib"), home.join("classes"));
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
    maven.arg(format!("-DoutputDirectory={}", libraries.display())).current_dir(&sources);
    if let Err(why) = run(&mut maven).and_then(|()| run(Command::new("javac").arg("-version"))) {
        return skip_or_fail("mvn with its packages, and java", &format!("{why:#}"));
    }
    let libraries = format!("{}/*", libraries.display());
    let mut compiler = Command::new("javac");
    compiler.args(["--release", JAVA_RELEASE, "-encoding", "UTF-8", "-parameters", "-d"]);
    let files = sources.read_dir().context("cannot read the sources")?.flatten();
    let files = files.map(|file| file.path());
    let files = files.filter(|file| file.extension().is_some_and(|end| end == "java"));
    run(compiler.arg(&classes).args(["-cp", &libraries]).args(files))?;
    let mut program = Command::new("java");
    program.args(["-cp", &format!("{}:{libraries}", classes.display()), "Main"]);
    run_against(against, program, &[])
}

/// The contract tests of our own connector, with Malote as the broker.
fn contract() -> Result<Outcome> {
    let broker = Malote::start()?;
    let url = format!("amqp://guest:guest@127.0.0.1:{}", broker.port);
    let package = ["test", "--package", "malote-connectors", "--features", "rabbitmq"];
    let args = [&package[..], &["--test", "rabbitmq"]].concat();
    cargo::tests_with(&args, &[("MALOTE_TEST_RABBITMQ", &url)])
}

/// The example `orders` on our own connector, with Malote as the broker. It checks its own results.
fn orders() -> Result<Outcome> {
    cargo::run(&["build", "--package", "orders"])?;
    let broker = Malote::start()?;
    run(Command::new(target().join("debug/orders")).args(["--url", &broker.url()]))?;
    Ok(Outcome { passed: 1, ..Outcome::default() })
}

/// Runs a program with the URL of a broker of its own, and then these arguments.
fn run_against(against: Against, mut program: Command, arguments: &[PathBuf]) -> Result<Outcome> {
    if against == Against::RabbitMq
        && let Some(skipped) = skip_if_missing()?
    {
        return Ok(skipped);
    }
    let mut broker = Broker::start(against)?;
    program.arg(broker.url()).args(arguments);
    run_with(&mut broker, program)
}

/// Runs a program that can have this broker killed and started again (`KILL_BROKER`).
fn run_with(broker: &mut Broker, mut program: Command) -> Result<Outcome> {
    program.current_dir(cargo::root());
    let child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.context("cannot start the checks")?;
    let mut input = child.stdin.take().expect("the input is piped");
    let output = child.stdout.take().expect("the output is piped");
    let mut outcome = None;
    for line in BufReader::new(output).lines() {
        let line = line.context("cannot read the output of the checks")?;
        outcome = parse_counts(&line).or(outcome);
        if line == KILL_BROKER {
            let restarted = broker.kill_and_restart();
            if restarted.is_err() {
                let _ = child.kill(); // it would wait for the broker
            }
            restarted?;
            let _ = input.write_all(BROKER_STARTED.as_bytes()); // the program may have ended
        }
    }
    let status = child.wait().context("cannot wait for the checks")?;
    checks_outcome(outcome, status)
}
