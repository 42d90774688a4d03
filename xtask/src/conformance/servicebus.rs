//! Service Bus with its official clients: the programs in `testing/conformance/servicebus`.

pub(crate) mod go;
pub(super) mod java;
pub(super) mod upstream;

use super::target;
use crate::cargo;
use crate::steps::Outcome;
use anyhow::{Context, Result, anyhow, bail};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The client version for which the programs are written.
pub(super) const PYTHON_CLIENT: &str = "azure-servicebus==7.15.0";

/// Programs, each with the mode of its server.
const PYTHON: &[(&str, ServerMode)] = &[
    ("queues.py", ServerMode::Open),
    ("sessions.py", ServerMode::Open),
    ("topics.py", ServerMode::Open),
    ("access.py", ServerMode::Secured),
    ("admin.py", ServerMode::Secured),
];
const JAVASCRIPT: &[(&str, ServerMode)] = &[
    ("queues.mjs", ServerMode::Open),
    ("sessions.mjs", ServerMode::Open),
    ("topics.mjs", ServerMode::Open),
    ("generic.mjs", ServerMode::Open),
    ("admin.mjs", ServerMode::Secured),
];

/// How the server is started.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerMode {
    /// The server accepts every client.
    Open,
    /// With keys and TLS.
    Secured,
}

pub(super) fn python() -> Result<Outcome> {
    let packages = [PYTHON_CLIENT, "websocket-client==1.8.0"];
    let home = target().join("conformance/azure-servicebus");
    let python = match super::python(&home, &packages, "import azure.servicebus, websocket") {
        Ok(python) => python,
        Err(why) => return super::skip_or_fail(PYTHON_CLIENT, &format!("{why:#}")),
    };
    run_programs("python", PYTHON, || {
        let mut command = Command::new(&python);
        command.arg("-B");
        command
    })
}

/// The versions are in the programs' `package.json`.
pub(super) fn javascript() -> Result<Outcome> {
    let source = folder().join("javascript");
    let home = target().join("conformance/servicebus-javascript");
    if let Err(why) = super::npm(&source, &home) {
        return super::skip_or_fail("npm packages", &format!("{why:#}"));
    }
    run_programs("javascript", JAVASCRIPT, || {
        let mut command = Command::new("node");
        command.env("MALOTE_MODULES", &home);
        command
    })
}

fn folder() -> PathBuf {
    cargo::root().join("testing/conformance/servicebus")
}

/// Runs every program against its own server. They run at the same time, because they mostly wait.
fn run_programs(
    language: &str,
    programs: &[(&str, ServerMode)],
    run: impl Fn() -> Command,
) -> Result<Outcome> {
    let (target, folder) = (target(), folder());
    let binary = target.join("release/malote");
    let mut running = Vec::new();
    for (program, mode) in programs {
        let data = target.join("conformance/data").join(program);
        let server = Server::start(&binary, data, &folder, *mode)?;
        let mut command = run();
        command.arg(folder.join(language).join(program)).envs(server.variables());
        running.push(std::thread::spawn(move || {
            let output = command.output().with_context(|| format!("cannot start {command:?}"));
            drop(server);
            output
        }));
    }
    let mut outcome = Outcome::default();
    for (run, (program, _)) in running.into_iter().zip(programs) {
        let output = run.join().map_err(|_| anyhow!("the thread of {program} panicked"))??;
        eprint!("{}", String::from_utf8_lossy(&output.stdout));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        match output.status.success() {
            true => outcome.passed += 1,
            false => outcome.failed += 1,
        }
    }
    Ok(outcome)
}

/// A running server; dropping it kills the process.
struct Server {
    child: Child,
    mode: ServerMode,
    data: PathBuf,
    amqp: u16,
    http: u16,
    admin: u16,
    /// Environment variables with the secrets of keys.
    keys: Vec<(&'static str, String)>,
}

impl Server {
    fn start(binary: &Path, data: PathBuf, folder: &Path, mode: ServerMode) -> Result<Server> {
        let _ = std::fs::remove_dir_all(&data);
        let mut keys = Vec::new();
        if mode == ServerMode::Secured {
            std::fs::create_dir_all(&data)?;
            keys.push(key(binary, &data, "MALOTE_ROOT", &["--id", "Root", "--admin"])?);
            let reader = ["--id", "Reader", "--grant", "receive configured"];
            keys.push(key(binary, &data, "MALOTE_READER", &reader)?);
        }
        let more: &[&str] = if mode == ServerMode::Secured { &["--tls-self-signed"] } else { &[] };
        let amqp = cargo::free_port()?;
        Server::launch(binary, data, mode, amqp, keys, &folder.join("entities.json"), more)
    }

    /// Starts a server with these entities and waits until it listens.
    fn launch(
        binary: &Path,
        data: PathBuf,
        mode: ServerMode,
        amqp: u16,
        keys: Vec<(&'static str, String)>,
        entities: &Path,
        more: &[&str],
    ) -> Result<Server> {
        let (http, admin) = (cargo::free_port()?, cargo::free_port()?);
        let mut command = Command::new(binary);
        command.arg("serve").arg("--data").arg(&data);
        command.args(["--amqp", &amqp.to_string(), "--http", &http.to_string(), "--sqs", "off"]);
        command.args(["--servicebus-admin", &admin.to_string()]).args(more);
        command.args(["--log", "warn", "--servicebus-config"]).arg(entities);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.with_context(|| format!("cannot start {}", binary.display()))?;
        let server = Server { child, mode, data, amqp, http, admin, keys };
        for _ in 0..1200 {
            if std::net::TcpStream::connect(("127.0.0.1", server.amqp)).is_ok() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the server does not accept connections");
    }

    /// Environment variables with the server's addresses and keys, for the programs.
    fn variables(&self) -> Vec<(&'static str, String)> {
        let mut all = self.keys.clone();
        all.push(("MALOTE_AMQP_AT", format!("localhost:{}", self.amqp)));
        all.push(("MALOTE_HTTP_AT", format!("127.0.0.1:{}", self.http)));
        all.push(("MALOTE_ADMIN_AT", format!("localhost:{}", self.admin)));
        let certificate = self.data.join("tls-self-signed.pem").display().to_string();
        all.push(("MALOTE_CA", certificate.clone()));
        if self.mode == ServerMode::Secured {
            all.push(("NODE_EXTRA_CA_CERTS", certificate));
        }
        all
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a key. Returns its secret together with the name of an environment variable.
fn key(
    binary: &Path,
    data: &Path,
    variable: &'static str,
    args: &[&str],
) -> Result<(&'static str, String)> {
    let mut add = Command::new(binary);
    add.args(["key", "add", "servicebus", "-o", "json", "--data"]).arg(data).args(args);
    Ok((variable, json_field(&mut add, "secret")?))
}

/// The string with this name in the JSON output of a command.
fn json_field(command: &mut Command, name: &str) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let after = text.split_once(&format!("\"{name}\"")).map(|(_, rest)| rest.split('"').nth(1));
    let found =
        after.flatten().with_context(|| format!("the output of {command:?} has no `{name}`"))?;
    Ok(found.to_owned())
}
