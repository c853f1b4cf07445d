// SPDX-License-Identifier: GPL-2.0

//! DMA fences, for hardware that accesses memory which cannot move.
//!
//! Any driver may wait for a DMA fence in memory reclaim. Therefore, between
//! [`DmaFenceAlloc::init`] and [`DmaDriverFence::signal`], nothing may allocate with reclaim, take
//! an mmap lock or a lock under which other tasks allocate, fault a page in, or wait for anything
//! but other DMA fences. The time between them must be bounded, whatever user space does. A
//! hardware copy of memory that is pinned or already isolated meets these rules if everything is
//! allocated before. The operations of a [`Queue`](crate::queue::Queue) do not meet them, so that a
//! queue signals a [`Fence`](super::fence::Fence), which is another type.
//!
//! Each state has a type. [`DmaFenceAlloc`] is memory for a fence, whose allocation may fail.
//! [`DmaDriverFence`] is the side that signals the fence, once. [`DmaFence`] is the side that
//! waits, and may also be a fence of another driver.
//!
//! C header: [`include/linux/dma-fence.h`](srctree/include/linux/dma-fence.h)

use crate::{
    bindings,
    kernel::{
        cancel::cancelled,
        identity::FenceType, //
    }, //
};
use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    },
    types::NotThreadSafe, //
};

/// A fence context. Its fences signal in the order in which they are created.
pub struct FenceContext {
    context: u64,
    last: Atomic<u64>,
}

impl FenceContext {
    /// Allocates a fence context.
    ///
    /// # Context
    ///
    /// Any.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        Self {
            // SAFETY: `dma_fence_context_alloc()` has no preconditions.
            context: unsafe { bindings::dma_fence_context_alloc(1) },
            last: Atomic::new(0),
        }
    }
}

/// Memory for a DMA fence, allocated in advance.
///
/// # Invariants
///
/// The memory is ours, and not initialized as a fence.
pub struct DmaFenceAlloc(NonNull<bindings::dma_fence>);

// SAFETY: Memory may be used and freed by any task.
unsafe impl Send for DmaFenceAlloc {}

impl DmaFenceAlloc {
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
        // SAFETY: The helper has no preconditions.
        let raw = unsafe { bindings::rust_hmm_dma_fence_alloc() };
        // INVARIANT: The memory was allocated above and is not initialized as a fence.
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Initializes the fence; this cannot fail. `kind` identifies the type of device that signals
    /// it.
    ///
    /// Fences of one timeline must be created in the order in which they signal. From here on, the
    /// rules of the module apply.
    ///
    /// # Context
    ///
    /// Any.
    pub fn init(self, timeline: &FenceContext, kind: FenceType) -> DmaDriverFence {
        let this = ManuallyDrop::new(self);
        let seqno = timeline.last.fetch_add(1, Relaxed) + 1;
        // SAFETY: The memory is ours and not initialized, by the type invariant. `kind` is only
        // compared, never dereferenced.
        unsafe {
            bindings::rust_hmm_dma_fence_init(
                this.0.as_ptr(),
                kind.as_ptr(),
                timeline.context,
                seqno,
            );
        }
        // INVARIANT: The first reference is ours, and the fence was not signalled.
        DmaDriverFence(DmaFence(this.0))
    }
}

impl Drop for DmaFenceAlloc {
    fn drop(&mut self) {
        // SAFETY: The memory is ours and not initialized as a fence, by the type invariant.
        unsafe { bindings::rust_hmm_dma_fence_free(self.0.as_ptr()) };
    }
}

/// The signalling side of a DMA fence. If it is dropped, the fence fails with `ECANCELED`.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::kernel::dma_fence::DmaFenceAlloc;
/// use rust_hmm::kernel::dma_fence::FenceContext;
/// use rust_hmm::kernel::fence::Fence;
/// use rust_hmm::kernel::fence::FenceStatus;
/// use rust_hmm::kernel::identity::FenceType;
///
/// let ring = FenceContext::new();
/// // Allocate before the command is submitted, and submit it after `init`.
/// let pending = DmaFenceAlloc::new()?.init(&ring, FenceType::NONE);
/// let fence = Fence::of(&pending.fence())?;
/// // The interrupt handler signals it.
/// pending.signal(Ok(()));
/// assert_eq!(fence.check(), FenceStatus::Done);
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// The fence was made by [`DmaFenceAlloc::init`], and is not signalled.
#[must_use = "dropped, it is cancelled"]
pub struct DmaDriverFence(DmaFence);

impl DmaDriverFence {
    /// Returns the waiting side.
    ///
    /// # Context
    ///
    /// Any.
    pub fn fence(&self) -> DmaFence {
        self.0.clone()
    }

    /// Signals the fence, with an error if `result` is one.
    ///
    /// # Context
    ///
    /// Any in which a `spinlock_t` may be taken: also hard interrupts, but not with `PREEMPT_RT`,
    /// where handlers of drivers are threads.
    pub fn signal(self, result: Result) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so that the fence is moved out once.
        let fence = unsafe { core::ptr::read(&this.0) };
        let error = result.err().map_or(0, |error| error.to_errno());
        // SAFETY: The fence is alive, ours and not signalled, by the type invariants.
        unsafe { bindings::rust_hmm_dma_fence_signal(fence.as_raw(), error) };
    }
}

impl Drop for DmaDriverFence {
    fn drop(&mut self) {
        let error = cancelled().to_errno();
        // SAFETY: The fence is alive, ours and not signalled, by the type invariants.
        unsafe { bindings::rust_hmm_dma_fence_signal(self.0.as_raw(), error) };
    }
}

/// The waiting side of a DMA fence, of this library or of another driver. A clone refers to the
/// same fence.
///
/// [`Fence::of`](super::fence::Fence::of) makes a fence to wait for, and
/// [`SyncFile`](super::sync_file::SyncFile) exports the fence to user space.
///
/// # Invariants
///
/// We own a reference of the fence.
pub struct DmaFence(NonNull<bindings::dma_fence>);

// SAFETY: A `dma_fence` may be used by several tasks, and released by any.
unsafe impl Send for DmaFence {}
// SAFETY: The state of a `dma_fence` is protected by its own lock, and its reference count is
// atomic.
unsafe impl Sync for DmaFence {}

impl DmaFence {
    /// # Safety
    ///
    /// `raw` must be a valid fence. The caller's reference passes to the result.
    pub(super) unsafe fn from_raw(raw: NonNull<bindings::dma_fence>) -> Self {
        // INVARIANT: The reference is ours by the function's requirements.
        Self(raw)
    }

    /// Creates a new reference.
    ///
    /// # Safety
    ///
    /// `raw` must be a fence that is alive.
    #[cfg(CONFIG_RUST_HMM_CAPI)]
    pub(crate) unsafe fn get(raw: NonNull<bindings::dma_fence>) -> Self {
        // SAFETY: `raw` is valid by the function's requirements. `ManuallyDrop` keeps the caller's
        // reference.
        let theirs = ManuallyDrop::new(unsafe { Self::from_raw(raw) });
        Self::clone(&theirs)
    }

    /// Returns the C object.
    pub(crate) fn as_raw(&self) -> *mut bindings::dma_fence {
        self.0.as_ptr()
    }
}

impl PartialEq for DmaFence {
    /// Whether both are the same fence.
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for DmaFence {}

impl Clone for DmaFence {
    fn clone(&self) -> Self {
        // SAFETY: The fence is alive by the type invariant.
        unsafe { bindings::rust_hmm_dma_fence_get(self.as_raw()) };
        // INVARIANT: The reference was just taken.
        Self(self.0)
    }
}

impl Drop for DmaFence {
    fn drop(&mut self) {
        // SAFETY: We own a reference by the type invariant, and this is its last use.
        unsafe { bindings::rust_hmm_dma_fence_put(self.as_raw()) };
    }
}

/// A critical section of the current task that leads to the signal of a DMA fence
/// (`dma_fence_begin_signalling()`). Within it, lockdep reports allocations with reclaim and mm
/// locks.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::kernel::dma_fence::DmaDriverFence;
/// use rust_hmm::kernel::dma_fence::SignallingSection;
///
/// /// Ends a command in a thread of the driver.
/// fn end(pending: DmaDriverFence, result: Result) {
///     // lockdep reports allocations with reclaim from here on.
///     let _section = SignallingSection::begin();
///     pending.signal(result);
/// }
/// ```
pub struct SignallingSection {
    cookie: bool,
    _nts: NotThreadSafe,
}

impl SignallingSection {
    /// Begins the section.
    ///
    /// # Context
    ///
    /// Any. Has no effect in atomic context.
    pub fn begin() -> Self {
        Self {
            // SAFETY: The helper has no preconditions.
            cookie: unsafe { bindings::rust_hmm_dma_fence_begin_signalling() },
            _nts: NotThreadSafe,
        }
    }
}

impl Drop for SignallingSection {
    fn drop(&mut self) {
        // SAFETY: This task began the section, because the type is not `Send`.
        unsafe { bindings::rust_hmm_dma_fence_end_signalling(self.cookie) };
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_dma_fence)]
mod tests {
    use super::*;
    use crate::kernel::fence::{
        Fence,
        FenceStatus, //
    };

    fn pending(kind: FenceType) -> Result<DmaDriverFence> {
        Ok(DmaFenceAlloc::new()?.init(&FenceContext::new(), kind))
    }

    #[test]
    fn fence_ends_with_its_dma_fence() -> Result {
        for result in [Ok(()), Err(EIO)] {
            let pending = pending(FenceType::NONE)?;
            let early = Fence::of(&pending.fence())?;
            // Dropped before the signal: its callback is removed.
            drop(Fence::of(&pending.fence())?);
            assert_eq!(early.check(), FenceStatus::NotDone);
            let dma = pending.fence();
            pending.signal(result);
            assert_eq!(early.check().result(), Some(result));
            assert_eq!(early.synchronize(None), result);
            assert_eq!(Fence::of(&dma)?.check().result(), Some(result));
        }
        Ok(())
    }

    #[test]
    fn unsignalled_drop_cancels_the_fence() -> Result {
        drop(DmaFenceAlloc::new()?);
        let pending = pending(FenceType::NONE)?;
        let fence = Fence::of(&pending.fence())?;
        drop(pending);
        assert_eq!(fence.check(), FenceStatus::Failed(cancelled()));
        Ok(())
    }

    #[test]
    fn imported_fence_keeps_its_type() -> Result {
        let mine = 1u8;
        let other = 2u8;
        let mine = FenceType::of(&mine);
        let other = FenceType::of(&other);
        let pending = pending(mine)?;
        let fence = Fence::of(&pending.fence())?;
        assert!(fence.is_of(mine) && !fence.is_of(other));
        Ok(())
    }
}
