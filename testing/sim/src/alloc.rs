//! An allocator that counts: a decoder must not take more memory than its input warrants.
#![allow(unsafe_code)] // what an allocator is made of; every call goes straight to the system's

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts what each thread has and had at most.
pub struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn note(bytes: i64) {
    // A thread that ends has no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

/// A world that holds more has something in it that does not end. It is looked at where the engine asks for a file, which
/// whatever grows without end does sooner or later.
pub const WORLD_BYTES_MAX: u64 = 1 << 30;

/// Fails if this thread holds more than a world may. Without [`Counting`] nothing is known, and nothing fails.
pub fn check_world() {
    let held = HELD.with(Cell::get).max(0) as u64;
    assert!(held <= WORLD_BYTES_MAX, "something in this world does not end: it holds {held} bytes");
}

/// Bytes that `work` held at most beyond what was held before.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = HELD.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let done = work();
    (done, (PEAK.with(Cell::get) - before).max(0) as u64)
}

// SAFETY: the system's allocator, called as it was called.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(-(layout.size() as i64));
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size as i64 - layout.size() as i64);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(at, layout, size) }
    }
}
