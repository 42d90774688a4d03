//! AMQP 1.0 as plain data, and a connection engine without I/O, for client and server.
//!
//! Read in this order:
//! - [`types`]: values, their shortest encoding, and a reader for untrusted bytes;
//! - [`performative`]: the composite types, each declared like its table in the specification;
//! - [`frame`]: protocol headers and frames;
//! - [`message`]: the sections of a message, found without decoding, so that the bare message is preserved byte for
//!   byte;
//! - [`connection`]: sessions, links, windows, credit, settlement. The owner provides bytes, time and decisions.
//!
//! The crate knows no sockets, clocks or queues, and nothing specific to Service Bus except its batch format. Parts and
//! sections in comments are those of the OASIS standard of 2012.

#![allow(missing_docs, reason = "the names are those of the specification")]

pub mod connection;
pub mod frame;
pub mod message;
pub mod performative;
pub mod types;
