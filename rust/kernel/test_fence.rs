// SPDX-License-Identifier: GPL-2.0

//! Callback of a DMA fence, for KUnit tests.
//!
//! C header: [`include/linux/dma-fence.h`](srctree/include/linux/dma-fence.h)

use super::dma_fence::DmaFence;
use crate::bindings;
use kernel::{
    error::to_result,
    ffi,
    prelude::*,
    types::Opaque, //
};

type Run = dyn FnMut(bool) + Send;

/// A callback of a DMA fence. Dropping it removes it from the fence.
///
/// # Invariants
///
/// `run` is from [`KBox::into_raw`]. Only the callback uses it, until it is removed.
pub(crate) struct FenceCallback {
    fence: DmaFence,
    raw: KBox<Opaque<bindings::rust_hmm_kunit_fence_callback>>,
    run: *mut KBox<Run>,
}

impl FenceCallback {
    /// Calls `run` when `fence` is signalled, and passes whether that is in hard interrupt context.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `ENOENT` if the fence is signalled
    ///
    /// # Context
    ///
    /// May sleep. `run` is called with the lock of the fence held.
    pub(crate) fn new(fence: DmaFence, run: impl FnMut(bool) + Send + 'static) -> Result<Self> {
        let raw = KBox::new(Opaque::uninit(), GFP_KERNEL)?;
        let run: KBox<Run> = KBox::new(run, GFP_KERNEL)?;
        // INVARIANT: The callback is not registered yet.
        let this = Self {
            fence,
            raw,
            run: KBox::into_raw(KBox::new(run, GFP_KERNEL)?),
        };
        let fence = this.fence.as_raw();
        // SAFETY: The fence is alive. `raw` and `run` are freed after `drop` has removed the
        // callback, also on errors.
        to_result(unsafe {
            bindings::rust_hmm_kunit_fence_add(fence, this.raw.get(), Some(call), this.run.cast())
        })?;
        Ok(this)
    }
}

impl Drop for FenceCallback {
    fn drop(&mut self) {
        // SAFETY: The fence is alive, and `new` has initialized `raw` for it.
        unsafe { bindings::rust_hmm_kunit_fence_remove(self.fence.as_raw(), self.raw.get()) };
        // SAFETY: By the type invariant, nothing uses `run` after the removal.
        drop(unsafe { KBox::from_raw(self.run) });
    }
}

/// Calls the closure `data`.
///
/// # Safety
///
/// `data` must be the `run` of a [`FenceCallback`], which nothing else uses.
unsafe extern "C" fn call(data: *mut ffi::c_void) {
    // SAFETY: By the function's requirements.
    let run = unsafe { &mut *data.cast::<KBox<Run>>() };
    // SAFETY: The helper has no preconditions.
    run(unsafe { bindings::rust_hmm_kunit_in_hardirq() });
}
