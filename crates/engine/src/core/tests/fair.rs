//! Tenants of a queue without sessions: noisy tenants are served after the others.

use expect_test::{Expect, expect};

use super::check;
use super::script::name_of;

/// Runs a script in which `A1..40` stands for forty bodies, and `a..d1` for the thirty names from `a` on.
fn check_many(script: &str, expect: Expect) {
    let word = |word: &str| {
        let Some((first, last)) = word.split_once("..") else { return word.to_owned() };
        let names: Vec<String> = match first.trim_start_matches(char::is_alphabetic).parse() {
            Ok(from) => {
                let letters = first.trim_end_matches(char::is_numeric);
                (from..=last.parse::<u64>().unwrap()).map(|n| format!("{letters}{n}")).collect()
            }
            Err(_) => {
                let nth = |name: &str| (0..200).find(|&nth| name_of(nth) == name).unwrap();
                (nth(first)..=nth(last)).map(name_of).collect()
            }
        };
        names.join(" ")
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    check(&script.lines().map(line).collect::<Vec<_>>().join("\n"), expect);
}

#[test]
fn a_quiet_tenant_overtakes_the_backlog_of_a_noisy_one() {
    check_many(
        "queue q fair \n send q A1..40 s=A \n receive q max=30
        send q B1 B2 s=B \n send q x \n send q A41 s=A \n receive q max=5 \n facts q",
        expect![[r#"
            A1 as a, A2 as b, A3 as c, A4 as d, A5 as e, A6 as f, A7 as g, A8 as h, A9 as i, A10 as j, A11 as k, A12 as l, A13 as m, A14 as n, A15 as o, A16 as p, A17 as q, A18 as r, A19 as s, A20 as t, A21 as u, A22 as v, A23 as w, A24 as x, A25 as y, A26 as z, A27 as a1, A28 as b1, A29 as c1, A30 as d1
            B1 as e1, B2 as f1, x as g1, A31 as h1, A32 as i1
            ready 9 locked 35 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn below_the_threshold_no_tenant_is_noisy() {
    check_many(
        "queue q fair \n send q A1..32 s=A \n receive q max=28 \n send q B1 s=B \n receive q max=4",
        expect![[r#"
            A1 as a, A2 as b, A3 as c, A4 as d, A5 as e, A6 as f, A7 as g, A8 as h, A9 as i, A10 as j, A11 as k, A12 as l, A13 as m, A14 as n, A15 as o, A16 as p, A17 as q, A18 as r, A19 as s, A20 as t, A21 as u, A22 as v, A23 as w, A24 as x, A25 as y, A26 as z, A27 as a1, A28 as b1
            A29 as c1, A30 as d1, B1 as e1, A31 as f1"#]],
    );
}

#[test]
fn a_noisy_tenant_without_competition_is_not_limited() {
    check_many(
        "queue q fair \n send q A1..35 s=A \n receive q max=30 \n receive q max=3 \n receive q max=9 \n receive q",
        expect![[r#"
            A1 as a, A2 as b, A3 as c, A4 as d, A5 as e, A6 as f, A7 as g, A8 as h, A9 as i, A10 as j, A11 as k, A12 as l, A13 as m, A14 as n, A15 as o, A16 as p, A17 as q, A18 as r, A19 as s, A20 as t, A21 as u, A22 as v, A23 as w, A24 as x, A25 as y, A26 as z, A27 as a1, A28 as b1, A29 as c1, A30 as d1
            A31 as e1, A32 as f1, A33 as g1
            A34 as h1, A35 as i1
            nothing"#]],
    );
}

#[test]
fn the_noisy_tenant_with_the_fewest_outstanding_messages_comes_first() {
    check_many(
        "queue q fair \n send q A1..40 s=A \n receive q max=33 \n send q B1..40 s=B \n receive q max=31
        receive q max=6",
        expect![[r#"
            A1 as a, A2 as b, A3 as c, A4 as d, A5 as e, A6 as f, A7 as g, A8 as h, A9 as i, A10 as j, A11 as k, A12 as l, A13 as m, A14 as n, A15 as o, A16 as p, A17 as q, A18 as r, A19 as s, A20 as t, A21 as u, A22 as v, A23 as w, A24 as x, A25 as y, A26 as z, A27 as a1, A28 as b1, A29 as c1, A30 as d1, A31 as e1, A32 as f1, A33 as g1
            B1 as h1, B2 as i1, B3 as j1, B4 as k1, B5 as l1, B6 as m1, B7 as n1, B8 as o1, B9 as p1, B10 as q1, B11 as r1, B12 as s1, B13 as t1, B14 as u1, B15 as v1, B16 as w1, B17 as x1, B18 as y1, B19 as z1, B20 as a2, B21 as b2, B22 as c2, B23 as d2, B24 as e2, B25 as f2, B26 as g2, B27 as h2, B28 as i2, B29 as j2, B30 as k2, B31 as l2
            B32 as m2, B33 as n2, A34 as o2, B34 as p2, A35 as q2, B35 as r2"#]],
    );
}

#[test]
fn messages_without_a_tenant_are_never_noisy() {
    check_many(
        "queue q fair \n send q A1 s=A \n send q x1..40 \n receive q max=36 \n send q B1 s=B \n receive q max=9",
        expect![[r#"
            A1 as a, x1 as b, x2 as c, x3 as d, x4 as e, x5 as f, x6 as g, x7 as h, x8 as i, x9 as j, x10 as k, x11 as l, x12 as m, x13 as n, x14 as o, x15 as p, x16 as q, x17 as r, x18 as s, x19 as t, x20 as u, x21 as v, x22 as w, x23 as x, x24 as y, x25 as z, x26 as a1, x27 as b1, x28 as c1, x29 as d1, x30 as e1, x31 as f1, x32 as g1, x33 as h1, x34 as i1, x35 as j1
            x36 as k1, x37 as l1, x38 as m1, x39 as n1, x40 as o1, B1 as p1"#]],
    );
}

#[test]
fn messages_sent_before_a_queue_was_fair_keep_their_position() {
    check_many(
        "queue q fair lock=1000 \n send q w \n send q v delay=500 \n send q x y \n receive q \n send q A1..33 s=A
        receive q max=33 \n send q B1 s=B \n wait 500 \n receive q max=2 \n wait 500 \n receive q max=4",
        expect![[r#"
            w as a
            x as b, y as c, A1 as d, A2 as e, A3 as f, A4 as g, A5 as h, A6 as i, A7 as j, A8 as k, A9 as l, A10 as m, A11 as n, A12 as o, A13 as p, A14 as q, A15 as r, A16 as s, A17 as t, A18 as u, A19 as v, A20 as w, A21 as x, A22 as y, A23 as z, A24 as a1, A25 as b1, A26 as c1, A27 as d1, A28 as e1, A29 as f1, A30 as g1, A31 as h1
            v as i1, B1 as j1
            w as k1 (receives 2, failed 1), x as l1 (receives 2, failed 1), y as m1 (receives 2, failed 1), A1 as n1 (receives 2, failed 1)"#]],
    );
}

#[test]
fn a_tenant_is_quiet_again_after_its_locks_expired() {
    check_many(
        "queue q fair lock=1000 \n send q A1..31 s=A \n receive q max=30 \n send q B1 s=B \n receive q lock=9000
        wait 1000 \n send q B2 s=B \n receive q max=3 \n receive q max=40",
        expect![[r#"
            A1 as a, A2 as b, A3 as c, A4 as d, A5 as e, A6 as f, A7 as g, A8 as h, A9 as i, A10 as j, A11 as k, A12 as l, A13 as m, A14 as n, A15 as o, A16 as p, A17 as q, A18 as r, A19 as s, A20 as t, A21 as u, A22 as v, A23 as w, A24 as x, A25 as y, A26 as z, A27 as a1, A28 as b1, A29 as c1, A30 as d1
            B1 as e1
            A1 as f1 (receives 2, failed 1), A2 as g1 (receives 2, failed 1), A3 as h1 (receives 2, failed 1)
            A4 as i1 (receives 2, failed 1), A5 as j1 (receives 2, failed 1), A6 as k1 (receives 2, failed 1), A7 as l1 (receives 2, failed 1), A8 as m1 (receives 2, failed 1), A9 as n1 (receives 2, failed 1), A10 as o1 (receives 2, failed 1), A11 as p1 (receives 2, failed 1), A12 as q1 (receives 2, failed 1), A13 as r1 (receives 2, failed 1), A14 as s1 (receives 2, failed 1), A15 as t1 (receives 2, failed 1), A16 as u1 (receives 2, failed 1), A17 as v1 (receives 2, failed 1), A18 as w1 (receives 2, failed 1), A19 as x1 (receives 2, failed 1), A20 as y1 (receives 2, failed 1), A21 as z1 (receives 2, failed 1), A22 as a2 (receives 2, failed 1), A23 as b2 (receives 2, failed 1), A24 as c2 (receives 2, failed 1), A25 as d2 (receives 2, failed 1), A26 as e2 (receives 2, failed 1), A27 as f2 (receives 2, failed 1), A28 as g2 (receives 2, failed 1), A29 as h2 (receives 2, failed 1), A30 as i2 (receives 2, failed 1), B2 as j2, A31 as k2"#]],
    );
}

#[test]
fn a_tenant_is_quiet_again_after_its_messages_were_completed() {
    check_many(
        "queue q fair \n send q A1..32 s=A \n receive q max=30 \n send q B1 s=B \n complete a b \n receive q max=3
        complete c..g1 \n facts q \n send q C1 \n receive q",
        expect![[r#"
            A1 as a, A2 as b, A3 as c, A4 as d, A5 as e, A6 as f, A7 as g, A8 as h, A9 as i, A10 as j, A11 as k, A12 as l, A13 as m, A14 as n, A15 as o, A16 as p, A17 as q, A18 as r, A19 as s, A20 as t, A21 as u, A22 as v, A23 as w, A24 as x, A25 as y, A26 as z, A27 as a1, A28 as b1, A29 as c1, A30 as d1
            A31 as e1, A32 as f1, B1 as g1
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            C1 as h1"#]],
    );
}

#[test]
fn a_restart_changes_nothing() {
    check_many(
        "queue q fair \n send q x \n receive q \n send q A1..34 s=A \n send q y \n receive q max=30 \n send q B1 s=B
        release b \n restart \n receive q max=4 \n restart \n complete a..i1 \n send q A35 s=A \n restart \n receive q max=9",
        expect![[r#"
            x as a
            A1 as b, A2 as c, A3 as d, A4 as e, A5 as f, A6 as g, A7 as h, A8 as i, A9 as j, A10 as k, A11 as l, A12 as m, A13 as n, A14 as o, A15 as p, A16 as q, A17 as r, A18 as s, A19 as t, A20 as u, A21 as v, A22 as w, A23 as x, A24 as y, A25 as z, A26 as a1, A27 as b1, A28 as c1, A29 as d1, A30 as e1
            A1 as f1 (receives 2, failed 0), y as g1, B1 as h1, A31 as i1
            1 lost
            A32 as j1, A33 as k1, A34 as l1, A35 as m1"#]],
    );
}

#[test]
fn a_purge_keeps_leased_messages_and_their_tenant_stays_noisy() {
    check_many(
        "queue q fair \n send q A1..40 s=A \n receive q max=30 \n purge q \n send q A41 s=A \n send q B1 s=B
        receive q max=2 \n purge q all \n facts q \n send q A42 s=A \n send q x \n receive q max=2",
        expect![[r#"
            A1 as a, A2 as b, A3 as c, A4 as d, A5 as e, A6 as f, A7 as g, A8 as h, A9 as i, A10 as j, A11 as k, A12 as l, A13 as m, A14 as n, A15 as o, A16 as p, A17 as q, A18 as r, A19 as s, A20 as t, A21 as u, A22 as v, A23 as w, A24 as x, A25 as y, A26 as z, A27 as a1, A28 as b1, A29 as c1, A30 as d1
            10
            B1 as e1, A41 as f1
            32
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            A42 as g1, x as h1"#]],
    );
}

#[test]
fn dead_letters_are_not_outstanding_and_have_no_tenant() {
    check_many(
        "queue q fair failed=1 lock=1000 \n send q A1..31 s=A \n receive q max=30 \n send q B1 s=B
        abandon a \n receive q max=2 \n wait 1000 \n facts q
        receive q/$deadletterqueue \n send q A32 s=A \n receive q",
        expect![[r#"
            A1 as a, A2 as b, A3 as c, A4 as d, A5 as e, A6 as f, A7 as g, A8 as h, A9 as i, A10 as j, A11 as k, A12 as l, A13 as m, A14 as n, A15 as o, A16 as p, A17 as q, A18 as r, A19 as s, A20 as t, A21 as u, A22 as v, A23 as w, A24 as x, A25 as y, A26 as z, A27 as a1, A28 as b1, A29 as c1, A30 as d1
            A31 as e1, B1 as f1
            ready 0 locked 0 delayed 0 scheduled 0 deferred 0 dead 32 sessions 0/0 held 0
            A1 as g1 [MaxDeliveryCountExceeded: failed 1 times; the queue allows 1 (failed_max), from q 1]
            A32 as h1"#]],
    );
}

#[test]
fn a_delayed_message_waits_and_is_overtaken() {
    check_many(
        "queue q fair \n send q A1 s=A delay=100 \n send q A2..31 s=A \n receive q max=30 \n wait 100
        send q B1 s=B delay=50 \n receive q wait=100 \n wait 50 \n send q A32 s=A \n receive q max=2",
        expect![[r#"
            A2 as a, A3 as b, A4 as c, A5 as d, A6 as e, A7 as f, A8 as g, A9 as h, A10 as i, A11 as j, A12 as k, A13 as l, A14 as m, A15 as n, A16 as o, A17 as p, A18 as q, A19 as r, A20 as s, A21 as t, A22 as u, A23 as v, A24 as w, A25 as x, A26 as y, A27 as z, A28 as a1, A29 as b1, A30 as c1, A31 as d1
            A1 as e1
            B1 as f1, A32 as g1"#]],
    );
}

#[test]
fn a_received_deferred_message_counts_as_outstanding() {
    check_many(
        "queue q fair \n send q A1..31 s=A \n receive q max=30 \n defer a \n send q B1 s=B \n receive q
        deferred q 1 \n send q A32 s=A \n send q B2 s=B \n receive q max=3",
        expect![[r#"
            A1 as a, A2 as b, A3 as c, A4 as d, A5 as e, A6 as f, A7 as g, A8 as h, A9 as i, A10 as j, A11 as k, A12 as l, A13 as m, A14 as n, A15 as o, A16 as p, A17 as q, A18 as r, A19 as s, A20 as t, A21 as u, A22 as v, A23 as w, A24 as x, A25 as y, A26 as z, A27 as a1, A28 as b1, A29 as c1, A30 as d1
            A31 as e1
            A1 as f1 (receives 2, failed 0)
            B1 as g1, B2 as h1, A32 as i1"#]],
    );
}

#[test]
fn messages_removed_on_delivery_are_never_outstanding() {
    check_many(
        "queue q fair \n send q A1..31 s=A \n send q B1 s=B \n receive q take max=40",
        expect![
            "A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12, A13, A14, A15, A16, A17, A18, A19, A20, A21, A22, A23, A24, A25, A26, A27, A28, A29, A30, A31, B1"
        ],
    );
}

#[test]
fn overflow_removes_the_oldest_messages_of_any_session() {
    check_many(
        "queue q fair max=3 over=drop \n send q A1..30 s=A \n send q B1 s=B \n send q A31 s=A \n receive q max=9
        send q C1..5 \n send q A32 s=A \n receive q max=9",
        expect![[r#"
            A30 as a, B1 as b, A31 as c
            C4 as d, C5 as e, A32 as f"#]],
    );
}

#[test]
fn expired_messages_are_skipped() {
    check_many(
        "queue q fair \n send q A1 s=A ttl=10 \n send q B1 s=B ttl=10 \n send q A2 s=A \n send q B2 s=B \n wait 10
        receive q max=9",
        expect!["A2 as a, B2 as b"],
    );
}

/// A session id has no effect in a queue that is not fair: it is FIFO.
#[test]
fn only_a_fair_queue_has_tenants() {
    check_many(
        "queue q \n send q A1..32 s=A \n receive q max=30 \n send q B1 s=B \n receive q max=3
        queue f to=q \n send f x s=A \n facts q \n queue p fair prio=2 \n queue s fair sessions",
        expect![[r#"
            A1 as a, A2 as b, A3 as c, A4 as d, A5 as e, A6 as f, A7 as g, A8 as h, A9 as i, A10 as j, A11 as k, A12 as l, A13 as m, A14 as n, A15 as o, A16 as p, A17 as q, A18 as r, A19 as s, A20 as t, A21 as u, A22 as v, A23 as w, A24 as x, A25 as y, A26 as z, A27 as a1, A28 as b1, A29 as c1, A30 as d1
            A31 as e1, A32 as f1, B1 as g1
            ready 1 locked 33 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            refused: fair: must be false in a queue with sessions or priorities
            refused: fair: must be false in a queue with sessions or priorities"#]],
    );
}
