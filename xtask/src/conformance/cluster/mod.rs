//! Workers on brokers of several machines, one of which dies under load.

mod postgres;
mod rabbitmq;

use crate::steps::Step;

pub(super) fn steps() -> Vec<Step> {
    vec![rabbitmq::step(), postgres::step()]
}
