//! Memory that peers may use: bounded in total and for each address, so that one peer cannot use all of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A number of bytes, taken in shares. At a bound there is no share, and the request is refused as busy.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    address_bytes_max: usize,
    taken: Mutex<Taken>,
    /// Wakes those that wait for room.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    of: HashMap<IpAddr, usize>,
}

/// A share of a budget; returned when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    address: IpAddr,
    bytes: usize,
}

impl Budget {
    /// A budget of `bytes_max`, of which one address may take `address_bytes_max`.
    pub fn new(bytes_max: usize, address_bytes_max: usize) -> Arc<Budget> {
        Arc::new(Budget {
            bytes_max,
            address_bytes_max,
            taken: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// A share, if there is room. One that exceeds the bound of its address must be the only one of the address.
    pub fn take(self: &Arc<Self>, address: IpAddr, bytes: usize) -> Option<Share> {
        let mut taken = self.taken.lock();
        let own = taken.of.get(&address).copied().unwrap_or_default();
        let fits = |held: usize, max: usize| held.saturating_add(bytes) <= max;
        let is_alone = own == 0;
        if !fits(taken.bytes, self.bytes_max) || !(is_alone || fits(own, self.address_bytes_max)) {
            return None;
        }
        taken.bytes += bytes;
        taken.of.insert(address, own + bytes);
        Some(Share { budget: self.clone(), address, bytes })
    }

    /// A share, as soon as there is room. One that exceeds the whole budget waits until it is the only one.
    pub async fn wait(self: &Arc<Self>, address: IpAddr, bytes: usize) -> Share {
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            let share = self.take(address, bytes.min(self.bytes_max));
            if let Some(share) = share {
                return share;
            }
            freed.await;
        }
    }

    /// Whether the address has room for `bytes` more. The answer may be outdated at once.
    pub fn has_room(&self, address: IpAddr, bytes: usize) -> bool {
        let taken = self.taken.lock();
        let own = taken.of.get(&address).copied().unwrap_or_default();
        taken.bytes.saturating_add(bytes) <= self.bytes_max
            && own.saturating_add(bytes) <= self.address_bytes_max
    }
}

impl Share {
    /// Grows the share, if there is room.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let Some(mut more) = self.budget.take(self.address, bytes) else { return false };
        self.bytes += std::mem::take(&mut more.bytes);
        true
    }

    /// The number of bytes that this share reserves.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.budget.taken.lock();
        taken.bytes -= self.bytes;
        if let Some(own) = taken.of.get_mut(&self.address) {
            *own -= self.bytes;
            if *own == 0 {
                taken.of.remove(&self.address);
            }
        }
        drop(taken);
        self.budget.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_bounded_for_an_address_and_for_all_and_comes_back() {
        let budget = Budget::new(100, 60);
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut first = budget.take(a, 50).unwrap();
        assert!(budget.take(a, 20).is_none(), "of this address");
        assert!(first.grow(10) && !first.grow(1));
        let second = budget.take(b, 40).unwrap();
        assert!(budget.take(c, 10).is_none(), "of all");
        drop(second);
        assert!(budget.take(c, 40).is_some());
        drop(first);
        let taken = budget.taken.lock();
        assert_eq!((taken.bytes, taken.of.len()), (0, 0));
        drop(taken);
        assert!(budget.take(a, 100).is_some(), "more than an address may have goes alone");
        assert!(budget.take(a, 101).is_none(), "more than there is");
    }

    #[tokio::test]
    async fn a_waiting_share_is_taken_when_another_comes_back() {
        let budget = Budget::new(100, 60);
        let address = IpAddr::from([10, 0, 0, 1]);
        let first = budget.take(address, 50).unwrap();
        assert!(!budget.has_room(address, 20) && budget.has_room(address, 10));
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.wait(address, 1000).await.bytes() }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert_eq!(waiting.await.unwrap(), 100, "more than the whole budget counts as all of it");
    }
}
