//! Queues with sessions.

use expect_test::expect;

use super::check;

#[test]
fn every_message_needs_a_session_and_a_fixed_list_is_closed() {
    check(
        "queue q sessions \n send q x \n queue f fixed=one,two \n send f x s=one \n send f x s=three \n accept f s=three",
        expect![[r#"
            refused: queue `q` requires a session id on every message
            refused: session `three` is not in the fixed list of queue `f`: use one of its ids, or map keys onto them
            refused: session `three` is not in the fixed list of queue `f`: use one of its ids, or map keys onto them"#]],
    );
}

#[test]
fn one_message_of_a_session_at_a_time_in_order() {
    check(
        "queue q sessions \n send q a1 a2 s=a \n send q b1 b2 s=b \n receive q max=9 \n receive q max=9 \n complete a \n receive q max=9
        facts q",
        expect![[r#"
            a1 as a, b1 as b
            nothing
            a2 as c
            ready 1 locked 2 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/2 held 0"#]],
    );
}

#[test]
fn one_receive_may_return_several_messages_of_a_session_and_locks_it() {
    check(
        "queue q sessions \n send q a1 a2 a3 s=a \n send q b1 s=b \n receive q max=3 per=10 \n complete a b \n facts q \n receive q max=9 per=10
        complete c \n facts q",
        expect![[r#"
            a1 as a, a2 as b, a3 as c
            ready 1 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 1/2 held 0
            b1 as d
            ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 0"#]],
    );
}

#[test]
fn later_messages_do_not_overtake_a_returned_one() {
    check(
        "queue q sessions lock=1000 \n send q a1 a2 a3 s=a \n receive q max=2 per=10 \n abandon a \n receive q \n wait 1000 \n receive q max=9 per=9",
        expect![[r#"
            a1 as a, a2 as b
            nothing
            a1 as c (receives 2, failed 1), a2 as d (receives 2, failed 1), a3 as e"#]],
    );
}

#[test]
fn accept_next_takes_the_head_of_the_ready_ring() {
    check(
        "queue q sessions \n accept q \n accept q wait=100 \n send q x s=one \n accept q wait=10 \n wait 10 \n send q y s=two
        accept q \n unhold a \n accept q \n accept q s=two \n accept q s=new \n facts q",
        expect![[r#"
            no session
            holds one as a until 30000
            no session
            holds two as b until 30010
            holds one as c until 30010
            refused: session `two` is held by another receiver until 30010
            holds new as d until 30010
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/3 held 3"#]],
    );
}

#[test]
fn a_holder_gets_several_messages_and_an_abandoned_one_comes_first() {
    check(
        "queue q sessions \n send q x y z s=one \n accept q \n receive q hold=a max=2 \n abandon b \n receive q hold=a max=9 \n complete c d e
        receive q hold=a \n send q w s=one \n receive q hold=a",
        expect![[r#"
            holds one as a until 30000
            x as b, y as c
            x as d (receives 2, failed 1), z as e
            nothing
            w as f"#]],
    );
}

#[test]
fn a_push_holder_gets_new_messages_and_a_notice_of_the_end() {
    check(
        "queue q sessions lock=1000 \n accept q s=one conn=1 \n attach c q hold=a credit=2 conn=1 \n send q x y z s=one \n credit c 1
        wait 1000 \n complete b \n facts q",
        expect![[r#"
            holds one as a until 1000
            to c: x as b, y as c
            0
            to c: z as d
            to c: ended: lease … is no longer valid: it expired, was released or was already settled
            1 lost
            ready 3 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 1/1 held 0"#]],
    );
}

#[test]
fn after_a_lost_hold_delivery_restarts_at_the_earliest_message_and_counts() {
    check(
        "queue q sessions lock=1000 \n send q x y z s=one \n accept q \n receive q hold=a max=2 \n complete c \n wait 1000 \n complete b
        accept q \n receive q hold=d max=9",
        expect![[r#"
            holds one as a until 1000
            x as b, y as c
            1 lost
            holds one as d until 2000
            x as e (receives 2, failed 1), z as f"#]],
    );
}

#[test]
fn releasing_does_not_count_as_failed() {
    check(
        "queue q sessions \n send q x y s=one \n accept q \n receive q hold=a max=2 \n unhold a \n accept q \n receive q hold=d max=9",
        expect![[r#"
        holds one as a until 30000
        x as b, y as c
        holds one as d until 30000
        x as e (receives 2, failed 0), y as f (receives 2, failed 0)"#]],
    );
}

#[test]
fn a_delayed_retry_holds_its_session_back() {
    check(
        "queue q sessions \n send q x y z s=one \n accept q \n receive q hold=a max=2 \n abandon b delay=100 \n complete c \n facts q \n accept q
        wait 100 \n accept q \n receive q hold=d max=9",
        expect![[r#"
            holds one as a until 30000
            x as b, y as c
            1 lost
            ready 2 locked 0 delayed 1 scheduled 0 deferred 0 dead 0 sessions 0/1 held 0
            no session
            holds one as d until 30100
            x as e (receives 2, failed 1), y as f (receives 2, failed 0), z as g"#]],
    );
}

#[test]
fn with_retry_skip_the_session_continues() {
    check(
        "queue q sessions skip \n send q x y s=one \n accept q \n receive q hold=a \n abandon b delay=100 \n receive q hold=a \n complete c
        receive q hold=a \n wait 100 \n receive q hold=a",
        expect![[r#"
            holds one as a until 30000
            x as b
            y as c
            nothing
            x as d (receives 2, failed 1)"#]],
    );
}

#[test]
fn a_deferred_message_of_a_session_is_received_only_by_the_holder() {
    check(
        "queue q sessions \n send q x y s=one \n accept q \n receive q hold=a \n defer b \n receive q hold=a \n deferred q 1
        deferred q 1 hold=a \n complete c \n unhold a \n facts q \n accept q s=one \n deferred q 1 hold=e \n complete f \n facts q",
        expect![[r#"
            holds one as a until 30000
            x as b
            y as c
            refused: queue `q` has sessions: accept a session first, then receive with its token
            x as d (receives 2, failed 0)
            ready 0 locked 0 delayed 0 scheduled 0 deferred 1 dead 0 sessions 0/1 held 0
            holds one as e until 30000
            x as f (receives 3, failed 0)
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1"#]],
    );
}

#[test]
fn receive_and_delete_on_a_session_queue_needs_a_hold() {
    check(
        "queue q sessions \n send q x y s=one \n receive q take \n accept q \n receive q take hold=a \n unhold a \n accept q \n receive q take hold=b max=2 \n facts q",
        expect![[r#"
        refused: queue `q` has sessions: accept a session first, then receive with its token
        holds one as a until 30000
        x
        holds one as b until 30000
        y
        ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1"#]],
    );
}

#[test]
fn session_state_and_settlement_change_atomically() {
    check(
        "queue q sessions lock=1000 \n send q x s=one \n accept q \n receive q hold=a \n complete b state=a:seen \n facts q \n unhold a \n facts q
        state a to=late \n accept q s=one \n state c \n unhold c \n facts q",
        expect![[r#"
            holds one as a until 1000
            x as b
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 0
            refused: lease 00000001000000000000000159320dd7 is no longer valid: it expired, was released or was already settled
            holds one as c until 1000
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn delayed_messages_keep_their_place_in_the_session() {
    check(
        "queue q sessions \n send q x s=one delay=100 \n send q y s=one \n accept q \n wait 100 \n accept q \n receive q hold=a max=9",
        expect![[r#"
        no session
        holds one as a until 30100
        x as b, y as c"#]],
    );
}

#[test]
fn scheduled_messages_have_no_position() {
    check(
        "queue q sessions \n send q x s=one at=100 \n send q y s=one \n accept q \n receive q hold=a max=9 \n complete b \n wait 100 \n receive q hold=a",
        expect![[r#"
        holds one as a until 30000
        y as b
        x as c"#]],
    );
}

#[test]
fn dead_letters_of_a_session_keep_it_and_return_to_it() {
    check(
        "queue q sessions failed=1 \n send q x y s=one \n receive q \n abandon a \n receive q/$deadletterqueue \n release b
        redrive q/$deadletterqueue 1 \n accept q \n receive q hold=c max=9",
        expect![[r#"
            x as a
            x as b [MaxDeliveryCountExceeded: failed 1 times; the queue allows 1 (failed_max), from q 1]
            1
            holds one as c until 30000
            y as d, x as e"#]],
    );
}

#[test]
fn an_operator_can_break_a_hold() {
    check(
        "queue q sessions \n send q x s=one \n accept q \n receive q hold=a \n break q s=one \n complete b \n accept q \n facts q",
        expect![[r#"
        holds one as a until 30000
        x as b
        1 lost
        holds one as c until 30000
        ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1"#]],
    );
}

#[test]
fn a_restart_keeps_free_standing_holds_and_ends_connection_bound_ones() {
    check(
        "queue q sessions \n send q x y s=one \n send q z s=two \n accept q \n receive q hold=a \n accept q conn=1 \n restart \n facts q
        complete b \n receive q hold=a \n unhold c \n accept q",
        expect![[r#"
            holds one as a until 30000
            x as b
            holds two as c until 30000
            ready 2 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 1/2 held 1
            y as d
            refused: lease 000000010000000200000001bab12a02 is no longer valid: it expired, was released or was already settled
            holds two as e until 30000"#]],
    );
}

#[test]
fn losing_the_connection_frees_the_session_and_counts() {
    check(
        "queue q sessions \n send q x s=one \n accept q conn=1 \n attach c q hold=a conn=1 credit=1 \n disconnect conn=1 \n accept q \n receive q hold=c",
        expect![[r#"
        holds one as a until 30000
        to c: x as b
        holds one as c until 30000
        x as d (receives 2, failed 1)"#]],
    );
}

#[test]
fn hot_and_cold_sessions_take_turns() {
    check(
        "queue q sessions \n send q h1 h2 h3 s=hot \n send q c1 s=cold \n receive q \n complete a \n receive q \n complete b \n receive q",
        expect![[r#"
            h1 as a
            c1 as b
            h2 as c"#]],
    );
}

#[test]
fn dead_letters_of_a_lost_hold_stay_in_order() {
    check(
        "queue q sessions lock=1000 failed=1 \n send q x y z s=one \n accept q \n receive q hold=a max=3 \n wait 1000
        receive q/$deadletterqueue max=3",
        expect![[r#"
            holds one as a until 1000
            x as b, y as c, z as d
            x as e [MaxDeliveryCountExceeded: failed 1 times; the queue allows 1 (failed_max), from q 1], y as f [MaxDeliveryCountExceeded: failed 1 times; the queue allows 1 (failed_max), from q 2], z as g [MaxDeliveryCountExceeded: failed 1 times; the queue allows 1 (failed_max), from q 3]"#]],
    );
}

#[test]
fn forgotten_sessions_leave_no_gaps_in_a_snapshot() {
    check(
        "queue q sessions
        send q x s=one
        send q y z s=two
        send q v w s=three
        receive q
        complete a
        accept q s=three
        receive q hold=b
        accept q s=two
        receive q hold=d
        defer e
        restart
        deferred q 2 hold=d
        complete f
        receive q hold=d
        complete c
        receive q hold=b
        unhold b
        facts q",
        expect![[r#"
            x as a
            holds three as b until 30000
            v as c
            holds two as d until 30000
            y as e
            y as f (receives 2, failed 0)
            z as g
            w as h
            ready 1 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 1/2 held 1"#]],
    );
}

#[test]
fn sessions_are_listed_in_slices_and_described_by_name() {
    check(
        "queue q sessions
        send q x s=one
        send q y z s=two
        send q v s=three
        sessions q
        sessions q max=2
        sessions q max=2 from=2
        receive q
        complete a
        sessions q max=1
        sessions q from=1000000
        session q s=two
        session q s=one
        queue p
        sessions p",
        expect![[r#"
            one 1, two 2, three 1
            one 1, two 2, more from 2
            three 1
            x as a
            two 2, more from 2

            two 2

            refused: queue `p` has no sessions: declare it with sessions to use them"#]],
    );
}

#[test]
fn a_queue_can_take_the_session_from_a_field() {
    check(
        "queue q sessions from=property:customer \n send q x s=given \n send q a1 a2 prop=customer:a \n send q b1 s=a prop=customer:b
        receive q max=9 \n accept q s=given \n restart \n facts q \n queue k sessions from=key \n queue c sessions from=correlation_id
        send k x key=one \n send c x key=one corr=two \n accept k s=one \n accept c s=two \n queue bad from=key",
        expect![[r#"
            refused: queue `q` requires a session id on every message
            a1 as a, b1 as b
            holds given as c until 30000
            ready 1 locked 2 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/3 held 1
            holds one as d until 30000
            holds two as e until 30000
            refused: session_from: needs a queue with sessions"#]],
    );
}

#[test]
fn queues_of_one_topic_take_different_sessions_from_one_message() {
    check(
        "topic t kind=fanout \n queue k sessions from=key \n queue c sessions from=correlation_id \n queue given sessions \n queue plain
        bind t k \n bind t c \n bind t given \n bind t plain \n send @t x key=one corr=two s=three \n send @t y key=one s=three \n restart
        accept k s=one \n receive k hold=a max=9 \n accept c s=two \n receive c hold=d max=9 \n accept given s=three \n receive given hold=f max=9
        receive plain max=9 \n receive c/$deadletterqueue \n topics",
        expect![[r#"
            4 copies
            4 copies
            holds one as a until 30000
            x as b, y as c
            holds two as d until 30000
            x as e
            holds three as f until 30000
            x as g, y as h
            x as i, y as j
            y as k [Session ID is null.: the queue has sessions, and the message has no session id that it accepts, from c 1]
            t: 4 queues, 4 rules, 0 scheduled, 0 waiting, 8 copies"#]],
    );
}

#[test]
fn dead_letters_take_the_session_of_their_new_queue() {
    check(
        "topic dlx kind=fanout \n queue work dead=topic:dlx \n queue k sessions from=key \n queue c sessions from=correlation_id \n queue plain
        bind dlx k \n bind dlx c \n bind dlx plain \n send work x key=one corr=two \n receive work \n dead a \n restart
        accept k s=one \n receive k hold=b \n accept c s=two \n receive c hold=d \n receive plain \n topics
        complete c e f \n facts k \n facts c \n queue next sessions from=property:p \n untopic dlx \n topic dlx kind=fanout \n bind dlx next
        send work y prop=p:own \n receive work \n dead g \n accept next s=own \n receive next hold=h",
        expect![[r#"
            x as a
            holds one as b until 30000
            x as c
            holds two as d until 30000
            x as e
            x as f
            dlx: 3 queues, 3 rules, 0 scheduled, 0 waiting, 3 copies
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1
            y as g
            holds own as h until 30000
            y as i"#]],
    );
}

#[test]
fn duplicates_are_found_in_the_session_that_the_queue_takes() {
    check(
        "topic t kind=fanout \n queue k sessions from=key dedup=60000 each \n bind t k \n send @t x key=one known=same \n send @t x key=one known=same
        send @t x key=two known=same \n send k x key=two known=same \n send k x key=three known=same \n facts k",
        expect![[r#"
            0 copies
            2 again
            ready 3 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 3/3 held 0"#]],
    );
}
