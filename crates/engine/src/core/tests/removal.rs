//! Purging messages, completing messages whose leases have ended, and what is remembered of them.

use expect_test::expect;

use super::check;

#[test]
fn a_purge_of_all_ends_the_leases() {
    check(
        "queue q
         send q one
         send q two
         send q three delay=5000
         send q four at=9000
         receive q
         purge q all
         facts q
         complete a
         wait 60000
         facts q
         totals q
         send q five
         receive q
         restart
         facts q",
        expect![[r#"
            one as a
            4
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            1 lost
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            sent 4, delivered 1
            five as b
            ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_purge_of_all_unlocks_sessions_and_keeps_explicit_holds() {
    check(
        "queue q sessions
         send q one s=a
         send q two s=a
         send q three s=b
         receive q
         accept q s=b
         receive q hold=b
         purge q all
         facts q
         send q four s=a
         send q five s=b
         receive q
         receive q hold=b
         complete a
         complete c
         complete d
         restart
         facts q",
        expect![[r#"
            one as a
            holds b as b until 30000
            three as c
            3
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1
            four as d
            five as e
            1 lost
            1 lost
            ready 0 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1"#]],
    );
}

#[test]
fn a_purge_of_all_forgets_dedup_keys() {
    check(
        "queue q dedup=9000 \n send q x \n send q x \n purge q \n send q x \n purge q all \n send q x \n restart \n send q x",
        expect![[r#"
            1 again
            1
            1 again
            0
            2 again"#]],
    );
}

#[test]
fn a_purge_of_all_is_as_durable_as_its_queue() {
    check(
        "queue q
         send q one
         receive q
         waits purge q all
         queue r relaxed
         send r one
         receive r
         waits purge r all",
        expect![[r#"
            one as a
            waits: 1
            one as b
            at once: 1"#]],
    );
}

#[test]
fn messages_purged_by_number_are_removed_unless_leased() {
    check(
        "queue q
         send q one two three
         receive q
         purge q 1 2 9
         peek q
         complete a
         facts q
         queue s sessions
         send s one s=a
         send s two s=a
         receive s
         purge s 1 2 s=a
         peek s
         complete b
         send s three s=a
         purge s 3 s=a
         facts s
         send s four s=a
         receive s
         totals s",
        expect![[r#"
            one as a
            1
            1 locked, 3 ready
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            one as b
            1
            1 locked
            1
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            four as c
            sent 4, delivered 2, completed 1"#]],
    );
}

#[test]
fn a_late_completion_succeeds_unless_the_message_was_leased_again() {
    check(
        "queue q lock=1000
         send q one two
         receive q
         wait 1500
         complete a
         late q 1
         facts q
         late q 1
         late q 2
         receive q
         wait 1500
         receive q
         late q 2
         complete c
         totals q",
        expect![[r#"
            one as a
            1 lost
            1
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            0
            0
            two as b
            two as c (receives 2, failed 1)
            0
            sent 2, delivered 3, redelivered 1, completed 2, lost 2"#]],
    );
}

#[test]
fn a_late_completion_of_an_older_lease_or_in_a_session_is_refused() {
    check(
        "queue q lock=1000
         send q one
         receive q
         wait 1500
         delete q
         queue q lock=1000
         send q two
         receive q
         wait 1500
         late q 1 since=10
         late q 1
         queue s sessions lock=1000
         send s one s=a
         receive s
         wait 1500
         late s 1",
        expect![[r#"
            one as a
            two as b
            0
            1
            one as c
            refused: queue `s` has sessions: a message there is completed by its lease only"#]],
    );
}

#[test]
fn the_time_of_the_first_grant_survives_a_restart() {
    check(
        "queue q lock=1000
         wait 50
         send q one
         firsts receive q
         wait 1500
         firsts receive q
         restart
         wait 1500
         firsts receive q",
        expect![[r#"
            one as a first at 50
            one as b (receives 2, failed 1) first at 50
            one as c (receives 3, failed 2) first at 50"#]],
    );
}

#[test]
fn a_duplicate_gets_the_id_of_the_first_message() {
    check(
        "queue q dedup=5000
         send q one known=k id=01890a5d-ac96-774b-bcce-b302099a8057
         receive q take
         send q two known=k id=01890a5d-ac96-774b-bcce-b302099a8058
         restart
         send q two known=k id=01890a5d-ac96-774b-bcce-b302099a8059
         send q three known=own id=mine
         send q four known=own id=01890a5d-ac96-774b-bcce-b302099a805a
         topic t dedup=5000
         bind t q
         send @t five known=t id=01890a5d-ac96-774b-bcce-b302099a805b
         send @t six known=t id=01890a5d-ac96-774b-bcce-b302099a805c
         wait 6000
         send q seven known=k id=01890a5d-ac96-774b-bcce-b302099a8060
         facts q",
        expect![[r#"
            one called 01890a5d-ac96-774b-bcce-b302099a8057
            1 again, as 1890a5dac96774bbcceb302099a8057
            1 again, as 1890a5dac96774bbcceb302099a8057
            2 again
            0 again, as 1890a5dac96774bbcceb302099a805b
            ready 3 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn dead_letters_can_keep_their_age() {
    check(
        "queue graves ttl=10000
         queue young failed=1 dead=graves ttl=60000
         queue old failed=1 dead=graves ttl=60000 aged
         send young one
         send old two
         wait 6000
         receive young
         abandon a
         receive old
         abandon b
         facts graves
         wait 4000
         facts graves
         restart
         wait 6000
         facts graves
         send old three
         wait 20000
         receive old
         abandon c
         wait 1
         facts graves",
        expect![[r#"
            one as a
            two as b
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            three as c
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_message_can_be_moved_under_a_new_id() {
    check(
        "queue q failed=1
         send q one two
         receive q
         abandon a
         receive q
         abandon b
         redrive q/$deadletterqueue 1 id=anew
         redrive q/$deadletterqueue 2
         receive q max=2
         restart
         abandon d
         receive q/$deadletterqueue",
        expect![[r#"
            one as a
            two as b
            1
            1
            one as c called anew, two as d
            two as e [MaxDeliveryCountExceeded: failed 1 times; the queue allows 1 (failed_max), from q 4]"#]],
    );
}

#[test]
fn the_state_of_a_session_has_its_time() {
    check(
        "queue q sessions
         accept q s=a
         accept q s=b
         wait 100
         state a to=x
         wait 100
         state b to=y
         unhold a
         sessions q
         restart
         sessions q
         accept q s=a
         state c
         sessions q",
        expect![[r#"
            holds a as a until 30000
            holds b as b until 30000
            a 0 state at 100, b 0 state at 200
            a 0 state at 100, b 0 state at 200
            holds a as c until 30200
            a 0, b 0 state at 200"#]],
    );
}
