//! One file per operation: decode, ask for permission, call the engine, encode.

pub(crate) mod answer;
pub(crate) mod attach;
pub(crate) mod claims;
pub(crate) mod management;
pub(crate) mod resolve;
pub(crate) mod send;
pub(crate) mod settle;
mod temporary;
