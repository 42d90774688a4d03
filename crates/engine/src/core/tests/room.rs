//! How much room in the journal things need, and what happens when there is none.

use expect_test::expect;

use super::check_in;
use super::world::{World, name_of};

/// Twenty sessions with ids as long as they may be: 128 characters of four bytes.
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
fn what_is_granted_at_once_fits_into_the_room_that_was_asked_for() {
    // Rounds enough for a segment to end in one of them.
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
fn what_a_lost_hold_buries_fits_into_the_room_that_was_asked_for() {
    let mut world = World::new(24 << 10);
    world.step("queue q sessions failed=1");
    for round in 0..5 {
        world.step(&format!("send q 1 2 3 4 5 6 7 8 s={}", long_ids()[0]));
        world.step("accept q lock=5");
        // A hold and its messages take nine names.
        world.step(&format!("receive q max=8 hold={}", name_of(9 * round)));
        world.step("wait 10");
    }
    world.step("facts q");
    assert!(world.said.contains("dead 40 sessions 0/0 held 0"), "{}", world.said);
}

#[test]
fn a_delay_that_holds_a_whole_session_back_has_room_for_it() {
    let bodies: Vec<String> = (0..120).map(|n| n.to_string()).collect();
    let mut world = World::new(24 << 10);
    world.step("queue q sessions");
    world.step(&format!("send q {} s=one", bodies.join(" ")));
    for round in 0..8 {
        // A hold and its messages take 121 names.
        let (hold, first) = (name_of(121 * round), name_of(121 * round + 1));
        world.step("accept q");
        world.step(&format!("receive q max=120 hold={hold}"));
        world.step(&format!("abandon {first} delay=1"));
        world.step("wait 1");
    }
    assert_eq!(world.said.matches("119 as").count(), 8, "{}", world.said);
}
