//! Queues and topics that an operator disabled.

use expect_test::expect;

use super::check;

#[test]
fn a_disabled_queue_accepts_and_delivers_nothing() {
    check(
        "queue q
         send q one two
         receive q
         update q status=disabled
         send q three
         receive q
         deferred q 1
         peek q
         complete a
         restart
         receive q
         update q status=send
         receive q
         send q four
         update q status=receive
         send q five
         receive q
         update q
         receive q",
        expect![[r#"
            one as a
            refused: queue `q` is disabled: nothing can be sent to it
            refused: queue `q` is disabled: nothing can be received from it
            refused: queue `q` is disabled: nothing can be received from it
            1 locked, 2 ready
            refused: queue `q` is disabled: nothing can be received from it
            two as b
            refused: queue `q` is send_disabled: nothing can be sent to it
            refused: queue `q` is receive_disabled: nothing can be received from it
            five as c"#]],
    );
}

#[test]
fn consumers_of_a_queue_that_is_disabled_are_notified() {
    check(
        "queue q
         attach reader q conn=1
         receive q wait=1000
         update q status=receive
         send q one
         credit reader 5
         attach late q conn=1
         update q status=send
         attach again q conn=1
         queue s sessions
         accept s s=a conn=2
         attach held s hold=b conn=2
         update s sessions status=disabled
         accept s s=b
         update s sessions
         send s one s=a
         attach held s hold=b conn=2",
        expect![[r#"
            to reader: ended: queue `q` is receive_disabled: nothing can be received from it
            refused: queue `q` is receive_disabled: nothing can be received from it
            0
            refused: queue `q` is receive_disabled: nothing can be received from it
            to again: one as a
            holds a as b until 30000
            to held: ended: queue `s` is disabled: nothing can be received from it
            refused: queue `s` is disabled: nothing can be received from it
            to held: one as c"#]],
    );
}

#[test]
fn a_disabled_queue_still_accepts_messages_from_the_broker() {
    check(
        "topic t
         queue graves
         queue q failed=1 dead=graves
         queue on to=graves
         bind t graves
         update graves status=disabled
         send @t one
         send q two
         receive q
         abandon a
         send on three
         facts graves
         send graves four",
        expect![[r#"
            two as a
            ready 3 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            refused: queue `graves` is disabled: nothing can be sent to it"#]],
    );
}

#[test]
fn a_disabled_topic_accepts_nothing() {
    check(
        "queue q
         topic t dedup=1000
         bind t q
         retopic t dedup=1000 status=send
         send @t one
         restart
         send @t one
         retopic t kind=fanout
         retopic t
         send @t one known=a
         send @t one known=a
         facts q",
        expect![[r#"
            refused: topic `t` is send_disabled: nothing can be sent to it
            refused: topic `t` is send_disabled: nothing can be sent to it
            refused: topic `t` already exists with kind = filter, not fanout: declare it with its current settings, or delete it first
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}
