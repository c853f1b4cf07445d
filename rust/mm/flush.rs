// SPDX-License-Identifier: GPL-2.0

//! Flushes of device translations, and the proof that a flush has completed.

use super::addr::PageRange;
use crate::bindings;

/// Flushes the TLBs of a device, and waits for concurrent walkers of its page table.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::flush::Flusher;
/// use rust_hmm::mm::flush::wait_for_rcu_walks;
///
/// /// A device without a TLB whose walks are sections of RCU readers.
/// struct Software;
///
/// impl Flusher for Software {
///     type Pending = ();
///
///     fn start(&self, _range: PageRange) {}
///
///     fn wait(&self, (): ()) {
///         wait_for_rcu_walks();
///     }
/// }
/// ```
pub trait Flusher {
    /// A flush that was started.
    type Pending: Send;

    /// Starts a flush of all translations of `range`.
    ///
    /// # Context
    ///
    /// The table lock may be held. Must not allocate with reclaim.
    fn start(&self, range: PageRange) -> Self::Pending;

    /// Waits until no flushed translation is in use, and until all walks that had begun before the
    /// flush have ended.
    ///
    /// # Context
    ///
    /// As for [`Self::start`].
    fn wait(&self, pending: Self::Pending);
}

/// Waits for all walks of page tables that have begun in RCU read-side critical sections. Used in
/// [`Flusher::wait`] of software walkers.
///
/// # Context
///
/// May sleep.
// Not inlined, so that drivers do not need the binding.
#[inline(never)]
pub fn wait_for_rcu_walks() {
    // SAFETY: `synchronize_rcu()` has no memory safety requirements. A call in atomic context is
    // reported by the kernel.
    unsafe { bindings::synchronize_rcu() };
}

/// Proof that a flush has completed, so that the pages can be returned to their owner.
#[derive(Debug)]
pub struct Flushed(());

impl Flushed {
    /// Waits for `pending`, which `flusher` has started; `None` if there was nothing to flush.
    ///
    /// # Context
    ///
    /// As [`Flusher::wait`].
    #[inline]
    pub(crate) fn by<S: Flusher>(flusher: &S, pending: Option<S::Pending>) -> Self {
        if let Some(pending) = pending {
            flusher.wait(pending);
        }
        Self(())
    }
}
