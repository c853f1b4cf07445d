// SPDX-License-Identifier: GPL-2.0

//! Flushes of a device's translations, and the proof that one is over.

use super::addr::PageRange;

/// Who flushes the device's TLBs, and waits for those who walk its page table.
pub trait Flusher {
    /// A flush under way.
    type Pending: Send;

    /// Starts to flush all translations of `range`.
    fn start(&self, range: PageRange) -> Self::Pending;

    /// Waits until no flushed translation is in use, and nobody walks the table who began before.
    fn wait(&self, pending: Self::Pending);
}

/// Proof that a flush is over: whoever owns the pages may have them.
#[derive(Debug)]
pub struct Flushed(());

impl Flushed {
    /// Waits for `pending`, which `flusher` has started; `None` if there was nothing to flush. Context: that of
    /// [`Flusher::wait`].
    pub(crate) fn by<S: Flusher>(flusher: &S, pending: Option<S::Pending>) -> Self {
        if let Some(pending) = pending {
            flusher.wait(pending);
        }
        Self(())
    }
}
