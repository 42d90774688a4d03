//! Ten thousand consumers of one queue. The work for a message must not grow with their number: a walk over all of them
//! for each message would take minutes here.

use crate::journal::SEGMENT_BYTES_MAX;

use super::world::World;

const CONSUMERS: usize = 10_000;
const MESSAGES: usize = 10_000;

/// Attaches consumers, sends messages one by one, and returns who got how many.
fn deliveries(queue: &str, attach: impl Fn(usize) -> String) -> Vec<usize> {
    let mut world = World::new(SEGMENT_BYTES_MAX);
    world.step(queue);
    for n in 0..CONSUMERS {
        world.step(&attach(n));
    }
    world.said.clear();
    for _ in 0..MESSAGES {
        world.step("send q x");
    }
    let mut counts = vec![0; CONSUMERS];
    for line in world.said.lines() {
        let who = line.strip_prefix("to c").and_then(|line| line.split(':').next());
        let who: usize = who.and_then(|who| who.parse().ok()).expect("a delivery");
        counts[who] += line.split(',').count();
    }
    counts
}

#[test]
fn consumers_without_priorities_share_the_messages() {
    let counts = deliveries("queue q", |n| format!("attach c{n} q credit=100"));
    assert!(counts.iter().all(|&count| count == 1));
}

#[test]
fn consumers_with_the_highest_priority_share_the_messages() {
    let counts =
        deliveries("queue q", |n| format!("attach c{n} q credit=4000 priority={}", n % 100));
    // A hundred consumers have the highest one.
    for (n, count) in counts.into_iter().enumerate() {
        assert_eq!(count, if n % 100 == 99 { MESSAGES / 100 } else { 0 });
    }
}

#[test]
fn one_of_many_consumers_is_active() {
    let counts = deliveries("queue q single", |n| format!("attach c{n} q credit=4000"));
    assert_eq!(counts[0], 4_000, "as many as its credit allows");
    assert_eq!(counts.iter().sum::<usize>(), 4_000);
}
