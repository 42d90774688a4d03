//! What the simulation found: each the smallest script that shows it.

use expect_test::expect;

use super::check;

#[test]
fn a_parked_message_that_was_delivered_again_is_in_its_session_after_a_restart() {
    check(
        "queue q sessions skip \n send q x y s=one \n receive q \n abandon a delay=100 \n wait 200 \n receive q \n restart
        release b \n receive q max=9 per=9",
        expect![[r#"
            x as a
            x as b (receives 2, failed 1)
            x as c (receives 3, failed 1), y as d"#]],
    );
}
