// SPDX-License-Identifier: GPL-2.0

//! A window: the DMA mappings of one block, and the states of its places.

use crate::{
    bindings,
    mm::{
        addr::PMD_PAGES,
        dma::DmaDevice, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Full,
                Relaxed,
                Release, //
            },
            Atomic,
            AtomicFlag, //
        },
        Arc, //
    }, //
};

pub(super) const SLOT_FREE: u64 = 0;
pub(super) const SLOT_MAPPED: u64 = 1;
pub(super) const SLOT_RETIRED: u64 = 2;
/// Bits of a place that hold its state.
pub(super) const SLOT_STATE_MASK: u64 = 3;
pub(super) const SLOT_NUMBER_SHIFT: u32 = 2;

/// DMA mappings of one block, which one PMD maps.
///
/// A window has the size of a block so that a huge leaf, which needs consecutive addresses, lies in
/// one window, and so that a fault or a migration step prepares one window only.
///
/// # Invariants
///
/// `raw` is 0, or a window of `device`, which is bound as long as that is so. Exactly the places
/// that are not free are mapped, if `raw` is not 0 and [`close`](super::DmaUser::close) is not
/// unmapping the window.
pub(super) struct DmaWindow {
    pub(super) device: NonNull<bindings::device>,
    raw: Atomic<usize>,
    /// State of each place, with the frame number (live) or the tick (dying).
    pub(super) places: KVec<Atomic<u64>>,
    pub(super) live: Atomic<usize>,
    pub(super) dying: Atomic<usize>,
    /// Number of [`WindowGuard`](super::WindowGuard). Incremented under the lock of the tree.
    pub(super) users: Atomic<usize>,
    /// The process has unmapped the block, so that the window can be dropped once it is idle.
    pub(super) gone: AtomicFlag,
}

// SAFETY: The device may be used by any task. Accesses to a place on the C side are exclusive: a
// live place is changed under the table lock, a dying one only by the flush that it waits for.
unsafe impl Send for DmaWindow {}
// SAFETY: All fields that change are atomic, and accesses on the C side are exclusive as described
// above.
unsafe impl Sync for DmaWindow {}

impl DmaWindow {
    pub(super) fn new(device: &DmaDevice) -> Result<Arc<Self>> {
        let mut places = KVec::with_capacity(PMD_PAGES, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..PMD_PAGES {
            places.push(Atomic::new(SLOT_FREE), GFP_KERNEL_ACCOUNT)?;
        }
        let mut window = Self {
            device: device.raw.device(),
            raw: Atomic::new(0),
            places,
            live: Atomic::new(0),
            dying: Atomic::new(0),
            users: Atomic::new(0),
            gone: AtomicFlag::new(false),
        };
        let mut error = 0;
        // SAFETY: The device is bound: the caller holds a `DmaDevice::begin()`, for which
        // `DmaDevice::close()` waits.
        let raw =
            unsafe { bindings::rust_hmm_dma_window_alloc(window.device.as_ptr(), &mut error) };
        to_result(error)?;
        // INVARIANT: All places are free, and nothing is mapped in the new window.
        window.raw = Atomic::new(raw as usize);
        Ok(Arc::new(window, GFP_KERNEL_ACCOUNT)?)
    }

    pub(super) fn raw(&self) -> Option<NonNull<bindings::rust_hmm_dma_window>> {
        // The lock of the tree publishes a new window. Acquire: a task that finds 0 finds the
        // window closed and its pages unmapped; pairs with the exchange in `free`.
        NonNull::new(self.raw.load(Acquire) as *mut _)
    }

    pub(super) fn is_idle(&self) -> bool {
        // Acquire: pairs with the decrement in `WindowGuard::drop`. It orders the other loads too,
        // because `live` and `dying` are changed by users only.
        self.users.load(Acquire) == 0
            && self.live.load(Relaxed) == 0
            // A closed window has no mappings, whatever its places say.
            && (self.dying.load(Acquire) == 0 || self.raw().is_none())
    }

    /// Unmaps the places of `first..end` for which `which` returns true, and makes them free.
    /// Returns their number.
    pub(super) fn unmap(&self, first: usize, end: usize, which: impl Fn(u64) -> bool) -> usize {
        let mut total = 0;
        let mut index = first;
        // Places that wait for a flush were made dying under the table lock, under which the tick
        // of the flush was taken. So this task sees their states, whatever the ordering of the
        // load.
        let of = |index: usize| {
            self.places
                .get(index)
                .map_or(SLOT_FREE, |place| place.load(Acquire))
        };
        while index < end {
            let start = index;
            while index < end && which(of(index)) {
                index += 1;
            }
            let count = index - start;
            if count == 0 {
                index += 1;
                continue;
            }
            // SAFETY: The places are not free, thus mapped by the type invariant. They become free
            // below.
            unsafe { self.unlink(start, count) };
            for place in self.places.iter().skip(start).take(count) {
                // Release: pairs with the acquire in `map`. The next mapping at this place follows
                // the unmapping.
                // INVARIANT: The place was unmapped above.
                place.store(SLOT_FREE, Release);
            }
            total += count;
        }
        total
    }

    /// Unmaps `count` places from `start` on. Does not change their states.
    ///
    /// # Safety
    ///
    /// The places must be mapped, and must not be unmapped again.
    pub(super) unsafe fn unlink(&self, start: usize, count: usize) {
        if let Some(raw) = self.raw() {
            // CAST: A window has `PMD_PAGES` places.
            // SAFETY: The places are mapped by the function's requirements, and the device is bound
            // by the type invariant.
            unsafe {
                bindings::rust_hmm_dma_window_unmap(
                    self.device.as_ptr(),
                    raw.as_ptr(),
                    start as u32,
                    count as u32,
                )
            };
        }
    }

    /// Makes the live `place` dying. Its page is unmapped after flush `tick`, or by
    /// [`close`](super::DmaUser::close). The place must not become free before that.
    pub(super) fn retire(&self, place: &Atomic<u64>, tick: u32) {
        // Increment `dying` before `live` is decremented, so that the window never looks idle in
        // between.
        self.dying.fetch_add(1, Relaxed);
        // The caller is a user of the window, so that `is_idle` orders the counts, which are
        // relaxed. The state is read with the table lock held, by the flush that it waits for, or
        // by `close` after the users have left. All of these are ordered after the store without
        // its release.
        place.store(u64::from(tick) << SLOT_NUMBER_SHIFT | SLOT_RETIRED, Release);
        self.live.fetch_sub(1, Relaxed);
    }

    /// Frees the window on the C side. No task may use it.
    pub(super) fn free(&self) {
        // The exchange makes this the only call that frees `raw`. The caller has waited for the
        // users with acquire ordering, or has the last reference, so that no access is left to be
        // ordered.
        if let Some(raw) = NonNull::new(self.raw.xchg(0, Full) as *mut _) {
            // SAFETY: `raw` is a window of the device, by the type invariant. Nothing is mapped in
            // it, and the exchange makes this the only call for it.
            unsafe { bindings::rust_hmm_dma_window_free(self.device.as_ptr(), raw.as_ptr()) };
        }
    }
}

impl Drop for DmaWindow {
    fn drop(&mut self) {
        self.free();
    }
}
