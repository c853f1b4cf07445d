// SPDX-License-Identifier: GPL-2.0

//! How much to bring back on a CPU fault: little at first, more while the faults stay close together.
//!
//! Of each device only the last fault is remembered, so that two processes by turns, or one that jumps
//! about, get the smallest window each time.

use crate::mm::{addr::PMD_ORDER, notifier::Cookie};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
};

/// Log2 of the pages of the smallest window: 64 KiB.
const SMALLEST: u64 = 4;

/// Bits that hold the size of the last window.
const BITS: u32 = 4;

/// The last fault: its 2 MiB, and log2 of the pages of its window.
pub(super) struct Density(Atomic<u64>);

impl Density {
    pub(super) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Pages of the window for a fault at `addr` of the address space `space`, a power of two up to
    /// 2 MiB: twice as many for each fault in the same 2 MiB, and all at once when these were all of the 2 MiB
    /// before.
    pub(super) fn window(&self, space: Cookie, addr: usize) -> usize {
        // Neighbours have neighbouring numbers; those of other spaces are elsewhere.
        let block = (addr >> PAGE_SHIFT >> PMD_ORDER) as u64;
        let block = block.wrapping_add((space.number() as u64) << 8) & (u64::MAX >> BITS);
        let last = self.0.load(Relaxed);
        let (before, order) = (last >> BITS, last & ((1 << BITS) - 1));
        let largest = u64::from(PMD_ORDER);
        let order = if block == before {
            (order + 1).clamp(SMALLEST, largest)
        } else if block == before + 1 && order == largest {
            largest
        } else {
            SMALLEST
        };
        self.0.store(block << BITS | order, Relaxed);
        1 << order
    }
}

#[kunit_tests(rust_hmm_density)]
mod tests {
    use super::*;
    use crate::mm::addr::{PMD_PAGES, PMD_SIZE};

    #[test]
    fn windows_grow_while_faults_are_close() {
        let (one, other) = (0u8, 0u8);
        let (one, other) = (Cookie::of(&one), Cookie::of(&other));
        let density = Density::new();
        let at = 0x7000 * PMD_SIZE;
        for pages in [16, 32, 64, 128, 256, 512, 512] {
            assert_eq!(density.window(one, at + 0x5000), pages);
        }
        // What follows is brought back at once; what does not is not.
        assert_eq!(density.window(one, at + PMD_SIZE), PMD_PAGES);
        assert_eq!(density.window(one, at + 3 * PMD_SIZE), 16);
        assert_eq!(density.window(one, at + 4 * PMD_SIZE), 16);
        assert_eq!(density.window(one, at + 4 * PMD_SIZE), 32);
        assert_eq!(density.window(other, at + 4 * PMD_SIZE), 16);
        assert_eq!(density.window(one, at + 4 * PMD_SIZE), 16);
    }
}
