//! Bugs that the simulation found, each with the smallest script that shows it.

use expect_test::expect;

use super::check;
use super::world::World;
use crate::event::QueueId;
use crate::journal::SEGMENT_BYTES_MAX;

#[test]
fn a_redelivered_message_of_a_skipping_session_is_in_its_session_after_a_restart() {
    check(
        "queue q sessions skip \n send q x y s=one \n receive q \n abandon a delay=100 \n wait 200 \n receive q \n restart
        release b \n receive q max=9 per=9",
        expect![[r#"
            x as a
            x as b (receives 2, failed 1)
            x as c (receives 3, failed 1), y as d"#]],
    );
}

#[test]
fn state_is_set_with_an_abandon_that_ends_the_hold() {
    check(
        "queue q sessions \n send q x s=one \n accept q \n receive q hold=a \n abandon b delay=100 state=a:seen \n wait 100
        receive q \n complete c \n facts q",
        expect![[r#"
            holds one as a until 30000
            x as b
            x as c (receives 2, failed 1)
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 0"#]],
    );
}

#[test]
fn replacing_the_first_message_of_a_session_unblocks_the_next() {
    check(
        "queue q sessions \n send q x s=one delay=5000 \n send q y s=one \n receive q \n replace q 1 z s=two \n facts q \n receive q max=9",
        expect![[r#"
            nothing
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 2/2 held 0
            y as a, z as b"#]],
    );
}

#[test]
fn replacing_the_only_message_leaves_no_ready_session() {
    check(
        "queue q sessions \n send q x s=one \n replace q 1 z s=two \n facts q",
        expect!["ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 1/1 held 0"],
    );
}

#[test]
fn a_message_moved_by_an_operator_keeps_its_session() {
    check(
        "queue q sessions \n queue r sessions \n send q x y s=one \n redrive q 1 to=r \n facts q \n accept r \n receive r hold=a \n receive q",
        expect![[r#"
            1
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 1/1 held 0
            holds one as a until 30000
            x as b
            y as c"#]],
    );
}

#[test]
fn a_session_survives_a_queue_without_sessions() {
    check(
        "queue r sessions \n queue q sessions \n queue p \n send q x s=one \n redrive q 1 to=p \n redrive p 1 to=r \n accept r",
        expect![[r#"
            1
            1
            holds one as a until 30000"#]],
    );
}

#[test]
fn a_refusal_in_a_mixed_settle_waits_for_the_records_it_depends_on() {
    // The lease of the durable queue ended by a completion that is not on disk yet: no answer that depends on it may be
    // sent before.
    check(
        "queue q \n queue r relaxed \n send q x \n send r y \n receive q \n receive r \n complete a
        waits complete a b",
        expect![[r#"
            x as a
            y as b
            waits: 1 lost"#]],
    );
}

#[test]
fn accept_next_waits_for_the_first_message_of_the_session() {
    check(
        "queue q sessions \n send q x s=one \n waits accept q",
        expect!["waits: holds one as a until 30000"],
    );
}

#[test]
fn a_grant_record_with_an_invalid_slot_leases_nothing() {
    let mut world = World::new(SEGMENT_BYTES_MAX);
    for step in ["queue q", "queue s sessions", "send q x", "send s y s=one"] {
        world.step(step);
    }
    world.apply_absurd_leases("q", "s");
    for step in ["facts q", "facts s", "receive q", "accept s"] {
        world.step(step);
    }
    expect![[r#"
        ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
        ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 1/1 held 0
        x as a
        holds one as b until 30000"#]]
    .assert_eq(world.said.trim_end());
}

#[test]
fn a_leased_message_with_its_own_ttl_expires_when_it_is_returned() {
    check(
        "queue q lock=5000 \n send q x y ttl=100 \n receive q max=2 \n wait 200 \n release a \n restart \n abandon b \n facts q",
        expect![[r#"
            x as a, y as b
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn an_expired_message_cannot_be_deferred() {
    check(
        "queue q ttl=100 bury lock=5000 \n send q x \n receive q \n wait 200 \n defer a \n facts q",
        expect![[r#"
            x as a
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_priority_takes_effect_after_a_move_to_a_queue_with_priorities() {
    check(
        "queue q \n queue p prio=9 \n send q low \n send q high prio=7 \n redrive q 1 to=p \n redrive q 2 to=p \n receive p max=9",
        expect![[r#"
            1
            1
            high as a, low as b"#]],
    );
}

#[test]
fn a_shorter_window_forgets_no_key_too_early() {
    check(
        "queue q dedup=8000 \n send q x \n wait 900 \n send q y \n update q dedup=80 \n wait 79 \n send q y \n wait 1 \n send q y",
        expect!["2 again"],
    );
}

#[test]
fn a_forgotten_key_stays_forgotten_when_the_window_grows() {
    // The key of `x` is outside the window when it grows; that of `y`, in the same bucket, is not.
    for restart in ["wait 1", "replay", "restart"] {
        let script = "queue r \n topic t dedup=800 \n bind t r \n queue q dedup=800 \n send q x \n send @t x \n wait 50
            send q y \n send @t y \n wait 750 \n update q dedup=90000 \n retopic t dedup=90000 \n RESTART
            send q x \n send q y \n send @t x \n send @t y \n facts r";
        check(
            &script.replace("RESTART", restart),
            expect![[r#"
                2 again
                0 again
                ready 3 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
        );
    }
}

#[test]
fn after_a_replacement_the_dedup_key_identifies_the_new_message() {
    check(
        "queue q dedup=8000 \n send q x \n replace q 1 y known=x \n send q z known=x",
        expect!["2 again"],
    );
}

#[test]
fn after_a_restart_an_idle_queue_gets_its_full_idle_time() {
    check(
        "queue q idle=1000 \n restart \n wait 600 \n update q idle=1000 \n wait 400 \n facts q",
        expect!["refused: queue `q` does not exist"],
    );
}

#[test]
fn whatever_makes_a_message_ready_keeps_the_limit() {
    check(
        "queue q max=2 over=bury \n send q x delay=100 \n send q y z \n wait 100 \n facts q \n update q max=1 over=bury \n facts q
        receive q \n send q w \n release a \n facts q",
        expect![[r#"
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 2 sessions 0/0 held 0
            z as a
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 3 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_queue_over_its_limit_is_trimmed_at_a_start() {
    let mut world = World::new(SEGMENT_BYTES_MAX);
    world.step("queue q max=10 over=drop");
    world.step("send q x y z");
    // As if a crash had lost the record of the removal.
    let q = world.core().queues.get_mut(&QueueId(1)).unwrap();
    q.spec.length_max = Some(1);
    world.step("restart");
    world.said.clear();
    world.step("facts q");
    assert!(world.said.starts_with("ready 1 "), "{}", world.said);
}

#[test]
fn full_queues_that_dead_letter_into_each_other_terminate() {
    check(
        "queue p max=1 over=bury \n queue q max=1 over=bury dead=p \n update p max=1 over=bury dead=q \n send p x y \n send p z \n facts p \n facts q",
        expect![[r#"
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_message_that_was_changed_many_times_can_be_read() {
    let mut script = "queue q \n send q x".to_owned();
    for n in 0..300 {
        script += &format!(" \n receive q \n abandon {} set={n}", super::script::name_of(n));
    }
    let mut world = World::new(SEGMENT_BYTES_MAX);
    script.lines().for_each(|line| world.step(line.trim()));
    assert!(world.depth("q", 1) < 100, "it was stored again");
    world.step("receive q");
    assert!(
        world.said.trim_end().ends_with("(receives 301, failed 300) set=299"),
        "{}",
        world.said
    );
}
