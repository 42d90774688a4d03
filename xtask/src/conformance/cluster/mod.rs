//! Workers on brokers of several machines, one of which dies under load.

mod postgres;

use crate::steps::Step;

pub(super) fn steps() -> Vec<Step> {
    vec![postgres::step()]
}
