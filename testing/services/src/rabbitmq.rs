//! RabbitMQ in temporary directories, on free ports of the loopback interface: one node, or a cluster whose nodes can
//! be killed.
//!
//! A shell runs each node and reads commands from its input, a pipe to this process. When this process ends, even if
//! killed, the pipe closes, and the shell kills the node and removes its directory. The nodes have their own port
//! mapper, so nothing else on the machine sees them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::StartError;

/// Debian's script that starts a server as the calling user.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// Another process may take a port before the server does.
const ATTEMPTS_MAX: usize = 3;
/// The Erlang VM starts slowly on a busy machine.
const POLLS_MAX: usize = 1800;
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Runs a node, or without `SERVER` the port mapper. Confirmed messages need not survive the end of the process.
const SCRIPT: &str = r#"
# The reader of the output may be gone.
trap '' PIPE
dir=$(mktemp -d "${TMPDIR:-/tmp}/malote-rabbitmq-XXXXXXXX") || exit 1
cd "$dir" || exit 1
trap 'cd /; rm -rf "$dir"' EXIT
if [ -n "$SERVER" ]; then
    umask 077
    printf %s "$COOKIE" >.erlang.cookie
    printf '[rabbitmq_consistent_hash_exchange,rabbitmq_shovel%s].\n' "${MANAGEMENT_PORT:+,rabbitmq_management}" >plugins
    printf '%s' "$DEFINITIONS" >definitions.json
    {
        printf 'listeners.tcp.1 = 127.0.0.1:%s\n' "$PORT"
        if [ -n "$CERTIFICATE" ]; then
            printf %s "$CERTIFICATE" >server.crt
            printf %s "$KEY" >server.key
            printf 'listeners.ssl.1 = 127.0.0.1:%s\n' "$TLS_PORT"
            printf 'ssl_options.%s\n' "certfile = $dir/server.crt" "keyfile = $dir/server.key" 'verify = verify_none'
        fi
        if [ -n "$MANAGEMENT_PORT" ]; then
            printf 'management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %s\n' "$MANAGEMENT_PORT"
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
while read -r command; do
    case $command in
    kill) stop; echo killed ;;
    start) start ;;
    log) stop; cat log >&2; break ;;
    esac
done
stop
exit 0
"#;

/// A server or a cluster that stops when this is dropped or the process ends.
pub struct RabbitMq {
    nodes: Vec<Node>,
    _mapper: Shell,
}

struct Node {
    port: u16,
    /// The port for TLS, if there is a certificate.
    tls_port: u16,
    /// The port of the management plugin, if it is enabled.
    management_port: Option<u16>,
    shell: Shell,
}

/// How nodes are started.
#[derive(Clone, Copy, Default)]
struct Options<'a> {
    vhosts: usize,
    /// A certificate and its key, in PEM form; empty for no TLS.
    tls: [&'a str; 2],
    management: bool,
}

impl Node {
    /// Waits until the node accepts connections. False if it ended or took too long.
    fn wait_until_listening(&mut self) -> bool {
        let ports = [Some(self.port), self.management_port];
        for _ in 0..POLLS_MAX {
            let mut ports = ports.iter().flatten();
            if ports.all(|&port| TcpStream::connect(("127.0.0.1", port)).is_ok()) {
                return true;
            }
            if !self.shell.is_running() {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        false
    }
}

impl RabbitMq {
    /// The script that starts the server.
    pub fn find() -> Result<PathBuf, StartError> {
        let script = PathBuf::from(SERVER);
        match script.is_file() {
            true => Ok(script),
            false => Err(StartError::NotInstalled(
                "RabbitMQ is not installed: apt-get install rabbitmq-server".into(),
            )),
        }
    }

    /// Starts one node with virtual hosts `0`, `1` and so on, and waits until it accepts connections.
    pub fn start(vhosts: usize) -> Result<Self, StartError> {
        Self::start_all(1, Options { vhosts, ..Options::default() })
    }

    /// Starts one node with the management plugin on a port of its own, and the virtual host `0`. Shovels are enabled.
    pub fn start_with_management() -> Result<Self, StartError> {
        Self::start_all(1, Options { vhosts: 1, management: true, ..Options::default() })
    }

    /// Starts one node with TLS on a second port. The certificate and its key are in PEM form.
    pub fn start_with_tls(certificate: &str, key: &str) -> Result<Self, StartError> {
        Self::start_all(1, Options { vhosts: 1, tls: [certificate, key], ..Options::default() })
    }

    /// Starts a cluster.
    pub fn cluster(nodes: usize) -> Result<Self, StartError> {
        Self::start_all(nodes, Options { vhosts: 1, ..Options::default() })
    }

    fn start_all(nodes: usize, options: Options<'_>) -> Result<Self, StartError> {
        Self::find()?;
        let mut output_text = String::new();
        for _ in 0..ATTEMPTS_MAX {
            match Self::try_start(nodes, options) {
                Ok(server) => return Ok(server),
                Err(error) => output_text = error,
            }
        }
        Err(StartError::Failed(output_text))
    }

    fn try_start(count: usize, options: Options<'_>) -> Result<Self, String> {
        let Options { vhosts, tls, management } = options;
        let [mapper_port, salt] = [free_port()?, free_port()?].map(|port| port.to_string());
        let mapper = Shell::start(&[("ERL_EPMD_PORT", &mapper_port)])?;
        let names: Vec<_> = (1..=count).map(|n| format!("malote-{salt}-{n}@localhost")).collect();
        let all = names.join(" ");
        let definitions = definitions(vhosts);
        let mut nodes = Vec::new();
        for name in &names {
            let (port, tls_port) = (free_port()?, free_port()?);
            let dist_port = free_port()?.to_string();
            let management_port = if management { Some(free_port()?) } else { None };
            let management_text = management_port.map_or_else(String::new, |port| port.to_string());
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
                ("MANAGEMENT_PORT", &management_text),
                ("COOKIE", &salt),
                ("DEFINITIONS", &definitions),
            ])?;
            let mut node = Node { port, tls_port, management_port, shell };
            // One after the other: nodes that start at the same time may not find each other.
            if !node.wait_until_listening() {
                return Err(node.shell.log());
            }
            nodes.push(node);
        }
        Ok(Self { nodes, _mapper: mapper })
    }

    /// The URL of a virtual host, over the first node.
    pub fn url(&self, vhost: usize) -> String {
        self.url_of_all(&[0], vhost)
    }

    /// The URL of a virtual host, over the first of these nodes that accepts connections.
    pub fn url_of_all(&self, nodes: &[usize], vhost: usize) -> String {
        let at: Vec<_> =
            nodes.iter().map(|&node| format!("127.0.0.1:{}", self.nodes[node].port)).collect();
        format!("amqp://malote:malote@{}/{vhost}", at.join(","))
    }

    /// The port of AMQP of the first node.
    pub fn port(&self) -> u16 {
        self.nodes[0].port
    }

    /// The URL of the management API, if the plugin is enabled.
    pub fn management_url(&self) -> Option<String> {
        let port = self.nodes[0].management_port?;
        Some(format!("http://malote:malote@127.0.0.1:{port}"))
    }

    /// The URL for TLS, with this host name.
    pub fn tls_url(&self, name: &str) -> String {
        format!("amqps://malote:malote@{name}:{}/0", self.nodes[0].tls_port)
    }

    /// Kills a node. Its data is kept.
    pub fn kill(&mut self, node: usize) {
        // A node that has already ended gives no answer.
        let _ = self.nodes[node].shell.send_command("kill");
    }

    /// Starts a killed node with its data, and waits until it accepts connections.
    pub fn restart(&mut self, node: usize) -> Result<(), StartError> {
        let node = &mut self.nodes[node];
        let output_text = node
            .shell
            .send_command("start")
            .map_err(|error| StartError::Failed(error.to_string()))?;
        node.shell.pid = pid(&output_text).ok_or(StartError::Failed(output_text))?;
        match node.wait_until_listening() {
            true => Ok(()),
            false => Err(StartError::Failed("the killed node did not start again".into())),
        }
    }

    /// The process id of a node, to measure its resources.
    pub fn pid(&self, node: usize) -> u32 {
        self.nodes[node].shell.pid
    }
}

/// The user `malote` with the password `malote`, and virtual hosts named by number.
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

/// A shell that kills its child process when its input ends.
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
        command.args(["-c", SCRIPT, "sh"]).envs(environment.iter().copied());
        // In a process group of its own: Ctrl-C must not kill the server before the shell stops it.
        command.process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(text)?;
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().ok_or("the shell has no output")?);
        let mut line = String::new();
        output.read_line(&mut line).map_err(text)?;
        let pid = pid(&line).ok_or("the shell did not start the server")?;
        Ok(Self { child, input, output, pid })
    }

    /// Sends a command and returns the answer.
    fn send_command(&mut self, command: &str) -> std::io::Result<String> {
        if let Some(input) = &mut self.input {
            writeln!(input, "{command}")?;
        }
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    fn is_running(&self) -> bool {
        // A process that has ended but was not waited for is still listed, as a zombie (`Z`).
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        state.is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn end(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }

    /// Stops the child process and returns its output.
    fn log(mut self) -> String {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(b"log\n"); // the shell may have ended
        }
        drop(self.input.take());
        let mut output_text = String::new();
        if let Some(errors) = &mut self.child.stderr {
            let _ = errors.read_to_string(&mut output_text);
        }
        let _ = self.child.wait();
        output_text
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.end();
    }
}
