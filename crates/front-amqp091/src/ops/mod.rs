//! One operation each.

pub(crate) mod consume;
pub(crate) mod deliver;
pub(crate) mod exchange;
pub(crate) mod get;
pub(crate) mod publish;
pub(crate) mod queue;
pub(crate) mod queue_declare;
pub(crate) mod reply_to;
pub(crate) mod settle;
pub(crate) mod transaction;
