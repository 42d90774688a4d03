//! A global allocator that counts bytes per thread, so that tests can bound the memory of a decoder or a simulation.
#![allow(unsafe_code)] // implements `GlobalAlloc`; every call is forwarded unchanged

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use mimalloc::MiMalloc;

/// Counts the bytes that each thread has allocated, now and at the peak.
pub struct CountingAllocator;

thread_local! {
    static ALLOCATED: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn count_bytes(bytes: i64) {
    // A thread that is ending has no counters any more.
    let _ = ALLOCATED.try_with(|allocated| {
        allocated.set(allocated.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(allocated.get())));
    });
}

/// A simulation that uses more memory probably contains an endless loop. Checked when the engine creates a file,
/// which any unbounded growth does sooner or later.
pub const WORLD_BYTES_MAX: u64 = 1 << 30;

/// Fails if this thread uses more than [`WORLD_BYTES_MAX`]. Without [`CountingAllocator`] the counters stay zero and
/// nothing fails.
pub fn check_memory() {
    let allocated = ALLOCATED.with(Cell::get).max(0) as u64;
    assert!(
        allocated <= WORLD_BYTES_MAX,
        "the simulation uses {allocated} bytes; something in it grows without bound"
    );
}

/// Runs `work` and returns the peak number of bytes that it allocated.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATED.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let done = work();
    (done, (PEAK.with(Cell::get) - before).max(0) as u64)
}

// SAFETY: every call is forwarded unchanged to an allocator that keeps the contract.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_bytes(layout.size() as i64);
        // SAFETY: as promised by the caller.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count_bytes(-(layout.size() as i64));
        // SAFETY: as promised by the caller.
        unsafe { MiMalloc.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_bytes(size as i64 - layout.size() as i64);
        // SAFETY: as promised by the caller.
        unsafe { MiMalloc.realloc(at, layout, size) }
    }
}
