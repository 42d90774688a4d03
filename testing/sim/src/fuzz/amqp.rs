//! AMQP 1.0: frames, messages, and whole conversations with a client or server connection.

use bytes::{Bytes, BytesMut};
use malote_wire_amqp::connection::{Config, Connection, Event, Outgoing, UseError};
use malote_wire_amqp::frame::{take_frame, take_protocol};
use malote_wire_amqp::message::{
    Body, Draft, Header, Message, Properties, decode_batch, encode_batch,
};
use malote_wire_amqp::performative::{
    Attach, DeliveryState, Open, Performative, Role, SaslCode, SaslFrame, SaslInit, Source, Target,
};
use malote_wire_amqp::types::{Array, Map, Symbol, Value};

/// The bytes that a client and a server send each other: first the receiving side, then the bytes sent to it.
pub(super) fn conversations() -> Vec<Vec<u8>> {
    let mut connections = [connection(CLIENT), connection(SERVER)];
    let mut sent = [vec![SERVER], vec![CLIENT]];
    for turn in 0..40 {
        let sender = turn % 2;
        let bytes = connections[sender].take_output();
        sent[sender].extend_from_slice(&bytes);
        feed(&mut connections[1 - sender], &bytes);
    }
    sent.to_vec()
}

/// The frames of the conversations, one by one and all together.
pub(super) fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for sent in conversations() {
        let mut rest = BytesMut::from(&sent[1..]);
        let all = rest.len();
        while !rest.is_empty() {
            while let Ok(Some(_)) = take_protocol(&mut rest) {}
            let before = rest.clone();
            let Ok(Some(_)) = take_frame(&mut rest, u32::MAX) else { break };
            frames.push(before[..before.len() - rest.len()].to_vec());
        }
        assert!(rest.is_empty(), "{} of {all} bytes of a conversation are not frames", rest.len());
    }
    frames.push(frames.concat());
    frames
}

pub(super) fn messages() -> Vec<Vec<u8>> {
    let draft = Draft {
        header: Some(Header { ttl: Some(1_000), ..Header::default() }),
        delivery_annotations: Map::default().with("x-opt-lock-token", Value::Uuid([7; 16])),
        message_annotations: Map::default().with("x-opt-sequence-number", 5_i64),
        properties: Some(Properties {
            message_id: Some("id".into()),
            group_id: Some("session".into()),
            ..Properties::default()
        }),
        application_properties: Map::default().with_string("list", vec![Value::Null, 1_i32.into()]),
        body: Body::Data(vec![Bytes::from_static(b"body")]),
        footer: Map::default().with("sum", 1_u32),
    };
    let array: Array = [1_i64, 2, 3].into_iter().collect();
    let value = Draft::value(Map::default().with_string("sequence-numbers", array));
    let lists = Draft { body: Body::Sequence(vec![vec![1_u32.into()]; 2]), ..Draft::default() };
    let mut batch = BytesMut::new();
    encode_batch(&[draft.to_bytes(), value.to_bytes()], &mut batch);
    let drafts = [draft, value, lists].map(|draft| draft.to_bytes().to_vec());
    drafts.into_iter().chain([batch.to_vec()]).collect()
}

/// A decoded frame can be encoded, and decodes to the same value again.
pub(super) fn try_frames(bytes: &[u8]) {
    let mut input = BytesMut::from(bytes);
    while let Ok(Some(frame)) = take_frame(&mut input, 65_536) {
        let mut out = BytesMut::new();
        if let Ok((performative, _)) = Performative::decode(&frame.body) {
            performative.encode(&mut out);
            let again = Performative::decode(&out.split().freeze());
            // Compared as text, because NaN is not equal to itself.
            let again = again.map(|(again, _)| format!("{again:?}"));
            assert_eq!(again, Ok(format!("{performative:?}")));
        }
        if let Ok(sasl) = SaslFrame::decode(&frame.body) {
            sasl.encode(&mut out);
            assert_eq!(SaslFrame::decode(&out.freeze()), Ok(sasl));
        }
    }
}

pub(super) fn try_message(bytes: &[u8]) {
    let Ok(message) = Message::parse(Bytes::copy_from_slice(bytes)) else { return };
    let _ = message.header();
    let _ = message.delivery_annotations();
    let _ = message.message_annotations();
    let _ = message.properties();
    let _ = message.application_properties();
    let _ = message.footer();
    let _ = message.sequences();
    let _ = message.value();
    let _ = decode_batch(&message, 100);
    assert!(message.encoded().ends_with(&message.bare()));
}

/// The first byte selects the receiving side and the size of the parts in which the rest is fed.
pub(super) fn try_connection(bytes: &[u8]) {
    let Some((&side, sent)) = bytes.split_first() else { return };
    let mut connection = connection(side & 1);
    for part in sent.chunks(usize::from(side >> 1).pow(2) + 1) {
        feed(&mut connection, part);
        connection.take_output();
    }
    connection.tick(1_000_000);
    while connection.next_event().is_some() {}
}

const CLIENT: u8 = 0xfe;
const SERVER: u8 = 0xff;

fn connection(side: u8) -> Connection {
    let mechanisms = vec![Symbol::from_static("ANONYMOUS")];
    let config =
        Config { mechanisms, max_frame_size: 1_024, incoming_window: 8, ..Config::default() };
    match side & 1 {
        0 => Connection::client(config, 0),
        _ => Connection::server(config, 0),
    }
}

/// Feeds the bytes, and accepts, sends and settles everything it can.
fn feed(connection: &mut Connection, bytes: &[u8]) {
    connection.feed(bytes, 1);
    while let Some(event) = connection.next_event() {
        // An operation in the wrong state is caused by the peer's input.
        let _ = answer(connection, event);
    }
}

fn answer(connection: &mut Connection, event: Event) -> Result<(), UseError> {
    match event {
        Event::SaslMechanisms(_) => connection.sasl_init(SaslInit {
            mechanism: Symbol::from_static("ANONYMOUS"),
            ..SaslInit::default()
        }),
        Event::SaslInit(_) => connection.sasl_challenge(Bytes::from_static(b"?")),
        Event::SaslChallenge(_) => connection.sasl_response(Bytes::from_static(b"!")),
        Event::SaslResponse(_) => connection.sasl_outcome(SaslCode::Ok),
        Event::SaslOutcome(_) => connection.open(Open::default()),
        Event::Open(_) if connection.open(Open::default()).is_ok() => Ok(()),
        Event::Open(_) => {
            let session = connection.begin()?;
            for role in [Role::Sender, Role::Receiver] {
                let attach = Attach {
                    name: "link".into(),
                    role,
                    source: Some(Source::at("queue")),
                    target: Some(Target::at("queue").into()),
                    ..Attach::default()
                };
                connection.attach(session, attach)?;
            }
            Ok(())
        }
        Event::Attach { link, attach } => {
            connection.accept(link, attach.answer())?;
            connection.grant(link, 5)
        }
        Event::Attached { link, .. } => {
            connection.grant(link, 5)?;
            connection.drain(link)
        }
        Event::Flow(flow) => {
            for key in 0..3 {
                let tag = Bytes::from_static(&[7; 16]);
                let payload = Bytes::from(vec![7; 900 * key as usize]);
                let _ = connection
                    .send(flow.link, Outgoing { key, tag, payload, ..Outgoing::default() });
            }
            match flow.drain {
                true if connection.drained(flow.link).is_ok() => Ok(()),
                // This side is the receiver: the drain is complete, so the link is closed.
                true => connection.detach(flow.link, true, None),
                false => Ok(()),
            }
        }
        Event::Delivery(incoming) => {
            let state = Some(DeliveryState::Accepted);
            connection.dispose(incoming.link, incoming.delivery, false, state).map(|_| ())
        }
        Event::Disposition(disposed) => {
            connection.dispose(disposed.link, disposed.delivery, true, disposed.state).map(|_| ())
        }
        Event::Detach { link, closed, .. } => connection.detach(link, closed, None),
        Event::End { session, .. } => connection.end(session, None),
        Event::Close { .. } => connection.close(None),
        Event::Detached { link, .. } => connection.end(link.session(), None),
        Event::Ended { .. } => connection.close(None),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mutated inputs can only reach what the corpus contains.
    #[test]
    fn the_conversations_contain_every_frame_type() {
        let mut sent = Vec::new();
        for frame in frames() {
            let mut input = BytesMut::from(&frame[..]);
            while let Ok(Some(frame)) = take_frame(&mut input, u32::MAX) {
                sent.extend(frame.body.get(2).copied());
            }
        }
        sent.sort_unstable();
        sent.dedup();
        // The nine performatives and the five SASL frames.
        assert_eq!(sent, (0x10..=0x18).chain(0x40..=0x44).collect::<Vec<u8>>());
    }
}
