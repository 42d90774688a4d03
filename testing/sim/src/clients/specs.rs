//! Random queue specifications. They differ in every world, so that all combinations occur.

use malote_model::{
    DeadLetterTarget, Dedup, Durability, OnExpiry, Overflow, QueueSpec, RetryOrder, SessionFrom,
    Sessions, Status,
};

use super::{name, topics};
use crate::model::Queue;
use crate::rng::Rng;
use crate::world::TURN_MS_MAX;

/// The property that some queues take the session id from.
pub(super) const SESSION_PROPERTY: &str = "session";

/// A random time to live, sometimes zero.
pub(super) fn lifetime(rng: &mut Rng) -> u64 {
    let ms = [10, 300, 3000, 20_000][rng.below(4) as usize];
    rng.below(ms)
}

pub(super) fn spec(rng: &mut Rng, sessions: Sessions) -> QueueSpec {
    let lock_ms = [500, 2000, 5000, 30_000][rng.below(4) as usize];
    let failed_max = [None, Some(1), Some(2), Some(3)][rng.below(4) as usize];
    let receives_max = [None, None, Some(2), Some(4)][rng.below(4) as usize];
    let dead_letter = match rng.below(6) {
        0 => DeadLetterTarget::Drop,
        1 => DeadLetterTarget::Queue(name("graves")),
        2 | 3 => topics::dead_letter(rng),
        _ => DeadLetterTarget::Own,
    };
    let durability = if rng.chance(20) { Durability::Relaxed } else { Durability::Fsync };
    let retry = if rng.chance(35) { RetryOrder::Skip } else { RetryOrder::Hold };
    let delay_ms = if rng.chance(10) { 200 } else { 0 };
    let priority_max =
        if sessions.required() || rng.chance(60) { 0 } else { 1 + rng.below(9) as u8 };
    let fair = !sessions.required() && priority_max == 0 && rng.chance(70);
    let session_from = match rng.below(8) {
        _ if !sessions.required() => None,
        0 => Some(SessionFrom::Key),
        1 => Some(SessionFrom::Property(SESSION_PROPERTY.into())),
        _ => None,
    };
    let plain = QueueSpec {
        sessions,
        session_from,
        fair,
        lock_ms,
        failed_max,
        receives_max,
        dead_letter,
        durability,
        retry,
        delay_ms,
        priority_max,
        ..QueueSpec::default()
    };
    bounded(rng, plain)
}

/// Adds limits of time and number, and de-duplication.
fn bounded(rng: &mut Rng, spec: QueueSpec) -> QueueSpec {
    let window_ms = [100, 2000, 20_000, 100_000][rng.below(4) as usize];
    let per_session = spec.sessions.required() && rng.chance(50);
    let dedup = Dedup { window_ms, per_session, content: rng.chance(50) };
    let on_expiry = if rng.chance(60) { OnExpiry::DeadLetter } else { OnExpiry::Drop };
    let overflow = match rng.below(3) {
        0 => Overflow::Reject,
        1 => Overflow::DropOldest,
        _ => Overflow::DeadLetterOldest,
    };
    let ttl_ms = rng.chance(30).then(|| 1 + lifetime(rng));
    QueueSpec {
        ttl_ms,
        // Without a time to live, a message's arrival is known only approximately.
        dead_letters_keep_age: ttl_ms.is_some() && rng.chance(50),
        on_expiry,
        dedup: rng.chance(30).then_some(dedup),
        length_max: rng.chance(20).then(|| 1 + rng.below(8)),
        bytes_max: rng.chance(12).then(|| 200 + rng.below(6000)),
        overflow,
        ..spec
    }
}

/// The queue for dead letters of other queues.
pub(super) fn graves(rng: &mut Rng, sessions: Sessions) -> QueueSpec {
    let graves = QueueSpec { sessions, lock_ms: 2000, ..QueueSpec::default() };
    if rng.chance(50) { bounded(rng, graves) } else { graves }
}

/// A queue that usually deletes itself.
pub(super) fn passing(rng: &mut Rng, sessions: Sessions) -> QueueSpec {
    QueueSpec {
        auto_delete: rng.chance(50),
        idle_ms_max: rng.chance(40).then(|| 1 + rng.below(20_000)),
        ..spec(rng, sessions)
    }
}

/// A queue that usually forwards its messages. Sometimes it forwards to itself, which is refused.
pub(super) fn relay(rng: &mut Rng) -> QueueSpec {
    let forward_to = rng.chance(85).then(|| topics::forward(rng));
    QueueSpec { forward_to, ..spec(rng, Sessions::None) }
}

/// A queue of one connection.
pub(super) fn private(rng: &mut Rng) -> QueueSpec {
    let sessions = if rng.chance(30) { Sessions::Dynamic } else { Sessions::None };
    QueueSpec { exclusive: !rng.chance(10), ..passing(rng, sessions) }
}

/// A new specification for a queue, within the changes that are allowed.
pub(super) fn updated(rng: &mut Rng, q: &Queue, now: u64) -> QueueSpec {
    let old = &q.spec;
    let fresh =
        if rng.chance(50) { bounded(rng, old.clone()) } else { passing(rng, old.sessions.clone()) };
    let mut spec = QueueSpec { priority_max: old.priority_max, exclusive: old.exclusive, ..fresh };
    spec.fair &= spec.priority_max == 0;
    let forwards = if old.forward_to.is_some() { 70 } else { 10 };
    let forward_to = rng.chance(forwards).then(|| topics::forward(rng));
    spec.forward_to = forward_to.filter(|_| !spec.sessions.required());
    spec.status = match rng.below(12) {
        0 => Status::SendDisabled,
        1 => Status::ReceiveDisabled,
        2 => Status::Disabled,
        _ => Status::Active,
    };
    if rng.chance(3) {
        spec.priority_max ^= 1;
        spec.fair = false;
    }
    // Without a time to live, arrival times are known only approximately. So messages must expire neither at once nor
    // before this request is processed.
    let oldest = q.msgs.values().filter(|msg| !msg.timed).map(|msg| msg.at).min();
    if let (Some(ttl_ms), Some(oldest)) = (&mut spec.ttl_ms, oldest) {
        *ttl_ms += now.saturating_sub(oldest) + TURN_MS_MAX;
    }
    spec.dead_letters_keep_age &= oldest.is_none();
    spec
}
