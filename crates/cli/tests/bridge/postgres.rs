//! `malote bridge` to a real PostgreSQL and from it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)] // a test

mod carried;
#[path = "../common/mod.rs"]
mod common;

use carried::Trip;
use malote_services::Postgres;

#[test]
fn all_of_a_message_goes_there_and_back_by_bridges_that_are_killed() {
    let server = Postgres::start().unwrap_or_else(|why| panic!("{why}"));
    // Two databases that every server has; nobody else uses them here.
    for (sessions, database) in [(false, "template1"), (true, "postgres")] {
        let other = &server.url(database);
        Trip { other, sessions, declares: true, numbers: true, through: |one| one }.run();
    }
}
