//! The process around the engine: everything between the operating system and a front end.
//!
//! | part | what it does |
//! |---|---|
//! | [`settings`] | flags over environment over file over defaults, checked, each with its origin |
//! | [`credentials`] | users, keys, tokens, grants; implements `malote_model::access::Access` |
//! | [`audit`] | the log of logins and administrative operations |
//! | [`exposure`] | refuses to serve other machines without credentials by accident |
//! | [`net`] | listeners, connection limit, protocol detection, TLS, routing to front ends |
//! | [`reload`] | reloads certificates and credentials without a restart |
//! | [`shutdown`] | signals, readiness, drain with a deadline |
//! | [`run`] | starts the engine and the front ends, and stops them |
//! | [`logs`], [`systemd`] | output for people and for service managers |
//!
//! Only `run` knows the protocols and the engine; the other modules know at most the first bytes of a protocol. `files`
//! is the only module that accesses the file system.

#![allow(missing_docs, reason = "used by the command line only")]

pub mod audit;
mod authenticators;
mod banner;
pub mod credentials;
pub mod exposure;
mod files;
pub mod logs;
pub mod net;
mod permissions;
mod rabbitmq_file;
#[cfg(test)]
mod rabbitmq_tests;
mod rabbitmq_users;
pub mod reload;
mod run;
pub mod settings;
pub mod shutdown;
pub mod systemd;

pub use run::{ServeError, run, serve};
