//! Decides how many slots or processes there should be, and why.
//!
//! A queue with sessions needs as many as its sessions with work. Other queues need the maximum of three values:
//! waiting messages, arrival rate times handler duration, and the age of the oldest message. If the broker does not
//! report these values, the number of busy handlers decides.
//!
//! The number grows after more were needed for some time, and shrinks after fewer were needed for a longer time. It
//! does not grow while more would not help: a breaker is open, the queue is paused, or a rate is used up. The scaler is
//! plain data; the caller passes the current time.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use malote_connectors::Depth;
use serde::{Deserialize, Serialize};

/// The fraction of its time that a slot should be busy. The rest absorbs uneven load.
const BUSY_TARGET: f64 = 0.7;
/// The number shrinks only if it is larger than needed by this factor.
const HYSTERESIS: f64 = 1.2;
/// Time constant of the moving average of the arrival rate.
const ARRIVAL_WINDOW: Duration = Duration::from_secs(15);
/// The latest handler duration has the weight 1/4 in the moving average.
const WEIGHT: f64 = 4.0;

/// The minimum and maximum number of slots or processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The smallest number of workers.
    pub min: usize,
    /// The largest number of workers.
    pub max: usize,
}

impl Bounds {
    /// Whether minimum and maximum are the same.
    pub fn is_fixed(self) -> bool {
        self.min == self.max
    }
}

impl From<usize> for Bounds {
    fn from(count: usize) -> Self {
        Self { min: count, max: count }
    }
}

impl From<RangeInclusive<usize>> for Bounds {
    fn from(range: RangeInclusive<usize>) -> Self {
        Self { min: *range.start(), max: *range.end() }
    }
}

impl FromStr for Bounds {
    type Err = String;

    /// Parses `8`, or `1..8` for one to eight.
    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        match (min.parse(), max.parse()) {
            (Ok(min), Ok(max)) if (1..=max).contains(&min) => Ok(Self { min, max }),
            _ => Err("expected a number, or a range such as 1..8".into()),
        }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_fixed() {
            true => write!(f, "{}", self.min),
            false => write!(f, "{}..{}", self.min, self.max),
        }
    }
}

/// When the number of slots or processes changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// The number grows after more were needed for this time.
    pub up_after: Duration,
    /// The number shrinks after fewer were needed for this time.
    pub down_after: Duration,
    /// Waiting messages per slot.
    pub waiting_each: u32,
    /// The age of the oldest message that one slot or process accounts for.
    pub waiting_for: Duration,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            up_after: Duration::from_secs(15),
            down_after: Duration::from_secs(120),
            waiting_each: 10,
            waiting_for: Duration::from_secs(30),
        }
    }
}

impl Scale {
    /// How often the load is measured.
    pub fn look_every(&self) -> Duration {
        (self.up_after / 5).clamp(Duration::from_millis(50), Duration::from_secs(1))
    }
}

/// The measured load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// The depth of the queue. `None` if the broker does not report it.
    pub depth: Option<Depth>,
    /// Handlers that each unit runs at a time: 1 when slots are scaled, the slots of a process when processes are.
    pub slots_each: usize,
    /// Running handlers of all units.
    pub busy: usize,
    /// Handled messages of all units since the start.
    pub ended: u64,
    /// The sum of their handler durations.
    pub took: Duration,
    /// Why more units would not help now.
    pub hold: Option<ScaleBlocker>,
}

/// Why more slots or processes would not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleBlocker {
    /// A breaker is open.
    Breaker,
    /// A rate is used up, or a handler asked for a pause.
    Limit,
}

macro_rules! reasons {
    ($($(#[$doc:meta])+ $name:ident $word:literal,)+) => {
        /// The signal that decided the number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reason { $($(#[$doc])+ $name,)+ }

        impl Reason {
            /// All reasons, in the order of the declaration.
            pub const ALL: &'static [Reason] = &[$(Self::$name),+];

            /// The name in metrics and logs.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)+ }
            }
        }
    };
}

reasons! {
    /// The queue has no work.
    Idle "idle",
    /// Sessions with work.
    Sessions "sessions",
    /// Messages wait for a worker.
    Waiting "waiting",
    /// Arrival rate times handler duration.
    Load "load",
    /// The age of the oldest message.
    Age "age",
    /// Running handlers, on a broker that does not report waiting messages or arrivals.
    Busy "busy",
    /// More would be needed but would not help: a breaker is open.
    Breaker "breaker_open",
    /// More would be needed but would not help: the queue is paused.
    Paused "paused",
    /// More would be needed but would not help: a rate is used up.
    Limited "rate_limited",
    /// The broker does not answer, and the number stays the same.
    Unknown "unknown",
}

/// The wanted number of slots or processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The wanted number.
    pub wanted: usize,
    /// The number before this decision.
    pub before: usize,
    /// The signal that decided the number.
    pub reason: Reason,
    /// The number needed by that signal, before bounds and waiting times.
    pub needed: f64,
}

impl Decision {
    /// Whether the number changes.
    pub fn is_change(&self) -> bool {
        self.wanted != self.before
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, before, reason, needed } = self;
        match self.is_change() {
            true => write!(f, "{before} -> {wanted}: {} (needs {needed:.1})", reason.word()),
            false => write!(f, "{wanted}: {} (needs {needed:.1})", reason.word()),
        }
    }
}

/// Decides how many slots or processes there should be.
#[derive(Clone, Debug)]
pub struct Scaler {
    bounds: Bounds,
    scale: Scale,
    wanted: usize,
    /// Since when more were needed, and the smallest number needed since then.
    above: Option<(Duration, usize)>,
    /// Since when fewer were needed, and the largest number needed since then.
    below: Option<(Duration, usize)>,
    arrivals: ArrivalRate,
    handler_time: HandlerTime,
}

impl Scaler {
    /// Starts with the minimum.
    pub fn new(bounds: impl Into<Bounds>, scale: Scale) -> Self {
        let bounds = bounds.into();
        Self {
            bounds,
            scale,
            wanted: bounds.min,
            above: None,
            below: None,
            arrivals: ArrivalRate::default(),
            handler_time: HandlerTime::default(),
        }
    }

    /// The number that was decided last.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Keeps the number because the load is unknown. The waiting times start again.
    pub fn unknown(&mut self) -> Decision {
        (self.above, self.below) = (None, None);
        let (wanted, before) = (self.wanted, self.wanted);
        Decision { wanted, before, reason: Reason::Unknown, needed: wanted as f64 }
    }

    /// Decides the number. `now` is the time since a fixed moment.
    pub fn decide(&mut self, now: Duration, signals: &Signals) -> Decision {
        let before = self.wanted;
        let (needed, mut reason) = self.needed(now, signals);
        let each = signals.slots_each.max(1) as f64;
        let more = self.within(needed);
        // Running handlers count as needed.
        let fewer = self.within((needed * HYSTERESIS).max(signals.busy as f64 / each));
        let blocked = match (signals.depth, signals.hold) {
            (Some(Depth { paused: true, .. }), _) => Some(Reason::Paused),
            (_, Some(ScaleBlocker::Breaker)) => Some(Reason::Breaker),
            (_, Some(ScaleBlocker::Limit)) => Some(Reason::Limited),
            _ => None,
        };
        match blocked {
            Some(blocked) if more > before => (self.above, reason) = (None, blocked),
            _ if more > before => {
                let (since, least) = self.above.get_or_insert((now, more));
                *least = more.min(*least);
                if now.saturating_sub(*since) >= self.scale.up_after {
                    self.wanted = *least;
                    self.above = None;
                }
            }
            _ => self.above = None,
        }
        if fewer < before {
            let (since, most) = self.below.get_or_insert((now, fewer));
            *most = fewer.max(*most);
            if now.saturating_sub(*since) >= self.scale.down_after {
                self.wanted = *most;
                self.below = None;
            }
        } else {
            self.below = None;
        }
        Decision { wanted: self.wanted, before, reason, needed }
    }

    fn within(&self, needed: f64) -> usize {
        // The cast saturates.
        (needed.ceil() as usize).clamp(self.bounds.min, self.bounds.max)
    }

    fn needed(&mut self, now: Duration, signals: &Signals) -> (f64, Reason) {
        let each = signals.slots_each.max(1) as f64;
        self.handler_time.update(signals.ended, signals.took);
        let Some(depth) = signals.depth.filter(|depth| !depth.uncounted_sessions) else {
            let needed = signals.busy as f64 / (each * BUSY_TARGET);
            return (needed, if signals.busy == 0 { Reason::Idle } else { Reason::Busy });
        };
        self.arrivals.update(now, depth.sent);
        if let Some(sessions) = depth.sessions {
            let with_work = sessions.runnable.saturating_add(sessions.held) as f64;
            let reason = if with_work == 0.0 { Reason::Idle } else { Reason::Sessions };
            return (with_work / each, reason);
        }
        let waiting = depth.ready as f64 / (f64::from(self.scale.waiting_each.max(1)) * each);
        // Without a count of arrivals, busy handlers show the load.
        let load = match depth.sent {
            Some(_) => {
                self.arrivals.per_second * self.handler_time.seconds() / (each * BUSY_TARGET)
            }
            None => signals.busy as f64 / (each * BUSY_TARGET),
        };
        let by_load = if depth.sent.is_some() { Reason::Load } else { Reason::Busy };
        let may_wait = self.scale.waiting_for.max(Duration::from_millis(1));
        let age = depth.oldest.as_secs_f64() / may_wait.as_secs_f64();
        let all = [(waiting, Reason::Waiting), (load, by_load), (age, Reason::Age)];
        // Of equal values the first one is the reason.
        let none = (0.0, Reason::Idle);
        all.into_iter().fold(none, |most, one| if one.0 > most.0 { one } else { most })
    }
}

/// The moving average of the arrival rate.
#[derive(Clone, Debug, Default)]
struct ArrivalRate {
    last: Option<(Duration, u64)>,
    per_second: f64,
}

impl ArrivalRate {
    fn update(&mut self, now: Duration, sent: Option<u64>) {
        let Some(sent) = sent else { return };
        let Some((at, before)) = self.last.replace((now, sent)) else { return };
        // The counter went back: the queue was created again.
        let (Some(arrived), passed) = (sent.checked_sub(before), now.saturating_sub(at)) else {
            self.per_second = 0.0;
            return;
        };
        if passed.is_zero() {
            self.last = Some((at, before));
            return;
        }
        let rate = arrived as f64 / passed.as_secs_f64();
        let weight = 1.0 - (-passed.as_secs_f64() / ARRIVAL_WINDOW.as_secs_f64()).exp();
        // The average starts at 0: an initial burst is not a rate, and its waiting messages are counted separately.
        self.per_second += (rate - self.per_second) * weight;
    }
}

/// The moving average of the handler duration.
#[derive(Clone, Debug, Default)]
struct HandlerTime {
    last: (u64, Duration),
    seconds: Option<f64>,
}

impl HandlerTime {
    fn update(&mut self, ended: u64, took: Duration) {
        let (before, took_before) = std::mem::replace(&mut self.last, (ended, took));
        let (Some(count @ 1..), Some(took)) =
            (ended.checked_sub(before), took.checked_sub(took_before))
        else {
            return;
        };
        let each = took.as_secs_f64() / count as f64;
        self.seconds = Some(match self.seconds {
            Some(known) => known + (each - known) / WEIGHT,
            None => each,
        });
    }

    fn seconds(&self) -> f64 {
        self.seconds.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
