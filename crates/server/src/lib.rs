//! The process around the engine: everything between the operating system and a front end.
//!
//! | part | what it does |
//! |---|---|
//! | [`settings`] | flags over environment over file over defaults, checked, each with its origin |
//! | [`credentials`] | users, keys, tokens, grants; implements `malote_model::access::Access` |
//! | [`audit`] | the log of logins and administrative operations |
//! | [`guard`] | refuses to be open to other machines by accident |
//! | [`net`] | listeners, connection limit, first-bytes sniffing, TLS, routing to front ends |
//! | [`reload`] | SIGHUP and changed files: certificates and credentials without a restart |
//! | [`shutdown`] | signals, readiness, drain with a deadline |
//! | [`run`] | all of it together, with the engine and the front ends |
//! | [`logs`], [`systemd`] | what people and service managers see |
//!
//! But for `run`, nothing here knows a protocol beyond its first eight bytes or the engine's
//! state. `files` is the only module that touches the file system.

pub mod audit;
pub mod credentials;
mod files;
pub mod guard;
pub mod logs;
pub mod net;
mod permissions;
pub mod reload;
mod run;
pub mod settings;
pub mod shutdown;
pub mod systemd;

pub use run::{ServeError, run, serve};
