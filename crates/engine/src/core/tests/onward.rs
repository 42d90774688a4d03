//! Bugs that the simulation found in forwarding, routing and auto-deleted topics.

use expect_test::expect;

use super::{check, check_in};

#[test]
fn a_cycle_through_a_rule_with_an_action_ends() {
    check(
        "topic t \n queue a to=@t \n bind t a where=all do=SET_set:'seen' \n send a x \n facts a \n restart \n receive a/$deadletterqueue",
        expect![[r#"
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/0 held 0
            x as a set=seen [MaxTransferHopCountExceeded: it was forwarded too often: the queues forward in a cycle, from a 5]"#]],
    );
}

#[test]
fn a_changed_dead_letter_does_not_return_to_the_queue_where_it_died() {
    check(
        "topic dlx \n queue p ttl=1000 bury dead=topic:dlx \n queue q ttl=1000 bury dead=topic:dlx \n bind dlx p where=all do=SET_set:'p' \n bind dlx q where=all do=SET_set:'q'
        send p x \n wait 1000 \n facts p \n facts q \n restart \n wait 1000 \n facts p \n facts q \n receive q/$deadletterqueue",
        expect![[r#"
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/0 held 0
            x as a set=q [DeadLetterCycle: its dead-letter targets lead back to a queue that it was dead-lettered from before, from q 2]"#]],
    );
}

#[test]
fn a_queue_that_begins_to_forward_also_forwards_its_backlog() {
    check(
        "queue end \n queue a \n send a x \n update a to=end \n facts a \n receive end \n update a to=later \n send a y \n attach c a \n update a",
        expect![[r#"
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            x as a
            to c: y as b"#]],
    );
}

#[test]
fn forwarding_into_a_full_queue_displaces_old_messages() {
    check(
        "queue end max=1 over=drop \n queue last \n queue full max=1 over=bury dead=last \n queue a to=end \n queue b to=full \n send a x y \n send b v w \n facts end \n facts full \n facts last",
        expect![[r#"
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn forwarding_a_long_queue_takes_several_records() {
    let many: Vec<String> = (0..100).map(|n| format!("send a m{n}")).collect();
    check_in(
        80 << 10,
        &format!(
            "queue a to=end \n {} \n queue end \n wait 1000 \n facts a \n facts end",
            many.join("\n")
        ),
        expect![[r#"
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 100 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn dependents_of_a_deleted_queue_are_deleted_at_once() {
    check(
        "topic t kind=fanout auto \n topic u kind=fanout auto \n queue a \n queue u/Subscriptions/s \n queue u/Subscriptions/idle \n unbind u u/Subscriptions/idle $Default \n bind t u/Subscriptions/s \n bind t a
        attach c u/Subscriptions/idle \n unbind u u/Subscriptions/s $Default \n topics \n facts u/Subscriptions/s \n delete a \n topics",
        expect![[r#"
            to c: ended: queue `u/Subscriptions/idle` does not exist
            t: 1 queues, 1 rules, 0 scheduled, 0 waiting, 0 copies
            refused: queue `u/Subscriptions/s` does not exist"#]],
    );
}

#[test]
fn deleting_a_topic_and_its_subscriptions_is_atomic() {
    check(
        "topic t auto \n queue t/Subscriptions/a \n queue t/Subscriptions/b \n attach c t/Subscriptions/b \n full \n untopic t \n facts t/Subscriptions/a \n room \n untopic t \n topics \n facts t/Subscriptions/a \n restart \n topics",
        expect![[r#"
            refused: the disk is full: sending is refused until space is freed; receiving and settling still work
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            to c: ended: queue `t/Subscriptions/b` does not exist

            refused: queue `t/Subscriptions/a` does not exist"#]],
    );
}
