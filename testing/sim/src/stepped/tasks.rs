//! Runs clients as futures. One is polled at a time, in an order that the seed chooses.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::rng::Rng;

pub(super) type Work = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    work: Work,
    woken: Arc<Woken>,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(super) struct Tasks {
    running: BTreeMap<u64, Task>,
    next: u64,
}

impl Tasks {
    pub(super) fn spawn(&mut self, work: Work) {
        self.next += 1;
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        self.running.insert(self.next, Task { work, woken });
    }

    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Polls a task that was woken; false if there is none. A task that the engine does not wake is never polled
    /// again.
    pub(super) fn poll_one(&mut self, rng: &mut Rng) -> bool {
        let is_woken = |(_, task): &(&u64, &Task)| task.woken.0.load(Ordering::Relaxed);
        let woken: Vec<u64> = self.running.iter().filter(is_woken).map(|(&id, _)| id).collect();
        if woken.is_empty() {
            return false;
        }
        let id = woken[rng.below(woken.len() as u64) as usize];
        let task = self.running.get_mut(&id).expect("the task exists");
        task.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(task.woken.clone());
        if task.work.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.running.remove(&id);
        }
        true
    }

    /// Cancels a random task.
    pub(super) fn give_up(&mut self, rng: &mut Rng) {
        let ids: Vec<u64> = self.running.keys().copied().collect();
        if !ids.is_empty() {
            self.running.remove(&ids[rng.below(ids.len() as u64) as usize]);
        }
    }

    pub(super) fn give_up_all(&mut self) {
        self.running.clear();
    }
}

/// Waits for all futures.
pub(super) async fn join(mut all: Vec<Work>) {
    std::future::poll_fn(|cx| {
        all.retain_mut(|work| work.as_mut().poll(cx).is_pending());
        if all.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
