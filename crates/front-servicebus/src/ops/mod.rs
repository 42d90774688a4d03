//! One file per operation: decode, check the permission, call the engine, encode.

pub(crate) mod admin;
pub(crate) mod attach;
pub(crate) mod browse;
pub(crate) mod cbs;
pub(crate) mod claims;
pub(crate) mod credit;
pub(crate) mod management;
pub(crate) mod receive;
pub(crate) mod request;
pub(crate) mod resolve;
pub(crate) mod sasl;
pub(crate) mod send;
pub(crate) mod settle;
pub(crate) mod transaction;
