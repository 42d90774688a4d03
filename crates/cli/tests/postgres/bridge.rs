//! `malote bridge`, there and back.

use malote_services::Postgres;

use crate::carried::Trip;

#[test]
fn all_of_a_message_goes_there_and_back_by_bridges_that_are_killed() {
    let server = Postgres::start().unwrap_or_else(|why| panic!("{why}"));
    // Two databases that every server has; nobody else uses them here.
    for (sessions, database) in [(false, "template1"), (true, "postgres")] {
        let other = &server.url(database);
        Trip { other, sessions, declares: true, numbers: true, through: |one| one }.run();
    }
}
