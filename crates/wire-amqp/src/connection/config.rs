//! Limits of a connection.

use crate::types::{Str, Symbol};

/// Limits and names. Everything that a peer can make grow is bounded here.
#[derive(Debug, Clone)]
pub struct Config {
    pub container_id: Str,
    /// Whether SASL comes first. A server then refuses connections without it.
    pub sasl: bool,
    /// SASL mechanisms of a server.
    pub mechanisms: Vec<Symbol>,
    /// Largest frame accepted.
    pub max_frame_size: u32,
    /// Highest channel accepted; one session each.
    pub channel_max: u16,
    /// Highest handle accepted; one link each, per session.
    pub handle_max: u32,
    /// Links in all sessions.
    pub links_max: usize,
    /// Idle timeout announced to the peer. As the specification recommends, the connection is closed after twice that
    /// time.
    pub idle_time_out_ms: Option<u32>,
    /// Transfers that the peer may send per session before a flow.
    pub incoming_window: u32,
    /// Outgoing window announced to the peer.
    pub outgoing_window: u32,
    /// Largest message accepted, for links without their own limit.
    pub max_message_size: u64,
    /// Messages up to this size are received even beyond the link's limit, so that the owner can refuse them with an
    /// outcome and the link stays. Without it, an oversized message ends its link.
    pub max_message_size_accepted: Option<u64>,
    /// Send messages larger than the receiver's max-message-size. Some clients announce a value that they do not mean.
    pub ignore_remote_max_message_size: bool,
    /// Whether [`Connection::was_never_sent`](super::Connection::was_never_sent) will be called for every unsettled
    /// delivery whose link is gone.
    pub track_unsent: bool,
    /// Unsettled deliveries per session, in each direction.
    pub unsettled_max: usize,
    /// Bytes of incomplete messages.
    pub incoming_bytes_max: usize,
    /// Bytes waiting to be written, beyond which nothing can be sent. One message may exceed it.
    pub outgoing_bytes_max: usize,
}

/// Limits of a peer, which can change while the connection is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLimits {
    pub sessions_max: usize,
    /// In all sessions.
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
            max_message_size_accepted: None,
            ignore_remote_max_message_size: false,
            track_unsent: false,
            unsettled_max: 65_536,
            incoming_bytes_max: 16 << 20,
            outgoing_bytes_max: 1 << 20,
        }
    }
}
