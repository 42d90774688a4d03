//! How often and when a failed message is retried. The broker keeps the delay, so that it survives crashes and occupies
//! no slot and no lock.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// How often and when failed messages are retried.
#[derive(Clone, Debug)]
pub struct Retry {
    /// Attempts before the message is dead-lettered as `MaxAttempts`.
    pub attempts: u32,
    /// Lost workers before the message is dead-lettered as `WorkerLost`. A worker is lost when it dies, or loses its
    /// lock, while it has the message.
    pub lost: u32,
    /// The delay before the next attempt.
    pub backoff: Backoff,
}

impl Default for Retry {
    /// Ten attempts. The delays start with one second and double up to 15 minutes.
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
    /// One attempt only.
    pub fn never() -> Self {
        Self { attempts: 1, backoff: Backoff::None, ..Self::default() }
    }

    /// This many attempts, without a delay.
    pub fn at_once(attempts: u32) -> Self {
        Self { attempts, backoff: Backoff::None, ..Self::default() }
    }

    /// This many attempts, with the same delay before each retry.
    pub fn fixed(delay: Duration, attempts: u32) -> Self {
        Self { attempts, backoff: Backoff::Fixed(delay), ..Self::default() }
    }

    /// This many attempts. The first delay is `base`, and each further delay is twice as long, up to 15 minutes.
    pub fn exponential(base: Duration, attempts: u32) -> Self {
        let mut retry = Self { attempts, ..Self::default() };
        if let Backoff::Exponential { base: first, .. } = &mut retry.backoff {
            *first = base;
        }
        retry
    }
}

/// The delay before the next attempt, as a function of the number `n` of failures.
#[derive(Clone)]
pub enum Backoff {
    /// Retries follow without a delay.
    None,
    /// Always the same delay.
    Fixed(Duration),
    /// `base · factor^(n−1)`, at most `cap`, randomly shortened by up to the fraction `jitter`.
    Exponential {
        /// The delay after the first failure.
        base: Duration,
        /// The growth with each failure.
        factor: f64,
        /// The longest delay.
        cap: Duration,
        /// From 0 (exact) to 1 (any shorter delay).
        jitter: f64,
    },
    /// `n⁴` seconds, at most `cap`.
    Poly4 {
        /// The longest delay.
        cap: Duration,
    },
    /// The listed delays; the last one applies to all further failures.
    List(Vec<Duration>),
    /// Your own function. If it returns `None`, the message is dead-lettered.
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
    /// The delay after `failures` of a message. The jitter is derived from the message id, so that it is reproducible
    /// and differs between messages.
    pub fn delay(&self, failures: u32, message_id: &str) -> Option<Duration> {
        let n = failures.max(1);
        match self {
            Self::None => Some(Duration::ZERO),
            Self::Fixed(delay) => Some(*delay),
            Self::Exponential { base, factor, cap, jitter } => {
                let exponent = f64::from(n - 1);
                let full = capped(base.as_secs_f64() * factor.max(1.0).powf(exponent), *cap);
                let part = jitter.clamp(0.0, 1.0) * hash_fraction((message_id, n));
                Some(full.mul_f64(1.0 - part))
            }
            Self::Poly4 { cap } => Some(capped(f64::from(n).powi(4), *cap)),
            Self::List(delays) => {
                let at = (n as usize - 1).min(delays.len().saturating_sub(1));
                Some(delays.get(at).copied().unwrap_or_default())
            }
            Self::Custom(delay) => delay(failures),
        }
    }
}

fn capped(seconds: f64, cap: Duration) -> Duration {
    Duration::try_from_secs_f64(seconds.min(cap.as_secs_f64())).unwrap_or(cap)
}

/// A reproducible number from 0 (inclusive) to 1 (exclusive).
pub(crate) fn hash_fraction(value: impl Hash) -> f64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
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
    fn delays_grow_to_the_cap_and_do_not_overflow() {
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
    fn jitter_shortens_the_delay_and_differs_between_messages() {
        let all: Vec<_> =
            (0..1000).map(|n| exponential(0.2).delay(3, &n.to_string()).unwrap()).collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(*least >= Duration::from_millis(3200) && *most <= Duration::from_secs(4));
        assert!(*most - *least > Duration::from_millis(700));
        assert_eq!(exponential(0.2).delay(3, "7"), exponential(0.2).delay(3, "7"));
    }

    #[test]
    fn lists_repeat_their_last_delay_and_custom_functions_may_give_up() {
        let list = Backoff::List(vec![Duration::from_secs(1), Duration::from_secs(60)]);
        let seconds: Vec<_> =
            [0, 1, 2, 3, 4096].map(|n| list.delay(n, "m").unwrap().as_secs()).into();
        assert_eq!(seconds, [1, 1, 60, 60, 60]);
        assert_eq!(Backoff::List(vec![]).delay(1, "m"), Some(Duration::ZERO));
        let custom = Backoff::Custom(Arc::new(|n| (n < 3).then_some(Duration::ZERO)));
        assert_eq!(custom.delay(3, "m"), None);
    }
}
