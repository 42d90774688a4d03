//! RabbitMQ's clients: the programs of `testing/conformance/rabbitmq`.
//!
//! A program gets the URL of a broker, so the same checks run against Malote and against a real RabbitMQ: that they pass
//! on the original is what gives them their meaning.

use super::{Depth, npm, run, run_checks, skip_or_fail, target};
use crate::cargo;
use crate::rabbitmq::skip_if_missing;
use crate::steps::{Outcome, Step};
use anyhow::{Context, Result, bail};
use malote_services::RabbitMq;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The oldest Java that the program runs on.
const JAVA_RELEASE: &str = "17";
const PIKA: &str = "pika==1.4.4";

/// Virtual hosts of our own server, as many as the contract tests of the connector use.
const VHOSTS: usize = 48;

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
    let mut steps = vec![step("rabbitmq amqplib", javascript)];
    if depth == Depth::All {
        steps.push(step("rabbitmq pika", python));
        steps.push(step("rabbitmq lapin", rust));
        steps.push(step("rabbitmq amqp091-go", go));
        steps.push(step("rabbitmq java", java));
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

/// The version is in the program's own `package.json`.
fn javascript(against: Against) -> Result<Outcome> {
    let home = target().join("conformance/rabbitmq-javascript");
    if let Err(why) = npm(&sources("javascript"), &home) {
        return skip_or_fail("npm's packages", &format!("{why:#}"));
    }
    let mut command = Command::new("node");
    command.arg(sources("javascript").join("main.mjs"));
    run_against(against, command, &[home])
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
fn java(against: Against) -> Result<Outcome> {
    let (sources, home) = (sources("java"), home("java")?);
    let (libraries, classes) = (home.join("lib"), home.join("classes"));
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
    maven.arg(format!("-DoutputDirectory={}", libraries.display())).current_dir(&sources);
    if let Err(why) = run(&mut maven).and_then(|()| run(Command::new("javac").arg("-version"))) {
        return skip_or_fail("mvn with its packages, and java", &format!("{why:#}"));
    }
    let libraries = format!("{}/*", libraries.display());
    let mut compiler = Command::new("javac");
    compiler.args(["--release", JAVA_RELEASE, "-encoding", "UTF-8", "-d"]).arg(&classes);
    let files = ["Main.java", "Harness.java"].map(|file| sources.join(file));
    run(compiler.args(["-cp", &libraries]).args(files))?;
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
    match against {
        Against::Malote => {
            let broker = Malote::start()?;
            run_checks(program.arg(broker.url()).args(arguments))
        }
        Against::RabbitMq => {
            if let Some(skipped) = skip_if_missing()? {
                return Ok(skipped);
            }
            let broker = RabbitMq::start(1).context("the real RabbitMQ does not start")?;
            run_checks(program.arg(broker.url(0)).args(arguments))
        }
    }
}

/// A running server of ours, killed when it is no longer needed.
struct Malote {
    child: Child,
    /// Gone with the server.
    data: PathBuf,
    port: u16,
    management_port: u16,
}

impl Malote {
    fn start() -> Result<Self> {
        let data = target().join(format!("conformance/rabbitmq-data-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        let binary = target().join("release/malote");
        let (port, management_port) = (cargo::free_port()?, cargo::free_port()?);
        let mut serve = Command::new(&binary);
        let vhosts: Vec<_> = (0..VHOSTS).map(|number| number.to_string()).collect();
        serve.env("MALOTE_RABBITMQ_VHOSTS", vhosts.join(","));
        serve.args(["serve", "--http", "off", "--sqs", "off", "--servicebus-admin", "off"]);
        serve.args(["--rabbitmq-management", &management_port.to_string()]);
        serve.args(["--amqp", &port.to_string(), "--log", "error", "--data"]).arg(&data);
        let child = serve.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.with_context(|| format!("cannot start {}", binary.display()))?;
        let broker = Self { child, data, port, management_port };
        for _ in 0..1200 {
            let opened = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            if opened(port) && opened(management_port) {
                return Ok(broker);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the server does not listen");
    }

    fn management_url(&self) -> String {
        format!("http://guest:guest@127.0.0.1:{}", self.management_port)
    }

    fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2F", self.port)
    }
}

impl Drop for Malote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}
