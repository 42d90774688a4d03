//! The HTTP client with broken servers, and with TLS.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use common::{Server, local};
use expect_test::expect;

/// Answers each connection with one prepared text and closes it. The thread returns the requests.
fn fake(answers: Vec<&'static str>) -> (String, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = thread::spawn(move || {
        let answer = |text: &str| {
            let (mut stream, _) = listener.accept().unwrap();
            let head = head(&mut stream);
            stream.write_all(text.as_bytes()).unwrap();
            head
        };
        answers.into_iter().map(answer).collect()
    });
    (url, asked)
}

fn head(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

fn without_port(text: &str, url: &str) -> String {
    text.replace(url, "URL")
}

#[test]
fn a_missing_server_is_reported() {
    let home = tempfile::tempdir().unwrap();
    // The local port of an open connection: nothing else can listen on it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let url = format!("http://{}", near.local_addr().unwrap());
    let said = local(home.path(), &format!("queue ls --url {url}"));
    expect![[r#"
        --- stderr
        error: no server at URL: connection refused
        hint: start one with `malote serve`, or give its address with --url or --context
        --- exit 69
    "#]]
    .assert_eq(&without_port(&said.to_string(), &url));
    assert_eq!(local(home.path(), "queue ls --url amqp://x").code, 2);
    assert_eq!(local(home.path(), &format!("queue ls --url {url} --insecure")).code, 2);
}

#[test]
fn a_server_that_is_not_malote_is_reported() {
    let home = tempfile::tempdir().unwrap();
    let (url, _) = fake(vec!["HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nnot found"]);
    let said = local(home.path(), &format!("queue ls --url {url}"));
    expect![[r#"
        --- stderr
        error: the server at URL is not a Malote server: status 404 not found
        hint: check --url
        --- exit 1
    "#]]
    .assert_eq(&without_port(&said.to_string(), &url));
    let (url, _) = fake(vec!["220 smtp ready\r\n"]);
    assert_eq!(local(home.path(), &format!("queue ls --url {url}")).code, 69);
    let (url, _) = fake(vec!["HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"queues\""]);
    let cut = local(home.path(), &format!("queue ls --url {url}"));
    assert!(cut.err.contains("cut off"), "{cut}");
}

#[test]
fn a_silent_server_times_out() {
    let home = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let said = local(home.path(), &format!("queue ls --url {url} --timeout 200ms"));
    expect![[r#"
        --- stderr
        error: no response from the server at URL within 200ms
        hint: raise --timeout, or look at the server's log
        --- exit 69
    "#]]
    .assert_eq(&without_port(&said.to_string(), &url));
}

#[test]
fn requests_have_credentials_and_a_user_agent() {
    let home = tempfile::tempdir().unwrap();
    let empty = "HTTP/1.1 200 OK\r\ncontent-length: 13\r\nconnection: close\r\n\r\n{\"queues\":[]}";
    let (url, asked) = fake(vec![empty]);
    assert_eq!(local(home.path(), &format!("queue ls --url {url}/base/ --token t0k")).code, 0);
    let head = asked.join().unwrap().pop().unwrap();
    assert!(head.starts_with("GET /base/api/v1/queues HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains("authorization: Bearer t0k\r\n") && head.contains("user-agent: malote/"),
        "{head}"
    );
}

#[test]
fn an_unknown_problem_is_shown_with_the_hint_of_the_server() {
    let home = tempfile::tempdir().unwrap();
    let problem = "HTTP/1.1 409 Conflict\r\nconnection: close\r\n\r\n\
        {\"code\":\"moon_in_the_way\",\"detail\":\"the moon is in the way\",\"fix\":\"Wait a little.\"}";
    let (url, _) = fake(vec![problem]);
    expect![[r#"
        --- stderr
        error: the moon is in the way
        hint: Wait a little.
        --- exit 4
    "#]]
    .assert_eq(&local(home.path(), &format!("queue ls --url {url}")).to_string());
}

#[test]
fn certificates_are_verified_unless_insecure() {
    let server =
        Server::start_with(tempfile::tempdir().unwrap(), &["--tls-self-signed", "--tls-required"]);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let stranger = server.run("queue ls");
    assert_eq!(stranger.code, 69, "{stranger}");
    assert!(stranger.err.to_lowercase().contains("certificate"), "{stranger}");
    server.ok("send q hello --create --insecure");
    let ca = server.home.path().join("data/tls-self-signed.pem");
    assert_eq!(server.ok(&format!("receive q --raw --ca {}", ca.display())), "hello\n");
}
