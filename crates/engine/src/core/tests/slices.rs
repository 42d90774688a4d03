//! Whatever a command causes, a turn processes a bounded number of messages, sessions and leases.

use super::world::World;
use crate::core::background::SLICE_MAX;
use crate::journal::SEGMENT_BYTES_MAX;

/// What a turn may process: a slice of work, a slice of due timers, and slices for its command and for forwarding.
const TURN_MAX: usize = 5 * SLICE_MAX;

const SESSIONS: usize = 1000;

/// A queue with two messages in each of many sessions.
fn many_sessions(spec: &str) -> World {
    let mut world = World::new(SEGMENT_BYTES_MAX);
    world.step(&format!("queue q sessions {spec}"));
    for n in 0..SESSIONS {
        world.step(&format!("send q {n} {n}b s=s{n}"));
    }
    world
}

/// A queue with many messages.
fn many_messages(spec: &str) -> World {
    let mut world = World::new(SEGMENT_BYTES_MAX);
    world.step(&format!("queue q {spec}"));
    for some in (0..2 * SESSIONS).collect::<Vec<_>>().chunks(1000) {
        let bodies: Vec<String> = some.iter().map(usize::to_string).collect();
        world.step(&format!("send q {}", bodies.join(" ")));
    }
    world
}

/// Runs a step and all turns that it causes. Returns the number of turns and the output.
fn carried_out(world: &mut World, step: &str) -> (usize, String) {
    world.said.clear();
    (world.turns, world.most_touched) = (0, 0);
    world.step(step);
    world.run_background_work();
    assert!(world.most_touched <= TURN_MAX, "{step}: {} in one turn", world.most_touched);
    (world.turns, world.said.trim().to_owned())
}

fn facts(world: &mut World) -> String {
    world.said.clear();
    world.step("facts q");
    world.said.trim().to_owned()
}

#[test]
fn adding_a_length_limit_to_a_queue_with_many_sessions_is_sliced() {
    for over in ["drop", "dead"] {
        let mut world = many_sessions("");
        let (turns, _) = carried_out(&mut world, &format!("update q sessions max=10 over={over}"));
        assert!(turns > 4, "{turns}");
        let dead = if over == "drop" { 0 } else { 2 * SESSIONS - 10 };
        let expected = format!(
            "ready 10 locked 0 delayed 0 scheduled 0 deferred 0 dead {dead} sessions 5/5 held 0"
        );
        assert_eq!(facts(&mut world), expected);
        // A replay reaches the same state.
        world.step("restart");
        assert_eq!(facts(&mut world), expected);
    }
}

#[test]
fn adding_a_ttl_to_a_queue_with_many_sessions_is_sliced() {
    let mut world = many_sessions("");
    world.step("wait 1000");
    let (turns, _) = carried_out(&mut world, "update q sessions ttl=500 bury");
    let (more, _) = carried_out(&mut world, "wait 1000");
    assert!(turns + more > 4, "{turns} {more}");
    let gone = format!(
        "ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead {} sessions 0/0 held 0",
        2 * SESSIONS
    );
    assert_eq!(facts(&mut world), gone);
}

#[test]
fn purging_a_large_queue_is_sliced() {
    for mut world in [many_sessions(""), many_messages("")] {
        let (turns, said) = carried_out(&mut world, "purge q");
        assert!(turns > 4, "{turns}");
        assert_eq!(said, (2 * SESSIONS).to_string());
        assert_eq!(
            facts(&mut world),
            "ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"
        );
    }
}

#[test]
fn several_large_queues_are_purged_at_the_same_time() {
    let mut world = many_messages("");
    let bodies: Vec<String> = (0..1000).map(|n: usize| n.to_string()).collect();
    for queue in ["r", "s"] {
        world.step(&format!("queue {queue}"));
        world.step(&format!("send {queue} {}", bodies.join(" ")));
    }
    world.said.clear();
    for queue in ["q", "r", "s"] {
        world.step(&format!("purge {queue}"));
    }
    world.run_background_work();
    // Each request is answered, in whichever order they are done.
    let mut said: Vec<&str> = world.said.split_whitespace().collect();
    said.sort_unstable();
    assert_eq!(said, ["1000", "1000", "2000"]);
}

#[test]
fn purging_a_large_queue_keeps_leased_messages_unless_all_are_purged() {
    for (step, left) in [("purge q", 300), ("purge q all", 0)] {
        let mut world = many_messages("dedup=1000000");
        world.step("receive q max=300");
        let (_, said) = carried_out(&mut world, step);
        assert_eq!(said, (2 * SESSIONS - left).to_string());
        let ready = format!(
            "ready 0 locked {left} delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"
        );
        assert_eq!(facts(&mut world), ready);
        world.said.clear();
        world.step("keys");
        assert_eq!(world.said.trim() == "0 keys", left == 0, "{}", world.said);
    }
}

#[test]
fn deleting_a_large_queue_is_sliced_and_ends_its_leases_at_once() {
    let mut world = many_messages("lock=1000");
    (0..9).for_each(|_| world.step("receive q max=200"));
    let (turns, said) = carried_out(&mut world, "delete q");
    assert!(turns > 1, "{turns}");
    assert_eq!(said, "");
    let (_, said) = carried_out(&mut world, "complete a");
    assert_eq!(said, "1 lost");
    let (_, said) = carried_out(&mut world, "facts q");
    assert!(said.starts_with("refused: "), "{said}");
    // While a deleted queue is freed in slices, its timers fire and its name is used again.
    let mut world = World::new(SEGMENT_BYTES_MAX);
    world.step("queue q");
    let bodies: Vec<String> = (0..SESSIONS).map(|n| n.to_string()).collect();
    world.step(&format!("send q {} delay=2", bodies.join(" ")));
    world.step("delete q");
    world.step("queue q");
    carried_out(&mut world, "wait 1000");
    assert!(facts(&mut world).starts_with("ready 0 "));
}

#[test]
fn closing_a_connection_with_many_leases_is_sliced() {
    let mut world = many_messages("lock=1000000");
    world.step("attach c q conn=7 credit=1900");
    world.run_background_work();
    let (turns, _) = carried_out(&mut world, "disconnect conn=7");
    assert!(turns > 3, "{turns}");
    assert!(facts(&mut world).starts_with(&format!("ready {} locked 0", 2 * SESSIONS)));
}

#[test]
fn ending_many_leases_and_delays_at_one_time_is_sliced() {
    let mut world = many_messages("lock=1000");
    (0..9).for_each(|_| world.step("receive q max=200"));
    let (turns, _) = carried_out(&mut world, "wait 1000");
    assert!(turns > 4, "{turns}");
    assert!(facts(&mut world).starts_with(&format!("ready {} locked 0", 2 * SESSIONS)));
    let mut world = many_messages("");
    let later: Vec<String> = (0..1500).map(|n| format!("l{n}")).collect();
    later.chunks(1000).for_each(|some| world.step(&format!("send q {} at=5000", some.join(" "))));
    let (turns, _) = carried_out(&mut world, "wait 5000");
    assert!(turns > 4, "{turns}");
    assert!(facts(&mut world).starts_with(&format!("ready {} ", 2 * SESSIONS + 1500)));
}

#[test]
fn the_clock_is_set_forward_while_there_are_many_leases() {
    let mut world = many_messages("lock=1000");
    (0..9).for_each(|_| world.step("receive q max=200"));
    carried_out(&mut world, "clock 3600000");
    assert!(facts(&mut world).starts_with(&format!("ready {} locked 1800", 2 * SESSIONS - 1800)));
    carried_out(&mut world, "wait 1000");
    assert!(facts(&mut world).starts_with(&format!("ready {} locked 0", 2 * SESSIONS)));
}

#[test]
fn forwarding_a_large_queue_is_sliced() {
    let mut world = many_messages("");
    world.step("queue z");
    let (turns, _) = carried_out(&mut world, "update q to=z");
    assert!(turns > 1, "{turns}");
    assert!(facts(&mut world).starts_with("ready 0 "));
}

#[test]
fn resuming_a_queue_with_many_sessions_is_sliced() {
    let mut world = many_sessions("");
    world.step("accept q s=s999");
    world.step("pause q");
    world.run_background_work();
    world.step("attach c q hold=a credit=9");
    let (_, said) = carried_out(&mut world, "resume q");
    assert_eq!(said, "to c: 999 as b, 999b as c");
}

#[test]
fn skipping_many_expired_messages_is_sliced() {
    let mut world = many_messages("ttl=1000");
    world.step("wait 900");
    world.step("send q last");
    world.step("later 200");
    // An accept before all of them are removed may have to be repeated; a waiting one is served.
    world.said.clear();
    world.most_touched = 0;
    world.step("receive q wait=5000");
    world.step("wait 100");
    assert!(world.most_touched <= TURN_MAX, "{}", world.most_touched);
    assert_eq!(world.said.trim(), "last as a");
}

#[test]
fn all_queues_are_listed_a_page_at_a_time() {
    let mut world = World::new(SEGMENT_BYTES_MAX);
    (0..600).for_each(|n| world.step(&format!("queue q{n:03}")));
    assert_eq!(world.pages(), [256, 256, 88]);
}

#[test]
fn a_message_that_overflows_every_queue_of_a_cycle_ends() {
    let mut world = World::new(SEGMENT_BYTES_MAX);
    for step in [
        "queue graves",
        "queue onward bytes=10 over=dead dead=graves",
        "update graves to=onward",
        "send onward a_message_that_is_larger_than_the_queue_may_be",
        "facts onward",
        "facts graves",
    ] {
        world.step(step);
        world.run_background_work();
    }
    assert!(world.said.contains("dead 1 "), "{}", world.said);
}

#[test]
fn deleting_a_topic_with_many_rules_is_sliced() {
    let mut world = World::new(SEGMENT_BYTES_MAX);
    world.step("queue q");
    world.step("topic t");
    for n in 0..SESSIONS {
        world.step(&format!("bind t q name=r{n}"));
    }
    let (turns, said) = carried_out(&mut world, "untopic t");
    assert!(turns > 2, "{turns}");
    assert_eq!(said, "");
    // The name can be used again while the rules of the first topic are freed.
    world.step("topic t");
    carried_out(&mut world, "send topic:t x");
    assert!(facts(&mut world).starts_with("ready 0 "));
}
