//! What a connection allows itself and its peer.

use crate::types::{Str, Symbol};

/// Limits and names. Everything that a peer can make grow is bounded here.
#[derive(Debug, Clone)]
pub struct Config {
    /// Who we are.
    pub container_id: Str,
    /// Whether a SASL exchange comes first. A server then refuses to go without.
    pub sasl: bool,
    /// What a server offers in it.
    pub mechanisms: Vec<Symbol>,
    /// The largest frame that we take.
    pub max_frame_size: u32,
    /// The highest channel that we take; one session each.
    pub channel_max: u16,
    /// The highest handle that we take; one link each, in each session.
    pub handle_max: u32,
    /// How many links there are in all sessions together.
    pub links_max: usize,
    /// The silence that we announce to bear. We bear twice as much, as the specification advises.
    pub idle_time_out_ms: Option<u32>,
    /// How many transfers a session's peer may send before it hears of us.
    pub incoming_window: u32,
    /// How many transfers we say that we keep.
    pub outgoing_window: u32,
    /// The largest message that we take, for links that set no limit of their own.
    pub max_message_size: u64,
    /// What is borne of a message all the same: the owner then refuses what is beyond the link's limit by itself, with
    /// an outcome, and the link stays. Without it such a message ends its link.
    pub max_message_size_borne: Option<u64>,
    /// Whether a receiver is sent larger messages than it says that it takes. Some clients say a number that they do
    /// not mean.
    pub overrule_max_message_size: bool,
    /// Whether [`Connection::never_left`](super::Connection::never_left) will be asked of every unsettled delivery whose
    /// link is gone.
    pub tells_what_left: bool,
    /// How many unsettled deliveries a session has, in each direction.
    pub unsettled_max: usize,
    /// How many bytes of incomplete messages we hold.
    pub incoming_bytes_max: usize,
    /// How many bytes wait to be written before nothing more can be sent. One message may go over it.
    pub outgoing_bytes_max: usize,
}

/// What a peer may hold, in numbers that may change while the connection is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Sessions at once.
    pub sessions_max: usize,
    /// Links of all sessions together.
    pub links_max: usize,
    /// Bytes of incomplete messages.
    pub incoming_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            container_id: Str::from_static("malote"),
            sasl: true,
            mechanisms: Vec::new(),
            max_frame_size: 65_536,
            channel_max: 255,
            handle_max: 255,
            links_max: 4_096,
            idle_time_out_ms: Some(120_000),
            incoming_window: 5_000,
            outgoing_window: 5_000,
            max_message_size: 1 << 20,
            max_message_size_borne: None,
            overrule_max_message_size: false,
            tells_what_left: false,
            unsettled_max: 65_536,
            incoming_bytes_max: 16 << 20,
            outgoing_bytes_max: 1 << 20,
        }
    }
}
