//! Client and server engines, connected to each other.
#![allow(clippy::unwrap_used)] // a test

mod common;

use bytes::Bytes;
use common::*;
use malote_wire_amqp::connection::*;
use malote_wire_amqp::performative::*;
use proptest::prelude::*;

fn client_config() -> Config {
    Config::default()
}

fn pair() -> Pair {
    Pair::opened(client_config(), server_config())
}

#[test]
fn a_message_is_sent_and_settled() {
    let mut pair = pair();
    let (client, server) = pair.link(sender("s"));
    assert_eq!(pair.client.send(client, message(1, "x")), Err(SendError::NoCredit));
    pair.server.grant(server, 2).unwrap();
    let seen = pair.settle();
    assert!(matches!(&seen.client[..], [Event::Flow(LinkFlow { credit: 2, drain: false, .. })]));
    assert_eq!(pair.client.credit(client), 2);
    pair.client.send(client, message(1, "hello")).unwrap();
    let seen = pair.settle();
    let [delivery] = deliveries(&seen.server)[..] else { panic!("{seen:?}") };
    assert_eq!(delivery.payload, "hello");
    assert_eq!(delivery.tag, &1_u64.to_be_bytes()[..]);
    assert!(!delivery.settled);
    let state = Some(DeliveryState::Accepted);
    assert_eq!(pair.server.dispose(server, delivery.delivery, true, state.clone()), Ok(true));
    assert_eq!(pair.server.dispose(server, delivery.delivery, true, state.clone()), Ok(false));
    let seen = pair.settle();
    let [disposed] = dispositions(&seen.client)[..] else { panic!("{seen:?}") };
    assert_eq!((disposed.key, disposed.settled, &disposed.state), (1, true, &state));
}

/// As in Service Bus: the receiver sends an outcome, and the sender confirms it.
#[test]
fn a_message_is_received_and_settled_in_two_steps() {
    let mut pair = pair();
    let (client, server) = pair.link(receiver("r"));
    pair.client.grant(client, 10).unwrap();
    pair.settle();
    for key in 0..5 {
        pair.server.send(server, message(key, "x")).unwrap();
    }
    let seen = pair.settle();
    for delivery in deliveries(&seen.client) {
        let state = Some(DeliveryState::Accepted);
        pair.client.dispose(client, delivery.delivery, false, state).unwrap();
    }
    // Adjacent deliveries are sent as one range.
    let ranged = pair.client.take_output();
    assert!(ranged.len() < 40, "{} bytes", ranged.len());
    pair.server.feed(&ranged, 0);
    let seen = pair.settle();
    let asked = dispositions(&seen.server);
    assert_eq!(asked.iter().map(|d| d.key).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(asked.iter().all(|d| !d.settled && d.state == Some(DeliveryState::Accepted)));
    // Confirmed in another order, one of them with an error.
    for disposed in asked.iter().rev() {
        let lost = AmqpError::new("com.microsoft:message-lock-lost", "too late");
        let state = match disposed.key {
            3 => DeliveryState::rejected(lost),
            _ => DeliveryState::Accepted,
        };
        assert_eq!(pair.server.dispose(server, disposed.delivery, true, Some(state)), Ok(true));
    }
    let seen = pair.settle();
    let answers = dispositions(&seen.client);
    assert_eq!(answers.iter().map(|d| d.delivery.0).collect::<Vec<_>>(), [4, 3, 2, 1, 0]);
    assert!(answers.iter().all(|d| d.settled));
    assert!(matches!(answers[1].state, Some(DeliveryState::Rejected(_))));
}

#[test]
fn settled_messages_leave_nothing_behind() {
    let config = Config { unsettled_max: 1, ..server_config() };
    let mut pair = Pair::opened(client_config(), config);
    let (client, server) = pair.link(receiver("r"));
    pair.client.grant(client, 10).unwrap();
    pair.settle();
    for key in 0..3 {
        pair.server.send(server, Outgoing { settled: true, ..message(key, "x") }).unwrap();
    }
    pair.server.send(server, message(9, "x")).unwrap();
    assert_eq!(pair.server.send(server, message(10, "x")), Err(SendError::Full));
    let seen = pair.settle();
    let settled: Vec<_> = deliveries(&seen.client).iter().map(|d| d.settled).collect();
    assert_eq!(settled, [true, true, true, false]);
}

/// Receive-and-delete: the settle mode of the link counts, not what the owner passes.
#[test]
fn a_link_of_settled_deliveries_sends_them_settled() {
    let mut pair = pair();
    let attach = Attach { snd_settle_mode: SenderSettleMode::Settled, ..receiver("r") };
    let (client, server) = pair.link(attach);
    pair.client.grant(client, 1).unwrap();
    pair.settle();
    pair.server.send(server, message(1, "x")).unwrap();
    let seen = pair.settle();
    let [delivery] = deliveries(&seen.client)[..] else { panic!("{seen:?}") };
    assert!(delivery.settled);
    assert_eq!(pair.client.dispose(client, delivery.delivery, true, None), Ok(false));
}

#[test]
fn a_cancelled_drain_uses_no_credit() {
    let small = Config { incoming_window: 1, ..client_config() };
    let mut pair = Pair::opened(small, server_config());
    let (client, server) = pair.link(receiver("r"));
    pair.client.grant(client, 5).unwrap();
    pair.client.drain(client).unwrap();
    pair.settle();
    for key in 0..3 {
        pair.server.send(server, message(key, "x")).unwrap();
    }
    // Two wait for the window, and the end of the drain waits for them.
    pair.server.drained(server).unwrap();
    pair.client.grant(client, 5).unwrap();
    let up = pair.client.take_output();
    pair.server.feed(&up, 0);
    while pair.server.next_event().is_some() {}
    let seen = pair.settle();
    assert_eq!(deliveries(&seen.client).len(), 3);
    assert_eq!((pair.client.credit(client), pair.server.credit(server)), (2, 2));
}

#[test]
fn a_refused_link_has_no_terminus_and_is_detached() {
    let mut pair = pair();
    let session = pair.client.begin().unwrap();
    let client = pair.client.attach(session, receiver("r")).unwrap();
    let seen = pair.settle();
    let Some(Event::Attach { link, .. }) = seen.server.last() else { panic!("{seen:?}") };
    let error = AmqpError::new(condition::NOT_FOUND, "no such queue");
    pair.server.refuse(*link, error.clone()).unwrap();
    let seen = pair.settle();
    let [Event::Attached { attach, .. }, Event::Detach { link: gone, closed: true, error: why }] =
        &seen.client[..]
    else {
        panic!("{seen:?}")
    };
    assert_eq!((&attach.source, &attach.target), (&None, &None));
    assert_eq!(attach.initial_delivery_count, Some(0));
    assert_eq!((gone, why), (&client, &Some(error)));
    pair.client.detach(client, true, None).unwrap();
    let seen = pair.settle();
    assert_eq!(seen.server, [Event::Detached { link: *link, error: None }]);
    assert_eq!(pair.server.grant(*link, 1), Err(UseError::Gone));
    // The session continues, and the handle is free again.
    pair.link_on(session, sender("s"));
}

/// Accept-next: one attach waits while everything else proceeds.
#[test]
fn an_attach_may_wait_for_its_answer() {
    let mut pair = pair();
    let session = pair.client.begin().unwrap();
    let waiting = pair.client.attach(session, receiver("next")).unwrap();
    pair.client.grant(waiting, 7).unwrap();
    let seen = pair.settle();
    let [Event::Begun { .. }, Event::Attach { link, attach }, Event::Flow(flow)] = &seen.server[..]
    else {
        panic!("{seen:?}")
    };
    assert_eq!(flow.credit, 7);
    assert_eq!(pair.server.credit(*link), 0, "not before it is accepted");
    let (client, server) = pair.link_on(session, sender("s"));
    pair.server.grant(server, 1).unwrap();
    pair.settle();
    pair.client.send(client, message(1, "x")).unwrap();
    assert_eq!(deliveries(&pair.settle().server).len(), 1);
    let mut answer = attach.answer();
    answer.initial_delivery_count = Some(100);
    pair.server.accept(*link, answer).unwrap();
    assert_eq!(pair.server.credit(*link), 7);
    pair.server.send(*link, message(2, "y")).unwrap();
    assert_eq!(deliveries(&pair.settle().client).len(), 1);
    assert_eq!(pair.client.credit(waiting), 6);
}

#[test]
fn a_drain_uses_up_the_credit() {
    let mut pair = pair();
    let (client, server) = pair.link(receiver("r"));
    pair.client.grant(client, 10).unwrap();
    pair.settle();
    pair.client.drain(client).unwrap();
    let seen = pair.settle();
    assert!(matches!(&seen.server[..], [Event::Flow(LinkFlow { credit: 10, drain: true, .. })]));
    assert!(pair.server.is_draining(server));
    pair.server.send(server, message(1, "x")).unwrap();
    pair.server.drained(server).unwrap();
    let seen = pair.settle();
    let [Event::Delivery(_), Event::Flow(flow)] = &seen.client[..] else { panic!("{seen:?}") };
    assert_eq!((flow.credit, flow.drain), (0, true));
    assert_eq!((pair.client.credit(client), pair.server.credit(server)), (0, 0));
    // Both ends still have the same count.
    pair.client.grant(client, 1).unwrap();
    pair.settle();
    assert_eq!(pair.server.credit(server), 1);
    pair.server.send(server, message(2, "y")).unwrap();
    assert_eq!(pair.server.send(server, message(3, "z")), Err(SendError::NoCredit));
    assert_eq!(deliveries(&pair.settle().client).len(), 1);
}

#[test]
fn large_messages_are_cut_by_the_peers_frame_size_and_window() {
    let small = Config { max_frame_size: 512, incoming_window: 4, ..client_config() };
    let mut pair = Pair::opened(small, server_config());
    let (client, server) = pair.link(receiver("r"));
    pair.client.grant(client, 10).unwrap();
    pair.settle();
    let large: Bytes = (0..20_000_u32).map(|n| n as u8).collect();
    pair.server.send(server, message(1, large.clone())).unwrap();
    pair.server.send(server, message(2, "after")).unwrap();
    // Four frames may be sent; the rest waits.
    assert!(pair.server.free_output_bytes() < (1 << 20) - 15_000);
    let first = pair.server.take_output();
    assert!(first.len() <= 4 * 512, "{} bytes", first.len());
    // A drain waits for queued messages.
    pair.server.drained(server).unwrap();
    assert!(!pair.server.has_output());
    pair.client.feed(&first, 0);
    let seen = pair.settle();
    let got = deliveries(&seen.client);
    assert_eq!(got[0].payload, large);
    assert_eq!(got[1].payload, "after");
    assert!(matches!(seen.client.last(), Some(Event::Flow(LinkFlow { credit: 0, .. }))));
    assert_eq!(seen.server, [Event::Unblocked { session: server.session() }]);
    assert_eq!(pair.server.free_output_bytes(), 1 << 20);
}

#[test]
fn lowered_credit_holds_back_queued_transfers() {
    let small = Config { incoming_window: 1, ..client_config() };
    let mut pair = Pair::opened(small, server_config());
    let session = pair.client.begin().unwrap();
    let (one, one_server) = pair.link_on(session, receiver("one"));
    let (two, two_server) = pair.link_on(session, receiver("two"));
    pair.client.grant(one, 5).unwrap();
    pair.client.grant(two, 5).unwrap();
    pair.settle();
    for key in 0..3 {
        pair.server.send(one_server, message(key, "one")).unwrap();
    }
    pair.server.send(two_server, message(9, "two")).unwrap();
    // Before the window opens again, the first link withdraws its credit.
    pair.client.grant(one, 0).unwrap();
    let down = pair.server.take_output();
    let up = pair.client.take_output();
    pair.server.feed(&up, 0);
    while pair.server.next_event().is_some() {}
    pair.client.feed(&down, 0);
    let seen = pair.settle();
    // Messages already sent are accepted; those of the other link overtake the queued ones.
    let keys: Vec<_> = deliveries(&seen.client).iter().map(|d| d.payload.clone()).collect();
    assert_eq!(keys, ["one", "two"]);
    pair.client.grant(one, 5).unwrap();
    assert_eq!(deliveries(&pair.settle().client).len(), 2);
}

#[test]
fn ends_and_closes_are_answered() {
    let mut pair = pair();
    let (client, server) = pair.link(sender("s"));
    pair.client.detach(client, true, None).unwrap();
    let seen = pair.settle();
    assert_eq!(seen.server, [Event::Detach { link: server, closed: true, error: None }]);
    assert!(seen.client.is_empty(), "nothing before the owner's answer");
    pair.server.detach(server, true, None).unwrap();
    assert_eq!(pair.settle().client, [Event::Detached { link: client, error: None }]);
    pair.client.end(client.session(), None).unwrap();
    let seen = pair.settle();
    assert_eq!(seen.server, [Event::End { session: server.session(), error: None }]);
    pair.server.end(server.session(), None).unwrap();
    assert_eq!(pair.settle().client, [Event::Ended { session: client.session(), error: None }]);
    let error = AmqpError::new(condition::CONNECTION_FORCED, "restart");
    pair.server.close(Some(error.clone())).unwrap();
    assert_eq!(pair.settle().client, [Event::Close { error: Some(error) }]);
    pair.client.close(None).unwrap();
    assert!(pair.client.is_finished() && !pair.server.is_finished());
    assert_eq!(pair.settle().server, [Event::Closed { error: None }]);
    assert!(pair.server.is_finished());
    assert_eq!(pair.server.begin(), Err(UseError::OutOfTurn));
}

#[test]
fn ids_are_never_reused() {
    let mut pair = pair();
    let (client, server) = pair.link(sender("s"));
    pair.client.end(client.session(), None).unwrap();
    pair.settle();
    pair.server.end(server.session(), None).unwrap();
    pair.settle();
    let (again, _) = pair.link(sender("s"));
    assert_ne!(client, again);
    assert_eq!(pair.client.detach(client, true, None), Err(UseError::Gone));
    assert_eq!(pair.server.grant(server, 1), Err(UseError::Gone));
    assert_eq!(pair.client.send(client, message(1, "x")), Err(SendError::NotAttached));
}

#[test]
fn idle_connections_are_closed_unless_empty_frames_arrive() {
    let quiet = Config { idle_time_out_ms: None, ..client_config() };
    let strict = Config { idle_time_out_ms: Some(1_000), ..server_config() };
    let mut pair = Pair::opened(quiet, strict);
    assert_eq!(pair.client.next_tick_ms(), Some(500));
    assert_eq!(pair.server.next_tick_ms(), Some(2_000));
    for now_ms in (500..=5_000).step_by(500) {
        pair.now_ms = now_ms;
        pair.client.tick(now_ms);
        pair.server.tick(now_ms);
        let out = pair.client.take_output();
        assert_eq!(&out[..], b"\0\0\0\x08\x02\0\0\0", "at {now_ms}");
        pair.server.feed(&out, now_ms);
        assert_eq!(pair.server.next_event(), None);
    }
    pair.server.tick(6_999);
    assert!(!pair.server.is_finished());
    pair.server.tick(7_000);
    assert!(matches!(pair.server.next_event(), Some(Event::Failed(_))));
    assert!(pair.server.is_finished());
    let seen = pair.settle();
    let [Event::Close { error: Some(error) }] = &seen.client[..] else { panic!("{seen:?}") };
    assert_eq!(error.condition, condition::RESOURCE_LIMIT_EXCEEDED);
}

#[test]
fn a_server_may_refuse_in_sasl_or_in_open() {
    let mut pair = Pair::new(client_config(), server_config());
    pair.settle();
    pair.client.sasl_init(SaslInit::default()).unwrap();
    pair.settle();
    pair.server.sasl_challenge(Bytes::from_static(b"who?")).unwrap();
    let seen = pair.settle();
    assert!(matches!(&seen.client[..], [Event::SaslChallenge(asked)] if asked.challenge == "who?"));
    assert_eq!(pair.client.open(Open::default()), Err(UseError::OutOfTurn));
    pair.client.sasl_response(Bytes::from_static(b"me")).unwrap();
    let seen = pair.settle();
    assert!(matches!(&seen.server[..], [Event::SaslResponse(said)] if said.response == "me"));
    pair.server.sasl_outcome(SaslCode::Auth).unwrap();
    let seen = pair.settle();
    assert!(matches!(&seen.client[..], [Event::SaslOutcome(o)] if o.code == SaslCode::Auth));
    assert!(pair.client.is_finished() && pair.server.is_finished());

    let plain = |config| Config { sasl: false, ..config };
    let mut pair = Pair::new(plain(client_config()), plain(server_config()));
    pair.client.open(Open::default()).unwrap();
    // Sent before the reply, so it waits for it.
    let session = pair.client.begin().unwrap();
    pair.client.attach(session, sender("s")).unwrap();
    let seen = pair.settle();
    assert!(matches!(seen.server[..], [Event::Open(_)]), "{seen:?}");
    pair.server.close(Some(AmqpError::new(condition::NOT_ALLOWED, "full"))).unwrap();
    let seen = pair.settle();
    assert!(matches!(seen.client[..], [Event::Open(_), Event::Close { error: Some(_) }]));
}

#[test]
fn layers_are_not_mixed() {
    let mut server = Connection::server(server_config(), 0);
    server.feed(b"AMQP\x00\x01\x00\x00", 0);
    assert!(matches!(server.next_event(), Some(Event::Failed(_))));
    assert!(server.is_finished());
    assert_eq!(&server.take_output()[..], b"AMQP\x03\x01\x00\x00");
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1..200_usize, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the bytes are split and the windows are set, everything arrives once, in order, and is settled.
    #[test]
    fn all_arrives_in_order(
        cuts in cuts(),
        sizes in proptest::collection::vec(0..3_000_usize, 1..40),
        frame in 512..2_000_u32, window in 1..10_u32, credit in 1..8_u32, up: bool, written: bool,
    ) {
        let config = Config {
            max_frame_size: frame,
            incoming_window: window,
            ignore_remote_max_message_size: written,
            track_unsent: written,
            ..client_config()
        };
        let mut pair = Pair::new(config.clone(), Config { mechanisms: server_config().mechanisms, ..config })
            .cut(cuts);
        pair.shake_hands();
        let (client, server) = pair.link(if up { sender("l") } else { receiver("l") });
        let mut left: Vec<(u64, usize)> = sizes.iter().copied().enumerate().map(|(k, s)| (k as u64, s)).rev().collect();
        let (mut got, mut settled, mut open) = (Vec::new(), Vec::new(), 0);
        let mut idle = 0;
        while settled.len() < sizes.len() {
            let Pair { client: c, server: s, .. } = &mut pair;
            let (from, from_link, to, to_link) =
                if up { (c, client, s, server) } else { (s, server, c, client) };
            if to.credit(to_link) == 0 && open < credit {
                to.grant(to_link, credit).unwrap();
            }
            while let Some((key, size)) = left.last().copied() {
                let body = vec![key as u8; size];
                let sent = match written {
                    true => from.send_with(from_link, message(key, Bytes::new()), |out| out.extend_from_slice(&body)),
                    false => from.send(from_link, message(key, body)),
                };
                match sent {
                    Ok(()) => { left.pop(); }
                    Err(SendError::NoCredit | SendError::Full) => break,
                    Err(other) => panic!("{other}"),
                }
            }
            let mut seen = Seen::default();
            idle = if pair.travel(&mut seen) { 0 } else { idle + 1 };
            prop_assert!(idle < 3, "stuck with {} of {} settled", settled.len(), sizes.len());
            let (sent, received) = if up { (seen.client, seen.server) } else { (seen.server, seen.client) };
            for delivery in deliveries(&received) {
                prop_assert!(delivery.payload.iter().all(|byte| [*byte] == delivery.tag[7..]));
                got.push((delivery.tag.clone(), delivery.payload.len()));
                open += 1;
                let to = if up { &mut pair.server } else { &mut pair.client };
                to.dispose(to_link, delivery.delivery, false, Some(DeliveryState::Accepted)).unwrap();
            }
            for asked in dispositions(&sent) {
                prop_assert!(!asked.settled);
                let from = if up { &mut pair.client } else { &mut pair.server };
                prop_assert_eq!(from.dispose(from_link, asked.delivery, true, asked.state.clone()), Ok(true));
            }
            for done in dispositions(&received) {
                prop_assert!(done.settled);
                open -= 1;
                settled.push(done.delivery.0);
            }
        }
        let expected: Vec<_> = sizes.iter().enumerate()
            .map(|(key, size)| (Bytes::copy_from_slice(&(key as u64).to_be_bytes()), *size)).collect();
        prop_assert_eq!(got, expected);
        prop_assert_eq!(settled, (0..sizes.len() as u32).collect::<Vec<_>>());
    }
}

#[test]
fn the_receivers_size_limit_can_be_ignored() {
    for overrule in [false, true] {
        let server = Config { ignore_remote_max_message_size: overrule, ..server_config() };
        let mut pair = Pair::opened(Config::default(), server);
        let (client, link) = pair.link(Attach { max_message_size: Some(10), ..receiver("r") });
        pair.client.grant(client, 1).unwrap();
        pair.settle();
        let sent = pair.server.send(link, message(1, vec![7; 11]));
        let refused = Err(SendError::TooLarge { size_bytes_max: 10 });
        assert_eq!(sent, if overrule { Ok(()) } else { refused });
    }
}
