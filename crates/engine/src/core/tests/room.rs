//! How much space in the journal operations need, and what happens if there is none.

use expect_test::expect;

use super::script::name_of;
use super::world::World;
use super::{check, check_in};
use crate::journal::SEGMENT_BYTES_MAX;

/// Twenty sessions with ids of the maximum length: 128 characters of four bytes.
fn long_ids() -> Vec<String> {
    (0..20).map(|n| format!("{}{n:02}", "\u{1f4e8}".repeat(126))).collect()
}

#[test]
fn a_small_segment_is_enough_for_a_few_messages() {
    check_in(
        16 << 10,
        "queue q sessions \n send q x s=one \n receive q \n complete a \n queue p \n send p y \n receive p",
        expect![[r#"
            x as a
            y as b"#]],
    );
}

#[test]
fn the_grants_of_one_request_fit_the_reserved_space() {
    // Enough rounds for a segment to end in one of them.
    let mut world = World::new(24 << 10);
    world.step("queue q sessions");
    for _ in 0..6 {
        long_ids().iter().for_each(|id| world.step(&format!("send q x s={id}")));
        "receive q max=20 lock=1 \n wait 10 \n purge q"
            .lines()
            .for_each(|line| world.step(line.trim()));
    }
    assert_eq!(world.said.lines().filter(|line| *line == "20").count(), 6, "{}", world.said);
}

#[test]
fn dead_lettering_at_a_lost_hold_fits_the_reserved_space() {
    let mut world = World::new(24 << 10);
    world.step("queue q sessions failed=1");
    for round in 0..5 {
        world.step(&format!("send q 1 2 3 4 5 6 7 8 s={}", long_ids()[0]));
        world.step("accept q lock=5");
        // A hold and its messages use nine names.
        world.step(&format!("receive q max=8 hold={}", name_of(9 * round)));
        world.step("wait 10");
    }
    world.step("facts q");
    assert!(world.said.contains("dead 40 sessions 0/0 held 0"), "{}", world.said);
}

#[test]
fn a_delayed_retry_reserves_space_for_its_whole_session() {
    let bodies: Vec<String> = (0..120).map(|n| n.to_string()).collect();
    let mut world = World::new(32 << 10);
    world.step("queue q sessions");
    world.step(&format!("send q {} s=one", bodies.join(" ")));
    for round in 0..8 {
        // A hold and its messages use 121 names.
        let (hold, first) = (name_of(121 * round), name_of(121 * round + 1));
        world.step("accept q");
        world.step(&format!("receive q max=120 hold={hold}"));
        world.step(&format!("abandon {first} delay=1"));
        world.step("wait 1");
    }
    assert_eq!(world.said.matches("119 as").count(), 8, "{}", world.said);
}

#[test]
fn messages_of_a_lost_connection_return_when_there_is_disk_space() {
    check(
        "queue q lock=60000
        queue s sessions lock=60000
        send q x y
        send s z s=one
        accept s conn=7
        receive s hold=a
        attach c q conn=7 credit=2
        full
        disconnect conn=7
        facts q
        facts s
        wait 5000
        facts q
        room
        wait 1000
        facts q
        facts s
        receive q max=2
        receive s",
        expect![[r#"
            holds one as a until 60000
            z as b
            to c: x as c, y as d
            ready 0 locked 2 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1
            ready 0 locked 2 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 1/1 held 0
            x as e (receives 2, failed 1), y as f (receives 2, failed 1)
            z as g (receives 2, failed 1)"#]],
    );
}

#[test]
fn delivery_continues_when_there_is_disk_space_again() {
    check(
        "queue q
        queue s sessions
        send q x
        send s z s=one
        accept s
        full
        attach c q
        attach d s hold=a
        receive q wait=9000
        wait 5000
        room
        wait 1000",
        expect![[r#"
            holds one as a until 30000
            to d: z as b
            to c: x as c"#]],
    );
}

#[test]
fn deferring_a_batch_of_expired_messages_fits_the_reserved_space() {
    let bodies: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    for history in
        ["defer", "defer set=x", "abandon", "abandon delay=5", "release", "release delay=5", "dead"]
    {
        for queue in ["", "sessions", "dead=other", "dead=topic:t:key"] {
            let mut world = World::new(SEGMENT_BYTES_MAX);
            let name = "n".repeat(200);
            world.step("topic t");
            world.step("queue other");
            world.step(&format!("queue {name} ttl=1000 bury failed=1 {queue}"));
            world.step(&format!("send {name} {} s={}", bodies.join(" "), long_ids()[0]));
            world.step(&format!("receive {name} max=40 per=40 lock=5000"));
            world.step("wait 2000");
            let leases: Vec<String> = (0..40).map(name_of).collect();
            world.step(&format!("{history} {}", leases.join(" ")));
            world.step(&format!("facts {name}"));
            assert!(world.said.contains("ready 0 locked 0"), "{history} {queue}: {}", world.said);
        }
    }
}

#[test]
fn a_smaller_message_does_not_overtake_one_that_waits_for_space_to_be_routed() {
    check(
        "topic t
        queue t/Subscriptions/s sessions
        queue t/Subscriptions/x where=subject:much
        send @t 1 s=A at=1000 subject=much
        send @t 2 s=A at=1000
        full 10500
        wait 1000
        topics
        room
        wait 2000
        topics
        accept t/Subscriptions/s
        receive t/Subscriptions/s hold=a max=9",
        expect![[r#"
            t: 2 queues, 2 rules, 0 scheduled, 2 waiting, 0 copies
            t: 2 queues, 2 rules, 0 scheduled, 0 waiting, 3 copies
            holds A as a until 33000
            1 as b, 2 as c"#]],
    );
}
