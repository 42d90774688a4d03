//! Rules between topics, alternate and hash topics, several routing keys, consumers with priorities, and queues that do not
//! survive a restart.

use expect_test::expect;

use super::check;

#[test]
fn a_rule_can_lead_to_another_topic_and_cycles_end() {
    check(
        "topic a kind=topic \n topic b kind=direct \n queue q \n queue r \n bind a @b where=pattern:x.# name=on
        bind b q where=key:x.y \n bind a q where=pattern:# \n bind b r where=key:x.y
        send @a one key=x.y \n send @a two key=z \n receive q max=9 \n receive r max=9
        bind b @a where=key:x.y name=back \n send @b three key=x.y \n receive q max=9 \n receive r max=9 \n rules a \n restart
        send @a four key=x.y \n untopic b \n send @a five key=x.y \n receive q max=9 \n rules a",
        expect![[r#"
            2 copies
            one as a, two as b
            one as c
            2 copies
            three as d
            three as e
            q pattern:#; topic:b on
            2 copies
            four as f, five as g
            q pattern:#"#]],
    );
}

#[test]
fn an_auto_delete_topic_is_deleted_with_the_topic_it_leads_to() {
    check(
        "topic a kind=fanout auto \n topic b kind=fanout \n bind a @b name=r \n topics \n restart \n untopic b \n topics",
        expect![
            "a: 1 queues, 1 rules, 0 scheduled, 0 waiting, 0 copies; b: 0 queues, 0 rules, 0 scheduled, 0 waiting, 0 copies"
        ],
    );
}

#[test]
fn an_alternate_topic_gets_what_no_rule_matches() {
    check(
        "topic rest kind=fanout \n topic t kind=direct alternate=rest \n queue q \n queue r \n bind t q where=key:k \n bind rest r
        send @t one key=k \n send @t two key=other \n receive q max=9 \n receive r max=9
        topic loop kind=direct alternate=loop \n send @loop x key=k \n topic lost kind=direct alternate=none \n send @lost y key=k",
        expect![[r#"
            one as a
            two as b
            0 copies
            0 copies"#]],
    );
}

#[test]
fn a_hash_topic_sends_equal_keys_to_the_same_queue() {
    check(
        "topic t kind=hash \n queue q \n queue r \n send @t zero key=a \n bind t q where=weight:1 \n bind t r where=weight:1
        send @t one key=a \n send @t two key=b \n send @t three key=a \n send @t four key=c \n send @t five key=b
        receive q max=9 \n receive r max=9 \n bind t q where=weight:2000 \n bind t q where=key:x \n restart \n send @t six key=a
        receive q \n receive r",
        expect![[r#"
            0 copies
            four as a
            one as b, two as c, three as d, five as e
            refused: filter: a weight must be from 0 to 1000
            refused: filter: must be a weight on a hash topic, not key
            nothing
            six as f"#]],
    );
}

#[test]
fn a_message_is_routed_by_each_of_its_keys_and_copied_once() {
    check(
        "topic t kind=direct \n queue a \n queue b \n queue c \n bind t a where=key:1 \n bind t b where=key:2 \n bind t c where=key:3
        bind t a where=key:2 name=too \n send @t x key=1 also=2 blind=3 \n receive a max=9 \n receive b \n receive c",
        expect![[r#"
            3 copies
            x as a
            x as b
            x as c"#]],
    );
}

#[test]
fn one_consumer_is_active_at_a_time() {
    check(
        "queue q single \n attach c q credit=2 \n attach d q credit=9 \n send q 1 2 3 \n detach c \n send q 4 \n attach e q credit=9 priority=5
        send q 5 \n receive q",
        expect![[r#"
            to c: 1 as a, 2 as b
            to d: 3 as c
            to d: 4 as d
            to e: 5 as e
            nothing"#]],
    );
}

#[test]
fn a_consumer_with_a_higher_priority_is_served_first() {
    check(
        "queue q \n attach c q credit=9 \n attach d q credit=2 priority=1 \n attach e q credit=9 \n send q 1 \n send q 2 \n send q 3 \n send q 4",
        expect![[r#"
            to d: 1 as a
            to d: 2 as b
            to c: 3 as c
            to e: 4 as d"#]],
    );
}

#[test]
fn transient_queues_and_topics_end_with_a_restart() {
    check(
        "queue q transient \n queue r \n topic t kind=fanout transient \n topic u kind=fanout \n bind u q \n bind t r \n send q x \n restart
        facts q \n facts r \n topics",
        expect![[r#"
            refused: queue `q` does not exist
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            u: 0 queues, 0 rules, 0 scheduled, 0 waiting, 0 copies"#]],
    );
}

#[test]
fn a_full_queue_can_dead_letter_new_messages() {
    check(
        "topic dead kind=fanout \n queue grave \n bind dead grave \n queue q max=1 over=newest dead=topic:dead \n send q one \n send q two
        receive q max=9 \n receive grave max=9 \n topic t kind=fanout \n bind t q \n send @t three four \n receive q max=9 \n receive grave max=9",
        expect![[r#"
            one as a
            two as b
            three as c
            four as d"#]],
    );
}

#[test]
fn dead_letters_without_a_destination_can_be_discarded() {
    check(
        "queue q discard dead=drop \n send q x \n receive q \n dead a \n facts q
        topic none kind=direct \n queue r discard dead=topic:none \n send r y \n receive r \n dead b \n facts r
        queue s discard dead=topic:missing \n send s z \n receive s \n dead c \n facts s
        topic back kind=fanout \n queue t discard bury ttl=10 dead=topic:back \n bind back t \n send t w \n wait 20 \n facts t",
        expect![[r#"
            x as a
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            y as b
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            z as c
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_queue_topic_sends_to_the_queue_that_the_key_names() {
    check(
        "topic by kind=queue \n topic x/by kind=queue \n queue q \n queue x/q \n send @by one key=q \n send @x/by two key=q \n send @by three key=none
        receive q max=9 \n receive x/q max=9 \n bind by q where=key:q \n queue w dead=topic:by:q discard \n send w four \n receive w \n dead c \n receive q",
        expect![[r#"
            0 copies
            one as a
            two as b
            refused: filter: must be absent on a queue topic, not key
            four as c
            four as d"#]],
    );
}
