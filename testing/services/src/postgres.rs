//! A PostgreSQL on a temporary directory and a free port of loopback.
//!
//! A shell runs it and waits for the end of its own input, which is a pipe of ours: when this process ends, even killed,
//! the pipe is closed, the server stopped and its directory removed. As root, all of that is done as the user `postgres`,
//! because the server refuses to be root's.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::Trouble;

/// Where Debian and its kin put each version: `VERSION/bin`.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Somebody may take the port between our looking and the server's.
const TRIES: usize = 5;

/// `$1` has the programs, `$2` is the port, `$3` may be `-F`: what a test commits need not survive a power failure. With
/// a `CERTIFICATE` it speaks TLS to those who ask.
const RUN: &str = r#"
# Whoever would hear of it may be gone: then it still has to be stopped.
trap '' PIPE
dir=$(mktemp -d "${TMPDIR:-/tmp}/malote-postgres-XXXXXXXX") || exit 1
cd "$dir" || exit 1
trap 'cd /; rm -rf "$dir"' EXIT
"$1/initdb" --pgdata=data --username=malote --auth=trust --encoding=UTF8 --locale=C --no-sync >log 2>&1 ||
    { cat log >&2; exit 1; }
tls=
if [ -n "$CERTIFICATE" ]; then
    umask 077
    printf %s "$CERTIFICATE" >data/server.crt
    printf %s "$KEY" >data/server.key
    tls='-c ssl=on'
fi
"$1/postgres" -D data $tls -p "$2" -h 127.0.0.1 -k "$dir" $3 -c max_connections=200 -c log_min_messages=warning >log 2>&1 &
server=$!
until "$1/pg_isready" -q -h 127.0.0.1 -p "$2" -U malote -d postgres; do
    kill -0 $server 2>/dev/null || { cat log >&2; exit 1; }
    sleep 0.1
done
echo ready
read -r _
kill -INT $server
wait $server
"#;

/// A server that runs until this is dropped, or its process ends.
pub struct Postgres {
    port: u16,
    /// The shell; it ends when its input does.
    shell: Child,
    input: Option<ChildStdin>,
}

impl Postgres {
    /// The folder of its programs: the newest version on this machine.
    pub fn find() -> Result<PathBuf, Trouble> {
        let version = |dir: &Path| dir.file_name()?.to_str()?.parse::<u32>().ok();
        let installed = std::fs::read_dir(VERSIONS).into_iter().flatten().flatten();
        let mut versions: Vec<PathBuf> = installed.map(|entry| entry.path()).collect();
        versions.sort_by_key(|dir| std::cmp::Reverse(version(dir)));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders =
            versions.iter().map(|dir| dir.join("bin")).chain(std::env::split_paths(&path));
        let whole = |dir: &PathBuf| {
            ["initdb", "postgres", "pg_isready"].iter().all(|name| dir.join(name).is_file())
        };
        folders.find(whole).ok_or_else(|| {
            Trouble::Missing("PostgreSQL is not on this machine: apt-get install postgresql".into())
        })
    }

    /// Starts one and waits until it answers.
    pub fn start() -> Result<Self, Trouble> {
        Self::start_with("-F", ["", ""])
    }

    /// The same, with a certificate and its key in PEM form.
    pub fn start_with_tls(certificate: &str, key: &str) -> Result<Self, Trouble> {
        Self::start_with("-F", [certificate, key])
    }

    /// The same, with every commit on disk before it is answered: for measuring.
    pub fn start_durable() -> Result<Self, Trouble> {
        Self::start_with("", ["", ""])
    }

    fn start_with(sync: &str, tls: [&str; 2]) -> Result<Self, Trouble> {
        let programs = Self::find()?;
        let mut said = String::new();
        for _ in 0..TRIES {
            match Self::try_start(&programs, sync, tls) {
                Ok(server) => return Ok(server),
                Err(why) => said = why,
            }
        }
        Err(Trouble::Failed(said))
    }

    fn try_start(programs: &Path, sync: &str, tls: [&str; 2]) -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.map_err(text)?.port();
        let mut command = if is_root() {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "sh"]);
            command
        } else {
            Command::new("sh")
        };
        command.args(["-c", RUN, "sh"]).arg(programs).arg(port.to_string()).arg(sync);
        command.env("CERTIFICATE", tls[0]).env("KEY", tls[1]);
        // A Ctrl-C is ours: it must find the server alive to stop it in order.
        command.process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = command.spawn().map_err(text)?;
        let input = shell.stdin.take();
        let (output, errors) = (shell.stdout.take(), shell.stderr.take());
        let server = Self { port, shell, input };
        let ready = output.is_some_and(|output| {
            BufReader::new(output).lines().any(|line| line.is_ok_and(|line| line == "ready"))
        });
        if ready {
            return Ok(server);
        }
        let mut said = String::new();
        if let Some(mut errors) = errors {
            errors.read_to_string(&mut said).map_err(text)?;
        }
        Err(said)
    }

    /// How it is reached: any name of a user or database that it has; it asks for no password.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://malote@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.shell.wait();
    }
}

/// Root's processes belong to user 0.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
