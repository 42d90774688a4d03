//! The audit log of a running server: commands, requests, refusals, a flood, restarts.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::{CommandOutput, Server, local};
use serde_json::Value;

/// Time limit for expected records.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server where `ana` (password `hunter2`) may send to `orders`, and the token has all permissions.
fn start() -> (Server, String) {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data").to_str().unwrap().to_owned();
    let mut add = common::malote(home.path());
    add.args(["user", "add", "ana", "--password-stdin", "--grant", "send orders", "--data", &data]);
    let mut add = add.stdin(std::process::Stdio::piped()).spawn().unwrap();
    add.stdin.take().unwrap().write_all(b"hunter2\n").unwrap();
    assert!(add.wait().unwrap().success());
    let token = local(home.path(), &format!("token add root --admin --data {data} -o name")).out;
    (Server::start_with(home, &[]), token.trim().to_owned())
}

fn as_ana(server: &Server, line: &str, password: &str) -> CommandOutput {
    let mut command = common::malote(server.home.path());
    command.args(common::words(line)).args(["--url", &server.url, "--user", "ana"]);
    command.env("MALOTE_PASSWORD", password).output().unwrap().into()
}

/// Waits until this many records match the flags, and returns them.
fn records(server: &Server, token: &str, flags: &str, count: usize) -> Vec<Value> {
    let begun = std::time::SystemTime::now();
    loop {
        let out = server.ok(&format!("audit -o ndjson --token {token} {flags}"));
        let found: Vec<Value> =
            out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if found.len() >= count {
            return found;
        }
        assert!(begun.elapsed().unwrap() < PATIENCE, "{flags}: {out}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn field<'a>(record: &'a Value, name: &str) -> &'a str {
    record[name].as_str().unwrap_or_default()
}

/// Sends a raw request and returns the status line.
fn http(server: &Server, head: &str) -> String {
    let mut stream = server.connect();
    stream
        .write_all(format!("{head}\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn commands_requests_and_refusals_are_recorded_and_survive_a_restart() {
    let (mut server, token) = start();
    let data = server.home.path().join("data");
    server.ok(&format!("queue create orders --token {token}"));
    assert_eq!(as_ana(&server, "queue purge orders --yes", "hunter2").code, 1);
    assert_eq!(as_ana(&server, "audit", "hunter2").code, 1);
    assert_eq!(as_ana(&server, "send orders private-body", "hunter3").code, 1);
    assert_eq!(as_ana(&server, "send orders private-body", "hunter2").code, 0);
    assert!(http(&server, "GET /?Action=ListQueues HTTP/1.1").contains("403"));
    // A command that changes the credentials of the running server.
    let said = local(
        server.home.path(),
        &format!("user grant ana receive orders --data {}", data.display()),
    );
    assert_eq!(said.code, 0, "{said}");

    let made = &records(&server, &token, "--action declare", 1)[0];
    assert_eq!((field(made, "caller"), field(made, "kind")), ("token:root", "token"));
    assert_eq!((field(made, "credential"), field(made, "address")), ("root", "127.0.0.1"));
    assert_eq!((field(made, "protocol"), field(made, "object")), ("http", "orders"));
    let purge = &records(&server, &token, "--refused --action purge", 1)[0];
    assert_eq!((field(purge, "caller"), field(purge, "reason")), ("ana", "forbidden"));
    assert_eq!((field(purge, "kind"), field(purge, "address")), ("user", "127.0.0.1"));
    let read = &records(&server, &token, "--refused --action read_audit", 1)[0];
    assert_eq!(field(read, "caller"), "ana");
    let logins = records(&server, &token, "--refused --action login", 2);
    let shown: Vec<_> =
        logins.iter().map(|one| (field(one, "protocol"), field(one, "caller"))).collect();
    assert!(shown.contains(&("http", "ana")) && shown.contains(&("sqs", "anonymous")), "{shown:?}");
    let logins = records(&server, &token, "--caller ana --action login", 2);
    let good = logins.iter().filter(|one| field(one, "outcome") == "done").count();
    assert_eq!(good, 1, "one for all requests of an hour: {logins:?}");
    let grant = &records(&server, &token, "--action grant", 1)[0];
    assert_eq!((field(grant, "protocol"), field(grant, "kind")), ("cli", "os_user"));
    assert_eq!((field(grant, "object"), field(grant, "detail")), ("ana", "receive orders"));
    let added = &records(&server, &token, "--action user_add", 1)[0];
    assert_eq!((&added["seq"], field(added, "object")), (&Value::from(1), "ana"));

    let table = server.ok(&format!("audit --action purge --token {token}"));
    assert!(table.contains("refused: forbidden") && table.contains("purge_queue"), "{table}");
    let all = records(&server, &token, "--after 0", 8);
    server.stop();
    let home = std::mem::replace(&mut server.home, tempfile::tempdir().unwrap());
    let log = data.join("audit.log");
    assert_eq!(log.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&log).unwrap();
    for secret in ["hunter", "private-body", token.as_str()] {
        assert!(!text.contains(secret), "{text}");
    }
    let server = Server::start_with(home, &[]);
    let after = records(&server, &token, "--after 0", all.len());
    assert_eq!(after[..all.len()], all[..]);
}

#[test]
fn many_failed_logins_are_counted_and_displace_no_other_records() {
    let (server, token) = start();
    server.ok(&format!("queue create orders --token {token}"));
    let attempts = 3000;
    let mut stream = server.connect();
    for _ in 0..attempts {
        let head =
            "GET /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
        // A problem is one JSON object.
        while !answer.ends_with(b"}") {
            let count = stream.read(&mut buffer).unwrap();
            assert_ne!(count, 0);
            answer.extend_from_slice(&buffer[..count]);
        }
    }
    let begun = std::time::SystemTime::now();
    loop {
        let found = records(&server, &token, "--refused --action login --after 0", 1);
        let counted: u64 = found.iter().map(|one| one["count"].as_u64().unwrap_or(1)).sum();
        assert!(found.len() <= 100, "{} records", found.len());
        if counted == attempts {
            break;
        }
        assert!(begun.elapsed().unwrap() < PATIENCE, "{counted}");
    }
    assert_eq!(records(&server, &token, "--action declare", 1).len(), 1);
    let metrics = http(&server, &format!("GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}"));
    assert!(metrics.contains("200"), "{metrics}");
}
