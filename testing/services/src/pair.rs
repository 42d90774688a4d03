//! A PostgreSQL with a standby that has every commit before it is answered. The one that leads can be made to crash, the
//! standby to take its place, and the one that crashed to be its standby.
//!
//! One shell runs both, as in `postgres.rs`, and takes orders on its input: when that ends, so do they.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Trouble;
use crate::postgres::{Postgres, is_root};

/// Somebody may take the ports between our looking and the servers'.
const TRIES: usize = 5;

/// `$1` has the programs, `$2` and `$3` are the ports. Whoever leads waits for its standby only once there is one: a copy
/// is made before it is told to, so that a standby that takes over waits for nobody.
const RUN: &str = r#"
# Whoever would hear of it may be gone: then it still has to be stopped.
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
    rm -rf $next
    "$programs/pg_basebackup" -h 127.0.0.1 -p "$lead_port" -U malote -D $next -R -X stream -c fast --no-sync >log 2>&1 || fail
    start $next "$next_port"
    ask "alter system set synchronous_standby_names = '*'" >log 2>&1 || fail
    ask "select pg_reload_conf()" >log 2>&1 || fail
    # Who waits for the standby is the checkpointer's to say: it has heard of it once it made a checkpoint after that.
    until [ "$(ask "show synchronous_standby_names")" = "*" ]; do sleep 0.1; done
    ask checkpoint >log 2>&1 || fail
}
ask() { "$programs/psql" -qAt -h 127.0.0.1 -p "$lead_port" -U malote -d postgres -c "$1"; }
lead=first lead_port=$2 next=second next_port=$3
"$programs/initdb" --pgdata=first --username=malote --auth=trust --encoding=UTF8 --locale=C --no-sync >log 2>&1 || fail
start first "$lead_port"
follow
echo ready
while read -r order; do
    case $order in
    crash) "$programs/pg_ctl" stop -s -D $lead -m immediate >log 2>&1 || fail ;;
    promote)
        "$programs/pg_ctl" promote -s -w -t 120 -D $next >log 2>&1 || fail
        was=$lead was_port=$lead_port lead=$next lead_port=$next_port next=$was next_port=$was_port
        ;;
    follow) follow ;;
    esac
    echo ready
done
"#;

/// Two servers that run until this is dropped, or its process ends.
pub struct PostgresPair {
    ports: [u16; 2],
    shell: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl PostgresPair {
    /// Starts both and waits until the standby follows.
    pub fn start() -> Result<Self, Trouble> {
        let programs = Postgres::find()?;
        let mut said = String::new();
        for _ in 0..TRIES {
            match Self::try_start(&programs) {
                Ok(pair) => return Ok(pair),
                Err(why) => said = why,
            }
        }
        Err(Trouble::Failed(said))
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
        command.args(["-c", RUN, "sh"]).arg(programs).args(ports.map(|port| port.to_string()));
        // A Ctrl-C is ours: it must find the servers alive to stop them in order.
        command.process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = command.spawn().map_err(text)?;
        let (input, errors) = (shell.stdin.take(), shell.stderr.take());
        let output = shell.stdout.take().ok_or("the shell has no output")?;
        let mut pair = Self { ports, shell, input, output: BufReader::new(output) };
        if pair.is_ready() {
            return Ok(pair);
        }
        let mut said = String::new();
        if let Some(mut errors) = errors {
            errors.read_to_string(&mut said).map_err(text)?;
        }
        Err(said)
    }

    fn is_ready(&mut self) -> bool {
        let mut line = String::new();
        self.output.read_line(&mut line).is_ok() && line == "ready\n"
    }

    fn order(&mut self, order: &str) -> Result<(), Trouble> {
        let failed = |why: &str| Trouble::Failed(format!("{order}: {why}"));
        let input = self.input.as_mut().ok_or_else(|| failed("the shell is gone"))?;
        writeln!(input, "{order}").map_err(|error| failed(&error.to_string()))?;
        if self.is_ready() { Ok(()) } else { Err(failed("it did not work")) }
    }

    /// The one that leads ends without a word, as if its machine did.
    pub fn crash(&mut self) -> Result<(), Trouble> {
        self.order("crash")
    }

    /// The standby takes its place.
    pub fn promote(&mut self) -> Result<(), Trouble> {
        self.order("promote")
    }

    /// The one that crashed is the standby of the one that leads now.
    pub fn follow(&mut self) -> Result<(), Trouble> {
        self.order("follow")
    }

    /// How whichever takes writes is reached.
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
