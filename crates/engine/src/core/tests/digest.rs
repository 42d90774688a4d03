//! Digests of the live state, compared by a replay.

use malote_model::{QueueName, QueueSpec, Timestamp, TopicName};

use super::world::World;
use crate::core::Core;
use crate::core::tracked::MessageStatus;
use crate::event::{Event, QueueId};
use crate::journal::{Pos, Replay};

const SCRIPT: &str = "queue plain dedup=60000 ttl=600000 prio=3 \n queue line sessions \n topic t \n bind t plain
    send plain a b c d e \n send line u v s=s1 \n send line w s=s2 \n send plain later at=500000
    send plain slow delay=2000 \n receive plain max=2 \n defer a \n receive line \n accept line s=s2 \n state d to=x";

/// A live core after the script, and the same core from a replay.
fn both() -> (World, Core) {
    let mut world = World::new(crate::journal::SEGMENT_BYTES_MAX);
    SCRIPT.lines().for_each(|line| world.step(line.trim()));
    let replayed = copy(world.core());
    (world, replayed)
}

fn copy(core: &Core) -> Core {
    let (mut saved, mut replayed) = (Vec::new(), Core::new(5));
    core.save(&mut saved);
    replayed.restore(&saved).unwrap();
    replayed
}

/// Compares the next digests of a live core with a replayed one: enough of them to cover everything twice.
fn compare(live: &mut Core, replayed: &mut Core, at: u64) -> Option<String> {
    for n in 0..4 {
        let digest = Event::Digest(Box::new(live.next_digest(Timestamp(at))));
        live.apply(Pos::new(9, n), &digest);
        replayed.apply(Pos::new(9, n), &digest);
    }
    assert_eq!(replayed.digests_compared(), 4);
    replayed.divergence().map(|found| found.what)
}

#[test]
fn a_replay_in_the_same_state_finds_no_difference() {
    let (mut world, mut replayed) = both();
    assert_eq!(compare(world.core(), &mut replayed, 10), None);
}

#[test]
fn state_that_depends_only_on_the_clock_is_not_compared() {
    let mut world = World::new(crate::journal::SEGMENT_BYTES_MAX);
    for step in [
        "queue q dedup=1000",
        "queue s sessions",
        "send q a",
        "send q slow delay=2000",
        "send s x s=s1 delay=2000",
    ] {
        world.step(step);
    }
    let mut replayed = copy(world.core());
    // The live core sees delays end and drops keys; no event records this.
    world.step("wait 3000");
    // A replay has the digests that were written meanwhile.
    replayed.advance_time(world.core().last_at().0);
    assert_eq!(
        (world.core().queues[&QueueId(1)].delayed, replayed.queues[&QueueId(1)].delayed),
        (0, 1)
    );
    assert_eq!(compare(world.core(), &mut replayed, 3000), None);
}

#[test]
fn keys_forgotten_before_the_window_grew_are_no_difference() {
    let mut world = World::new(crate::journal::SEGMENT_BYTES_MAX);
    let steps =
        "queue q dedup=100 \n topic t dedup=100 \n bind t q \n send q a \n send @t b \n wait 200
        update q dedup=100000 \n retopic t dedup=100000 \n wait 10 \n send q c \n send @t d";
    steps.lines().for_each(|line| world.step(line.trim()));
    let mut replayed = world.replayed();
    assert_eq!(compare(world.core(), &mut replayed, 210), None);
}

/// One small change of the live state, and what a replay must report.
type Sabotage = (&'static str, fn(&mut Core));

const SABOTAGES: &[Sabotage] = &[
    ("counters of queue plain", |core| {
        let q = core.queues.get_mut(&QueueId(1)).unwrap();
        q.remove(4).unwrap();
    }),
    ("messages of queue plain", |core| {
        let q = core.queues.get_mut(&QueueId(1)).unwrap();
        let slow = q.tracked.values_mut().find(|t| t.status == MessageStatus::Delayed).unwrap();
        slow.due += 1;
    }),
    ("messages of queue plain", |core| {
        let q = core.queues.get_mut(&QueueId(1)).unwrap();
        let out =
            q.tracked.values_mut().find(|t| matches!(t.status, MessageStatus::Locked(_))).unwrap();
        out.failed += 1;
    }),
    ("counters of queue plain", |core| {
        let q = core.queues.get_mut(&QueueId(1)).unwrap();
        q.totals.completed += 1;
    }),
    ("settings of queue line", |core| {
        core.queues.get_mut(&QueueId(3)).unwrap().spec.lock_ms += 1;
    }),
    ("settings of queue line", |core| {
        core.queues.get_mut(&QueueId(3)).unwrap().paused = true;
    }),
    ("session s2 of queue line", |core| {
        let sessions = core.queues.get_mut(&QueueId(3)).unwrap().sessions.as_mut().unwrap();
        let slot = (0..9).find(|&slot| sessions.at(slot).is_some_and(|s| s.id.as_str() == "s2"));
        sessions.at_mut(slot.unwrap()).unwrap().pending.pop();
    }),
    ("session s2 of queue line", |core| {
        let sessions = core.queues.get_mut(&QueueId(3)).unwrap().sessions.as_mut().unwrap();
        let slot = (0..9).find(|&slot| sessions.at(slot).is_some_and(|s| s.id.as_str() == "s2"));
        sessions.at_mut(slot.unwrap()).unwrap().extras_mut().state = None;
    }),
    ("de-duplication keys of queue plain", |core| {
        let q = core.queues.get_mut(&QueueId(1)).unwrap();
        q.seen.as_mut().unwrap().forget(u64::MAX, 0);
    }),
    ("topic t", |core| {
        let id = *core.topic_names.values().next().unwrap();
        core.topics.get_mut(&id).unwrap().totals.copies += 1;
    }),
    ("leases in the slots", |core| {
        let slot = core.leases.iter().next().unwrap().token.slot;
        let until = core.leases.until(core.leases.at(slot).unwrap());
        core.leases.renew(slot, until + 1);
    }),
    ("the number of queues", |core| core.rules += 1),
];

#[test]
fn any_small_difference_is_found_and_named() {
    for (what, sabotage) in SABOTAGES {
        let (mut world, mut replayed) = both();
        sabotage(world.core());
        let found = compare(world.core(), &mut replayed, 10).unwrap_or_default();
        assert!(found.contains(what), "{what} was changed, and found was: {found:?}");
    }
}

#[test]
fn digests_are_not_compared_after_damage() {
    let (mut world, mut replayed) = both();
    world.core().rules += 1;
    let mut damaged = copy(&replayed);
    Replay::damage_skipped(&mut damaged, Pos::new(1, 10), Pos::new(1, 20));
    let digest = Event::Digest(Box::new(world.core().next_digest(Timestamp(10))));
    damaged.apply(Pos::new(9, 1), &digest);
    assert_eq!((damaged.digests_compared(), damaged.divergence()), (0, None));
    // A core that was started after the damage does not have it either.
    world.core().checks.damage_skipped(Pos::new(1, 10), Pos::new(1, 20));
    let digest = Event::Digest(Box::new(world.core().next_digest(Timestamp(10))));
    damaged.apply(Pos::new(9, 2), &digest);
    assert!(damaged.divergence().is_some());
    // A snapshot that was made after the damage does not contain what was skipped.
    replayed.apply(Pos::new(9, 2), &digest);
    assert!(replayed.divergence().is_some());
}

#[test]
fn declaring_a_name_again_removes_the_old_object_if_its_deletion_record_is_damaged() {
    let (world, mut replayed) = both();
    drop(world);
    let (queue, dead, topic) = (QueueId(40), QueueId(41), QueueId(42));
    let (spec, at) = (Box::new(QueueSpec::default()), Timestamp(20));
    let name = QueueName::new("plain").unwrap();
    let topic_name = TopicName::new("t").unwrap();
    for event in [
        Event::Declared { queue, dead, name, spec, at },
        Event::TopicDeclared { topic, name: topic_name, spec: Box::default(), at },
    ] {
        replayed.recover_orphans(Pos::new(9, 1), &event);
        Core::apply(&mut replayed, Pos::new(9, 1), &event);
    }
    // Each queue has its dead-letter set, and the topic its inbox.
    assert_eq!((replayed.queues.len(), replayed.topics.len(), replayed.rules), (5, 1, 0));
    // A snapshot of this state has all of it.
    let restored = copy(&replayed);
    assert_eq!((restored.queues.len(), restored.topics.len(), restored.rules), (5, 1, 0));
}
