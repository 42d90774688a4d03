//! Scripts of a measured load over time, and the decisions of the scaler.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use malote_connectors::SessionDepth;

use super::*;

/// The load is measured every second.
const STEP: Duration = Duration::from_secs(1);

/// Runs a script. Each line is a number of seconds and the load during them; a word without a value is true. `in=` is
/// the number of messages that arrive and are handled each second, and `took=` the handler duration in milliseconds.
struct Script {
    scaler: Scaler,
    now: Duration,
    signals: Signals,
    output: String,
    changes: usize,
    last: Option<(Duration, Reason)>,
}

impl Script {
    fn new(bounds: Bounds) -> Self {
        let signals = Signals { slots_each: 1, ..Signals::default() };
        Self {
            scaler: Scaler::new(bounds, Scale::default()),
            now: Duration::ZERO,
            signals,
            output: String::new(),
            changes: 0,
            last: None,
        }
    }

    fn step(&mut self) {
        let decision = self.scaler.decide(self.now, &self.signals);
        let (now, reason) = (self.now.as_secs(), decision.reason);
        let holds = matches!(reason, Reason::Breaker | Reason::Paused | Reason::Limited);
        let first = self.last.is_none_or(|(_, last)| last != reason);
        if decision.is_change() || (holds && first) {
            writeln!(self.output, "{now} s  {decision}").unwrap();
        }
        self.changes += usize::from(decision.is_change());
        self.last = Some((self.now, reason));
        self.now += STEP;
    }

    fn line(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let seconds: u64 = words.next().unwrap().parse().unwrap();
        let old = self.signals.depth.unwrap_or_default().sent;
        let mut depth = Depth { sent: Some(old.unwrap_or_default()), ..Depth::default() };
        let (mut reported, mut arrivals, mut took, mut counted) = (true, 0, 0, true);
        (self.signals.busy, self.signals.hold) = (0, None);
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, "1"));
            let value: u64 = value.parse().unwrap();
            match name {
                "ready" => depth.ready = value,
                "age" => depth.oldest = Duration::from_secs(value),
                "in" => arrivals = value,
                "took" => took = value,
                "busy" => self.signals.busy = value as usize,
                "each" => self.signals.slots_each = value as usize,
                "runnable" => depth.sessions.get_or_insert_default().runnable = value,
                "held" => depth.sessions.get_or_insert_default().held = value,
                "paused" => depth.paused = true,
                "breaker" => self.signals.hold = Some(ScaleBlocker::Breaker),
                "limit" => self.signals.hold = Some(ScaleBlocker::Limit),
                "unreported" => reported = false,
                "uncounted" => counted = false,
                "uncounted_sessions" => depth.uncounted_sessions = true,
                other => panic!("{other}"),
            }
        }
        for _ in 0..seconds {
            depth.sent = depth.sent.map(|sent| sent + arrivals);
            self.signals.ended += arrivals;
            self.signals.took += Duration::from_millis(took * arrivals);
            let sent = depth.sent.filter(|_| counted);
            self.signals.depth = reported.then_some(Depth { sent, ..depth });
            self.step();
        }
    }
}

fn check(bounds: &str, script: &str, expected: Expect) {
    let mut run = Script::new(bounds.parse().unwrap());
    script.lines().map(str::trim).filter(|line| !line.is_empty()).for_each(|line| run.line(line));
    expected.assert_eq(&run.output);
}

#[test]
fn waiting_messages_start_more_soon_and_an_empty_queue_stops_some_later() {
    check(
        "1..8",
        "5 ready=0
         60 ready=5000 each=100 busy=100
         30 ready=0 each=100 busy=10
         200 each=100",
        expect![[r#"
            20 s  1 -> 5: waiting (needs 5.0)
            185 s  5 -> 1: idle (needs 0.0)
        "#]],
    );
}

#[test]
fn a_short_peak_changes_nothing() {
    check("1..8", "14 ready=5000\n 5 ready=0\n 14 ready=5000\n 5 ready=0", expect![[""]]);
}

#[test]
fn sessions_with_work_count_instead_of_messages() {
    check(
        "1..8",
        "30 ready=1000000 runnable=1 held=2 each=10
         30 ready=50 runnable=40 held=5 each=10
         150 held=9 each=10",
        expect![[r#"
            45 s  1 -> 5: sessions (needs 4.5)
            180 s  5 -> 2: sessions (needs 0.9)
        "#]],
    );
}

#[test]
fn arrival_rate_times_handler_duration_counts() {
    // 50 messages a second of 200 ms each keep ten slots busy all the time, and 14.3 slots for 70 % of it.
    check(
        "1..32",
        "90 in=50 took=200\n 300 in=10 took=200",
        expect![[r#"
            17 s  1 -> 2: load (needs 9.7)
            33 s  2 -> 10: load (needs 12.7)
            49 s  10 -> 13: load (needs 13.7)
            65 s  13 -> 14: load (needs 14.1)
            81 s  14 -> 15: load (needs 14.2)
            213 s  15 -> 14: load (needs 2.9)
            334 s  14 -> 4: load (needs 2.9)
        "#]],
    );
}

#[test]
fn the_age_of_the_oldest_message_counts() {
    check(
        "1..8",
        "20 ready=1 age=29\n 20 ready=1 age=100",
        expect![[r#"
            35 s  1 -> 4: age (needs 3.3)
        "#]],
    );
}

#[test]
fn busy_slots_count_on_a_broker_that_reports_nothing() {
    check(
        "1..8",
        "40 unreported each=10 busy=10\n 40 unreported each=10 busy=20\n 200 unreported each=10 busy=2",
        expect![[r#"
            15 s  1 -> 2: busy (needs 1.4)
            55 s  2 -> 3: busy (needs 2.9)
            200 s  3 -> 1: busy (needs 0.3)
        "#]],
    );
}

#[test]
fn busy_slots_and_waiting_messages_count_on_a_broker_that_does_not_count_arrivals() {
    check(
        "1..8",
        "40 uncounted each=10 busy=10\n 40 uncounted each=10 busy=20 ready=600\n 200 uncounted each=10 busy=2",
        expect![[r#"
            15 s  1 -> 2: busy (needs 1.4)
            55 s  2 -> 6: waiting (needs 6.0)
            200 s  6 -> 1: busy (needs 0.3)
        "#]],
    );
}

#[test]
fn messages_in_uncounted_sessions_are_ignored() {
    check(
        "1..8",
        "40 uncounted_sessions ready=1000000 each=10 busy=10",
        expect![[r#"
            15 s  1 -> 2: busy (needs 1.4)
        "#]],
    );
}

#[test]
fn running_handlers_are_not_stopped() {
    check(
        "1..8",
        "30 ready=80\n 300 busy=8\n 130 busy=3",
        expect![[r#"
            15 s  1 -> 8: waiting (needs 8.0)
            450 s  8 -> 3: idle (needs 0.0)
        "#]],
    );
}

#[test]
fn the_number_does_not_grow_while_more_would_not_help() {
    check(
        "1..8",
        "60 ready=500 breaker
         60 ready=500 paused
         60 ready=500 limit
         20 ready=500
         200 ready=0 breaker",
        expect![[r#"
            0 s  1: breaker_open (needs 50.0)
            60 s  1: paused (needs 50.0)
            120 s  1: rate_limited (needs 50.0)
            195 s  1 -> 8: waiting (needs 50.0)
            320 s  8 -> 1: idle (needs 0.0)
        "#]],
    );
}

#[test]
fn an_unknown_load_changes_nothing_and_restarts_the_waiting_time() {
    let mut run = Script::new((1..=8).into());
    run.line("14 ready=500");
    let unknown = run.scaler.unknown();
    assert_eq!((unknown.wanted, unknown.reason), (1, Reason::Unknown));
    run.line("15 ready=500");
    assert_eq!(run.scaler.wanted(), 1);
    run.line("1 ready=500");
    assert_eq!(run.scaler.wanted(), 8);
}

/// A reproducible random generator.
struct Noise(u64);

impl Noise {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

#[test]
fn a_noisy_load_does_not_cause_many_changes() {
    for seed in 0..50 {
        let (mut run, mut noise) = (Script::new((1..=16).into()), Noise(seed));
        // About the load of five slots, with a variation of a fifth, for an hour.
        for _ in 0..3600 {
            let depth = Depth { ready: 40 + noise.below(20), ..Depth::default() };
            run.signals.depth = Some(depth);
            run.step();
        }
        assert!(run.changes <= 2, "{} changes\n{}", run.changes, run.output);
    }
}

#[test]
fn the_number_stays_within_its_bounds_and_changes_slowly_under_any_load() {
    for seed in 0..300 {
        let mut noise = Noise(seed);
        let min = 1 + noise.below(20) as usize;
        let bounds = Bounds { min, max: min + noise.below(50) as usize };
        let mut scaler = Scaler::new(bounds, Scale::default());
        let (mut now, mut changed) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..400 {
            let any = |noise: &mut Noise| match noise.below(4) {
                0 => 0,
                1 => noise.below(100),
                2 => u64::MAX,
                _ => noise.below(u64::MAX >> 40),
            };
            let sessions = (noise.below(2) == 0).then(|| SessionDepth {
                runnable: any(&mut noise),
                held: any(&mut noise),
                other: 0,
            });
            let depth = Depth {
                ready: any(&mut noise),
                oldest: Duration::from_millis(any(&mut noise)),
                sent: (noise.below(3) > 0).then(|| any(&mut noise)),
                paused: noise.below(9) == 0,
                sessions,
                ..Depth::default()
            };
            let signals = Signals {
                depth: (noise.below(5) > 0).then_some(depth),
                slots_each: any(&mut noise) as usize,
                busy: any(&mut noise) as usize,
                ended: any(&mut noise),
                took: Duration::from_millis(any(&mut noise)),
                hold: [None, Some(ScaleBlocker::Breaker), Some(ScaleBlocker::Limit)]
                    [noise.below(3) as usize],
            };
            let decision = scaler.decide(now, &signals);
            assert!((bounds.min..=bounds.max).contains(&decision.wanted), "{decision:?}");
            assert_eq!(decision.wanted, scaler.wanted());
            if decision.is_change() {
                let grows = decision.wanted > decision.before;
                let scale = Scale::default();
                let least = if grows { scale.up_after } else { scale.down_after };
                assert!(now - changed >= least, "{decision:?} at {now:?} after {changed:?}");
                let helps = signals.hold.is_none() && !signals.depth.is_some_and(|d| d.paused);
                assert!(!grows || helps, "{decision:?} {signals:?}");
                changed = now;
            }
            now += Duration::from_millis(noise.below(5000));
        }
    }
}

#[test]
fn bounds_are_parsed() {
    assert_eq!("8".parse(), Ok(Bounds::from(8)));
    assert_eq!("2..64".parse(), Ok(Bounds::from(2..=64)));
    for bad in ["", "0", "0..3", "3..2", "a", "1...3", "1..", "..3", "-1"] {
        assert!(bad.parse::<Bounds>().is_err(), "{bad}");
    }
    assert_eq!(
        (Bounds::from(8).to_string(), Bounds::from(2..=64).to_string()),
        ("8".into(), "2..64".into())
    );
}
