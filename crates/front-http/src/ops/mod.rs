//! One file for each operation or group: decode the request, check the permission, call the engine, encode the answer.

pub mod about;
pub mod audit;
pub mod backup;
pub mod dead_letters;
pub mod history;
pub mod metadata;
pub mod overview;
pub mod peek;
pub mod queues;
pub mod receive;
pub mod request;
pub mod rules;
pub mod sagas;
pub mod send;
pub mod sessions;
pub mod settle;
pub mod subscriptions;
pub mod topics;
pub mod transactions;
