//! Fairness between tenants in a queue without sessions. There, a session id does not order or lock messages; it
//! identifies a tenant. While one tenant has a large share of the leased messages, messages of the others go first. It
//! gets what they leave, or everything if there are no others.
//!
//! A queue uses this from its first message with a session id on, until it is empty. A tenant is 32 bits of a hash,
//! which are stored in the index and so in the snapshot; the rest is rebuilt from there. Tenants with the same bits are
//! treated as one.
//!
//! A noisy tenant has more than a tenth of the leased messages, so there are at most nine: a search for a quiet one
//! skips no more than that.

use std::collections::{BTreeMap, BTreeSet, btree_set};
use std::iter::Peekable;

use hashbrown::HashMap;
use malote_model::SessionId;
use xxhash_rust::xxh3::xxh3_64;

use super::{FixedState, fixed};
use crate::facts::NoisyTenants;

/// Messages without a tenant. Each counts separately, so they are never noisy.
pub(super) const NO_TENANT: u32 = 0;

/// A tenant with fewer leased messages is quiet.
const NOISY_OUT_MIN: u64 = 30;

/// A tenant is noisy if it has more than this fraction (1/n) of all leased messages.
const NOISY_SHARE: u64 = 10;

/// The tenant of a session id.
pub(super) fn tenant(id: &SessionId) -> u32 {
    // The hash must be the same after every start.
    (xxh3_64(id.as_str().as_bytes()) as u32).max(NO_TENANT + 1)
}

#[derive(Debug, Default)]
struct Tenant {
    out: u64,
    ready: BTreeSet<u64>,
}

fn is_noisy(out: u64, all_out: u64) -> bool {
    out >= NOISY_OUT_MIN && out * NOISY_SHARE > all_out
}

/// The first ready message of a tenant, and the tenant.
type TenantHead = (u64, u32);

/// Ready and leased messages of the tenants of a queue.
#[derive(Debug)]
pub(super) struct FairQueue {
    /// Messages before this arrived before there were tenants. The queue's cursor covers them.
    pub from: u64,
    /// Tenants with ready or leased messages.
    tenants: HashMap<u32, Tenant, FixedState>,
    heads: BTreeSet<TenantHead>,
    /// Tenants that have enough leased messages to be noisy, by their number.
    loud: BTreeSet<(u64, u32)>,
}

impl FairQueue {
    pub(super) fn new(from: u64) -> Self {
        Self { from, tenants: fixed(), heads: BTreeSet::new(), loud: BTreeSet::new() }
    }

    /// Adds a ready message.
    pub(super) fn put(&mut self, tenant: u32, seq: u64) {
        let Tenant { ready, .. } = self.tenants.entry(tenant).or_default();
        let head = ready.first().copied();
        ready.insert(seq);
        if head.is_none_or(|head| seq < head) {
            self.heads.insert((seq, tenant));
            if let Some(head) = head {
                self.heads.remove(&(head, tenant));
            }
        }
    }

    /// Removes a message, if it is ready.
    pub(super) fn take(&mut self, tenant: u32, seq: u64) {
        let Some(Tenant { ready, .. }) = self.tenants.get_mut(&tenant) else { return };
        let was_head = ready.first() == Some(&seq);
        ready.remove(&seq);
        let next = ready.first().copied();
        if was_head {
            self.heads.remove(&(seq, tenant));
            self.heads.extend(next.map(|next| (next, tenant)));
            self.forget_if_idle(tenant);
        }
    }

    /// Counts a message as leased.
    pub(super) fn add_leased(&mut self, tenant: u32) {
        if tenant != NO_TENANT {
            let Tenant { out, .. } = self.tenants.entry(tenant).or_default();
            *out += 1;
            let is = *out;
            self.update_loud(tenant, is - 1, is);
        }
    }

    /// Counts a message as no longer leased.
    pub(super) fn remove_leased(&mut self, tenant: u32) {
        if let Some(Tenant { out, .. }) = self.tenants.get_mut(&tenant) {
            let was = *out;
            *out = was.saturating_sub(1);
            self.update_loud(tenant, was, was.saturating_sub(1));
            self.forget_if_idle(tenant);
        }
    }

    fn update_loud(&mut self, tenant: u32, was: u64, is: u64) {
        if was >= NOISY_OUT_MIN {
            self.loud.remove(&(was, tenant));
        }
        if is >= NOISY_OUT_MIN {
            self.loud.insert((is, tenant));
        }
    }

    /// The noisy tenants and their messages, if `all_out` messages are leased in total.
    pub(super) fn noisy(&self, all_out: u64) -> NoisyTenants {
        let loudest = self.loud.iter().rev().take_while(|(out, _)| is_noisy(*out, all_out));
        let ready = |tenant: u32| self.tenants.get(&tenant).map_or(0, |t| t.ready.len() as u64);
        loudest.fold(NoisyTenants::default(), |so_far, &(out, tenant)| NoisyTenants {
            tenants: so_far.tenants + 1,
            ready: so_far.ready + ready(tenant),
            locked: so_far.locked + out,
        })
    }

    fn forget_if_idle(&mut self, tenant: u32) {
        let idle = |t: &Tenant| t.out == 0 && t.ready.is_empty();
        if self.tenants.get(&tenant).is_some_and(idle) {
            self.tenants.remove(&tenant);
        }
    }

    /// The oldest ready message that `counts`, of any tenant.
    pub(super) fn oldest(&self, counts: impl Fn(u64) -> bool) -> Option<u64> {
        let mut best: Option<u64> = None;
        for &(head, tenant) in &self.heads {
            if best.is_some_and(|best| best < head) {
                break;
            }
            best = best.into_iter().chain(self.next_of(tenant, head, &counts)).min();
        }
        best
    }

    /// The first ready message of a tenant at or after `seq` that `counts`.
    fn next_of(&self, tenant: u32, seq: u64, counts: impl Fn(u64) -> bool) -> Option<u64> {
        self.tenants.get(&tenant)?.ready.range(seq..).copied().find(|&seq| counts(seq))
    }

    /// Picks messages to deliver, one after the other.
    pub(super) fn picks<F: Fn(u64) -> bool>(&self, all_out: u64, counts: F) -> FairPicks<'_, F> {
        let (rest, open, picked) = (self.heads.iter().peekable(), BTreeSet::new(), BTreeMap::new());
        FairPicks { fair: self, all_out, counts, rest, open, picked }
    }
}

/// Picks messages before they are leased. Each pick counts the earlier ones as leased.
pub(super) struct FairPicks<'a, F> {
    fair: &'a FairQueue,
    all_out: u64,
    counts: F,
    /// Heads that have not been examined yet.
    rest: Peekable<btree_set::Iter<'a, TenantHead>>,
    /// The next message of each examined tenant.
    open: BTreeSet<TenantHead>,
    /// Picked messages by tenant.
    picked: BTreeMap<u32, u64>,
}

impl<F: Fn(u64) -> bool> FairPicks<'_, F> {
    /// Leased and picked messages of a tenant.
    fn out(&self, tenant: u32) -> u64 {
        let out = self.fair.tenants.get(&tenant).map_or(0, |t| t.out);
        out + self.picked.get(&tenant).copied().unwrap_or(0)
    }

    fn is_noisy(&self, tenant: u32) -> bool {
        tenant != NO_TENANT && is_noisy(self.out(tenant), self.all_out)
    }

    fn open(&mut self, tenant: u32, from: u64) {
        let next = self.fair.next_of(tenant, from, &self.counts);
        self.open.extend(next.map(|seq| (seq, tenant)));
    }

    /// The oldest message of a quiet tenant.
    pub(super) fn quiet(&mut self) -> Option<TenantHead> {
        loop {
            let best = self.open.iter().copied().find(|&(_, tenant)| !self.is_noisy(tenant));
            let is_older = |head: &&TenantHead| best.is_none_or(|best| **head < best);
            let Some(&(seq, tenant)) = self.rest.next_if(is_older) else { return best };
            self.open(tenant, seq);
        }
    }

    /// If no tenant is quiet: a message of the tenant with the fewest leased messages.
    pub(super) fn noisy(&self) -> Option<TenantHead> {
        self.open.iter().copied().min_by_key(|&(seq, tenant)| (self.out(tenant), seq))
    }

    /// Picks a message. `out` says whether it will be leased.
    pub(super) fn pick(&mut self, (seq, tenant): TenantHead, out: bool) {
        self.open.remove(&(seq, tenant));
        self.went(out);
        if out {
            *self.picked.entry(tenant).or_default() += 1;
        }
        self.open(tenant, seq + 1);
    }

    /// Counts a picked message without a tenant.
    pub(super) fn went(&mut self, out: bool) {
        self.all_out += u64::from(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow reference implementation.
    fn plainly(ready: &BTreeMap<u64, u32>, out: &[u64], max: usize) -> Vec<u64> {
        let (mut ready, mut out) = (ready.clone(), out.to_vec());
        let mut picked = Vec::new();
        while picked.len() < max {
            let all: u64 = out.iter().sum();
            let noise = |tenant: u32| match out[tenant as usize] {
                _ if tenant == NO_TENANT => 0,
                n if n >= 30 && n * 10 > all => n,
                _ => 0,
            };
            let best = ready.iter().min_by_key(|(seq, tenant)| (noise(**tenant), **seq));
            let Some((&seq, &tenant)) = best else { break };
            ready.remove(&seq);
            out[tenant as usize] += 1;
            picked.push(seq);
        }
        picked
    }

    fn picked(fair: &FairQueue, all_out: u64, max: usize) -> Vec<u64> {
        let mut picks = fair.picks(all_out, |_| true);
        let next = || {
            let head = picks.quiet().or_else(|| picks.noisy())?;
            picks.pick(head, true);
            Some(head.0)
        };
        std::iter::from_fn(next).take(max).collect()
    }

    #[test]
    fn the_fair_index_picks_the_same_as_a_full_scan() {
        let mut state = 5_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut fair = FairQueue::new(0);
        let mut ready: BTreeMap<u64, u32> = BTreeMap::new();
        let mut gone: Vec<(u64, u32)> = Vec::new();
        let mut out = vec![0_u64; 14];
        let (mut passed, mut most) = (0, 0);
        for step in 0..6000 {
            // A few tenants send most messages, and the number of leased messages grows and shrinks.
            let tenant = if random(3) == 0 { random(14) } else { 1 + random(3) } as u32;
            ready.insert(step, tenant);
            fair.put(tenant, step);
            let (max, all) = (random(12) as usize, out.iter().sum());
            let batch = picked(&fair, all, max);
            assert_eq!(batch, plainly(&ready, &out, max), "step {step}, out {out:?}");
            let oldest = ready.first_key_value().map(|(&seq, _)| seq);
            assert_eq!(fair.oldest(|_| true), oldest);
            passed += u64::from(batch.first().copied() > oldest);
            let loud = |tenant: &usize| is_noisy(out[*tenant], all);
            let noisy: Vec<usize> = (1..out.len()).filter(loud).collect();
            let of = |tenant: &u32| noisy.contains(&(*tenant as usize));
            let expected = NoisyTenants {
                tenants: noisy.len() as u64,
                ready: ready.values().filter(|tenant| of(tenant)).count() as u64,
                locked: noisy.iter().map(|&tenant| out[tenant]).sum(),
            };
            assert_eq!(fair.noisy(all), expected, "step {step}");
            most = most.max(noisy.len());
            for &seq in batch.iter().filter(|_| step / 500 % 2 == 0) {
                let tenant = ready.remove(&seq).unwrap();
                fair.take(tenant, seq);
                fair.add_leased(tenant);
                out[tenant as usize] += 1;
                gone.push((seq, tenant));
            }
            for _ in 0..random(if step / 500 % 2 == 0 { 4 } else { 12 }) {
                if gone.is_empty() {
                    break;
                }
                let (seq, tenant) = gone.swap_remove(random(gone.len() as u64) as usize);
                fair.remove_leased(tenant);
                out[tenant as usize] -= 1;
                if random(3) == 0 {
                    ready.insert(seq, tenant);
                    fair.put(tenant, seq);
                }
            }
        }
        assert!(passed > 500 && most > 2, "{passed} passed, {most} noisy at once");
        for (seq, tenant) in ready {
            fair.take(tenant, seq);
        }
        gone.iter().for_each(|&(_, tenant)| fair.remove_leased(tenant));
        assert!(fair.tenants.is_empty() && fair.heads.is_empty() && fair.loud.is_empty());
    }

    #[test]
    fn tenants_are_hashed_the_same_after_every_start() {
        let id = |id: &str| tenant(&SessionId::new(id).unwrap());
        // Snapshots contain these values.
        assert_eq!([id("a"), id("tenant-7")], [513_166_879, 2_990_516_746]);
    }
}
