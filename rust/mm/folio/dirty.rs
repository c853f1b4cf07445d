// SPDX-License-Identifier: GPL-2.0

//! Folios that a device may have written.

use crate::bindings;
use core::mem::MaybeUninit;

/// Batch of folios to be marked dirty because a device may have written them. Dropping the batch
/// marks all folios that are left in it.
///
/// # Invariants
///
/// The first `len` frame numbers are initialized, and `len` is at most [`Self::BATCH_FOLIOS`].
pub(crate) struct DirtyBatch {
    // Not initialized, because most changes mark no folio dirty.
    pfns: [MaybeUninit<usize>; Self::BATCH_FOLIOS],
    len: usize,
}

impl DirtyBatch {
    const BATCH_FOLIOS: usize = 32;

    /// Creates an empty batch.
    pub(crate) const fn empty() -> Self {
        // INVARIANT: There are none.
        Self {
            pfns: [const { MaybeUninit::uninit() }; Self::BATCH_FOLIOS],
            len: 0,
        }
    }

    /// Adds the folios of `count` page frames from `pfn` on.
    ///
    /// # Safety
    ///
    /// Until `self` is dropped, the frames must belong to pages that are alive and, if they are of
    /// a file, cannot be truncated: they are mapped, and the notifier's callback that will let them
    /// be unmapped has not returned.
    #[inline]
    pub(crate) unsafe fn add(&mut self, pfn: usize, count: usize) {
        if count != 1 {
            // SAFETY: By the function's requirements.
            return unsafe { bindings::rust_hmm_mark_dirty(pfn, count) };
        }
        if !self.put(pfn) {
            self.mark();
            self.put(pfn);
        }
    }

    /// Adds `pfn`, if the batch has room.
    #[inline(always)]
    fn put(&mut self, pfn: usize) -> bool {
        match self.pfns.get_mut(self.len) {
            Some(place) => {
                place.write(pfn);
                // INVARIANT: One more is initialized. OVERFLOW: At most the length of the array.
                self.len = self.len.wrapping_add(1);
                true
            }
            None => false,
        }
    }

    fn mark(&mut self) {
        let pfns = self.pfns.get(..self.len).unwrap_or_default();
        // SAFETY: The numbers are initialized by the type invariant. Their pages are alive by the
        // requirements of `add`.
        unsafe { bindings::rust_hmm_mark_all_dirty(pfns.as_ptr().cast(), pfns.len()) };
        // INVARIANT: There are none.
        self.len = 0;
    }
}

impl Drop for DirtyBatch {
    fn drop(&mut self) {
        if self.len != 0 {
            self.mark();
        }
    }
}
