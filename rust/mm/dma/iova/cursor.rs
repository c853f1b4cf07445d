// SPDX-License-Identifier: GPL-2.0

//! Accesses to the places of consecutive pages, under the table lock.

use super::{
    block_of,
    index_of,
    window::{
        SLOT_FREE,
        SLOT_MAPPED,
        SLOT_NUMBER_SHIFT,
        SLOT_STATE_MASK, //
    },
    DmaWindows,
    WindowGuard, //
};
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    mm::dma::DmaAddress, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::atomic::{
        ordering::{
            Acquire,
            Relaxed,
            Release, //
        },
        Atomic, //
    }, //
};

/// Accesses places of consecutive pages, and looks up each window only once. The caller holds the
/// table lock.
pub(crate) struct WindowCursor<'w> {
    windows: &'w DmaWindows,
    block: usize,
    used: Option<WindowGuard<'w>>,
}

impl<'w> WindowCursor<'w> {
    /// Creates a cursor that has looked up no window yet.
    pub(super) fn new(windows: &'w DmaWindows) -> Self {
        Self {
            windows,
            block: usize::MAX,
            used: None,
        }
    }

    fn place(&mut self, addr: usize) -> Option<(&WindowGuard<'w>, &Atomic<u64>)> {
        let block = block_of(addr);
        if self.used.is_none() || self.block != block {
            self.used = None;
            self.used = self.windows.get(block);
            self.block = block;
        }
        let used = self.used.as_ref()?;
        Some((used, used.window.places.get(index_of(addr))?))
    }

    /// Returns the page frame that is mapped for `addr`.
    pub(crate) fn frame(&mut self, addr: usize) -> Option<usize> {
        let (_, place) = self.place(addr)?;
        // The table lock, which is held, orders this load after the store of the frame.
        let place = place.load(Acquire);
        // CAST: Both have 64 bits.
        (place & SLOT_STATE_MASK == SLOT_MAPPED).then_some((place >> SLOT_NUMBER_SHIFT) as usize)
    }

    /// Maps `frame` for `addr`, unless it is mapped already. Returns its address, and whether the
    /// mapping is new. The frame must be one that the CPU has mapped, or that a migration holds.
    ///
    /// # Errors
    ///
    /// * `EBUSY`: another frame is mapped, the last one is not unmapped yet, or there is no window.
    /// * `ENOMEM`: the page could not be mapped.
    /// * `ENODEV`: the device is closed.
    pub(crate) fn map(&mut self, addr: usize, frame: usize) -> Result<(DmaAddress, bool)> {
        let windows = self.windows;
        let device = &windows.device;
        let (used, place) = self.place(addr).ok_or(EBUSY)?;
        let raw = used.window.raw().filter(|_| used.open).ok_or(ENODEV)?;
        // Pairs with the release in `unmap`, which a flush calls without the table lock: a free
        // place was unmapped before it is mapped again.
        let now = place.load(Acquire);
        // CAST: Both have 64 bits.
        let mapped = (frame as u64) << SLOT_NUMBER_SHIFT | SLOT_MAPPED;
        if now != SLOT_FREE && now != mapped {
            return Err(EBUSY);
        }
        let mut address = 0;
        let fresh = now == SLOT_FREE;
        // CAST: The index is below `PMD_PAGES`.
        // SAFETY: The window belongs to the device, which is bound because `used.open` is true. The
        // place is free, or mapped for this frame. The caller installs the frame in the table, and
        // keeps it allocated until the entry is flushed.
        to_result(unsafe {
            bindings::rust_hmm_dma_window_map(
                used.window.device.as_ptr(),
                raw.as_ptr(),
                index_of(addr) as u32,
                frame,
                fresh,
                fresh && fails(FailPoint::Dma),
                &mut address,
            )
        })?;
        if fresh {
            // INVARIANT: The place was mapped above.
            // Read with the table lock held, or by `close`, which waits for the users. Both order
            // it.
            place.store(mapped, Release);
            used.window.live.fetch_add(1, Relaxed);
            used.window.gone.store(false, Relaxed);
            device.count_mapped(1);
        }
        Ok((DmaAddress::new(address), fresh))
    }

    /// Makes the place of `addr` dying, because its entry is about to be removed. The page is
    /// unmapped at the end of the next flush.
    pub(crate) fn retire(&mut self, addr: usize) {
        let tick = self.windows.tick.load(Relaxed);
        if let Some((used, place)) = self.place(addr) {
            // The place became live under the table lock, which is held.
            if place.load(Acquire) & SLOT_STATE_MASK != SLOT_MAPPED {
                return;
            }
            used.window.retire(place, tick);
        }
    }

    /// Unmaps a page immediately. It was just mapped, and no entry refers to it yet.
    pub(crate) fn release(&mut self, addr: usize) {
        let windows = self.windows;
        if let Some((used, place)) = self.place(addr) {
            // As in `retire`: the table lock is held.
            if place.load(Acquire) & SLOT_STATE_MASK != SLOT_MAPPED {
                return;
            }
            if !used.open {
                return used.window.retire(place, windows.tick.load(Relaxed));
            }
            let index = index_of(addr);
            let count = used.window.unmap(index, index + 1, |_| true);
            windows.device.count_unmapped(count);
            // Relaxed: changed by users only, and read by `is_idle` after the count of users.
            used.window.live.fetch_sub(1, Relaxed);
        }
    }
}
