//! `malote bridge` to a real RabbitMQ and back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)] // a test

#[path = "../bridge/carried.rs"]
mod carried;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../connectors/tests/common/proxy.rs"]
mod proxy;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::sync::OnceLock;

use carried::{Trip, bridge, bridged, native};
use common::Server;
use malote_services::RabbitMq;
use proxy::CuttableProxy;

/// One server for all tests. It ends with this process.
fn server() -> &'static RabbitMq {
    static SERVER: OnceLock<RabbitMq> = OnceLock::new();
    SERVER.get_or_init(|| RabbitMq::start(4).unwrap_or_else(|why| panic!("{why}")))
}

#[test]
fn messages_survive_a_round_trip_through_killed_bridges() {
    for (sessions, vhost) in [(true, 0), (false, 1)] {
        let other = &format!("{}?partitions=4", server().url(vhost));
        Trip { other, sessions, declares: true, numbers: false, through: |one| one }.run();
    }
}

#[test]
fn failed_logins_and_refused_messages_are_reported() {
    let malote = Server::start();
    malote.ok("queue create orders");
    malote.ok("send orders one");
    let (near, home) = (native(&malote), malote.home.path());
    let wrong = server().url(2).replace("malote:malote@", "malote:wrong@");
    let said = bridged(home, &near, &wrong, "orders --declare");
    assert!(said.code != 0 && said.err.contains("--to: ACCESS_REFUSED"), "{said}");
    // A virtual host that does not exist.
    let said = bridged(home, &near, &server().url(7), "orders --declare");
    assert!(said.code != 0 && said.err.contains("--to: NOT_ALLOWED"), "{said}");
    // A refused message is reported and stays in the source.
    malote.ok("send orders two --id m2 --prop x-malote-mine=1");
    let said = bridged(home, &near, &server().url(2), "orders --declare --exit-when-idle 5s");
    assert!(
        said.code != 0 && said.err.contains("the target refused a message: message m2: "),
        "{said}"
    );
    assert!(said.err.contains("1 moved"), "{said}");
    assert!(malote.ok("peek orders").contains("two"));
}

#[test]
fn a_bridge_waits_for_an_unreachable_target() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = server().url(3);
    let at = url.split(['@', '/']).nth(3).unwrap();
    let proxy = runtime.block_on(CuttableProxy::to(at.parse::<SocketAddr>().unwrap()));
    let malote = Server::start();
    malote.ok("queue create orders");
    let through = url.replace(at, &proxy.at.to_string());
    let mut running =
        bridge(malote.home.path(), &native(&malote), &through, "orders --declare").spawn().unwrap();
    let mut said = BufReader::new(running.stderr.take().unwrap()).lines();
    // The bridge runs once the first message has arrived.
    malote.ok("send orders one");
    let carried = || malote.ok("queue get orders -o json").contains("\"ready\": 0");
    while !carried() {
        assert!(running.try_wait().unwrap().is_none(), "it ended");
    }
    proxy.cut(false);
    malote.ok("send orders two");
    let tries = said.find(|line| line.as_ref().is_ok_and(|line| line.contains("retrying")));
    assert!(tries.is_some(), "it does not say that it waits");
    proxy.cut(true);
    let back = |line: &str| bridged(malote.home.path(), &url, &native(&malote), line);
    malote.ok("queue create back");
    while !malote.ok("peek back").contains("two") {
        let said = back("orders --into back --exit-when-idle 1s");
        assert_eq!(said.code, 0, "{said}");
    }
    running.kill().unwrap();
    running.wait().unwrap();
}
