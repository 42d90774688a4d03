//! Transactions.

use expect_test::expect;

use super::check;

#[test]
fn a_transaction_takes_effect_completely() {
    check(
        "queue q \n send q x y \n receive q max=2 \n tx q z complete=a abandon=b \n receive q max=9 \n facts q",
        expect![[r#"
            x as a, y as b
            y as c (receives 2, failed 1), z as d
            ready 0 locked 2 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn one_stale_lease_refuses_the_whole_transaction() {
    check(
        "queue q lock=1000 \n send q x y \n receive q \n wait 1000 \n receive q \n tx q z complete=b,a \n facts q \n tx q z complete=b,b \n tx q z complete=b \n facts q",
        expect![[r#"
            x as a
            x as b (receives 2, failed 1)
            refused: lease 00000001000000000000000159320dd7 is no longer valid: it expired, was released or was already settled
            ready 1 locked 1 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0
            refused: lease 000000010000000000000002f43c661c is no longer valid: it expired, was released or was already settled
            ready 2 locked 0 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/0 held 0"#]],
    );
}

#[test]
fn a_transaction_can_set_session_state() {
    check(
        "queue q sessions \n send q x y s=A \n accept q \n receive q hold=a max=2 \n tx q z s=A complete=c abandon=b delay=50 state=a:done \n receive q max=9 \n wait 50 \n accept q \n receive q hold=d max=9
        tx q w s=A state=a:again \n facts q",
        expect![[r#"
            holds A as a until 30000
            x as b, y as c
            nothing
            holds A as d until 30050
            x as e (receives 2, failed 1), z as f
            refused: lease 00000001000000000000000159320dd7 is no longer valid: it expired, was released or was already settled
            ready 0 locked 2 delayed 0 scheduled 0 deferred 0 dead 0 sessions 0/1 held 1"#]],
    );
}
