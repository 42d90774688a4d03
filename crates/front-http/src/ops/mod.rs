//! One file for each operation or close family: read the request, ask whether the caller may, one engine call, answer.

pub mod about;
pub mod backup;
pub mod dead_letters;
pub mod peek;
pub mod queues;
pub mod receive;
pub mod send;
pub mod sessions;
pub mod settle;
