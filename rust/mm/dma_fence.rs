// SPDX-License-Identifier: GPL-2.0

//! DMA fences: of hardware that works on memory which cannot move.
//!
//! Any driver may wait for a DMA fence where memory is reclaimed. So between [`DmaFenceRoom::make`] and
//! [`DmaPending::signal`] nothing may allocate with reclaim, take an mmap lock or a lock under which others allocate,
//! fault a page in, or wait for anything but other DMA fences; and the time is bounded, whatever user space does. That
//! holds for a hardware copy of memory that is pinned or already isolated, with everything allocated before. It does
//! not hold for what a [`Queue`](crate::queue::Queue) runs: that has a [`Fence`](super::fence::Fence), which is
//! another type.
//!
//! Three states are three types. [`DmaFenceRoom`] is memory for a fence, whose allocation may fail. [`DmaPending`] is
//! the side that signals, once. [`DmaFence`] is the side that others wait for, of this library or of another driver.
//!
//! C header: [`include/linux/dma-fence.h`](srctree/include/linux/dma-fence.h)

use super::{fence::cancelled, notifier::Cookie};
use crate::bindings;
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
    types::NotThreadSafe, //
};

/// A fence context: its fences signal in the order in which they were made.
pub struct Timeline {
    context: u64,
    last: Atomic<u64>,
}

impl Timeline {
    /// Allocates a fence context.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        Self {
            // SAFETY: No preconditions.
            context: unsafe { bindings::dma_fence_context_alloc(1) },
            last: Atomic::new(0),
        }
    }
}

/// Memory for a fence.
///
/// # Invariants
///
/// The memory is ours, and not initialized as a fence.
pub struct DmaFenceRoom(NonNull<bindings::dma_fence>);

// SAFETY: Memory may be used and freed by any task.
unsafe impl Send for DmaFenceRoom {}

impl DmaFenceRoom {
    /// Allocates the memory.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new() -> Result<Self> {
        // SAFETY: No preconditions.
        let raw = unsafe { bindings::rust_hmm_dma_fence_alloc() };
        // INVARIANT: Just allocated.
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Makes the fence; this cannot fail. `kind` names the type of device that signals it.
    ///
    /// Fences of one timeline must be made in the order in which they signal. From here on the rules of the module hold.
    pub fn make(self, timeline: &Timeline, kind: Cookie) -> DmaPending {
        let this = ManuallyDrop::new(self);
        let seqno = timeline.last.fetch_add(1, Relaxed) + 1;
        // SAFETY: By the type invariant it is ours and not initialized. The kind is only compared.
        unsafe {
            bindings::rust_hmm_dma_fence_init(
                this.0.as_ptr(),
                kind.as_ptr(),
                timeline.context,
                seqno,
            );
        }
        // INVARIANT: The first reference is ours, and the fence was not signalled.
        DmaPending(DmaFence(this.0))
    }
}

impl Drop for DmaFenceRoom {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_dma_fence_free(self.0.as_ptr()) };
    }
}

/// The side of a DMA fence that signals it. Dropped, the fence fails with `ECANCELED`.
///
/// # Invariants
///
/// The fence was made by [`DmaFenceRoom::make`], and is not signalled.
#[must_use = "dropped, it is cancelled"]
pub struct DmaPending(DmaFence);

impl DmaPending {
    /// The side that waits.
    pub fn fence(&self) -> DmaFence {
        self.0.clone()
    }

    /// Signals it, with the error if there is one.
    ///
    /// # Context
    ///
    /// Any, also interrupts.
    pub fn signal(self, result: Result) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so that the fence is moved out once.
        let fence = unsafe { core::ptr::read(&this.0) };
        let error = result.err().map_or(0, |error| error.to_errno());
        // SAFETY: A live fence of ours that is not signalled, by the type invariants.
        unsafe { bindings::rust_hmm_dma_fence_signal(fence.as_raw(), error) };
    }
}

impl Drop for DmaPending {
    fn drop(&mut self) {
        let error = cancelled().to_errno();
        // SAFETY: A live fence of ours that is not signalled, by the type invariants.
        unsafe { bindings::rust_hmm_dma_fence_signal(self.0.as_raw(), error) };
    }
}

/// A DMA fence, of this library or of another driver. A clone is the same fence.
///
/// It is waited for as a [`Fence`](super::fence::Fence::of), and leaves as a [`SyncFile`](super::sync_file::SyncFile).
///
/// # Invariants
///
/// We own a reference of the fence.
pub struct DmaFence(NonNull<bindings::dma_fence>);

// SAFETY: A `dma_fence` may be used by several tasks, and released by any.
unsafe impl Send for DmaFence {}
// SAFETY: As for `Send`.
unsafe impl Sync for DmaFence {}

impl DmaFence {
    /// # Safety
    ///
    /// `raw` must be a fence of which the caller gives a reference away.
    pub(super) unsafe fn from_raw(raw: NonNull<bindings::dma_fence>) -> Self {
        // INVARIANT: By the function's requirements.
        Self(raw)
    }

    /// Takes a reference.
    ///
    /// # Safety
    ///
    /// `raw` must be a fence that is alive.
    pub(crate) unsafe fn get(raw: NonNull<bindings::dma_fence>) -> Self {
        // SAFETY: By the function's requirements; this reference stays where it is.
        let theirs = ManuallyDrop::new(unsafe { Self::from_raw(raw) });
        Self::clone(&theirs)
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::dma_fence {
        self.0.as_ptr()
    }
}

impl PartialEq for DmaFence {
    /// Whether it is the same fence.
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for DmaFence {}

impl Clone for DmaFence {
    fn clone(&self) -> Self {
        // SAFETY: Alive by the type invariant.
        unsafe { bindings::rust_hmm_dma_fence_get(self.as_raw()) };
        // INVARIANT: The reference was just taken.
        Self(self.0)
    }
}

impl Drop for DmaFence {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_dma_fence_put(self.as_raw()) };
    }
}

/// A section of the current task that leads to the signal of a DMA fence. Within it lockdep reports allocations with
/// reclaim and mm locks.
pub struct Signalling {
    cookie: bool,
    _nts: NotThreadSafe,
}

impl Signalling {
    /// Begins the section.
    pub fn begin() -> Self {
        Self {
            // SAFETY: No preconditions.
            cookie: unsafe { bindings::rust_hmm_dma_fence_begin_signalling() },
            _nts: NotThreadSafe,
        }
    }
}

impl Drop for Signalling {
    fn drop(&mut self) {
        // SAFETY: It was begun by this task.
        unsafe { bindings::rust_hmm_dma_fence_end_signalling(self.cookie) };
    }
}

#[kunit_tests(rust_hmm_dma_fence)]
mod tests {
    use super::*;
    use crate::mm::fence::{Fence, Status};

    fn pending(kind: Cookie) -> Result<DmaPending> {
        Ok(DmaFenceRoom::new()?.make(&Timeline::new(), kind))
    }

    #[test]
    fn a_fence_ends_with_the_dma_fence_it_stands_for() -> Result {
        for result in [Ok(()), Err(EIO)] {
            let pending = pending(Cookie::NONE)?;
            let early = Fence::of(&pending.fence())?;
            // Dropped before the signal: its callback is removed.
            drop(Fence::of(&pending.fence())?);
            assert_eq!(early.check(), Status::NotDone);
            let dma = pending.fence();
            pending.signal(result);
            assert_eq!(early.check().ended(), Some(result));
            assert_eq!(early.synchronize(None), result);
            assert_eq!(Fence::of(&dma)?.check().ended(), Some(result));
        }
        Ok(())
    }

    #[test]
    fn dropped_without_a_signal_it_is_cancelled() -> Result {
        drop(DmaFenceRoom::new()?);
        let pending = pending(Cookie::NONE)?;
        let fence = Fence::of(&pending.fence())?;
        drop(pending);
        assert_eq!(fence.check(), Status::Failed(cancelled()));
        Ok(())
    }

    #[test]
    fn its_kind_passes_to_the_fence_that_stands_for_it() -> Result {
        let (mine, other) = (1u8, 2u8);
        let (mine, other) = (Cookie::of(&mine), Cookie::of(&other));
        let pending = pending(mine)?;
        let fence = Fence::of(&pending.fence())?;
        assert!(fence.is_of(mine) && !fence.is_of(other));
        Ok(())
    }
}
