// SPDX-License-Identifier: GPL-2.0

//! Memory for a fence, allocated where that is still allowed.

use super::Fence;
use crate::{
    bindings,
    kernel::{
        dma_fence::DmaFence,
        identity::FenceType, //
    }, //
};
use kernel::prelude::*;

/// Memory for a fence that follows a DMA fence. It is allocated before
/// [`DmaFenceAlloc::init`](crate::kernel::dma_fence::DmaFenceAlloc::init), because nothing may be
/// allocated after that.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::kernel::dma_fence::DmaFenceAlloc;
/// use rust_hmm::kernel::dma_fence::FenceContext;
/// use rust_hmm::kernel::fence::FenceAlloc;
/// use rust_hmm::kernel::fence::FenceStatus;
/// use rust_hmm::kernel::identity::FenceType;
///
/// let memory = FenceAlloc::new()?;
/// let pending = DmaFenceAlloc::new()?.init(&FenceContext::new(), FenceType::NONE);
/// // Allocates nothing, which is forbidden until `pending` is signalled.
/// let fence = memory.follow(&pending.fence());
/// pending.signal(Ok(()));
/// assert_eq!(fence.check(), FenceStatus::Done);
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// This is the only reference to the fence.
pub struct FenceAlloc(Fence);

impl FenceAlloc {
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
        // INVARIANT: The fence is new, and its only reference is ours.
        Ok(Self(Fence::alloc(FenceType::NONE, false)?))
    }

    /// Turns the memory into a fence that signals when `dma` does, with the same result.
    ///
    /// # Context
    ///
    /// Any.
    pub fn follow(self, dma: &DmaFence) -> Fence {
        // SAFETY: Both fences are alive, and this fence has no other reference, by their type
        // invariants.
        unsafe { bindings::rust_hmm_fence_follow(self.0.as_raw(), dma.as_raw()) };
        self.0
    }
}
