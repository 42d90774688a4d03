//! How often, and when, a message is tried again. The delay lives in the broker, so it survives every crash, and no
//! slot and no lock waits for it.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// How failures are followed.
#[derive(Clone, Debug)]
pub struct Retry {
    /// Dead-lettered as `MaxAttempts` after so many failures of the handler.
    pub attempts: u32,
    /// Dead-lettered as `WorkerLost` after it took so many workers with it.
    pub lost: u32,
    /// When the next attempt comes.
    pub backoff: Backoff,
}

impl Default for Retry {
    /// Ten attempts, from a second to a quarter of an hour apart.
    fn default() -> Self {
        let backoff = Backoff::Exponential {
            base: Duration::from_secs(1),
            factor: 2.0,
            cap: Duration::from_secs(15 * 60),
            jitter: 0.2,
        };
        Self { attempts: 10, lost: 3, backoff }
    }
}

impl Retry {
    /// No second attempt.
    pub fn never() -> Self {
        Self { attempts: 1, backoff: Backoff::None, ..Self::default() }
    }

    /// So many attempts, at once after each other.
    pub fn at_once(attempts: u32) -> Self {
        Self { attempts, backoff: Backoff::None, ..Self::default() }
    }

    /// So many attempts, each so long after the last.
    pub fn fixed(delay: Duration, attempts: u32) -> Self {
        Self { attempts, backoff: Backoff::Fixed(delay), ..Self::default() }
    }

    /// So many attempts, each twice as long after the last, at most a quarter of an hour.
    pub fn exponential(base: Duration, attempts: u32) -> Self {
        let mut retry = Self { attempts, ..Self::default() };
        if let Backoff::Exponential { base: first, .. } = &mut retry.backoff {
            *first = base;
        }
        retry
    }
}

/// When the next attempt comes, after so many failures.
#[derive(Clone)]
pub enum Backoff {
    /// At once.
    None,
    /// Always after so long.
    Fixed(Duration),
    /// `base · factor^(n−1)`, at most `cap`, and by chance up to `jitter` of it earlier.
    Exponential {
        /// After the first failure.
        base: Duration,
        /// How much longer each time.
        factor: f64,
        /// Never longer.
        cap: Duration,
        /// From 0 (exact) to 1 (anything from at once).
        jitter: f64,
    },
    /// `n⁴` seconds, at most `cap`: minutes after a few, days after many.
    Poly4 {
        /// Never longer.
        cap: Duration,
    },
    /// As listed; the last one for all that follow.
    List(Vec<Duration>),
    /// As you say; none dead-letters at once.
    Custom(Arc<dyn Fn(u32) -> Option<Duration> + Send + Sync>),
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Fixed(delay) => write!(f, "Fixed({delay:?})"),
            Self::Exponential { base, factor, cap, jitter } => {
                write!(f, "Exponential({base:?} × {factor}, at most {cap:?}, jitter {jitter})")
            }
            Self::Poly4 { cap } => write!(f, "Poly4(at most {cap:?})"),
            Self::List(delays) => write!(f, "List({delays:?})"),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

impl Backoff {
    /// The delay after `failures` of this message. Chance is drawn from the message's id, so that a run can be
    /// repeated; different messages differ.
    pub fn delay(&self, failures: u32, message_id: &str) -> Option<Duration> {
        let n = failures.max(1);
        match self {
            Self::None => Some(Duration::ZERO),
            Self::Fixed(delay) => Some(*delay),
            Self::Exponential { base, factor, cap, jitter } => {
                let exponent = f64::from(n - 1);
                let full = capped(base.as_secs_f64() * factor.max(1.0).powf(exponent), *cap);
                let part = jitter.clamp(0.0, 1.0) * chance(message_id, n);
                Some(full.mul_f64(1.0 - part))
            }
            Self::Poly4 { cap } => Some(capped(f64::from(n).powi(4), *cap)),
            Self::List(delays) => {
                let at = (n as usize - 1).min(delays.len().saturating_sub(1));
                Some(delays.get(at).copied().unwrap_or_default())
            }
            Self::Custom(of) => of(failures),
        }
    }
}

fn capped(seconds: f64, cap: Duration) -> Duration {
    Duration::try_from_secs_f64(seconds.min(cap.as_secs_f64())).unwrap_or(cap)
}

/// From 0 to nearly 1.
fn chance(message_id: &str, n: u32) -> f64 {
    let mut hasher = DefaultHasher::new();
    (message_id, n).hash(&mut hasher);
    (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exponential(jitter: f64) -> Backoff {
        let (base, cap) = (Duration::from_secs(1), Duration::from_secs(900));
        Backoff::Exponential { base, factor: 2.0, cap, jitter }
    }

    #[test]
    fn delays_grow_to_their_cap_and_never_overflow() {
        let seconds: Vec<_> = [0, 1, 2, 3, 10, 11, 64, 4096, u32::MAX]
            .map(|n| exponential(0.0).delay(n, "m").unwrap().as_secs())
            .into();
        assert_eq!(seconds, [1, 1, 2, 4, 512, 900, 900, 900, 900]);
        let poly = Backoff::Poly4 { cap: Duration::from_secs(86_400) };
        let seconds: Vec<_> =
            [0, 1, 2, 5, 64, 4096].map(|n| poly.delay(n, "m").unwrap().as_secs()).into();
        assert_eq!(seconds, [1, 1, 16, 625, 86_400, 86_400]);
    }

    #[test]
    fn jitter_takes_a_part_away_and_differs_between_messages() {
        let all: Vec<_> =
            (0..1000).map(|n| exponential(0.2).delay(3, &n.to_string()).unwrap()).collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(*least >= Duration::from_millis(3200) && *most <= Duration::from_secs(4));
        assert!(*most - *least > Duration::from_millis(700));
        assert_eq!(exponential(0.2).delay(3, "7"), exponential(0.2).delay(3, "7"));
    }

    #[test]
    fn lists_end_with_their_last_and_customs_may_give_up() {
        let list = Backoff::List(vec![Duration::from_secs(1), Duration::from_secs(60)]);
        let seconds: Vec<_> =
            [0, 1, 2, 3, 4096].map(|n| list.delay(n, "m").unwrap().as_secs()).into();
        assert_eq!(seconds, [1, 1, 60, 60, 60]);
        assert_eq!(Backoff::List(vec![]).delay(1, "m"), Some(Duration::ZERO));
        let custom = Backoff::Custom(Arc::new(|n| (n < 3).then_some(Duration::ZERO)));
        assert_eq!(custom.delay(3, "m"), None);
    }
}
