//! Queues without sessions.

use expect_test::expect;

use super::check;

#[test]
fn a_queue_is_first_in_first_out() {
    check(
        "queue q \n send q x y z \n receive q max=2 \n receive q max=2 \n receive q",
        expect![[r#"
        x as a, y as b
        z as c
        nothing"#]],
    );
}

#[test]
fn an_abandoned_message_returns_to_its_position_and_is_counted() {
    check(
        "queue q \n send q x y \n receive q \n abandon a set=1 \n receive q max=2 \n complete b c \n complete b \n facts q",
        expect![[r#"
        x as a
        x as b (receives 2, failed 1) set=1, y as c
        1 lost
        ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_released_message_is_not_counted_as_failed() {
    check(
        "queue q failed=1 \n send q x \n receive q \n release a \n receive q \n abandon b \n facts q",
        expect![[r#"
        x as a
        x as b (receives 2, failed 0)
        ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/0 held 0"#]],
    );
}

#[test]
fn settling_after_the_lock_expired_is_refused() {
    check(
        "queue q lock=1000 \n send q x \n receive q \n wait 999 \n renew a \n wait 999 \n wait 1 \n complete a \n receive q",
        expect![[r#"
        x as a
        until 1999
        1 lost
        x as b (receives 2, failed 1)"#]],
    );
}

#[test]
fn a_message_that_fails_too_often_is_dead_lettered_with_the_reason() {
    check(
        "queue q failed=2 lock=1000 \n send q x \n receive q \n abandon a \n receive q \n wait 1000 \n facts q
        receive q/$deadletterqueue \n abandon c \n receive q/$deadletterqueue \n release d \n redrive q/$deadletterqueue 1 \n receive q",
        expect![[r#"
            x as a
            x as b (receives 2, failed 1)
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/0 held 0
            x as c [MaxDeliveryCountExceeded: failed 2 times; the queue allows 2 (failed_max), from q 1]
            x as d (receives 2, failed 1) [MaxDeliveryCountExceeded: failed 2 times; the queue allows 2 (failed_max), from q 1]
            1
            x as e"#]],
    );
}

#[test]
fn the_limit_of_receives_does_not_count_releases() {
    check(
        "queue q receives=2 \n send q x \n receive q \n release a \n receive q \n abandon b \n receive q \n abandon c \n facts q",
        expect![[r#"
        x as a
        x as b (receives 2, failed 0)
        x as c (receives 3, failed 1)
        ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/0 held 0"#]],
    );
}

#[test]
fn dead_letters_go_to_the_target_of_the_queue() {
    check(
        "queue graves \n queue q failed=1 dead=graves \n queue r failed=1 dead=drop \n send q x \n send r y z
        receive q \n abandon a \n receive graves \n receive r \n abandon c \n receive r \n dead d \n facts r \n delete graves",
        expect![[r#"
            x as a
            x as b [MaxDeliveryCountExceeded: failed 1 times; the queue allows 1 (failed_max), from q 1]
            y as c
            z as d
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/0 held 0
            refused: queue `graves` is the dead-letter target of `q`: update `q` first"#]],
    );
}

#[test]
fn a_delayed_message_keeps_its_position_and_a_scheduled_one_does_not() {
    check(
        "queue q \n send q x delay=100 \n send q y at=50 \n send q z \n facts q \n receive q max=9 \n wait 49 \n receive q
        wait 1 \n receive q \n wait 50 \n receive q \n cancel q 2",
        expect![[r#"
            ready 1 locked 0 delayed 1 scheduled 1 deferred 0 dead 0 sessions 0/0 held 0
            z as a
            nothing
            y as b
            x as c
            refused: queue `q` has no scheduled message with sequence number 2"#]],
    );
}

#[test]
fn a_schedule_can_be_cancelled() {
    check(
        "queue q \n send q x at=50 \n cancel q 1 \n cancel q 1 \n wait 100 \n receive q \n facts q",
        expect![[r#"
            1
            refused: queue `q` has no scheduled message with sequence number 1
            nothing
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_delayed_retry_returns_to_its_position() {
    check(
        "queue q \n send q x y z \n receive q \n abandon a delay=100 \n receive q \n wait 100 \n receive q max=5",
        expect![[r#"
        x as a
        y as b
        x as c (receives 2, failed 1), z as d"#]],
    );
}

#[test]
fn a_deferred_message_is_received_by_sequence_number_and_returns_to_deferred() {
    check(
        "queue q lock=1000 \n send q x y \n receive q \n defer a set=later \n receive q max=5 \n deferred q 1 \n deferred q 1 \n wait 1000
        facts q \n deferred q 1 \n complete d \n facts q",
        expect![[r#"
            x as a
            y as b
            x as c (receives 2, failed 0) set=later
            refused: queue `q` has no deferred message with sequence number 1
            ready 1 locked 0 delayed 0 scheduled 0 deferred 1 dead 0 sessions 0/0 held 0
            x as d (receives 3, failed 1) set=later
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn receive_and_delete_removes_at_once() {
    check(
        "queue q \n send q x y \n receive q take \n facts q \n receive q take max=2 \n receive q",
        expect![[r#"
        x
        ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
        y
        nothing"#]],
    );
}

#[test]
fn a_waiting_receive_is_answered_by_a_message_or_its_timeout() {
    check(
        "queue q \n receive q wait=100 \n wait 50 \n send q x \n receive q wait=100 \n wait 100",
        expect![[r#"
        x as a
        nothing"#]],
    );
}

#[test]
fn consumers_share_messages_by_credit() {
    check(
        "queue q \n attach one q credit=2 conn=1 \n attach two q credit=2 conn=2 \n send q v w x y z \n credit two 1
        disconnect conn=1 \n facts q \n disconnect conn=2 clean \n receive q max=9",
        expect![[r#"
            to one: v as a, w as b
            to two: x as c, y as d
            0
            to two: z as e
            ready 2 locked 3 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            v as f (receives 2, failed 1), w as g (receives 2, failed 1), x as h (receives 2, failed 0), y as i (receives 2, failed 0), z as j (receives 2, failed 0)"#]],
    );
}

#[test]
fn a_paused_queue_accepts_but_does_not_deliver() {
    check(
        "queue q \n pause q \n send q x \n receive q \n resume q \n receive q",
        expect![[r#"
        nothing
        x as a"#]],
    );
}

#[test]
fn purging_keeps_leased_messages() {
    check(
        "queue q \n send q w x y \n send q z at=500 \n receive q \n purge q \n facts q \n complete a \n send q n \n receive q \n purge q \n facts q",
        expect![[r#"
        w as a
        3
        ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
        n as b
        0
        ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn deleting_a_queue_ends_its_consumers_and_leases() {
    check(
        "queue q \n attach one q credit=5 conn=1 \n send q x \n receive q wait=10 \n delete q \n complete a \n receive q",
        expect![[r#"
        to one: x as a
        to one: ended: queue `q` does not exist
        refused: queue `q` does not exist
        1 lost
        refused: queue `q` does not exist"#]],
    );
}

#[test]
fn a_restart_keeps_free_standing_leases_and_ends_connection_bound_ones() {
    check(
        "queue q lock=1000 \n send q w x y z \n receive q \n attach one q credit=1 conn=1 \n receive q \n release c \n wait 500 \n restart \n facts q
        receive q max=9 \n complete a \n wait 499 \n facts q \n wait 1 \n facts q",
        expect![[r#"
            w as a
            to one: x as b
            y as c
            ready 3 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            x as d (receives 2, failed 0), y as e (receives 2, failed 0), z as f
            ready 0 locked 3 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 3 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn the_dead_letter_reason_names_the_limit_and_how_the_lease_ended() {
    check(
        "queue q failed=2 lock=100
        send q x y z
        receive q max=3
        abandon a
        wait 100
        receive q max=3
        abandon d
        wait 100
        receive q
        totals q
        queue p receives=1 dead=drop lock=100
        send p x y z
        receive p max=3
        abandon g
        dead h
        wait 100
        totals p
        restart
        totals p",
        expect![[r#"
            x as a, y as b, z as c
            x as d (receives 2, failed 1), y as e (receives 2, failed 1), z as f (receives 2, failed 1)
            nothing
            sent 3, delivered 6, redelivered 3, abandoned 2, dead_lettered 3, lost 4
            x as g, y as h, z as i
            sent 3, delivered 3, abandoned 1, dead_lettered 1, lost 1
            sent 3, delivered 3, abandoned 1, dead_lettered 1, lost 1"#]],
    );
}
