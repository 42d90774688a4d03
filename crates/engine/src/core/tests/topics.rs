//! Topics, forwarding, and dead letters that go through topics.

use expect_test::expect;

use super::check;
use super::world::World;
use crate::journal::SEGMENT_BYTES_MAX;

#[test]
fn every_queue_with_a_matching_rule_has_a_copy() {
    check(
        "topic t kind=topic \n queue a \n queue b \n bind t a where=pattern:x.* \n bind t a where=pattern:# \n bind t b where=pattern:*.y
        send @t one key=x.y \n send @t two key=z \n receive a max=9 \n receive b max=9 \n topics \n rules t
        complete a b c \n topics \n restart \n send @t three key=q.y \n receive a \n receive b",
        expect![[r#"
            2 copies
            one as a, two as b
            one as c
            t: 2 queues, 3 rules, 0 scheduled, 0 waiting, 3 copies
            a pattern:#; a pattern:x.*; b pattern:*.y
            t: 2 queues, 3 rules, 0 scheduled, 0 waiting, 3 copies
            2 copies
            three as d
            three as e"#]],
    );
}

#[test]
fn labels_of_a_topic_survive_a_restart_and_do_not_affect_waiting_messages() {
    check(
        "topic t \n queue t/Subscriptions/s \n send @t x at=50 \n label t colour red \n topics \n restart \n topics
        label t size big \n topics \n label no a b \n wait 60 \n receive t/Subscriptions/s",
        expect![[r#"
            t: 1 queues, 1 rules, 1 scheduled, 0 waiting, 0 copies, colour: red
            t: 1 queues, 1 rules, 1 scheduled, 0 waiting, 0 copies, colour: red
            t: 1 queues, 1 rules, 1 scheduled, 0 waiting, 0 copies, size: big
            refused: topic `no` does not exist
            x as a"#]],
    );
}

#[test]
fn replacing_a_rule_is_atomic() {
    check(
        "topic t \n queue t/Subscriptions/s where=subject:red name=r \n rebind t t/Subscriptions/s where=subject:blue name=r
        rules t \n topics \n send @t x subject=red \n send @t y subject=blue \n restart \n rules t \n send @t z subject=blue
        rebind t t/Subscriptions/s where=all name=other \n receive t/Subscriptions/s max=9",
        expect![[r#"
            t/Subscriptions/s r
            t: 1 queues, 1 rules, 0 scheduled, 0 waiting, 0 copies
            0 copies
            t/Subscriptions/s r
            refused: queue `t/Subscriptions/s` has no rule `other` on topic `t`
            y as a, z as b"#]],
    );
}

#[test]
fn an_unroutable_message_is_reported() {
    check(
        "topic t kind=direct \n queue a \n bind t a where=key:k \n send @t x key=other \n send @t y key=k \n facts a \n send @no z",
        expect![[r#"
            0 copies
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            refused: topic `no` does not exist"#]],
    );
}

#[test]
fn one_full_queue_refuses_all_copies() {
    check(
        "topic t kind=fanout \n queue a \n queue b max=1 \n bind t a \n bind t b \n send @t x \n send @t y \n facts a \n facts b",
        expect![[r#"
            2 copies
            refused: queue `b` is full (length_max = 1): receive from it, or raise length_max
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_subscription_has_rules_and_is_deleted_with_its_topic() {
    check(
        "topic t \n queue t/Subscriptions/all \n queue t/Subscriptions/red where=subject:red \n queue t/Subscriptions/sql where=sql:colour_=_'blue'
        send @t x subject=red \n send @t y prop=colour:blue \n rules t \n receive t/Subscriptions/all max=9 \n receive t/Subscriptions/red max=9 \n receive t/Subscriptions/sql max=9
        unbind t t/Subscriptions/red subject:red \n unbind t t/Subscriptions/red subject:red \n rules t \n queue q \n bind t q \n untopic t \n facts t/Subscriptions/all \n facts q \n topics",
        expect![[r#"
            2 copies
            2 copies
            t/Subscriptions/all $Default; t/Subscriptions/red subject:red; t/Subscriptions/sql sql:colour_=_'blue'
            x as a, y as b
            x as c
            y as d
            refused: queue `t/Subscriptions/red` has no rule `subject:red` on topic `t`
            t/Subscriptions/all $Default; t/Subscriptions/sql sql:colour_=_'blue'
            refused: queue `t/Subscriptions/all` does not exist
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_rule_with_an_action_makes_its_own_copy() {
    check(
        "topic t \n queue t/Subscriptions/s \n bind t t/Subscriptions/s where=subject:red do=SET_set:'seen' \n send @t x subject=red \n receive t/Subscriptions/s max=9
        complete a \n restart \n complete b \n queue t/Subscriptions/only where=all do=SET_set:'only' \n send @t y \n receive t/Subscriptions/only \n receive t/Subscriptions/s",
        expect![[r#"
            2 copies
            x as a, x as b set=seen
            2 copies
            y as c set=only
            y as d"#]],
    );
}

#[test]
fn copies_are_ordered_by_session_in_queues_with_sessions() {
    check(
        "topic t \n queue t/Subscriptions/s sessions \n queue t/Subscriptions/p \n send @t x y s=A \n send @t z \n accept t/Subscriptions/s \n receive t/Subscriptions/s hold=a max=9
        receive t/Subscriptions/p max=9 \n receive t/Subscriptions/s/$deadletterqueue max=9",
        expect![[r#"
            2 copies, 2 copies
            2 copies
            holds A as a until 30000
            x as b, y as c
            x as d, y as e, z as f
            z as g [Session ID is null.: the queue has sessions, and the message has no session id that it accepts, from t/Subscriptions/s 1]"#]],
    );
}

#[test]
fn a_scheduled_message_is_routed_when_it_is_due() {
    check(
        "topic t \n queue t/Subscriptions/a \n send @t x at=1000 subject=red \n send @t gone at=1000 \n topics \n queue t/Subscriptions/b where=subject:red
        cancel @t 2 \n restart \n wait 1000 \n receive t/Subscriptions/a max=9 \n receive t/Subscriptions/b max=9 \n topics",
        expect![[r#"
            t: 1 queues, 1 rules, 2 scheduled, 0 waiting, 0 copies
            1
            x as a
            x as b
            t: 2 queues, 2 rules, 0 scheduled, 0 waiting, 2 copies"#]],
    );
}

#[test]
fn a_topic_can_detect_duplicates() {
    check(
        "topic t dedup=1000 \n queue t/Subscriptions/a \n send @t x x \n send @t x \n restart \n send @t x \n wait 1000 \n send @t x \n facts t/Subscriptions/a",
        expect![[r#"
            0, 0 again
            0 again
            0 again
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn dead_letters_go_through_a_topic() {
    check(
        "topic dlx kind=direct \n queue graves \n bind dlx graves where=key:dead \n queue q failed=1 dead=topic:dlx:dead ttl=5000 \n send q x y prio=3 \n receive q \n abandon a \n receive q \n dead b
        receive graves max=9 \n topics \n facts q \n send q z \n wait 5000 \n facts graves",
        expect![[r#"
            x as a
            y as b
            x as c, y as d
            dlx: 1 queues, 1 rules, 0 scheduled, 0 waiting, 2 copies
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 2 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_dead_letter_without_a_matching_rule_stays_in_its_queue() {
    check(
        "topic dlx kind=direct \n queue q failed=1 dead=topic:dlx:dead \n send q x \n receive q \n abandon a \n receive q/$deadletterqueue \n topics
        queue p failed=1 dead=topic:gone \n send p x \n receive p \n abandon c \n receive p/$deadletterqueue",
        expect![[r#"
            x as a
            x as b [DeadLetterUnroutable: no rule of the dead-letter topic matches it, from q 1]
            dlx: 0 queues, 0 rules, 0 scheduled, 0 waiting, 0 copies
            x as c
            x as d [MaxDeliveryCountExceeded: failed 1 times; the queue allows 1 (failed_max), from p 1]"#]],
    );
}

#[test]
fn a_cycle_without_a_receiver_is_cut() {
    check(
        "topic dlx kind=fanout \n queue q ttl=1000 bury dead=topic:dlx \n bind dlx q \n send q x \n wait 1000 \n facts q \n receive q/$deadletterqueue
        queue a \n queue b ttl=1000 bury dead=a \n queue c ttl=1000 bury dead=b \n send c y \n wait 1000 \n facts b \n wait 1000 \n receive a",
        expect![[r#"
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/0 held 0
            x as a [DeadLetterCycle: its dead-letter targets lead back to a queue that it was dead-lettered from before, from q 1]
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            y as b [TTLExpiredException: its time to live was over, from b 1]"#]],
    );
}

#[test]
fn a_cycle_with_a_receiver_continues() {
    check(
        "topic dlx kind=direct \n topic back kind=direct \n queue work dead=topic:dlx:retry \n queue retry ttl=1000 bury dead=topic:back:work \n bind dlx retry where=key:retry \n bind back work where=key:work
        send work x \n receive work \n dead a \n facts retry \n wait 1000 \n receive work \n dead b \n wait 1000 \n receive work \n restart \n complete c \n facts work",
        expect![[r#"
            x as a
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            x as b
            x as c
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_queue_forwards_to_a_queue_or_a_topic() {
    check(
        "topic t \n queue t/Subscriptions/s where=subject:red \n queue end sessions \n queue a to=end \n queue b to=@t \n send a x s=A \n send a y \n send b z subject=red \n send b w
        accept end \n receive end hold=a max=9 \n receive a/$deadletterqueue \n receive t/Subscriptions/s max=9 \n facts b",
        expect![[r#"
            holds A as a until 30000
            x as b
            y as c [Session ID is null.: the queue has sessions, and the message has no session id that it accepts, from a 2]
            z as d
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn forwarding_waits_for_its_target_and_cycles_end() {
    check(
        "queue a to=later \n send a x \n facts a \n queue later max=1 \n wait 1000 \n facts later \n send a y \n facts a \n receive later \n complete a \n wait 1000 \n facts later
        queue c to=b \n queue b to=c \n send b z \n receive b/$deadletterqueue \n receive c/$deadletterqueue",
        expect![[r#"
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            x as a
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            z as b [MaxTransferHopCountExceeded: it was forwarded too often: the queues forward in a cycle, from b 3]
            nothing"#]],
    );
}

#[test]
fn queues_and_topics_are_deleted_with_their_owner() {
    check(
        "topic t kind=fanout auto \n queue a \n bind t a \n delete a \n topics \n topic u kind=fanout auto \n queue b \n bind u b \n unbind u b all \n topics \n queue t/Subscriptions/x",
        expect![[r#"


            refused: topic `t` does not exist"#]],
    );
}

#[test]
fn forwarding_that_waits_continues_after_a_restart() {
    check(
        "queue a to=later \n send a x \n restart \n queue later \n wait 1000 \n facts a \n receive later",
        expect![[r#"
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            x as a"#]],
    );
}

#[test]
fn several_copies_without_a_session_are_dead_lettered() {
    check(
        "topic t \n queue t/Subscriptions/s sessions \n bind t t/Subscriptions/s where=all do=SET_x:1 \n send @t now \n send @t later at=1000 \n wait 1000
        facts t/Subscriptions/s \n restart \n receive t/Subscriptions/s/$deadletterqueue max=9",
        expect![[r#"
            2 copies
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 4 sessions 0/0 held 0
            now as a [Session ID is null.: the queue has sessions, and the message has no session id that it accepts, from t/Subscriptions/s 1], now as b [Session ID is null.: the queue has sessions, and the message has no session id that it accepts, from t/Subscriptions/s 2], later as c [Session ID is null.: the queue has sessions, and the message has no session id that it accepts, from t/Subscriptions/s 5], later as d [Session ID is null.: the queue has sessions, and the message has no session id that it accepts, from t/Subscriptions/s 6]"#]],
    );
}

#[test]
fn the_session_of_a_dead_letter_takes_effect_in_its_target() {
    check(
        "topic t \n queue t/Subscriptions/s sessions \n queue q dead=topic:t \n send q x s=A \n receive q \n dead a \n accept t/Subscriptions/s \n receive t/Subscriptions/s hold=b",
        expect![[r#"
            x as a
            holds A as b until 30000
            x as c"#]],
    );
}

#[test]
fn a_duplicate_copy_needs_no_space() {
    check(
        "topic t kind=fanout \n queue q max=1 dedup=1000 \n bind t q \n send @t x \n send @t x \n send @t y",
        expect![[r#"
            0 copies
            refused: queue `q` is full (length_max = 1): receive from it, or raise length_max"#]],
    );
}

#[test]
fn forwarding_paths_are_remembered_in_sessions() {
    check(
        "topic dlx kind=fanout \n queue p sessions ttl=1000 bury dead=topic:dlx \n queue q sessions ttl=1000 bury dead=topic:dlx \n bind dlx p \n bind dlx q
        send p x s=A \n wait 1000 \n facts q \n restart \n wait 1000 \n facts p \n facts q",
        expect![[r#"
            ready 1 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 1/1 held 0
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 1 sessions 0/0 held 0"#]],
    );
}

#[test]
fn copies_that_share_a_record_need_its_space_once() {
    let mut world = World::new(SEGMENT_BYTES_MAX);
    let mut run = |script: &str| {
        script.split(" | ").for_each(|step| world.step(step));
        world.live()
    };
    run("topic t kind=fanout | queue a | queue b | queue c | bind t a | bind t b | bind t c");
    let (records, bytes, counted) = run("send @t x");
    assert_eq!((records, counted), (1, 3 * bytes));
    // Two copies still use it, and then one.
    assert_eq!(run("receive a | complete a"), (1, bytes, 2 * bytes));
    let dead = run("receive b | dead b");
    assert_eq!((dead.0, dead.2), (2, 2 * bytes));
    assert_eq!(run("receive c | complete c").0, 2);
    // Not shared: each of these has its own record.
    assert_eq!(run("send b y | send c y").0, 4);
}

#[test]
fn a_name_in_another_case_resolves_to_the_declared_spelling() {
    check(
        "queue Admin-q \n topic Sales \n queue Sales/Subscriptions/Audit \n queue two \n queue TWO
        resolve Admin-q \n resolve aDMIN-Q \n resolve sales \n resolve SALES/Subscriptions/audit \n resolve Two
        resolve two \n resolve admin \n delete Admin-q \n resolve admin-q",
        expect![[r#"
            queue Admin-q
            queue Admin-q
            topic Sales
            queue Sales/Subscriptions/Audit
            several are spelled so
            queue two
            no such name
            no such name"#]],
    );
}
