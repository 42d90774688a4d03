//! `malote bridge`: from one broker to another, killed in the middle.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Said, Server, malote, words};
use serde_json::Value;

/// Longer than any machine may need.
const PATIENCE: Duration = Duration::from_secs(120);

fn bridge(from: &Server, to: &Server, line: &str) -> Command {
    let native = |server: &Server| server.url.replace("http://", "malote://");
    let mut command = malote(from.home.path());
    command.args(["bridge", "--from", &native(from), "--to", &native(to)]).args(words(line));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn carried(from: &Server, to: &Server, line: &str) -> Said {
    bridge(from, to, &format!("{line} --exit-when-idle 10s")).output().unwrap().into()
}

fn ready(server: &Server, queue: &str) -> u64 {
    let shown: Value =
        serde_json::from_str(&server.ok(&format!("queue get {queue} -o json"))).unwrap();
    shown["counts"]["ready"].as_u64().unwrap()
}

fn peeked(server: &Server, queue: &str) -> Vec<Value> {
    let lines = server.ok(&format!("peek {queue} --max 5000 -o ndjson"));
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn killed_again_and_again_it_carries_all_once_and_in_order() {
    let (from, to) = (Server::start(), Server::start());
    from.ok("queue create orders --sessions dynamic");
    let mut lines = String::new();
    for n in 0..3000 {
        let _ = writeln!(
            lines,
            r#"{{"body": "{n}", "session": "s{}", "id": "m{n}", "subject": "placed", "properties": {{"n": {n}}}}}"#,
            n % 20
        );
    }
    let sent = from.run_with("send orders --ndjson -", &lines);
    assert_eq!(sent.code, 0, "{sent}");

    // It ends where it may hurt: at once, and with some and with more on the other side.
    for there in [0, 300, 1200] {
        let mut running = bridge(&from, &to, "orders --declare").spawn().unwrap();
        let begun = Instant::now();
        let is_there = || {
            let said = to.run("queue get orders -o json");
            said.code == 0 && ready(&to, "orders") >= there
        };
        while !is_there() {
            assert!(begun.elapsed() < PATIENCE, "nothing is carried");
        }
        running.kill().unwrap();
        running.wait().unwrap();
    }
    let said = carried(&from, &to, "orders --declare");
    assert_eq!(said.code, 0, "{said}");

    assert_eq!(peeked(&from, "orders").len(), 0, "what is there is not here any more");
    let mut sessions: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for message in peeked(&to, "orders") {
        let n = message["properties"]["n"].as_u64().unwrap();
        assert_eq!(message["id"], format!("m{n}"));
        assert_eq!(message["subject"], "placed");
        assert_eq!(message["body"], format!("{n}"));
        let session = message["session"].as_str().unwrap().to_owned();
        sessions.entry(session).or_default().push(n);
    }
    assert_eq!(sessions.len(), 20);
    for (session, numbers) in sessions {
        let first: u64 = session[1..].parse().unwrap();
        let sent: Vec<u64> = (0..150).map(|k| first + 20 * k).collect();
        assert_eq!(numbers, sent, "{session}");
    }
}

#[test]
fn what_the_target_refuses_stays_where_it_was() {
    let (from, to) = (Server::start(), Server::start());
    from.ok("queue create orders");
    from.ok("send orders one");
    from.ok("send orders two");
    let said = carried(&from, &to, "orders --into elsewhere");
    assert_ne!(said.code, 0, "{said}");
    assert!(said.err.contains("the target refuses") && said.err.contains("elsewhere"), "{said}");
    assert_eq!(ready(&from, "orders"), 2);
    // With a queue of that name, the same command goes on; messages without an id get one.
    to.ok("queue create elsewhere");
    let said = carried(&from, &to, "orders --into elsewhere");
    assert!(said.code == 0 && said.err.contains("2 carried"), "{said}");
    let bodies: Vec<_> = peeked(&to, "elsewhere").iter().map(|m| m["body"].clone()).collect();
    assert_eq!(bodies, ["one", "two"]);

    let said = carried(&from, &to, "nowhere");
    assert!(said.code != 0 && said.err.contains("nowhere"), "{said}");
}
