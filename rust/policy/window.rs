// SPDX-License-Identifier: GPL-2.0

//! How much comes back with a page that a CPU touches: 4 KiB to 2 MiB, by how it was touched before.
//!
//! A CPU that goes on where the last window ended, or stays in the same 2 MiB, gets twice as much each time; one that
//! jumps gets half.
//! The places are few, of fixed size and without a lock: the past of two address spaces may mix, which
//! costs time only.

use crate::mm::addr::{PMD_ORDER, PMD_SIZE};
use kernel::{
    page::{PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
};

/// Order of the first window: 64 KiB.
const FIRST: u32 = 4;

/// Places for streams.
const PLACES: usize = 64;

/// Bits of the order in a place.
const ORDER_BITS: u32 = 4;

/// What was brought back last: the page behind it, and the order of the window; 0 for nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Past(u64);

impl Past {
    fn new(next: usize, order: u32) -> Self {
        Self(((next as u64) << ORDER_BITS) | u64::from(order))
    }

    fn next(self) -> usize {
        (self.0 >> ORDER_BITS) as usize
    }

    fn order(self) -> u32 {
        match self.0 {
            0 => FIRST,
            raw => (raw & ((1 << ORDER_BITS) - 1)) as u32,
        }
    }

    /// The order for a touch of page `page`, and what is the past then.
    fn touch(self, page: usize) -> (u32, Self) {
        let order = self.order().min(PMD_ORDER);
        let order = if self.0 == 0 {
            FIRST
        } else if page == self.next() {
            (order + 1).min(PMD_ORDER)
        } else if page >> PMD_ORDER == (self.next() - 1) >> PMD_ORDER {
            // Close together: most of these 2 MiB will be wanted.
            (order + 1).min(PMD_ORDER)
        } else if page.abs_diff(self.next()) <= 1 << PMD_ORDER {
            // Near: neither a stream nor a jump.
            order
        } else {
            order.saturating_sub(1)
        };
        // Windows are aligned.
        let next = ((page >> order) + 1) << order;
        (order, Self::new(next, order))
    }
}

/// The windows of a device's memory.
pub(crate) struct Windows(KVec<Atomic<u64>>);

impl Windows {
    /// Nothing was touched yet. Context: may sleep. `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let mut places = KVec::with_capacity(PLACES, GFP_KERNEL)?;
        for _ in 0..PLACES {
            places.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    fn place(&self, space: usize) -> Option<&Atomic<u64>> {
        let hash = space.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        self.0.get(hash % PLACES)
    }

    /// `space` is a new address space, or begins anew: what was known of one with its number says nothing.
    pub(crate) fn forget(&self, space: usize) {
        if let Some(place) = self.place(space) {
            place.store(0, Relaxed);
        }
    }

    /// Bytes to bring back around `addr`, a power of 2, in the address space `space` (a number that
    /// differs). Context: any.
    pub(crate) fn touch(&self, space: usize, addr: usize) -> usize {
        let Some(place) = self.place(space) else {
            return PAGE_SIZE << FIRST;
        };
        let (order, past) = Past(place.load(Relaxed)).touch(addr >> PAGE_SHIFT);
        // If somebody else is faster, the past is theirs.
        place.store(past.0, Relaxed);
        (PAGE_SIZE << order).min(PMD_SIZE)
    }
}

#[kunit_tests(rust_hmm_cpu_window)]
mod tests {
    use super::*;

    #[test]
    fn streams_grow_and_jumps_shrink() -> Result {
        let windows = Windows::new()?;
        let base = 1 << 40;
        let mut at = base;
        for expected in [64, 128, 256, 512, 1024, 2048, 2048] {
            let size = windows.touch(1, at);
            assert_eq!(size, expected << 10);
            at = (at & !(size - 1)) + size;
        }
        for expected in [1024, 512, 256, 128, 64, 32, 16, 8, 4, 4] {
            at += 1 << 30;
            assert_eq!(windows.touch(1, at), expected << 10);
        }
        // And again.
        at += 4096;
        assert_eq!(windows.touch(1, at), 8 << 10);
        windows.forget(1);
        assert_eq!(windows.touch(1, at), 64 << 10);
        Ok(())
    }

    #[test]
    fn address_spaces_do_not_disturb_each_other() -> Result {
        let windows = Windows::new()?;
        assert_eq!(windows.touch(1, 1 << 40), 64 << 10);
        assert_eq!(windows.touch(2, 1 << 41), 64 << 10);
        assert_eq!(windows.touch(1, (1 << 40) + (64 << 10)), 128 << 10);
        assert_eq!(windows.touch(2, (1 << 41) + (64 << 10)), 128 << 10);
        Ok(())
    }

    #[test]
    fn a_window_holds_the_page() -> Result {
        let windows = Windows::new()?;
        let mut random = 7u64;
        for _ in 0..1000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let addr = (random >> 17) as usize & !(PAGE_SIZE - 1);
            let size = windows.touch(3, addr);
            assert!(size.is_power_of_two() && (PAGE_SIZE..=PMD_SIZE).contains(&size));
        }
        Ok(())
    }
}
