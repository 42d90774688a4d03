//! `malote bridge` from one broker to another, killed in between.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test

mod carried;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../connectors/tests/common/proxy.rs"]
mod proxy;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::process::Command;
use std::time::Instant;

use carried::{PATIENCE, Trip, native};
use common::{CommandOutput, Server};
use malote_model::{BodyKind, Message};
use proxy::CuttableProxy;
use serde_json::Value;

fn bridge(from: &Server, to: &Server, line: &str) -> Command {
    carried::bridge(from.home.path(), &native(from), &native(to), line)
}

fn carried(from: &Server, to: &Server, line: &str) -> CommandOutput {
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
fn a_bridge_killed_repeatedly_moves_all_messages_once_and_in_order() {
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

    // Killed at once, after some messages, and after more.
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

    assert_eq!(peeked(&from, "orders").len(), 0, "moved messages are no longer in the source");
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

/// Service Bus: queues are created by hand, and it has no fields for some parts of a message.
#[test]
fn service_bus_preserves_the_fields_that_it_has() {
    for sessions in [true, false] {
        let mut middle = Server::start();
        let with = if sessions { " --sessions dynamic" } else { "" };
        // The queue de-duplicates, and short locks return the messages of a killed bridge soon.
        middle.ok(&format!("queue create orders --dedup 10m --lock 5s{with}"));
        let at = middle.amqp();
        let at = at.rsplit('/').next().unwrap();
        let other = &format!(
            "servicebus://Endpoint=sb://{at};SharedAccessKeyName=Root;SharedAccessKey=secret;UseDevelopmentEmulator=true"
        );
        let through = |mut one: Message| {
            one.body.kind = BodyKind::Bytes;
            one.origin_id = one.message_id.clone();
            (one.key, one.user_id, one.app_id, one.content_encoding) = (None, None, None, None);
            one
        };
        Trip { other, sessions, declares: false, numbers: false, through }.run();
    }
}

#[test]
fn a_dead_letter_has_its_reason() {
    let (from, to) = (Server::start(), Server::start());
    from.ok("queue create orders --ttl 1ms --on-expiry dead-letter");
    from.ok("send orders late");
    let begun = Instant::now();
    while peeked(&from, "'orders/$deadletterqueue'").is_empty() {
        assert!(begun.elapsed() < PATIENCE, "it does not expire");
    }
    let said = carried(&from, &to, "'orders/$deadletterqueue' --into dead --declare");
    assert!(said.code == 0 && said.err.contains("1 moved"), "{said}");
    let properties = &peeked(&to, "dead")[0]["properties"];
    assert_eq!(properties["DeadLetterReason"], "TTLExpiredException");
}

#[test]
fn unreachable_or_unreadable_brokers_are_reported_at_once() {
    let from = Server::start();
    from.ok("queue create orders");
    let said =
        |from_url: &str, to: &str| carried::bridged(from.home.path(), from_url, to, "orders");
    let here = from.url.replace("http://", "malote://");
    for (from_url, to, why) in [
        ("kafka://x", here.as_str(), "--from: there is no connector for `kafka:`"),
        (here.as_str(), "orders", "--to: there is no connector for `orders:`"),
        (&here, "amqp://h:x", "--to: the URL has a bad port"),
        (&here, "postgres://h", "--to: the URL names no database"),
        (&here, "malote://127.0.0.1:1", "--to: the broker cannot be reached"),
        (&here, "amqp://127.0.0.1:1", "--to: the broker cannot be reached"),
        (&here, "postgres://127.0.0.1:1/x", "--to: the broker cannot be reached"),
        (
            &here,
            "servicebus://Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=R;SharedAccessKey=k;UseDevelopmentEmulator=true",
            "--to: the broker cannot be reached",
        ),
    ] {
        let said = said(from_url, to);
        let code = if why.ends_with("cannot be reached") { 69 } else { 1 };
        assert!(said.code == code && said.err.contains(why), "{to}: {said}");
    }
}

#[test]
fn messages_that_the_target_refuses_stay_in_the_source() {
    let (from, to) = (Server::start(), Server::start());
    from.ok("queue create orders");
    from.ok("send orders one");
    from.ok("send orders two");
    let said = carried(&from, &to, "orders --into elsewhere");
    assert_ne!(said.code, 0, "{said}");
    assert!(
        said.err.contains("the target refused a message") && said.err.contains("elsewhere"),
        "{said}"
    );
    assert!(
        said.err.contains("--declare creates it")
            && said.err.contains("left in the source queue: 2 ready"),
        "{said}"
    );
    assert_eq!(ready(&from, "orders"), 2);
    // Once the queue exists, the same command continues. Messages without an id get one.
    to.ok("queue create elsewhere");
    let said = carried(&from, &to, "orders --into elsewhere");
    assert!(said.code == 0 && said.err.contains("2 moved"), "{said}");
    assert!(said.err.contains("no messages are left that are due"), "{said}");
    let bodies: Vec<_> = peeked(&to, "elsewhere").iter().map(|m| m["body"].clone()).collect();
    assert_eq!(bodies, ["one", "two"]);

    let said = carried(&to, &to, "elsewhere");
    assert!(said.code != 0 && said.err.contains("source and target are the same"), "{said}");
    assert_eq!(ready(&to, "elsewhere"), 2);

    let said = carried(&from, &to, "nowhere");
    assert!(said.code == 3 && said.err.contains("nowhere"), "{said}");
}

/// If a bridge ended early, workers started after it would handle new messages before old ones.
#[test]
fn an_unreachable_source_is_not_treated_as_empty() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (from, to) = (Server::start(), Server::start());
    let at = from.url.strip_prefix("http://").unwrap().parse().unwrap();
    let proxy = runtime.block_on(CuttableProxy::to(at));
    let through = format!("malote://{}", proxy.at);
    let kinds = [("plain", "", ""), ("sessions", " --sessions dynamic", " --session a")];
    let bridges = kinds.map(|(queue, with, session)| {
        from.ok(&format!("queue create {queue}{with}"));
        from.ok(&format!("send {queue} one{session}"));
        let line = format!("{queue} --declare --exit-when-idle 10s");
        let mut running =
            carried::bridge(from.home.path(), &through, &native(&to), &line).spawn().unwrap();
        let begun = Instant::now();
        while ready(&from, queue) > 0 {
            assert!(begun.elapsed() < PATIENCE, "nothing is carried");
        }
        let said = BufReader::new(running.stderr.take().unwrap()).lines();
        (queue, session, running, said)
    });
    proxy.cut(false);
    for (queue, session, ..) in &bridges {
        from.ok(&format!("send {queue} two{session}"));
    }
    let mut bridges = bridges;
    for (queue, _, _, said) in &mut bridges {
        let goes_on = said.find(|line| line.as_ref().is_ok_and(|line| line.contains("continuing")));
        assert!(goes_on.is_some(), "it left `{queue}` as it was");
    }
    proxy.cut(true);
    for (queue, _, mut running, said) in bridges {
        let said: Vec<String> = said.map_while(Result::ok).collect();
        assert!(running.wait().unwrap().success(), "{said:?}");
        // Messages without an answer are sent again and de-duplicated.
        let bodies: Vec<_> = peeked(&to, queue).iter().map(|m| m["body"].clone()).collect();
        assert_eq!(bodies, ["one", "two"], "{queue}: {said:?}");
    }
}
