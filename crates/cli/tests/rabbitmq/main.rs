//! `malote bridge` to a real RabbitMQ and from it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)] // a test

#[path = "../bridge/carried.rs"]
mod carried;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../connectors/tests/common/wire.rs"]
mod wire;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::sync::OnceLock;

use carried::{Trip, bridge, bridged, native};
use common::Server;
use malote_services::RabbitMq;
use wire::Wire;

/// One server for all tests: it ends with this process.
fn server() -> &'static RabbitMq {
    static SERVER: OnceLock<RabbitMq> = OnceLock::new();
    SERVER.get_or_init(|| RabbitMq::start(4).unwrap_or_else(|why| panic!("{why}")))
}

#[test]
fn all_of_a_message_goes_there_and_back_by_bridges_that_are_killed() {
    for (sessions, vhost) in [(true, 0), (false, 1)] {
        let other = &format!("{}?partitions=4", server().url(vhost));
        Trip { other, sessions, declares: true, numbers: false, through: |one| one }.run();
    }
}

#[test]
fn who_is_not_let_in_and_what_is_refused_is_said() {
    let malote = Server::start();
    malote.ok("queue create orders");
    malote.ok("send orders one");
    let (near, home) = (native(&malote), malote.home.path());
    let wrong = server().url(2).replace("malote:malote@", "malote:wrong@");
    let said = bridged(home, &near, &wrong, "orders --declare");
    assert!(said.code != 0 && said.err.contains("--to: ACCESS_REFUSED"), "{said}");
    // A virtual host that is not there.
    let said = bridged(home, &near, &server().url(7), "orders --declare");
    assert!(said.code != 0 && said.err.contains("--to: NOT_ALLOWED"), "{said}");
    // What it refuses is named and stays.
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
fn a_target_that_is_away_for_a_while_is_waited_for() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = server().url(3);
    let at = url.split(['@', '/']).nth(3).unwrap();
    let wire = runtime.block_on(Wire::to(at.parse::<SocketAddr>().unwrap()));
    let malote = Server::start();
    malote.ok("queue create orders");
    let through = url.replace(at, &wire.at.to_string());
    let mut running =
        bridge(malote.home.path(), &native(&malote), &through, "orders --declare").spawn().unwrap();
    let mut said = BufReader::new(running.stderr.take().unwrap()).lines();
    // It runs once the first is carried.
    malote.ok("send orders one");
    let carried = || malote.ok("queue get orders -o json").contains("\"ready\": 0");
    while !carried() {
        assert!(running.try_wait().unwrap().is_none(), "it ended");
    }
    wire.cut(false);
    malote.ok("send orders two");
    let tries = said.find(|line| line.as_ref().is_ok_and(|line| line.contains("retrying")));
    assert!(tries.is_some(), "it does not say that it waits");
    wire.cut(true);
    let back = |line: &str| bridged(malote.home.path(), &url, &native(&malote), line);
    malote.ok("queue create back");
    while !malote.ok("peek back").contains("two") {
        let said = back("orders --into back --exit-when-idle 1s");
        assert_eq!(said.code, 0, "{said}");
    }
    running.kill().unwrap();
    running.wait().unwrap();
}
