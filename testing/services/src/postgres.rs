//! PostgreSQL in a temporary directory, on a free port of the loopback interface.
//!
//! A shell runs the server and waits for the end of its input, a pipe to this process. When this process ends, even
//! if killed, the pipe closes, and the shell stops the server and removes the directory. The server refuses to run as
//! root; for root, everything runs as the user `postgres`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::StartError;

/// Where Debian-based systems install each version: `VERSION/bin`.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Another process may take the port before the server does.
const ATTEMPTS_MAX: usize = 5;

/// `$1`: directory of the programs; `$2`: port; `$3`: options, such as `-F` for commits that need not survive a power
/// failure. With `CERTIFICATE`, the server supports TLS.
const SCRIPT: &str = r#"
# The reader of the output may be gone, but the server must still be stopped.
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

/// A server that stops when this is dropped or the process ends.
pub struct Postgres {
    port: u16,
    /// Ends when its input does.
    shell: Child,
    input: Option<ChildStdin>,
}

impl Postgres {
    /// The directory with the programs of the newest installed version.
    pub fn find() -> Result<PathBuf, StartError> {
        let version = |dir: &Path| dir.file_name()?.to_str()?.parse::<u32>().ok();
        let installed = std::fs::read_dir(VERSIONS).into_iter().flatten().flatten();
        let mut versions: Vec<PathBuf> = installed.map(|entry| entry.path()).collect();
        versions.sort_by_key(|dir| std::cmp::Reverse(version(dir)));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders =
            versions.iter().map(|dir| dir.join("bin")).chain(std::env::split_paths(&path));
        let is_complete = |dir: &PathBuf| {
            ["initdb", "postgres", "pg_isready"].iter().all(|name| dir.join(name).is_file())
        };
        folders.find(is_complete).ok_or_else(|| {
            StartError::NotInstalled(
                "PostgreSQL is not installed: apt-get install postgresql".into(),
            )
        })
    }

    /// Starts a server and waits until it accepts connections.
    pub fn start() -> Result<Self, StartError> {
        Self::start_with("-F", ["", ""])
    }

    /// Starts a server with TLS. The certificate and its key are in PEM form.
    pub fn start_with_tls(certificate: &str, key: &str) -> Result<Self, StartError> {
        Self::start_with("-F", [certificate, key])
    }

    /// Starts a server that syncs every commit, for benchmarks.
    pub fn start_durable() -> Result<Self, StartError> {
        Self::start_with("", ["", ""])
    }

    fn start_with(sync: &str, tls: [&str; 2]) -> Result<Self, StartError> {
        let programs = Self::find()?;
        let mut output_text = String::new();
        for _ in 0..ATTEMPTS_MAX {
            match Self::try_start(&programs, sync, tls) {
                Ok(server) => return Ok(server),
                Err(error) => output_text = error,
            }
        }
        Err(StartError::Failed(output_text))
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
        command.args(["-c", SCRIPT, "sh"]).arg(programs).arg(port.to_string()).arg(sync);
        command.env("CERTIFICATE", tls[0]).env("KEY", tls[1]);
        // In a process group of its own: Ctrl-C must not kill the server before the shell stops it.
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
        let mut output_text = String::new();
        if let Some(mut errors) = errors {
            errors.read_to_string(&mut output_text).map_err(text)?;
        }
        Err(output_text)
    }

    /// The URL of a database. No password is needed.
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

pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
