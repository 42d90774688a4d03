//! The words of Malote. No I/O, no engine, no protocol.

pub mod access;
