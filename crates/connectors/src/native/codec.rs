//! Frames of the native connection as MessagePack, and their conversions from and to the types of connectors.

use std::time::Duration;

use malote_model::{Seq, Timestamp};
use malote_wire_native::body::BodyContent;
use malote_wire_native::frame::{AnyReply, ClientFrame, FRAME_DEPTH_MAX};
use malote_wire_native::problem::ProblemBody;
use malote_wire_native::queue::{QueueDepth, SessionCounts};
use malote_wire_native::received::ReceivedMessage;
use malote_wire_native::settle::{SessionStateChange, SettleRequest};
use serde::Deserialize;

use crate::broker::{BrokerError, Delivery, Settle};
use crate::depth::{Depth, SessionDepth};

/// A frame of the server, with a reply to any request.
pub(super) type ServerFrame = malote_wire_native::frame::ServerFrame<AnyReply>;

/// Decodes the frames of one WebSocket message.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<ServerFrame>, rmp_serde::decode::Error> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(FRAME_DEPTH_MAX);
    match bytes.first() {
        Some(0x90..=0x9f | 0xdc | 0xdd) => Vec::<ServerFrame>::deserialize(&mut reader),
        _ => ServerFrame::deserialize(&mut reader).map(|frame| vec![frame]),
    }
}

/// Encodes frames as one WebSocket message.
pub(super) fn encode(frames: &[ClientFrame]) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    match frames {
        [one] => rmp_serde::to_vec_named(one),
        all => rmp_serde::to_vec_named(all),
    }
}

/// The delivery of a leased message; none without a lease.
pub(super) fn delivery(received: ReceivedMessage) -> Option<Delivery> {
    Some(Delivery {
        seq: Seq(received.seq),
        lease: received.lease.as_deref()?.parse().ok()?,
        receives: received.receives,
        failed: received.failed,
        last: received.last,
        enqueued_at: Timestamp(received.enqueued_at.unwrap_or_default()),
        dead: received.dead_letter.clone().map(|dead| (dead.reason, dead.text)),
        message: received.into_message(),
    })
}

/// Settlements in order. Adjacent ones that only complete leases become one.
pub(super) fn settle_requests(items: Vec<Settle>) -> Vec<SettleRequest> {
    let mut all: Vec<SettleRequest> = Vec::new();
    for Settle { lease, settlement, state } in items {
        let mut request = SettleRequest::new(lease, settlement);
        request.session_state = state.map(|new| SessionStateChange {
            token: new.hold.to_string(),
            state_base64: None,
            state: new.state.map(BodyContent::Bytes),
        });
        match all.last_mut() {
            Some(last) if request.is_plain_complete() && last.is_plain_complete() => {
                last.leases.append(&mut request.leases);
            }
            _ => all.push(request),
        }
    }
    all
}

impl From<QueueDepth> for Depth {
    fn from(depth: QueueDepth) -> Self {
        let sessions =
            |SessionCounts { runnable, held, other }| SessionDepth { runnable, held, other };
        Self {
            ready: depth.ready,
            delayed: depth.delayed,
            in_flight: depth.in_flight,
            oldest: Duration::from_millis(depth.oldest_ms),
            sent: depth.sent,
            paused: depth.paused,
            sessions: depth.sessions.map(sessions),
            uncounted_sessions: false,
        }
    }
}

impl From<ProblemBody> for BrokerError {
    fn from(ProblemBody { code, detail, fix, .. }: ProblemBody) -> Self {
        let text = format!("{detail}. {fix}");
        match code.as_str() {
            "lease_lost" | "consumer_not_found" => Self::LockLost,
            "busy" | "too_many" | "disk_full" | "no_segment" | "stopping" => Self::Busy { text },
            "poisoned" => Self::Unreachable { text },
            _ => Self::Refused { code, text },
        }
    }
}

#[cfg(test)]
mod tests {
    use malote_model::BodyKind;
    use malote_wire_native::frame::Deliver;

    use super::*;

    #[test]
    fn hostile_bytes_never_cause_a_panic() {
        let seeds: Vec<Vec<u8>> = vec![
            rmp_serde::to_vec_named(&frame()).unwrap(),
            vec![0xdd, 0xff, 0xff, 0xff, 0xff],
            vec![0xc6, 0xff, 0xff, 0xff, 0xff, 1],
            vec![0x91; 200],
        ];
        let mut state = 88_172_645_463_325_252_u64;
        for round in 0..20_000 {
            let mut bytes = seeds[round % seeds.len()].clone();
            for _ in 0..1 + round % 3 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let at = (state >> 20) as usize % bytes.len();
                bytes[at] = (state >> 40) as u8;
            }
            for frame in decode(&bytes).unwrap_or_default() {
                if let ServerFrame::Deliver(deliver) = frame {
                    deliver.messages.into_iter().for_each(|message| drop(delivery(message)));
                }
            }
        }
    }

    fn frame() -> malote_wire_native::frame::ServerFrame<()> {
        let message = ReceivedMessage {
            seq: 7,
            lease: Some("0".repeat(32)),
            body: Some(BodyContent::text("x")),
            receives: 1,
            ..ReceivedMessage::default()
        };
        let deliver = Deliver { consumer: 1, messages: vec![message] };
        malote_wire_native::frame::ServerFrame::Deliver(deliver)
    }

    #[test]
    fn a_delivery_is_decoded() {
        let bytes = rmp_serde::to_vec_named(&frame()).unwrap();
        let [ServerFrame::Deliver(deliver)] = &mut decode(&bytes).unwrap()[..] else { panic!() };
        let delivery = delivery(deliver.messages.remove(0)).unwrap();
        assert_eq!((delivery.seq, delivery.receives), (Seq(7), 1));
        assert_eq!(delivery.message.body.kind, BodyKind::Text);
    }
}
