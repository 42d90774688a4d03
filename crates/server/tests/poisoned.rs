//! A process whose disk or engine fails: pending requests get an error, and the process ends with one.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test, in all its functions")]

#[path = "../../front-http/tests/common/disk.rs"]
#[allow(dead_code)]
mod disk;
#[path = "../../engine/tests/common/trap.rs"]
#[allow(dead_code)]
mod trap;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use malote_engine::chance::Chance;
use malote_engine::clock::SystemClock;
use malote_engine::disk::OsDisk;
use malote_engine::journal::Options;
use malote_engine::{Engine, EngineFailure, Running};
use malote_model::QueueName;
use malote_server::settings::{Environment, RawSettings, Settings};
use malote_server::{ServeError, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn ask(at: &str, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Serves an engine in a task; returns its address.
async fn begin(
    data: &Path,
    opened: (Engine, Running),
) -> (tokio::task::JoinHandle<Result<(), ServeError>>, String) {
    let flags = RawSettings {
        http: Some("127.0.0.1:0".into()),
        amqp: Some("127.0.0.1:0".into()),
        sqs: Some("off".into()),
        servicebus_admin: Some("off".into()),
        data: Some(data.display().to_string()),
        ..RawSettings::default()
    };
    let none = Some(Path::new("/dev/null"));
    let settings = Settings::load(none, flags, &Environment::default()).unwrap();
    let (tell, greeting) = tokio::sync::oneshot::channel();
    let serving = tokio::spawn(serve(settings, opened, move |greeting| {
        tell.send(greeting.to_owned()).unwrap();
    }));
    let greeting = greeting.await.unwrap();
    let (_, rest) = greeting.split_once("http://").unwrap();
    (serving, rest.split('/').next().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_fails_pending_requests_and_ends_the_process() {
    let data = tempfile::tempdir().unwrap();
    let (disk, switch) = disk::GatedDisk::open(data.path());
    let opened = Engine::open_on(disk, &Options::default(), Chance::of_system()).unwrap();
    let journal = opened.0.clone();
    let (serving, at) = begin(data.path(), opened).await;

    assert!(ask(&at, "PUT", "/api/v1/queues/q", "{}").await.starts_with("HTTP/1.1 201"));
    switch.hold_up();
    let sending =
        tokio::spawn(async move { ask(&at, "POST", "/api/v1/queues/q/messages", "hello").await });
    while journal.journal().written() <= journal.journal().durable() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    switch.fail();
    let answer = sending.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("\"code\":\"poisoned\""), "{answer}");
    assert!(matches!(serving.await.unwrap(), Err(ServeError::Poisoned(EngineFailure::Disk(_)))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_the_core_fails_pending_requests_and_ends_the_process() {
    let data = tempfile::tempdir().unwrap();
    let trap = trap::Trap::default();
    let disk = Arc::new(OsDisk::open(data.path()).unwrap());
    let opened = Engine::open_at(disk, &Options::default(), Chance::of_system(), |floor| {
        let clock = Arc::new(SystemClock::starting_at(floor));
        Arc::new(trap::TrapClock(clock, trap.clone()))
    });
    let (serving, at) = begin(data.path(), opened.unwrap()).await;

    assert!(ask(&at, "PUT", "/api/v1/queues/q", "{}").await.starts_with("HTTP/1.1 201"));
    let sent = ask(&at, "POST", "/api/v1/queues/q/messages", "kept").await;
    assert!(sent.starts_with("HTTP/1.1 201"), "{sent}");
    trap.set("core");
    let answer = ask(&at, "POST", "/api/v1/queues/q/messages", "unknown").await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("\"code\":\"poisoned\""), "{answer}");
    let error = serving.await.unwrap().unwrap_err().to_string();
    let line = "internal error: thread `core` panicked: the trap of `core`; \
                the server stopped accepting requests: restart it to recover the stored data";
    assert_eq!(error, line);

    trap.clear();
    let disk = Arc::new(OsDisk::open(data.path()).unwrap());
    let (engine, running) =
        Engine::open_on(disk, &Options::default(), Chance::of_system()).unwrap();
    let facts = engine.describe(QueueName::new("q").unwrap()).await.unwrap();
    assert_eq!(facts.ready, 1);
    running.stop().await;
}
