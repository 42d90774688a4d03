//! AMQP 1.0 as plain data, and a connection engine without I/O, for either end.
//!
//! Read in this order:
//! - [`types`]: values, their shortest encoding, a reader that takes nothing on trust;
//! - [`performative`]: the composite types, each declared as the specification's table;
//! - [`frame`]: protocol headers and frames, cut from a stream of bytes;
//! - [`message`]: the sections of a message by their place, so that the bare message stays byte for byte what it was;
//! - [`connection`]: sessions, links, windows, credit, settlement. The owner brings bytes, time and decisions.
//!
//! Nothing here knows of sockets, clocks or queues, nor of what Service Bus makes of the protocol, save its batch format.
//! Parts and sections named in comments are those of the OASIS standard of 2012.

pub mod connection;
pub mod frame;
pub mod message;
pub mod performative;
pub mod types;
