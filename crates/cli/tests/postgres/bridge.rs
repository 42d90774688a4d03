//! `malote bridge` to PostgreSQL and back.

use malote_services::Postgres;

use crate::carried::Trip;

#[test]
fn messages_survive_a_round_trip_through_killed_bridges() {
    let server = Postgres::start().unwrap_or_else(|why| panic!("{why}"));
    // Two databases that every server has, and that no other test uses.
    for (sessions, database) in [(false, "template1"), (true, "postgres")] {
        let other = &server.url(database);
        Trip { other, sessions, declares: true, numbers: true, through: |one| one }.run();
    }
}
