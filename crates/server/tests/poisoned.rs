//! The whole process on a disk that fails: whoever waits is told, and it ends with an error.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test, in all its functions")]

#[path = "../../front-http/tests/common/disk.rs"]
#[allow(dead_code)]
mod disk;

use std::time::Duration;

use malote_engine::Engine;
use malote_engine::chance::Chance;
use malote_engine::journal::Options;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_is_told_to_those_who_wait_and_ends_the_process() {
    let data = tempfile::tempdir().unwrap();
    let flags = RawSettings {
        http: Some("127.0.0.1:0".into()),
        amqp: Some("127.0.0.1:0".into()),
        sqs: Some("off".into()),
        servicebus_admin: Some("off".into()),
        data: Some(data.path().display().to_string()),
        ..RawSettings::default()
    };
    let none = Some(std::path::Path::new("/dev/null"));
    let settings = Settings::load(none, flags, &Environment::default()).unwrap();
    let (disk, switch) = disk::GatedDisk::open(data.path());
    let opened = Engine::open_on(disk, &Options::default(), Chance::of_system()).unwrap();
    let journal = opened.0.clone();

    let (tell, greeting) = tokio::sync::oneshot::channel();
    let serving = tokio::spawn(serve(settings, opened, move |greeting| {
        tell.send(greeting.to_owned()).unwrap();
    }));
    let greeting = greeting.await.unwrap();
    let (_, rest) = greeting.split_once("http://").unwrap();
    let at = rest.split('/').next().unwrap().to_owned();

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
    assert!(matches!(serving.await.unwrap(), Err(ServeError::Poisoned)));
}
