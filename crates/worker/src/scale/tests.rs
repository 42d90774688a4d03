//! Scripts: what is seen for how long, and when the number changes.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use malote_connectors::SessionDepth;

use super::*;

/// A look every second.
const LOOK: Duration = Duration::from_secs(1);

/// Each line is a number of seconds and what is seen in them; a word without a value is true. Of `in=` messages come in
/// each second, and handlers of `took=` milliseconds end as often.
struct Script {
    scaler: Scaler,
    now: Duration,
    signals: Signals,
    said: String,
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
            said: String::new(),
            changes: 0,
            last: None,
        }
    }

    fn look(&mut self) {
        let decision = self.scaler.decide(self.now, &self.signals);
        let (now, reason) = (self.now.as_secs(), decision.reason);
        let holds = matches!(reason, Reason::Breaker | Reason::Paused | Reason::Limited);
        let first = self.last.is_none_or(|(_, last)| last != reason);
        if decision.is_change() || (holds && first) {
            writeln!(self.said, "{now} s  {decision}").unwrap();
        }
        self.changes += usize::from(decision.is_change());
        self.last = Some((self.now, reason));
        self.now += LOOK;
    }

    fn line(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let seconds: u64 = words.next().unwrap().parse().unwrap();
        let old = self.signals.depth.unwrap_or_default().sent;
        let mut depth = Depth { sent: Some(old.unwrap_or_default()), ..Depth::default() };
        let (mut told, mut come, mut took, mut counted) = (true, 0, 0, true);
        (self.signals.busy, self.signals.hold) = (0, None);
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, "1"));
            let value: u64 = value.parse().unwrap();
            match name {
                "ready" => depth.ready = value,
                "age" => depth.oldest = Duration::from_secs(value),
                "in" => come = value,
                "took" => took = value,
                "busy" => self.signals.busy = value as usize,
                "each" => self.signals.slots_each = value as usize,
                "runnable" => depth.sessions.get_or_insert_default().runnable = value,
                "held" => depth.sessions.get_or_insert_default().held = value,
                "paused" => depth.paused = true,
                "breaker" => self.signals.hold = Some(Hold::Breaker),
                "limit" => self.signals.hold = Some(Hold::Limit),
                "untold" => told = false,
                "uncounted" => counted = false,
                "uncounted_sessions" => depth.uncounted_sessions = true,
                other => panic!("{other}"),
            }
        }
        for _ in 0..seconds {
            depth.sent = depth.sent.map(|sent| sent + come);
            self.signals.ended += come;
            self.signals.took += Duration::from_millis(took * come);
            let sent = depth.sent.filter(|_| counted);
            self.signals.depth = told.then_some(Depth { sent, ..depth });
            self.look();
        }
    }
}

fn check(bounds: &str, script: &str, expected: Expect) {
    let mut run = Script::new(bounds.parse().unwrap());
    script.lines().map(str::trim).filter(|line| !line.is_empty()).for_each(|line| run.line(line));
    expected.assert_eq(&run.said);
}

#[test]
fn what_waits_begins_more_after_a_while_and_fewer_after_a_longer_one() {
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
fn sessions_with_work_are_what_counts_and_not_messages() {
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
fn what_comes_in_times_how_long_it_takes() {
    // 50 a second of 200 ms each keep ten slots busy: of slots that are busy for 70 %, that is more.
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
fn the_age_of_the_oldest_counts() {
    check(
        "1..8",
        "20 ready=1 age=29\n 20 ready=1 age=100",
        expect![[r#"
            35 s  1 -> 4: age (needs 3.3)
        "#]],
    );
}

#[test]
fn of_a_broker_that_tells_nothing_busy_slots_count() {
    check(
        "1..8",
        "40 untold each=10 busy=10\n 40 untold each=10 busy=20\n 200 untold each=10 busy=2",
        expect![[r#"
            15 s  1 -> 2: busy (needs 1.4)
            55 s  2 -> 3: busy (needs 2.9)
            200 s  3 -> 1: busy (needs 0.3)
        "#]],
    );
}

#[test]
fn of_a_broker_that_does_not_count_what_comes_in_busy_slots_and_what_waits_count() {
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
fn messages_of_sessions_that_nobody_counts_say_nothing() {
    check(
        "1..8",
        "40 uncounted_sessions ready=1000000 each=10 busy=10",
        expect![[r#"
            15 s  1 -> 2: busy (needs 1.4)
        "#]],
    );
}

#[test]
fn what_runs_is_not_stopped() {
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
fn nothing_grows_while_it_would_not_help() {
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
fn what_is_unknown_changes_nothing_and_begins_the_wait_anew() {
    let mut run = Script::new((1..=8).into());
    run.line("14 ready=500");
    let unknown = run.scaler.unknown();
    assert_eq!((unknown.wanted, unknown.reason), (1, Reason::Unknown));
    run.line("15 ready=500");
    assert_eq!(run.scaler.wanted(), 1);
    run.line("1 ready=500");
    assert_eq!(run.scaler.wanted(), 8);
}

/// The same numbers in every run.
struct Noise(u64);

impl Noise {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

#[test]
fn noise_does_not_make_it_flap() {
    for seed in 0..50 {
        let (mut run, mut noise) = (Script::new((1..=16).into()), Noise(seed));
        // About as much as five need, a fifth more or less; and an hour of it.
        for _ in 0..3600 {
            let depth = Depth { ready: 40 + noise.below(20), ..Depth::default() };
            run.signals.depth = Some(depth);
            run.look();
        }
        assert!(run.changes <= 2, "{} changes\n{}", run.changes, run.said);
    }
}

#[test]
fn whatever_is_seen_it_stays_within_its_bounds_and_changes_slowly() {
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
                hold: [None, Some(Hold::Breaker), Some(Hold::Limit)][noise.below(3) as usize],
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
fn bounds_are_read() {
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
