//! `malote work`: commands and HTTP endpoints as handlers, over the native connection and Service Bus.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test

mod common;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Stdio;

use common::{CommandOutput, Server, local, malote, words};

/// Long enough for a slow machine to fetch the next message.
const IDLE: &str = "--exit-when-idle 10s";

fn work(server: &Server, line: &str) -> CommandOutput {
    let mut command = malote(server.home.path());
    let broker = server.url.replace("http://", "malote://");
    command.args(words(line)).args(words(IDLE)).env("MALOTE_WORK_URL", broker);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.output().unwrap().into()
}

#[test]
fn an_exit_code_is_an_outcome() {
    let server = Server::start();
    server.ok("queue create orders");
    for body in ["good", "bad", "again"] {
        server.ok(&format!("send orders {body} --id {body} --subject s --prop order-id={body}"));
    }
    let script = server.home.path().join("handler.sh");
    let log = server.home.path().join("log");
    let lines = format!(
        "read -r body || true\necho \"$body $MALOTE_MESSAGE_ID $MALOTE_SUBJECT $MALOTE_PROPERTY_ORDER_ID $MALOTE_ATTEMPT\" >> {}\n\
         case $body-$MALOTE_ATTEMPT in bad-*) echo unpayable >&2; exit 65;; again-1) exit 1;; esac\n",
        log.display()
    );
    std::fs::write(&script, lines).unwrap();
    let said = work(&server, &format!("work orders --backoff 0s --exec 'sh {}'", script.display()));
    assert_eq!(said.code, 0, "{said}");
    assert!(said.err.contains("2 completed, 1 retried, 1 dead-lettered"), "{said}");
    let mut log: Vec<_> =
        std::fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect();
    log.sort();
    assert_eq!(
        log,
        ["again again s again 1", "again again s again 2", "bad bad s bad 1", "good good s good 1"]
    );
    let dead = server.ok("dlq show orders 1");
    assert!(dead.contains("Rejected") && dead.contains("unpayable"), "{dead}");
}

#[test]
fn an_http_status_is_an_outcome() {
    let server = Server::start();
    server.ok("queue create orders");
    for body in ["good", "bad", "again"] {
        server.ok(&format!("send orders {body} --id {body}"));
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = Vec::new();
            let mut some = [0; 4096];
            // Each request ends with one of the known bodies.
            let ends = |asked: &[u8]| {
                ["good", "bad", "again"]
                    .iter()
                    .any(|body| asked.ends_with(format!("\r\n\r\n{body}").as_bytes()))
            };
            while !ends(&asked) {
                let read = stream.read(&mut some).unwrap();
                assert!(read > 0);
                asked.extend_from_slice(&some[..read]);
            }
            let asked = String::from_utf8(asked).unwrap().to_lowercase();
            let first = asked.contains("malote-attempt: 1");
            let status = match () {
                () if asked.ends_with("bad") => "422 Unprocessable",
                () if asked.ends_with("again") && first => "503 Busy",
                () => "204 Done",
            };
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let said = work(&server, &format!("work orders --backoff 0s --http http://{at}/hook"));
    assert!(said.err.contains("2 completed, 1 retried, 1 dead-lettered"), "{said}");
}

/// The three environment variables of a Service Bus worker, over AMQP 1.0.
#[test]
fn three_variables_drain_a_hundred_sessions_over_service_bus() {
    let mut server = Server::start();
    let amqp = server.amqp();
    server.ok("queue create orders --sessions dynamic");
    server.ok("send orders --generate"); // 100 sessions × 10 messages
    let mut command = malote(server.home.path());
    let string = format!(
        "Endpoint=sb://{amqp};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true"
    );
    command.args(words(&format!("work --print {IDLE}")));
    command.env("SERVICEBUS_CONNECTION_STRING", string);
    command.env("SERVICEBUS_QUEUE_NAME", "orders").env("WORKER_COUNT", "16");
    let said: CommandOutput = command.output().unwrap().into();
    assert_eq!(said.code, 0, "{said}");
    assert!(said.err.contains("1000 completed, 0 retried, 0 dead-lettered"), "{}", said.err);
    let mut last: HashMap<String, u64> = HashMap::new();
    for line in said.out.lines() {
        let mut fields = line.split('\t');
        let seq: u64 = fields.next().unwrap().parse().unwrap();
        let session = fields.next().unwrap().to_owned();
        let before = last.insert(session, seq).unwrap_or_default();
        assert!(before < seq, "{line} came after {before}");
    }
    assert_eq!((last.len(), said.out.lines().count()), (100, 1000));
}

#[test]
fn messages_of_unfinished_handlers_are_released_without_counting_an_attempt() {
    let server = Server::start();
    server.ok("queue create orders --sessions dynamic");
    server.ok("send orders slow --session ana");
    let begun = server.home.path().join("begun");
    let mut command = malote(server.home.path());
    let line = format!("touch {} && exec sleep 600", begun.display());
    command.args(["work", "orders", "--drain", "0s", "--session-idle", "1s", "--exec", &line]);
    command.env("MALOTE_WORK_URL", server.url.replace("http://", "malote://"));
    let mut worker = command.stderr(Stdio::null()).spawn().unwrap();
    let since = std::time::Instant::now();
    while !begun.exists() {
        assert!(since.elapsed().as_secs() < 60, "nothing begins");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let asked = std::process::Command::new("kill").arg(worker.id().to_string()).status().unwrap();
    assert!(asked.success());
    assert!(worker.wait().unwrap().success());
    let seen: serde_json::Value =
        serde_json::from_str(server.ok("peek orders -o ndjson").trim()).unwrap();
    assert_eq!((&seen["state"], &seen["failed"]), (&"ready".into(), &0.into()), "{seen}");
}

#[test]
fn a_worker_signs_in_with_the_token_of_a_context() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data").display().to_string();
    let added = local(home.path(), &format!("token add worker --admin --data {data} -o name"));
    assert_eq!(added.code, 0, "{added}");
    let token = added.out.trim().to_owned();
    let server = Server::start_with(home, &[]);
    let run = |line: &str| local(server.home.path(), line);
    let context = format!("context add prod --url {} --token {token}", server.url);
    assert_eq!(run(&context).code, 0);
    assert_eq!(run("queue create orders").code, 0);
    assert_eq!(run("send orders hello").code, 0);
    let refused = run(&format!("work orders --print --url {}", server.url));
    assert_ne!(refused.code, 0, "{refused}");
    let worked = run(&format!("work orders --print {IDLE}"));
    assert!(worked.code == 0 && worked.out.contains("hello"), "{worked}");
    let in_url = server.url.replace("http://", &format!("malote://{token}@"));
    let worked = run(&format!("work orders --print --exit-when-idle 100ms --broker {in_url}"));
    assert_eq!(worked.code, 0, "{worked}");
}
