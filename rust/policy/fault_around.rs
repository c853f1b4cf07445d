// SPDX-License-Identifier: GPL-2.0

//! Amount of memory that is migrated back for a CPU fault: a page to 2 MiB, depending on previous
//! faults.
//!
//! The window is doubled if the fault is at the end of the last window, or in an aligned 2 MiB in
//! which the CPU has faulted recently. The limit is a time for the copy, so that it does not depend
//! on the page size. It is halved if the fault is far away. Each address space has its own
//! histories, without a lock.

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

/// Number of blocks of [`MAX_WINDOW_BYTES`] whose windows an address space remembers. Blocks whose
/// numbers differ by a multiple of it replace each other, which only affects performance.
const BLOCK_HISTORIES: usize = 64;

/// Number of bits for the order in a history.
const ORDER_BITS: u32 = 4;

/// The last window: the page behind it, and its order. 0 if there was none.
#[derive(Clone, Copy)]
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

    /// Returns whether a fault on `page` continues the last window, or stays in its block.
    fn is_continued_by(self, page: usize) -> bool {
        let next = self.next();
        self.0 != 0 && (page == next || page >> MAX_WINDOW_ORDER == (next - 1) >> MAX_WINDOW_ORDER)
    }

    /// Returns the order of the window for a fault on `page`, without the history of its block.
    fn next_order(self, page: usize) -> u32 {
        let order = self.order().min(MAX_WINDOW_ORDER);
        if self.0 == 0 {
            FIRST_WINDOW_ORDER
        } else if self.is_continued_by(page) {
            (order + 1).min(MAX_WINDOW_ORDER)
        } else if page.abs_diff(self.next()) <= 1 << MAX_WINDOW_ORDER {
            // The fault is near: neither sequential nor far away.
            order
        } else {
            order.saturating_sub(1)
        }
    }
}

/// The faults in a block of [`MAX_WINDOW_BYTES`]: the number of the block, and that of the faults.
/// 0 if there was none, or all of the block has come back: the next fault follows another
/// migration.
#[derive(Clone, Copy)]
struct BlockFaults(u64);

impl BlockFaults {
    /// Returns the number of faults in `block`, which is 0 if this is the history of another one.
    fn count(self, block: usize) -> u32 {
        let count = (self.0 & ((1 << ORDER_BITS) - 1)) as u32;
        if self.0 >> ORDER_BITS == block as u64 {
            count
        } else {
            0
        }
    }

    /// Returns the history after one more fault in `block`, with a window of `order`.
    fn record(self, block: usize, order: u32) -> Self {
        if order == MAX_WINDOW_ORDER {
            return Self(0);
        }
        let count = (self.count(block) + 1).min((1 << ORDER_BITS) - 1);
        Self(((block as u64) << ORDER_BITS) | u64::from(count))
    }

    /// Returns the order of the window for a fault in `block`, if it is not the first one.
    ///
    /// If accesses are close together, most of the block will be used, in whatever order. The
    /// second window has the first size: a page takes as much time as several in a window.
    fn next_order(self, block: usize) -> Option<u32> {
        let earlier = self.count(block).checked_sub(1)?;
        Some((FIRST_WINDOW_ORDER + earlier).min(MAX_WINDOW_ORDER))
    }
}

/// Histories of the CPU faults of an address space.
pub(crate) struct FaultWindows {
    /// The [`LastWindow`] for each device memory.
    last: [Atomic<u64>; MEMORY_HISTORIES],
    /// The [`BlockFaults`] for each block with recent faults.
    blocks: KVec<Atomic<u64>>,
}

impl FaultWindows {
    /// Creates empty histories.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new() -> Result<Self> {
        let mut blocks = KVec::with_capacity(BLOCK_HISTORIES, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..BLOCK_HISTORIES {
            blocks.push(Atomic::new(0), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self {
            last: [const { Atomic::new(0) }; MEMORY_HISTORIES],
            blocks,
        })
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
        let page = addr >> PAGE_SHIFT;
        let block = page >> MAX_WINDOW_ORDER;
        let last = self.last.get(memory as usize % MEMORY_HISTORIES);
        let history = self.blocks.get(block % BLOCK_HISTORIES);
        let Some((last, history)) = last.zip(history) else {
            return Self::first();
        };
        // Relaxed: each word is complete in itself, and a lost update changes only the next window.
        let window = LastWindow(last.load(Relaxed));
        let faults = BlockFaults(history.load(Relaxed));
        let order = match faults.next_order(block) {
            Some(order) if window.is_continued_by(page) => order.max(window.next_order(page)),
            Some(order) => order,
            None => window.next_order(page),
        };
        // Windows are aligned.
        let next = ((page >> order) + 1) << order;
        // If a concurrent fault has updated a history, its update is overwritten.
        last.store(LastWindow::new(next, order).0, Relaxed);
        history.store(faults.record(block, order).0, Relaxed);
        (PAGE_SIZE << order).min(MAX_WINDOW_BYTES)
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_cpu_window)]
mod tests {
    use super::*;

    #[test]
    fn window_grows_on_streams_and_shrinks_on_jumps() -> Result {
        let windows = FaultWindows::new()?;
        let base = 1 << 40;
        let mut at = base;
        for expected in [64, 128, 256, 512, 1024, 2048, 2048] {
            let size = windows.record_fault(1, at);
            assert_eq!(size, expected << 10);
            at = (at & !(size - 1)) + size;
        }
        // A jump back to the beginning is one, too: all of its block was brought back.
        assert_eq!(windows.record_fault(1, base), 1024 << 10);
        for expected in [512usize, 256, 128, 64, 32, 16, 8, 4, 4] {
            at += 1 << 30;
            let expected = (expected << 10).max(PAGE_SIZE);
            assert_eq!(windows.record_fault(1, at), expected);
        }
        // Another fault in the same block lets the window grow again.
        at += PAGE_SIZE;
        assert_eq!(windows.record_fault(1, at), 64 << 10);
        at += 64 << 10;
        assert_eq!(windows.record_fault(1, at), 128 << 10);
        Ok(())
    }

    #[test]
    fn window_grows_in_each_block_of_random_accesses() -> Result {
        let windows = FaultWindows::new()?;
        let base = 1 << 40;
        let mut random = 7u64;
        let mut next = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            (random >> 33) as usize
        };
        // 32 MiB of device pages, of which each access brings back a window.
        let pages = (32 << 20) / PAGE_SIZE;
        let mut resident = KVec::from_elem(true, pages, GFP_KERNEL)?;
        let mut faults = 0;
        for _ in 0..16 * pages {
            let page = next() % pages;
            if !resident.get(page).is_some_and(|resident| *resident) {
                continue;
            }
            faults += 1;
            let window = windows.record_fault(1, base + page * PAGE_SIZE) / PAGE_SIZE;
            let first = page & !(window - 1);
            for page in first..first + window {
                if let Some(resident) = resident.get_mut(page) {
                    *resident = false;
                }
            }
        }
        // Eight for each 2 MiB: a page or more, 64 KiB, and the double each time.
        assert!(faults <= 8 * 16);
        Ok(())
    }

    #[test]
    fn memories_have_independent_windows() -> Result {
        let windows = FaultWindows::new()?;
        assert_eq!(windows.record_fault(1, 1 << 40), 64 << 10);
        assert_eq!(windows.record_fault(2, 1 << 41), 64 << 10);
        assert_eq!(windows.record_fault(1, (1 << 40) + (64 << 10)), 128 << 10);
        assert_eq!(windows.record_fault(2, (1 << 41) + (64 << 10)), 128 << 10);
        Ok(())
    }

    #[test]
    fn window_contains_the_page() -> Result {
        let windows = FaultWindows::new()?;
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
