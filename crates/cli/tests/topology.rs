//! `malote apply` and `malote export` against a real server.
#![allow(clippy::unwrap_used)] // a test

mod common;

use common::Server;
use expect_test::expect;
use serde_json::Value;

const FILE: &str = r##"
[queues.orders]
lock_ms = 60000
failed_max = "none"
dead_letter = { queue = "graves" }
dedup = { window_ms = 1000 }

[queues.graves]
ttl_ms = 3600000

[topics.sales.subscriptions.all]

[topics.sales.subscriptions.large]
lock_ms = 5000
[topics.sales.subscriptions.large.rules.over]
filter = { sql = { text = "total > @least", parameters = { "@least" = 100 } } }
action = "SET class = 'big'"

[topics.sales.bindings.orders.eu]
filter = { pattern = "eu.#" }

[topics.heads]
kind = "headers"
[topics.heads.bindings.graves.vip]
filter = { headers = { values = { vip = { "$type" = "null" } } } }
"##;

#[test]
fn a_file_is_applied_once_and_exported_again() {
    let server = Server::start();
    let dry = server.run_with("apply - --dry-run", FILE);
    expect![[r#"
        CHANGE  KIND          NAME                       WHAT
        create  topic         heads
        create  topic         sales
        create  queue         graves
        create  queue         orders
        create  subscription  sales/Subscriptions/all
        create  subscription  sales/Subscriptions/large
        create  rule          heads → graves: vip        {"filter":{"headers":{"match":"all","values":{"vip":null}}}}
        create  rule          sales → orders: eu         {"filter":{"pattern":"eu.#"}}
        --- stderr
        8 changes to apply
    "#]]
    .assert_eq(&dry.to_string());
    assert_eq!(server.ok("queue ls -o name"), "");
    let done = server.run_with("apply -", FILE);
    assert_eq!(done.code, 0, "{done}");
    assert!(done.err.contains("8 changes applied"));
    expect![[r#"
        --- stderr
        no changes
    "#]]
    .assert_eq(&server.run_with("apply -", FILE).to_string());
    // Export and apply again, in both formats. An exclusive queue is not exported.
    server.run("request orders x --wait 10ms");
    assert!(server.ok("queue ls -o name").contains("reply-"));
    for format in ["table", "json"] {
        let file = server.ok(&format!("export -o {format}"));
        let again = server.run_with("apply - --dry-run --prune", &file);
        assert_eq!((again.code, again.err.as_str()), (0, "no changes\n"), "{file}\n{again}");
    }
    expect![[r##"
        [queues.graves]
        ttl_ms = 3600000

        [queues.orders]
        failed_max = "none"
        lock_ms = 60000

        [queues.orders.dead_letter]
        queue = "graves"

        [queues.orders.dedup]
        content = false
        per_session = false
        window_ms = 1000

        [topics.heads]
        kind = "headers"

        [topics.heads.bindings.graves.vip.filter.headers]
        match = "all"

        [topics.heads.bindings.graves.vip.filter.headers.values.vip]
        "$type" = "null"

        [topics.sales.bindings.orders.eu.filter]
        pattern = "eu.#"

        [topics.sales.subscriptions.all]

        [topics.sales.subscriptions.large]
        lock_ms = 5000

        [topics.sales.subscriptions.large.rules.over]
        action = "SET class = 'big'"

        [topics.sales.subscriptions.large.rules.over.filter.sql]
        text = "total > @least"

        [topics.sales.subscriptions.large.rules.over.filter.sql.parameters]
        "@least" = 100
    "##]]
    .assert_eq(&server.ok("export"));
}

#[test]
fn differences_are_applied_and_impossible_changes_are_refused() {
    let server = Server::start();
    server.run_with("apply -", FILE);
    server.ok("send orders keep");
    let changed = FILE
        .replace("lock_ms = 60000", "lock_ms = 90000")
        .replace("\"@least\" = 100", "\"@least\" = 200")
        .replace("[topics.heads]", "[queues.more]\n[topics.heads]");
    expect![[r#"
        CHANGE  KIND   NAME                                     WHAT
        create  queue  more
        update  queue  orders                                   lock_ms: 60000 → 90000
        update  rule   sales → sales/Subscriptions/large: over  {"action":"SET class = 'big'","filter":{"sql":{"parameters":{"@least":100},"text":"total > @least"}}} → {"action":"SET class = 'big'","filter":{"sql":{"parameters":{"@least":200},"text":"total > @least"}}}
        --- stderr
        3 changes applied
    "#]]
    .assert_eq(&server.run_with("apply -", &changed).to_string());
    assert_eq!(
        server
            .ok("topic publish sales x --prop total:=150 -o json")
            .matches("\"copies\": 1")
            .count(),
        1
    );
    assert_eq!(server.ok("peek orders --raw"), "keep\n");
    // Nothing is applied if one change is refused.
    let impossible = changed
        .replace("lock_ms = 90000", "lock_ms = 1\nsessions = \"dynamic\"")
        .replace("kind = \"headers\"", "kind = \"fanout\"");
    expect![[r#"
        CHANGE   KIND   NAME    WHAT
        refused  topic  heads   kind is headers, not fanout: remove it first
        refused  queue  orders  sessions is none, not dynamic, and cannot be changed
        update   queue  orders  lock_ms: 90000 → 1
        --- stderr
        error: 2 changes cannot be applied to existing objects; nothing was changed
        --- exit 4
    "#]]
    .assert_eq(&server.run_with("apply -", &impossible).to_string());
    let wrong = changed.replace("total > @least", "total >");
    let refused = server.run_with("apply -", &wrong);
    assert_eq!(refused.code, 1, "{refused}");
    assert!(
        refused.err.contains("sales/Subscriptions/large: over: filter: at character"),
        "{refused}"
    );
    assert!(server.run_with("apply - --dry-run", &changed).err.contains("no changes"));
}

#[test]
fn only_prune_deletes_objects_and_lists_them() {
    let server = Server::start();
    server.run_with("apply -", FILE);
    let less =
        "[queues.graves]\nttl_ms = 3600000\n[topics.sales.subscriptions.large]\nlock_ms = 5000\n";
    let kept = server.run_with("apply -", less);
    assert_eq!(kept.code, 0, "{kept}");
    assert!(server.ok("queue ls -o name").contains("orders"));
    expect![[r#"
        CHANGE  KIND          NAME                                     WHAT
        remove  rule          sales → sales/Subscriptions/large: over
        remove  rule          sales → orders: eu
        remove  topic         heads
        remove  subscription  sales/Subscriptions/all
        remove  queue         orders
        --- stderr
        error: This deletes 5 objects with all messages. There is no terminal to ask for confirmation: use --yes
        --- exit 2
    "#]]
    .assert_eq(&server.run_with("apply - --prune", less).to_string());
    let done = server.run_with("apply - --prune --yes", less);
    assert_eq!(done.code, 0, "{done}");
    assert_eq!(server.ok("queue ls -o name"), "graves\nsales/Subscriptions/large\n");
    assert!(server.run_with("apply - --prune --yes", less).err.contains("no changes"));
}

#[test]
fn invalid_files_are_refused() {
    let server = Server::start();
    for (file, says) in [
        ("[streams.a]", "streams: not supported by this version"),
        ("{\"schedules\": {}}", "schedules: not supported by this version"),
        ("[queues.a]\nlok_ms = 5", "`lok_ms` is unknown"),
        ("queues", "expected"),
        ("{\"queues\": ", "not JSON"),
        ("\u{0}", "-: "),
    ] {
        let refused = server.run_with("apply -", file);
        assert_eq!(refused.code, 2, "{file}: {refused}");
        assert!(refused.err.contains(says), "{file}: {refused}");
    }
    assert_eq!(server.run("apply missing.toml").code, 1);
    // Two queues that send their dead letters to each other.
    let circle = "[queues.a]\ndead_letter = { queue = \"b\" }\n[queues.b]\ndead_letter = { queue = \"a\" }\n";
    let done = server.run_with("apply -", circle);
    assert_eq!(done.code, 0, "{done}");
    assert!(server.run_with("apply -", circle).err.contains("no changes"));
}

/// The file leaves out default values, so both sides must have the same defaults.
#[test]
fn the_defaults_of_the_file_are_those_of_the_server() {
    let server = Server::start();
    server.ok("queue create plain");
    server.ok("topic create plain-topic");
    let file: Value = serde_json::from_str(&server.ok("export -o json")).unwrap();
    assert_eq!(file["queues"]["plain"], serde_json::json!({}));
    assert_eq!(file["topics"]["plain-topic"], serde_json::json!({}));
}
