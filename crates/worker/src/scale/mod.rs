//! How many slots, or processes, there should be: signals in, a number and its reason out.
//!
//! Of a queue with sessions: as many as its sessions with work need. Else the most of three: what waits, what comes in
//! times how long it takes, and how long the oldest has waited; of a broker that does not count what comes in, or
//! sessions, or tells nothing, how busy handlers are.
//! More is needed for a while before more is begun, and less for a longer while before less is; what more workers
//! cannot help with (a breaker, a pause, a limit) begins none. Plain data: whoever asks says what time it is.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use malote_connectors::Depth;
use serde::{Deserialize, Serialize};

/// As much of its time a slot should be busy: the rest is for what comes unevenly.
const BUSY: f64 = 0.7;
/// So much more than is needed must be there before less will do.
const HYSTERESIS: f64 = 1.2;
/// What came in lately counts for as long.
const LATELY: Duration = Duration::from_secs(15);
/// What handlers took since the last look counts for one part in so many of what they are known to take.
const WEIGHT: f64 = 4.0;

/// From how many to how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// At least so many.
    pub min: usize,
    /// At most so many.
    pub max: usize,
}

impl Bounds {
    /// Whether there is nothing to decide.
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

    /// `8`, or `1..8`: from one to eight.
    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        match (min.parse(), max.parse()) {
            (Ok(min), Ok(max)) if (1..=max).contains(&min) => Ok(Self { min, max }),
            _ => Err("write a number, or two as in 1..8".into()),
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

/// When more are begun, and fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// More, when more were needed for so long.
    pub up_after: Duration,
    /// Fewer, when fewer would have done for so long.
    pub down_after: Duration,
    /// Messages that may wait for each slot.
    pub waiting_each: u32,
    /// How long a message may wait.
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
    /// How often to look.
    pub fn look_every(&self) -> Duration {
        (self.up_after / 5).clamp(Duration::from_millis(50), Duration::from_secs(1))
    }
}

/// What is known when it is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// What waits; none of a broker that does not tell.
    pub depth: Option<Depth>,
    /// Handlers at once of each of those that are counted: one of a slot, its slots of a process.
    pub slots_each: usize,
    /// Handlers that run now, of all.
    pub busy: usize,
    /// Handlers that ended so far, of all,
    pub ended: u64,
    /// and how long they took together.
    pub took: Duration,
    /// What more of them could not help with.
    pub hold: Option<Hold>,
}

/// Why more would not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// A dependency is down.
    Breaker,
    /// Messages begin as fast as they may.
    Limit,
}

macro_rules! reasons {
    ($($(#[$doc:meta])+ $name:ident $word:literal,)+) => {
        /// What asks for a number, or stands against more.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reason { $($(#[$doc])+ $name,)+ }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Reason] = &[$(Self::$name),+];

            /// A word for programs.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)+ }
            }
        }
    };
}

reasons! {
    /// There is nothing to do.
    Idle "idle",
    /// Sessions with work.
    Sessions "sessions",
    /// Messages that wait.
    Waiting "waiting",
    /// What comes in, times how long it takes.
    Load "load",
    /// How long the oldest has waited.
    Age "age",
    /// Handlers that run, of a broker that does not tell what waits or comes in.
    Busy "busy",
    /// More are needed, and would not help: a dependency is down.
    Breaker "breaker_open",
    /// More are needed, and would not help: the queue gives nothing out.
    Paused "paused",
    /// More are needed, and would not help: messages begin as fast as they may.
    Limited "rate_limited",
    /// The broker does not answer: all stays as it is.
    Unknown "unknown",
}

/// How many there should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// So many.
    pub wanted: usize,
    /// Before it was so many.
    pub before: usize,
    /// What asks for it.
    pub reason: Reason,
    /// How many that would need, before bounds and waits.
    pub needed: f64,
}

impl Decision {
    /// Whether the number is another one.
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

/// Decides how many there should be.
#[derive(Clone, Debug)]
pub struct Scaler {
    bounds: Bounds,
    scale: Scale,
    wanted: usize,
    /// More were needed since then, and all the time at least so many.
    above: Option<(Duration, usize)>,
    /// Fewer would have done since then, and all the time so many.
    below: Option<(Duration, usize)>,
    arrivals: Arrivals,
    service: Service,
}

impl Scaler {
    /// Begins with the fewest.
    pub fn new(bounds: impl Into<Bounds>, scale: Scale) -> Self {
        let bounds = bounds.into();
        Self {
            bounds,
            scale,
            wanted: bounds.min,
            above: None,
            below: None,
            arrivals: Arrivals::default(),
            service: Service::default(),
        }
    }

    /// As it was decided last.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Nothing is known now: all stays as it is, and what was seen before says nothing any more.
    pub fn unknown(&mut self) -> Decision {
        (self.above, self.below) = (None, None);
        let (wanted, before) = (self.wanted, self.wanted);
        Decision { wanted, before, reason: Reason::Unknown, needed: wanted as f64 }
    }

    /// How many there should be from now on; `now` counts from any moment that stays the same.
    pub fn decide(&mut self, now: Duration, signals: &Signals) -> Decision {
        let before = self.wanted;
        let (needed, mut reason) = self.needed(now, signals);
        let each = signals.slots_each.max(1) as f64;
        let more = self.within(needed);
        // What runs now is not to be stopped for what is needed next.
        let fewer = self.within((needed * HYSTERESIS).max(signals.busy as f64 / each));
        let against = match (signals.depth, signals.hold) {
            (Some(Depth { paused: true, .. }), _) => Some(Reason::Paused),
            (_, Some(Hold::Breaker)) => Some(Reason::Breaker),
            (_, Some(Hold::Limit)) => Some(Reason::Limited),
            _ => None,
        };
        match against {
            Some(against) if more > before => (self.above, reason) = (None, against),
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
        // A number too large for its type is the largest of it.
        (needed.ceil() as usize).clamp(self.bounds.min, self.bounds.max)
    }

    fn needed(&mut self, now: Duration, signals: &Signals) -> (f64, Reason) {
        let each = signals.slots_each.max(1) as f64;
        self.service.note(signals.ended, signals.took);
        let Some(depth) = signals.depth.filter(|depth| !depth.uncounted_sessions) else {
            let needed = signals.busy as f64 / (each * BUSY);
            return (needed, if signals.busy == 0 { Reason::Idle } else { Reason::Busy });
        };
        self.arrivals.note(now, depth.sent);
        if let Some(sessions) = depth.sessions {
            let with_work = sessions.runnable.saturating_add(sessions.held) as f64;
            let reason = if with_work == 0.0 { Reason::Idle } else { Reason::Sessions };
            return (with_work / each, reason);
        }
        let waiting = depth.ready as f64 / (f64::from(self.scale.waiting_each.max(1)) * each);
        // Where nobody counts what comes in, those who are busy are what it needs.
        let load = match depth.sent {
            Some(_) => self.arrivals.per_second * self.service.seconds() / (each * BUSY),
            None => signals.busy as f64 / (each * BUSY),
        };
        let by_load = if depth.sent.is_some() { Reason::Load } else { Reason::Busy };
        let may_wait = self.scale.waiting_for.max(Duration::from_millis(1));
        let age = depth.oldest.as_secs_f64() / may_wait.as_secs_f64();
        let all = [(waiting, Reason::Waiting), (load, by_load), (age, Reason::Age)];
        // The first of equals: what waits is the plainest reason.
        let none = (0.0, Reason::Idle);
        all.into_iter().fold(none, |most, one| if one.0 > most.0 { one } else { most })
    }
}

/// How fast messages come in.
#[derive(Clone, Debug, Default)]
struct Arrivals {
    last: Option<(Duration, u64)>,
    per_second: f64,
}

impl Arrivals {
    fn note(&mut self, now: Duration, sent: Option<u64>) {
        let Some(sent) = sent else { return };
        let Some((at, before)) = self.last.replace((now, sent)) else { return };
        // Fewer than before: it is another queue, or another count.
        let (Some(came), passed) = (sent.checked_sub(before), now.saturating_sub(at)) else {
            self.per_second = 0.0;
            return;
        };
        if passed.is_zero() {
            self.last = Some((at, before));
            return;
        }
        let rate = came as f64 / passed.as_secs_f64();
        let weight = 1.0 - (-passed.as_secs_f64() / LATELY.as_secs_f64()).exp();
        // From nothing: a burst at the beginning is no flow, and what waits of it counts by itself.
        self.per_second += (rate - self.per_second) * weight;
    }
}

/// How long a handler takes.
#[derive(Clone, Debug, Default)]
struct Service {
    last: (u64, Duration),
    seconds: Option<f64>,
}

impl Service {
    fn note(&mut self, ended: u64, took: Duration) {
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
