// SPDX-License-Identifier: GPL-2.0

//! Amount of memory that is migrated back for a CPU fault: a page to 2 MiB, depending on previous
//! faults.
//!
//! The window is doubled if the fault is at the end of the last window, or in the same aligned
//! 2 MiB. The limit is a time for the copy, so that it does not depend on the page size. It is
//! halved if the fault is far away. Each address space has its own histories, without a lock.

use kernel::{
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    }, //
};

/// Size of the first window: enough that the copy and not the fault takes most of the time.
const FIRST_WINDOW_BYTES: usize = 64 << 10;

/// Maximum size of a window. The thread that faults waits for the copy of all of it.
const MAX_WINDOW_BYTES: usize = 2 << 20;

/// Orders of these windows.
const FIRST_WINDOW_ORDER: u32 = (FIRST_WINDOW_BYTES / PAGE_SIZE).ilog2();
const MAX_WINDOW_ORDER: u32 = (MAX_WINDOW_BYTES / PAGE_SIZE).ilog2();

/// Number of histories of an address space. Device memories whose numbers differ by a multiple of
/// it share one, which only affects performance.
const MEMORY_HISTORIES: usize = 8;

/// Number of bits for the order in a history.
const ORDER_BITS: u32 = 4;

/// The last window: the page behind it, and its order. 0 if there was none.
#[derive(Clone, Copy, PartialEq, Eq)]
struct LastWindow(u64);

impl LastWindow {
    fn new(next: usize, order: u32) -> Self {
        Self(((next as u64) << ORDER_BITS) | u64::from(order))
    }

    fn next(self) -> usize {
        (self.0 >> ORDER_BITS) as usize
    }

    fn order(self) -> u32 {
        match self.0 {
            0 => FIRST_WINDOW_ORDER,
            raw => (raw & ((1 << ORDER_BITS) - 1)) as u32,
        }
    }

    /// Returns the order of the window for a fault on `page`, and the new history.
    fn record_fault(self, page: usize) -> (u32, Self) {
        let order = self.order().min(MAX_WINDOW_ORDER);
        let order = if self.0 == 0 {
            FIRST_WINDOW_ORDER
        } else if page == self.next() {
            (order + 1).min(MAX_WINDOW_ORDER)
        } else if page >> MAX_WINDOW_ORDER == (self.next() - 1) >> MAX_WINDOW_ORDER {
            // The accesses are close together, so that most of these 2 MiB will be used.
            (order + 1).min(MAX_WINDOW_ORDER)
        } else if page.abs_diff(self.next()) <= 1 << MAX_WINDOW_ORDER {
            // The fault is near: neither sequential nor far away.
            order
        } else {
            order.saturating_sub(1)
        };
        // Windows are aligned.
        let next = ((page >> order) + 1) << order;
        (order, Self::new(next, order))
    }
}

/// Histories of the CPU faults of an address space, one for each device memory.
pub(crate) struct FaultWindows([Atomic<u64>; MEMORY_HISTORIES]);

impl FaultWindows {
    /// Creates empty histories.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) const fn new() -> Self {
        Self([const { Atomic::new(0) }; MEMORY_HISTORIES])
    }

    /// Returns the number of bytes to migrate back for a CPU fault without a history.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) const fn first() -> usize {
        PAGE_SIZE << FIRST_WINDOW_ORDER
    }

    /// Returns the number of bytes to migrate back around `addr`, a power of 2. `memory` is the
    /// number of the device memory.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn record_fault(&self, memory: u32, addr: usize) -> usize {
        let Some(place) = self.0.get(memory as usize % MEMORY_HISTORIES) else {
            return Self::first();
        };
        let (order, past) = LastWindow(place.load(Relaxed)).record_fault(addr >> PAGE_SHIFT);
        // If a concurrent fault has updated the history, its update is overwritten.
        place.store(past.0, Relaxed);
        (PAGE_SIZE << order).min(MAX_WINDOW_BYTES)
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_cpu_window)]
mod tests {
    use super::*;

    #[test]
    fn window_grows_on_streams_and_shrinks_on_jumps() -> Result {
        let windows = FaultWindows::new();
        let base = 1 << 40;
        let mut at = base;
        for expected in [64, 128, 256, 512, 1024, 2048, 2048] {
            let size = windows.record_fault(1, at);
            assert_eq!(size, expected << 10);
            at = (at & !(size - 1)) + size;
        }
        for expected in [1024usize, 512, 256, 128, 64, 32, 16, 8, 4, 4] {
            at += 1 << 30;
            let expected = (expected << 10).max(PAGE_SIZE);
            assert_eq!(windows.record_fault(1, at), expected);
        }
        // A near fault lets the window grow again.
        at += PAGE_SIZE;
        assert_eq!(windows.record_fault(1, at), 2 * PAGE_SIZE);
        Ok(())
    }

    #[test]
    fn memories_have_independent_windows() -> Result {
        let windows = FaultWindows::new();
        assert_eq!(windows.record_fault(1, 1 << 40), 64 << 10);
        assert_eq!(windows.record_fault(2, 1 << 41), 64 << 10);
        assert_eq!(windows.record_fault(1, (1 << 40) + (64 << 10)), 128 << 10);
        assert_eq!(windows.record_fault(2, (1 << 41) + (64 << 10)), 128 << 10);
        Ok(())
    }

    #[test]
    fn window_contains_the_page() -> Result {
        let windows = FaultWindows::new();
        let mut random = 7u64;
        for _ in 0..1000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let addr = (random >> 17) as usize & !(PAGE_SIZE - 1);
            let size = windows.record_fault(3, addr);
            assert!(size.is_power_of_two() && (PAGE_SIZE..=MAX_WINDOW_BYTES).contains(&size));
        }
        Ok(())
    }
}
