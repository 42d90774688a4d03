//! Commands against a real server: their output and exit codes.
#![allow(clippy::unwrap_used)] // a test

mod common;

use common::Server;
use expect_test::expect;

#[test]
fn a_queue_from_creation_to_removal() {
    let server = Server::start();
    expect![[r#"
        --- stderr
        no queues; `malote queue create NAME` creates one
    "#]]
    .assert_eq(&server.run("queue ls").to_string());
    expect![[r#"
        --- stderr
        queue `orders` created
    "#]]
    .assert_eq(&server.run("queue create orders --sessions dynamic --failed-max 3").to_string());
    expect![[r#"
        --- stderr
        queue `orders` already exists with these settings
    "#]]
    .assert_eq(&server.run("queue create orders --sessions dynamic --failed-max 3").to_string());
    let differs = server.run("queue create orders");
    assert_eq!(differs.code, 4);
    assert!(differs.err.contains("sessions"), "{differs}");
    expect![[r#"
        NAME    READY  LOCKED  LATER  DEFERRED  DEAD  SESSIONS  OLDEST  STATE
        orders      0       0      0         0     0         0       -  open
    "#]]
    .assert_eq(&server.ok("queue ls"));
    expect!["orders\n"].assert_eq(&server.ok("queue ls -o name"));
    expect![[r#"
        --- stderr
        error: nothing to change: give a setting, such as --lock 1m
        --- exit 2
    "#]]
    .assert_eq(&server.run("queue update orders").to_string());
    expect![[r#"
        --- stderr
        queue `orders` changed
    "#]]
    .assert_eq(&server.run("queue update orders --lock 1m --failed-max none").to_string());
    let json = server.ok("queue get orders -o json");
    assert!(json.contains("\"lock_ms\": 60000") && json.contains("\"failed_max\": null"), "{json}");
    expect![[r#"
        --- stderr
        queue `orders` paused; `malote queue resume orders` resumes it
    "#]]
    .assert_eq(&server.run("queue pause orders").to_string());
    server.ok("send orders a --session s");
    assert!(server.run("receive orders").err.contains("no messages to receive"));
    server.ok("queue resume orders");
    expect![[r#"
        --- stderr
        error: This deletes 1 message of queue `orders`. There is no terminal to ask for confirmation: use --yes
        --- exit 2
    "#]]
    .assert_eq(&server.run("queue purge orders").to_string());
    expect![[r#"
        --- stderr
        1 message deleted
    "#]]
    .assert_eq(&server.run("queue purge orders --yes").to_string());
    expect![[r#"
        --- stderr
        queue `orders` deleted
    "#]]
    .assert_eq(&server.run("queue rm orders --yes").to_string());
    expect![[r#"
        --- stderr
        error: queue `orders` does not exist
        hint: `malote queue ls` lists the queues, `malote queue create NAME` creates one
        --- exit 3
    "#]]
    .assert_eq(&server.run("queue get orders").to_string());
}

#[test]
fn a_message_is_sent_peeked_and_received() {
    let server = Server::start();
    expect![[r#"
        SEQ  ID
        1    one
        --- stderr
        queue `a/b` created
        sent 1 message to `a/b`
    "#]]
    .assert_eq(
        &server
            .run("send a/b 'hello world' --create --id one --prop n:=7 --prop who=ana")
            .to_string(),
    );
    expect![[r#"
        SEQ  ID   SESSION  STATE  FAILED  BODY
          1  one        -  ready       0  hello world
    "#]]
    .assert_eq(&server.ok("peek a/b"));
    let json: serde_json::Value = serde_json::from_str(&server.ok("peek a/b -o json")).unwrap();
    assert_eq!(json[0]["properties"], serde_json::json!({ "n": 7, "who": "ana" }));
    assert_eq!(server.ok("peek a/b --raw"), "hello world\n");
    assert_eq!(server.ok("peek a/b --state delayed"), "");
    assert_eq!(server.ok("receive a/b --raw"), "hello world\n");
    expect![[r#"
        --- stderr
        no messages to receive after 0s
    "#]]
    .assert_eq(&server.run("receive a/b").to_string());
    server.ok("send a/b later --delay 1h");
    server.ok("send a/b much --at 2100-01-01T00:00:00Z");
    let json: serde_json::Value =
        serde_json::from_str(&server.ok("queue get a/b -o json")).unwrap();
    assert_eq!((&json["counts"]["delayed"], &json["counts"]["scheduled"]), (&1.into(), &1.into()));
}

#[test]
fn bodies_come_from_arguments_files_and_standard_input() {
    let server = Server::start();
    server.ok("queue create q");
    assert_eq!(server.run_with("send q -", "from stdin").code, 0);
    assert_eq!(server.run_with("send q --file -", "also").code, 0);
    let lines = "{\"body\":\"x\",\"id\":\"l1\",\"priority\":3}\n\n{\"body\":{\"n\":1.50},\"seq\":9,\"state\":\"ready\"}\n";
    let said = server.run_with("send q --ndjson - -o json", lines);
    assert!(said.out.contains("\"sent\": 2"), "{said}");
    assert_eq!(server.ok("receive q --max 10 --raw"), "from stdin\nalso\nx\n{\"n\":1.50}\n");
    expect![[r#"
        --- stderr
        error: -, line 1: unknown field `bdy`, expected one of `queue`, `topic`, `body`, `body_base64`, `session`, `id`, `dedup_id`, `key`, `more_keys`, `subject`, `to`, `reply_to`, `reply_to_session`, `correlation_id`, `content_type`, `content_encoding`, `user_id`, `app_id`, `ttl_ms`, `priority`, `properties`, `session_from_key`, `delay_ms`, `at` at line 1 column 6; write {"body": …} on each line
        --- exit 2
    "#]]
    .assert_eq(&server.run_with("send q --ndjson -", "{\"bdy\":1}").to_string());
    assert_eq!(server.run("send q --file /no/such").code, 1);
    assert_eq!(server.run("send q body --file x").code, 2);
    assert_eq!(server.run("send q --ndjson - --session s").code, 2);
}

#[test]
fn generated_messages_are_sent_on_request() {
    let server = Server::start();
    let said = server.run("send load --generate --create -o json");
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&json["sent"], &json["requests"]), (&1000.into(), &10.into()));
    let queue: serde_json::Value =
        serde_json::from_str(&server.ok("queue get load -o json")).unwrap();
    assert_eq!(
        (&queue["counts"]["sessions"], &queue["spec"]["sessions"]),
        (&100.into(), &"dynamic".into())
    );
    assert_eq!(server.ok("session ls load -o name --max 3"), "session-1\nsession-2\nsession-3\n");
    let bodies = server.ok("receive load --any-session --max 50 --raw");
    let expected: String =
        (1..=10).map(|n| format!("{{\"session\":\"session-1\",\"number\":{n}}}\n")).collect();
    assert_eq!(bodies, expected);
    let said = server
        .run("send load --generate --sessions 2 --per-session 3 --batch 4 --size 200 --rate 1000");
    assert!(said.err.contains("sent 6 messages to `load`"), "{said}");
    assert_eq!(server.run("send load --generate --count 5").code, 1, "the queue needs sessions");
    assert_eq!(server.run("send load x --sessions 3").code, 2);
    assert_eq!(server.run("send load --sessions 3").code, 2, "--generate is missing");
}

#[test]
fn kept_leases_are_settled_with_a_command() {
    let server = Server::start();
    server.ok("send q a --create");
    let kept: serde_json::Value =
        serde_json::from_str(&server.ok("receive q --keep --lock 10m -o json")).unwrap();
    let lease = kept[0]["lease"].as_str().unwrap();
    assert!(server.run("receive q").err.contains("no messages"));
    assert_eq!(server.run(&format!("settle q {lease}")).code, 2, "an outcome must be named");
    server.ok(&format!("settle q {lease} --release"));
    let again = server.run(&format!("settle q {lease} --complete"));
    assert_eq!(again.code, 4, "{again}");
    assert!(again.err.contains("is no longer valid"), "{again}");
    assert_eq!(
        server.ok("receive q --abandon --max 5 --raw"),
        "a\n",
        "once, though it is back at once"
    );
    let json: serde_json::Value = serde_json::from_str(&server.ok("peek q -o json")).unwrap();
    assert_eq!((&json[0]["failed"], &json[0]["receives"]), (&1.into(), &2.into()));
}

#[test]
fn dead_letters_are_shown_resent_redriven_exported_and_purged() {
    let server = Server::start();
    server.ok("queue create q");
    server.ok("queue create other");
    for id in ["m1", "m2", "m3", "m4"] {
        server.ok(&format!("send q {id} --id {id} --prop a=1 --prop b=2"));
    }
    server.ok("receive q --max 4 --dead-letter Bad --error 'it broke'");
    let list = server.ok("dlq ls q");
    assert!(list.starts_with("SEQ  ID  SESSION  REASON  FAILED  DEAD FOR  ERROR\n"), "{list}");
    assert!(list.contains("it broke"), "{list}");
    let show = server.ok("dlq show q 2");
    for line in [
        "id          m2",
        "reason      Bad",
        "error       it broke",
        "came from   q as 2",
        "property    a = \"1\"",
    ] {
        assert!(show.contains(line), "{line}\n{show}");
    }
    let none = server.run("dlq show q 99");
    assert_eq!(none.code, 3);
    expect![[r#"
        --- stderr
        error: queue `q` has no dead letter 99; `malote dlq ls q` lists them
        --- exit 3
    "#]]
    .assert_eq(&none.to_string());

    server.ok("dlq resend q 1 --body fixed --prop a=9 --no-prop b");
    let json: serde_json::Value = serde_json::from_str(&server.ok("receive q -o json")).unwrap();
    assert_eq!((&json[0]["body"], &json[0]["id"]), (&"fixed".into(), &"m1".into()));
    assert_eq!(json[0]["properties"], serde_json::json!({ "a": "9" }));

    assert!(
        server.run("dlq redrive q --dry-run").err.contains("3 dead letters would be moved, 0 left")
    );
    assert_eq!(server.ok("dlq redrive q --seq 3 --to other -o name"), "1\n");
    assert_eq!(server.ok("receive other --raw"), "m3\n");
    let lines = server.ok("dlq export q");
    assert_eq!(lines.lines().count(), 2);
    assert_eq!(server.run_with("send other --ndjson -", &lines).code, 0);
    assert_eq!(server.ok("receive other --max 9 --raw"), "m2\nm4\n");
    assert!(server.run("dlq redrive q --limit 1").err.contains("1 dead letter moved, 1 left"));
    assert!(server.run("dlq purge q --yes").err.contains("1 dead letter deleted"));
    assert!(server.run("dlq ls q").err.contains("no dead letters"));
}

#[test]
fn sessions_can_be_locked_have_state_and_can_be_broken() {
    let server = Server::start();
    server.ok("queue create q --sessions dynamic --lock 5m");
    server.ok("send q 1 --session s");
    server.ok("session state q s --set 'step 3'");
    assert_eq!(server.ok("session state q s"), "step 3");
    expect![[r#"
        session        s
        messages       1
        locked         0
        first          1
        state bytes    6
        held until     -
        delayed until  -
    "#]]
    .assert_eq(&server.ok("session show q s"));
    server.ok("receive q --session s --keep");
    let held = server.run("receive q --session s");
    assert_eq!(held.code, 4, "{held}");
    assert!(held.err.contains("malote session break"), "{held}");
    assert_eq!(server.run("session break q s").code, 2, "there is no terminal to ask on");
    server.ok("session break q s --yes");
    assert_eq!(server.ok("receive q --session s --raw"), "1\n");
    server.ok("session state q s --clear");
    assert!(server.run("session state q s").err.contains("has no state"));
    assert_eq!(server.run("session show q nobody").code, 3);
    server.ok("queue create fixed --session-ids a,b,c");
    let refused = server.run("send fixed x --session z");
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("`z` is not in the fixed list"), "{refused}");
    server.ok("send fixed x --key customer-1");
    server.ok("receive fixed");
}

#[test]
fn tail_shows_new_messages_without_locking_them() {
    let server = Server::start();
    server.ok("send q old --create --count 3");
    server.ok("receive q");
    let mut tail = common::malote(server.home.path());
    tail.args(["tail", "q", "--max", "2", "--raw", "--every", "20ms"])
        .env("MALOTE_URL", &server.url);
    let tail = tail.stdout(std::process::Stdio::piped()).spawn().unwrap();
    // Tail starts at the end of the queue. A message sent before it has found the end is not shown.
    let tail = std::thread::spawn(move || tail.wait_with_output().unwrap());
    while !tail.is_finished() {
        server.ok("send q new");
    }
    let output = tail.join().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "new\nnew\n");
    assert_eq!(server.ok("tail q --from 2 --max 2 --raw"), "old\nold\n");
    assert_eq!(server.ok("receive q --max 2 --raw"), "old\nold\n");
    server.ok("send other a --create --prop tenant=acme --prop n:=1");
    server.ok("send other b --prop tenant=acme --prop n:=2");
    server.ok("send other c --prop tenant=globex --prop n:=2");
    server.ok("send other d --prop tenant=acme --prop n:=2");
    let filtered = "tail other --from 0 --filter tenant=acme --filter n=2 --max 2 --raw";
    assert_eq!(server.ok(filtered), "b\nd\n");
}

#[test]
fn health_and_version_are_shown() {
    let server = Server::start();
    expect![[r#"
        ready     yes
        queues    OK
        messages  0
    "#]]
    .assert_eq(&server.ok("health"));
    server.ok("queue create small --backlog-warning 1");
    server.ok("send small x --count 2");
    expect![[r#"
        ready     yes
        queues    Warning
        because   Queue backlog is high
        messages  2
        --- stderr
        error: Queue backlog is high
        --- exit 1
    "#]]
    .assert_eq(&server.run("health small").to_string());
    assert!(server.ok("version --server").contains("server"));
}

#[test]
fn ctrl_c_ends_receive_follow_and_releases_its_session() {
    let server = Server::start();
    server.ok("queue create q --sessions dynamic --lock 5m");
    server.ok("send q first --session s");
    let mut follow = common::malote(server.home.path());
    follow
        .args(["receive", "q", "--session", "s", "--follow", "--raw"])
        .env("MALOTE_URL", &server.url);
    let mut follow = follow.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(follow.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "first\n");
    assert_eq!(server.run("receive q --session s").code, 4, "it is held");
    // A message is written before it is settled.
    let completed = || {
        let json = server.ok("queue get q -o json");
        serde_json::from_str::<serde_json::Value>(&json).unwrap()["totals"]["completed"].clone()
    };
    while completed() != 1 {}
    let pid = rustix::process::Pid::from_raw(follow.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(follow.wait().unwrap().code(), Some(130));
    assert!(server.run("receive q --session s").err.contains("no messages to receive"));
    assert_eq!(completed(), 1);
}
