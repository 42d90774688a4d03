//! Commands that need no server: users, settings, data directories, help.
#![allow(clippy::unwrap_used)] // a test

mod common;

use common::{Server, local};
use expect_test::expect;

#[test]
fn users_keys_and_tokens_are_stored_in_the_data_directory() {
    let home = tempfile::tempdir().unwrap();
    let run = |line: &str| local(home.path(), line);
    assert!(run("user ls").err.contains("the server accepts every client"));
    expect![[r#"
        --- stderr
        user `ana` added
        the user has no permissions yet: `malote user grant ana send,receive 'orders-*'`
    "#]]
    .assert_eq(&run("user add ana --no-password").to_string());
    // The notation that the error of a denied request shows.
    expect![[r#"
        --- stderr
        `ana` may send,receive orders-*
    "#]]
    .assert_eq(&run("user grant ana send,receive 'orders-*'").to_string());
    run("user grant ana manage orders-eu");
    expect![[r#"
        NAME  PASSWORD  MAY                                      TAGS
        ana   no        send,receive orders-*; manage orders-eu
    "#]]
    .assert_eq(&run("user ls").out);
    assert_eq!(run("user revoke ana receive 'orders-*'").code, 0);
    assert_eq!(run("user revoke ana receive 'other-*'").code, 3);
    expect![[r#"
        --- stderr
        error: user `ana` already exists
        --- exit 4
    "#]]
    .assert_eq(&run("user add ana --no-password").to_string());
    assert_eq!(run("user rm nobody").code, 3);
    assert_eq!(run("user add bob").code, 2, "there is no terminal to ask for a password");
    assert_eq!(run("user grant ana fly orders").code, 2);
    assert_eq!(run("token add ci").code, 2, "a token needs a user or permissions");
    let token = run("token add ci --for ana -o name").out;
    assert!(token.trim().len() > 20, "{token}");
    expect![[r#"
        LABEL  MAY
        ci     acts as ana
    "#]]
    .assert_eq(&run("token ls").out);
    let key = run("key add aws --grant 'send q' -o json").out;
    assert!(key.contains("\"secret\""), "{key}");
    assert_eq!(run("key ls -o name").out.lines().count(), 1);
    assert_eq!(run("user rm ana").code, 0);
    assert_eq!(run("token ls").out, "", "they go with their user");
    assert!(home.path().join(".local/share/malote/credentials.toml").exists());
}

#[test]
fn users_have_tags_and_permissions_of_rabbitmq() {
    let home = tempfile::tempdir().unwrap();
    let run = |line: &str| local(home.path(), line);
    run("user add ana --no-password");
    expect![[r#"
        --- stderr
        tags of `ana`: monitoring, mine
    "#]]
    .assert_eq(&run("user tags ana monitoring mine").to_string());
    expect![[r#"
        --- stderr
        `ana` in vhost dev: configure '^a', write '.*', read ''
    "#]]
    .assert_eq(&run("user permit ana --vhost dev ^a .* ''").to_string());
    run("user permit ana .* .* .*");
    expect![[r#"
        NAME  PASSWORD  MAY                                                                                             TAGS
        ana   no        vhost dev: configure '^a', write '.*', read ''; vhost /: configure '.*', write '.*', read '.*'  monitoring,mine
    "#]]
    .assert_eq(&run("user ls").out);
    assert_eq!(run("user forbid ana --vhost dev").code, 0);
    assert_eq!(run("user forbid ana --vhost dev").code, 3);
    assert_eq!(run("user forbid nobody").code, 3);
    assert_eq!(run("user tags nobody x").code, 3);
    let bad = run("user permit ana ( .* .*");
    assert_eq!(bad.code, 2);
    assert!(bad.err.contains("unclosed group"), "{}", bad.err);
}

#[test]
fn definitions_of_rabbitmq_are_imported() {
    let server = Server::start();
    let queue = |arguments: &str| {
        format!(
            r#"{{"queues":[{{"name":"q","vhost":"/","durable":true,"auto_delete":false,"arguments":{arguments}}}]}}"#
        )
    };
    let import = |text: &str| server.run_with("import -", text);
    let imported = import(&queue("{}"));
    assert_eq!((imported.code, imported.out.as_str()), (0, ""), "{}", imported.err);
    assert!(server.run("queue ls -o name").out.contains('q'));
    let left = import(&queue("{\"x-max-length\":1}"));
    assert_eq!(left.out, "queue 'q' in vhost '/': exists with other settings\n");
    let refused = import(&queue("{\"x-max-length\":\"many\"}"));
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("queue 'q' in vhost '/'"), "{}", refused.err);
    assert_eq!(import("nonsense").code, 2);
}

#[test]
fn a_server_with_users_requires_credentials() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let data = data.to_str().unwrap();
    let mut add = common::malote(home.path());
    add.args([
        "user",
        "add",
        "ana",
        "--password-stdin",
        "--grant",
        "send,receive orders",
        "--data",
        data,
    ]);
    let mut add = add.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut add.stdin.take().unwrap(), b"secret\n").unwrap();
    assert!(add.wait().unwrap().success());
    let admin = local(home.path(), &format!("token add root --admin --data {data} -o name")).out;
    let admin = admin.trim();
    let server = Server::start_with(home, &[]);
    let nobody = server.run("queue ls -o name");
    let refused = server.run("queue create orders");
    assert_eq!(refused.code, 1, "{refused}");
    assert!(refused.err.contains("--token or --user"), "{refused}");
    assert_eq!(nobody.out, "");
    server.ok(&format!("queue create orders --token {admin}"));
    server.ok(&format!("queue create secret --token {admin}"));
    let as_ana = |line: &str| {
        let mut command = common::malote(server.home.path());
        command.args(common::words(line)).args(["--url", &server.url, "--user", "ana"]);
        common::CommandOutput::from(command.env("MALOTE_PASSWORD", "secret").output().unwrap())
    };
    assert_eq!(as_ana("send orders x").code, 0);
    assert_eq!(as_ana("queue ls -o name").out, "orders\n");
    let denied = as_ana("queue purge secret --yes");
    assert_eq!(denied.code, 1);
    assert!(denied.err.contains("malote user grant ana"), "{denied}");
    let wrong = server.run("queue ls --token wrong");
    assert_eq!(wrong.code, 1, "{wrong}");
}

#[test]
#[allow(clippy::disallowed_methods)] // files of the test
fn a_backup_of_a_running_server_is_restored_elsewhere() {
    let server = Server::start();
    server.ok("queue create orders --sessions dynamic");
    for n in 0..20 {
        server.ok(&format!("send orders m{n} --session s{}", n % 3));
    }
    let file = server.home.path().join("all.backup");
    let shown = file.to_str().unwrap();
    let said = server.run(&format!("backup {shown} -o json"));
    let facts: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(facts["bytes"], bytes.len());
    server.ok("send orders later --session s0");
    let again = server.run(&format!("backup {shown}"));
    assert!(again.code == 1 && again.err.contains("already exists"), "{again}");

    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let data = data.to_str().unwrap();
    let restore = |from: &str| local(home.path(), &format!("restore {from} --data {data}"));
    let bad = home.path().join("bad");
    std::fs::write(&bad, &bytes[..bytes.len() / 2]).unwrap();
    expect![[r#"
        --- stderr
        error: the backup is cut short: its end is missing
        --- exit 1
    "#]]
    .assert_eq(&restore(bad.to_str().unwrap()).to_string());
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 4;
    std::fs::write(&bad, &flipped).unwrap();
    expect![[r#"
        --- stderr
        error: the backup is damaged: the checksum after segment-000001.log does not hold
        --- exit 1
    "#]]
    .assert_eq(&restore(bad.to_str().unwrap()).to_string());
    std::fs::write(&bad, b"hello").unwrap();
    expect![[r#"
        --- stderr
        error: this is not a backup of Malote
        --- exit 1
    "#]]
    .assert_eq(&restore(bad.to_str().unwrap()).to_string());
    assert_eq!(restore(shown).code, 0);
    assert_eq!(restore(shown).code, 1, "there is a journal now");
    assert_eq!(local(home.path(), &format!("verify {data}")).code, 0);

    let other = Server::start_with(home, &[]);
    let bodies = other.ok("peek orders --max 100 -o ndjson");
    let bodies: Vec<String> = bodies
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["body"].to_string())
        .collect();
    let sent: Vec<String> = (0..20).map(|n| format!("\"m{n}\"")).collect();
    assert_eq!(bodies, sent);
}

#[test]
fn settings_are_printed_with_their_origin_and_checked() {
    let home = tempfile::tempdir().unwrap();
    let run = |line: &str| local(home.path(), line);
    let printed =
        run("config print --http 9000 --tls-self-signed --tls-name broker --tls-name 10.0.0.7").out;
    assert!(printed.contains("names = \"broker,10.0.0.7\" # --tls-name"), "{printed}");
    assert!(printed.contains("http = \"127.0.0.1:9000\" # --http"), "{printed}");
    assert!(printed.contains("self_signed = true # --tls-self-signed"), "{printed}");
    assert!(printed.contains("sqs = \"127.0.0.1:9324\" # default"), "{printed}");
    let entries: serde_json::Value =
        serde_json::from_str(&run("config print -o json").out).unwrap();
    assert_eq!(entries[0]["name"], "http");
    assert_eq!(entries[0]["variable"], "MALOTE_HTTP");
    expect![[r#"
        --- stderr
        the settings are valid
    "#]]
    .assert_eq(&run("config check").to_string());
    let bad = run("config check --http nowhere --drain-timeout soon");
    assert_eq!(bad.code, 1);
    assert!(
        bad.err.contains("`http` is `nowhere` (from --http)") && bad.err.contains("drain_timeout"),
        "{bad}"
    );
    let template = run("config default").out;
    assert!(
        template.contains("# http = \"127.0.0.1:8080\"") && template.contains("[tls]"),
        "{template}"
    );
    assert_eq!(run("serve --sqsq off").code, 2);
}

#[test]
fn serve_reports_errors_in_one_sentence() {
    let server = Server::start();
    let data = server.home.path().join("data");
    // Only the port under test: other programs may use the default ports.
    let alone = "serve --sqs off --amqp off --servicebus-admin off";
    let line = format!("{alone} --http 0 --data {}", data.display());
    let locked = local(server.home.path(), &line);
    assert_eq!(locked.code, 1);
    let sentence = locked.err.lines().last().unwrap_or_default();
    assert!(sentence.starts_with("error: ") && sentence.contains("data"), "{locked}");
    let port = server.url.rsplit(':').next().unwrap();
    let other = server.home.path().join("other");
    let line = format!("{alone} --http {port} --data {}", other.display());
    let taken = local(server.home.path(), &line);
    assert_eq!(taken.code, 1);
    let sentence = taken.err.lines().last().unwrap_or_default();
    assert!(sentence.starts_with("error: ") && sentence.contains(port), "{taken}");
}

#[test]
fn verify_reads_a_directory_and_finds_damage() {
    let mut server = Server::start();
    server.ok("send q x --create --count 500");
    server.stop();
    let (home, data) = (server.home.path(), server.home.path().join("data"));
    let line = format!("verify {}", data.display());
    let good = local(home, &line);
    assert_eq!(good.code, 0, "{good}");
    assert!(good.out.starts_with("FILE") && good.err.contains("nothing is damaged"), "{good}");
    let json = |line: &str| -> serde_json::Value {
        serde_json::from_str(&local(home, &format!("{line} -o json")).out).unwrap()
    };
    let found = json(&line);
    assert_eq!(found["ok"], true);

    // Flips one byte in the middle of the synced part.
    let segment =
        found["segments"].as_array().unwrap().iter().find(|s| s["state"] == "used").unwrap();
    let file = data.join(segment["file"].as_str().unwrap());
    flip(&file, 20_000);
    let bad = local(home, &line);
    assert_eq!(bad.code, 1, "{bad}");
    assert!(
        bad.err.contains("make a copy of the directory") || bad.err.contains("refuse to start"),
        "{bad}"
    );
    assert_eq!(json(&line)["ok"], false);
    assert_eq!(local(home, "verify /no/such/directory").code, 3);
}

#[allow(clippy::disallowed_methods)] // the test damages its own file
fn flip(file: &std::path::Path, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn completions_and_help_are_printed() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = local(home.path(), &format!("completions {shell}"));
        assert!(script.code == 0 && script.out.contains("malote"), "{shell}");
    }
    assert_eq!(local(home.path(), "version -o name").out.trim(), env!("CARGO_PKG_VERSION"));
    assert_eq!(local(home.path(), "fly").code, 2);
    assert!(local(home.path(), "send --help").out.contains("Examples:"));
}
