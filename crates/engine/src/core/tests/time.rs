//! Time to live, priorities, de-duplication.

use expect_test::expect;

use super::check;
use super::world::World;
use crate::journal::SEGMENT_BYTES_MAX;

#[test]
fn expired_messages_are_removed() {
    check(
        "queue q ttl=1000 \n send q x \n wait 400 \n send q y ttl=100 \n send q z \n wait 100 \n facts q
        wait 500 \n facts q \n receive q max=9 \n wait 1000 \n facts q",
        expect![[r#"
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            z as a
            ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn expired_messages_can_be_dead_lettered_once() {
    check(
        "queue q ttl=1000 bury \n send q x \n send q y ttl=100 delay=5000 \n wait 1000 \n facts q
        receive q/$deadletterqueue max=9 \n release a \n release b \n wait 100000 \n facts q
        redrive q/$deadletterqueue 1 \n receive q \n wait 999 \n receive q",
        expect![[r#"
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 2 sessions 0/0 held 0
            y as a [TTLExpiredException: its time to live was over, from q 2], x as b [TTLExpiredException: its time to live was over, from q 1]
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 2 sessions 0/0 held 0
            1
            y as c
            nothing"#]],
    );
}

#[test]
fn a_leased_message_expires_when_it_is_returned() {
    check(
        "queue q ttl=1000 lock=5000 \n send q x y z \n receive q max=3 \n wait 2000 \n facts q
        complete a \n abandon b \n facts q \n wait 3000 \n facts q",
        expect![[r#"
            x as a, y as b, z as c
            ready 0 locked 3 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn the_ttl_of_a_scheduled_message_starts_when_it_is_due() {
    check(
        "queue q ttl=1000 \n send q x \n receive q \n defer a \n send q later at=5000 ttl=300 \n wait 1000 \n facts q
        wait 4000 \n facts q \n wait 299 \n facts q \n wait 1 \n facts q",
        expect![[r#"
            x as a
            ready 0 locked 0 delayed 0 scheduled 1 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn an_expired_message_does_not_block_its_session() {
    check(
        "queue q sessions ttl=1000 bury \n send q x s=A delay=3000 \n wait 500 \n send q y s=A \n send q z s=B ttl=100
        receive q max=9 \n wait 500 \n receive q max=9 \n complete a \n facts q \n receive q/$deadletterqueue max=9",
        expect![[r#"
            z as a
            y as b
            ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/1 held 0
            x as c [TTLExpiredException: its time to live was over, from q 1]"#]],
    );
}

#[test]
fn a_session_whose_messages_all_expired_is_forgotten() {
    check(
        "queue q sessions ttl=1000 \n send q x y s=A \n send q z s=B \n facts q \n wait 1000 \n facts q \n accept q",
        expect![[r#"
            ready 3 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 2/2 held 0
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            no session"#]],
    );
}

#[test]
fn times_to_live_survive_a_restart() {
    check(
        "queue q ttl=1000 \n send q x \n send q y ttl=100 \n restart \n wait 100 \n facts q \n restart \n wait 900 \n facts q",
        expect![[r#"
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn higher_priorities_come_first_and_equal_ones_in_order() {
    check(
        "queue q prio=5 \n send q low1 low2 \n send q high1 prio=5 \n send q mid prio=3 \n send q top prio=200 \n send q high2 prio=5
        receive q max=3 \n abandon b \n receive q \n restart \n receive q max=9 \n facts q",
        expect![[r#"
            high1 as a, top as b, high2 as c
            top as d (receives 2, failed 1)
            mid as e, low1 as f, low2 as g
            ready 0 locked 6 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_priority_is_kept_through_delays_schedules_and_dead_letters() {
    check(
        "queue q prio=9 failed=1 \n send q low delay=100 \n send q high delay=100 prio=9 \n send q later at=200 prio=5 \n send q soon
        wait 200 \n receive q max=9 \n abandon a \n release b \n release c \n release d \n redrive q/$deadletterqueue 1 \n receive q max=9",
        expect![[r#"
            high as a, later as b, low as c, soon as d
            1
            high as e, later as f (receives 2, failed 0), low as g (receives 2, failed 0), soon as h (receives 2, failed 0)"#]],
    );
}

#[test]
fn a_duplicate_is_not_stored_again() {
    check(
        "queue q dedup=1000 \n send q x \n send q y x \n send q z known=x \n send q w w \n facts q \n receive q \n complete a
        wait 999 \n send q x \n restart \n send q x \n wait 1 \n send q x \n facts q",
        expect![[r#"
            2, 1 again
            1 again
            3, 3 again
            ready 3 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            x as a
            1 again
            1 again
            ready 3 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn without_a_key_the_content_can_identify_a_message() {
    check(
        "queue q dedup=1000 content \n send q x unnamed \n send q x unnamed \n send q y unnamed
        queue p dedup=1000 \n send p x unnamed \n send p x unnamed \n facts p",
        expect![[r#"
            1 again
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn keys_can_belong_to_sessions() {
    check(
        "queue q sessions dedup=1000 each \n send q x s=A \n send q x s=B \n send q x s=A \n facts q",
        expect![[r#"
            1 again
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 2/2 held 0"#]],
    );
}

#[test]
fn messages_scheduled_for_one_time_keep_their_order() {
    // Starts and delays at all levels of the wheel; the last ones are set from a shorter distance, or after a restart.
    for start in [0, 1, 63, 4000, 1_000_000] {
        for delay in [1, 64, 100, 1000, 300_000, 5_000_000, 2_000_000_000_u64] {
            let (at, half) = (start + delay, delay / 2);
            for restart in ["", "restart"] {
                let mut world = World::new(SEGMENT_BYTES_MAX);
                let script = format!(
                    "wait {start} \n queue q sessions \n send q 1 s=A at={at} \n send q 2 s=A at={at}
                    wait {half} \n {restart} \n send q 3 s=A at={at} \n send q 4 s=A at={at}
                    wait {} \n accept q \n receive q max=9 hold=a",
                    delay - half,
                );
                let lines = script.lines().flat_map(|line| line.split('\n')).map(str::trim);
                lines.filter(|line| !line.is_empty()).for_each(|line| world.step(line));
                let said = world.said.lines().last().unwrap();
                assert_eq!(said, "1 as b, 2 as c, 3 as d, 4 as e", "from {start} for {delay}");
            }
        }
    }
}

#[test]
fn messages_overdue_at_a_restart_are_ordered_by_time_and_then_by_sequence() {
    check(
        "queue q sessions
        send q 3 s=A at=5000
        send q 1 s=A at=4000
        send q 4 s=A at=6000
        send q 2 s=A at=4000
        later 10000
        restart
        wait 1
        accept q
        receive q max=9 hold=a",
        expect![[r#"
            holds A as a until 40001
            1 as b, 2 as c, 3 as d, 4 as e"#]],
    );
}

#[test]
fn a_topic_counts_a_key_once_and_forgets_it_without_further_traffic() {
    check(
        "topic t dedup=1000 \n queue q dedup=500
        queue t/Subscriptions/one where=all do=SET_x:1
        queue t/Subscriptions/two where=all do=SET_x:2
        queue t/Subscriptions/three
        bind t q
        send @t a \n send @t b \n keys \n wait 900 \n keys \n send @t b c \n keys
        wait 100 \n send @t a \n keys \n wait 2000 \n keys
        send @t d \n keys \n restart \n keys \n wait 2000 \n keys
        send @t e \n keys \n retopic t dedup=10 \n wait 1 \n keys \n wait 500 \n keys",
        expect![[r#"
            4 copies
            4 copies
            4 keys
            2 keys
            0 again, 4 copies
            4 keys
            4 copies
            4 keys
            0 keys
            4 copies
            2 keys
            2 keys
            0 keys
            4 copies
            2 keys
            2 keys
            0 keys"#]],
    );
}

#[test]
fn setting_the_clock_forward_shortens_no_lease() {
    for again in ["", "restart", "replay"] {
        check(
            &format!(
                "queue q lock=1000 \n queue l sessions lock=1000 \n send q x \n send l y s=s \n receive q \n accept l s=s
                clock 3600000 \n {again} \n wait 500 \n renew b \n facts q \n facts l \n wait 500 \n facts q \n facts l"
            ),
            expect![[r#"
                x as a
                holds s as b until 1000
                until 3601500
                ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
                ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1
                ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
                ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1"#]],
        );
    }
}

#[test]
fn after_a_forward_clock_step_a_restart_does_not_go_back_in_time() {
    let mut world = World::new(SEGMENT_BYTES_MAX);
    world.step("queue q lock=1000");
    world.step("clock 3600000");
    // Otherwise a clock that is set back before the restart would make leases last an hour longer.
    assert_eq!(world.replayed().last_at().0, 3_600_000);
}
