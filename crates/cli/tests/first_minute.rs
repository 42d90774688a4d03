//! Mistakes of new users, and the messages that help them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test

mod common;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use common::{CommandOutput, Server, local, malote, words};

#[test]
fn standard_input_is_one_message() {
    let server = Server::start();
    server.ok("queue create q");
    let said = server.run_with("send q", "hi\n");
    assert!(said.code == 0 && said.err.contains("sent 1 message to `q`"), "{said}");
    assert_eq!(server.ok("receive q --max 10 --raw"), "hi\n\n");
    server.ok("topic create t");
    server.ok("subscription create t s");
    assert_eq!(server.run_with("topic publish t", "news").code, 0);
    assert_eq!(server.ok("receive t/Subscriptions/s --raw"), "news\n");
}

#[test]
fn sessions_without_a_mode_are_dynamic() {
    let server = Server::start();
    server.ok("queue create q --sessions");
    let said = server.run("send q x");
    assert!(said.code != 0 && said.err.contains("requires a session id"), "{said}");
    server.ok("send q x --session ana");
}

#[test]
fn a_missing_body_is_refused_instead_of_generated() {
    let server = Server::start();
    server.ok("queue create q");
    // A script without standard input, and an unset variable.
    let empty = server.run("send q");
    assert_eq!(empty.code, 2, "{empty}");
    assert!(empty.err.contains("standard input is empty"), "{empty}");
    // A terminal.
    let terminal = on_terminal(&server, 80, "send q");
    assert_eq!(terminal.code, 2, "{terminal}");
    assert!(terminal.out.contains("no message body"), "{terminal}");
    assert_eq!(server.ok("peek q -o name"), "");
    // An empty body is possible on request.
    server.ok("send q ''");
    assert_eq!(server.ok("receive q --raw"), "\n");
}

#[test]
fn a_worker_without_a_usable_handler_does_not_start() {
    let server = Server::start();
    server.ok("queue create q");
    server.ok("send q x");
    for (line, why) in [
        ("work q", "--exec"),
        ("work q --exec ./missing", "`./missing` does not exist"),
        ("work q --exec no-such-program-here", "does not exist"),
        ("work q --exec 'echo \"a'", "cannot parse"),
        ("work q --http https://example.com", "only http://"),
    ] {
        let said = server.run(line);
        assert!(said.code == 2 && said.err.contains(why), "{line}\n{said}");
    }
    let json: serde_json::Value = serde_json::from_str(&server.ok("peek q -o json")).unwrap();
    assert_eq!(json[0]["receives"], 0, "no worker has received it");
}

#[test]
fn a_worker_uses_the_same_server_as_other_commands_and_prints_failures() {
    let server = Server::start();
    server.ok("queue create q");
    server.ok("send q x --id m-1");
    // `run` sets MALOTE_URL to an http:// address.
    let line = "work q --exec 'echo broken >&2; exit 1' --attempts 1 --exit-when-idle 1s";
    let said = server.run(line);
    assert!(said.code == 0 && said.err.contains("1 dead-lettered"), "{said}");
    let failed = said.err.lines().find(|line| line.contains("broken")).unwrap();
    for part in ["queue q", "message m-1", "session -", "attempt 1"] {
        assert!(failed.contains(part), "no `{part}` in: {failed}");
    }
    let url = &server.url;
    let mut command = malote(server.home.path());
    command.args(words(&format!("--url {url} work q --print --exit-when-idle 100ms")));
    let said: CommandOutput = command.output().unwrap().into();
    assert_eq!(said.code, 0, "{said}");
}

#[test]
fn a_dead_letter_of_a_worker_is_readable() {
    let server = Server::start();
    server.ok("queue create q");
    server.ok("send q x");
    server.run("work q --exec 'exit 1' --attempts 2 --backoff 0s --exit-when-idle 1s");
    let shown = server.ok("dlq show q 1");
    let attempt = shown.lines().find(|line| line.starts_with("attempt ")).unwrap();
    assert!(attempt.contains("1 at 20") && attempt.contains("exit status: 1"), "{shown}");
    assert!(!shown.contains("$type") && !shown.contains('{'), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&server.ok("dlq show q 1 -o json")).unwrap();
    assert_eq!(json["dead_letter"]["reason"], "MaxAttempts");
}

#[test]
fn a_received_message_is_shown_as_completed() {
    let server = Server::start();
    server.ok("send q x --create --count 3");
    for (flags, state) in
        [("", "completed"), (" --dead-letter Bad", "dead-lettered"), (" --keep", "leased")]
    {
        let said = server.run(&format!("receive q{flags}"));
        assert!(said.out.contains(&format!(" {state} ")), "{said}");
        assert!(said.err.contains(&format!("received 1 message from `q`: {state}")), "{said}");
    }
}

#[test]
fn binary_bodies_that_are_text_are_shown_as_text() {
    let server = Server::start();
    server.ok("queue create q");
    // As a Service Bus client sends a string: bytes, without a mark that they are text.
    let lines = "{\"body_base64\":\"aGVsbG8=\"}\n{\"body_base64\":\"AP8=\"}\n";
    assert_eq!(server.run_with("send q --ndjson -", lines).code, 0);
    let peek = server.ok("peek q");
    assert!(peek.contains("hello") && peek.contains("(2 B of binary)"), "{peek}");
}

#[test]
fn a_taken_port_leaves_no_data_directory() {
    let home = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let data = home.path().join("data");
    let line = format!(
        "serve --http {} --sqs off --amqp off --servicebus-admin off --data {}",
        taken.local_addr().unwrap(),
        data.display()
    );
    let said = local(home.path(), &line);
    assert!(said.code == 1 && said.err.contains("is in use"), "{said}");
    assert!(!data.exists());
}

#[test]
fn a_certificate_error_is_named() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start_with(home, &["--tls-self-signed"]);
    let url = server.url.replace("http://", "https://");
    let said = server.run(&format!("queue ls --url {url}"));
    assert_eq!(said.code, 69, "{said}");
    assert!(said.err.contains("unknown authority") && said.err.contains("--ca"), "{said}");
    assert!(!said.err.contains("no server at"), "{said}");
    assert_eq!(server.run(&format!("queue ls --url {url} --insecure")).code, 0);
}

/// Runs a command on a pseudo-terminal with this many columns.
fn on_terminal(server: &Server, columns: u32, line: &str) -> CommandOutput {
    let program = "import os,pty,sys,struct,fcntl,termios\n\
        pid,fd=pty.fork()\n\
        if pid==0:\n    os.read(0,1)\n    os.execv(sys.argv[2],sys.argv[2:])\n\
        fcntl.ioctl(fd,termios.TIOCSWINSZ,struct.pack('HHHH',0,int(sys.argv[1]),0,0))\n\
        os.write(fd,b'\\n')\n\
        out=b''\n\
        while True:\n    try:\n        more=os.read(fd,4096)\n    except OSError:\n        break\n    \
        if not more: break\n    out+=more\n\
        status=os.waitpid(pid,0)[1]\n\
        sys.stdout.buffer.write(out)\n\
        sys.exit(os.waitstatus_to_exitcode(status))\n";
    let mut command = Command::new("python3");
    command.args(["-c", program, &columns.to_string(), env!("CARGO_BIN_EXE_malote")]);
    command.args(words(line)).env_clear().env("HOME", server.home.path());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("MALOTE_URL", &server.url).env("NO_COLOR", "1").stdin(Stdio::null());
    command.output().unwrap().into()
}

#[test]
fn a_terminal_without_a_size_gets_whole_lines_and_ids_never_wrap() {
    let server = Server::start();
    server.ok("send q hello --create --id 0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b");
    for columns in [0, 40, 200] {
        let said = on_terminal(&server, columns, "peek q");
        assert_eq!(said.code, 0, "{said}");
        assert!(said.out.contains("0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"), "{columns}: {said}");
        assert!(said.out.contains("hello"), "{columns}: {said}");
    }
}

#[test]
fn contexts_are_stored_in_a_private_file_and_used() {
    let server = Server::start();
    server.ok("queue create orders");
    let home = server.home.path();
    // Without MALOTE_URL.
    let run = |line: &str| local(home, line);
    assert_eq!(run("context ls").code, 0);
    assert_eq!(run("context add local").code, 2, "an address is needed");
    assert_eq!(run("context add local --url ftp://x").code, 2);
    let added = run(&format!("context add local --url {}", server.url));
    assert!(added.code == 0 && added.err.contains("is the current one"), "{added}");
    let secret = run("context add prod --url https://mq.example.com --token s3cret");
    assert_eq!(secret.code, 0, "{secret}");
    let file = home.join(".config/malote/contexts.toml");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let listed = run("context list").out;
    assert!(listed.contains("*        local") && listed.contains("token"), "{listed}");
    for line in ["context show prod", "context show prod -o json"] {
        assert!(!run(line).out.contains("s3cret"));
    }
    assert_eq!(run("queue ls -o name").out, "orders\n");
    assert_eq!(run("context use prod").code, 0);
    assert_eq!(run("--context local queue ls -o name").out, "orders\n");
    assert_eq!(run("queue ls -o name --context local").out, "orders\n");
    assert_eq!(run("context use nowhere").code, 3);
    assert_eq!(run("queue ls --context nowhere").code, 3);
    assert_eq!(run("context delete prod").code, 0);
    // MALOTE_URL wins over the current context.
    run("context add gone --url http://127.0.0.1:1 --use");
    assert_eq!(run("queue ls").code, 69);
    assert_eq!(server.ok("queue ls -o name"), "orders\n");
    let worked = run("work orders --print --exit-when-idle 100ms --context local");
    assert_eq!(worked.code, 0, "{worked}");
}

#[test]
fn commands_have_the_names_that_users_try() {
    let server = Server::start();
    server.ok("queue create orders");
    assert_eq!(server.ok("queue list -o name"), "orders\n");
    assert_eq!(server.ok("queue show orders -o name"), "orders\n");
    assert_eq!(server.ok("-o name queue ls"), "orders\n");
    let totals = server.run("queue ls").err;
    assert_eq!(totals, "1 queue: 0 ready, 0 locked, 0 dead\n");
    assert!(server.ok("queue ls --color always").contains("\x1b[1mNAME"));
    assert!(!server.ok("queue ls").contains('\x1b'));
    server.ok("queue delete orders --yes");
}

#[test]
fn watch_refreshes_a_list() {
    let server = Server::start();
    server.ok("queue create orders");
    let mut command = malote(server.home.path());
    command.args(words("queue ls -o name --watch=20ms")).env("MALOTE_URL", &server.url);
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let lines: Vec<String> = lines.take(3).map(Result::unwrap).collect();
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(lines, ["orders"; 3]);
}
