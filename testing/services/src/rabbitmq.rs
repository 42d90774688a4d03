//! RabbitMQ on temporary directories and free ports of loopback: one node, or a cluster whose nodes can be killed.
//!
//! Each node is run by a shell that takes orders on its input, which is a pipe of ours: when this process ends, even
//! killed, so does the input, the node is killed and its directory removed. Nodes find each other through a port mapper of
//! their own, so nothing else on the machine sees them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::Trouble;

/// Where Debian puts the script that starts a server as whoever calls it.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// Somebody may take a port between our looking and the server's.
const TRIES: usize = 3;
/// A virtual machine that starts beside others takes its time.
const LOOKS_MAX: usize = 1800;
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the port mapper on port `$1`, or with `$2` a node. What is confirmed need not survive the end of the process.
const RUN: &str = r#"
# Whoever would hear of a server that was killed may be gone.
trap '' PIPE
dir=$(mktemp -d "${TMPDIR:-/tmp}/malote-rabbitmq-XXXXXXXX") || exit 1
cd "$dir" || exit 1
trap 'cd /; rm -rf "$dir"' EXIT
if [ -n "$SERVER" ]; then
    umask 077
    printf %s "$COOKIE" >.erlang.cookie
    printf '[rabbitmq_consistent_hash_exchange].\n' >plugins
    printf '%s' "$DEFINITIONS" >definitions.json
    {
        printf 'listeners.tcp.1 = 127.0.0.1:%s\n' "$PORT"
        if [ -n "$CERTIFICATE" ]; then
            printf %s "$CERTIFICATE" >server.crt
            printf %s "$KEY" >server.key
            printf 'listeners.ssl.1 = 127.0.0.1:%s\n' "$TLS_PORT"
            printf 'ssl_options.%s\n' "certfile = $dir/server.crt" "keyfile = $dir/server.key" 'verify = verify_none'
        fi
        printf 'load_definitions = %s/definitions.json\n' "$dir"
        printf 'log.console = true\nlog.console.level = warning\nlog.file = false\n'
        printf 'vm_memory_high_watermark.absolute = 1GB\ndisk_free_limit.absolute = 50MB\n'
        printf 'cluster_formation.peer_discovery_backend = classic_config\n'
        number=0
        for node in $NODES; do
            number=$((number + 1))
            printf 'cluster_formation.classic_config.nodes.%s = %s\n' $number "$node"
        done
    } >rabbitmq.conf
    export HOME="$dir" RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_NODENAME="$NAME" RABBITMQ_DIST_PORT="$DIST_PORT"
    export RABBITMQ_CONFIG_FILE="$dir/rabbitmq.conf" RABBITMQ_ENABLED_PLUGINS_FILE="$dir/plugins"
    export RABBITMQ_MNESIA_BASE="$dir/data" RABBITMQ_LOG_BASE="$dir/logs" RABBITMQ_PID_FILE="$dir/pid"
    export RABBITMQ_ADVANCED_CONFIG_FILE="$dir/none" RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+sbwt none +S 2:2"
    export RUNNING_UNDER_SYSTEMD=true
fi
start() {
    if [ -n "$SERVER" ]; then
        "$SERVER" >log 2>&1 </dev/null &
    else
        epmd -address 127.0.0.1 >log 2>&1 </dev/null &
    fi
    server=$!
    echo "pid $server"
}
stop() {
    [ -n "$server" ] && kill -KILL $server 2>/dev/null
    wait $server 2>/dev/null
    server=
}
start
while read -r order; do
    case $order in
    kill) stop; echo killed ;;
    start) start ;;
    log) stop; cat log >&2; break ;;
    esac
done
stop
exit 0
"#;

/// A server, or several that are one, until this is dropped or its process ends.
pub struct RabbitMq {
    nodes: Vec<Node>,
    _mapper: Shell,
}

struct Node {
    port: u16,
    /// Where it speaks TLS, if it has a certificate.
    tls_port: u16,
    shell: Shell,
}

impl Node {
    /// Waits until it does.
    fn answers(&mut self) -> bool {
        for _ in 0..LOOKS_MAX {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            if !self.shell.runs() {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        false
    }
}

impl RabbitMq {
    /// The script that starts it.
    pub fn find() -> Result<PathBuf, Trouble> {
        let script = PathBuf::from(SERVER);
        match script.is_file() {
            true => Ok(script),
            false => Err(Trouble::Missing(
                "RabbitMQ is not on this machine: apt-get install rabbitmq-server".into(),
            )),
        }
    }

    /// Starts one node with virtual hosts `0`, `1` and so on, and waits until it answers.
    pub fn start(vhosts: usize) -> Result<Self, Trouble> {
        Self::start_all(1, vhosts, ["", ""])
    }

    /// The same, that speaks TLS on a second port, with a certificate and its key in PEM form.
    pub fn start_with_tls(certificate: &str, key: &str) -> Result<Self, Trouble> {
        Self::start_all(1, 1, [certificate, key])
    }

    /// Starts so many nodes that are one cluster.
    pub fn cluster(nodes: usize) -> Result<Self, Trouble> {
        Self::start_all(nodes, 1, ["", ""])
    }

    fn start_all(nodes: usize, vhosts: usize, tls: [&str; 2]) -> Result<Self, Trouble> {
        Self::find()?;
        let mut said = String::new();
        for _ in 0..TRIES {
            match Self::try_start(nodes, vhosts, tls) {
                Ok(server) => return Ok(server),
                Err(why) => said = why,
            }
        }
        Err(Trouble::Failed(said))
    }

    fn try_start(count: usize, vhosts: usize, tls: [&str; 2]) -> Result<Self, String> {
        let [mapper_port, salt] = [free_port()?, free_port()?].map(|port| port.to_string());
        let mapper = Shell::start(&[("ERL_EPMD_PORT", &mapper_port)])?;
        let names: Vec<_> = (1..=count).map(|n| format!("malote-{salt}-{n}@localhost")).collect();
        let all = names.join(" ");
        let definitions = definitions(vhosts);
        let mut nodes = Vec::new();
        for name in &names {
            let (port, tls_port) = (free_port()?, free_port()?);
            let dist_port = free_port()?.to_string();
            let shell = Shell::start(&[
                ("ERL_EPMD_PORT", mapper_port.as_str()),
                ("ERL_EPMD_ADDRESS", "127.0.0.1"),
                ("SERVER", SERVER),
                ("NAME", name),
                ("NODES", &all),
                ("PORT", &port.to_string()),
                ("TLS_PORT", &tls_port.to_string()),
                ("CERTIFICATE", tls[0]),
                ("KEY", tls[1]),
                ("DIST_PORT", &dist_port),
                ("COOKIE", &salt),
                ("DEFINITIONS", &definitions),
            ])?;
            let mut node = Node { port, tls_port, shell };
            // Whoever comes later joins: nodes that begin at the same time may miss each other.
            if !node.answers() {
                return Err(node.shell.log());
            }
            nodes.push(node);
        }
        Ok(Self { nodes, _mapper: mapper })
    }

    /// How a virtual host is reached, through the first node.
    pub fn url(&self, vhost: usize) -> String {
        self.url_of_all(&[0], vhost)
    }

    /// The same, through the first of these nodes that answers.
    pub fn url_of_all(&self, nodes: &[usize], vhost: usize) -> String {
        let at: Vec<_> =
            nodes.iter().map(|&node| format!("127.0.0.1:{}", self.nodes[node].port)).collect();
        format!("amqp://malote:malote@{}/{vhost}", at.join(","))
    }

    /// The same through TLS, by this name of the machine.
    pub fn tls_url(&self, name: &str) -> String {
        format!("amqps://malote:malote@{name}:{}/0", self.nodes[0].tls_port)
    }

    /// Ends a node at once, as a power failure would. What it wrote is still there.
    pub fn kill(&mut self, node: usize) {
        // One that is dead already says nothing, and is dead.
        let _ = self.nodes[node].shell.order("kill");
    }

    /// Starts a node that was killed, with what it wrote, and waits until it answers.
    pub fn restart(&mut self, node: usize) -> Result<(), Trouble> {
        let node = &mut self.nodes[node];
        let said = node.shell.order("start").map_err(|error| Trouble::Failed(error.to_string()))?;
        node.shell.pid = pid(&said).ok_or(Trouble::Failed(said))?;
        match node.answers() {
            true => Ok(()),
            false => Err(Trouble::Failed("a node that was killed does not come back".into())),
        }
    }

    /// The process of a node, to see what it takes.
    pub fn pid(&self, node: usize) -> u32 {
        self.nodes[node].shell.pid
    }
}

/// A user `malote` whose password is the same, and virtual hosts by their numbers.
fn definitions(vhosts: usize) -> String {
    let user = r#"{"name":"malote","tags":"administrator","hashing_algorithm":"rabbit_password_hashing_sha256","password_hash":"AAAAAHZNAkLQW+kaEJ6AaRRRDwMHtt2gy1PSmcyl2OJir7HS"}"#;
    let all = |one: &dyn Fn(usize) -> String| (0..vhosts).map(one).collect::<Vec<_>>().join(",");
    let names = all(&|n| format!(r#"{{"name":"{n}"}}"#));
    let rights = all(&|n| {
        format!(r#"{{"user":"malote","vhost":"{n}","configure":".*","write":".*","read":".*"}}"#)
    });
    format!(r#"{{"users":[{user}],"vhosts":[{names}],"permissions":[{rights}]}}"#)
}

fn free_port() -> Result<u16, String> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.map(|at| at.port()).map_err(|error| error.to_string())
}

/// A shell that ends what it runs when its input ends.
struct Shell {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pid: u32,
}

fn pid(line: &str) -> Option<u32> {
    line.trim().strip_prefix("pid ").and_then(|pid| pid.parse().ok())
}

impl Shell {
    fn start(environment: &[(&str, &str)]) -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let mut command = Command::new("sh");
        command.args(["-c", RUN, "sh"]).envs(environment.iter().copied());
        // A Ctrl-C is ours: it must find the server alive to stop it in order.
        command.process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(text)?;
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().ok_or("it has no output")?);
        let mut line = String::new();
        output.read_line(&mut line).map_err(text)?;
        let pid = pid(&line).ok_or("the shell did not start it")?;
        Ok(Self { child, input, output, pid })
    }

    /// What the shell says to it.
    fn order(&mut self, order: &str) -> std::io::Result<String> {
        if let Some(input) = &mut self.input {
            writeln!(input, "{order}")?;
        }
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    fn runs(&self) -> bool {
        // A process that has ended and that nobody has waited for is there still, as `Z`.
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        state.is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn end(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }

    /// Ends it, and tells what it said.
    fn log(mut self) -> String {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(b"log\n"); // a shell that is gone says nothing
        }
        drop(self.input.take());
        let mut said = String::new();
        if let Some(errors) = &mut self.child.stderr {
            let _ = errors.read_to_string(&mut said);
        }
        let _ = self.child.wait();
        said
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.end();
    }
}
