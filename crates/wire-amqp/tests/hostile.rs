//! Protocol violations are reported at the right level, and arbitrary input does no harm.
#![allow(clippy::unwrap_used)] // a test

mod common;

use bytes::{Bytes, BytesMut};
use common::*;
use malote_wire_amqp::connection::*;
use malote_wire_amqp::frame::{FrameKind, put_frame, take_frame};
use malote_wire_amqp::performative::*;
use malote_wire_amqp::types::Str;
use proptest::prelude::*;

/// A server, and a peer that sends arbitrary performatives.
struct Peer {
    server: Connection,
    said: BytesMut,
}

fn plain() -> Config {
    Config {
        sasl: false,
        max_frame_size: 1_024,
        channel_max: 3,
        handle_max: 3,
        links_max: 4,
        incoming_window: 8,
        max_message_size: 2_000,
        unsettled_max: 4,
        incoming_bytes_max: 3_000,
        idle_time_out_ms: None,
        ..Config::default()
    }
}

fn frame(out: &mut BytesMut, channel: u16, performative: &Performative, payload: &[u8]) {
    put_frame(out, FrameKind::Amqp, channel, |out| {
        performative.encode(out);
        out.extend_from_slice(payload);
    });
}

impl Peer {
    fn opened(config: Config) -> Peer {
        let mut peer = Peer { server: Connection::server(config, 0), said: BytesMut::new() };
        peer.server.feed(b"AMQP\x00\x01\x00\x00", 0);
        peer.say(0, open());
        assert!(matches!(peer.server.next_event(), Some(Event::Open(_))));
        peer.server.open(Open::default()).unwrap();
        peer.heard();
        peer
    }

    fn begun(config: Config) -> Peer {
        let mut peer = Peer::opened(config);
        peer.say(0, begin());
        assert!(matches!(peer.server.next_event(), Some(Event::Begun { .. })));
        peer.heard();
        peer
    }

    /// With a link on which the peer sends, and credit for it.
    fn attached(config: Config, credit: u32) -> (Peer, LinkId) {
        let mut peer = Peer::begun(config);
        let link = peer.attach(0, "s", Role::Sender);
        peer.server.grant(link, credit).unwrap();
        peer.heard();
        (peer, link)
    }

    fn attach(&mut self, handle: u32, name: &'static str, role: Role) -> LinkId {
        self.say(0, attach(handle, name, role));
        let Some(Event::Attach { link, attach }) = self.server.next_event() else {
            panic!("attach")
        };
        self.server.accept(link, attach.answer()).unwrap();
        link
    }

    fn say(&mut self, channel: u16, performative: Performative) {
        self.say_with(channel, performative, b"");
    }

    fn say_with(&mut self, channel: u16, performative: Performative, payload: &[u8]) {
        frame(&mut self.said, channel, &performative, payload);
        self.server.feed(&self.said.split(), 0);
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.server.next_event()).collect()
    }

    /// The performatives sent by the server.
    fn heard(&mut self) -> Vec<Performative> {
        let mut bytes = BytesMut::from(&self.server.take_output()[..]);
        if bytes.starts_with(b"AMQP") {
            let _ = bytes.split_to(8);
        }
        let mut heard = Vec::new();
        while let Some(frame) = take_frame(&mut bytes, u32::MAX).unwrap() {
            heard.push(Performative::decode(&frame.body).unwrap().0);
        }
        heard
    }

    /// The connection is closed with this condition.
    #[track_caller]
    fn closed(mut self, condition: &str) {
        let events = self.events();
        assert!(matches!(events.last(), Some(Event::Failed(_))), "{events:?}");
        assert!(self.server.is_finished());
        match self.heard().last() {
            Some(Performative::Close(Close { error: Some(error) })) => {
                assert_eq!(error.condition, *condition);
            }
            other => panic!("{other:?}"),
        }
    }

    /// The session is ended with this condition, and the connection continues.
    #[track_caller]
    fn ended(mut self, condition: &str) {
        let events = self.events();
        assert!(matches!(events.last(), Some(Event::SessionFailed { .. })), "{events:?}");
        match self.heard().last() {
            Some(Performative::End(End { error: Some(error) })) => {
                assert_eq!(error.condition, *condition);
            }
            other => panic!("{other:?}"),
        }
        // Frames sent before are ignored; then the channel is free again.
        self.say(0, transfer(0, 77));
        self.say(0, Performative::End(End::default()));
        self.say(0, begin());
        let events = self.events();
        assert!(matches!(events[..], [Event::Ended { .. }, Event::Begun { .. }]), "{events:?}");
    }

    /// The link is detached with this condition, and the session continues.
    #[track_caller]
    fn detached(mut self, condition: &str) {
        let events = self.events();
        assert!(matches!(events.last(), Some(Event::LinkFailed { .. })), "{events:?}");
        match self.heard().last() {
            Some(Performative::Detach(Detach { closed: true, error: Some(error), .. })) => {
                assert_eq!(error.condition, *condition);
            }
            other => panic!("{other:?}"),
        }
        self.say(0, transfer(0, 77));
        self.say(0, Performative::Detach(Detach { handle: 0, closed: true, error: None }));
        let events = self.events();
        assert!(matches!(events[..], [Event::Detached { .. }]), "{events:?}");
        self.attach(0, "again", Role::Sender);
    }
}

fn open() -> Performative {
    Performative::Open(Box::new(Open { container_id: "peer".into(), ..Open::default() }))
}

fn begin() -> Performative {
    let begin = Begin { incoming_window: 10, outgoing_window: 10, ..Begin::default() };
    Performative::Begin(Box::new(begin))
}

fn attach(handle: u32, name: &'static str, role: Role) -> Performative {
    let source = Some(Source::at("q"));
    let target = Some(Target::at("q").into());
    let name = Str::from_static(name);
    Performative::Attach(Box::new(Attach {
        name,
        handle,
        role,
        source,
        target,
        ..Attach::default()
    }))
}

fn transfer(handle: u32, id: u32) -> Performative {
    Performative::Transfer(first(handle, id))
}

fn first(handle: u32, id: u32) -> Transfer {
    let tag = Some(Bytes::copy_from_slice(&id.to_be_bytes()));
    Transfer { handle, delivery_id: Some(id), delivery_tag: tag, ..Transfer::default() }
}

#[test]
fn rules_of_the_connection() {
    let mut peer = Peer { server: Connection::server(plain(), 0), said: BytesMut::new() };
    peer.server.feed(b"AMQP\x00\x01\x00\x00", 0);
    peer.say(0, begin());
    peer.closed(condition::ILLEGAL_STATE);

    let mut peer = Peer { server: Connection::server(plain(), 0), said: BytesMut::new() };
    peer.server.feed(b"AMQP\x00\x01\x00\x00", 0);
    let open_small = Open { container_id: "c".into(), max_frame_size: 511, ..Open::default() };
    peer.say(0, Performative::Open(Box::new(open_small)));
    peer.closed(condition::INVALID_FIELD);

    let mut peer = Peer { server: Connection::server(plain(), 0), said: BytesMut::new() };
    peer.server.feed(b"AMQP\x00\x01\x00\x00", 0);
    let restless = Open { container_id: "c".into(), idle_time_out: Some(1), ..Open::default() };
    peer.say(0, Performative::Open(Box::new(restless)));
    peer.closed(condition::NOT_IMPLEMENTED);

    let mut peer = Peer::opened(plain());
    peer.say(0, open());
    peer.closed(condition::ILLEGAL_STATE);

    let mut peer = Peer::opened(plain());
    peer.server.feed(b"\0\0\x04\x01\x02\0\0\0", 0);
    peer.closed(condition::FRAMING_ERROR);

    let mut peer = Peer::opened(plain());
    peer.server.feed(b"\0\0\0\x0c\x02\0\0\0\x00\x53\x11\xd0", 0);
    peer.closed(condition::DECODE_ERROR);

    let mut peer = Peer::opened(plain());
    peer.server.feed(b"\0\0\0\x0c\x02\x01\0\0\x00\x53\x41\x45", 0);
    peer.closed(condition::FRAMING_ERROR);

    let mut peer = Peer::opened(plain());
    peer.say(4, begin());
    peer.closed(condition::FRAMING_ERROR);

    let mut peer = Peer::begun(plain());
    peer.say(0, begin());
    peer.closed(condition::ILLEGAL_STATE);

    let mut peer = Peer::begun(plain());
    peer.say(0, attach(4, "s", Role::Sender));
    peer.closed(condition::FRAMING_ERROR);

    let mut peer = Peer::begun(plain());
    peer.say(2, transfer(0, 0));
    peer.closed(condition::ILLEGAL_STATE);

    let mut peer = Peer::begun(plain());
    let answer = Begin { remote_channel: Some(3), ..Begin::default() };
    peer.say(1, Performative::Begin(Box::new(answer)));
    peer.closed(condition::ILLEGAL_STATE);
}

#[test]
fn rules_of_a_session() {
    let (mut peer, _) = Peer::attached(plain(), 10);
    peer.say(0, attach(0, "t", Role::Sender));
    peer.ended(condition::HANDLE_IN_USE);

    let (mut peer, _) = Peer::attached(plain(), 10);
    peer.say(0, transfer(2, 0));
    peer.ended(condition::UNATTACHED_HANDLE);

    let (mut peer, _) = Peer::attached(plain(), 10);
    peer.say(0, Performative::Transfer(Transfer { delivery_tag: None, ..first(0, 0) }));
    peer.ended(condition::INVALID_FIELD);

    let (mut peer, _) = Peer::attached(plain(), 10);
    let tag = Some(Bytes::from_static(&[7; 33]));
    peer.say(0, Performative::Transfer(Transfer { delivery_tag: tag, ..first(0, 0) }));
    peer.ended(condition::INVALID_FIELD);

    let (mut peer, _) = Peer::attached(plain(), 10);
    peer.say(0, Performative::Transfer(Transfer { more: true, ..first(0, 0) }));
    peer.say(0, transfer(0, 1));
    peer.ended(condition::INVALID_FIELD);

    // The id of another link's delivery.
    let (mut peer, _) = Peer::attached(plain(), 10);
    let other = peer.attach(1, "other", Role::Sender);
    peer.server.grant(other, 10).unwrap();
    peer.heard();
    peer.say(0, transfer(0, 0));
    peer.say(0, transfer(1, 0));
    peer.ended(condition::INVALID_FIELD);

    let (mut peer, _) = Peer::attached(plain(), 10);
    (0..5).for_each(|id| peer.say(0, transfer(0, id)));
    peer.ended(condition::RESOURCE_LIMIT_EXCEEDED);

    let (mut peer, _) = Peer::attached(plain(), 10);
    let backwards =
        Disposition { role: Role::Sender, first: 5, last: Some(4), ..Default::default() };
    peer.say(0, Performative::Disposition(backwards));
    peer.ended(condition::INVALID_FIELD);

    let mut peer = Peer::begun(Config { links_max: 1, ..plain() });
    peer.attach(0, "a", Role::Sender);
    peer.say(0, attach(1, "b", Role::Sender));
    peer.ended(condition::RESOURCE_LIMIT_EXCEEDED);
}

/// Not valid, but the Python client does it when threads share a link, and accepting both does no harm.
#[test]
fn two_deliveries_of_a_link_may_have_the_same_id() {
    let (mut peer, link) = Peer::attached(plain(), 10);
    peer.say(0, transfer(0, 0));
    peer.say(0, transfer(0, 0));
    assert_eq!(deliveries(&peer.events()).len(), 2);
    assert_eq!(peer.server.dispose(link, DeliveryId(0), true, None), Ok(true));
    assert_eq!(peer.server.dispose(link, DeliveryId(0), true, None), Ok(false));
    peer.say(0, transfer(0, 1));
    assert_eq!(deliveries(&peer.events()).len(), 1);
}

#[test]
fn a_zero_window_blocks_transfers() {
    let (mut peer, _) = Peer::attached(Config { incoming_window: 0, ..plain() }, 10);
    peer.say(0, transfer(0, 0));
    peer.ended(condition::WINDOW_VIOLATION);
}

#[test]
fn rules_of_a_link() {
    let (mut peer, _) = Peer::attached(plain(), 2);
    (0..3).for_each(|id| peer.say(0, transfer(0, id)));
    peer.detached(condition::TRANSFER_LIMIT_EXCEEDED);

    let mut peer = Peer::begun(plain());
    peer.attach(0, "r", Role::Receiver);
    peer.say(0, transfer(0, 0));
    peer.detached(condition::NOT_ALLOWED);

    let (mut peer, _) = Peer::attached(plain(), 10);
    for _ in 0..3 {
        let more = Transfer { more: true, ..first(0, 0) };
        peer.say_with(0, Performative::Transfer(more), &[7; 900]);
    }
    peer.detached(condition::MESSAGE_SIZE_EXCEEDED);

    let (mut peer, link) = Peer::attached(Config { max_message_size: 100, ..plain() }, 10);
    peer.say_with(0, transfer(0, 0), &[7; 100]);
    assert_eq!(deliveries(&peer.events()).len(), 1);
    peer.server.dispose(link, DeliveryId(0), true, None).unwrap();
    peer.say_with(0, transfer(0, 1), &[7; 101]);
    peer.detached(condition::MESSAGE_SIZE_EXCEEDED);

    // Accepted beyond the limit of the link, so that its owner can refuse it; but no further.
    let borne = Config { max_message_size: 100, max_message_size_accepted: Some(200), ..plain() };
    let (mut peer, link) = Peer::attached(borne, 10);
    peer.say_with(0, transfer(0, 0), &[7; 200]);
    assert_eq!(deliveries(&peer.events()).len(), 1);
    peer.server.dispose(link, DeliveryId(0), true, None).unwrap();
    peer.say_with(0, transfer(0, 1), &[7; 201]);
    peer.detached(condition::MESSAGE_SIZE_EXCEEDED);

    // Each message is small enough; together they are not.
    let (mut peer, _) = Peer::attached(plain(), 10);
    for (handle, name) in [(1, "b"), (2, "c")] {
        let link = peer.attach(handle, name, Role::Sender);
        peer.server.grant(link, 1).unwrap();
    }
    for handle in [1, 2, 0] {
        for _ in 0..2 {
            let more = Transfer { more: true, ..first(handle, handle) };
            peer.say_with(0, Performative::Transfer(more), &[7; 700]);
        }
    }
    peer.detached(condition::RESOURCE_LIMIT_EXCEEDED);
}

#[test]
fn an_aborted_delivery_leaves_nothing() {
    let (mut peer, _) = Peer::attached(plain(), 10);
    // Twice the limit in total.
    for id in 0..10 {
        let more = Transfer { more: true, ..first(0, id) };
        peer.say_with(0, Performative::Transfer(more), &[7; 600]);
        peer.say(0, Performative::Transfer(Transfer { aborted: true, ..first(0, id) }));
    }
    assert_eq!(peer.events(), []);
    peer.say_with(0, transfer(0, 10), b"x");
    peer.detached(condition::TRANSFER_LIMIT_EXCEEDED);
}

/// Replies are matched by name: the peer must have confirmed the detach of the first link before the second is
/// answered.
#[test]
fn a_name_in_use_is_stolen_and_the_rest_goes_on() {
    let (mut peer, first) = Peer::attached(plain(), 10);
    peer.say(0, attach(1, "s", Role::Sender));
    peer.say(0, attach(2, "s", Role::Sender));
    let events = peer.events();
    let [Event::LinkFailed { link, error }, Event::LinkFailed { link: second, .. }] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((*link, error.condition.as_str()), (first, condition::STOLEN));
    assert!(peer.server.grant(first, 1).is_err());
    let heard = peer.heard();
    let [
        Performative::Detach(detach),
        Performative::Attach(refused),
        Performative::Detach(refusal),
    ] = &heard[..]
    else {
        panic!("{heard:?}")
    };
    assert!(detach.closed);
    assert_eq!((&refused.source, &refused.target, refused.handle), (&None, &None, refusal.handle));
    assert_ne!(*second, first);
    // The third follows when both are gone.
    for handle in [0, 1] {
        let seen = peer.events();
        assert!(!seen.iter().any(|event| matches!(event, Event::Attach { .. })), "{seen:?}");
        peer.say(0, Performative::Detach(Detach { handle, closed: true, error: None }));
    }
    let events = peer.events();
    assert!(matches!(events.last(), Some(Event::Attach { .. })), "{events:?}");
    // The other role with the same name is another link.
    peer.attach(3, "s", Role::Receiver);
}

/// Some clients send a detach or end twice.
#[test]
fn late_frames_are_passed_over() {
    let (mut peer, link) = Peer::attached(plain(), 10);
    let detach = || Performative::Detach(Detach { handle: 0, closed: true, error: None });
    peer.say(0, detach());
    peer.events();
    peer.server.detach(link, true, None).unwrap();
    peer.say(0, detach());
    let flow = Flow { handle: Some(0), link_credit: Some(1), ..Flow::default() };
    peer.say(0, Performative::Flow(flow.clone()));
    peer.say(0, Performative::End(End::default()));
    peer.server.next_event();
    peer.server.end(link.session(), None).unwrap();
    peer.say(0, detach());
    peer.say(0, Performative::Flow(flow));
    let disposition = Disposition { role: Role::Receiver, ..Disposition::default() };
    peer.say(0, Performative::Disposition(disposition));
    assert_eq!(peer.events(), []);
    assert!(!peer.server.is_finished());
}

/// Numbers are serial: zero follows the highest.
#[test]
fn serial_numbers_wrap() {
    let mut peer = Peer::opened(plain());
    let begin = Begin { next_outgoing_id: u32::MAX, incoming_window: 9, ..Begin::default() };
    peer.say(0, Performative::Begin(Box::new(begin)));
    peer.events();
    let mut attach = match attach(0, "s", Role::Sender) {
        Performative::Attach(attach) => attach,
        _ => unreachable!("an attach"),
    };
    attach.initial_delivery_count = Some(u32::MAX - 1);
    peer.say(0, Performative::Attach(attach));
    let Some(Event::Attach { link, attach }) = peer.server.next_event() else { panic!("attach") };
    peer.server.accept(link, attach.answer()).unwrap();
    peer.server.grant(link, 4).unwrap();
    for id in [u32::MAX - 1, u32::MAX, 0, 1] {
        peer.say(0, transfer(0, id));
    }
    assert_eq!(deliveries(&peer.events()).len(), 4);
    assert_eq!(peer.server.credit(link), 0);
    let range = Disposition {
        role: Role::Sender,
        first: u32::MAX,
        last: Some(0),
        settled: true,
        ..Disposition::default()
    };
    peer.say(0, Performative::Disposition(range));
    let events = peer.events();
    let ids: Vec<_> = dispositions(&events).iter().map(|d| d.delivery.0).collect();
    assert_eq!(ids, [u32::MAX, 0]);
    // The remaining two are not adjacent.
    peer.heard();
    for id in [u32::MAX - 1, 1] {
        assert_eq!(peer.server.dispose(link, DeliveryId(id), true, None), Ok(true));
    }
    assert_eq!(peer.heard().len(), 2);
    peer.say(0, transfer(0, 2));
    peer.detached(condition::TRANSFER_LIMIT_EXCEEDED);
}

/// A flow that lets the server send.
fn credit(next_incoming_id: u32, incoming_window: u32, link_credit: u32) -> Performative {
    Performative::Flow(Flow {
        next_incoming_id: Some(next_incoming_id),
        incoming_window,
        handle: Some(0),
        delivery_count: Some(0),
        link_credit: Some(link_credit),
        ..Flow::default()
    })
}

/// Transfers on their way use up the window that the peer announces.
#[test]
fn a_window_counts_from_what_the_peer_has_seen() {
    let mut peer = Peer::begun(plain());
    let link = peer.attach(0, "r", Role::Receiver);
    peer.say(0, credit(0, 10, 100));
    peer.events();
    peer.heard();
    let send = |peer: &mut Peer| {
        for key in 0..5 {
            let settled = Outgoing { settled: true, ..message(key, vec![7; 100]) };
            peer.server.send(link, settled).unwrap_or_default();
        }
        peer.heard().len()
    };
    assert_eq!(send(&mut peer), 5);
    // It has seen none of five and accepts six: one more.
    peer.say(0, credit(0, 6, 100));
    peer.events();
    assert_eq!(send(&mut peer), 1);
    let full = peer.server.free_output_bytes();
    peer.say(0, credit(6, 2, 100));
    peer.events();
    assert_eq!(peer.heard().len(), 2);
    // Queued messages are dropped with their link.
    assert!(peer.server.free_output_bytes() > full);
    peer.server.detach(link, true, None).unwrap();
    peer.heard();
    assert_eq!(peer.server.free_output_bytes(), 1 << 20);
}

#[test]
fn deliveries_are_forgotten_with_their_link() {
    let mut peer = Peer::begun(plain());
    let link = peer.attach(0, "r", Role::Receiver);
    peer.say(0, credit(0, 10, 100));
    peer.events();
    for key in 0..4 {
        peer.server.send(link, message(key, "x")).unwrap();
    }
    assert_eq!(peer.server.send(link, message(9, "x")), Err(SendError::Full));
    peer.say(0, Performative::Detach(Detach { handle: 0, closed: true, error: None }));
    peer.events();
    peer.server.detach(link, true, None).unwrap();
    let late = Disposition { role: Role::Receiver, last: Some(3), ..Disposition::default() };
    peer.say(0, Performative::Disposition(late));
    assert_eq!(peer.events(), []);
    let link = peer.attach(0, "r", Role::Receiver);
    peer.say(0, credit(4, 10, 100));
    peer.events();
    peer.server.send(link, message(9, "x")).unwrap();
}

/// Links that ended with their session no longer count.
#[test]
fn links_are_forgotten_with_their_session() {
    let mut peer = Peer::begun(Config { links_max: 1, ..plain() });
    for _ in 0..3 {
        let link = peer.attach(0, "r", Role::Receiver);
        peer.say(0, Performative::End(End::default()));
        peer.events();
        peer.server.end(link.session(), None).unwrap();
        peer.say(0, begin());
        assert!(matches!(peer.events()[..], [Event::Begun { .. }]));
    }
}

#[test]
fn nothing_comes_after_close() {
    let mut peer = Peer::opened(plain());
    peer.say(0, Performative::Close(Close::default()));
    peer.say(0, begin());
    assert_eq!(peer.events(), [Event::Close { error: None }]);
    peer.server.close(None).unwrap();
    assert_eq!(peer.events(), []);
    assert!(peer.server.is_finished());
}

/// One range for one outcome.
#[test]
fn dispositions_with_different_outcomes_are_not_merged() {
    let (mut peer, link) = Peer::attached(plain(), 10);
    (0..4).for_each(|id| peer.say(0, transfer(0, id)));
    peer.events();
    peer.heard();
    for (id, state) in [
        (0, DeliveryState::Accepted),
        (1, DeliveryState::Accepted),
        (2, DeliveryState::Released),
        (3, DeliveryState::Accepted),
    ] {
        peer.server.dispose(link, DeliveryId(id), true, Some(state)).unwrap();
    }
    let ranges: Vec<_> = peer
        .heard()
        .into_iter()
        .map(|performative| match performative {
            Performative::Disposition(disposition) => {
                (disposition.first, disposition.last, disposition.state)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        ranges,
        [
            (0, Some(1), Some(DeliveryState::Accepted)),
            (2, Some(2), Some(DeliveryState::Released)),
            (3, Some(3), Some(DeliveryState::Accepted)),
        ]
    );
}

/// A flow with `echo` is answered with our state.
#[test]
fn an_echo_is_answered() {
    let (mut peer, _) = Peer::attached(plain(), 5);
    peer.say(0, transfer(0, 0));
    let echo = Flow { handle: Some(0), delivery_count: Some(1), echo: true, ..Flow::default() };
    peer.say(0, Performative::Flow(echo));
    peer.events();
    let heard = peer.heard();
    let [Performative::Flow(flow)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((flow.handle, flow.delivery_count, flow.link_credit), (Some(0), Some(1), Some(4)));
    assert_eq!((flow.next_incoming_id, flow.incoming_window, flow.echo), (Some(1), 7, false));
    peer.say(0, Performative::Flow(Flow { echo: true, ..Flow::default() }));
    peer.events();
    let heard = peer.heard();
    assert!(matches!(&heard[..], [Performative::Flow(Flow { handle: None, .. })]), "{heard:?}");
}

/// A range over everything costs as much as there are unsettled deliveries.
#[test]
fn a_range_over_all_numbers_is_cheap() {
    let mut peer = Peer::begun(plain());
    let link = peer.attach(0, "r", Role::Receiver);
    let flow = Flow {
        handle: Some(0),
        next_incoming_id: Some(0),
        incoming_window: 100,
        delivery_count: Some(0),
        link_credit: Some(3),
        ..Flow::default()
    };
    peer.say(0, Performative::Flow(flow));
    peer.events();
    for key in 0..3 {
        peer.server.send(link, message(key, "x")).unwrap();
    }
    let all = Disposition {
        role: Role::Receiver,
        first: 0,
        last: Some(u32::MAX / 2),
        settled: true,
        ..Disposition::default()
    };
    peer.say(0, Performative::Disposition(all));
    assert_eq!(dispositions(&peer.events()).len(), 3);
}

/// A peer that sends requests and never reads does not cause unbounded output.
#[test]
fn unread_output_is_bounded() {
    let mut peer = Peer::begun(Config { outgoing_bytes_max: 10_000, ..plain() });
    let echo = Performative::Flow(Flow { echo: true, ..Flow::default() });
    let mut said = BytesMut::new();
    frame(&mut said, 0, &echo, b"");
    for _ in 0..10_000 {
        if !peer.server.wants_input() {
            break;
        }
        peer.server.feed(&said, 0);
        assert_eq!(peer.events(), []);
    }
    assert!(!peer.server.wants_input());
    let waiting = peer.server.take_output().len();
    assert!((20_000..21_000).contains(&waiting), "{waiting} bytes");
    assert!(peer.server.wants_input());
}

/// Everything that a busy peer sends, as one sequence of bytes.
fn conversation() -> Vec<u8> {
    let mut out = BytesMut::from(&b"AMQP\x00\x01\x00\x00"[..]);
    let flow = Flow {
        handle: Some(1),
        next_incoming_id: Some(0),
        incoming_window: 9,
        delivery_count: Some(0),
        link_credit: Some(5),
        ..Flow::default()
    };
    let disposition =
        Disposition { role: Role::Receiver, first: 0, last: Some(1), ..Default::default() };
    let more = Transfer { more: true, ..first(0, 1) };
    for (performative, payload) in [
        (open(), &b""[..]),
        (begin(), b""),
        (attach(0, "s", Role::Sender), b""),
        (attach(1, "r", Role::Receiver), b""),
        (transfer(0, 0), b"payload"),
        (Performative::Transfer(more), b"one"),
        (transfer(0, 1), b"two"),
        (Performative::Flow(flow), b""),
        (Performative::Disposition(disposition), b""),
        (Performative::Detach(Detach { handle: 1, closed: true, error: None }), b""),
        (Performative::End(End::default()), b""),
        (Performative::Close(Close::default()), b""),
    ] {
        frame(&mut out, 0, &performative, payload);
    }
    out.to_vec()
}

/// An owner that accepts everything.
fn converse(bytes: &[u8], split: usize) -> Vec<Event> {
    let mut server = Connection::server(plain(), 0);
    let mut events = Vec::new();
    for part in bytes.chunks(split.max(1)) {
        server.feed(part, 0);
        while let Some(event) = server.next_event() {
            match &event {
                Event::Open(_) => server.open(Open::default()).unwrap(),
                Event::Attach { link, attach } => {
                    server.accept(*link, attach.answer()).unwrap();
                    let _ = server.grant(*link, 100);
                }
                Event::Flow(flow) => {
                    let _ = server.send(flow.link, message(1, vec![1; 700]));
                }
                Event::Delivery(delivery) => {
                    let _ = server.dispose(delivery.link, delivery.delivery, true, None);
                }
                Event::Disposition(disposed) => {
                    let state = disposed.state.clone();
                    let _ = server.dispose(disposed.link, disposed.delivery, true, state);
                }
                Event::Detach { link, closed, .. } => server.detach(*link, *closed, None).unwrap(),
                Event::End { session, .. } => server.end(*session, None).unwrap(),
                Event::Close { .. } => server.close(None).unwrap(),
                _ => {}
            }
            events.push(event);
        }
        server.take_output();
    }
    events
}

#[test]
fn the_test_conversation_is_valid() {
    let events = converse(&conversation(), usize::MAX);
    assert!(matches!(events.last(), Some(Event::Close { error: None })), "{events:?}");
    assert_eq!(
        deliveries(&events).iter().map(|d| &d.payload[..]).collect::<Vec<_>>(),
        [&b"payload"[..], b"onetwo"]
    );
    for split in 1..40 {
        assert_eq!(converse(&conversation(), split), events);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn mutated_input_does_not_panic(
        bends in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(), split in 1..400_usize,
    ) {
        let mut bytes = conversation();
        for (at, with) in bends {
            let at = at.index(bytes.len());
            bytes[at] ^= with;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        converse(&bytes, split);
    }
}
