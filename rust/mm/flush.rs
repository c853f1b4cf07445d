// SPDX-License-Identifier: GPL-2.0

//! Flushes of a device's translations, and the proof that one is over.

use super::addr::PageRange;
use crate::bindings;

/// Who flushes the device's TLBs, and waits for those who walk its page table.
pub trait Flusher {
    /// A flush under way.
    type Pending: Send;

    /// Starts to flush all translations of `range`.
    fn start(&self, range: PageRange) -> Self::Pending;

    /// Waits until no flushed translation is in use, and nobody walks the table who began before.
    fn wait(&self, pending: Self::Pending);
}

/// Waits for walks of a page table that are made in RCU read sections, and began before: for
/// [`Flusher::wait`] of walkers in software. Context: may sleep.
// Not inlined: drivers need not have the binding.
#[inline(never)]
pub fn wait_for_rcu_walks() {
    // SAFETY: No requirements but that it may sleep; else the kernel complains.
    unsafe { bindings::synchronize_rcu() };
}

/// Proof that a flush is over: whoever owns the pages may have them.
#[derive(Debug)]
pub struct Flushed(());

impl Flushed {
    /// Waits for `pending`, which `flusher` has started; `None` if there was nothing to flush. Context: that of
    /// [`Flusher::wait`].
    #[inline]
    pub(crate) fn by<S: Flusher>(flusher: &S, pending: Option<S::Pending>) -> Self {
        if let Some(pending) = pending {
            flusher.wait(pending);
        }
        Self(())
    }
}
