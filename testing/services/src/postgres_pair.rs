//! A PostgreSQL primary with a synchronous standby. The primary can crash, the standby can be promoted, and the
//! crashed server can become the new standby.
//!
//! One shell runs both servers, as in `postgres.rs`, and reads commands from its input. When the input ends, the
//! shell stops them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::StartError;
use crate::postgres::{Postgres, is_root};

/// Another process may take the ports before the servers do.
const ATTEMPTS_MAX: usize = 5;

/// `$1`: directory of the programs; `$2`, `$3`: ports. The primary waits for a standby only after there is one: the
/// base backup is made before that is configured, so that a promoted standby does not wait.
const SCRIPT: &str = r#"
# The reader of the output may be gone, but the servers must still be stopped.
trap '' PIPE
programs=$1
dir=$(mktemp -d "${TMPDIR:-/tmp}/malote-postgres-XXXXXXXX") || exit 1
cd "$dir" || exit 1
stop() {
    for data in first second; do
        [ -f $data/postmaster.pid ] && "$programs/pg_ctl" stop -s -D $data -m immediate >/dev/null 2>&1
    done
    cd /
    rm -rf "$dir"
}
trap stop EXIT
fail() { cat log >&2; exit 1; }
start() {
    "$programs/pg_ctl" start -s -w -t 120 -D $1 -l log -o "-p $2 -h 127.0.0.1 -k $dir -F -c max_connections=200 -c log_min_messages=warning" \
        >/dev/null 2>&1 || fail
}
follow() {
    rm -rf $standby
    "$programs/pg_basebackup" -h 127.0.0.1 -p "$primary_port" -U malote -D $standby -R -X stream -c fast --no-sync >log 2>&1 || fail
    start $standby "$standby_port"
    ask "alter system set synchronous_standby_names = '*'" >log 2>&1 || fail
    ask "select pg_reload_conf()" >log 2>&1 || fail
    # The checkpointer applies this setting. It has done so once a later checkpoint is complete.
    until [ "$(ask "show synchronous_standby_names")" = "*" ]; do sleep 0.1; done
    ask checkpoint >log 2>&1 || fail
}
ask() { "$programs/psql" -qAt -h 127.0.0.1 -p "$primary_port" -U malote -d postgres -c "$1"; }
primary=first primary_port=$2 standby=second standby_port=$3
"$programs/initdb" --pgdata=first --username=malote --auth=trust --encoding=UTF8 --locale=C --no-sync >log 2>&1 || fail
start first "$primary_port"
follow
echo ready
while read -r command; do
    case $command in
    crash) "$programs/pg_ctl" stop -s -D $primary -m immediate >log 2>&1 || fail ;;
    promote)
        "$programs/pg_ctl" promote -s -w -t 120 -D $standby >log 2>&1 || fail
        was=$primary was_port=$primary_port primary=$standby primary_port=$standby_port standby=$was standby_port=$was_port
        ;;
    follow) follow ;;
    esac
    echo ready
done
"#;

/// Two servers that stop when this is dropped or the process ends.
pub struct PostgresPair {
    ports: [u16; 2],
    shell: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl PostgresPair {
    /// Starts both servers and waits until the standby follows the primary.
    pub fn start() -> Result<Self, StartError> {
        let programs = Postgres::find()?;
        let mut output_text = String::new();
        for _ in 0..ATTEMPTS_MAX {
            match Self::try_start(&programs) {
                Ok(pair) => return Ok(pair),
                Err(error) => output_text = error,
            }
        }
        Err(StartError::Failed(output_text))
    }

    fn try_start(programs: &Path) -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let free = || TcpListener::bind("127.0.0.1:0");
        let (first, second) = (free().map_err(text)?, free().map_err(text)?);
        let port = |listener: &TcpListener| listener.local_addr().map(|at| at.port());
        let ports = [port(&first).map_err(text)?, port(&second).map_err(text)?];
        drop((first, second));
        let mut command = if is_root() {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "sh"]);
            command
        } else {
            Command::new("sh")
        };
        command.args(["-c", SCRIPT, "sh"]).arg(programs).args(ports.map(|port| port.to_string()));
        // In a process group of its own: Ctrl-C must not kill the servers before the shell stops them.
        command.process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = command.spawn().map_err(text)?;
        let (input, errors) = (shell.stdin.take(), shell.stderr.take());
        let output = shell.stdout.take().ok_or("the shell has no output")?;
        let mut pair = Self { ports, shell, input, output: BufReader::new(output) };
        if pair.is_ready() {
            return Ok(pair);
        }
        let mut output_text = String::new();
        if let Some(mut errors) = errors {
            errors.read_to_string(&mut output_text).map_err(text)?;
        }
        Err(output_text)
    }

    fn is_ready(&mut self) -> bool {
        let mut line = String::new();
        self.output.read_line(&mut line).is_ok() && line == "ready\n"
    }

    fn send_command(&mut self, command: &str) -> Result<(), StartError> {
        let failed = |error: &str| StartError::Failed(format!("{command}: {error}"));
        let input = self.input.as_mut().ok_or_else(|| failed("the shell has ended"))?;
        writeln!(input, "{command}").map_err(|error| failed(&error.to_string()))?;
        if self.is_ready() { Ok(()) } else { Err(failed("the command failed")) }
    }

    /// Stops the primary immediately, as a crash of its machine would.
    pub fn crash(&mut self) -> Result<(), StartError> {
        self.send_command("crash")
    }

    /// Promotes the standby.
    pub fn promote(&mut self) -> Result<(), StartError> {
        self.send_command("promote")
    }

    /// Makes the crashed server the standby of the new primary.
    pub fn follow(&mut self) -> Result<(), StartError> {
        self.send_command("follow")
    }

    /// A URL that connects to the current primary.
    pub fn url(&self, database: &str) -> String {
        let [first, second] = self.ports;
        format!(
            "postgres://malote@127.0.0.1:{first},127.0.0.1:{second}/{database}?target_session_attrs=read-write"
        )
    }
}

impl Drop for PostgresPair {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.shell.wait();
    }
}
