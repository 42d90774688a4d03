//! Queues with limits, and queues that are deleted automatically.

use expect_test::expect;

use super::check;

#[test]
fn a_full_queue_refuses_all_of_a_send() {
    check(
        "queue q max=2 \n send q x \n send q y z \n send q y \n send q z \n receive q \n send q z \n facts q
        queue b bytes=100 \n send b x y \n send b aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        expect![[r#"
            refused: queue `q` is full (length_max = 2): receive from it, or raise length_max
            refused: queue `q` is full (length_max = 2): receive from it, or raise length_max
            x as a
            ready 2 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            refused: queue `b` is full (bytes_max = 100): receive from it, or raise bytes_max"#]],
    );
}

#[test]
fn sends_of_one_turn_are_refused_independently() {
    check(
        "queue q max=2 dedup=1000 \n each q x x y z \n receive q max=9 \n facts q \n queue d max=1 over=drop \n each d u v w \n receive d max=9",
        expect![[r#"
            1 again
            refused: queue `q` is full (length_max = 2): receive from it, or raise length_max
            x as a, y as b
            ready 0 locked 2 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            w as c"#]],
    );
}

#[test]
fn overflow_removes_the_oldest_message() {
    check(
        "queue q max=2 over=drop \n send q x y z \n receive q max=9 \n send q u v \n release a \n receive q max=9 \n facts q",
        expect![[r#"
            y as a, z as b
            u as c, v as d
            ready 0 locked 3 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn the_oldest_becomes_a_dead_letter() {
    check(
        "queue q max=1 over=bury sessions \n send q x s=A \n send q y s=B \n send q z s=A \n accept q \n receive q hold=a max=9 \n receive q/$deadletterqueue max=9",
        expect![[r#"
            holds A as a until 30000
            z as b
            x as c [MaxLengthExceeded: the queue was full and it was the oldest, from q 1], y as d [MaxLengthExceeded: the queue was full and it was the oldest, from q 2]"#]],
    );
}

#[test]
fn overflow_removes_the_lowest_priority_first() {
    check(
        "queue q max=2 over=drop prio=9 \n send q high prio=9 \n send q low \n send q mid prio=5 \n receive q max=9",
        expect!["high as a, mid as b"],
    );
}

#[test]
fn a_large_message_displaces_several_small_ones() {
    check(
        "queue q bytes=85 over=drop \n send q a b c \n facts q \n send q dddddddddddddddddddd \n facts q \n receive q max=9",
        expect![[r#"
            ready 3 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            c as a, dddddddddddddddddddd as b"#]],
    );
}

#[test]
fn an_auto_delete_queue_is_deleted_with_its_last_consumer() {
    check(
        "queue q auto \n receive q \n facts q \n attach c q \n attach d q \n detach c \n facts q \n detach d \n facts q",
        expect![[r#"
            nothing
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            refused: queue `q` does not exist"#]],
    );
}

#[test]
fn an_idle_queue_is_deleted() {
    check(
        "queue q idle=1000 \n wait 900 \n receive q \n wait 900 \n send q x \n facts q \n attach c q \n wait 5000 \n facts q \n detach c \n wait 999 \n facts q \n wait 1 \n facts q",
        expect![[r#"
            nothing
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            to c: x as a
            ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            refused: queue `q` does not exist"#]],
    );
}

#[test]
fn an_exclusive_consumer_is_the_only_one() {
    check(
        "queue q \n attach a q conn=1 exclusive credit=0 \n attach b q conn=2 \n attach c q conn=1 exclusive
        receive q \n receive q wait=100 \n send q x \n credit a 1 \n disconnect conn=1 clean
        attach d q conn=2 credit=0 \n attach e q conn=1 exclusive \n detach d \n attach e q conn=1 exclusive",
        expect![[r#"
            refused: queue `q` has an exclusive consumer: receive from it once that consumer has ended
            refused: queue `q` has an exclusive consumer: receive from it once that consumer has ended
            refused: queue `q` has an exclusive consumer: receive from it once that consumer has ended
            refused: queue `q` has an exclusive consumer: receive from it once that consumer has ended
            0
            to a: x as a
            refused: queue `q` has consumers: an exclusive consumer must be its only one
            to e: x as b (receives 2, failed 0)"#]],
    );
}

#[test]
fn an_exclusive_consumer_keeps_session_receivers_away() {
    check(
        "queue q sessions \n attach a q exclusive credit=0 \n accept q s \n detach a \n accept q s",
        expect![[r#"
            refused: queue `q` has an exclusive consumer: receive from it once that consumer has ended
            no session"#]],
    );
}

#[test]
fn an_exclusive_queue_belongs_to_its_connection() {
    check(
        "queue q exclusive \n queue q exclusive conn=1 \n send q x \n receive q \n attach c q conn=2 \n attach c q conn=1
        disconnect conn=1 clean \n facts q \n queue q exclusive conn=2 \n restart \n facts q",
        expect![[r#"
            refused: exclusive: an exclusive queue belongs to a connection: declare it over one
            refused: queue `q` is exclusive to the connection that declared it
            refused: queue `q` is exclusive to the connection that declared it
            to c: x as a
            refused: queue `q` does not exist
            refused: queue `q` does not exist"#]],
    );
}
